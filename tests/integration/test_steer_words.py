"""What an operator's act says when the database goes away under it, or its job does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from tests.support import rows
from tireless.errors import NotKnown, StoreUnavailable
from tireless.store.db import Connection
from tireless.store.steer import approve, bump, cancel, drain_done, hold, release, reroute, rerun
from tireless.store.sweep import Retention, prune

ACTS: dict[str, Callable[[Connection, int], Coroutine[object, object, object]]] = {
    "running job {} again": lambda conn, job: rerun(conn, job, "ada"),
    "approving job {}": lambda conn, job: approve(conn, job, "ada"),
    "setting the priority of job {}": lambda conn, job: bump(conn, job, "ada"),
    "moving job {} to lane claude": lambda conn, job: reroute(conn, job, rows.LANE, "ada"),
    "cancelling job {}": lambda conn, job: cancel(conn, job, "ada"),
    "holding lane claude": lambda conn, _: hold(conn, rows.LANE, "ada", reason="r"),
    "releasing lane claude for ada": lambda conn, _: release(conn, rows.LANE, "ada"),
    "counting what runs on lane claude": lambda conn, _: drain_done(conn, rows.LANE),
}


@pytest.mark.parametrize("table", ["job", "lane"])
async def test_an_act_whose_database_goes_away_says_what_was_being_done_to_what(dsn: str, table: str) -> None:
    """Each names its job or its lane, whichever of its statements is met, and that it can be repeated."""
    async with rows.connections(dsn, 2) as (holder, watcher):
        made = await rows.job(watcher)
        for doing, act in ACTS.items():
            async with rows.connections(dsn, 1) as (operator,), holder.transaction():
                await holder.execute(f"LOCK TABLE {table}".encode())
                acting = asyncio.create_task(act(operator, made.job_id))
                await rows.until_blocked(watcher, operator, work=acting)
                if acting.done():  # it has no use for this table
                    continue
                assert await rows.value(watcher, "SELECT pg_terminate_backend(%(p)s)", p=operator.info.backend_pid)
                with pytest.raises(StoreUnavailable) as caught:
                    await acting
            said = str(caught.value)
            assert said.startswith(f"{doing.format(made.job_id)}: the database is out of reach"), said
            assert said.endswith("It can be repeated as it is"), said


async def test_a_rerun_of_a_job_that_is_being_pruned_does_not_know_it(dsn: str) -> None:
    """It waits for the prune, and leaves no request of its own behind."""
    async with rows.connections(dsn, 3) as (sweeper, operator, watcher):
        made = await rows.job(watcher, state="failed")
        await watcher.execute("ALTER TABLE job DISABLE TRIGGER USER")
        await watcher.execute("UPDATE job SET finished_at = finished_at - interval '100 days'")
        await watcher.execute("ALTER TABLE job ENABLE TRIGGER USER")
        async with sweeper.transaction():
            await prune(sweeper, retention=Retention())
            running = asyncio.create_task(rerun(operator, made.job_id, "ada"))
            await rows.until_blocked(watcher, operator, work=running)
        with pytest.raises(NotKnown, match=f"no job {made.job_id}"):
            await running
        assert await rows.rows(watcher, "SELECT 1 FROM request WHERE source = 'operator'") == []
