"""Lane rows as the configuration of `serve` has them, the lock that shuts claims out, and what people see of lanes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from psycopg import errors
from psycopg.rows import class_row, dict_row

from tireless.domain.routing import Lane
from tireless.errors import StoreUnavailable
from tireless.store.db import Connection, transaction, translate

# ------------------------------------------------------------------------------------------------ no claims

# Every claim writes `attempt`, and so does who brings a claimed job back: this lock waits for those begun before, and
# lets none begin. It comes before every row: who writes `attempt` behind a row's lock takes JOIN_IN first.
SHUT_OUT = "LOCK TABLE attempt IN SHARE MODE"
JOIN_IN = "LOCK TABLE attempt IN ROW EXCLUSIVE MODE"
LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %(ms)s::text, true)"

# Claims queue behind a waiting lock, so each try is short. The last ones outlast deadlock_timeout (1 s), which is when
# an autovacuum of the table gives way.
_TRIES_MS = (100, 100, 200, 200, 500, 500, 2000, 2000, 2000, 5000)


@contextlib.asynccontextmanager
async def no_claims(conn: Connection, doing: str) -> AsyncIterator[None]:
    """A transaction that begins when every claim begun before has committed, and during which none begins.

    What it commits, every later claim sees. Keep it short. StoreUnavailable when somebody keeps `attempt` locked.
    """
    async with transaction(conn, doing):
        await shut_out(conn, doing)
        yield


async def shut_out(conn: Connection, doing: str) -> None:
    """The same from here to the end of a transaction that has locked nothing yet."""
    for wait_ms in _TRIES_MS:
        if await _shut_out(conn, doing, wait_ms):
            return
        await asyncio.sleep(0.01)  # let the claims that queued behind us through
    raise StoreUnavailable(
        f"{doing}: another session keeps the table `attempt` locked: end it (see pg_locks), then repeat this"
    )


async def _shut_out(conn: Connection, doing: str, wait_ms: int) -> bool:
    try:
        with translate(doing):
            async with conn.transaction():  # a savepoint: a timeout undoes this try only
                await conn.execute(LOCK_TIMEOUT, {"ms": f"{wait_ms}ms"})
                await conn.execute(SHUT_OUT)
                await conn.execute(LOCK_TIMEOUT, {"ms": "0"})
    except StoreUnavailable as error:
        if isinstance(error.__cause__, errors.LockNotAvailable):
            return False
        raise
    return True


# ------------------------------------------------------------------------------------------------ configuration

# All of them, by name: nobody else writes a limit between the question whether ours is lower and the write.
LOCK_LANES = "SELECT FROM lane ORDER BY name FOR NO KEY UPDATE"
# A claim under way goes by the limit it has read.
TIGHTENS = """
SELECT EXISTS (
  SELECT FROM unnest(%(names)s::text[], %(limits)s::int[]) AS given (name, most) JOIN lane l USING (name)
   WHERE given.most < l.max_running OR (given.most IS NOT NULL AND l.max_running IS NULL))
"""
CONFIGURE_LANE = """
INSERT INTO lane (name, position, kinds, is_default, children_of_plan, lease_s, max_attempts, backoff_base_s,
                  backoff_cap_s, run_timeout_s, stall_timeout_s, max_running, max_usd,
                  reserve_usd)
VALUES (%(name)s, %(position)s::int, %(kinds)s::text[], %(is_default)s::boolean, %(children_of_plan)s,
        %(lease_s)s::float8, %(max_attempts)s::int, %(backoff_base_s)s::float8, %(backoff_cap_s)s::float8,
        %(run_timeout_s)s::float8, %(stall_timeout_s)s::float8, %(max_running)s::int,
        %(max_usd)s::float8::numeric, %(reserve_usd)s::float8::numeric)
ON CONFLICT (name) DO UPDATE
   SET position = EXCLUDED.position, kinds = EXCLUDED.kinds, is_default = EXCLUDED.is_default,
       children_of_plan = EXCLUDED.children_of_plan, lease_s = EXCLUDED.lease_s, max_attempts = EXCLUDED.max_attempts,
       backoff_base_s = EXCLUDED.backoff_base_s, backoff_cap_s = EXCLUDED.backoff_cap_s,
       run_timeout_s = EXCLUDED.run_timeout_s, stall_timeout_s = EXCLUDED.stall_timeout_s,
       max_running = EXCLUDED.max_running, max_usd = EXCLUDED.max_usd, reserve_usd = EXCLUDED.reserve_usd,
       configured = true
