"""A runner's ends that are due at once: who finds company, who is sent to speak alone, and that nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.outcome import Outcome
from tireless.services.settling import Settling
from tireless.store import settle
from tireless.store.db import Connection, Pool, pool
from tireless.store.look import Wake
from tireless.store.record import Answer
from tireless.store.settle import Ending

DONE = Ending(outcome=Outcome.NO_CHANGE)
UNRECORDED = Ending(outcome=Outcome.DONE)
"""Refused by the database, for its attempt has no record."""
WRITERS = "SELECT count(DISTINCT xmin::text) FROM attempt WHERE outcome IS NOT NULL"
"""How many transactions ended attempts."""


@pytest.fixture
async def connections(dsn: str) -> AsyncIterator[Pool]:
    """A runner's pool."""
    async with pool(dsn, min_size=1, max_size=4, application_name="tireless test runner") as opened:
        yield opened


@pytest.fixture
def rung() -> list[Wake]:
    """Whom the bell was told to wake."""
    return []


@pytest.fixture
def ends(connections: Pool, rung: list[Wake]) -> Settling:
    """What is under test."""
    return Settling(connections, rung.extend)


async def claimed(conn: Connection, count: int) -> list[rows.Made]:
    """So many claimed jobs."""
    return [await rows.job(conn, state="claimed") for _ in range(count)]


def settling(ends: Settling, made: Sequence[rows.Made], ending: Ending = DONE) -> list[asyncio.Task[Answer | None]]:
    """Each in a task of its own, as a runner's slots are."""
    return [asyncio.create_task(ends.settle(*each.claim, ending)) for each in made]


async def test_ends_due_at_once_are_one_commit(conn: Connection, ends: Settling, rung: list[Wake]) -> None:
    """Eight slots that end in the same moment are answered by one transaction, and whom it wakes is told once."""
    made = await claimed(conn, 8)
    assert await asyncio.gather(*settling(ends, made)) == [Answer.DONE] * 8
    assert await rows.value(conn, WRITERS) == 1
    assert sorted(str(wake.channel) for wake in rung) == ["tireless_look", "tireless_mirror"]


async def test_who_finds_no_company_speaks_alone(conn: Connection, ends: Settling) -> None:
    """At once, and nothing was written; the next one that comes is not kept waiting by it either."""
    one, other = await claimed(conn, 2)
    assert await ends.settle(*one.claim, DONE) is None
    assert await ends.settle(*other.claim, DONE) is None
    assert await rows.states(conn, [one, other]) == ["claimed", "claimed"]


async def test_while_some_are_on_their_way_others_gather(dsn: str, conn: Connection, ends: Settling) -> None:
    """Whoever comes too late for the first transaction goes with all others who did, in the second."""
    first, later = await claimed(conn, 2), await claimed(conn, 3)
    async with rows.connections(dsn, 1) as (holder,):
        async with holder.transaction():
            await holder.execute("LOCK TABLE attempt IN SHARE MODE")
            going = settling(ends, first)
            # Of this database: in those of other tests, copied as this one was, the table has the same number.
            waits = """
            SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'attempt'::regclass
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            """
            async with asyncio.timeout(rows.LIMIT_S):
                while not await rows.value(conn, waits):
                    pass
            gathered = settling(ends, later)
            await asyncio.sleep(0)
            assert not any(task.done() for task in (*going, *gathered))
        assert await asyncio.gather(*going, *gathered) == [Answer.DONE] * 5
    assert await rows.value(conn, WRITERS) == 2


async def test_more_than_fit_go_in_turn(conn: Connection, ends: Settling, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement has its most; nobody is left over, the last one alone speaks alone."""
    monkeypatch.setattr("tireless.services.settling.MAX_TOGETHER", 3)
    assert settle.MAX_TOGETHER > 3
    answers = await asyncio.gather(*settling(ends, await claimed(conn, 7)))
    assert answers == [Answer.DONE] * 6 + [None]
    assert await rows.value(conn, WRITERS) == 2


async def test_what_is_refused_sends_everybody_to_speak_alone(
    conn: Connection, ends: Settling, rung: list[Wake]
) -> None:
    """They cannot tell whose fault it was, and need not; nothing was written, and the next group goes as ever."""
    made = await claimed(conn, 3)
    tasks = [*settling(ends, made[:2]), *settling(ends, made[2:], UNRECORDED)]
    assert await asyncio.gather(*tasks) == [None] * 3
    assert await rows.states(conn, made) == ["claimed"] * 3
    assert rung == []
    assert await asyncio.gather(*settling(ends, made[:2])) == [Answer.DONE] * 2


async def test_a_backoff_that_is_missing_is_said_to_whoever_forgot_it(conn: Connection, ends: Settling) -> None:
    """A ValueError of one word is no error of the others': all of them speak alone."""
    made = await claimed(conn, 2)
    tasks = [*settling(ends, made[:1]), *settling(ends, made[1:], Ending(outcome=Outcome.SHUTDOWN, wake_s=None))]
    assert await asyncio.gather(*tasks) == [Answer.DONE] * 2
    made = await claimed(conn, 2)
    tasks = [*settling(ends, made[:1]), *settling(ends, made[1:], Ending(outcome=Outcome.WORKSPACE_ERROR))]
    assert await asyncio.gather(*tasks) == [None] * 2


async def test_a_database_out_of_reach_keeps_nobody(dsn: str, conn: Connection) -> None:
    """A pool that is closed sends everybody to speak alone, which is where outages are waited for."""
    gone = pool(dsn, min_size=1, max_size=1, application_name="tireless test gone")
    ends = Settling(gone, lambda _wakes: None)
    assert await asyncio.gather(*settling(ends, await claimed(conn, 3))) == [None] * 3


async def test_who_is_cancelled_takes_nobody_with_him(conn: Connection, ends: Settling) -> None:
    """The others are answered; his word may have been said, and is answered `already` when it is said again."""
    made = await claimed(conn, 4)
    tasks = settling(ends, made)
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, False, True, False]
    assert [answers[1], answers[3]] == [Answer.DONE] * 2


async def test_one_of_nobodys_job_is_sent_away(conn: Connection, ends: Settling) -> None:
    """A claim that is lost is for `settle` to tell."""
    (mine,) = await claimed(conn, 1)
    other = asyncio.create_task(ends.settle(mine.job_id, uuid4(), DONE))
    assert await asyncio.gather(*settling(ends, [mine]), other) == [Answer.DONE, None]
