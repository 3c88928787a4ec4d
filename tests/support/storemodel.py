"""What the store promises, in plain objects without a database: the model the state machine compares the rows with.

Each method is one act on the store: it answers what the store must answer and leaves the rows as they must be then.
Written from design §5 and §6, not from the SQL. Times are microseconds of the database's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from tireless.domain.outcome import Outcome

SECOND = 1_000_000
LEASE_S, BACKOFF_S, BLOCKED_S, QUOTA_S, BREAKER_S, PROBE_LIVES_S = 1000, 700, 2000, 600, 900, 120
GIVE_BACKS, BREAKER_FAILURES, BREAKER_ISSUES = 3, 3, 2

BACK = {Outcome.BLOCKED, Outcome.QUOTA, Outcome.SHUTDOWN, Outcome.WORKSPACE_ERROR}
"""The attempt is given back."""
SUCCESS = {Outcome.DONE, Outcome.NO_CHANGE, Outcome.NEEDS_INPUT}
NEUTRAL = BACK | {Outcome.CANCELLED}
"""Says nothing about the agent: the breaker does not count it."""
RETRIED = {
    *(Outcome.RETRY, Outcome.AGENT_ERROR, Outcome.NO_EVIDENCE, Outcome.PROTOCOL_ERROR),
    *(Outcome.TIMEOUT, Outcome.STALLED, Outcome.WORKSPACE_ERROR),
}
LIVE = ("pending", "waiting", "claimed", "publishing")


@dataclass
class Issue:
    """An issue: its text approved or not, looked at again or not, the child of the one plan or not."""

    id: int
    number: int
    repo: int
    child: bool = False
    approved: bool = True
    looked: bool = False
    child_ended: bool = False


@dataclass
class Attempt:
    """One claim of a job."""

    claim_no: int
    token: UUID
    claimed_at: int
    recorded: bool = False
    outcome: str | None = None
    burned: bool | None = None


@dataclass
class Job:
    """A job with everything the store may change of it, and the events that must have been told."""

    id: int
    issue: Issue
    lane: str
    priority: int
    max_attempts: int
    state: str = "pending"
    reason: str | None = None
    attempts: int = 0
    claim_no: int = 0
    turn: int = 0
    given_back: int = 0
    spent: int = 0
    """Dollars since a person last acted on it: each attempt that is settled has cost one."""
    forgiven: int = 0
    """Attempts that burned and do not count any more: a person's word, work that was not where it should be."""
    parked: str | None = None
    hold: bool = False
    full: bool = False
    not_before: int | None = None
    wait: str | None = None
    token: UUID | None = None
    host: str | None = None
    claimed_at: int | None = None
    expires_at: int | None = None
    cancel: str | None = None
    result: int | None = None
    take: UUID | None = None
    take_until: int | None = None
    began: bool = False
    tries: list[Attempt] = field(default_factory=list)
    told: list[tuple[str, str | None, str]] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, int, int]:
        """Its place in its lane."""
        return (-self.priority, self.turn, self.id)

    def end_claim(self, outcome: str, burned: bool) -> None:
        """The claim is over: its attempt has an end, the job no holder."""
        self.tries[-1].outcome, self.tries[-1].burned = outcome, burned
        self.token = self.host = self.claimed_at = self.expires_at = self.cancel = None


@dataclass
class Hold:
    """Why a lane is closed."""

    until: int | None
    began: int
    job: int | None = None


@dataclass
class Lane:
    """A lane with its limit, holds by (source, host), probe and breaker."""

    name: str
    limit: int | None = None
    cap: int | None = None
    """Dollars that one of its jobs may cost."""
    reserve: int = 0
    """With less left of those a job that has cost something is not started again."""
    probing: bool = False
    probe: UUID | None = None
    probe_since: int | None = None
    avoid: int | None = None
    holds: dict[tuple[str, str], Hold] = field(default_factory=dict)
    failures: int = 0
    issues: set[int] = field(default_factory=set)
    opened: int = 0
    ended_at: int | None = None
    quotas: int = 0
    quota_ended_at: int | None = None

    def held(self, host: str) -> bool:
        """Closed to a claimer of this host."""
        return any(where in ("", host) for _, where in self.holds)


