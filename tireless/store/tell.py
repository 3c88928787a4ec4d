"""The mirror's rows: which issue is due, what is to be told of it, what was told. Changes nothing but `mirror`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import dict_row

from tireless.domain.comments import ChildPicture, JobPicture, Picture, shown_time
from tireless.domain.issue import Label, RepoRef
from tireless.domain.job import Kind, State
from tireless.errors import NotKnown, StoreUnavailable
from tireless.store.db import Connection, translate

_LOCK_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Telling:
    """One issue taken by a mirror: what it is to look like, and what the forge was told before."""

    issue_id: int
    token: UUID
    changed: int
    """The value this telling answers: what changes while it is told makes it due again."""
    picture: Picture
    repository_id: int
    told_status: str | None
    told_comment: str | None
    """Hash of the comment's text; None: no comment was written."""
    comment_id: int | None
    comment_unanswered: bool
    comment_wait_s: float
    """For an unanswered create: seconds until looking is worth it, at most 0 when it is."""
    failures: int
    repairs: int
    """Of the last hour, as `creates` of its comment."""
    creates: int
    contested: bool
    comment_age_s: float | None
    """Seconds since the comment was written or edited last, None when it never was."""
    triage_age_s: float
    """Seconds since triage first said what it says."""


TAKE_DUE = """
WITH pick AS MATERIALIZED (  -- a locked row is being taken by another mirror
  SELECT m.issue_id
    FROM mirror m JOIN issue i ON i.id = m.issue_id JOIN repository r ON r.id = i.repository_id
   WHERE m.changed > m.told AND m.not_before <= (SELECT clock_timestamp())
     AND (m.take_until IS NULL OR m.take_until < clock_timestamp())
     AND (m.changed > m.paced OR m.paced_until <= clock_timestamp())
     AND r.tracked AND r.forge = ANY(%(forges)s)
   ORDER BY m.not_before, m.issue_id
   LIMIT 1
   FOR NO KEY UPDATE OF m SKIP LOCKED)
UPDATE mirror m
   SET take_token = gen_random_uuid(), take_by = %(by)s,
       take_until = clock_timestamp() + make_interval(secs => %(take_s)s)
  FROM pick
 WHERE m.issue_id = pick.issue_id
RETURNING m.issue_id, m.take_token
"""
LOAD_TELLING = """
SELECT m.changed, m.told_status, m.told_comment, m.comment_id, m.failures, m.contested, i.repository_id,
       m.comment_sent_at IS NOT NULL AND m.comment_id IS NULL AS comment_unanswered,
       coalesce(extract(epoch FROM m.comment_sent_at + make_interval(secs => %(unanswered_s)s) - clock_timestamp()),
                0)::float8 AS comment_wait_s,
       CASE WHEN m.repairs_since > clock_timestamp() - interval '1 hour' THEN m.repairs ELSE 0 END AS repairs,
       CASE WHEN m.creates_since > clock_timestamp() - interval '1 hour' THEN m.creates ELSE 0 END AS creates,
       extract(epoch FROM clock_timestamp() - m.comment_at)::float8 AS comment_age_s,
       extract(epoch FROM clock_timestamp() - i.triaged_at)::float8 AS triage_age_s
  FROM mirror m JOIN issue i ON i.id = m.issue_id
 WHERE m.issue_id = %(issue_id)s AND m.take_token = %(token)s
"""


async def take_due(
    conn: Connection, forges: Sequence[str], *, by: str, take_s: float, unanswered_s: float
) -> Telling | None:
    """Take one due issue of these forges' tracked repositories for `take_s` seconds; None when there is none."""
    with translate("taking an issue to mirror"):
        cursor = await conn.execute(TAKE_DUE, {"forges": list(forges), "by": by, "take_s": take_s})
        taken = await cursor.fetchone()
        if taken is None:
            return None
        values: dict[str, object] = {"issue_id": taken[0], "token": taken[1], "unanswered_s": unanswered_s}
        async with conn.cursor(row_factory=dict_row) as rows:
            # `changed` is read before the picture: what changes in between is told again, never missed
            row = await (await rows.execute(LOAD_TELLING, values)).fetchone()
    if row is None:
        return None
    shown = await picture(conn, taken[0])
    return Telling(issue_id=taken[0], token=taken[1], picture=shown, **row)


