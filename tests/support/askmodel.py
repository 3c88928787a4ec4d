"""What must have come of a history: the checks of everything at rest, and the jobs there are where each act is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

from tests.support import rows
from tests.support.asklog import GO, MAY_ASK, MODES, Issued, Log, Moment, went
from tireless.domain.outcome import Outcome
from tireless.store.db import Connection

LIVE = ("pending", "waiting", "claimed", "publishing")
JOBS = """
SELECT j.id, i.number, j.state, j.reason, j.kind, j.cancel_requested, q.event_id, q.source,
       extract(epoch FROM j.finished_at)::float8 AS finished_at
  FROM job j JOIN issue i ON i.id = j.issue_id JOIN request q ON q.id = j.request_id
 WHERE j.repository_id = %(repository)s ORDER BY j.id
"""
ABSORBED = """
SELECT e.id, i.number, (e.details ->> 'event')::bigint AS event
  FROM job_event e JOIN job j ON j.id = e.job_id JOIN issue i ON i.id = j.issue_id
 WHERE j.repository_id = %(repository)s AND e.what = 'absorbed' ORDER BY e.id
"""
ISSUES = """
SELECT number, open, labels, triage_code AS code FROM issue WHERE repository_id = %(repository)s ORDER BY number
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A job's row, as far as this is about."""

    id: int
    number: int
    state: str
    reason: str | None
    kind: str
    cancel_requested: str | None
    event_id: int
    source: str
    finished_at: float | None


async def jobs_of(conn: Connection, repository: int) -> list[Job]:
    """All jobs of a repository, oldest first."""
    found = await rows.rows(conn, JOBS, repository=repository)
    return [Job(**cast(dict[str, Any], row)) for row in found]


class Wrong(AssertionError):
    """Something is not as it must be."""


