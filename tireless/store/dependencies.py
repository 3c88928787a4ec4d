"""What the forge says blocks an issue: stored as read, told to its job, and whom to look at when a blocker changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tireless.store.db import Connection, clean_text, translate
from tireless.store.look import CHANNEL, Ring, Wake, wake_lanes

FOLLOW_S = 900.0
"""How often an issue is read again while it waits for something no poll of ours sees."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """An issue or pull request that another waits for. `repo` is `owner/name`, empty for one the bot may not read."""

    repo: str
    number: int
    open: bool


STORE_DEPENDENCIES = """
WITH given AS MATERIALIZED (
  SELECT g.repo, g.number, g.open, (
           SELECT r.id FROM repository r
            WHERE r.forge = here.forge AND lower(r.owner) = lower(split_part(g.repo, '/', 1))
              AND lower(r.name) = lower(split_part(g.repo, '/', 2)) AND r.tracked) AS repository_id
    FROM unnest(%(repo)s::text[], %(number)s::int[], %(open)s::boolean[]) AS g (repo, number, open)
   CROSS JOIN (SELECT p.forge FROM issue i JOIN repository p ON p.id = i.repository_id
                WHERE i.id = %(issue_id)s) AS here
), gone AS (
  DELETE FROM dependency d
   WHERE d.issue_id = %(issue_id)s
     AND NOT EXISTS (SELECT FROM given g WHERE g.repo = d.repo AND g.number = d.number)
)
INSERT INTO dependency (issue_id, repo, number, repository_id, open, asked_at)
SELECT %(issue_id)s, g.repo, g.number, g.repository_id, g.open, %(asked_at)s FROM given g
ON CONFLICT (issue_id, repo, number) DO UPDATE
   SET repository_id = EXCLUDED.repository_id, open = EXCLUDED.open, asked_at = EXCLUDED.asked_at
"""


async def store_dependencies(
    conn: Connection, issue_id: int, blockers: Sequence[Blocker], *, asked_at: datetime
) -> None:
    """All that blocks an issue now; the caller has locked its row."""
    values: dict[str, object] = {
        "issue_id": issue_id,
        "repo": [clean_text(each.repo) for each in blockers],
        "number": [each.number for each in blockers],
        "open": [each.open for each in blockers],
        "asked_at": asked_at,
    }
    with translate(f"storing what blocks issue row {issue_id}"):
        await conn.execute(STORE_DEPENDENCIES, values)


# A job that runs or is published keeps it for when it comes back.
REFRESH_OWN_WAITS = """
WITH old AS MATERIALIZED (
  SELECT j.id, j.state, issue_waits_for(j.issue_id, j.kind) AS waits FROM job j
   WHERE j.id = %(job_id)s AND j.state IN ('pending', 'waiting', 'claimed', 'publishing') FOR NO KEY UPDATE
), moved AS (
  UPDATE job SET waits_for = old.waits,
                 state = CASE WHEN old.state IN ('claimed', 'publishing') THEN old.state ELSE 'waiting' END
    FROM old WHERE job.id = old.id AND job.waits_for IS DISTINCT FROM old.waits
  RETURNING job.id, old.state AS was, job.state, job.reason, job.lane, job.waits_for
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
  SELECT id, 'intake', CASE WHEN was = state THEN 'refresh' WHEN state = 'pending' THEN 'wake' ELSE 'wait' END,
         was, state, reason, jsonb_build_object('waits_for', waits_for) FROM moved
)
SELECT lane, CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_lane', lane) END FROM moved WHERE state = 'pending'
"""


async def refresh_own_waits(conn: Connection, job_id: int, *, ring: Ring | None = None) -> None:
    """Find anew what a live job waits for. The caller has locked the repository, as for every wake."""
    with translate(f"finding what job {job_id} waits for"):
        found = await conn.execute(REFRESH_OWN_WAITS, {"job_id": job_id, "notify": ring is None})
        wake_lanes(ring, [str(row[0]) async for row in found])


# By number, as every transaction writes several looks. Their own reading tells what is true of them.
LOOK_AT_DEPENDENTS = """
WITH noted AS (
  INSERT INTO look (repository_id, number, why)
  SELECT i.repository_id, i.number, %(why)s
    FROM (SELECT d.issue_id FROM dependency d
            JOIN job j ON j.issue_id = d.issue_id AND j.state IN ('pending', 'waiting', 'claimed', 'publishing')
           WHERE d.repository_id = %(repository_id)s AND d.number = %(number)s
           UNION
          -- Of its plan those that run: what rests was told (refresh_waits), these keep it for when they come back.
          SELECT j.issue_id FROM job j
           WHERE j.state IN ('claimed', 'publishing')
             AND j.issue_id = ANY (kin_of(%(plan_issue_id)s))) waits
    JOIN issue i ON i.id = waits.issue_id
   ORDER BY i.repository_id, i.number
  ON CONFLICT (repository_id, number) DO UPDATE
     SET written_at = clock_timestamp(), why = EXCLUDED.why, failures = 0, error = NULL, not_before = '-infinity'
  RETURNING 1
)
SELECT CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_look', '') END FROM noted LIMIT 1
"""


async def look_at_dependents(
    conn: Connection,
    repository_id: int,
    number: int,
    *,
    plan_issue_id: int | None,
    why: str,
    ring: Ring | None = None,
) -> None:
    """An issue was closed, opened again, or is gone: issues of any repository that wait for it are read again.

    So are those of its plan whose jobs run. `plan_issue_id`: the issue of the plan it is a child of; None: of none.
    """
    values = {
        "repository_id": repository_id,
        "number": number,
        "plan_issue_id": plan_issue_id,
        "why": why,
        "notify": ring is None,
    }
    with translate(f"looking at what waits for issue {number} of repository {repository_id}"):
        noted = await (await conn.execute(LOOK_AT_DEPENDENTS, values)).fetchone()
    if noted is not None and ring is not None:
        ring([Wake(CHANNEL)])


# Pull requests have no row, nor has what lies in repositories that are not watched.
UNFOLLOWED = """
SELECT EXISTS (
  SELECT FROM issue o
    JOIN job j ON j.issue_id = o.id AND j.state IN ('pending', 'waiting', 'claimed')
    JOIN dependency d ON d.issue_id = o.id AND d.open
    LEFT JOIN repository r ON r.id = d.repository_id AND r.tracked AND r.readable
    LEFT JOIN issue i ON i.repository_id = r.id AND i.number = d.number
   WHERE o.repository_id = %(repository_id)s AND o.number = %(number)s AND i.id IS NULL)
"""


async def unfollowed(conn: Connection, repository_id: int, number: int) -> bool:
    """Does a live job of this issue wait for something that no poll of ours sees?"""
    with translate(f"looking for what issue {number} waits for"):
        row = await (await conn.execute(UNFOLLOWED, {"repository_id": repository_id, "number": number})).fetchone()
    return bool(row and row[0])
