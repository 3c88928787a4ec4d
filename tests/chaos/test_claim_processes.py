"""Many runners as processes, killed and stopped at random, over thousands of jobs; then a judge reads all they did."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from psycopg.rows import class_row

from tests.support import rows
from tests.support.bulk import asks
from tests.support.claimers import LANES
from tests.support.ledger import AttemptRow, Held, History, JobRow, Limit, faults, tally
from tireless.domain.issue import RepoRef
from tireless.domain.routing import Lane
from tireless.errors import Refused
from tireless.store import steer
from tireless.store.db import Connection, clock
from tireless.store.lanes import sync_lanes
from tireless.store.limits import Limits, limit_repository

CLAIMERS = 32
JOBS, MORE = 5000, 500
TURNS = 8
"""So often are there more jobs, where chance and the machine have let too little happen."""
LEASE_S = 1.5
FOREVER = 2**62
LANE_LIMITS = {"three": 3, "five": 5, "flip": 2}
REPOSITORIES = ("acme/a", "acme/b", "acme/c", "acme/d", "acme/two", "acme/flip")
AT_LEAST = {"killed": 20, "stopped": 20, "expired": 60, "stalled past the lease": 20, "settle: lost": 20}
AT_LEAST |= {"jobs": JOBS, "settle: already": 100, "renew: done": 50, "cancelled": 50, "overlaps": 5}


class Operators:
    """What people and the configuration do meanwhile, and when, by the database's clock."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.over = asyncio.Event()
        self.limits: dict[tuple[str, str], list[Limit]] = {}
        self.holds: list[Held] = []
        self.refused = 0

    def said(self, of: str, name: str, most: int | None, since: int) -> None:
        """A limit is in force from now on."""
        self.limits.setdefault((of, name), []).append(Limit(of, name, most, since, FOREVER))

    def until(self, of: str, name: str, now: int) -> None:
        """The last limit said is about to be changed."""
        last = self.limits[of, name].pop()
        self.limits[of, name].append(Limit(of, name, last.most, last.since, now))

    async def holds_and_releases(self, conn: Connection) -> None:
        """Hold a lane for a moment, over and over."""
        while not self.over.is_set():
            lane = self.chance.choice(LANES)
            await steer.hold(conn, lane, "ada", reason="chaos")
            since = await now(conn)
            await asyncio.sleep(self.chance.uniform(0, 0.03))
            self.holds.append(Held(lane, since, await now(conn)))
            await steer.release(conn, lane, "ada")
            await asyncio.sleep(self.chance.uniform(0.02, 0.1))

    async def cancels(self, conn: Connection) -> None:
        """Cancel jobs that live; at the end also those that wait for a person."""
        query = "SELECT id FROM job WHERE finished_at IS NULL AND (state = 'claimed' OR parked > '' OR random() < 0.02)"
        while not self.over.is_set():
            for row in (await rows.rows(conn, query))[:3]:
                try:
                    await steer.cancel(conn, int(str(row["id"])), "ada")
                except Refused:
                    self.refused += 1
            await asyncio.sleep(self.chance.uniform(0.1, 0.3))

    async def changes_limits(self, conn: Connection) -> None:
        """Other limits of a lane and of two repositories; at times no repository has one, and lanes are open."""
        while not self.over.is_set():
            await self.limits_lanes(conn, self.chance.choice([None, 2, 6]))
            for name, most in (("acme/flip", 3), ("acme/two", 2)):
                await self.limits_repository(conn, name, self.chance.choice([None, None, most]))
            await asyncio.sleep(self.chance.uniform(0.1, 0.5))

    async def limits_repository(self, conn: Connection, name: str, most: int | None) -> None:
        """As an operator does."""
        if ("repo", name) in self.limits:
            self.until("repo", name, await now(conn))
        await limit_repository(conn, RepoRef(rows.FORGE, *name.split("/")), Limits(max_running=most))
        self.said("repo", name, most, await now(conn))

    async def limits_lanes(self, conn: Connection, flip: int | None) -> None:
        """As serve writes its configuration."""
        if ("lane", "flip") in self.limits:
            self.until("lane", "flip", await now(conn))
        limits = {**LANE_LIMITS, "flip": flip}
        await sync_lanes(
            conn, [Lane(name, lease_s=LEASE_S, max_attempts=8, max_running=limits.get(name)) for name in LANES]
        )
        self.said("lane", "flip", flip, await now(conn))


async def now(conn: Connection) -> int:
    """Microseconds of the database's clock."""
    return round((await clock(conn)).timestamp() * 1_000_000)


