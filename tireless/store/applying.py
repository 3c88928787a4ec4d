"""Writes down what intake decided of one issue: the issue, its job, its kin, and whom that wakes. Decides nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from tireless.domain.case import Asked
from tireless.domain.decision import (
    Absorb,
    Cancel,
    Enqueue,
    Ignore,
    LiveJob,
    Park,
    Refresh,
    Renew,
    RequestStop,
    Triage,
    Unpark,
)
from tireless.domain.issue import EntryKind, IssueState, Snapshot, TimelineEntry
from tireless.domain.job import State
from tireless.domain.labels import Role, meaning, read
from tireless.domain.marker import comment_hash
from tireless.domain.routing import Route
from tireless.store.comparing import forge_shows
from tireless.store.db import Connection
from tireless.store.dependencies import look_at_dependents, refresh_own_waits, store_dependencies
from tireless.store.issues import end_child, new_request, request_answered, store_answers, store_issue, store_verdicts
from tireless.store.jobs import (
    NewJob,
    call_off,
    change_resting,
    change_running,
    enqueue,
    lock_kin,
    note,
    refresh_waits,
)
from tireless.store.known import Known
from tireless.store.look import Ring, notify
from tireless.store.pace import too_often
from tireless.store.reading import Reading, Rules


async def apply(
    conn: Connection,
    reading: Reading,
    known: Known,
    asked: Asked | None,
    triage: Triage,
    rules: Rules,
    ring: Ring | None,
) -> int:
    """Carry out what was decided; how many jobs are new. In the transaction that judged it.

    Writes the issue first: the trigger that parks a job reads its text. Then the job, then children. All jobs are
    locked before that: with the issue its mirror is told.
    """
    snapshot, scheme = reading.snapshot, rules.scheme
    plan = _plan_of_kin(snapshot, known)
    if plan is not None:
        await lock_kin(conn, plan)
    issue_id = await store_issue(
        conn, known, snapshot, asked, triage, asked_at=reading.asked_at, settled=reading.settled
    )
    if asked is not None:
        await store_verdicts(conn, issue_id, asked.verdicts)
    if reading.dependencies is not None:
        await store_dependencies(conn, issue_id, reading.dependencies, asked_at=reading.asked_at)
    await _end_child(conn, snapshot, known)
    made = await _act(conn, snapshot, known, issue_id, triage, rules, ring)
    live = known.standing.live
    if live is not None:
        await refresh_own_waits(conn, live.id, ring=ring)
    if live is not None and asked is not None and asked.cannot_tell is None:
        await store_answers(conn, live.id, asked.answers)
    if live is not None and known.content_hash != snapshot.content_hash:
        sure = asked is not None and asked.cannot_tell is None
        await note(conn, live.id, "edited", {"approved": asked is not None and asked.approved and sure})
        if not sure and live.state in (State.PENDING, State.WAITING) and isinstance(triage.decision, Ignore):
            # Whatever can be told: a job rests claimable only on the approved text. The trigger sees to it.
            route = Route(live.kind, live.lane, live.priority, live.hold)
            await change_resting(conn, live.id, route, what="park", ring=ring)
    if plan is not None:
        await refresh_waits(conn, plan, ring=ring)
    statuses = [
        said.value for one in snapshot.labels if (said := meaning(one.name, scheme)) and said.role is Role.STATUS
    ]
    await forge_shows(conn, issue_id, statuses, comments=_bots_own(reading, rules), asked_at=reading.asked_at)
    if known.open is not None and known.open is not (snapshot.state is IssueState.OPEN):
        why = "what blocks it was closed or opened"
        await look_at_dependents(
            conn, known.repository_id, snapshot.number, plan_issue_id=known.plan_issue_id, why=why, ring=ring
        )
    if not isinstance(triage.decision, Ignore) or triage.code != known.code:
        await notify(conn, "tireless_mirror", ring=ring)
    if live is not None and live.state is State.PENDING:
        # Locked since it was read: a claim that came meanwhile has passed it by, and nobody else would wake its runner.
        await notify(conn, "tireless_lane", live.lane, ring=ring)
    return made


async def _act(
    conn: Connection,
    snapshot: Snapshot,
    known: Known,
    issue_id: int,
    triage: Triage,
    rules: Rules,
    ring: Ring | None,
) -> int:
    """Apply the decision to the job; how many jobs are new."""
    decision, live = triage.decision, known.standing.live
    match decision:
        case Ignore():
            return 0
        case Enqueue():
            return await _enqueue(conn, snapshot, known, issue_id, decision, rules, ring)
        case Absorb():
            if live is not None:
                await note(conn, live.id, "absorbed", _who(decision.entry))
            return 0
        case Cancel() | RequestStop():
            if live is not None:
                await call_off(conn, live.id, decision.reason)
            return 0
        case Renew() | Refresh() | Park() | Unpark():
            if live is not None:
                await _change(conn, snapshot, known, live, issue_id, decision, rules, ring)
            return 0
        case _:
            assert_never(decision)


async def _enqueue(
    conn: Connection,
    snapshot: Snapshot,
    known: Known,
    issue_id: int,
    decision: Enqueue,
    rules: Rules,
    ring: Ring | None,
) -> int:
    request_id, question = decision.request_id, None
    if decision.entry is not None:
        question = await too_often(conn, issue_id, rules.per_hour)
        request_id = await new_request(conn, issue_id, snapshot, decision.entry)
    if request_id is None:
        raise AssertionError("a job answers a request")
    route = decision.route
    job = NewJob(issue_id, known.repository_id, request_id, route.kind, route.lane, route.priority, route.hold)
    made = await enqueue(conn, [replace(job, question=question)], ring=ring)
    if request_id == known.standing.child_request:
        await request_answered(conn, request_id)
    return made


async def _change(
    conn: Connection,
    snapshot: Snapshot,
    known: Known,
    live: LiveJob,
    issue_id: int,
    decision: Renew | Refresh | Park | Unpark,
    rules: Rules,
    ring: Ring | None,
) -> None:
    route = decision.route
    before, now = known.standing.view, read(snapshot.labels, rules.scheme)
    changed = {"lane": before.agents != now.agents, "priority": before.priorities != now.priorities}
    unsteered = [name for name, differs in changed.items() if differs]
    match decision:
        case Renew():
            request_id = await new_request(conn, issue_id, snapshot, decision.entry)
            await change_resting(
                conn,
                live.id,
                route,
                what="re-ask",
                request_id=request_id,
                unpark=True,
                by_person=True,
                question=await too_often(conn, issue_id, rules.per_hour),
                unsteered=unsteered,
                details=_who(decision.entry),
                ring=ring,
            )
        case Unpark():
            person = decision.by is not None
            said = {"by": decision.by} if person else {}
            await change_resting(
                conn,
                live.id,
                route,
                what="unpark",
                unpark=True,
                by_person=person,
                unsteered=unsteered,
                details=said,
                ring=ring,
            )
        case Refresh() | Park():
            if live.state is State.CLAIMED:
                await change_running(conn, live.id, route)
            else:
                what = "park" if isinstance(decision, Park) else "refresh"
                await change_resting(conn, live.id, route, what=what, unsteered=unsteered, ring=ring)
        case _:
            assert_never(decision)


async def _end_child(conn: Connection, snapshot: Snapshot, known: Known) -> None:
    """End a child whose issue is closed. Before its job: telling the plan's mirror comes before any look."""
    if known.child_id is not None and snapshot.state is not IssueState.OPEN:
        await end_child(conn, known.child_id, "closed")


def _plan_of_kin(snapshot: Snapshot, known: Known) -> int | None:
    """The issue of the plan whose children may wait for others than before; None: of none."""
    changed = snapshot.state is not IssueState.OPEN or known.open is not True or known.standing.live is not None
    return known.plan_issue_id if changed else None


def _bots_own(reading: Reading, rules: Rules) -> dict[int, str] | None:
    """The bot's comments that were there; None where the timeline was not read."""
    if reading.timeline is None or rules.policy.bot is None:
        return None
    return {
        entry.id: comment_hash(entry.body)
        for entry in reading.timeline
        if entry.kind is EntryKind.COMMENT and rules.policy.is_bot(entry.actor)
    }


def _who(entry: TimelineEntry) -> dict[str, object]:
    return {"event": entry.id, "by": entry.actor.login, "at": entry.at.isoformat()}
