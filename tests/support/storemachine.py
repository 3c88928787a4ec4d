"""The store as a state machine: every act on three connections, one of them perhaps in the middle of a transaction.

After each step the rows are compared with the model (storemodel.py). The rules here choose and carry out; what must
come of it is the model's to say. A claim that was lost, a lock that is held, a refusal are answers like others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from psycopg import errors

from tests.support import rows
from tests.support import storemodel as sm
from tests.support.storemodel import SECOND, Hold, Issue, Job, Lane, Model
from tests.support.storerows import MICROSECONDS, TOLD, age, asked, begin_again, compare, observe
from tireless.domain import routing
from tireless.domain.job import TRANSITIONS, Cancelled, Kind, State
from tireless.domain.outcome import Outcome
from tireless.domain.routing import Route
from tireless.errors import Refused, StoreUnavailable
from tireless.store import claim, deliver, lanes, publish, record, steer, sweep
from tireless.store import settle as settling
from tireless.store.claim import RunnerId
from tireless.store.db import Connection, connect
from tireless.store.jobs import NewJob, enqueue, refresh_lane
from tireless.store.settle import Ending, Policy, Word

T = TypeVar("T")

POLICY = Policy(
    max_hold_s=sm.QUOTA_S,
    breaker_failures=sm.BREAKER_FAILURES,
    breaker_issues=sm.BREAKER_ISSUES,
    breaker_base_s=sm.BREAKER_S,
    breaker_cap_s=1e9,
    give_backs=sm.GIVE_BACKS,
)
LANES = ("a", "b")
HOSTS = ("h1", "h2")
ANY = st.integers(0, 2**16)
RARELY = st.sampled_from([False, False, False, False, True])
LIMITS = st.sampled_from([None, None, 1, 2])
SELDOM = st.sampled_from([None, None, None, 1, 2])
"""A repository's: while any has one, a lane's limit is not held by places alone."""
Limits = tuple[int | None, int | None]
CAPS = st.sampled_from([None, None, None, 1, 3])
OUTCOMES = st.sampled_from(sorted({*Outcome} - {Outcome.LEASE_LOST}) + [Outcome.QUOTA] * 4 + [Outcome.DONE] * 4)
MOSTLY_FINE = st.sampled_from([*sorted(sm.SUCCESS | sm.NEUTRAL), Outcome.FAILED, Outcome.RETRY])
SAME_NAME = "runner"
"""Every claim is made under one runner name: the token fences, never the name."""


@dataclass
class World:
    """What all examples share: the loop, the connections, what was counted."""

    runner: asyncio.Runner
    watch: Connection
    actors: Sequence[Connection]
    repos: list[int] = field(default_factory=list)
    issues: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Row id, number, repository, and whether it is a child of the plan."""
    count: Counter[str] = field(default_factory=Counter)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end."""
        return self.runner.run(work)


# Emptied tables are cut short by autovacuum, under a lock that an actor's patience may meet.
NO_TRUNCATION = """
DO $$ DECLARE name regclass; BEGIN
  FOR name IN SELECT c.oid FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace LOOP
    EXECUTE format('ALTER TABLE %s SET (vacuum_truncate = false, toast.vacuum_truncate = false)', name);
  END LOOP;
