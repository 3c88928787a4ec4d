"""Acts that end several jobs, or a plan with children, take their locks in one order: none waits in a ring."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import uuid4

import pytest

from tests.support import rows, shown
from tireless.domain.issue import IssueState, RepoRef
from tireless.domain.labels import LabelScheme
from tireless.domain.outcome import Outcome
from tireless.domain.people import Policy
from tireless.store import steer
from tireless.store.adopt import adopt
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, clock
from tireless.store.intake import Reading, Rules, Taken, Took, take_in
from tireless.store.limits import Limits, limit_repository
from tireless.store.record import Answer, RecordedResult, mark_pushed, record_result
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims

ME = RunnerId("r1", "h1", uuid4())
LOOKS = "SELECT number FROM look ORDER BY ctid"
"""The order in which they were written, in an empty table; it is the order in which their rows were locked."""


async def numbers(conn: Connection) -> list[object]:
    """The issues that are looked at again, in the order of the locks."""
    return [row["number"] for row in await rows.rows(conn, LOOKS)]


async def family(conn: Connection, plan: int, *children: int) -> rows.Made:
    """A claimed plan, on issue number `plan`, that has adopted children which are issues already."""
    made = await rows.job(conn, number=plan, state="claimed", kind="plan")
    for number in children:
        await rows.child(
            conn, made.issue_id, f"k{number}", job_id=made.job_id, attempt_id=made.attempt_id, number=number
        )
    return made


async def test_a_sweep_looks_at_issues_in_their_order(conn: Connection) -> None:
    """Whatever the order of the jobs it ends, and with the children of a plan among them."""
    for number in (9, 4, 7):
        await rows.job(conn, number=number, state="claimed", lease_s=-1.0, max_attempts=1)
    plan = await family(conn, 6, 8, 3)
    await rows.change(conn, "job", plan.job_id, cancel_requested="closed")
    await rows.expire(conn, plan.job_id)
    assert await expire_stale_claims(conn) == 4
    assert await numbers(conn) == [3, 4, 6, 7, 8, 9]


async def test_an_end_looks_at_issues_in_their_order(conn: Connection) -> None:
    """A plan that ends has its children's issues looked at and its own, the lowest number first."""
    for end, plan in ((settled, 5), (cancelled, 15)):
        await conn.execute("DELETE FROM look")
        await conn.execute("VACUUM look")
        await end(conn, await family(conn, plan, 8, 3))
        assert await numbers(conn) == sorted([3, plan, 8])


async def settled(conn: Connection, made: rows.Made) -> None:
    """It ends by its runner's word."""
    assert await settle(conn, *made.claim, Ending(outcome=Outcome.FAILED)) is Answer.DONE


async def cancelled(conn: Connection, made: rows.Made) -> None:
    """It is asked to stop, and does."""
    await steer.cancel(conn, made.job_id, "ada")
    assert await settle(conn, *made.claim, Ending(outcome=Outcome.CANCELLED)) is Answer.DONE


async def test_a_sweep_and_the_end_of_a_plan_do_not_deadlock(dsn: str) -> None:
    """The sweep ends two children's jobs while their plan ends, each held up between two looks."""
    async with rows.connections(dsn, 4) as (sweeper, runner, holder, watcher):
        first = await rows.job(watcher, number=5, state="claimed", lease_s=-1.0, max_attempts=1)
        second = await rows.job(watcher, number=3, state="claimed", lease_s=-1.0, max_attempts=1)
        unsent = await rows.child(watcher, second.issue_id, "x", job_id=second.job_id, attempt_id=second.attempt_id)
        plan = await family(watcher, 1, 3, 5)
        async with holder.transaction():
            await holder.execute("SELECT FROM child WHERE id = %(id)s FOR UPDATE", {"id": unsent})
            sweeping = asyncio.create_task(expire_stale_claims(sweeper))
            await rows.until_blocked(watcher, sweeper)
            settling = asyncio.create_task(settle(runner, *plan.claim, Ending(outcome=Outcome.FAILED)))
            await rows.until_blocked(watcher, runner, work=settling)  # as far as it gets
        assert await sweeping == 2
        assert await settling is Answer.DONE
        assert await rows.states(watcher, [first, second, plan]) == ["failed"] * 3


