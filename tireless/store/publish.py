"""The publisher's rows: takes a job in publishing, records each step before the next; ends nothing (see deliver.py).

Every write names the take's token and `state = 'publishing'`. `False` or None means the take is lost: another
publisher, or a cancel, has the job now, and nothing was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row, dict_row

from tireless.domain.issue import RepoRef
from tireless.domain.job import Kind
from tireless.store.db import Connection, translate


@dataclass(frozen=True, slots=True)
class ChildRow:
    """One child of the job that is delivered, in the plan's order."""

    id: int
    uid: UUID
    key: str
    title: str
    body: str
    kind: Kind
    lane: str | None
    depends_on: list[str]
    proposal: bool
    number: int | None
    linked: bool
    unanswered: bool
    """A create was sent and not answered: look for its issue before sending another."""
    wait_s: float
    """For an unanswered one: seconds until looking is worth it, at most 0 when it is."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job taken for publishing, with what its settled attempt left to be delivered."""

    job_id: int
    token: UUID
    kind: Kind
    lane: str
    attempts: int
    repo: RepoRef
    repository_id: int
    forge_repo_id: int
    default_branch: str
    issue_id: int
    number: int
    issue_title: str
    issue_url: str
    is_child: bool
    attempt_id: int
    commit_sha: str | None
    branch: str | None
    pr_title: str | None
    pr_body: str | None
    pr_draft: bool
    summary: str | None
    pull_request: int | None
    pr_unanswered: bool
    pr_wait_s: float
    failures: int
    children: tuple[ChildRow, ...]


TAKE_PUBLISHING = """
WITH pick AS MATERIALIZED (  -- a locked row is being taken or ended by somebody else
  SELECT j.id
    FROM job j JOIN repository r ON r.id = j.repository_id
   WHERE j.state = 'publishing' AND r.forge = ANY(%(forges)s)
     AND (j.publish_until IS NULL OR j.publish_until < clock_timestamp())
     AND (j.publish_not_before IS NULL OR j.publish_not_before <= clock_timestamp())
   ORDER BY j.publish_not_before NULLS FIRST, j.id
   LIMIT 1
   FOR NO KEY UPDATE OF j SKIP LOCKED)
UPDATE job j
   SET publish_token = gen_random_uuid(), publish_by = %(by)s,
       publish_until = clock_timestamp() + make_interval(secs => %(take_s)s)
  FROM pick
 WHERE j.id = pick.id
RETURNING j.id, j.publish_token
"""


async def take_publishing(
    conn: Connection, forges: Sequence[str], *, by: str, take_s: float, unanswered_s: float
) -> Delivery | None:
    """Take one due job of these forges for `take_s` seconds; None when there is none.

    `unanswered_s`: how long after an unanswered create the forge may still carry it out.
    """
    with translate("taking a job to publish"):
        cursor = await conn.execute(TAKE_PUBLISHING, {"forges": list(forges), "by": by, "take_s": take_s})
        taken = await cursor.fetchone()
    return await load_delivery(conn, taken[0], taken[1], unanswered_s=unanswered_s) if taken else None


LOAD_DELIVERY = """
SELECT j.id AS job_id, j.publish_token AS token, j.kind, j.lane, j.attempts,
       r.forge, r.owner, r.name, j.repository_id, r.forge_repo_id, r.default_branch,
       j.issue_id, i.number, coalesce(i.approved_title, i.title) AS issue_title, i.url AS issue_url,
       EXISTS (SELECT FROM child c WHERE c.issue_id = j.issue_id) AS is_child,
       a.id AS attempt_id, a.commit_sha, a.branch, a.pr_title, a.pr_body, coalesce(a.pr_draft, false) AS pr_draft,
       coalesce(j.summary, a.summary) AS summary, j.pull_request,
       a.pr_sent_at IS NOT NULL AND j.pull_request IS NULL AS pr_unanswered,
       coalesce(extract(epoch FROM a.pr_sent_at + make_interval(secs => %(unanswered_s)s) - clock_timestamp()),
                0)::float8 AS pr_wait_s,
       j.publish_failures AS failures
  FROM job j
  JOIN repository r ON r.id = j.repository_id
  JOIN issue i ON i.id = j.issue_id
  JOIN attempt a ON a.id = j.result_attempt
 WHERE j.id = %(job_id)s AND j.publish_token = %(token)s AND j.state = 'publishing'
"""


