"""procrastinate with its own workers, tasks and pool, at the number of workers that made it fastest here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, LiteralString, TypeAlias

from procrastinate import App, PsycopgConnector

from bench.figures import GROUPS, PROCRASTINATE, Measure, Take
from bench.place import Place, session
from bench.seen import Seen
from bench.sizes import Sizes
from tireless.store.db import Connection

NAME = "bench_procrastinate"
QUEUE = "bench"
TASK = "noop"
PAYLOAD = "What is wanted. " * 12

BEST = (8, 20)
"""Workers in one process, and jobs that each may run at once."""

# Every job came, was begun and succeeded: three events.
HISTORY_JOBS = """
INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, attempts)
SELECT 'bench', 'noop', jsonb_build_object('payload', repeat('What is wanted. ', 12)), 'succeeded', 1
  FROM generate_series(1, %(n)s::int)
"""
HISTORY_EVENTS = """
INSERT INTO procrastinate_events (job_id, type)
SELECT j.id, e.type::procrastinate_job_event_type
  FROM procrastinate_jobs j CROSS JOIN (VALUES ('deferred'), ('started'), ('succeeded')) AS e (type)
 WHERE j.id > %(after)s::bigint ORDER BY j.id
"""
LAST = "SELECT coalesce(max(id), 0) FROM procrastinate_jobs"
AS_REPLICA = "SET session_replication_role = replica"
VACUUM = "VACUUM (ANALYZE) procrastinate_jobs, procrastinate_events"
TIDY = "DELETE FROM procrastinate_jobs WHERE status = 'todo'"
ANALYZE = "ANALYZE procrastinate_jobs, procrastinate_events"


Configure: TypeAlias = "Callable[[Connection], Coroutine[None, None, None]]"


class Procrastinate:
    """The subject: a database with its schema."""

    name = PROCRASTINATE

    def __init__(self, at: Place, sizes: Sizes) -> None:
        self._place = at
        self._sizes = sizes
        self._url = ""

    async def prepare(self) -> None:
        """Its schema."""
        self._url = await self._place.database(NAME)
        async with self._app(Seen(), 1) as app:
            await app.schema_manager.apply_schema_async()

    async def fabricate(self, finished: int) -> None:
        """So many succeeded jobs with their events."""
        async with session(self._url) as conn:
            await conn.execute(AS_REPLICA)
            row = await (await conn.execute(LAST)).fetchone()
            await conn.execute(HISTORY_JOBS, {"n": finished})
            await conn.execute(HISTORY_EVENTS, {"after": row[0] if row else 0})
            await conn.execute(VACUUM)

    def measures(self) -> list[Measure]:
        """What its workers and its deferring do of what ours do."""
        workers, slots = BEST
        best = f"{workers} workers x {slots} jobs, one process"
        latency = "committed enqueue → handler begun, idle worker"
        return [
            self._measure("drain best", GROUPS[0], best, partial(self._drain, workers, slots)),
            self._measure("drain tuned", GROUPS[0], f"{best}, autocommit", partial(self._drain, workers, slots, _tune)),
            self._measure("drain 16", GROUPS[0], "1 worker x 16 jobs", partial(self._drain, 1, 16)),
            self._measure("drain 4", GROUPS[1], "1 worker x 4 jobs", partial(self._drain, 1, 4)),
            self._measure("drain 1", GROUPS[2], "1 worker x 1 job", partial(self._drain, 1, 1)),
            self._measure("enqueue 1", "enqueue", "one by one", partial(self._enqueue, 1)),
            self._measure("enqueue 50", "enqueue", "pages of 50", partial(self._enqueue, 50)),
            Measure(PROCRASTINATE, "latency", "latency", latency, "ms", self._latency),
        ]

    def _measure(self, key: str, group: str, label: str, take: Take) -> Measure:
        return Measure(PROCRASTINATE, key, group, label, "jobs/s", take)

    @contextlib.asynccontextmanager
    async def _app(self, seen: Seen, connections: int, configure: Configure | None = None) -> AsyncIterator[App]:
        connector = PsycopgConnector(conninfo=self._url, min_size=1, max_size=connections, configure=configure)
        app = App(connector=connector)

        async def noop(payload: str) -> None:
            seen.begins(payload)

        app.task(name=TASK, queue=QUEUE)(noop)
        async with app.open_async():
            yield app

    async def _drain(self, workers: int, slots: int, configure: Configure | None = None) -> list[float]:
        jobs, seen = self._sizes.jobs_for(min(workers * slots, 16)), Seen()
        async with self._app(seen, min(workers * 3, 20), configure) as app:
            await app.tasks[TASK].batch_defer_async(*_payloads(jobs))
            await self._execute(ANALYZE)
            with seen.watching(app.job_manager, takes="fetch_job", stores="finish_job"):
                await asyncio.gather(
                    *(
                        app.run_worker_async(
                            concurrency=slots, wait=False, listen_notify=False, install_signal_handlers=False
                        )
                        for _ in range(workers)
                    )
                )
        return [seen.rate(jobs)]

    async def _enqueue(self, page: int) -> list[float]:
        count = self._sizes.pages(page)
        async with self._app(Seen(), 1) as app:
            task = app.tasks[TASK]
            begun = time.perf_counter()
            for _ in range(count):
                if page == 1:
                    await task.defer_async(payload=PAYLOAD)
                else:
                    await task.batch_defer_async(*_payloads(page))
            took = time.perf_counter() - begun
        await self._execute(TIDY)
        return [count * page / took]

    async def _latency(self) -> list[float]:
        seen = Seen()
        async with self._app(seen, 5) as app:
            worker = asyncio.create_task(app.run_worker_async(concurrency=4, install_signal_handlers=False))
            task = app.tasks[TASK]

            async def defer() -> None:
                await task.defer_async(payload=PAYLOAD)

            took = await seen.latencies(defer, self._sizes.latencies)
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker
        return took

    async def _execute(self, statement: LiteralString) -> None:
        async with session(self._url) as conn:
            await conn.execute(statement)


async def _tune(conn: Connection) -> None:
    """A hook of its pool that it does not speak of: no BEGIN and COMMIT around each statement, and early preparing."""
    await conn.set_autocommit(True)
    conn.prepare_threshold = 2


def _payloads(count: int) -> list[dict[str, Any]]:
    return [{"payload": PAYLOAD} for _ in range(count)]