PICTURE = """
SELECT r.forge, r.owner, r.name, i.number, i.url, i.open, i.asked, i.triage_code, i.triage_details, i.labels,
       i.answered_event,
       CASE WHEN isfinite(i.answered_time) THEN i.answered_time END AS answered_time,
       i.children_done, p.number AS plan_number,
       j.id AS job_id, j.kind, j.lane, j.state, j.reason, j.attempts, j.max_attempts, j.question, j.waits_for,
       CASE WHEN isfinite(j.not_before) THEN j.not_before END AS not_before,
       j.pull_request, j.publish_reason, coalesce(j.summary, a.summary) AS summary, j.finished_at,
       a.outcome AS last_outcome, a.reason AS last_reason, a.branch,
       e.details ->> 'error' AS error,
       (SELECT coalesce(jsonb_agg(o.details ORDER BY o.id), '[]') FROM job_event o
         WHERE o.job_id = j.id AND o.what = 'left_open') AS left_open,
       g.gate, g.hold_source, g.hold_reason, g.hold_until, g.hold_by, g.mark AS lane_mark, g.served
  FROM issue i
  JOIN repository r ON r.id = i.repository_id
  LEFT JOIN LATERAL (SELECT * FROM job j WHERE j.issue_id = i.id ORDER BY j.id DESC LIMIT 1) j ON true
  LEFT JOIN LATERAL (
    SELECT * FROM attempt a WHERE a.job_id = j.id AND a.ended_at IS NOT NULL ORDER BY a.claim_no DESC LIMIT 1) a ON true
  LEFT JOIN LATERAL (
    SELECT * FROM job_event e WHERE e.job_id = j.id AND e.to_state = 'failed' ORDER BY e.id DESC LIMIT 1) e ON true
  LEFT JOIN LATERAL (  -- only of a job that waits for its turn: what else is in its way
    SELECT v.gate, v.hold_source, v.hold_reason, v.hold_until, v.hold_by, lane_mark(v.lane) AS mark,
           lane_served(v.lane) AS served
      FROM job_gate v WHERE v.job_id = j.id AND j.state = 'pending') g ON true
  LEFT JOIN child c ON c.issue_id = i.id
  LEFT JOIN issue p ON p.id = c.plan_issue_id
 WHERE i.id = %(issue_id)s
"""
PICTURE_CHILDREN = """
SELECT c.key, c.title, c.kind, c.number, c.proposal, c.depends_on, c.ended_reason
  FROM child c
 WHERE c.plan_issue_id = %(issue_id)s AND (c.ended_at IS NULL OR c.number IS NOT NULL)
 ORDER BY c.job_id, c.position, c.id
"""