END $$
"""


async def open_world(runner: asyncio.Runner, dsn: str) -> World:
    """Connections to a migrated, empty database; an actor that meets a lock gives up at once."""
    watch, *actors = [await connect(dsn, application_name="tireless machine") for _ in range(3)]
    for actor in actors:
        await actor.execute("SET lock_timeout = '10ms'")
        actor.prepare_threshold = 2
    watch.prepare_threshold = 0
    await watch.execute(NO_TRUNCATION.encode())
    await watch.execute(MICROSECONDS.encode())
    world = World(runner, watch, actors)
    for name in LANES:
        await rows.lane(watch, name, lease_s=float(sm.LEASE_S))
    plan = await rows.issue(watch, "acme/x", 99)
    for path in ("acme/x", "acme/y"):
        world.repos.append(await rows.repository(watch, path))
        for number in (1, 2, 3, 4):
            issue, child = await rows.issue(watch, path, number), path == "acme/x" and number < 4
            world.issues.append((issue, number, world.repos[-1], child))
            if child:
                await rows.child(watch, plan, f"k{number}", number=number, issue_id=issue)
    return world


async def close_world(world: World) -> None:
    """Close the connections."""
    for conn in (world.watch, *world.actors):
        await conn.close()


@dataclass
class Open:
    """A transaction that has written and not ended: the jobs and other things it holds, and what its commit brings."""

    conn: Connection
    jobs: set[int]
    keys: set[str]
    commit: Callable[[], None]


Doing = Callable[..., Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Act:
    """Something that may be done: how often among all, only outside a transaction, with which arguments."""

    do: Doing
    weight: int
    alone: bool
    given: st.SearchStrategy[dict[str, Any]]


ACTS: dict[str, Act] = {}


def act(weight: int, *, alone: bool = False, **given: st.SearchStrategy[Any]) -> Callable[[Doing], Doing]:
    """List a method among the acts. One rule chooses of them all: a rule for each would be switched off at random."""

    def listed(do: Doing) -> Doing:
        ACTS[do.__name__] = Act(do, weight, alone, st.fixed_dictionaries(given))
        return do

    return listed


def chosen() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """One of the acts, with its arguments."""
    names = [name for name, one in ACTS.items() for _ in range(one.weight)]
    with_arguments = {name: st.tuples(st.just(name), one.given) for name, one in ACTS.items()}
    return st.sampled_from(names).flatmap(with_arguments.__getitem__)


class StoreMachine(RuleBasedStateMachine):
    """One example: a few issues in two repositories, two lanes, one plan, and whatever is done to them."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.tx: Open | None = None
        self.whole = True
        self.before: dict[int, tuple[str, int]] = {}
        self.tokens: list[tuple[int, UUID]] = []
        self.gone: dict[int, Job] = {}
        self.takes: list[publish.Delivery] = []

    # ---------------------------------------------------------------------------------------------- around a step

    @rule(one=st.deferred(chosen))
    def one(self, one: tuple[str, dict[str, Any]]) -> None:
        """One of the acts as one step: no deadline near, then the act, then the comparison."""
        name, given = one
        if ACTS[name].alone and self.tx is not None:
            name, given = "close", {"commit": bool(len(name) % 4)}
        self.did(f"act {name}")
        self.whole = False
        self.world.run(self.step(ACTS[name].do(self, **given)))
        self.whole = True

    async def step(self, act: Awaitable[None]) -> None:
        """One step, whole."""
        await self.clear_of_deadlines()
        self.before = {job.id: (job.state, job.claim_no) for job in self.model.jobs.values()}
        await act
        await self.agree()

    async def agree(self) -> None:
        """The rows are as the model has them."""
        seen = await observe(self.world.watch)
        compare(self.model, seen, self.before)
        self.model.now = seen["now"]

    async def clear_of_deadlines(self) -> None:
        """Nothing may fall due while a step is taken: what nearly is due is let fall due before."""
        soon = self.model.now + 30 * SECOND
        while self.tx is None and any(self.model.now < at <= soon for at in self.model.deadlines()):
            await self.let_pass(40)

    async def let_pass(self, seconds: int) -> None:
        """Time goes by, for the rows and for the model."""
        await age(self.world.watch, seconds * SECOND)
        self.model.pass_time(seconds * SECOND)

    def did(self, what: str, n: int = 1) -> None:
        """Count what was done; `steps` are acts on the store."""
        self.world.count[what] += n

    @property
    def conn(self) -> Connection:
        """The connection that is in no transaction."""
        return self.world.actors[1 if self.tx else 0]

    def free(self, *keys: str, jobs: Sequence[Job] = ()) -> bool:
        """The open transaction holds none of these."""
        return self.tx is None or not (self.tx.keys & {*keys} or self.tx.jobs & {job.id for job in jobs})

    async def call(self, work: Awaitable[T], *, blocked: bool = False) -> T | None:
        """An act on the store; None when it had to meet a lock, and did."""
        self.did("steps")
        try:
            answer = await work
        except StoreUnavailable as error:
            if blocked and isinstance(error.__cause__, errors.LockNotAvailable):
                self.did("blocked")
                return None
            raise
        assert not blocked, f"answered {answer!r} instead of waiting for the one who holds the lock"
        return answer

    def token(self, which: int) -> tuple[Job | None, UUID, int] | None:
        """A token: every second time one that holds its job, else any that was ever given out."""
        holding = [(job_id, token) for job_id, token in self.tokens if self.held(job_id, token)]
        known = holding if holding and which % 2 else self.tokens
        if not known:
            return None
        job_id, token = known[which // 2 % len(known)]
        return self.model.jobs.get(job_id), token, job_id

    def held(self, job_id: int, token: UUID) -> bool:
        """Is this the token of the job's present claim?"""
        return job_id in self.model.jobs and self.model.holds(self.model.jobs[job_id], token)

    def some(self, which: int, *states: str) -> Job | None:
        """Any job in these states."""
        able = [job for job in self.model.jobs.values() if not states or job.state in states]
        return able[which % len(able)] if able else None

    # ---------------------------------------------------------------------------------------------- beginning, end

    @initialize(
        lane_limits=st.tuples(LIMITS, LIMITS),
        repo_limits=st.tuples(SELDOM, SELDOM),
        probing=st.sampled_from([(), (), ("a",), ("b",)]),
        caps=st.tuples(CAPS, CAPS),
        attempts=st.integers(1, 3),
    )
    def begin(self, **given: Any) -> None:
        """Two lanes, two repositories, eight issues of which three are a plan's children; no job, no hold."""
        self.world.run(self._begin(**given))

    async def _begin(
        self, lane_limits: Limits, repo_limits: Limits, probing: tuple[str, ...], caps: Limits, attempts: int
    ) -> None:
        model, self.attempts = self.model, attempts
        await begin_again(self.world.watch)
        for name, limit, cap in zip(LANES, lane_limits, caps, strict=True):
            model.lanes[name] = Lane(name, limit, cap, reserve_of(name, cap), probing=name in probing)
            columns = {"max_running": limit, "max_usd": cap, "reserve_usd": reserve_of(name, cap)}
            columns |= {"probing": name in probing, "max_attempts": attempts}
            await rows.change(self.world.watch, "lane", name, **columns)
        for repo, limit in zip(self.world.repos, repo_limits, strict=True):
            model.limits[repo] = limit
            await rows.change(self.world.watch, "repository", repo, max_running=limit)
        model.issues = [Issue(*issue) for issue in self.world.issues]
        await self.agree()

    def teardown(self) -> None:
        """End what is open; every transition was told, in order, and is one that is drawn."""
        self.world.run(self._teardown())

    async def _teardown(self) -> None:
        if self.tx is not None:
            await self.tx.conn.execute("ROLLBACK")
        if not self.whole:  # a step has failed: what it found is to be read, not what follows from it
            return
        told: dict[int, list[tuple[str, str | None, str]]] = {}
        async for job_id, what, source, target in await self.world.watch.execute(TOLD.encode()):
            told.setdefault(job_id, []).append((what, source, target))
        wanted = {job.id: job.told for job in self.model.jobs.values() if job.told}
        drawn = {(t.name, t.source and t.source.value, t.target.value) for t in TRANSITIONS}
        assert told == wanted
        assert {arrow for arrows in told.values() for arrow in arrows} <= drawn
        self.did("examples")

    # ---------------------------------------------------------------------------------------------- intake, operator

    @act(
        9,
        which=ANY,
        lane=st.sampled_from(LANES),
        priority=st.sampled_from([0, 0, 0, 0, 1, -1]),
        hold=RARELY,
        twice=RARELY,
    )
    async def enqueue(self, which: int, lane: str, priority: int, hold: bool, twice: bool) -> None:
        """An issue asks; a second job of an issue that has one alive is not made."""
        issues = [issue for issue in self.model.issues if twice or self.model.live(issue) is None] or self.model.issues
        issue = issues[which % len(issues)]
        alive = self.model.live(issue)
        if not self.free(f"repo:{issue.repo}", f"issue:{issue.id}", jobs=[alive] if alive else []):
            return
        request = await asked(self.world.watch, issue.id)
        job = NewJob(issue.id, issue.repo, request, Kind.IMPLEMENT, lane, priority, hold)
        made = await self.call(enqueue(self.conn, [job]))
        assert made == (0 if alive else 1)
        if made:
            query = "SELECT id FROM job WHERE request_id = %(id)s"
            job_id = await rows.value(self.world.watch, query, id=request)
            assert isinstance(job_id, int)
            self.model.enqueue(job_id, issue, lane, priority, hold, self.attempts)

    @act(1, which=ANY)
    async def rerun(self, which: int) -> None:
        """An ended job is run again as a new one, unless its issue has one alive."""
        job = self.some(which, "delivered", "failed", "cancelled")
        if job is None or not self.free(f"repo:{job.issue.repo}", f"issue:{job.issue.id}"):
            return
        made = await self.call(or_refused(steer.rerun(self.conn, job.id, "ada")))
        assert (made == "already_live") == (self.model.live(job.issue) is not None)
        if not isinstance(made, int):
            return
        self.model.enqueue(made, job.issue, job.lane, job.priority, job.hold, self.attempts)
        self.did("reruns")

    @act(
        3, which=ANY, how=st.sampled_from(["hold", "hold", "reroute", "bump", "edit", "approve"]), to=st.integers(-1, 1)
    )
    async def change(self, which: int, how: str, to: int) -> None:
        """Labels, text or an operator change a job that rests; one that does not is refused."""
        job = self.some(which, "pending", "waiting") if to else self.some(which)
        if job is None or not self.free(f"repo:{job.issue.repo}", f"issue:{job.issue.id}", jobs=[job]):
            return
        rests = job.state in ("pending", "waiting")
        match how:
            case "reroute":
                answer = await self.call(or_refused(steer.reroute(self.conn, job.id, LANES[to], "ada")))
                assert (answer == "not_queued") == (not rests)
                self.model.touch(job, lane=LANES[to])
            case "bump":
                answer = await self.call(or_refused(steer.bump(self.conn, job.id, "ada", priority=to)))
                assert (answer == "not_queued") == (not rests)
                self.model.touch(job, priority=to)
            case "approve":
                answer = await self.call(or_refused(steer.approve(self.conn, job.id, "ada")))
                assert (answer == "not_parked") == (not self.model.approve(job))
            case _:
                await self.refresh(job, how, hold=to > 0)

    async def refresh(self, job: Job, how: str, *, hold: bool) -> None:
        """As intake does it: the issue's text was changed, or its `hold` label."""
        rests = job.state in ("pending", "waiting")
        if how == "edit":
            # Only where a job rests: an edit of a claimed job's issue is looked at when it comes back.
            text = (
                uuid4().hex
                if job.issue.approved
                else (await rows.row(self.world.watch, "issue", job.issue.id))["approved_hash"]
            )
            await rows.change(self.world.watch, "issue", job.issue.id, content_hash=text)
            job.issue.approved = not job.issue.approved
        hold = hold if how == "hold" else job.hold
        async with self.conn.transaction():
            route = Route(Kind.IMPLEMENT, job.lane, job.priority, hold)
            assert await self.call(refresh_lane(self.conn, job.id, route)) == rests
        if rests:
            self.model.touch(job, hold=hold)

    @act(4, which=ANY, running=st.sampled_from([True, True, False]), code=st.sampled_from(Cancelled))
    async def cancel(self, which: int, running: bool, code: Cancelled) -> None:
        """A job in any state is cancelled, asked to stop, or refused."""
        job = self.some(which, "claimed") if running else self.some(which)
        if job is None or not self.free(f"look:{job.issue.id}"):
            return
        blocked = not self.free(jobs=[job])
        answer = await self.call(or_refused(steer.cancel(self.conn, job.id, "ada", reason=code)), blocked=blocked)
        if not blocked:
            self.did("cancels of claimed jobs", job.state == "claimed" and job.cancel is None)
            assert answer == self.model.cancel(job, code)

    # ---------------------------------------------------------------------------------------------- runners

    @act(13, lane=st.sampled_from(LANES), host=st.sampled_from(HOSTS), n=st.sampled_from([1, 1, 1, 3]))
    async def claim(self, lane: str, host: str, n: int) -> None:
        """The first of the lane, or as many of the first as were asked for and may run."""
        await self._claim(lane, host, n)

    @act(6, lane=st.sampled_from(LANES), host=st.sampled_from(HOSTS), outcome=OUTCOMES)
    async def work(self, lane: str, host: str, outcome: Outcome) -> None:
        """A runner's usual round: claim, record if it is to be done, settle."""
        for job in await self._claim(lane, host, 1):
            assert job.token is not None
            await self._settle(job, job.token, job.id, outcome)

    async def _claim(self, lane: str, host: str, n: int) -> list[Job]:
        model, one_by_one = self.model, self.model.one_by_one(lane)
        repos = [f"repo:{job.issue.repo}" for job in model.queue(lane)] if one_by_one else []
        blocked = one_by_one and not self.free(f"latch:{lane}")
        if not blocked and not self.free(*repos, *([f"lane:{lane}"] if model.lanes[lane].probing else [])):
            return []
        queue, room, first = model.queue(lane), model.room(lane, host, n), model.first(lane, host)
        exact = queue[: max(0, room)] if not one_by_one else [first] if first is not None else []
        got = await self.call(
            claim.claim_next(self.conn, [lane], runner=RunnerId(SAME_NAME, host, uuid4()), n=n), blocked=blocked
        )
        if got is None:
            return []
        self.did("claims", len(got))
        self.did("probes", len(got) if model.lanes[lane].probing and model.lanes[lane].probe is None else 0)
        taken = [model.jobs[one.job_id] for one in got]
        assert len(taken) <= max(0, room)
        assert taken == sorted(taken, key=lambda job: job.order)
        assert [job for job in taken if job not in queue] == []
        assert (taken == exact) if n == 1 or not one_by_one else (taken[:1] == exact)
        for job, one in zip(taken, got, strict=True):
            assert not model.full(job.issue.repo), "a repository runs more than its limit"
            cap = model.lanes[lane].cap
            assert one.usd_left == (None if cap is None else cap - job.spent)
            assert one.usd_left is None or one.usd_left > 0, "a claim has nothing left to spend"
            assert not model.over(job), "a claim has less left than its lane's reserve"
            model.claimed(job, one.token, host)
            assert (one.attempts, one.claim_no) == (job.attempts, job.claim_no)
            self.tokens.append((job.id, one.token))
        if one_by_one:
            await self._stepped_aside(queue, first, one_was_taken=bool(taken), closed=room < 1)
        return taken

    async def _stepped_aside(self, queue: list[Job], first: Job | None, *, one_was_taken: bool, closed: bool) -> None:
        """Jobs of a full repository that stood in the way do not stand there any more; nobody else moved."""
        states = {job_id: state async for job_id, state in await self.world.watch.execute(b"SELECT id, state FROM job")}
        for job in queue:
            if job.state == "pending" and states[job.id] == "waiting":
                assert self.model.step_aside(job), f"job {job.id} stepped aside for no limit"
                self.did("stepped aside")
            stood = job.state == "pending" and self.model.full(job.issue.repo) and not closed
            in_the_way = first is None or job.order < first.order
            assert not (stood and in_the_way and not one_was_taken and first is None), f"job {job.id} stands in the way"

    @act(3, which=st.lists(ANY, min_size=1, max_size=3))
    async def renew(self, which: list[int]) -> None:
        """Live claims are renewed, all others are absent from the answer; nothing else changes."""
        known = [found for found in map(self.token, which) if found is not None]
        if not known:
            return
        alive = [(job, token) for job, token, _ in known if job is not None and self.model.alive(job, token)]
        blocked = not self.free(jobs=[job for job, _ in alive])
        renewed = await self.call(
            claim.renew_claim(self.conn, [(job_id, token) for _, token, job_id in known]), blocked=blocked
        )
        if renewed is None:
            return
        assert set(renewed) == {token for _, token in alive}
        self.did("renewals", len(renewed))
        self.did("lost renewals", len({token for _, token, _ in known}) - len(renewed))
        for job, token in alive:
            job.expires_at = self.model.now + sm.LEASE_S * SECOND
            assert renewed[token].cancel_requested == job.cancel
            assert await claim.check_claim(self.conn, job.id, token)

    @act(2, which=ANY)
    async def record(self, which: int) -> None:
        """What is to be delivered is stored under the token that holds the job, and under no other."""
        if (found := self.token(which)) is not None:
            await self._record(*found)

    async def _record(self, job: Job | None, token: UUID, job_id: int) -> None:
        holds = job is not None and self.model.holds(job, token)
        blocked = holds and job is not None and not self.free(jobs=[job])
        answer = await self.call(
            record.record_result(self.conn, job_id, token, record.RecordedResult(result={})), blocked=blocked
        )
        assert answer in (None, "done" if holds else "lost")
        if answer == "done" and job is not None:
            job.tries[-1].recorded = True

    @act(5, which=ANY, outcome=OUTCOMES, times=st.integers(1, 2))
    async def settle(self, which: int, outcome: Outcome, times: int) -> None:
        """The last word counts once, by the token that holds the job, whoever says it and however often."""
        found = self.token(which)
        for _ in range(times if found else 0):
            assert found is not None
            await self._settle(*found, outcome)

    async def _settle(self, job: Job | None, token: UUID, job_id: int, outcome: Outcome) -> None:
        if job is None:
            answer = await self.call(settling.settle(self.conn, job_id, token, said(outcome)))
            assert answer == "lost"
            return
        holds = self.model.holds(job, token)
        if holds and outcome is Outcome.DONE and not job.tries[-1].recorded:
            await self._record(job, token, job_id)
            if not self.free(jobs=[job]):
                return
        blocked = holds and not self.free(jobs=[job])
        if not blocked and not self.free(*self.settle_keys(job)):
            return
        answer = await self.call(
            settling.settle(self.conn, job_id, token, said(outcome), policy=POLICY), blocked=blocked
        )
        if answer is not None:
            self.did(f"settled: {answer}")
            assert answer == self.model.settle(job, token, outcome)

    @act(6, lane=st.sampled_from(LANES), which=st.lists(ANY, max_size=3), outcomes=st.lists(MOSTLY_FINE, min_size=6))
    async def settle_together(self, lane: str, which: list[int], outcomes: list[Outcome]) -> None:
        """Last words in one transaction: who may go together is settled, in the order of arrival, nobody else is."""
        claimed = [(job, job.token, job.id) for job in await self._claim(lane, HOSTS[0], 3)]
        words: dict[UUID, tuple[Job, Outcome]] = {}
        for found, outcome in zip([*claimed, *map(self.token, which)], outcomes, strict=False):
            if found is not None and found[0] is not None and found[1] is not None:
                words[found[1]] = found[0], self._sayable(found[0], outcome)
        if not words or not self.free(*(key for job, _ in words.values() for key in self.settle_keys(job))):
            return
        going = {token for token, (job, outcome) in words.items() if self._goes_with_others(job, token, outcome)}
        said_of = [Word(job.id, token, said(outcome)) for token, (job, outcome) in words.items()]
        answers = await self.call(settling.settle_together(self.conn, said_of, policy=POLICY, ring=lambda _wakes: None))
        assert answers == dict.fromkeys(going, "done")
        self.did("settled together", len(going))
        self.did("failed together", sum(words[token][1] not in sm.SUCCESS | sm.NEUTRAL for token in going))
        for token in (token for token in words if token in going):
            assert self.model.settle(words[token][0], token, words[token][1]) == "done"

    def _goes_with_others(self, job: Job, token: UUID, outcome: Outcome) -> bool:
        """It is held, by nobody else at this moment, and its end is its own affair."""
        shares = (job.issue.child and not job.issue.child_ended) or self.model.limits[job.issue.repo] is not None
        shares = shares or self.model.lanes[job.lane].probe == token
        return not shares and outcome is not Outcome.QUOTA and self.model.holds(job, token) and self.free(jobs=[job])

    def _sayable(self, job: Job, outcome: Outcome) -> Outcome:
        """`done` without a record is refused."""
        unrecorded = outcome is Outcome.DONE and not (job.tries and job.tries[-1].recorded)
        return Outcome.NO_CHANGE if unrecorded else outcome

    def settle_keys(self, job: Job) -> set[str]:
        """What settling a job may lock beside it."""
        keys = {f"lane:{job.lane}", f"look:{job.issue.id}", "plan"}
        return keys | ({f"repo:{job.issue.repo}"} if self.model.limits[job.issue.repo] is not None else set())

    # ---------------------------------------------------------------------------------------------- publisher

    @act(3)
    async def take_to_publish(self) -> None:
        """A publisher takes the first that nobody has."""
        wanted = self.model.publishable()
        taken = await self.call(publish.take_publishing(self.conn, [rows.FORGE], by="p", take_s=800, unanswered_s=60))
        assert (taken.job_id if taken else None) == (wanted.id if wanted else None)
        if taken and wanted:
            wanted.take, wanted.take_until = taken.token, self.model.now + 800 * SECOND
            self.takes.append(taken)

    @act(4, which=ANY, how=st.sampled_from(["begin", "deliver", "fail", "return"]))
    async def publish(self, which: int, how: str) -> None:
        """Its steps and ends count under its take, and are lost without."""
        if not self.takes:
            return
        taken = self.takes[-1 - which % min(3, len(self.takes))]
        job = self.model.jobs.get(taken.job_id)
        if job is None or not self.free(f"look:{job.issue.id}", "plan", jobs=[job]):
            return
        holds = job.state == "publishing" and job.take == taken.token
        if how == "begin":
            assert await self.call(publish.pull_sent(self.conn, taken, take_s=800)) == holds
            if holds:
                job.began, job.take_until = True, self.model.now + 800 * SECOND
            return
        async with self.conn.transaction():
            ends = {
                "deliver": lambda: deliver.deliver(self.conn, taken, by="publisher"),
                "fail": lambda: deliver.fail_unpublishable(self.conn, taken, by="publisher", reason="no", error="no"),
                "return": lambda: deliver.return_to_pending(self.conn, taken, by="publisher", found=None),
            }
            answer = await self.call(ends[how]())
        assert (answer == "done") == self.model.publish(job, taken.token, how)
        self.did(f"published: {how}", holds)

    # ---------------------------------------------------------------------------------------------- sweeper, time

    @act(5, dead=st.sampled_from([True, True, False]))
    async def expire(self, dead: bool) -> None:
        """Leases that are over, and none that is live or being worked on; perhaps all runners have just died."""
        if dead and self.tx is None:
            await self.let_pass(sm.LEASE_S + 60)
            await self.clear_of_deadlines()
        late = [j for j in self.model.of("claimed") if (j.expires_at or 0) < self.model.now]
        probes = {lane.probe for lane in self.model.lanes.values()}
        if not self.free(*(f"lane:{j.lane}" for j in late if j.token in probes and j.id not in self.model.locked)):
            return
        moved = await self.call(sweep.expire_stale_claims(self.conn, limit=2))
        assert moved == len(self.model.expire())
        self.did("expiries", moved or 0)
        self.did("passed over", len(late) - (moved or 0))

    @act(6, what=st.sampled_from(["due", "full", "holds", "holds", "prune"]))
    async def sweep(self, what: str) -> None:
        """What time moves, and nothing else."""
        keys = {f"repo:{repo}" for repo in self.model.limits} | {f"lane:{lane}" for lane in LANES}
        keys |= {f"look:{job.issue.id}" for job in self.model.jobs.values()}
        if not self.free(*keys) or (what == "prune" and self.tx is not None):
            return
        match what:
            case "due":
                assert await self.call(sweep.wake_due(self.conn, limit=2)) == len(self.model.wake_due())
            case "full":
                woken = [job for repo in self.model.limits for job in self.model.wake(repo)]
                assert await self.call(sweep.wake_full(self.conn)) == len(woken)
                self.did("woken", len(woken))
            case "holds":
                if self.tx is None and any(lane.holds for lane in self.model.lanes.values()):
                    await self.let_pass(sm.BREAKER_S)
                    await self.clear_of_deadlines()
                assert await self.call(sweep.end_holds(self.conn)) == self.model.end_holds()
            case _:
                self.gone |= {job.id: job for job in self.model.jobs.values() if job.state not in sm.LIVE}
                await self.call(sweep.prune(self.conn, retention=sweep.Retention.all(0.0)))
                self.model.prune()

    @act(1, alone=True, seconds=st.sampled_from([90, 500, 1100, 5000]))
    async def pass_time(self, seconds: int) -> None:
        """Time goes by, and no more."""
        await self.let_pass(seconds)
        await self.clear_of_deadlines()

    # ---------------------------------------------------------------------------------------------- lanes

    @act(
        5,
        alone=True,
        lane=st.sampled_from(LANES),
        source=st.sampled_from(["operator", "quota", "breaker"]),
        hold=RARELY,
    )
    async def hold(self, lane: str, source: str, hold: bool) -> None:
        """An operator holds a lane, or releases what he or the machine held."""
        of = self.model.lanes[lane]
        if hold:
            await self.call(steer.hold(self.conn, lane, "ada", reason="a look"))
            of.holds["operator", ""] = Hold(None, self.model.now)
            return
        for of in self.model.lanes.values():
            if (source, "") in of.holds or of.name == lane:
                ended = await self.call(steer.release(self.conn, of.name, "ada", source=source))
                assert ended == self.model.end_hold(of, (source, ""))

    @act(1, alone=True, lane=st.sampled_from(LANES), limit=LIMITS, cap=CAPS)
    async def limit(self, lane: str, limit: int | None, cap: int | None) -> None:
        """The configuration gives a lane another limit and cap; a limit below what runs already stops nothing."""
        if limit is not None and len(self.model.of("claimed", lane)) > limit:
            return
        of = self.model.lanes[lane]
        of.limit, of.cap, of.reserve = limit, cap, reserve_of(lane, cap)
        wanted = [
            routing.Lane(
                name=one.name,
                lease_s=float(sm.LEASE_S),
                max_attempts=self.attempts,
                max_running=one.limit,
                max_usd=one.cap,
                reserve_usd=float(one.reserve),
            )
            for one in self.model.lanes.values()
        ]
        assert await self.call(lanes.sync_lanes(self.conn, wanted)) == []
        self.model.cap_changed()

    # ---------------------------------------------------------------------------------------------- in the middle

    @act(3, alone=True, lane=st.sampled_from(LANES), host=st.sampled_from(HOSTS), beside=st.booleans())
    async def open_claim(self, lane: str, host: str, beside: bool) -> None:
        """A claim that has not committed: others pass the job and its place by, or wait where they come one by one."""
        model, one_by_one = self.model, self.model.one_by_one(lane)
        if one_by_one and any(model.full(job.issue.repo) for job in model.queue(lane)):
            return
        first = model.first(lane, host)
        if first is None:
            return
        keys = {f"latch:{lane}", f"lane:{lane}"} if one_by_one else set()
        keys |= {f"repo:{first.issue.repo}"} if model.limits[first.issue.repo] is not None else set()
        work = claim.claim_next(self.begun, [lane], runner=RunnerId(SAME_NAME, host, uuid4()))
        (got,) = await self.opened(work)
        assert got.job_id == first.id

        def commit() -> None:
            self.did("claims")
            self.did("probes", model.lanes[lane].probing and model.lanes[lane].probe is None)
            model.claimed(first, got.token, host)
            self.tokens.append((first.id, got.token))

        self.opens({first.id}, keys, commit)
        model.taking = lane if model.lanes[lane].limit is not None else None
        if beside:
            await self._claim(lane, host, 1)

    @act(3, alone=True, which=ANY, outcome=OUTCOMES, late=st.booleans())
    async def open_settle(self, which: int, outcome: Outcome, late: bool) -> None:
        """A settle that has not committed, perhaps a late one: sweeps pass the job by, everybody else waits for it."""
        if late:
            await self.let_pass(sm.LEASE_S + 60)
            await self.clear_of_deadlines()
        job = self.some(which, "claimed")
        if job is None or job.token is None or any(j.full for j in self.model.jobs.values()):
            return
        token = job.token
        if outcome is Outcome.DONE and not job.tries[-1].recorded:
            outcome = Outcome.NO_CHANGE
        assert await self.opened(settling.settle(self.begun, job.id, token, said(outcome), policy=POLICY)) == "done"

        def commit() -> None:
            assert self.model.settle(job, token, outcome) == "done"

        self.opens({job.id}, self.settle_keys(job) | {f"issue:{job.issue.id}"}, commit)

    @act(1, alone=True, which=ANY)
    async def open_renew(self, which: int) -> None:
        """A renewal that has not committed."""
        job = self.some(which, "claimed")
        if job is None or job.token is None or not self.model.alive(job, job.token):
            return
        assert set(await self.opened(claim.renew_claim(self.begun, [(job.id, job.token)]))) == {job.token}

        def commit() -> None:
            job.expires_at = self.model.now + sm.LEASE_S * SECOND

        self.opens({job.id}, set(), commit)

    @act(2, alone=True)
    async def open_expire(self) -> None:
        """A sweep that has not committed: who settles what it took waits, and is lost."""
        late = [j for j in self.model.of("claimed") if (j.expires_at or 0) < self.model.now]
        if not late:
            return
        assert await self.opened(sweep.expire_stale_claims(self.begun)) == len(late)
        keys = (
            {f"lane:{j.lane}" for j in late}
            | {f"look:{j.issue.id}" for j in late}
            | {f"issue:{j.issue.id}" for j in late}
        )
        self.opens({j.id for j in late}, keys, lambda: self.did("expiries", len(self.model.expire())))

    @property
    def begun(self) -> Connection:
        """The connection for a transaction that stays open."""
        return self.world.actors[0]

    async def opened(self, work: Awaitable[T]) -> T:
        """Begin a transaction with this act."""
        await self.begun.execute("BEGIN")
        answer = await self.call(work)
        assert answer is not None
        return answer

    def opens(self, jobs: set[int], keys: set[str], commit: Callable[[], None]) -> None:
        """From now on these are locked."""
        self.did("transactions left open")
        self.tx = Open(self.begun, jobs, keys, commit)
        self.model.locked = {*jobs}

    @act(2, commit=st.sampled_from([True, True, False]))
    async def close(self, commit: bool) -> None:
        """What was left open takes place, or never was."""
        if self.tx is None:
            return
        tx, self.tx = self.tx, None
        self.model.locked, self.model.taking = set(), None
        await tx.conn.execute("COMMIT" if commit else "ROLLBACK")
        self.did("steps")
        if commit:
            tx.commit()

    @invariant()
    def nothing_is_counted_twice(self) -> None:
        """Invariants 1 and 3 in the model's own words: the comparison has carried them over from the rows."""
        for job in self.model.jobs.values():
            assert 0 <= job.attempts <= job.max_attempts
            assert job.claim_no == len(job.tries)
            assert (job.state == State.CLAIMED) == (job.token is not None)
        for repo, limit in self.model.limits.items():
            assert limit is None or len(self.model.of("claimed", repo=repo)) <= limit


async def or_refused(work: Awaitable[T]) -> T | str:
    """What it answers, a refusal by its code."""
    try:
        return await work
    except Refused as refused:
        return refused.code


def reserve_of(lane: str, cap: int | None) -> int:
    """Dollars that a lane keeps back: of the two lanes one does, where its cap leaves room for it."""
    return 2 if lane == "b" and cap == 3 else 0


def said(outcome: Outcome) -> Ending:
    """An ending with the times the model reckons with."""
    asked = {Outcome.QUOTA: sm.QUOTA_S, Outcome.BLOCKED: sm.BLOCKED_S}.get(outcome)
    return Ending(outcome=outcome, reason="said", wake_s=float(sm.BACKOFF_S), asked_s=asked, usage={"usd": 1})
