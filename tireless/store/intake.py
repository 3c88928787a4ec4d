"""The one way in: takes "what the forge says of this issue now" into the rows.

Poll, look, webhook and full scan all end here, so that they cannot differ. Asks no forge: what it lacks it says, and
the poller fetches it and comes again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from tireless.domain.asking import judge
from tireless.domain.case import NEVER, Case, Marks
from tireless.domain.decision import Cancel, Enqueue, Ignore, RequestStop, Triage
from tireless.domain.issue import EntryKind, IssueState, Snapshot, TimelineEntry
from tireless.domain.job import Cancelled, Parked, State
from tireless.domain.labels import LabelScheme, read
from tireless.domain.marker import read_marker
from tireless.domain.people import Facts, Need
from tireless.domain.triage import decide
from tireless.store.applying import apply
from tireless.store.db import Connection
from tireless.store.dependencies import FOLLOW_S, unfollowed
from tireless.store.jobs import NewJob, enqueue, refresh_lane
from tireless.store.known import Known, known_of
from tireless.store.look import Ring, write_look
from tireless.store.reading import Reading, Rules
from tireless.store.repos import Synced, sync_repositories, tracked_repos

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
    ring: Ring | None = None,
) -> Taken:
    """Judge one issue as it was read and apply what follows; in a transaction of the caller's, one per issue.

    Locks in the house's order: repository, issue, plan issue, job, child, look. `facts` are those fetched so far.
    On the last try a disagreement is "cannot tell". Repeating it changes nothing. `ring` is told whom to wake once
    the transaction has committed; without it that stands in the transaction, which then commits alone.
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
        await write_look(conn, repository_id, snapshot.number, why="a newer answer was stored first", ring=ring)
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
    made = await apply(conn, reading, known, asked, _still_absorbed(triage, known), rules, ring)
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