async def picture(conn: Connection, issue_id: int) -> Picture:
    """What the rows say of an issue: the one input of its status label, its comment and `explain`'s sentence."""
    with translate(f"reading what is to be told of issue row {issue_id}"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            row = await (await cursor.execute(PICTURE, {"issue_id": issue_id})).fetchone()
            await cursor.execute(PICTURE_CHILDREN, {"issue_id": issue_id})
            children = [
                ChildPicture(**{**each, "kind": Kind(each["kind"]), "depends_on": tuple(each["depends_on"])})
                async for each in cursor
            ]
    if row is None:
        raise NotKnown(f"no issue has the row number {issue_id}")
    return Picture(
        repo=RepoRef(row["forge"], row["owner"], row["name"]),
        number=row["number"],
        url=row["url"],
        open=row["open"],
        asked=row["asked"],
        triage_code=row["triage_code"],
        triage_details=row["triage_details"],
        labels=tuple(Label(each["id"], each["name"]) for each in row["labels"]),
        answered_event=row["answered_event"],
        answered_time=row["answered_time"],
        plan_number=row["plan_number"],
        children_done=row["children_done"],
        children=tuple(children),
        job=_job(row) if row["job_id"] is not None else None,
    )


def _job(row: dict[str, Any]) -> JobPicture:
    return JobPicture(
        id=row["job_id"],
        kind=Kind(row["kind"]),
        lane=row["lane"],
        state=State(row["state"]),
        reason=row["reason"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        question=row["question"],
        waits_for=tuple(row["waits_for"]),
        not_before=row["not_before"],
        pull_request=row["pull_request"],
        publish_reason=row["publish_reason"],
        summary=row["summary"],
        last_outcome=row["last_outcome"],
        last_reason=row["last_reason"],
        branch=row["branch"],
        error=row["error"],
        left_open=tuple((each["number"], each["pull"]) for each in row["left_open"]),
        gate=_gate(row),
        lane_mark=row["lane_mark"],
    )


def _gate(row: dict[str, Any]) -> tuple[str, dict[str, object]] | None:
    """What keeps the whole lane from starting anything; that others go first is no news."""
    lane = {"lane": row["lane"]}
    if row["gate"] == "lane_held":
        said = {"source": row["hold_source"], "reason": row["hold_reason"], "by": row["hold_by"]}
        return "lane_held", lane | said | {"until": shown_time(row["hold_until"]) if row["hold_until"] else None}
    if row["gate"] == "lane_not_configured":
        return "lane_not_configured", {**lane}
    return ("no_runner", {**lane}) if row["served"] is False else None


RENEW_TELLING = """
UPDATE mirror SET take_until = clock_timestamp() + make_interval(secs => %(take_s)s),
                  comment_at = CASE WHEN %(editing)s::boolean THEN clock_timestamp() ELSE comment_at END
 WHERE issue_id = %(issue_id)s AND take_token = %(token)s
"""


async def renew_telling(conn: Connection, telling: Telling, *, take_s: float, editing: bool = False) -> bool:
    """Keep the take for another `take_s` seconds; False when it is lost. `editing`: the comment, in the next moment."""
    return await _one(conn, RENEW_TELLING, telling, take_s=take_s, editing=editing)


PACE = """
UPDATE mirror SET paced = %(changed)s, paced_until = clock_timestamp() + make_interval(secs => %(wait_s)s),
                  failures = 0, error = NULL, take_token = NULL, take_by = NULL, take_until = NULL
 WHERE issue_id = %(issue_id)s AND take_token = %(token)s
"""


async def pace(conn: Connection, telling: Telling, *, wait_s: float) -> bool:
    """Give the take back with the comment unwritten: it is due in `wait_s` seconds, or when something changes."""
    return await _one(conn, PACE, telling, changed=telling.changed, wait_s=wait_s)


COMMENT_SENT = """
UPDATE mirror
   SET comment_sent_at = clock_timestamp(), comment_at = clock_timestamp(),
       take_until = clock_timestamp() + make_interval(secs => %(take_s)s),
       creates = once_more(CASE WHEN creates_since > clock_timestamp() - interval '1 hour' THEN creates ELSE 0 END),
       creates_since = CASE WHEN creates_since > clock_timestamp() - interval '1 hour' THEN creates_since
                            ELSE clock_timestamp() END
 WHERE issue_id = %(issue_id)s AND take_token = %(token)s
"""


async def comment_sent(conn: Connection, telling: Telling, *, take_s: float) -> bool:
    """Record that the create of the comment is about to be sent; False when the take is lost."""
    return await _one(conn, COMMENT_SENT, telling, take_s=take_s)


COMMENT_REFUSED = """
UPDATE mirror SET comment_sent_at = NULL WHERE issue_id = %(issue_id)s AND take_token = %(token)s
"""


async def comment_refused(conn: Connection, telling: Telling) -> bool:
    """Record that the create was answered with a no: there is nothing to look for."""
    return await _one(conn, COMMENT_REFUSED, telling)


COMMENT_MADE = """
UPDATE mirror SET comment_id = %(comment_id)s, comment_sent_at = NULL
 WHERE issue_id = %(issue_id)s AND take_token = %(token)s
"""


async def comment_made(conn: Connection, telling: Telling, comment_id: int | None) -> bool:
    """Record the comment that was created or found (None: the one recorded is gone)."""
    return await _one(conn, COMMENT_MADE, telling, comment_id=comment_id)


TOLD = """
UPDATE mirror
   SET told = greatest(told, %(changed)s), told_status = %(status)s, told_comment = %(comment)s,
       told_at = clock_timestamp(), not_before = '-infinity', failures = 0, error = %(error)s,
       repairs = CASE WHEN repairs_since > clock_timestamp() - interval '1 hour' THEN repairs ELSE 0 END
                 + %(repaired)s::int,
       repairs_since = CASE WHEN repairs_since > clock_timestamp() - interval '1 hour' THEN repairs_since
                            ELSE clock_timestamp() END,
       contested = %(contested)s, told_gate = %(gate)s, take_token = NULL, take_by = NULL, take_until = NULL
 WHERE issue_id = %(issue_id)s AND take_token = %(token)s
"""


async def told(
    conn: Connection,
    telling: Telling,
    *,
    status: str | None,
    comment: str | None,
    repaired: bool = False,
    contested: bool = False,
    error: str | None = None,
) -> bool:
    """Record what the forge shows now; the issue is due again only if it changed since it was taken."""
    values = {
        "changed": telling.changed,
        "status": status,
        "comment": comment,
        "repaired": repaired,
        "contested": contested,
        "error": error,
        "gate": telling.picture.job.lane_mark if telling.picture.job is not None else None,
    }
    return await _one(conn, TOLD, telling, **values)


PUT_OFF = """
UPDATE mirror
   SET not_before = clock_timestamp() + make_interval(secs => %(wait_s)s), failures = %(failures)s, error = %(error)s,
       take_token = NULL, take_by = NULL, take_until = NULL
 WHERE issue_id = %(issue_id)s AND take_token = %(token)s
"""


async def put_off(conn: Connection, telling: Telling, *, wait_s: float, failures: int, error: str | None) -> bool:
    """Give the take back untold; the issue is due again in `wait_s` seconds."""
    return await _one(conn, PUT_OFF, telling, wait_s=wait_s, failures=failures, error=error)


async def _one(conn: Connection, statement: LiteralString, telling: Telling, **values: object) -> bool:
    values |= {"issue_id": telling.issue_id, "token": telling.token}
    with translate(f"recording what was told of {telling.picture.repo}#{telling.picture.number}"):
        return (await conn.execute(statement, values)).rowcount == 1


TRY_LABEL_LOCK = "SELECT pg_try_advisory_lock(hashtextextended(%(key)s, 7))"
LABEL_UNLOCK = "SELECT pg_advisory_unlock(hashtextextended(%(key)s, 7))"


@asynccontextmanager
async def labels_locked(conn: Connection, repo: RepoRef, *, wait_s: float = 60.0) -> AsyncIterator[None]:
    """Hold the lock under which labels of a repository are created: the forge takes one name any number of times.

    A lock of the session, since the forge is asked under it; `conn` serves nothing else meanwhile.
    StoreUnavailable when another process holds it for longer than `wait_s`.
    """
    key = {"key": f"labels of {repo.forge}:{repo.path.casefold()}"}
    deadline = time.monotonic() + wait_s
    with translate(f"taking the label lock of {repo}"):
        while not await _true(conn, TRY_LABEL_LOCK, key):
            if time.monotonic() >= deadline:
                raise StoreUnavailable(f"another process has been creating labels of {repo} for {wait_s:.0f} s")
            await asyncio.sleep(_LOCK_POLL_S)
    try:
        yield
    finally:
        try:
            await conn.execute(LABEL_UNLOCK, key)
        except BaseException:
            await conn.close()  # the lock goes with the session, never back into the pool
            raise


async def _true(conn: Connection, statement: LiteralString, values: dict[str, str]) -> bool:
    row = await (await conn.execute(statement, values)).fetchone()
    return bool(row and row[0])