async def load_delivery(conn: Connection, job_id: int, token: UUID, *, unanswered_s: float) -> Delivery | None:
    """Everything a take needs to know; None when the take is lost."""
    values: dict[str, object] = {"job_id": job_id, "token": token, "unanswered_s": unanswered_s}
    with translate(f"reading what job {job_id} has to deliver"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            row = await (await cursor.execute(LOAD_DELIVERY, values)).fetchone()
    if row is None:
        return None
    children = await children_of(conn, job_id, unanswered_s=unanswered_s)
    return _delivery(row, children)


def _delivery(row: dict[str, Any], children: tuple[ChildRow, ...]) -> Delivery:
    repo = RepoRef(row.pop("forge"), row.pop("owner"), row.pop("name"))
    kind = Kind(row.pop("kind"))
    return Delivery(repo=repo, kind=kind, children=children, **row)


CHILDREN_OF = """
SELECT c.id, c.uid, c.key, c.title, c.body, c.kind, c.lane, c.depends_on, c.proposal, c.number,
       c.linked_at IS NOT NULL AS linked,
       c.sent_at IS NOT NULL AND c.number IS NULL AS unanswered,
       coalesce(extract(epoch FROM c.sent_at + make_interval(secs => %(unanswered_s)s) - clock_timestamp()), 0)::float8
         AS wait_s
  FROM child c
 WHERE c.job_id = %(job_id)s AND c.ended_at IS NULL
 ORDER BY c.position, c.id
"""


async def children_of(conn: Connection, job_id: int, *, unanswered_s: float) -> tuple[ChildRow, ...]:
    """The children of a job that have not ended, in the plan's order."""
    with translate(f"reading the children of job {job_id}"):
        async with conn.cursor(row_factory=class_row(ChildRow)) as cursor:
            await cursor.execute(CHILDREN_OF, {"job_id": job_id, "unanswered_s": unanswered_s})
            return tuple([row async for row in cursor])


FAMILY_NUMBERS = """
SELECT c.key, c.number FROM child c WHERE c.plan_issue_id = %(issue_id)s AND c.number IS NOT NULL ORDER BY c.id
"""


async def family_numbers(conn: Connection, issue_id: int) -> dict[str, int]:
    """The issue numbers of a plan issue's children by key; of several under one key the newest."""
    with translate("reading the numbers of a plan's children"):
        return {key: number async for key, number in await conn.execute(FAMILY_NUMBERS, {"issue_id": issue_id})}


CONFIGURED_LANES = "SELECT name FROM lane WHERE configured ORDER BY position, name"


async def configured_lanes(conn: Connection) -> tuple[str, ...]:
    """The names of the lanes there are, in configuration order."""
    with translate("reading the lanes"):
        return tuple([row[0] async for row in await conn.execute(CONFIGURED_LANES)])


RENEW_TAKE = """
UPDATE job SET publish_until = clock_timestamp() + make_interval(secs => %(take_s)s)
 WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
"""


async def renew_take(conn: Connection, delivery: Delivery, *, take_s: float) -> bool:
    """Keep the take for another `take_s` seconds; False when it is lost."""
    return await fenced(conn, RENEW_TAKE, delivery, "renewing the take of a job", take_s=take_s)


PULL_SENT = """
WITH mine AS (  -- from here on a cancel comes too late
  UPDATE job SET publish_began_at = coalesce(publish_began_at, clock_timestamp()),
                 publish_until = clock_timestamp() + make_interval(secs => %(take_s)s)
   WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
  RETURNING result_attempt)
UPDATE attempt a SET pr_sent_at = clock_timestamp() FROM mine WHERE a.id = mine.result_attempt
"""


async def pull_sent(conn: Connection, delivery: Delivery, *, take_s: float) -> bool:
    """Record that the create of the pull request is about to be sent."""
    return await fenced(conn, PULL_SENT, delivery, "recording that a pull request is sent", take_s=take_s)


# With nothing made a cancel is in time again: what is refused for good must not be tried for ever.
PULL_REFUSED = """
WITH mine AS (
  UPDATE job j SET publish_began_at = CASE
           WHEN j.pull_request IS NOT NULL OR EXISTS (
             SELECT FROM child c WHERE c.job_id = j.id AND c.sent_at IS NOT NULL)
           THEN j.publish_began_at END
   WHERE j.id = %(job_id)s AND j.publish_token = %(token)s AND j.state = 'publishing'
  RETURNING j.result_attempt)
UPDATE attempt a SET pr_sent_at = NULL FROM mine WHERE a.id = mine.result_attempt
"""


async def pull_refused(conn: Connection, delivery: Delivery) -> bool:
    """Record that the create was answered with a no: there is nothing to look for."""
    return await fenced(conn, PULL_REFUSED, delivery, "recording that a pull request was refused")


PULL_MADE = """
UPDATE job SET pull_request = %(number)s, publish_began_at = coalesce(publish_began_at, clock_timestamp())
 WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
"""


async def pull_made(conn: Connection, delivery: Delivery, number: int) -> bool:
    """Record the pull request that was created or found."""
    return await fenced(conn, PULL_MADE, delivery, f"recording pull request {number}", number=number)


POSTPONE = """
UPDATE job
   SET publish_not_before = clock_timestamp() + make_interval(secs => %(wait_s)s),
       publish_reason = %(reason)s, publish_failures = %(failures)s,
       publish_by = NULL, publish_token = NULL, publish_until = NULL
 WHERE id = %(job_id)s AND publish_token = %(token)s AND state = 'publishing'
"""


async def postpone(conn: Connection, delivery: Delivery, *, wait_s: float, reason: str | None, failures: int) -> bool:
    """Give the take back; the job is due again in `wait_s` seconds. `reason`: why it does not go on, None: it does."""
    doing = f"postponing the delivery of job {delivery.job_id}"
    return await fenced(conn, POSTPONE, delivery, doing, wait_s=wait_s, reason=reason, failures=failures)


LEFT_OPEN = """
INSERT INTO job_event (job_id, who, what, from_state, to_state, details)
SELECT j.id, j.publish_by, 'left_open', 'publishing', 'publishing',
       jsonb_build_object('number', %(number)s::int, 'pull', %(pull)s::boolean)
  FROM job j
 WHERE j.id = %(job_id)s AND j.publish_token = %(token)s AND j.state = 'publishing'
   AND NOT EXISTS (SELECT FROM job_event e WHERE e.job_id = j.id AND e.what = 'left_open'
                                             AND e.details ->> 'number' = %(number)s::int::text)
"""


async def left_open(conn: Connection, delivery: Delivery, number: int, *, pull: bool) -> None:
    """Record, once, that the forge refuses to close what the delivery has no use for: a person's to close."""
    await fenced(conn, LEFT_OPEN, delivery, f"recording that {number} is left open", number=number, pull=pull)


PREDECESSORS = """
SELECT j.pull_request FROM job j
 WHERE j.issue_id = %(issue_id)s AND j.id < %(job_id)s AND j.pull_request IS NOT NULL AND j.pull_request <> %(number)s
 ORDER BY j.id
"""


async def predecessors(conn: Connection, delivery: Delivery, number: int) -> tuple[int, ...]:
    """The pull requests that earlier jobs of the issue made, oldest first."""
    values: dict[str, object] = {"issue_id": delivery.issue_id, "job_id": delivery.job_id, "number": number}
    with translate("reading the pull requests of earlier jobs"):
        return tuple([row[0] async for row in await conn.execute(PREDECESSORS, values)])


# Before a push stands a record. One of these has pushed all the same: then the database was set back to before that.
FORGOTTEN = """
SELECT left(a.uid::text, 8) FROM attempt a JOIN job j ON j.id = a.job_id
 WHERE j.issue_id = %(issue_id)s AND a.outcome = 'lease_lost' AND a.recorded_at IS NULL
"""


async def forgotten(conn: Connection, delivery: Delivery) -> frozenset[str]:
    """What the branches of attempts end in of whose work nothing is known: it may have been delivered all the same."""
    with translate("reading the attempts of an issue that were lost"):
        return frozenset([row[0] async for row in await conn.execute(FORGOTTEN, {"issue_id": delivery.issue_id})])


async def fenced(conn: Connection, statement: LiteralString, delivery: Delivery, doing: str, **values: object) -> bool:
    """Run one fenced statement: True when it touched its row, False when the take is lost."""
    values |= {"job_id": delivery.job_id, "token": delivery.token}
    with translate(f"{doing} (job {delivery.job_id})"):
        return (await conn.execute(statement, values)).rowcount == 1
