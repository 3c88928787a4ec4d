"""Writes what a reading of an issue showed: its row, verdicts, requests, the end of a child. Part of intake."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tireless.domain.case import NEVER, Asked
from tireless.domain.decision import Triage
from tireless.domain.issue import IssueState, Snapshot, TimelineEntry
from tireless.domain.people import Verdict
from tireless.errors import StoreError
from tireless.store.db import Connection, clean_text, jsonb, translate
from tireless.store.known import Known

BODY_MAX = 1_048_576
"""Bytes of a body that are stored; its hash covers all of it."""
ANSWER_MAX = 65_536
"""Bytes of an answer that are stored."""

# The approved text and the marks move only as said; the rest is what the forge shows now.
STORE_ISSUE = """
INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login, open,
                   labels, url, created_at, updated_at, asked_at, settled, counted, asked, triage_code, triage_details,
                   approved_hash, approved_title, approved_body, approved_by, approved_at,
                   answered_event, answered_time)
VALUES (%(repository_id)s, %(number)s, %(forge_issue_id)s, %(title)s, %(body)s, %(content_hash)s, %(author_id)s,
        %(author_login)s, %(open)s, %(labels)s, %(url)s, %(created_at)s, %(updated_at)s, %(asked_at)s, %(settled)s,
        coalesce(%(counted)s::jsonb, '{}'), coalesce(%(asked)s::boolean, false), %(code)s, %(details)s,
        CASE WHEN %(approved_by)s::text IS NOT NULL THEN %(content_hash)s END,
        CASE WHEN %(approved_by)s::text IS NOT NULL THEN %(title)s END,
        CASE WHEN %(approved_by)s::text IS NOT NULL THEN %(body)s END, %(approved_by)s,
        CASE WHEN %(approved_by)s::text IS NOT NULL THEN clock_timestamp() END,
        %(answered_event)s, coalesce(%(answered_time)s::timestamptz, '-infinity'))
ON CONFLICT ON CONSTRAINT issue_once DO UPDATE SET
       title = EXCLUDED.title, body = EXCLUDED.body, content_hash = EXCLUDED.content_hash,
       author_id = EXCLUDED.author_id, author_login = EXCLUDED.author_login, open = EXCLUDED.open,
       labels = EXCLUDED.labels, url = EXCLUDED.url, created_at = EXCLUDED.created_at,
       updated_at = EXCLUDED.updated_at, asked_at = EXCLUDED.asked_at, seen_at = clock_timestamp(),
       settled = EXCLUDED.settled, gone_since = NULL, counted = coalesce(%(counted)s::jsonb, issue.counted),
       asked = coalesce(%(asked)s::boolean, issue.asked), triage_code = EXCLUDED.triage_code,
       triage_details = EXCLUDED.triage_details,
       triaged_at = CASE WHEN issue.triage_code IS DISTINCT FROM EXCLUDED.triage_code THEN clock_timestamp()
                         ELSE issue.triaged_at END,
       approved_hash = coalesce(EXCLUDED.approved_hash, issue.approved_hash),
       approved_title = coalesce(EXCLUDED.approved_title, issue.approved_title),
       approved_body = coalesce(EXCLUDED.approved_body, issue.approved_body),
       approved_by = coalesce(EXCLUDED.approved_by, issue.approved_by),
       approved_at = coalesce(EXCLUDED.approved_at, issue.approved_at),
       answered_event = greatest(issue.answered_event, EXCLUDED.answered_event),
       answered_time = greatest(issue.answered_time, EXCLUDED.answered_time)
RETURNING id
"""
LINK_CHILD = "UPDATE child SET issue_id = %(issue_id)s WHERE id = %(child_id)s AND issue_id IS NULL"


async def store_issue(
    conn: Connection,
    known: Known,
    snapshot: Snapshot,
    asked: Asked | None,
    triage: Triage,
    *,
    asked_at: datetime,
    settled: bool,
) -> int:
    """Write the snapshot and what triage said of it; the issue's row id. `known` was read under the same locks."""
    sure = asked if asked is not None and asked.cannot_tell is None else None
    marks = sure.marks if sure is not None and triage.answers else known.answered
    values = {
        "repository_id": known.repository_id,
        "number": snapshot.number,
        "forge_issue_id": snapshot.issue_id,
        "title": clean_text(snapshot.title),
        "body": bounded(snapshot.body),
        "content_hash": snapshot.content_hash,
        "author_id": snapshot.author.id,
        "author_login": clean_text(snapshot.author.login),
        "open": snapshot.state is IssueState.OPEN,
        "labels": jsonb([{"id": one.id, "name": one.name, "exclusive": one.exclusive} for one in snapshot.labels]),
        "url": clean_text(snapshot.url),
        "created_at": snapshot.created_at,
        "updated_at": snapshot.updated_at,
        "asked_at": asked_at,
        # What could not be told is judged again though nothing moves.
        "settled": settled and (asked is None or sure is not None),
        "counted": jsonb({str(key): role.value for key, role in sure.counted.items()}) if sure is not None else None,
        "asked": triage.asked,
        "code": triage.code,
        "details": jsonb(dict(triage.details)),
        "approved_by": clean_text(sure.approved_by)
        if sure is not None and sure.approved and sure.approved_by
        else None,
        "answered_event": marks.event,
        "answered_time": None if marks.time == NEVER else marks.time,
    }
    with translate(f"storing issue {snapshot.number} of repository {known.repository_id}"):
        row = await (await conn.execute(STORE_ISSUE, values)).fetchone()
        if row is None:
            raise StoreError(f"storing issue {snapshot.number} gave no row")
        if known.child_id is not None:
            await conn.execute(LINK_CHILD, {"issue_id": row[0], "child_id": known.child_id})
    return int(row[0])


