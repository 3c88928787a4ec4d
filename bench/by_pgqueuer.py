"""pgqueuer with its own queue manager over asyncpg and uvloop, as its command runs it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import LiteralString
from uuid import uuid4

import asyncpg
import uvloop
from pgqueuer import Job, QueueManager
from pgqueuer.queries import EntrypointExecutionParameter, Queries
from pgqueuer.types import QueueEntrypoint, QueueExecutionMode, QueueManagerId

from bench.figures import GROUPS, PGQUEUER, Measure, Take
from bench.place import Place, session
from bench.seen import Seen
from bench.sizes import Sizes

NAME = "bench_pgqueuer"
ENTRY = "noop"
PAYLOAD = b"What is wanted. " * 12
LIMIT = 16
BEST_BATCH = 500

# A job that has ended is three rows of the log, none of the queue.
HISTORY = """
INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, aggregated)
SELECT 1000000000 + n, s.status::pgqueuer_status, 0, 'noop', true
  FROM generate_series(1, %(n)s::int) AS n CROSS JOIN (VALUES ('queued'), ('picked'), ('successful')) AS s (status)
"""
VACUUM = "VACUUM (ANALYZE) pgqueuer, pgqueuer_log"
TIDY = "DELETE FROM pgqueuer"
ANALYZE = "ANALYZE pgqueuer"


class PgQueuer:
    """The subject: a database with its schema, and the autovacuum settings that it recommends."""

    name = PGQUEUER

    def __init__(self, at: Place, sizes: Sizes) -> None:
        self._place = at
        self._sizes = sizes
        self._url = ""

    async def prepare(self) -> None:
        """Its schema."""
        self._url = await self._place.database(NAME)
        async with self._queries() as queries:
            await queries.install()
            await queries.optimize_autovacuum()

    async def fabricate(self, finished: int) -> None:
        """What so many finished jobs leave: rows of its log."""
        async with session(self._url) as conn:
            await conn.execute(HISTORY, {"n": finished})
            await conn.execute(VACUUM)

    def measures(self) -> list[Measure]:
        """What its manager and its queries do of what ours do."""
        latency = "committed enqueue → handler begun, idle worker"
        limited = f"batches of 10, concurrency_limit {LIMIT}"
        return [
            self._measure("drain 1", GROUPS[0], "batches of 1", partial(self._drain, 1)),
            self._measure("drain limited", GROUPS[0], limited, partial(self._drain, 10, LIMIT)),
            self._measure("claim 10", "batches", "dequeues of 10, 1 connection, none finished", self._dequeue),
            self._measure(
                "drain 10", "batches", "batches of 10 (its default), ends buffered", partial(self._drain, 10)
            ),
            self._measure(
                "drain best", "batches", f"batches of {BEST_BATCH}, ends buffered", partial(self._drain, BEST_BATCH)
            ),
            self._measure("enqueue 1", "enqueue", "one by one", partial(self._enqueue, 1)),
            self._measure("enqueue 50", "enqueue", "pages of 50", partial(self._enqueue, 50)),
            self._measure("latency", "latency", latency, self._latency, "ms"),
        ]

    def _measure(self, key: str, group: str, label: str, take: Take, unit: str = "jobs/s") -> Measure:
        return Measure(PGQUEUER, key, group, label, unit, take, loop=uvloop.new_event_loop)

    @contextlib.asynccontextmanager
    async def _queries(self) -> AsyncIterator[Queries]:
        conn = await asyncpg.connect(self._url)
        try:
            yield Queries.from_asyncpg_connection(conn)
        finally:
            await conn.close()

    async def _fill(self, queries: Queries, jobs: int) -> None:
        await queries.enqueue([ENTRY] * jobs, [PAYLOAD] * jobs, [0] * jobs)
        await self._execute(ANALYZE)

    async def _drain(self, batch: int, limit: int = 0) -> list[float]:
        jobs, seen = max(self._sizes.jobs, batch * 4), Seen()
        async with self._queries() as queries:
            await self._fill(queries, jobs)
            manager = _manager(queries, seen, limit)
            with seen.watching(queries, takes="dequeue", stores="log_jobs"):
                await manager.run(batch_size=batch, mode=QueueExecutionMode.drain)
        return [seen.rate(jobs)]

    async def _dequeue(self) -> list[float]:
        jobs, claimed = self._sizes.jobs, 0
        async with self._queries() as queries:
            await self._fill(queries, jobs)
            begun = time.perf_counter()
            while found := await queries.dequeue(
                batch_size=10,
                entrypoints={QueueEntrypoint(ENTRY): EntrypointExecutionParameter(concurrency_limit=0)},
                queue_manager_id=QueueManagerId(uuid4()),
                global_concurrency_limit=None,
                heartbeat_timeout=timedelta(seconds=30),
            ):
                claimed += len(found)
            took = time.perf_counter() - begun
        await self._execute(TIDY)
        return [claimed / took]

    async def _enqueue(self, page: int) -> list[float]:
        count = self._sizes.pages(page)
        async with self._queries() as queries:
            begun = time.perf_counter()
            for _ in range(count):
                if page == 1:
                    await queries.enqueue(ENTRY, PAYLOAD)
                else:
                    await queries.enqueue([ENTRY] * page, [PAYLOAD] * page, [0] * page)
            took = time.perf_counter() - begun
        await self._execute(TIDY)
        return [count * page / took]

    async def _latency(self) -> list[float]:
        seen = Seen()
        async with self._queries() as working, self._queries() as asking:
            manager = _manager(working, seen, 0)
            worker = asyncio.create_task(manager.run())

            async def enqueue() -> None:
                await asking.enqueue(ENTRY, PAYLOAD)

            took = await seen.latencies(enqueue, self._sizes.latencies)
            manager.shutdown.set()
            await worker
        return took

    async def _execute(self, statement: LiteralString) -> None:
        async with session(self._url) as conn:
            await conn.execute(statement)


def _manager(queries: Queries, seen: Seen, limit: int) -> QueueManager:
    manager = QueueManager(queries)

    async def noop(job: Job) -> None:
        seen.begins(job.payload)

    manager.entrypoint(ENTRY, concurrency_limit=limit)(noop)
    return manager
