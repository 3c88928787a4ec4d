"""What time moves: claims whose lease ended, waits that are due, holds that end, rows past their retention.

Bounded steps, each a transaction of its own on an autocommit connection; nobody who holds a lock is waited for, but for
a repository's. Knows nothing of kinds, agents or forges; any number of sweepers may run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from tireless.store.db import Connection, transaction, translate
from tireless.store.lanes import JOIN_IN
from tireless.store.look import Ring, ring_for

EXPIRE = "SELECT moved, wakes FROM expire_claims(%(limit)s::int, %(notify)s::boolean)"


async def expire_stale_claims(conn: Connection, *, limit: int = 100, ring: Ring | None = None) -> int:
    """Take back every claim whose lease has ended by the database's clock; how many moved.

    In this order: asked to cancel → cancelled; a result was recorded → publishing; no attempt left → failed: exhausted;
    else pending again, in its turn. A live lease is not touched. `ring` is told whom to wake; without it each step
    notifies them.
    """
    return await _in_steps(conn, EXPIRE, limit, "sweeping expired claims", ring=ring, notify=ring is None)


WAKE_DUE = "SELECT moved, wakes FROM wake_due(%(limit)s::int, %(notify)s::boolean)"


async def wake_due(conn: Connection, *, limit: int = 100, ring: Ring | None = None) -> int:
    """Wake the jobs whose backoff or block is over; one with no attempt left ends exhausted. How many moved.

    `ring` as for `expire_stale_claims`.
    """
    return await _in_steps(conn, WAKE_DUE, limit, "waking due jobs", ring=ring, notify=ring is None)


WAKE_FULL = "SELECT wake_full()"


async def wake_full(conn: Connection) -> int:
    """Wake jobs that stepped aside for a repository's limit wherever there is room again; how many."""
    return await _number(conn, WAKE_FULL, "waking jobs of repositories with room")


END_HOLDS = "SELECT end_due_holds()"


async def end_holds(conn: Connection) -> int:
    """Remove the holds that are due; after a quota or breaker hold the lane's next claim is a probe. How many ended."""
    return await _number(conn, END_HOLDS, "ending lane holds that are due")


