"""The one way in: takes "what the forge says of this issue now" into the rows.

Poll, look, webhook and full scan all end here, so that they cannot differ. Asks no forge: what it lacks it says, and
the poller fetches it and comes again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from tireless.domain.asking import judge
from tireless.domain.case import NEVER, Asked, Case, Marks
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
from tireless.domain.job import Cancelled, Parked, State
from tireless.domain.labels import LabelScheme, Role, meaning, read
from tireless.domain.marker import read_marker
from tireless.domain.people import Facts, Need, Policy
from tireless.domain.routing import Lane, Route
from tireless.domain.triage import decide
from tireless.store.db import Connection
from tireless.store.dependencies import (
    FOLLOW_S,
    Blocker,
    look_at_dependents,
    refresh_own_waits,
    store_dependencies,
    unfollowed,
)
from tireless.store.issues import end_child, new_request, request_answered, store_answers, store_issue, store_verdicts
from tireless.store.jobs import (
    NewJob,
    call_off,
    change_resting,
    change_running,
    enqueue,
    note,
    refresh_lane,
    refresh_waits,
)
from tireless.store.known import Known, known_of
from tireless.store.look import notify, write_look
from tireless.store.pace import too_often
from tireless.store.repos import Synced, sync_repositories, tracked_repos
from tireless.store.tell import status_seen

__all__ = [
    "NewJob",
    "Reading",
    "Rules",
    "Synced",
    "Taken",
    "Took",
    "enqueue",
    "refresh_lane",
    "sync_repositories",
    "take_in",
    "tracked_repos",
]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says of labels, people and lanes."""

    scheme: LabelScheme
    policy: Policy
    lanes: tuple[Lane, ...]
    installation: str | None = None
    """Whose markers in the bot's comments are ours; None: all of them."""
    per_hour: int | None = None
    """How many requests of one issue may be worked on within an hour; None or 0: any number."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the forge said of one issue. `timeline` was read after `snapshot`, or not at all."""

    snapshot: Snapshot
    asked_at: datetime
    """The database's clock before the request for the snapshot was sent."""
    timeline: tuple[TimelineEntry, ...] | None = None
    dependencies: tuple[Blocker, ...] | None = None
    """What blocks it, read after the timeline, or not at all."""
    offset: timedelta = timedelta()
    """The forge's clock minus the database's, as far as the last Date showed."""
    settled: bool = False
    """Sent well after the issue's stamp: another change would have moved it."""


class Took(StrEnum):
    """What became of a reading. Only STORED wrote something (DROPPED a look)."""

    STORED = "stored"
    DROPPED = "dropped"
    """A newer answer is stored already, or the repository is not watched any more."""
    WANTS_TIMELINE = "wants_timeline"
    WANTS_FACTS = "wants_facts"
    WANTS_DEPENDENCIES = "wants_dependencies"
    AGAIN = "again"
    """Labels and timeline tell different stories: read both again."""
    REPLACED = "replaced"
    """Another issue has this number: the repository was deleted and made again."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer of `take_in`; `made` jobs are new."""

    how: Took
    needs: frozenset[Need] = frozenset()
    made: int = 0
    cannot_tell: str | None = None
    """Stored, but nothing could be concluded: look again, later and later."""
    again_s: float | None = None
    """Look again after so many seconds: something cannot be done yet."""
    again_why: str = "a running job"


async def take_in(
    conn: Connection,
    repository_id: int,
    reading: Reading,
    *,
    rules: Rules,
    facts: Facts | None = None,
    last_try: bool = False,
) -> Taken:
    """Judge one issue as it was read and apply what follows; in a transaction of the caller's, one per issue.

    Locks in the house's order: repository, issue, plan issue, job, child, look. `facts` are those fetched so far.
    On the last try a disagreement is "cannot tell". Repeating it changes nothing.
    """
    snapshot = reading.snapshot
    known = await known_of(
        conn, repository_id, snapshot.number, offset=reading.offset, scheme=rules.scheme, people=_people(reading)
    )
    if known is None:
        return Taken(Took.DROPPED)
    if known.forge_issue_id is not None and known.forge_issue_id != snapshot.issue_id:
        return Taken(Took.REPLACED)
    if known.seen_at is not None and reading.asked_at < known.seen_at:
        await write_look(conn, repository_id, snapshot.number, why="a newer answer was stored first")
        return Taken(Took.DROPPED)
    if reading.timeline is None and _wants_timeline(snapshot, known, rules.scheme):
        return Taken(Took.WANTS_TIMELINE)
    asked = None
    if reading.timeline is not None:
        known = replace(known, answered=_remembered(reading.timeline, snapshot.number, known.answered, rules))
        asked = judge(_case(snapshot, reading.timeline, known, rules, facts or Facts()))
        if asked.needs:
            return Taken(Took.WANTS_FACTS, asked.needs)
        if asked.disagreement is not None and not last_try:
            return Taken(Took.AGAIN)
    triage = decide(snapshot, asked, known.standing, scheme=rules.scheme, lanes=rules.lanes)
    if reading.dependencies is None and asked is not None and asked.cannot_tell is None:
        if _wants_dependencies(reading, known, triage):
            return Taken(Took.WANTS_DEPENDENCIES)
        if not _has_had_dependencies(reading):
            reading = replace(reading, dependencies=())
    made = await _apply(conn, reading, known, asked, _still_absorbed(triage, known), rules)
    doubt = asked.cannot_tell if asked is not None else None
    taken = Taken(Took.STORED, made=made, cannot_tell=doubt, again_s=triage.again_s)
    if reading.dependencies and await unfollowed(conn, repository_id, snapshot.number):
        again_s = min(FOLLOW_S, triage.again_s or FOLLOW_S)
        return replace(taken, again_s=again_s, again_why="what it waits for is not watched")
    return taken