async def test_intake_of_a_closed_child_and_the_end_of_its_plan_do_not_deadlock(dsn: str) -> None:
    """A child's issue is closed while the plan ends: the one looks at what the other tells, in the same order."""
    async with rows.connections(dsn, 4) as (intake, runner, holder, watcher):
        live = await rows.job(watcher, number=5)
        plan = await family(watcher, 1, 5)
        child = await rows.value(watcher, "UPDATE child SET issue_id = %(id)s RETURNING id", id=live.issue_id)
        async with holder.transaction():
            await holder.execute("SELECT FROM child WHERE id = %(id)s FOR UPDATE", {"id": child})
            closing = asyncio.create_task(closed(intake, live))
            await rows.until_blocked(watcher, intake)
            settling = asyncio.create_task(settle(runner, *plan.claim, Ending(outcome=Outcome.FAILED)))
            await rows.until_blocked(watcher, runner, work=settling)  # as far as it gets
        assert (await closing).how is Took.STORED
        assert await settling is Answer.DONE
        assert await rows.states(watcher, [live, plan]) == ["cancelled", "failed"]


async def test_intake_of_a_closed_child_and_a_claim_of_its_plan_do_not_deadlock(dsn: str) -> None:
    """A plan that was asked for again is claimed while one of its children is closed, which tells its mirror."""
    async with rows.connections(dsn, 4) as (intake, runner, holder, watcher):
        plan = await rows.job(watcher, number=1, kind="plan")
        live = await rows.job(watcher, number=5, state="waiting", hold=True, lane_name="other")
        await rows.child(watcher, plan.issue_id, "k5", number=5, issue_id=live.issue_id)
        await rows.insert(watcher, "look", repository_id=live.repository_id, number=5, why="x")
        async with holder.transaction():
            await holder.execute("SELECT FROM look FOR UPDATE")
            closing = asyncio.create_task(closed(intake, live))
            await rows.until_blocked(watcher, intake)
            claiming = asyncio.create_task(claim_next(runner, [rows.LANE], runner=ME))
            await rows.until_blocked(watcher, runner, work=claiming)  # as far as it gets
        assert (await closing).how is Took.STORED
        claims = await claiming or await claim_next(runner, [rows.LANE], runner=ME)
        assert [claim.number for claim in claims] == [1]


async def recorded(conn: Connection, made: rows.Made) -> object:
    """Its runner has a result."""
    return await record_result(conn, *made.claim, RecordedResult(result={}))


async def pushed(conn: Connection, made: rows.Made) -> object:
    """Its runner has pushed."""
    return await mark_pushed(conn, *made.claim)


async def adopted(conn: Connection, made: rows.Made) -> object:
    """Its runner finds work on the forge."""
    return await adopt(conn, *made.claim, [])


async def given_back(conn: Connection, made: rows.Made) -> object:
    """Its runner ends."""
    return await settle(conn, *made.claim, Ending(outcome=Outcome.SHUTDOWN))


async def swept(conn: Connection, _made: rows.Made) -> object:
    """Its lease has ended."""
    return await expire_stale_claims(conn)


@pytest.mark.parametrize("work", [recorded, pushed, adopted, given_back, swept])
async def test_who_changes_limits_waits_in_no_ring(
    dsn: str, work: Callable[[Connection, rows.Made], Awaitable[object]]
) -> None:
    """He has `attempt` and wants a repository, whose holder wants a job: who has that wants no `attempt` any more."""
    async with rows.connections(dsn, 4) as (limiter, runner, intake, watcher):
        made = await rows.job(watcher, state="claimed", recorded=True, lease_s=-1.0 if work is swept else 600.0)
        async with intake.transaction():
            await intake.execute("SELECT FROM repository FOR NO KEY UPDATE")
            ref = RepoRef(rows.FORGE, *rows.REPO.split("/"))
            limiting = asyncio.create_task(limit_repository(limiter, ref, Limits(max_running=2)))
            await rows.until_blocked(watcher, limiter)
            working = asyncio.ensure_future(work(runner, made))
            await rows.until_blocked(watcher, runner)
            await intake.execute("SELECT FROM job FOR NO KEY UPDATE NOWAIT")
        await limiting
        await working


async def closed(conn: Connection, made: rows.Made) -> Taken:
    """Intake reads that the issue was closed."""
    issue = await rows.row(conn, "issue", made.issue_id)
    created, updated = issue["created_at"], issue["updated_at"]
    assert isinstance(created, datetime)
    assert isinstance(updated, datetime)
    snapshot = shown.issue(
        made.number,
        int(str(issue["forge_issue_id"])),
        title=str(issue["title"]),
        body=str(issue["body"]),
        state=IssueState.CLOSED,
        created_at=created,
        updated_at=updated,
    )
    async with conn.transaction():
        reading = Reading(snapshot, await clock(conn))
        return await take_in(conn, made.repository_id, reading, rules=Rules(LabelScheme(), Policy(), ()))