# Attempts, events and output go with their job. Issues, verdicts and children stay, and with them the `answered` marks
# that keep an old label from asking again. All jobs of an issue stay while a branch of one of them is to be looked
# after: they say where it is, and whether it is the head of what was delivered.
OLD_JOBS = """
SELECT j.id FROM job j
 -- The first condition is the index's, the second says how long this end is kept.
 WHERE j.finished_at < (SELECT clock_timestamp()) - make_interval(secs => %(keep_s)s::float8)
   AND j.finished_at < clock_timestamp() - make_interval(secs => CASE j.state
         WHEN 'delivered' THEN %(delivered_s)s::float8 WHEN 'failed' THEN %(failed_s)s::float8
         ELSE %(cancelled_s)s::float8 END)
   AND NOT EXISTS (
     SELECT FROM attempt a
       JOIN job o ON o.id = a.job_id
       JOIN repository r ON r.id = o.repository_id AND r.tracked
      WHERE o.issue_id = j.issue_id AND a.branch IS NOT NULL AND a.branch_done_at IS NULL)
 ORDER BY j.finished_at, j.id LIMIT %(limit)s::int FOR UPDATE OF j SKIP LOCKED
"""
# The keys that point at them are set null in whatever order: what they stand in is locked before, or the job stays.
# A statement of its own, whose snapshot is younger than the locks: nothing new can point at them any more.
PRUNE_JOBS = """
WITH again AS MATERIALIZED (
  SELECT j.id FROM job j WHERE j.rerun_of = ANY (%(ids)s::bigint[]) FOR NO KEY UPDATE SKIP LOCKED
), born AS MATERIALIZED (
  SELECT c.id FROM child c
   WHERE c.job_id = ANY (%(ids)s::bigint[])
      OR c.attempt_id = ANY (ARRAY(SELECT a.id FROM attempt a WHERE a.job_id = ANY (%(ids)s::bigint[])))
     FOR NO KEY UPDATE SKIP LOCKED
), pointed_at AS MATERIALIZED (
  SELECT j.rerun_of AS id FROM job j
   WHERE j.rerun_of = ANY (%(ids)s::bigint[]) AND j.id <> ALL (ARRAY(SELECT g.id FROM again g))
   UNION ALL
  SELECT c.job_id FROM child c
   WHERE c.job_id = ANY (%(ids)s::bigint[]) AND c.id <> ALL (ARRAY(SELECT b.id FROM born b))
   UNION ALL
  SELECT (SELECT a.job_id FROM attempt a WHERE a.id = c.attempt_id) FROM child c
   WHERE c.attempt_id = ANY (ARRAY(SELECT a.id FROM attempt a WHERE a.job_id = ANY (%(ids)s::bigint[])))
     AND c.id <> ALL (ARRAY(SELECT b.id FROM born b))
), gone AS (
  DELETE FROM job o
   WHERE o.id = ANY (%(ids)s::bigint[]) AND o.id <> ALL (ARRAY(SELECT p.id FROM pointed_at p))
  RETURNING 1
)
SELECT count(*) FROM gone
"""
# A child's own request waits for its turn as long as the child lives: no label would ask again.
PRUNE_REQUESTS = """
WITH old AS MATERIALIZED (
  SELECT r.id FROM request r
   WHERE r.created_at < (SELECT clock_timestamp()) - make_interval(secs => %(keep_s)s::float8)
     AND NOT EXISTS (SELECT FROM job j WHERE j.request_id = r.id)
     AND NOT (r.source = 'child' AND r.answered_at IS NULL
              AND EXISTS (SELECT FROM child c WHERE c.issue_id = r.issue_id AND c.ended_at IS NULL))
   ORDER BY r.created_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM request r WHERE r.id = ANY (ARRAY(SELECT o.id FROM old o)) RETURNING 1
)
SELECT count(*) FROM gone
"""
# What the agent printed at the beginning and at the end is kept with the attempt; the stream is for watching.
PRUNE_OUTPUT = """
WITH ended AS MATERIALIZED (
  SELECT a.id FROM attempt a
   WHERE a.id IN (SELECT DISTINCT o.attempt_id FROM output_chunk o)
     AND a.ended_at < clock_timestamp() - interval '1 day'
   ORDER BY a.id LIMIT %(limit)s::int
), gone AS (
  DELETE FROM output_chunk o WHERE o.attempt_id = ANY (ARRAY(SELECT e.id FROM ended e)) RETURNING o.attempt_id
)
SELECT count(DISTINCT g.attempt_id) FROM gone g
"""
PRUNE_RUNNERS = """
WITH gone AS (
  DELETE FROM runner r WHERE r.seen_at < clock_timestamp() - interval '1 day' RETURNING 1
)
SELECT count(*) FROM gone
"""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended jobs are kept, in days, by how they ended."""

    delivered: float = 90.0
    failed: float = 90.0
    cancelled: float = 90.0

    @classmethod
    def all(cls, days: float) -> Retention:
        """The same for every end."""
        return cls(days, days, days)


async def prune(conn: Connection, *, retention: Retention, limit: int = 1000) -> int:
    """Delete what ended longer ago than `retention` says, in steps of `limit`; how many jobs and requests went.

    Never an issue; nor a request that still has a job, or is a living child's that waits for one; nor jobs of an issue
    of which a branch is to be looked after. Live output goes a day after its attempt ended, runners that were not seen
    for a day are forgotten.
    """
    days = {"delivered_s": retention.delivered, "failed_s": retention.failed, "cancelled_s": retention.cancelled}
    keep = {name: each * 86_400.0 for name, each in days.items()}
    keep_s = min(keep.values())
    gone = await _prune_jobs(conn, limit, {"keep_s": keep_s, **keep})
    gone += await _in_steps(conn, PRUNE_REQUESTS, limit, "pruning requests", keep_s=keep_s)
    await _in_steps(conn, PRUNE_OUTPUT, limit, "pruning output")
    await _number(conn, PRUNE_RUNNERS, "forgetting runners")
    return gone


async def _prune_jobs(conn: Connection, limit: int, keep: dict[str, float]) -> int:
    """In steps, until one is not full or all of it is somebody's; how many went."""
    doing, total = "pruning jobs", 0
    while True:
        async with transaction(conn, doing):
            with translate(doing):
                await conn.execute(JOIN_IN)  # attempts go with their jobs
                old = [each[0] async for each in await conn.execute(OLD_JOBS, {"limit": limit, **keep})]
                row = await (await conn.execute(PRUNE_JOBS, {"ids": old})).fetchone()
        gone = int(row[0]) if row is not None else 0
        total += gone
        if gone == 0 or len(old) < limit:
            return total


LEASES = "SELECT extract(epoch FROM clock_timestamp())::float8, min(l.lease_s), max(l.lease_s) FROM lane l"


async def clock_and_leases(conn: Connection) -> tuple[float, float | None, float | None]:
    """The database's clock in seconds, and the shortest and longest lease of its lanes (None without lanes)."""
    with translate("reading the clock and the leases"):
        row = await (await conn.execute(LEASES)).fetchone()
    return row if row is not None else (0.0, None, None)


async def _in_steps(
    conn: Connection, statement: LiteralString, limit: int, doing: str, *, ring: Ring | None = None, **values: float
) -> int:
    """Run a bounded statement until a step is not full; the sum. `ring` is told after each whom it names."""
    total, moved = 0, limit
    while moved >= limit:
        with translate(doing):
            row = await (await conn.execute(statement, {"limit": limit, **values})).fetchone()
        moved, *named = row or (0,)
        total += moved
        if ring is not None:
            ring_for((wake for wakes in named for wake in wakes), ring)
    return total


async def _number(conn: Connection, statement: LiteralString, doing: str) -> int:
    with translate(doing):
        row = await (await conn.execute(statement)).fetchone()
    return int(row[0]) if row is not None else 0