"""
CLOSE_LANES = "UPDATE lane SET configured = false WHERE configured AND name <> ALL (%(names)s::text[]) RETURNING name"
# A cap that came, or fell, or a reserve that rose: jobs that have used it up rest now. A transaction of its own, since
# jobs come before lanes in the order of locks; one that is locked is being claimed, and gets nothing to spend.
PARK_SPENT = """
WITH spent AS MATERIALIZED (
  SELECT j.id, j.state FROM job j JOIN lane l ON l.name = j.lane
   WHERE j.state IN ('pending', 'waiting') AND j.parked IS NULL AND j.spent_usd > 0
     AND (j.spent_usd >= l.max_usd OR l.max_usd - j.spent_usd < l.reserve_usd)
   ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
), moved AS (
  UPDATE job j SET state = 'waiting' WHERE j.id = ANY (ARRAY(SELECT s.id FROM spent s))
  RETURNING j.id, j.state, j.reason
)
INSERT INTO job_event (job_id, who, what, from_state, to_state, reason)
SELECT m.id, 'configuration', CASE WHEN s.state = m.state THEN 'refresh' ELSE 'wait' END, s.state, m.state, m.reason
  FROM moved m JOIN spent s ON s.id = m.id
"""
OPENED = "SELECT pg_notify('tireless_lane', name) FROM unnest(%(names)s::text[]) AS name"


async def sync_lanes(conn: Connection, lanes: Sequence[Lane]) -> list[str]:
    """Write the configured lanes; those that are gone from it stay, closed. Returns the names closed by this call.

    A transaction of its own. A new or lower limit holds for every claim from then on, claims under way included.
    """
    doing = "writing the configured lanes"
    limits = {"names": [lane.name for lane in lanes], "limits": [lane.max_running for lane in lanes]}
    with translate(doing):
        closed = None
        async with transaction(conn, doing):
            await conn.execute(LOCK_LANES)
            row = await (await conn.execute(TIGHTENS, limits)).fetchone()
            if row and not row[0]:
                closed = await _configure(conn, lanes)
        if closed is None:
            # The barrier comes before any lane in the order of locks.
            async with no_claims(conn, doing):
                closed = await _configure(conn, lanes)
        await conn.execute(PARK_SPENT)
    return sorted(closed)


async def _configure(conn: Connection, lanes: Sequence[Lane]) -> list[str]:
    # By name, in the order of locks; children_of_plan may point ahead, its key is deferred.
    for position, lane in sorted(enumerate(lanes), key=lambda at: at[1].name):
        await conn.execute(CONFIGURE_LANE, _configured(lane, position))
    names = [lane.name for lane in lanes]
    closed = [str(name) async for (name,) in await conn.execute(CLOSE_LANES, {"names": names})]
    await conn.execute(OPENED, {"names": names})
    return closed


def _configured(lane: Lane, position: int) -> dict[str, object]:
    return {
        "name": lane.name,
        "position": position,
        "kinds": [kind.value for kind in lane.kinds],
        "is_default": lane.is_default,
        "children_of_plan": lane.children_of_plan,
        "lease_s": lane.lease_s,
        "max_attempts": lane.max_attempts,
        "backoff_base_s": lane.backoff_base_s,
        "backoff_cap_s": lane.backoff_cap_s,
        "run_timeout_s": lane.run_timeout_s,
        "stall_timeout_s": lane.stall_timeout_s,
        "max_running": lane.max_running,
        "max_usd": lane.max_usd,
        "reserve_usd": lane.reserve_usd,
    }


# ------------------------------------------------------------------------------------------------ what people see


@dataclass(frozen=True, slots=True)
class HoldRow:
    """Why a lane is held: by which source, for every host or one, until when (None: until released)."""

    lane: str
    source: str
    host: str
    until: datetime | None
    reason: str
    held_by: str
    job_id: int | None
    began_at: datetime


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane with its live jobs counted by state (`parked` is part of `waiting`), its holds, probe and breaker."""

    name: str
    position: int
    kinds: list[str]
    is_default: bool
    configured: bool
    lease_s: float
    max_running: int | None
    probing: bool
    probe_since: datetime | None
    pending: int
    waiting: int
    parked: int
    claimed: int
    publishing: int
    oldest_pending_at: datetime | None
    failures: int
    opened: int
    holds: list[HoldRow] = field(default_factory=list)