def bounded(text: str, limit: int = BODY_MAX) -> str:
    """What is stored of a text: its first `limit` bytes of UTF-8, cut between characters, as Postgres takes them."""
    return clean_text(text).encode()[:limit].decode(errors="ignore")


STORE_VERDICTS = """
INSERT INTO verdict (issue_id, event_id, allowed, reason, actor_id, actor_login, entry_at)
SELECT %(issue_id)s, v.* FROM unnest(%(event_id)s::bigint[], %(allowed)s::boolean[], %(reason)s::text[],
                                     %(actor_id)s::bigint[], %(actor_login)s::text[], %(entry_at)s::timestamptz[]) AS v
ON CONFLICT (issue_id, event_id) DO UPDATE
   SET allowed = EXCLUDED.allowed, reason = EXCLUDED.reason, actor_id = EXCLUDED.actor_id,
       actor_login = EXCLUDED.actor_login, entry_at = EXCLUDED.entry_at, judged_at = clock_timestamp()
 WHERE (verdict.actor_id, verdict.entry_at) IS DISTINCT FROM (EXCLUDED.actor_id, EXCLUDED.entry_at)
"""


async def store_verdicts(conn: Connection, issue_id: int, verdicts: Sequence[Verdict]) -> None:
    """Write yes and no, once per entry; only another entry under the same id replaces one."""
    if not verdicts:
        return
    values = {
        "issue_id": issue_id,
        "event_id": [one.event_id for one in verdicts],
        "allowed": [one.allowed for one in verdicts],
        "reason": [one.reason for one in verdicts],
        "actor_id": [one.actor.id for one in verdicts],
        "actor_login": [clean_text(one.actor.login) for one in verdicts],
        "entry_at": [one.at for one in verdicts],
    }
    with translate(f"storing {len(verdicts)} verdicts"):
        await conn.execute(STORE_VERDICTS, values)


ANSWERS = """
INSERT INTO answer (job_id, comment_id, login, at, text)
SELECT %(job_id)s::bigint, a.comment_id, a.login, a.at, a.text
  FROM unnest(%(comment_id)s::bigint[], %(login)s::text[], %(at)s::timestamptz[], %(text)s::text[])
    AS a (comment_id, login, at, text)
ON CONFLICT (job_id, comment_id) DO UPDATE SET text = EXCLUDED.text
"""


async def store_answers(conn: Connection, job_id: int, answers: Sequence[TimelineEntry]) -> None:
    """Keep what people said to the job's question, for its next agent."""
    if not answers:
        return
    values: dict[str, object] = {
        "job_id": job_id,
        "comment_id": [answer.id for answer in answers],
        "login": [answer.actor.login for answer in answers],
        "at": [answer.at for answer in answers],
        "text": [bounded(answer.body, ANSWER_MAX) for answer in answers],
    }
    with translate(f"storing {len(answers)} answers to job {job_id}"):
        await conn.execute(ANSWERS, values)


NEW_REQUEST = """
INSERT INTO request (issue_id, source, event_id, asked_time, actor_id, actor_login, content_hash)
VALUES (%(issue_id)s, 'label', %(event_id)s, %(asked_time)s, %(actor_id)s, %(actor_login)s, %(content_hash)s)
ON CONFLICT (issue_id, event_id, asked_time) WHERE source = 'label' DO UPDATE SET event_id = EXCLUDED.event_id
RETURNING id
"""


async def new_request(conn: Connection, issue_id: int, snapshot: Snapshot, entry: TimelineEntry) -> int:
    """The request this timeline entry is; the same row when it was written before."""
    values = {
        "issue_id": issue_id,
        "event_id": entry.id,
        "asked_time": entry.at,
        "actor_id": entry.actor.id,
        "actor_login": clean_text(entry.actor.login),
        "content_hash": snapshot.content_hash,
    }
    with translate(f"recording the request of {entry.actor.login}"):
        row = await (await conn.execute(NEW_REQUEST, values)).fetchone()
    if row is None:
        raise StoreError(f"recording the request of {entry.actor.login} gave no row")
    return int(row[0])


REQUEST_ANSWERED = "UPDATE request SET answered_at = clock_timestamp() WHERE id = %(request_id)s"


async def request_answered(conn: Connection, request_id: int) -> None:
    """The job of a plan's request was made: never again, also when that job is pruned."""
    with translate(f"recording that request {request_id} is answered"):
        await conn.execute(REQUEST_ANSWERED, {"request_id": request_id})


# A child ends once; its plan counts it once. The plan's issue is locked, and its kin (lock_kin).
END_CHILD = """
WITH ended AS MATERIALIZED (
  UPDATE child SET ended_at = clock_timestamp(), ended_reason = %(reason)s
   WHERE id = %(child_id)s AND ended_at IS NULL
  RETURNING plan_issue_id
)
SELECT count_children(plan_issue_id), mirror_changed(plan_issue_id) FROM ended
"""


async def end_child(conn: Connection, child_id: int, reason: str) -> None:
    """A child's issue was closed, or is gone."""
    with translate(f"ending child {child_id}"):
        await conn.execute(END_CHILD, {"child_id": child_id, "reason": reason})
