"""Takes jobs for a runner and keeps the claim alive; decides nothing about what becomes of them (settle.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import DictRow, dict_row

from tireless.domain.issue import RepoRef
from tireless.domain.job import Kind
from tireless.store.db import Connection, translate

MAX_BATCH = 100
"""The most jobs one call may take; CLAIM's inner LIMIT."""


@dataclass(frozen=True, slots=True)
class RunnerId:
    """One runner process: the name people gave it (not unique), its machine, and a uid of this start."""

    name: str
    host: str
    uid: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job taken: everything the runner needs to work on it. Seconds throughout.

    `token` fences every later write; `attempts` counts this one; `title` and `body` are the approved text.
    """

    job_id: int
    attempt_id: int
    claim_no: int
    token: UUID
    attempt_uid: UUID
    attempts: int
    max_attempts: int
    kind: Kind
    lane: str
    lease_s: float
    lease_left_s: float
    run_timeout_s: float
    stall_timeout_s: float
    backoff_base_s: float
    backoff_cap_s: float
    repo: RepoRef
    forge_repo_id: int
    default_branch: str
    clone_url: str
    number: int
    issue_url: str
    title: str
    body: str
    request_id: int
    rerun_of: int | None
    usd_left: float | None = None
    """What this attempt may cost; None: its lane has no cap."""


# Within a lane by priority, then turn, then id: exactly the order of the index job_pending, of which it is one walk.
# `walk` is cut by a literal, so that a generic plan walks the index too; it is pulled row by row, so that no more rows
# are locked than `picked` asks for. The lock is FOR UPDATE's weaker sister, which foreign keys do not meet.
# States are literals: a partial index does not serve a parameter.
CLAIM = """
WITH open_lane AS MATERIALIZED (
  -- Read plainly, never locked: a claim waits for nobody, and hold, drain and release wait for claims (steer.barrier).
  SELECT l.lease_s, l.run_timeout_s, l.stall_timeout_s, l.backoff_base_s, l.backoff_cap_s, l.max_usd FROM lane l
   WHERE l.name = %(lane)s AND l.configured AND NOT l.counted
     AND NOT EXISTS (SELECT FROM lane_hold h WHERE h.lane = l.name AND h.host IN ('', %(host)s))
), picked AS MATERIALIZED (
  SELECT walk.id FROM (
    SELECT j.id FROM job j
     WHERE j.state = 'pending' AND j.lane = %(lane)s AND EXISTS (SELECT FROM open_lane)
     ORDER BY j.priority DESC, j.turn, j.id LIMIT 100 FOR NO KEY UPDATE OF j SKIP LOCKED) walk
   LIMIT %(n)s::int
), claimed AS (
  -- By an array, not by a join: whatever the planner believes about `picked`, it goes by the primary key.
  UPDATE job j
     SET state = 'claimed', attempts = j.attempts + 1, claim_no = j.claim_no + 1, claim_token = gen_random_uuid(),
         claimed_by = %(runner)s, claimed_host = %(host)s, claimed_at = clock_timestamp(),
         claim_expires_at = clock_timestamp() + make_interval(secs => l.lease_s)
    FROM open_lane l
   WHERE j.id = ANY (ARRAY(SELECT p.id FROM picked p))
  RETURNING j.id, j.issue_id, j.repository_id, j.request_id, j.claim_no, j.claim_token, j.attempts, j.max_attempts,
            j.rerun_of, j.kind, j.claimed_at, j.claim_expires_at, j.priority, j.turn, l.lease_s,
            l.run_timeout_s, l.stall_timeout_s, l.backoff_base_s, l.backoff_cap_s,
            (l.max_usd - j.spent_usd)::float8 AS usd_left
), begun AS (
  INSERT INTO attempt (job_id, repository_id, claim_no, token, number, lane, runner, host, claimed_at)
  SELECT t.id, t.repository_id, t.claim_no, t.claim_token, t.attempts, %(lane)s, %(runner)s, %(host)s, t.claimed_at
    FROM claimed t
  RETURNING attempt.id, attempt.job_id, attempt.uid
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, details)
  SELECT t.id, 'runner ' || %(runner)s, 'claim', 'pending', 'claimed',
         jsonb_build_object('claim_no', t.claim_no, 'host', %(host)s::text)
    FROM claimed t
), given AS (
  SELECT t.id AS job_id, b.id AS attempt_id, t.claim_no, t.claim_token AS token, b.uid AS attempt_uid, t.attempts,
         extract(epoch FROM t.claim_expires_at - clock_timestamp())::float8 AS lease_left_s,
         t.kind, t.max_attempts, t.request_id, t.rerun_of,
         t.lease_s, t.run_timeout_s, t.stall_timeout_s, t.backoff_base_s, t.backoff_cap_s,
         r.forge, r.owner, r.name, r.forge_repo_id, r.default_branch, r.clone_url,
         i.number, i.url, i.approved_title, i.approved_body, t.usd_left
    FROM claimed t
    JOIN begun b ON b.job_id = t.id JOIN repository r ON r.id = t.repository_id JOIN issue i ON i.id = t.issue_id
   ORDER BY t.priority DESC, t.turn, t.id
)
SELECT * FROM given
UNION ALL
-- Where something is counted, the count must be younger than the latch: a function, whose statements see what is new.
SELECT c.* FROM lane l CROSS JOIN LATERAL claim_counted(l.name, %(n)s::int, %(runner)s, %(host)s) c
 WHERE l.name = %(lane)s AND l.configured AND l.counted
