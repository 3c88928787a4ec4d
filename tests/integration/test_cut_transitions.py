"""Each transition with its connection cut: before, during and after every statement, the COMMIT among them.

The rows are then as they were or as they are to be, whole; and repeating the act leads there. The cases are those of
TRANSITIONS, all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.support import rows
from tests.support.cutting import Cutter, When
from tests.support.transitions import BESIDE, CASES, Case, settles, there
from tireless.domain.job import TRANSITIONS
from tireless.domain.outcome import Outcome
from tireless.errors import Refused, StoreError, StoreUnavailable
from tireless.store.db import Connection, connect

NAME = "tireless cut"


def test_every_transition_has_its_cases() -> None:
    """The list is not empty, and none of it is left out or made up."""
    assert TRANSITIONS
    assert set(CASES) == {(t.name, t.source, t.target) for t in TRANSITIONS}


# ------------------------------------------------------------------------------------------------ what is there after

DIFFERENT = {"id", "at", "uid", "token", "claim_token", "publish_token", "number", "position", "url", "branch"}
DIFFERENT |= {"not_before", "publish_until", "publish_not_before"}
"""What is another each time, beside ids and times."""
PICTURES = {
    "job": "SELECT * FROM job WHERE issue_id = %(issue)s ORDER BY id",
    "attempt": "SELECT a.* FROM attempt a JOIN job j ON j.id = a.job_id WHERE j.issue_id = %(issue)s ORDER BY a.id",
    "request": "SELECT * FROM request WHERE issue_id = %(issue)s ORDER BY id",
    "child": "SELECT * FROM child WHERE %(issue)s IN (issue_id, plan_issue_id) ORDER BY id",
    "issue": "SELECT * FROM issue WHERE id = %(issue)s",
    "plan": "SELECT p.children_done FROM child c JOIN issue p ON p.id = c.plan_issue_id WHERE c.issue_id = %(issue)s",
    "look": """SELECT l.* FROM look l JOIN issue i ON (i.repository_id, i.number) = (l.repository_id, l.number)
                WHERE i.id = %(issue)s""",
    "hold": "SELECT source, held_by, reason FROM lane_hold ORDER BY 1",
    "breaker": "SELECT failures, cardinality(issues) AS issues, opened, quotas FROM lane_breaker",
    "event": """SELECT e.* FROM job_event e JOIN job j ON j.id = e.job_id WHERE j.issue_id = %(issue)s ORDER BY e.id""",
}

Picture = dict[str, list[dict[str, object]]]


async def picture(conn: Connection, made: rows.Made, *, events: bool = True) -> Picture:
    """All that is stored about the job; of what is different each time only whether it is there."""
    found: Picture = {}
    for name, query in PICTURES.items():
        if events or name != "event":
            found[name] = [_plain(row) for row in await rows.rows(conn, query, issue=made.issue_id)]
    return found


def _plain(row: dict[str, object]) -> dict[str, object]:
    plain = {key: value is not None if _differs(key) else value for key, value in row.items()}
    if isinstance(details := plain.get("details"), dict):
        plain["details"] = sorted(details)  # it may name another job
    return plain


def _differs(key: str) -> bool:
    return key in DIFFERENT or key.endswith(("_id", "_at", "_time", "_attempt", "_of"))


TABLES = ("job_event", "attempt", "child", "job", "request", "look", "mirror", "issue", "lane_hold", "lane_breaker")
EMPTY = ";".join(
    ["BEGIN; SET LOCAL session_replication_role = replica"]
    + [f"DELETE FROM {table}" for table in (*TABLES, "repository", "lane")]  # noqa: S608 - names from above
    + ["COMMIT"]
)


async def alone(conn: Connection) -> None:
    """Take away what earlier cases left, or it would be met by a claim, a sweep or a limit. Superusers only."""
    await conn.execute(EMPTY.encode(), prepare=False)


async def gone(conn: Connection) -> None:
    """Return when the backend of the cut connection has ended, whatever it was doing."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %(name)s"
    async with asyncio.timeout(rows.LIMIT_S):
        while await rows.value(conn, query, name=NAME):
            pass