LANES = """
SELECT l.name, l.position, l.kinds, l.is_default, l.configured, l.lease_s, l.max_running, l.probing, l.probe_since,
       coalesce(n.pending, 0) AS pending, coalesce(n.waiting, 0) AS waiting, coalesce(n.parked, 0) AS parked,
       coalesce(n.claimed, 0) AS claimed, coalesce(n.publishing, 0) AS publishing, n.oldest_pending_at,
       coalesce(b.failures, 0) AS failures, coalesce(b.opened, 0) AS opened
  FROM lane l
  LEFT JOIN lane_breaker b ON b.lane = l.name
  LEFT JOIN (
    -- Live rows only: the predicate is that of one_live_job_per_issue.
    SELECT j.lane, count(*) FILTER (WHERE j.state = 'pending') AS pending,
           count(*) FILTER (WHERE j.state = 'waiting') AS waiting,
           count(*) FILTER (WHERE j.state = 'waiting' AND j.parked IS NOT NULL) AS parked,
           count(*) FILTER (WHERE j.state = 'claimed') AS claimed,
           count(*) FILTER (WHERE j.state = 'publishing') AS publishing,
           min(j.pending_at) FILTER (WHERE j.state = 'pending') AS oldest_pending_at
      FROM job j WHERE j.state IN ('pending', 'waiting', 'claimed', 'publishing') GROUP BY j.lane) n ON n.lane = l.name
 ORDER BY l.configured DESC, l.position, l.name
"""
HOLDS = """
SELECT h.lane, h.source, h.host, h.until, h.reason, h.held_by, h.job_id, h.began_at
  FROM lane_hold h WHERE %(lane)s::text IS NULL OR h.lane = %(lane)s ORDER BY h.lane, h.source, h.host
"""


async def hold_rows(conn: Connection, lane: str | None = None) -> list[HoldRow]:
    """The holds of one lane, or of all."""
    with translate("reading the holds of lanes"):
        async with conn.cursor(row_factory=class_row(HoldRow)) as cursor:
            return await (await cursor.execute(HOLDS, {"lane": lane})).fetchall()


async def lane_rows(conn: Connection) -> list[LaneRow]:
    """Every lane, the configured ones first and in their order."""
    holds = await hold_rows(conn)
    with translate("reading the lanes"):
        async with conn.cursor(row_factory=dict_row) as rows:
            found = await (await rows.execute(LANES)).fetchall()
    return [LaneRow(**row, holds=[hold for hold in holds if hold.lane == row["name"]]) for row in found]


# ------------------------------------------------------------------------------------------------ what issues are told

LANE_MARKS = "SELECT l.name, lane_mark(l.name) FROM lane l ORDER BY l.name"


async def lane_marks(conn: Connection) -> dict[str, str]:
    """What each lane's pending jobs should be told, as a mark that changes with it."""
    with translate("reading what keeps the lanes waiting"):
        return {str(name): str(mark) async for name, mark in await conn.execute(LANE_MARKS)}


# In the order of claims, so that those who would be next are told first. One that is to be told anyway is left alone.
MARK_LANE = """
WITH stale AS MATERIALIZED (
  SELECT m.issue_id
    FROM job j JOIN mirror m ON m.issue_id = j.issue_id
   WHERE j.state = 'pending' AND j.lane = %(lane)s
     AND m.changed = m.told AND m.told_gate IS DISTINCT FROM %(mark)s
   ORDER BY j.priority DESC, j.turn, j.id LIMIT %(limit)s
   FOR NO KEY UPDATE OF m SKIP LOCKED
)
UPDATE mirror m SET changed = next_after(m.changed) FROM stale WHERE m.issue_id = stale.issue_id
"""
LANE_LEFT = """
SELECT EXISTS (SELECT FROM job j JOIN mirror m ON m.issue_id = j.issue_id
                WHERE j.state = 'pending' AND j.lane = %(lane)s AND m.told_gate IS DISTINCT FROM %(mark)s)
"""


async def mark_lane(conn: Connection, lane: str, mark: str, *, limit: int = 100) -> tuple[int, bool]:
    """Make some pending issues of a lane due that were told something else of it; how many, and whether any is left.

    Held, released, taken up by a runner: it does not matter by whom, and several changes are told as one.
    """
    values = {"lane": lane, "mark": mark, "limit": limit}
    with translate(f"telling what keeps lane {lane} waiting"):
        marked = (await conn.execute(MARK_LANE, values)).rowcount
        row = await (await conn.execute(LANE_LEFT, values)).fetchone()
    return marked, bool(row and row[0])