"""


async def claim_next(
    conn: Connection, lanes: Sequence[str], *, runner: RunnerId, n: int = 1, after: str | None = None
) -> list[Claim]:
    """Take up to `n` jobs (at most MAX_BATCH) from `lanes`, each committed as it is taken. [] means nothing to do.

    Lanes are walked in the caller's order, beginning behind `after`, the lane that was served last, so that a busy
    lane does not starve its neighbours. The connection must be in autocommit and outside a transaction; any failure
    is raised (StoreUnavailable, StoreError), never answered by [].
    """
    if not 1 <= n <= MAX_BATCH:
        raise ValueError(f"claiming {n} jobs at once: want 1 to {MAX_BATCH}")
    claims: list[Claim] = []
    for lane in rotated(lanes, after):
        while len(claims) < n:
            got = await _claim(conn, lane, runner, n - len(claims))
            claims += [_claimed(lane, row) for row in got if row["job_id"] is not None]
            if all(row["job_id"] is not None for row in got):
                break  # otherwise jobs of a repository at its limit stepped aside: ask again
    return claims


def rotated(lanes: Sequence[str], after: str | None) -> list[str]:
    """`lanes` in their order, beginning with the one behind `after`."""
    start = lanes.index(after) + 1 if after in lanes else 0
    return [*lanes[start:], *lanes[:start]]


async def _claim(conn: Connection, lane: str, runner: RunnerId, n: int) -> list[DictRow]:
    params = {"lane": lane, "n": n, "runner": runner.name, "host": runner.host}
    with translate(f"claiming a job of lane {lane}"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(CLAIM, params)
            return await cursor.fetchall()


def _claimed(lane: str, row: DictRow) -> Claim:
    return Claim(
        job_id=row["job_id"],
        attempt_id=row["attempt_id"],
        claim_no=row["claim_no"],
        token=row["token"],
        attempt_uid=row["attempt_uid"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        kind=Kind(row["kind"]),
        lane=lane,
        lease_s=row["lease_s"],
        lease_left_s=row["lease_left_s"],
        run_timeout_s=row["run_timeout_s"],
        stall_timeout_s=row["stall_timeout_s"],
        backoff_base_s=row["backoff_base_s"],
        backoff_cap_s=row["backoff_cap_s"],
        repo=RepoRef(row["forge"], row["owner"], row["name"]),
        forge_repo_id=row["forge_repo_id"],
        default_branch=row["default_branch"],
        clone_url=row["clone_url"],
        number=row["number"],
        issue_url=row["url"],
        title=row["approved_title"],
        body=row["approved_body"],
        request_id=row["request_id"],
        rerun_of=row["rerun_of"],
        usd_left=row["usd_left"],
    )


@dataclass(frozen=True, slots=True)
class Renewal:
    """A claim that goes on: seconds left of its lease, and the reason code when it is to be cancelled."""

    lease_left_s: float
    cancel_requested: str | None


# The lease column is in no index, so this is a HOT update. A lease that has ended is not renewed, swept or not.
RENEW = """
UPDATE job j SET claim_expires_at = clock_timestamp() + make_interval(secs => l.lease_s)
  FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS mine (id, token), lane l
 WHERE j.id = mine.id AND j.claim_token = mine.token AND j.state = 'claimed' AND j.claim_expires_at > clock_timestamp()
   AND l.name = j.lane
RETURNING j.claim_token, extract(epoch FROM j.claim_expires_at - clock_timestamp())::float8, j.cancel_requested
"""


async def renew_claim(conn: Connection, claims: Sequence[tuple[int, UUID]]) -> dict[UUID, Renewal]:
    """Renew the leases of (job id, token) pairs in one statement; a token absent from the answer is lost.

    Whoever finds one absent stops its agent and writes nothing more.
    """
    params = {"ids": [job_id for job_id, _ in claims], "tokens": [token for _, token in claims]}
    with translate(f"renewing {len(claims)} claims"):
        cursor = await conn.execute(RENEW, params)
        return {token: Renewal(left, cancel) async for token, left, cancel in cursor}


CHECK = """
SELECT EXISTS (SELECT FROM job j WHERE j.id = %(job_id)s::bigint AND j.claim_token = %(token)s::uuid
                AND j.state = 'claimed' AND j.claim_expires_at > clock_timestamp())
"""


async def check_claim(conn: Connection, job_id: int, token: UUID) -> bool:
    """Does this token still hold the job under a live lease? To be asked right before a push."""
    with translate(f"checking the claim of job {job_id}"):
        row = await (await conn.execute(CHECK, {"job_id": job_id, "token": token})).fetchone()
    return bool(row and row[0])


SHOW_RUNNER = """
INSERT INTO runner (uid, name, host, pid, lanes, slots, version)
VALUES (%(uid)s, %(name)s, %(host)s, %(pid)s, %(lanes)s, %(slots)s, %(version)s)
ON CONFLICT (uid) DO UPDATE SET seen_at = clock_timestamp(), lanes = EXCLUDED.lanes, slots = EXCLUDED.slots
"""


async def show_runner(conn: Connection, runner: RunnerId, *, lanes: Sequence[str], slots: int, version: str) -> None:
    """Say that this process is alive and what it serves; for people, no claim depends on it."""
    params = {
        "uid": runner.uid,
        "name": runner.name,
        "host": runner.host,
        "pid": os.getpid(),
        "lanes": list(lanes),
        "slots": slots,
        "version": version,
    }
    with translate(f"showing runner {runner.name}"):
        await conn.execute(SHOW_RUNNER, params)


FORGET_RUNNER = "DELETE FROM runner WHERE uid = %(uid)s"


async def forget_runner(conn: Connection, runner: RunnerId) -> None:
    """Take this process off the list; its claims are freed by their leases, not by this."""
    with translate(f"forgetting runner {runner.name}"):
        await conn.execute(FORGET_RUNNER, {"uid": runner.uid})