class Model:
    """The rows as they must be. `now` is kept by the caller, as is what an open transaction holds: `locked`, its jobs,
    and `taking`, the lane in which an open claim takes a place.
    """

    def __init__(self) -> None:
        self.now = 0
        self.issues: list[Issue] = []
        self.jobs: dict[int, Job] = {}
        self.lanes: dict[str, Lane] = {}
        self.limits: dict[int, int | None] = {}
        self.children_done = 0
        self.locked: set[int] = set()
        self.taking: str | None = None

    # ---------------------------------------------------------------------------------------------- questions

    def live(self, issue: Issue) -> Job | None:
        """The one job of an issue that has not ended."""
        return next((j for j in self.jobs.values() if j.issue is issue and j.state in LIVE), None)

    def of(self, state: str, lane: str | None = None, repo: int | None = None) -> list[Job]:
        """Jobs in a state, of a lane, of a repository."""
        found = [j for j in self.jobs.values() if j.state == state and lane in (None, j.lane)]
        return [j for j in found if repo in (None, j.issue.repo)]

    def counted(self, lane: str) -> bool:
        """Something is counted in this lane."""
        return self.lanes[lane].limit is not None or self.one_by_one(lane)

    def one_by_one(self, lane: str) -> bool:
        """Claims of this lane wait for each other: a probe goes first, or a repository counts."""
        return self.lanes[lane].probing or any(limit is not None for limit in self.limits.values())

    def full(self, repo: int) -> bool:
        """A repository at its limit."""
        limit = self.limits[repo]
        return limit is not None and len(self.of("claimed", repo=repo)) >= limit

    def lives(self, lane: Lane) -> bool:
        """A probe is out that has not passed by its age."""
        since = lane.probe_since
        return lane.probe is not None and since is not None and since + PROBE_LIVES_S * SECOND > self.now

    def over(self, job: Job) -> bool:
        """It has cost what a job of its lane may cost, or leaves less than the reserve."""
        lane = self.lanes[job.lane]
        return lane.cap is not None and job.spent > 0 and lane.cap - job.spent < max(lane.reserve, 1)

    def deadlines(self) -> Iterator[int]:
        """Every moment at which something changes by itself."""
        for job in self.jobs.values():
            yield from (at for at in (job.expires_at, job.not_before, job.take_until) if at is not None)
        for lane in self.lanes.values():
            yield from (hold.until for hold in lane.holds.values() if hold.until is not None)
            if lane.probe_since is not None:
                yield lane.probe_since + PROBE_LIVES_S * SECOND

    def pass_time(self, by: int) -> None:
        """Everything that was noted happened that much longer ago."""
        for job in self.jobs.values():
            for name in ("claimed_at", "expires_at", "not_before", "take_until"):
                _age(job, name, by)
            for attempt in job.tries:
                _age(attempt, "claimed_at", by)
        for lane in self.lanes.values():
            for name in ("probe_since", "ended_at", "quota_ended_at"):
                _age(lane, name, by)
            for hold in lane.holds.values():
                _age(hold, "until", by)
                _age(hold, "began", by)

    # ---------------------------------------------------------------------------------------------- resting

    def next_turn(self, job: Job) -> int:
        """Behind those of its own repository, and not before the first of the others."""
        rivals = [j for j in self.of("pending", job.lane) if j.priority == job.priority and j is not job]
        own = [j.turn + 1 for j in rivals if j.issue.repo == job.issue.repo]
        return max([0, *own, *([min(j.turn for j in rivals)] if rivals else [])])

    def rest(self, job: Job, was: str | None, *, moved: bool = False) -> None:
        """The job rests: what it waits for says where."""
        if job.parked is None and not job.issue.approved:
            job.parked = "needs_approval"
        elif job.parked == "needs_approval" and job.issue.approved:
            job.parked = None
        if job.parked is None and self.over(job):
            job.parked = "budget_exhausted"
        if job.not_before is not None and job.not_before <= self.now:
            job.not_before = job.wait = None
        waits = (job.parked, "on_hold" if job.hold else None, "repository_full" if job.full else None, job.wait)
        job.reason = next((wait for wait in waits if wait), None)
        job.state = "waiting" if job.reason else "pending"
        if job.state == "pending":
            if was in (None, "waiting") or moved:
                job.turn = self.next_turn(job)
            elif was in ("claimed", "publishing"):
                job.turn = self.kept_turn(job)

    def kept_turn(self, job: Job) -> int:
        """What comes back stands where it stood, or in front."""
        ahead = [j.turn for j in self.of("pending", job.lane) if j.priority == job.priority and j is not job]
        return min([job.turn, *ahead])

    def _tell(self, job: Job, what: str, was: str | None) -> None:
        if was != job.state:
            job.told.append((what, was, job.state))

    def _ended(self, job: Job) -> None:
        """What every end brings."""
        job.issue.looked = True
        if job.state == "delivered" and job.issue.child and not job.issue.child_ended:
            job.issue.child_ended = True
            self.children_done += 1

    # ---------------------------------------------------------------------------------------------- intake, operator

    def enqueue(self, job_id: int, issue: Issue, lane: str, priority: int, hold: bool, max_attempts: int) -> None:
        """A new job of an issue that has none alive."""
        job = self.jobs[job_id] = Job(job_id, issue, lane, priority, max_attempts, hold=hold)
        self.rest(job, None)
        self._tell(job, "enqueue", None)

    def touch(
        self, job: Job, *, hold: bool | None = None, lane: str | None = None, priority: int | None = None
    ) -> None:
        """Intake or an operator changes a job, if it rests."""
        if job.state not in ("pending", "waiting"):
            return
        was, before = job.state, (job.lane, job.priority)
        job.hold = job.hold if hold is None else hold
        job.lane, job.priority = lane or job.lane, job.priority if priority is None else priority
        self.rest(job, was, moved=before != (job.lane, job.priority))
        self._tell(job, "wake" if job.state == "pending" else "wait", was)

    def approve(self, job: Job) -> bool:
        """A person lets a parked job go on; False: it is not parked."""
        if job.state != "waiting" or job.parked is None:
            return False
        job.issue.approved = True
        job.forgiven, job.parked, job.attempts, job.given_back = job.forgiven + job.attempts, None, 0, 0
        job.spent, job.not_before, job.wait = 0, None, None
        self.rest(job, "waiting")
        self._tell(job, "wake", "waiting")
        return True

    def cap_changed(self) -> None:
        """Another configuration: what waits and has cost more than it now may is parked."""
        for job in [*self.of("pending"), *self.of("waiting")]:
            if job.parked is None and self.over(job):
                was = job.state
                self.rest(job, was)
                self._tell(job, "wait", was)

    def cancel(self, job: Job, code: str) -> str:
        """Cancel it in whatever state."""
        if job.state not in LIVE:
            return "already_ended"
        if job.state == "publishing" and job.began:
            return "too_late"
        if job.state == "claimed":
            job.cancel = job.cancel or code
            return "requested"
        was, job.state, job.reason = job.state, "cancelled", code
        job.take = job.take_until = None
        self._tell(job, "cancel", was)
        self._ended(job)
        return "cancelled"

    # ---------------------------------------------------------------------------------------------- claim

    def queue(self, lane: str) -> list[Job]:
        """What a claim may take, in its order."""
        return sorted((j for j in self.of("pending", lane) if j.id not in self.locked), key=lambda j: j.order)

    def room(self, lane: str, host: str, n: int) -> int:
        """How many a claim may take of a lane at most."""
        of = self.lanes[lane]
        if of.held(host) or (of.probing and self.lives(of)):
            return 0
        if of.probing and of.probe is None:
            n = min(n, 1)
        return n if of.limit is None else min(n, of.limit - len(self.of("claimed", lane)) - (lane == self.taking))

    def first(self, lane: str, host: str) -> Job | None:
        """The one job a claim must take now, if any."""
        of = self.lanes[lane]
        able = [j for j in self.queue(lane) if not self.full(j.issue.repo)]
        if self.room(lane, host, 1) < 1 or not able:
            return None
        others = [j for j in able if not (of.probing and of.probe is None and j.id == of.avoid)]
        return (others or able)[0]

    def step_aside(self, job: Job) -> bool:
        """A claim met the job's repository at its limit; False: it was not allowed to say so."""
        if job.state != "pending" or job.id in self.locked or not self.full(job.issue.repo):
            return False
        job.full = True
        self.rest(job, "pending")
        self._tell(job, "wait", "pending")
        return True

    def claimed(self, job: Job, token: UUID, host: str) -> None:
        """A claim took it."""
        lane = self.lanes[job.lane]
        job.state, job.attempts, job.claim_no = "claimed", job.attempts + 1, job.claim_no + 1
        job.token, job.host, job.claimed_at, job.expires_at = token, host, self.now, self.now + LEASE_S * SECOND
        job.tries.append(Attempt(job.claim_no, token, self.now))
        self._tell(job, "claim", "pending")
        if lane.probing and lane.probe is None:
            lane.probe, lane.probe_since = token, self.now

    def holds(self, job: Job, token: UUID) -> bool:
        """The token holds the job, whatever the clock says."""
        return job.state == "claimed" and job.token == token

    def alive(self, job: Job, token: UUID) -> bool:
        """The token holds it under a live lease."""
        return self.holds(job, token) and job.expires_at is not None and job.expires_at > self.now

    # ---------------------------------------------------------------------------------------------- settle

    def settle(self, job: Job, token: UUID, outcome: Outcome) -> str:
        """The runner's last word."""
        if not self.holds(job, token):
            said = any(a.token == token and a.outcome == outcome for a in job.tries)
            return "already" if said else "lost"
        lane, burns = self.lanes[job.lane], outcome not in BACK
        claimed_at, cancel, host, before = job.claimed_at or 0, job.cancel, job.host, job.given_back
        job.end_claim(outcome, burns)
        back = before + 1 if outcome in (Outcome.QUOTA, Outcome.BLOCKED) else 0 if burns else before
        if lane.probe == token:
            void = outcome in (Outcome.QUOTA, Outcome.SHUTDOWN, Outcome.CANCELLED, Outcome.WORKSPACE_ERROR)
            lane.probing = void and self.lives(lane)
            lane.probe = lane.probe_since = None
        self._count(lane, job, outcome, claimed_at)
        twice = outcome is Outcome.QUOTA and self._quota(lane, job, claimed_at, before)
        asks = {Outcome.NEEDS_INPUT: "needs_input", Outcome.OVER_BUDGET: "budget_exhausted"}
        park = "suspect" if twice else asks.get(outcome)
        job.given_back = back
        job.attempts -= 0 if burns else 1
        job.spent += 1
        self._becomes(job, outcome, park, cancel, burns=burns)
        if self.limits[job.issue.repo] is not None:
            self.wake(job.issue.repo)
        assert host is not None
        return "done"

    def _becomes(self, job: Job, outcome: Outcome, park: str | None, cancel: str | None, *, burns: bool) -> None:
        """Where the settled job goes."""
        spent = burns and job.attempts >= job.max_attempts
        ends = {Outcome.NO_CHANGE: ("delivered", "no_change"), Outcome.FAILED: ("failed", "rejected")}
        ends[Outcome.CANCELLED] = ("cancelled", "operator")
        if cancel is not None:
            job.state, job.reason = "cancelled", cancel
        elif outcome is Outcome.DONE:
            job.state, job.reason, job.result = "publishing", None, job.claim_no
        elif outcome in ends:
            job.state, job.reason = ends[outcome]
        elif spent and park is None:
            job.state, job.reason = "failed", "exhausted"
        else:
            if outcome in (Outcome.QUOTA, Outcome.BLOCKED) and job.given_back >= GIVE_BACKS:
                park = "suspect"
            job.parked = park
            if outcome is Outcome.BLOCKED or outcome in RETRIED:
                seconds = BLOCKED_S if outcome is Outcome.BLOCKED else BACKOFF_S
                job.not_before = self.now + seconds * SECOND
                job.wait = "blocked" if outcome is Outcome.BLOCKED else "backoff"
            self.rest(job, "claimed")
        self._tell(job, "settle", "claimed")
        if job.state not in LIVE:
            self._ended(job)

    def _count(self, lane: Lane, job: Job, outcome: Outcome, claimed_at: int) -> None:
        """What the breaker makes of it."""
        if outcome in SUCCESS:
            lane.failures, lane.opened, lane.quotas = 0, 0, 0
            lane.issues.clear()
        if outcome in SUCCESS | NEUTRAL:
            return
        lane.failures += 1
        lane.issues.add(job.issue.id)
        young = lane.ended_at is None or claimed_at > lane.ended_at
        enough = lane.failures >= BREAKER_FAILURES and len(lane.issues) >= BREAKER_ISSUES
        if enough and young and ("breaker", "") not in lane.holds:
            lane.holds["breaker", ""] = Hold(self.now + BREAKER_S * 2**lane.opened * SECOND, self.now, job.id)
            lane.opened += 1

    def _quota(self, lane: Lane, job: Job, claimed_at: int, given_back: int) -> bool:
        """The provider's limit holds the lane; True: by this job twice in a row."""
        hold = lane.holds.get(("quota", ""))
        since = [at for at in (hold.began if hold else None, lane.quota_ended_at) if at is not None]
        counts = not since or claimed_at > max(since)
        if hold is not None and not counts:
            return False
        until = self.now + QUOTA_S * SECOND
        cause = hold.job if hold else lane.avoid
        if hold is None:
            lane.holds["quota", ""] = Hold(until, self.now, job.id)
        else:
            hold.until, hold.job = max(hold.until or 0, until), job.id
        lane.quotas += 1 if counts else 0
        return counts and given_back > 0 and job.id == cause

    # ---------------------------------------------------------------------------------------------- sweeps

    def expire(self, most: int | None = None) -> list[Job]:
        """Claims whose lease is over, but for those somebody works on."""
        late = [j for j in self.of("claimed") if (j.expires_at or 0) < self.now and j.id not in self.locked]
        moved = sorted(late, key=lambda j: j.id)[:most]
        for job in moved:
            cancel, token, recorded = job.cancel, job.token, job.tries[-1].recorded
            spent = job.attempts >= job.max_attempts
            publishes = cancel is None and recorded
            job.end_claim("done" if publishes else "lease_lost", True)
            job.given_back = 0
            if cancel is not None:
                job.state, job.reason = "cancelled", cancel
            elif recorded:
                job.state, job.reason, job.result = "publishing", None, job.claim_no
            elif spent:
                job.state, job.reason = "failed", "exhausted"
            else:
                self.rest(job, "claimed")
            self._tell(job, "expire", "claimed")
            if job.state not in LIVE:
                self._ended(job)
            for lane in self.lanes.values():
                if lane.probe == token:
                    lane.probing = self.lives(lane)
                    lane.probe = lane.probe_since = None
        return moved

    def wake_due(self) -> list[Job]:
        """Jobs whose backoff or block is over."""
        due = [j for j in self.of("waiting") if j.not_before is not None and j.not_before <= self.now]
        moved = [j for j in due if j.id not in self.locked]
        for job in moved:
            spent = job.attempts >= job.max_attempts and not (job.parked or job.hold or job.full)
            job.not_before = job.wait = None
            if spent:
                job.state, job.reason = "failed", "exhausted"
                self._ended(job)
            else:
                self.rest(job, "waiting")
            self._tell(job, "exhaust" if spent else "wake", "waiting")
        return moved

    def wake(self, repo: int) -> list[Job]:
        """In each lane as many as a repository has room for, of those that stepped aside and wait for nothing else."""
        limit = self.limits[repo]
        room = 100 if limit is None else max(0, limit - len(self.of("claimed", repo=repo)))
        woken = []
        for lane in sorted({j.lane for j in self.of("waiting", repo=repo) if j.full}):
            ahead = min(room, len(self.of("pending", lane, repo)))
            able = [j for j in self.of("waiting", lane, repo) if j.full and not (j.parked or j.hold)]
            able = [j for j in able if j.not_before is None and j.id not in self.locked]
            for job in sorted(able, key=lambda j: (-j.priority, j.id))[: max(0, room - ahead)]:
                job.full = False
                self.rest(job, "waiting")
                self._tell(job, "wake", "waiting")
                woken.append(job)
        return woken

    def end_hold(self, lane: Lane, key: tuple[str, str]) -> bool:
        """One hold is removed, by time or by a person; False: there was none."""
        hold = lane.holds.pop(key, None)
        if hold is None:
            return False
        if key[0] in ("quota", "breaker"):
            lane.probing, lane.probe, lane.probe_since, lane.avoid = True, None, None, hold.job
            if key[0] == "breaker":
                lane.ended_at = self.now
            else:
                lane.quota_ended_at = self.now
        return True

    def end_holds(self) -> int:
        """Holds that are due, and probes that have lived."""
        ended = 0
        for lane in self.lanes.values():
            for key in sorted(k for k, h in lane.holds.items() if h.until is not None and h.until <= self.now):
                ended += self.end_hold(lane, key)
            if lane.probing and lane.probe is not None and not self.lives(lane):
                lane.probing, lane.probe, lane.probe_since = False, None, None
        return ended

    # ---------------------------------------------------------------------------------------------- publisher

    def publishable(self) -> Job | None:
        """The job a publisher must be given."""
        free = [j for j in self.of("publishing") if j.take_until is None or j.take_until <= self.now]
        return min((j for j in free if j.id not in self.locked), key=lambda j: j.id, default=None)

    def publish(self, job: Job, token: UUID, how: str) -> bool:
        """The end of publishing: `deliver`, `fail` or `return`; False: the take is lost."""
        if job.state != "publishing" or job.take != token:
            return False
        job.take = job.take_until = None
        if how == "return":
            job.forgiven += min(job.attempts, 1)
            job.attempts, job.result, job.began = max(0, job.attempts - 1), None, False
            self.rest(job, "publishing")
            self._tell(job, "return", "publishing")
            return True
        job.state, job.reason = ("delivered", None) if how == "deliver" else ("failed", "unpublishable")
        self._tell(job, "publish", "publishing")
        self._ended(job)
        return True

    def prune(self) -> int:
        """What ended is gone, with its attempts."""
        ended = [j.id for j in self.jobs.values() if j.state not in LIVE and j.id not in self.locked]
        for job_id in ended:
            del self.jobs[job_id]
        return len(ended)


def _age(of: object, name: str, by: int) -> None:
    at = getattr(of, name)
    if at is not None:
        setattr(of, name, at - by)