async def cut(conn: Connection, door: Cutter, one: Case, at: int | None, when: When) -> tuple[rows.Made, int]:
    """Prepare the case and do it through the door, which cuts there; what was made, and how many statements it took."""
    await alone(conn)
    made = await one.prepare(conn)
    door.arm(None)
    client = await connect(door.dsn, application_name=NAME)
    try:
        door.arm(at, when)
        if at is None:
            await one.do(client, made)
        else:
            with pytest.raises(StoreUnavailable):
                await one.do(client, made)
    finally:
        await client.close()
    await gone(conn)
    return made, door.count


@pytest.fixture
async def door(dsn: str) -> AsyncIterator[Cutter]:
    """The way to the database that can be cut."""
    async with Cutter(dsn) as opened:
        yield opened


async def holds(conn: Connection, door: Cutter, one: Case) -> int:
    """The case, cut at every place; how many places there were."""
    await alone(conn)
    before = await picture(conn, await one.prepare(conn))
    made, statements = await cut(conn, door, one, None, "before")
    after = await picture(conn, made)
    assert after != before
    if one.tells is not None:
        arrow = (one.tells.name, one.tells.source, one.tells.target)
        assert arrow in [(what, source, target) for what, source, target, _ in await told(conn, made)]
    places: list[tuple[int, When]] = [(at, when) for at in range(1, statements + 1) for when in ("before", "during")]
    for at, when in [*places, (statements, "after")]:
        made, _ = await cut(conn, door, one, at, when)
        found = await picture(conn, made)
        legal = ([before], [after], [before, after])[_legal(at, when, statements)]
        assert found in legal, f"cut {when} {at}: {[differences(found, one) for one in legal]}"
        await again(conn, one, made, after)
    return len(places) + 1


def differences(found: Picture, wanted: Picture) -> dict[str, object]:
    """Where two pictures differ."""
    return {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]}


def _legal(at: int, when: When, statements: int) -> int:
    """0: as before; 1: as after; 2: either of them."""
    if at < statements or when == "before":
        return 0
    return 1 if when == "after" else 2


async def again(conn: Connection, one: Case, made: rows.Made, after: Picture) -> None:
    """Whoever got no answer does it again, and all is as it is to be: nothing twice, nothing half."""
    with contextlib.suppress(Refused):  # it has ended, it is live, it is parked no more
        await one.do(conn, made)
    assert await picture(conn, made, events=False) == {name: after[name] for name in after if name != "event"}


async def told(conn: Connection, made: rows.Made) -> list[tuple[object, ...]]:
    """The events of the issue's jobs."""
    query = """
    SELECT e.what, e.from_state, e.to_state, e.reason FROM job_event e JOIN job j ON j.id = e.job_id
     WHERE j.issue_id = %(issue)s ORDER BY e.id
    """
    return [tuple(row.values()) for row in await rows.rows(conn, query, issue=made.issue_id)]


@pytest.mark.parametrize("name", sorted({t.name for t in TRANSITIONS}))
async def test_a_cut_leaves_one_of_two_states(conn: Connection, door: Cutter, name: str) -> None:
    """Before or after, never between; and doing it again after the cut leads to the one after."""
    places = 0
    for key, some in CASES.items():
        for one in some if key[0] == name else ():
            places += await holds(conn, door, one)
    assert places >= 3


async def test_a_cut_leaves_no_half_of_what_is_no_transition(conn: Connection, door: Cutter) -> None:
    """A recorded result and its children are there, all of them, or none."""
    for one in BESIDE:
        assert await holds(conn, door, one) >= 9


async def test_the_door_really_cuts(conn: Connection, door: Cutter) -> None:
    """A settle that is cut after it took place is an error to the runner, and `already` when it is repeated."""
    one = Case(there("claimed"), settles(Outcome.NO_CHANGE))
    made, _ = await cut(conn, door, one, 1, "after")
    assert await one.do(conn, made) == "already"
    made, _ = await cut(conn, door, one, 1, "before")
    assert await one.do(conn, made) == "done"
    assert issubclass(StoreUnavailable, StoreError)