def _people(reading: Reading) -> set[int]:
    """Whose earlier acts in the repository may matter."""
    return {reading.snapshot.author.id, *(entry.actor.id for entry in reading.timeline or ())}


def _remembered(timeline: tuple[TimelineEntry, ...], number: int, answered: Marks, rules: Rules) -> Marks:
    """The marks; those of a database that starts afresh stand in the bot's own comment."""
    if answered != Marks() or rules.policy.bot is None:
        return answered
    for entry in timeline:
        if entry.kind is EntryKind.COMMENT and entry.actor.id == rules.policy.bot.id:
            marker = read_marker(entry.body)
            ours = marker is not None and rules.installation in (None, marker.installation)
            if marker is not None and ours and marker.number == number:
                time = marker.answered_time or NEVER
                answered = Marks(max(answered.event, marker.answered_event), max(answered.time, time))
    return answered


def _wants_timeline(snapshot: Snapshot, known: Known, scheme: LabelScheme) -> bool:
    """Only where something can come of it: timelines are dear."""
    if snapshot.state is IssueState.CLOSED:
        return False
    by_plan = known.standing.child_request is not None
    return read(snapshot.labels, scheme).asks or known.standing.live is not None or by_plan


def _has_had_dependencies(reading: Reading) -> bool:
    """Whoever makes one issue wait for another leaves an entry on both: most issues need not be asked about."""
    return any(entry.kind is EntryKind.DEPENDENCY_ADDED for entry in reading.timeline or ())


def _wants_dependencies(reading: Reading, known: Known, triage: Triage) -> bool:
    """Only where there is a job that could start: now, or when it comes back."""
    if not _has_had_dependencies(reading) or isinstance(triage.decision, Cancel | RequestStop):
        return False
    live = known.standing.live
    return isinstance(triage.decision, Enqueue) or (live is not None and live.state is not State.PUBLISHING)


def _case(snapshot: Snapshot, timeline: tuple[TimelineEntry, ...], known: Known, rules: Rules, facts: Facts) -> Case:
    live, last = known.standing.live, known.standing.last
    return Case(
        snapshot=snapshot,
        timeline=timeline,
        scheme=rules.scheme,
        policy=rules.policy,
        facts=known.facts_with(facts),
        stored=known.verdicts,
        answered=known.answered,
        counted=known.counted,
        asks_after=known.asks_after,
        approved_hash=known.approved_hash,
        seen=known.seen,
        is_live=live is not None,
        by_plan=known.standing.child_request is not None,
        request_actor=known.request_actor,
        question_at=known.question_at if live is not None and live.parked == Parked.NEEDS_INPUT else None,
        was_closed=last is not None and last.state is State.CANCELLED and last.reason == Cancelled.CLOSED,
    )


def _still_absorbed(triage: Triage, known: Known) -> Triage:
    """That a request was absorbed is said until something newer is to be said."""
    quiet = triage.code is None and isinstance(triage.decision, Ignore) and triage.asked is True
    if quiet and known.code == "absorbed" and known.standing.live is None:
        return replace(triage, code=known.code, details=known.details)
    return triage


# ------------------------------------------------------------------------------------------------ applying


