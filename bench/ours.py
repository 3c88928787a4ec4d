"""tireless through its own store functions: every row is written, every fence asked.

A worker has a connection and one round trip for each claim and each end; the slots of a runner share both, as in
production. One job in ten ends as rejected, so that the breaker is written, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from statistics import median
from uuid import uuid4

from bench.figures import GROUPS, OURS, Measure
from bench.ours_rows import LIMIT, LIMITED, OPEN, Rows
from bench.place import WHO, Place, session
from bench.sizes import Sizes
from tireless.domain.outcome import Outcome
from tireless.errors import StoreError
from tireless.services.ringing import Bell
from tireless.services.settling import Settling
from tireless.store.claim import Claim, RunnerId, claim_next, renew_claim
from tireless.store.db import Connection, Pool, pool
from tireless.store.jobs import enqueue
from tireless.store.look import Ring, listen
from tireless.store.record import Answer
from tireless.store.settle import Ending, Policy, settle
from tireless.store.sweep import expire_stale_claims

NAME = "bench_tireless"
ME = RunnerId("bench", "localhost", uuid4())

GREATEST = 16
"""Workers of the promises."""

CONNECTIONS = 10
"""Of a runner's pool at most: the setting's default, database.connections."""

_WARM = 6
"""Pairs before the clock runs: then each statement is prepared and has its generic plan, as in a process that lives."""

_IDLE_S = 0.01
"""Between two latencies: the runner is idle again."""

_GOOD = Ending(outcome=Outcome.NO_CHANGE, summary="Nothing to change.", output_tail="done\n")
_BAD = Ending(outcome=Outcome.FAILED, reason="not possible", summary="Cannot be done.", output_tail="no\n")
_PATIENT = Policy(breaker_failures=1_000_000)
"""The breaker counts, and never opens: among 16 workers at once five failures can come before a success."""


SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ"


class Ours:
    """The subject: a migrated database with 20 repositories, an open lane and a limited one."""

    name = OURS

    def __init__(self, at: Place, sizes: Sizes) -> None:
        self._place = at
        self._sizes = sizes
        self._url = ""
        self._rows = Rows("")

    async def prepare(self) -> None:
        """Schema, repositories and lanes."""
        self._url = await self._place.database(NAME)
        self._rows = Rows(self._url)
        await self._rows.arrange()

    async def fabricate(self, finished: int) -> None:
        """So many finished jobs with their issues, requests, attempts and events."""
        await self._rows.history(finished)

    def measures(self) -> list[Measure]:
        """Everything that runners and services ask of the store."""
        found = []
        for workers, group in zip((GREATEST, 4, 1), GROUPS[:3], strict=True):
            who = f"{workers} worker{'s' if workers > 1 else ''}"
            for lane in (OPEN, LIMITED):
                if workers == GREATEST:
                    slots = f"{lane} lane, a runner of {workers} slots"
                    take = partial(self._process, lane, workers)
                    found.append(Measure(OURS, f"{lane} run", group, slots, "jobs/s", take))
                take = partial(self._drain, lane, workers)
                found.append(Measure(OURS, f"{lane} {workers}", group, f"{lane} lane, {who}", "jobs/s", take))
            if workers == GREATEST:
                counted = f"open lane beside a repository with a limit, {who}"
                take = partial(self._counted, workers)
                found.append(Measure(OURS, f"counted {workers}", group, counted, "jobs/s", take))
        latency, sweep = (
            "committed enqueue → claimed by an idle runner",
            f"sweep of {self._sizes.expired:,} expired claims",
        )
        held = f"what a claim grew by, {self._sizes.held:,} claims into one held snapshot"
        drain_10 = partial(self._drain, OPEN, 4, 10)
        return [
            *found,
            Measure(OURS, "claim 10", "batches", "claims of 10, 1 connection, none finished", "jobs/s", self._claims),
            Measure(OURS, "drain 10", "batches", "4 workers claim 10, settle each", "jobs/s", drain_10),
            Measure(OURS, "enqueue 1", "enqueue", "one by one", "jobs/s", partial(self._enqueue, 1)),
            Measure(OURS, "enqueue 50", "enqueue", "pages of 50", "jobs/s", partial(self._enqueue, 50)),
            Measure(OURS, "latency", "latency", latency, "ms", self._latency),
            Measure(OURS, "renew 1", "upkeep", "renewals, one a statement", "renewals/s", partial(self._renew, 1)),
            Measure(OURS, "renew 50", "upkeep", "renewals, 50 a statement", "renewals/s", partial(self._renew, 50)),
            Measure(OURS, "sweep", "upkeep", sweep, "jobs/s", self._sweep),
            Measure(OURS, "held", "upkeep", held, "ms", self._held),
        ]

    # -------------------------------------------------------------------------------------------- claim and settle

    async def _drain(self, lane: str, workers: int, batch: int = 1) -> list[float]:
        jobs = self._sizes.jobs_for(workers)
        await self._rows.pending(lane, jobs + workers * _WARM * batch)
        ready = asyncio.Barrier(workers)
        async with (
            _pool(self._url, workers + 1) as connections,
            _ringing(connections) as ring,
            asyncio.TaskGroup() as group,
        ):
            working = [group.create_task(_work(connections, lane, batch, ready, ring)) for _ in range(workers)]
        begun, ended = min(task.result()[1] for task in working), max(task.result()[2] for task in working)
        settled = sum(task.result()[0] for task in working)
        if settled != jobs:
            raise StoreError(f"{workers} workers settled {settled} of {jobs} jobs in lane {lane}")
        await self._rows.tidy()
        return [jobs / (ended - begun)]

    async def _process(self, lane: str, slots: int) -> list[float]:
        """As services/runner.py does it: whoever is free is claimed for at once, ends due at once go together."""
        jobs = self._sizes.jobs_for(slots)
        await self._rows.pending(lane, jobs + slots * _WARM)
        async with (
            pool(self._url, max_size=CONNECTIONS, application_name=WHO) as connections,
            _ringing(connections) as ring,
        ):
            runner = _Runner(connections, lane, slots, ring)
            await runner.work(slots * _WARM)
            begun = time.perf_counter()
            await runner.work(jobs)
            took = time.perf_counter() - begun
        await self._rows.tidy()
        return [jobs / took]

    async def _counted(self, workers: int) -> list[float]:
        await self._rows.limit_one(LIMIT)
        try:
            return await self._drain(OPEN, workers)
        finally:
            await self._rows.limit_one(None)

    async def _claims(self) -> list[float]:
        jobs = self._sizes.jobs
        await self._rows.pending(OPEN, jobs + 10 * _WARM)
        async with _pool(self._url, 1) as connections, connections.connection() as conn:
            for _ in range(_WARM):
                await claim_next(conn, [OPEN], runner=ME, n=10)
            begun, claimed = time.perf_counter(), 0
            while claims := await claim_next(conn, [OPEN], runner=ME, n=10):
                claimed += len(claims)
            took = time.perf_counter() - begun
        await self._rows.tidy()
        return [claimed / took]

    # -------------------------------------------------------------------------------------------- enqueue

    async def _enqueue(self, page: int) -> list[float]:
        jobs = await self._rows.requested(OPEN, self._sizes.pages(page) * page)
        async with _pool(self._url, 1) as connections, connections.connection() as conn:
            begun = time.perf_counter()
            for at in range(0, len(jobs), page):
                await enqueue(conn, jobs[at : at + page])
            took = time.perf_counter() - begun
        await self._rows.tidy()
        return [len(jobs) / took]

    async def _latency(self) -> list[float]:
        jobs = await self._rows.requested(OPEN, self._sizes.latencies + _WARM)
        heard, claimed = asyncio.Event(), asyncio.Queue[float]()
        took = []
        async with (
            _pool(self._url, 3) as connections,
            _running(_hear(self._url, heard), _serve(connections, heard, claimed)),
            connections.connection() as conn,
        ):
            for job in jobs:
                await asyncio.sleep(_IDLE_S)
                await enqueue(conn, [job])
                committed = time.perf_counter()
                took.append((await claimed.get() - committed) * 1000)
        await self._rows.tidy()
        return took[_WARM:]

    # -------------------------------------------------------------------------------------------- upkeep

    async def _renew(self, each: int) -> list[float]:
        await self._rows.pending(OPEN, 50)
        async with _pool(self._url, 1) as connections, connections.connection() as conn:
            held = [(claim.job_id, claim.token) for claim in await claim_next(conn, [OPEN], runner=ME, n=50)]
            pages = [held[at : at + each] for at in range(0, len(held), each)]
            begun, renewed = time.perf_counter(), 0
            for turn in range(self._sizes.renewals):
                renewed += len(await renew_claim(conn, pages[turn % len(pages)]))
            took = time.perf_counter() - begun
        if renewed != self._sizes.renewals * each:
            raise StoreError(f"of {self._sizes.renewals * each} renewals {renewed} came through")
        await self._rows.tidy()
        return [renewed / took]

    async def _sweep(self) -> list[float]:
        await self._rows.expired(OPEN, self._sizes.expired)
        async with _pool(self._url, 1) as connections, connections.connection() as conn:
            begun = time.perf_counter()
            moved = await expire_stale_claims(conn)
            took = time.perf_counter() - begun
        if moved != self._sizes.expired:
            raise StoreError(f"swept {moved} claims of {self._sizes.expired}")
        await self._rows.tidy()
        return [moved / took]

    async def _held(self) -> list[float]:
        """Nothing that claims leave behind can be cleared away while somebody's snapshot is older than they are."""
        jobs, few = self._sizes.held, max(self._sizes.held // 25, 5)
        await self._rows.pending(OPEN, jobs + _WARM)
        took = []
        async with _pool(self._url, 1) as connections, connections.connection() as conn, session(self._url) as old:
            for _ in range(_WARM):
                await _settle(conn, await claim_next(conn, [OPEN], runner=ME))
            await old.execute(SNAPSHOT)
            await old.execute("SELECT 1")
            for _ in range(jobs):
                begun = time.perf_counter()
                claims = await claim_next(conn, [OPEN], runner=ME)
                took.append((time.perf_counter() - begun) * 1000)
                await _settle(conn, claims)
        await self._rows.tidy()
        return [median(took[-few:]) - median(took[:few])]


def _pool(url: str, size: int) -> Pool:
    return pool(url, min_size=size, max_size=size, application_name=WHO)


async def _work(
    connections: Pool, lane: str, batch: int, ready: asyncio.Barrier, ring: Ring
) -> tuple[int, float, float]:
    """One worker: claim and settle till nothing is left. How many it settled, when it began, when it was done."""
    async with connections.connection() as conn:
        for _ in range(_WARM):
            await _settle(conn, await claim_next(conn, [lane], runner=ME, n=batch), ring)
        await ready.wait()
        begun, settled = time.perf_counter(), 0
        while claims := await claim_next(conn, [lane], runner=ME, n=batch):
            settled += await _settle(conn, claims, ring)
        return settled, begun, time.perf_counter()


class _Runner:
    """A runner's process but for its agents: so many slots, one claim under way, ends by services/settling.py."""

    def __init__(self, connections: Pool, lane: str, slots: int, ring: Ring) -> None:
        self._connections = connections
        self._lane = lane
        self._slots = slots
        self._ring = ring
        self._settling = Settling(connections, ring, policy=_PATIENT)
        self._working: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    async def work(self, jobs: int) -> None:
        """Claim and settle so many jobs, no more."""
        while jobs:
            self._freed.clear()
            free = self._slots - len(self._working)
            if free:
                async with self._connections.connection() as conn:
                    claims = await claim_next(conn, [self._lane], runner=ME, n=min(free, jobs))
                if not claims:
                    raise StoreError(f"lane {self._lane} ran dry before its time: {jobs} jobs were left")
                jobs -= len(claims)
                for claim in claims:
                    task = asyncio.create_task(self._end(claim))
                    self._working.add(task)
                    task.add_done_callback(self._ended)
            else:
                await self._freed.wait()
        while self._working:
            self._freed.clear()
            await self._freed.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        task.result()
        self._working.discard(task)
        self._freed.set()

    async def _end(self, claim: Claim) -> None:
        answer = await self._settling.settle(claim.job_id, claim.token, _ending(claim))
        if answer is None:
            async with self._connections.connection() as conn:
                await _settle(conn, [claim], self._ring)
        elif answer is not Answer.DONE:
            raise StoreError(f"settling job {claim.job_id} was answered {answer}")


def _ending(claim: Claim) -> Ending:
    return _BAD if claim.job_id % 10 == 0 else _GOOD


async def _settle(conn: Connection, claims: list[Claim], ring: Ring | None = None) -> int:
    for claim in claims:
        ending = _ending(claim)
        answer = await settle(conn, claim.job_id, claim.token, ending, policy=_PATIENT, ring=ring)
        if answer is not Answer.DONE:
            raise StoreError(f"settling job {claim.job_id} was answered {answer}")
    return len(claims)


async def _hear(url: str, heard: asyncio.Event) -> None:
    """The listener of a runner's process."""
    async with contextlib.aclosing(listen(url, ["tireless_lane"], application_name=WHO)) as wakes:
        async for _ in wakes:
            heard.set()


async def _serve(connections: Pool, heard: asyncio.Event, claimed: asyncio.Queue[float]) -> None:
    """A runner with free slots, as services/runner.py has it: claim, and wait to be woken when there is nothing."""
    while True:
        heard.clear()
        async with connections.connection() as conn:
            claims = await claim_next(conn, [OPEN], runner=ME, n=4)
            at = time.perf_counter()
            for _ in claims:
                claimed.put_nowait(at)
            await _settle(conn, claims)
        if not claims:
            await heard.wait()


@contextlib.asynccontextmanager
async def _ringing(connections: Pool) -> AsyncIterator[Ring]:
    """The bell of a runner's process, which wakes the poller, the publisher and the mirror for what was settled."""
    bell = Bell(connections)
    async with _running(bell.run()):
        yield bell.ring
    await bell.flush()


@contextlib.asynccontextmanager
async def _running(*loops: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """These loops beside what is done inside; a loop that fails ends it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        yield
        for task in tasks:
            task.cancel()
