"""The no-progress breaker: the same end with the same head three times in a row, in the rows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.job import State
from tireless.domain.outcome import Outcome
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.settle import Ending, Policy, settle
from tireless.store.steer import approve

ME = RunnerId("r1", "h1", uuid4())
RETRY, ERROR, BLOCKED, SHUTDOWN = Outcome.RETRY, Outcome.AGENT_ERROR, Outcome.BLOCKED, Outcome.SHUTDOWN
End = tuple[Outcome, str | None]


async def go(conn: Connection, made: rows.Made, *ends: End, asked_s: float | None = None) -> list[object]:
    """Claim and settle, end by end, until the job does not come back; why it is parked after each."""
    found = []
    for outcome, head in ends:
        (got,) = await claim_next(conn, [rows.LANE], runner=ME)
        ending = Ending(outcome=outcome, reason="the same again", wake_s=0.0, asked_s=asked_s, head=head)
        await settle(conn, got.job_id, got.token, ending, policy=Policy(breaker_failures=99))
        await conn.execute("UPDATE job SET not_before = '-infinity', state = 'pending' WHERE not_before IS NOT NULL")
        found.append((await rows.row(conn, "job", made.job_id))["parked"])
    return found


async def test_three_alike_in_a_row_park(conn: Connection) -> None:
    """The third is not tried again, and a person is told how they ended."""
    made = await rows.job(conn, max_attempts=9)
    assert await go(conn, made, *[(ERROR, "t1")] * 3) == [None, None, "no_progress"]
    job = await rows.row(conn, "job", made.job_id)
    assert job["question"] == (
        "Its last 3 attempts ended alike (agent_error) and left the same behind. The last one: the same again"
    )
    assert (await rows.events(conn, made.job_id))[-1] == ("settle", "claimed", "waiting", "no_progress")


@pytest.mark.parametrize(
    "ends",
    [
        [(ERROR, "t1"), (ERROR, "t2"), (ERROR, "t1"), (ERROR, "t1")],
        [(ERROR, "t1"), (RETRY, "t1"), (ERROR, "t1"), (ERROR, "t1")],
        [(ERROR, None)] * 6,
        [(SHUTDOWN, "t1")] * 6,
        [(Outcome.WORKSPACE_ERROR, "t1")] * 6,
    ],
    ids=["another head", "another end", "nothing known", "shutdowns", "our own fault"],
)
async def test_anything_new_is_progress(conn: Connection, ends: Sequence[End]) -> None:
    """Another head or another end begins anew; what says nothing of the work is not counted."""
    made = await rows.job(conn, max_attempts=9)
    assert await go(conn, made, *ends) == [None] * len(ends)


async def test_what_says_nothing_comes_between(conn: Connection) -> None:
    """A shutdown, or an agent that never ran, between two alike changes nothing."""
    made = await rows.job(conn, max_attempts=9)
    between = (SHUTDOWN, None), (Outcome.WORKSPACE_ERROR, None)
    told = await go(conn, made, (RETRY, "t1"), *between, (RETRY, "t1"), *between, (RETRY, "t1"))
    assert told == [None] * 6 + ["no_progress"]


async def test_blocked_without_a_time_counts(conn: Connection) -> None:
    """Given back for ever is no progress either; an agent that names the time is left alone until then."""
    made = await rows.job(conn)
    assert await go(conn, made, *[(BLOCKED, "t1")] * 3) == [None, None, "no_progress"]
    await rows.change(conn, "job", made.job_id, state="cancelled", reason="operator", finished_at="now")
    timed = await rows.job(conn)
    assert await go(conn, timed, *[(BLOCKED, "t1")] * 4, asked_s=60.0) == [None] * 4


async def test_the_last_attempt_ends_it(conn: Connection) -> None:
    """With no attempt left there is nothing to stop: the job ends as exhausted."""
    made = await rows.job(conn, max_attempts=3)
    assert await go(conn, made, *[(ERROR, "t1")] * 3) == [None] * 3
    assert await rows.states(conn, [made]) == ["failed"]


async def test_a_person_starts_the_count_anew(conn: Connection) -> None:
    """After `jobs approve` it takes three again."""
    made = await rows.job(conn, max_attempts=9)
    await go(conn, made, *[(ERROR, "t1")] * 3)
    for _ in range(2):
        assert await approve(conn, made.job_id, "ada") is State.PENDING
        assert await go(conn, made, *[(ERROR, "t1")] * 3) == [None, None, "no_progress"]