async def _apply(
    conn: Connection, reading: Reading, known: Known, asked: Asked | None, triage: Triage, rules: Rules
) -> int:
    """Write the issue first: the trigger that parks a job reads its text. Then the job, then children."""
    snapshot, scheme = reading.snapshot, rules.scheme
    issue_id = await store_issue(
        conn, known, snapshot, asked, triage, asked_at=reading.asked_at, settled=reading.settled
    )
    if asked is not None:
        await store_verdicts(conn, issue_id, asked.verdicts)
    if reading.dependencies is not None:
        await store_dependencies(conn, issue_id, reading.dependencies, asked_at=reading.asked_at)
    await _end_child(conn, snapshot, known)
    made = await _act(conn, snapshot, known, issue_id, triage, rules)
    live = known.standing.live
    if live is not None and reading.dependencies is not None:
        await refresh_own_waits(conn, live.id)
    if live is not None and asked is not None and asked.cannot_tell is None:
        await store_answers(conn, live.id, asked.answers)
    if live is not None and known.content_hash != snapshot.content_hash:
        sure = asked is not None and asked.cannot_tell is None
        await note(conn, live.id, "edited", {"approved": asked is not None and asked.approved and sure})
        if not sure and live.state in (State.PENDING, State.WAITING) and isinstance(triage.decision, Ignore):
            # Whatever can be told: a job rests claimable only on the approved text. The trigger sees to it.
            await change_resting(conn, live.id, Route(live.kind, live.lane, live.priority, live.hold), what="park")
    await _tell_kin(conn, snapshot, known)
    statuses = [
        said.value for one in snapshot.labels if (said := meaning(one.name, scheme)) and said.role is Role.STATUS
    ]
    await status_seen(conn, issue_id, statuses)
    if known.open is not None and known.open is not (snapshot.state is IssueState.OPEN):
        await look_at_dependents(conn, known.repository_id, snapshot.number, why="what blocks it was closed or opened")
    if not isinstance(triage.decision, Ignore) or triage.code != known.code:
        await notify(conn, "tireless_mirror")
    if live is not None and live.state is State.PENDING:
        # Locked since it was read: a claim that came meanwhile has passed it by, and nobody else would wake its runner.
        await notify(conn, "tireless_lane", live.lane)
    return made


async def _act(conn: Connection, snapshot: Snapshot, known: Known, issue_id: int, triage: Triage, rules: Rules) -> int:
    """Apply the decision to the job; how many jobs are new."""
    decision, live = triage.decision, known.standing.live
    match decision:
        case Ignore():
            return 0
        case Enqueue():
            return await _enqueue(conn, snapshot, known, issue_id, decision, rules)
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
                await _change(conn, snapshot, known, live, issue_id, decision, rules)
            return 0
        case _:
            assert_never(decision)


async def _enqueue(
    conn: Connection, snapshot: Snapshot, known: Known, issue_id: int, decision: Enqueue, rules: Rules
) -> int:
    request_id, question = decision.request_id, None
    if decision.entry is not None:
        question = await too_often(conn, issue_id, rules.per_hour)
        request_id = await new_request(conn, issue_id, snapshot, decision.entry)
    if request_id is None:
        raise AssertionError("a job answers a request")
    route = decision.route
    job = NewJob(issue_id, known.repository_id, request_id, route.kind, route.lane, route.priority, route.hold)
    made = await enqueue(conn, [replace(job, question=question)])
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
            )
        case Unpark():
            person = decision.by is not None
            said = {"by": decision.by} if person else {}
            await change_resting(
                conn, live.id, route, what="unpark", unpark=True, by_person=person, unsteered=unsteered, details=said
            )
        case Refresh() | Park():
            if live.state is State.CLAIMED:
                await change_running(conn, live.id, route)
            else:
                what = "park" if isinstance(decision, Park) else "refresh"
                await change_resting(conn, live.id, route, what=what, unsteered=unsteered)
        case _:
            assert_never(decision)


async def _end_child(conn: Connection, snapshot: Snapshot, known: Known) -> None:
    """End a child whose issue is closed. Before its job: telling the plan's mirror comes before any look."""
    if known.child_id is not None and snapshot.state is not IssueState.OPEN:
        await end_child(conn, known.child_id, "closed")


async def _tell_kin(conn: Connection, snapshot: Snapshot, known: Known) -> None:
    """Find anew whom the plan's children wait for."""
    if known.child_id is None or known.plan_issue_id is None:
        return
    is_open = snapshot.state is IssueState.OPEN
    if known.open is not is_open or known.standing.live is not None:
        await refresh_waits(conn, known.plan_issue_id)


def _who(entry: TimelineEntry) -> dict[str, object]:
    return {"event": entry.id, "by": entry.actor.login, "at": entry.at.isoformat()}
