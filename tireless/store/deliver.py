"""The ends of publishing, one transaction each: delivered, failed: unpublishable, back to pending; branches after it.

Fenced by the publisher's take: `LOST` means that another publisher or a cancel has the job, and nothing was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from psycopg.rows import class_row

from tireless.domain.issue import RepoRef
from tireless.store.db import Connection, jsonb, transaction, translate
from tireless.store.lanes import JOIN_IN
from tireless.store.look import Ring, Wake, wake_lanes
from tireless.store.publish import Delivery


class Ended(StrEnum):
    """What the end of a job in publishing answered."""

    DONE = "done"
    ALREADY = "already"
    """It ended thus before: the reply to an earlier COMMIT was lost."""
    LOST = "lost"


# The plan's issue comes before the job in the order of locks.
LOCK_PLAN = "SELECT lock_plan_of(%(issue_id)s::bigint)"
DELIVER = """
WITH ended AS (
  UPDATE job SET state = 'delivered', reason = NULL, finished_at = clock_timestamp(), publish_reason = NULL,
                 publish_by = NULL, publish_token = NULL, publish_until = NULL, publish_not_before = NULL
   WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
  RETURNING id)
INSERT INTO job_event (job_id, who, what, from_state, to_state, details)
SELECT id, %(who)s, 'publish', 'publishing', 'delivered', %(details)s::jsonb FROM ended
RETURNING job_id
"""
# Looks, the child row this is the job of, its plan's counter, and who has to hear of it.
JOB_ENDED = """
SELECT jobs_ended(ARRAY[%(job_id)s::bigint]),
       CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_look', '') END,
       CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_mirror', '') END
"""
DELIVERED_BEFORE = """
SELECT 1 FROM job WHERE id = %(job_id)s AND state = 'delivered' AND result_attempt = %(attempt_id)s
"""


async def _ended(conn: Connection, values: dict[str, object], ring: Ring | None) -> None:
    await conn.execute(JOB_ENDED, {**values, "notify": ring is None})
    if ring is not None:
        ring([Wake("tireless_look"), Wake("tireless_mirror")])


async def deliver(conn: Connection, delivery: Delivery, *, by: str, ring: Ring | None = None) -> Ended:
    """End the job delivered: its event, looks, the child row it is the job of and the plan's counter, once each.

    In a transaction of the caller's.
    """
    details = jsonb({"pull_request": delivery.pull_request, "children": [c.number for c in delivery.children]})
    values: dict[str, object] = {**_fence(delivery), "who": by, "details": details}
    with translate(f"delivering job {delivery.job_id}"):
        await conn.execute(LOCK_PLAN, values)
        if await (await conn.execute(DELIVER, values)).fetchone():
            await _ended(conn, values, ring)
            return Ended.DONE
        before = await (await conn.execute(DELIVERED_BEFORE, values)).fetchone()
        return Ended.ALREADY if before else Ended.LOST


UNPUBLISHABLE = """
WITH ended AS (
  UPDATE job SET state = 'failed', reason = 'unpublishable', finished_at = clock_timestamp(),
                 publish_reason = %(reason)s, publish_by = NULL, publish_token = NULL, publish_until = NULL,
                 publish_not_before = NULL
   WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
  RETURNING id)
INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
SELECT id, %(who)s, 'publish', 'publishing', 'failed', 'unpublishable', %(details)s::jsonb FROM ended
RETURNING job_id
"""


async def fail_unpublishable(
    conn: Connection, delivery: Delivery, *, by: str, reason: str, error: str, ring: Ring | None = None
) -> Ended:
    """End the job failed: unpublishable, `reason` and `error` said; in a transaction of the caller's."""
    details = jsonb({"error": error, "branch": delivery.branch, "pull_request": delivery.pull_request})
    values: dict[str, object] = {**_fence(delivery), "who": by, "reason": reason, "details": details}
    with translate(f"ending job {delivery.job_id} as unpublishable"):
        if not await (await conn.execute(UNPUBLISHABLE, values)).fetchone():
            return Ended.LOST
        await _ended(conn, values, ring)
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
RETURNING (SELECT lane FROM back WHERE state = 'pending'),
          (SELECT pg_notify('tireless_lane', lane) FROM back WHERE state = 'pending' AND %(notify)s::boolean)
"""


async def return_to_pending(
    conn: Connection, delivery: Delivery, *, by: str, found: str | None, ring: Ring | None = None
) -> Ended:
    """Give the job back to the runners: its branch is at `found` (None: nowhere), not at the recorded commit.

    Nothing was created yet. A transaction of its own: one that stops the repository waits for it, or is waited for.
    """
    details = jsonb({"branch": delivery.branch, "recorded": delivery.commit_sha, "found": found})
    values: dict[str, object] = {**_fence(delivery), "who": by, "details": details, "notify": ring is None}
    doing = f"returning job {delivery.job_id} to its lane"
    with translate(doing):
        async with transaction(conn, doing):
            await conn.execute(JOIN_IN)
            row = await (await conn.execute(RETURN_TO_PENDING, values)).fetchone()
    if row is None:
        return Ended.LOST
    wake_lanes(ring, [lane for lane in row[:1] if lane is not None])
    return Ended.DONE


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


# By its name, not by the attempt: what was adopted is in the rows of two attempts, and only the later one is settled.
BRANCHES_LEFT = """
SELECT a.id AS attempt_id, r.forge, r.owner, r.name, a.branch, a.commit_sha,
       EXISTS (SELECT FROM job d JOIN attempt b ON b.id = d.result_attempt
                WHERE d.issue_id = j.issue_id AND d.state IN ('delivered', 'failed') AND b.branch = a.branch) AS keep
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
