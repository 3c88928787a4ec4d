"""The ends of publishing, one transaction each: delivered, failed: unpublishable, back to pending; branches after it.

Fenced by the publisher's take: `LOST` means that another publisher or a cancel has the job, and nothing was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from psycopg.rows import class_row

from tireless.domain.issue import RepoRef
from tireless.store.db import Connection, jsonb, translate
from tireless.store.publish import Delivery


class Ended(StrEnum):
    """What the end of a job in publishing answered."""

    DONE = "done"
    ALREADY = "already"
    """It ended thus before: the reply to an earlier COMMIT was lost."""
    LOST = "lost"


# Locks in the house's order: the plan's issue before the job. Read again below, once this lock is held.
LOCK_PLAN = """
SELECT p.id FROM issue p
 WHERE p.id IN (SELECT c.plan_issue_id FROM child c WHERE c.issue_id = %(issue_id)s AND c.ended_at IS NULL)
 ORDER BY p.id FOR NO KEY UPDATE
"""
DELIVER = """
WITH ended AS (
  UPDATE job SET state = 'delivered', reason = NULL, finished_at = clock_timestamp(), publish_reason = NULL,
                 publish_by = NULL, publish_token = NULL, publish_until = NULL, publish_not_before = NULL
   WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
  RETURNING id, issue_id, repository_id, pull_request),
told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, details)
  SELECT id, %(who)s, 'publish', 'publishing', 'delivered', %(details)s::jsonb FROM ended),
grown AS (  -- a child ends once: when its issue is closed, or when a job of it is delivered
  UPDATE child c SET ended_at = clock_timestamp(), ended_reason = 'delivered'
    FROM ended WHERE c.issue_id = ended.issue_id AND c.ended_at IS NULL
  RETURNING c.plan_issue_id),
counted AS (
  UPDATE issue p SET children_done = p.children_done + g.n
    FROM (SELECT plan_issue_id, count(*) AS n FROM grown GROUP BY plan_issue_id) g WHERE p.id = g.plan_issue_id
  RETURNING p.id),
told_plans AS (SELECT mirror_changed(id) FROM counted),
looks AS (  -- this issue, which may have been asked for again; a plan's children, which waited for it
  INSERT INTO look (repository_id, number, why)
  SELECT e.repository_id, i.number, 'job ended' FROM ended e JOIN issue i ON i.id = e.issue_id
  UNION
  SELECT e.repository_id, c.number, 'plan ended' FROM ended e JOIN child c ON c.job_id = e.id
   WHERE c.number IS NOT NULL
  ORDER BY 2
  ON CONFLICT (repository_id, number)
  DO UPDATE SET written_at = clock_timestamp(), not_before = least(look.not_before, excluded.not_before),
                why = excluded.why)
SELECT ended.id, (SELECT count(*) FROM told_plans), pg_notify('tireless_look', ''), pg_notify('tireless_mirror', '')
  FROM ended
"""
DELIVERED_BEFORE = """
SELECT 1 FROM job WHERE id = %(job_id)s AND state = 'delivered' AND result_attempt = %(attempt_id)s
"""


async def deliver(conn: Connection, delivery: Delivery, *, by: str) -> Ended:
    """End the job delivered: its event, looks, the child row it is the job of and the plan's counter, once each.

    In a transaction of the caller's.
    """
    details = jsonb({"pull_request": delivery.pull_request, "children": [c.number for c in delivery.children]})
    values: dict[str, object] = {**_fence(delivery), "who": by, "details": details}
    with translate(f"delivering job {delivery.job_id}"):
        await conn.execute(LOCK_PLAN, values)
        if await (await conn.execute(DELIVER, values)).fetchone():
            return Ended.DONE
        before = await (await conn.execute(DELIVERED_BEFORE, values)).fetchone()
        return Ended.ALREADY if before else Ended.LOST


UNPUBLISHABLE = """
WITH ended AS (
  UPDATE job SET state = 'failed', reason = 'unpublishable', finished_at = clock_timestamp(),
                 publish_reason = %(reason)s, publish_by = NULL, publish_token = NULL, publish_until = NULL,
                 publish_not_before = NULL
   WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
  RETURNING id, issue_id, repository_id),
told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
  SELECT id, %(who)s, 'publish', 'publishing', 'failed', 'unpublishable', %(details)s::jsonb FROM ended),
looks AS (
  INSERT INTO look (repository_id, number, why)
  SELECT e.repository_id, i.number, 'job ended' FROM ended e JOIN issue i ON i.id = e.issue_id
  UNION
  SELECT e.repository_id, c.number, 'plan ended' FROM ended e JOIN child c ON c.job_id = e.id
   WHERE c.number IS NOT NULL
  ORDER BY 2
  ON CONFLICT (repository_id, number)
  DO UPDATE SET written_at = clock_timestamp(), not_before = least(look.not_before, excluded.not_before),
                why = excluded.why)