@asynccontextmanager
async def claimers(dsn: str, directory: Path, count: int) -> AsyncIterator[None]:
    """So many runners and two sweepers at work; killed at the end."""
    command = ("-P", "-m", "tests.support.claimers", dsn, str(directory), str(count), "20261")
    parent = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=rows.ROOT, stdin=asyncio.subprocess.PIPE, env={"PYTHONPATH": str(rows.ROOT)}
    )
    try:
        yield
    finally:
        await parent.communicate(b"")
    assert parent.returncode == 0


def lines(directory: Path) -> list[dict[str, object]]:
    """All diaries, up to the line that is being written."""
    found = []
    for path in sorted(directory.glob("*.jsonl")):
        whole, _, _ = path.read_text().rpartition("\n")
        found += [{"host": path.stem, **json.loads(line)} for line in whole.splitlines()]
    return found


ATTEMPTS = """
SELECT a.job_id AS job, a.claim_no, a.token::text, a.lane, r.owner || '/' || r.name AS repo, a.host,
       (extract(epoch FROM a.claimed_at) * 1000000)::bigint AS claimed_at,
       (extract(epoch FROM a.ended_at) * 1000000)::bigint AS ended_at,
       a.outcome, a.burned, coalesce(a.reason LIKE 'the lease ended%', false) AS swept
  FROM attempt a JOIN repository r ON r.id = a.repository_id
"""
ENDED = """
SELECT j.id, j.state, j.finished_at IS NOT NULL AS finished, j.claim_no, j.attempts,
       array_agg(ARRAY[e.from_state, e.to_state] ORDER BY e.id) AS path
  FROM job j JOIN job_event e ON e.job_id = j.id AND e.from_state IS DISTINCT FROM e.to_state GROUP BY j.id
"""
DEADLOCKS = "SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()"


async def judged(conn: Connection, directory: Path, operators: Operators) -> History:
    """Diaries and rows together."""
    async with conn.cursor(row_factory=class_row(AttemptRow)) as cursor:
        attempts = await (await cursor.execute(ATTEMPTS)).fetchall()
    async with conn.cursor(row_factory=class_row(JobRow)) as cursor:
        jobs = await (await cursor.execute(ENDED)).fetchall()
    return History(
        lines=lines(directory),
        attempts=attempts,
        jobs=jobs,
        limits=[limit for some in operators.limits.values() for limit in some],
        holds=operators.holds,
        deadlocks=int(str(await rows.value(conn, DEADLOCKS))),
    )


async def until_all_have_ended(conn: Connection) -> None:
    """Every job is in a terminal state."""
    query = "SELECT count(*) FROM job WHERE finished_at IS NULL"
    async with asyncio.timeout(300):
        while await rows.value(conn, query):  # noqa: ASYNC110 - it is other processes that end them
            await asyncio.sleep(0.25)


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_thirty_two_claimers_and_five_thousand_jobs(dsn: str, tmp_path: Path) -> None:
    """Killed, stopped, held, limited, cancelled at random: no two work on one job, no limit is passed, all adds up."""
    operators, chance = Operators(20261), random.Random(20261)
    async with rows.connections(dsn, 5) as (watcher, *conns):
        await operators.limits_lanes(watcher, 2)
        for name in ("three", "five"):
            operators.said("lane", name, LANE_LIMITS[name], await now(watcher))
        await more(watcher, JOBS, chance)
        async with claimers(dsn, tmp_path, CLAIMERS), asyncio.TaskGroup() as group:
            group.create_task(operators.holds_and_releases(conns[0]))
            group.create_task(operators.cancels(conns[1]))
            group.create_task(operators.changes_limits(conns[2]))
            await until_all_have_ended(watcher)
            for _ in range(TURNS):
                if not lacking(await judged(watcher, tmp_path, operators)):
                    break
                await more(watcher, MORE, chance)
                await until_all_have_ended(watcher)
            operators.over.set()
        history = await judged(watcher, tmp_path, operators)
    assert faults(history) == []
    assert lacking(history) == {}, tally(history)


async def more(conn: Connection, jobs: int, chance: random.Random) -> None:
    """At least so many jobs, over all repositories and lanes."""
    for path in REPOSITORIES:
        await asks(conn, path, jobs // len(REPOSITORIES) + 1, lambda _: chance.choice(LANES))


def lacking(history: History) -> dict[str, int]:
    """What has not happened often enough, and how often it has."""
    count = tally(history)
    return {what: count[what] for what, least in AT_LEAST.items() if count[what] < least}
