"""The publisher's words about children: sent, made, refused, linked; fenced by its take as in publish.py."""

from __future__ import annotations

from datetime import datetime

from tireless.domain.issue import Snapshot
from tireless.store.db import Connection, clean_text, translate
from tireless.store.issues import bounded
from tireless.store.publish import ChildRow, Delivery, fenced

CHILD_SENT = """
WITH mine AS (  -- from here on a cancel comes too late
  UPDATE job SET publish_began_at = coalesce(publish_began_at, clock_timestamp()),
                 publish_until = clock_timestamp() + make_interval(secs => %(take_s)s)
   WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
  RETURNING id)
UPDATE child c SET sent_at = clock_timestamp() FROM mine WHERE c.id = %(child_id)s AND c.job_id = mine.id
"""


async def child_sent(conn: Connection, delivery: Delivery, child_id: int, *, take_s: float) -> bool:
    """Record that the create of a child issue is about to be sent."""
    doing = "recording that a child issue is sent"
    return await fenced(conn, CHILD_SENT, delivery, doing, child_id=child_id, take_s=take_s)


CREATED_LATELY = """
SELECT extract(epoch FROM c.sent_at + interval '1 hour' - clock_timestamp())::float8 AS left_s
  FROM child c
 WHERE c.plan_issue_id = %(issue_id)s AND c.sent_at > clock_timestamp() - interval '1 hour'
 ORDER BY c.sent_at
"""


async def created_lately(conn: Connection, issue_id: int) -> list[float]:
    """For each issue created within the last hour for this plan's issue: seconds until that hour is over, ascending."""
    with translate("counting the children created lately"):
        return [float(row[0]) async for row in await conn.execute(CREATED_LATELY, {"issue_id": issue_id})]


CHILD_REFUSED = """
WITH mine AS (
  UPDATE job j SET publish_began_at = CASE
           WHEN j.pull_request IS NOT NULL OR EXISTS (
             SELECT FROM child c WHERE c.job_id = j.id AND c.sent_at IS NOT NULL AND c.id <> %(child_id)s)
           THEN j.publish_began_at END
   WHERE j.id = %(job_id)s AND j.publish_token = %(token)s AND j.state = 'publishing'
  RETURNING j.id)
UPDATE child c SET sent_at = NULL FROM mine WHERE c.id = %(child_id)s AND c.job_id = mine.id AND c.number IS NULL
"""


async def child_refused(conn: Connection, delivery: Delivery, child_id: int) -> bool:
    """Record that the create was answered with a no: there is nothing to look for."""
    return await fenced(conn, CHILD_REFUSED, delivery, "recording that a child issue was refused", child_id=child_id)


# The forge's issue may be stored already by a poll: then its row stands as it is, newer than what we know of it.
CHILD_ISSUE = """
INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login, open,
                   url, created_at, updated_at, asked_at)
VALUES (%(repository_id)s, %(number)s, %(forge_issue_id)s, %(title)s, %(body)s, %(content_hash)s, %(author_id)s,
        %(author_login)s, %(open)s, %(url)s, %(created_at)s, %(updated_at)s, %(asked_at)s)
ON CONFLICT (repository_id, number) DO UPDATE SET number = excluded.number
RETURNING id
"""
# Before any child row is touched: the order of locks is issue, job, child, look.
CHILD_BEGAN = """
UPDATE job SET publish_began_at = coalesce(publish_began_at, clock_timestamp())
 WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
"""
# An ended child of the same key lets its still open issue go to the plan that names it anew.
CHILD_LET_GO = """
UPDATE child SET issue_id = NULL WHERE issue_id = %(child_issue_id)s AND id <> %(child_id)s AND ended_at IS NOT NULL
"""
CHILD_MADE = """
UPDATE child SET number = %(number)s, issue_id = %(child_issue_id)s, sent_at = coalesce(sent_at, clock_timestamp())
 WHERE id = %(child_id)s AND job_id = %(job_id)s AND (number IS NULL OR number = %(number)s)
"""
CHILD_APPROVED = """
UPDATE issue SET approved_hash = content_hash, approved_title = title, approved_body = body, approved_by = %(by)s,
                 approved_at = clock_timestamp()
 WHERE id = %(child_issue_id)s AND approved_hash IS NULL AND content_hash = %(content_hash)s
"""
CHILD_REQUEST = """
INSERT INTO request (issue_id, source, asked_time, actor_id, actor_login, content_hash)
VALUES (%(child_issue_id)s, 'child', clock_timestamp(), %(author_id)s, %(author_login)s, %(content_hash)s)
ON CONFLICT DO NOTHING
"""
CHILD_LOOK = """
INSERT INTO look (repository_id, number, why) VALUES (%(repository_id)s, %(number)s, 'child created')
ON CONFLICT (repository_id, number)
DO UPDATE SET written_at = clock_timestamp(), not_before = least(look.not_before, excluded.not_before),
              why = excluded.why
"""


async def child_made(
    conn: Connection, delivery: Delivery, child: ChildRow, made: Snapshot, *, asked_at: datetime, runs: bool
) -> bool:
    """Record the issue that was created or found for a child; in a transaction of the caller's.

    `runs`: its `child` request goes with it (never for a proposal, nor for a child's child: one level deep).
    """
    values: dict[str, object] = {
        "job_id": delivery.job_id,
        "token": delivery.token,
        "child_id": child.id,
        "repository_id": delivery.repository_id,
        "number": made.number,
        "forge_issue_id": made.issue_id,
        "title": clean_text(made.title),
        "body": bounded(made.body),
        "content_hash": made.content_hash,
        "author_id": made.author.id,
        "author_login": made.author.login,
        "open": made.state == "open",
        "url": made.url,
        "created_at": made.created_at,
        "updated_at": made.updated_at,
        "asked_at": asked_at,
        "by": f"plan #{delivery.number}",
    }
    with translate(f"recording issue {made.number} as child {child.key}"):
        async for row in await conn.execute(CHILD_ISSUE, values):
            values["child_issue_id"] = row[0]
        if (await conn.execute(CHILD_BEGAN, values)).rowcount != 1:
            return False
        await conn.execute(CHILD_LET_GO, values)
        if (await conn.execute(CHILD_MADE, values)).rowcount != 1:
            return False
        if runs and not child.proposal and not delivery.is_child:
            await conn.execute(CHILD_APPROVED, values)
            await conn.execute(CHILD_REQUEST, values)
        await conn.execute(CHILD_LOOK, values)
    return True


CHILD_LINKED = """
UPDATE child c SET linked_at = clock_timestamp()
  FROM job j
 WHERE j.id = %(job_id)s AND j.publish_token = %(token)s AND j.state = 'publishing'
   AND c.id = %(child_id)s AND c.job_id = j.id
"""


async def child_linked(conn: Connection, delivery: Delivery, child_id: int) -> bool:
    """Record that a child's forge dependencies are in place, or cannot be."""
    return await fenced(conn, CHILD_LINKED, delivery, "recording a child's dependencies", child_id=child_id)