@dataclass
class AtRest:
    """Everything was polled, nothing is due: holds the rows against the log. `ever`: all jobs that were seen, by id.

    `absorbed`: (issue, event) of every absorption that was noted, those of pruned jobs included.
    """

    log: Log
    jobs: list[Job]
    absorbed: list[tuple[int, int]]
    stored: dict[int, dict[str, object]]
    ever: dict[int, Job]
    count: Counter[str]

    def check(self) -> None:
        """All of it."""
        for number, issue in self.log.issues.items():
            mine = [job for job in self.jobs if job.number == number]
            live = [job for job in mine if job.state in LIVE]
            self.hold(len(live) <= 1, issue, f"{len(live)} live jobs")
            for job in mine:
                self.had_a_proper_request(issue, job)
                if job.state == "cancelled":
                    self.was_ended_by_somebody(issue, job)
            if not issue.gone:
                self.is_as_shown(issue)
                self.is_answered(issue, mine)
            for job in live:
                self.may_go_on(issue, job)
        self.each_request_was_answered_once()

    def hold(self, holds: bool, issue: Issued, said: str) -> None:
        """Raise where something does not hold."""
        if not holds:
            raise Wrong(f"issue {issue.number}: {said}\n  now {issue.now}\n  jobs {self.jobs}")

    def had_a_proper_request(self, issue: Issued, job: Job) -> None:
        """It answers an act of one who may ask, at a moment at which the issue asked for this kind of work."""
        said = issue.said.get(job.event_id)
        known = (said is not None and said.who in MAY_ASK) or self.approved_by_opt_in(issue, job.event_id)
        self.hold(known, issue, f"job {job} answers {said}")
        after = issue.since(job.event_id)
        self.hold(any(moment.proper for moment in after), issue, f"job {job}: never proper after {said}")
        kinds = {kind for moment in after for kind in moment.kinds[:1]}
        self.hold(job.kind in kinds, issue, f"job {job}: of kinds {kinds}")
        self.count["jobs"] += 1

    def approved_by_opt_in(self, issue: Issued, event_id: int) -> bool:
        """A mode put on by anyone counts, once a later opt-in has approved it; it is never the newest act then."""
        return any(moment.newest == event_id for moment in issue.moments)

    def was_ended_by_somebody(self, issue: Issued, job: Job) -> None:
        """There is an act after its request that ends it, for the reason given."""
        after = issue.since(job.event_id)
        match job.reason:
            case "closed":
                ended = any(not moment.open for moment in after)
            case "unlabelled":
                ended = any(went(issue, moment, GO) or went(issue, moment, *MODES) for moment in after)
            case "kind_changed":
                ended = any(moment.kinds[:1] not in ([], [job.kind]) for moment in after)
            case "gone":
                ended = issue.gone
            case _:
                ended = False
        self.hold(ended, issue, f"job {job} was ended by nobody")
        self.count[f"cancelled: {job.reason}"] += 1

    def is_as_shown(self, issue: Issued) -> None:
        """What is stored is what the forge shows: no update was missed."""
        row = self.stored.get(issue.number)
        if row is None:
            raise Wrong(f"issue {issue.number} is not stored")
        labels = row["labels"]
        assert isinstance(labels, list)
        stored = (row["open"], {(each["id"], each["name"]) for each in labels})
        shown = (issue.now.open, {(key, on.name) for key, on in issue.now.labels.items()})
        self.hold(stored == shown, issue, f"stored is {stored}, shown {shown}")

    def is_answered(self, issue: Issued, mine: list[Job]) -> None:
        """Its newest proper request was answered by exactly one job, or absorbed."""
        now = issue.now
        if not now.proper or now.newest is None:
            return
        newest = now.newest
        # a job answers every act that was there when it was made; its own request is the newest of them
        jobs = [job for job in self.ever.values() if job.number == issue.number]
        answering = [job for job in jobs if job.event_id >= newest]
        exactly = [job for job in jobs if job.event_id == newest]
        absorbed = (issue.number, newest) in self.absorbed
        said = self.stored[issue.number]["code"] == "absorbed" and any(job.finished_at for job in jobs)
        self.hold(bool(answering) or absorbed or said, issue, f"request {newest} was not answered")
        self.hold(not (exactly and absorbed), issue, f"request {newest} was answered by {exactly} and absorbed")
        self.count["answered"] += bool(answering)
        self.count["absorbed"] += not answering
        # a reopening by one who counts asks again where closing had ended the job
        last = mine[-1] if mine else None
        turned = now.turned
        if last is not None and (last.state, last.reason) == ("cancelled", "closed") and turned is not None:
            again = turned.what == "reopen" and turned.who in MAY_ASK
            self.hold(not again, issue, f"reopened by {turned}, and nothing came of it")

    def may_go_on(self, issue: Issued, job: Job) -> None:
        """A live job is there for an issue that is open and still has what asked for it, or it is being stopped."""
        taken = issue.gone or not issue.now.open
        taken = taken or not (self.log.had(issue.now, GO) and self.log.had(issue.now, *MODES))
        self.hold(not taken or job.cancel_requested is not None, issue, f"{job} goes on")
        self.count["live"] += 1

    def each_request_was_answered_once(self) -> None:
        """No request has had two jobs of one kind, pruned ones included; none was absorbed twice."""
        answered = Counter((job.number, job.event_id, job.kind) for job in self.ever.values())
        twice = [key for key, many in answered.items() if many > 1]
        if twice:
            raise Wrong(f"answered twice (issue, event, kind): {twice}")
        again = [key for key, many in Counter(self.absorbed).items() if many > 1]
        if again:
            raise Wrong(f"absorbed twice (issue, event): {again}")


# ------------------------------------------------------------------------------------------------ each act seen


@dataclass
class Expected:
    """A job the model expects."""

    event: int
    kind: str
    state: str = "queued"
    """`queued`, `claimed`, or how it ended."""
    stop: str | None = None
    id: int = 0

    @property
    def is_live(self) -> bool:
        """Not ended."""
        return self.state in ("queued", "claimed")


@dataclass
class Place:
    """One issue of the model: its jobs, and how far asking was answered."""

    jobs: list[Expected] = field(default_factory=list)
    answered: int = 0
    asking: dict[int, str] = field(default_factory=dict)
    """The labels that asked when it was seen last: `go` or `mode`, by id."""

    @property
    def live(self) -> Expected | None:
        """The job that has not ended."""
        return self.jobs[-1] if self.jobs and self.jobs[-1].is_live else None


