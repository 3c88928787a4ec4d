"""States, reasons and outcomes: the enums, the drawing, the constraints and what the store really does agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain import job as drawn
from tireless.domain.job import TERMINAL, TRANSITIONS, Kind, Parked, State, Wait
from tireless.domain.labels import Role
from tireless.domain.outcome import Outcome
from tireless.errors import StoreError
from tireless.store import steer
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, constraint_of, translate
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims, wake_due

ME = RunnerId("r1", "h1", uuid4())


async def allowed(conn: Connection, constraint: str) -> set[str]:
    """The text values that a CHECK lists: one by one, in an array, or as the alternatives of a pattern."""
    query = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %(name)s"
    told = str(await rows.value(conn, query, name=constraint))
    if pattern := re.search(r"\^\(([a-z_|]+)\)\$", told):
        return set(pattern[1].split("|"))
    listed = {word for words in re.findall(r"'\{([a-z_,]+)\}'", told) for word in words.split(",")}
    return listed | set(re.findall(r"'([a-z_]+)'::text", told))


async def test_the_constraints_know_the_enums(conn: Connection) -> None:
    """States, kinds, parked reasons and outcomes of the schema are those of the code, no more and no fewer."""
    for constraint, enum in {
        "state_known": State,
        "kind_known": Kind,
        "child_kind_known": Kind,
        "parked_known": Parked,
        "attempt_outcome_known": Outcome,
    }.items():
        assert await allowed(conn, constraint) == {str(value) for value in enum}
    assert await allowed(conn, "counted_are_roles_of_labels") == {str(role) for role in Role}
    assert await allowed(conn, "terminal_is_finished") == {str(state) for state in TERMINAL}
    assert await allowed(conn, "not_before_reason_known") == {Wait.BLOCKED.value, Wait.BACKOFF.value}


def test_the_drawing_names_every_state() -> None:
    """The drawing at the head of domain/job.py has every state, and every failure that ends one."""
    assert drawn.__doc__
    words = set(re.findall(r"[a-z_]+", drawn.__doc__))
    assert {str(state) for state in State} <= words
    assert {str(failure) for failure in drawn.Failure} <= words


def test_nothing_leaves_a_terminal_state() -> None:
    """No transition begins at one, and every other state can end."""
    assert not {t.source for t in TRANSITIONS} & TERMINAL
    assert {t.source for t in TRANSITIONS if t.target in TERMINAL} >= set(State) - TERMINAL


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_a_terminal_job_refuses_every_transition(conn: Connection, state: State) -> None:
    """Whatever writes it, by hand too: refused by the name of the rule, for every state there is."""
    made = await rows.job(conn, state=state)
    for target in set(State) - {state}:
        with pytest.raises(StoreError) as caught:
            await write(conn, "UPDATE job SET state = %(state)s WHERE id = %(id)s", state=target, id=made.job_id)
        assert constraint_of(caught.value) == "terminal_stays_terminal"
    assert await rows.states(conn, [made]) == [state]


async def write(conn: Connection, query: str, **values: object) -> None:
    """Run a statement as the store would, with its errors translated."""
    with translate("writing nonsense"):
        await conn.execute(query.encode(), values)


# ------------------------------------------------------------------------------------------------ what really happens


async def _claims(conn: Connection) -> None:
    await rows.job(conn)
    await claim_next(conn, [rows.LANE], runner=ME)


async def _settles(conn: Connection) -> None:
    await rows.lane(conn)
    for outcome in set(Outcome) - {Outcome.LEASE_LOST}:
        made = await rows.job(conn, state="claimed", recorded=True)
        await settle(conn, *made.claim, Ending(outcome=outcome, wake_s=60.0))


async def _expires(conn: Connection) -> None:
    await rows.job(conn, state="claimed", lease_s=-1.0, cancel_requested="closed")
    await rows.job(conn, state="claimed", lease_s=-1.0, recorded=True)
    await rows.job(conn, state="claimed", lease_s=-1.0, max_attempts=1)
    await rows.job(conn, state="claimed", lease_s=-1.0)
    await rows.job(conn, state="claimed", lease_s=-1.0, hold=True)
    await expire_stale_claims(conn)


async def _gives_up(conn: Connection) -> None:
    now = await rows.value(conn, "SELECT clock_timestamp()")
    made = await rows.job(conn, state="publishing", publish_began_at=now)
    await steer.cancel(conn, made.job_id, "ada", force=True)


async def _wakes(conn: Connection) -> None:
    later = await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'")
    for spent in (0, 3):
        waits = {"not_before": later, "not_before_reason": "backoff", "attempts": spent, "claim_no": spent}
        made = await rows.job(conn, state="waiting", hold=True)
        await rows.change(conn, "job", made.job_id, hold=False, **waits)
    await conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    await conn.execute("UPDATE job SET not_before = clock_timestamp() - interval '1 s' WHERE not_before IS NOT NULL")
    await conn.execute("ALTER TABLE job ENABLE TRIGGER USER")
    await wake_due(conn)


async def _steps_aside(conn: Connection) -> None:
    await rows.repository(conn, max_running=1)
    await rows.job(conn, state="claimed")
    await rows.job(conn)
    await claim_next(conn, [rows.LANE], runner=ME)


async def _cancels(conn: Connection) -> None:
    for state in set(State) - TERMINAL:
        made = await rows.job(conn, state=state, hold=state is State.WAITING)
        await steer.cancel(conn, made.job_id, "ada")


async def _steers(conn: Connection) -> None:
    ended = await rows.job(conn, state="failed")
    await steer.rerun(conn, ended.job_id, "ada")
    unapproved = await rows.job(conn, state="failed")
    await rows.change(conn, "issue", unapproved.issue_id, content_hash="edited")
    again = await steer.rerun(conn, unapproved.job_id, "ada")
    await steer.approve(conn, again, "ada")


ACTS: tuple[Callable[[Connection], Coroutine[Any, Any, None]], ...] = (
    _claims,
    _settles,
    _expires,
    _wakes,
    _steps_aside,
    _cancels,
    _gives_up,
    _steers,
)


async def test_every_transition_is_drawn_and_happens(conn: Connection) -> None:
    """The events the store writes are exactly the transitions of the list that are the store's to make here.

    The publisher's own (`publish`, `return`) are tested with the publisher.
    """
    for act in ACTS:
        await act(conn)
        await conn.execute("UPDATE repository SET max_running = NULL")
        await conn.execute("DELETE FROM lane_hold")
    query = "SELECT DISTINCT what, from_state, to_state FROM job_event WHERE from_state IS DISTINCT FROM to_state"
    seen = {tuple(row.values()) for row in await rows.rows(conn, query)}
    listed = {(t.name, t.source and t.source.value, t.target.value) for t in TRANSITIONS}
    assert seen == {arrow for arrow in listed if arrow[0] not in ("publish", "return")}