SELECT ended.id, pg_notify('tireless_look', ''), pg_notify('tireless_mirror', '') FROM ended
"""
# A child nobody made will not be made any more; a later plan may use its key.
UNMADE_CHILDREN = """
UPDATE child SET ended_at = clock_timestamp(), ended_reason = 'never created'
 WHERE job_id = %(job_id)s AND number IS NULL AND ended_at IS NULL
"""
COUNT_UNMADE = """
UPDATE issue SET children_done = children_done + %(n)s WHERE id = %(issue_id)s
"""
LOCK_OWN = "SELECT id FROM issue WHERE id = %(issue_id)s FOR NO KEY UPDATE"


async def fail_unpublishable(conn: Connection, delivery: Delivery, *, by: str, reason: str, error: str) -> Ended:
    """End the job failed: unpublishable, `reason` and `error` said; in a transaction of the caller's."""
    details = jsonb({"error": error, "branch": delivery.branch, "pull_request": delivery.pull_request})
    values: dict[str, object] = {**_fence(delivery), "who": by, "reason": reason, "details": details}
    with translate(f"ending job {delivery.job_id} as unpublishable"):
        await conn.execute(LOCK_OWN, values)
        if not await (await conn.execute(UNPUBLISHABLE, values)).fetchone():
            return Ended.LOST
        values["n"] = (await conn.execute(UNMADE_CHILDREN, values)).rowcount
        await conn.execute(COUNT_UNMADE, values)
        return Ended.DONE


# The claim counted the attempt whose work is not where it should be: it is given back. The trigger finds the state.
RETURN_TO_PENDING = """
WITH back AS (
  UPDATE job SET state = 'pending', attempts = greatest(attempts - 1, 0), result_attempt = NULL, publish_reason = NULL,
                 publish_by = NULL, publish_token = NULL, publish_until = NULL, publish_not_before = NULL,
                 publish_began_at = NULL, publish_failures = 0
   WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
  RETURNING id, state, lane)
INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
SELECT id, %(who)s, 'return', 'publishing', state, 'work_not_pushed', %(details)s::jsonb FROM back
RETURNING (SELECT pg_notify('tireless_lane', lane) FROM back WHERE state = 'pending')
"""


async def return_to_pending(conn: Connection, delivery: Delivery, *, by: str, found: str | None) -> Ended:
    """Give the job back to the runners: its branch is at `found` (None: nowhere), not at the recorded commit.

    Nothing was created yet. One statement.
    """
    details = jsonb({"branch": delivery.branch, "recorded": delivery.commit_sha, "found": found})
    values: dict[str, object] = {**_fence(delivery), "who": by, "details": details}
    with translate(f"returning job {delivery.job_id} to its lane"):
        row = await (await conn.execute(RETURN_TO_PENDING, values)).fetchone()
    return Ended.DONE if row else Ended.LOST


@dataclass(frozen=True, slots=True)
class BranchLeft:
    """A branch of an attempt whose job has ended."""

    attempt_id: int
    forge: str
    owner: str
    name: str
    branch: str
    commit_sha: str
    keep: bool
    """It is the head of what was delivered, or the only place where undeliverable work lies."""

    @property
    def repo(self) -> RepoRef:
        """The repository it is in."""
        return RepoRef(self.forge, self.owner, self.name)


BRANCHES_LEFT = """
SELECT a.id AS attempt_id, r.forge, r.owner, r.name, a.branch, a.commit_sha,
       j.state IN ('delivered', 'failed') AND j.result_attempt IS NOT DISTINCT FROM a.id AS keep
  FROM attempt a
  JOIN job j ON j.id = a.job_id
  JOIN repository r ON r.id = j.repository_id
 WHERE a.branch IS NOT NULL AND a.branch_done_at IS NULL AND j.finished_at IS NOT NULL AND r.forge = ANY(%(forges)s)
   AND NOT EXISTS (  -- a live job of the issue may still adopt what an earlier attempt left
     SELECT FROM job o WHERE o.issue_id = j.issue_id AND o.state IN ('pending', 'waiting', 'claimed', 'publishing'))
 ORDER BY a.id
 LIMIT %(limit)s
"""


async def branches_left(conn: Connection, forges: Sequence[str], *, limit: int) -> tuple[BranchLeft, ...]:
    """Branches of ended jobs that nobody has looked after yet, oldest first."""
    values = {"forges": list(forges), "limit": limit}
    with translate("reading the branches of ended jobs"):
        async with conn.cursor(row_factory=class_row(BranchLeft)) as cursor:
            await cursor.execute(BRANCHES_LEFT, values)
            return tuple([row async for row in cursor])


BRANCH_DONE = "UPDATE attempt SET branch_done_at = clock_timestamp() WHERE id = %(attempt_id)s"


async def branch_done(conn: Connection, attempt_id: int) -> None:
    """Record that a branch was deleted or is kept for good."""
    with translate(f"recording that the branch of attempt {attempt_id} is done with"):
        await conn.execute(BRANCH_DONE, {"attempt_id": attempt_id})


def _fence(delivery: Delivery) -> dict[str, object]:
    return {
        "job_id": delivery.job_id,
        "token": delivery.token,
        "issue_id": delivery.issue_id,
        "attempt_id": delivery.attempt_id,
    }