class SeenModel:
    """What jobs there are when every act is seen before the next one, and nothing goes wrong."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}

    def see(self, issue: Issued, log: Log) -> None:
        """The poller reads the issue as it is now."""
        place = self.places.setdefault(issue.number, Place())
        now, live = issue.now, place.live
        adds = [e.id for e in issue.said.values() if e.what == "add" and log.roles.get(e.label, set()) & {GO, *MODES}]
        newest_add = max(adds, default=0)
        if not now.open:
            self.end(live, "closed")
            return
        if live is not None:
            self.with_job(place, live, now, newest_add)
        else:
            self.without_job(place, now, newest_add)
        roles = {key: "go" if on.name == GO else "mode" for key, on in now.labels.items() if on.name in (GO, *MODES)}
        place.asking = roles

    def end(self, live: Expected | None, reason: str) -> None:
        """A queued job ends, a claimed one is asked to stop; the first word stands."""
        if live is None:
            return
        if live.state == "queued":
            live.state = f"cancelled: {reason}"
        else:
            live.stop = live.stop or reason

    def with_job(self, place: Place, live: Expected, now: Moment, newest_add: int) -> None:
        """It has a live job."""
        lacking = {role for role, names in (("go", (GO,)), ("mode", MODES)) if not now.named(*names)}
        if any(role in lacking and key not in now.labels for key, role in place.asking.items()):
            self.end(live, "unlabelled")
            return
        request = now.newest if now.proper and (now.newest or 0) > place.answered else None
        kind = now.kinds[0] if now.kinds else live.kind
        if live.state == "queued":
            if request is None and kind != live.kind and self.taken(place, live.event, kind):
                self.end(live, "kind_changed")
                return
            live.kind = kind
            if request is not None:
                live.event, place.answered = request, newest_add
        elif kind != live.kind:
            self.end(live, "kind_changed")
        elif request is not None and live.stop is None:
            place.answered = newest_add

    def without_job(self, place: Place, now: Moment, newest_add: int) -> None:
        """It has none."""
        last = place.jobs[-1] if place.jobs else None
        if not now.proper or now.newest is None:
            if now.named(GO) and now.opted_in is None:
                place.answered = max(place.answered, newest_add)  # refused
            return
        newest = now.newest
        if last is not None and last.state == "cancelled: closed" and now.turned is not None:
            again = now.turned.what == "reopen" and now.turned.who in MAY_ASK
            newest = max(newest, now.turned.id) if again else newest
        if newest > place.answered:
            place.jobs.append(Expected(newest, now.kinds[0]))
            place.answered = max(newest, newest_add)
        elif (
            last is not None
            and last.state == "cancelled: kind_changed"
            and not self.taken(place, last.event, now.kinds[0])
        ):
            place.jobs.append(Expected(last.event, now.kinds[0]))

    def taken(self, place: Place, event: int, kind: str) -> bool:
        """Whether this request has had its job of this kind."""
        return any((job.event, job.kind) == (event, kind) for job in place.jobs)

    def claimed(self, number: int) -> None:
        """A runner has the issue's job."""
        live = self.places[number].live
        if live is not None:
            live.state = "claimed"

    def settled(self, claims: Collection[int], outcome: Outcome) -> None:
        """The runner's last word on the jobs of all issues that are claimed no more."""
        for number, place in self.places.items():
            live = place.live
            if live is None or live.state != "claimed" or number in claims:
                continue
            match outcome:
                case Outcome.SHUTDOWN:
                    live.state = "queued"
                case Outcome.FAILED:
                    live.state = "failed"
                case _:
                    live.state = "delivered"
            live.state = f"cancelled: {live.stop}" if live.stop else live.state

    def compare(self, jobs: list[Job]) -> None:
        """The rows are these jobs, and no others."""
        expected = {
            number: [(job.event, job.kind, job.state, job.stop if job.is_live else None) for job in place.jobs]
            for number, place in self.places.items()
            if place.jobs
        }
        found: dict[int, list[tuple[int, str, str, str | None]]] = {}
        for job in jobs:
            state = "queued" if job.state in ("pending", "waiting") else job.state
            state = f"cancelled: {job.reason}" if state == "cancelled" else state
            found.setdefault(job.number, []).append((job.event_id, job.kind, state, job.cancel_requested))
        if found != expected:
            raise Wrong(f"expected {expected}\nfound    {found}")
