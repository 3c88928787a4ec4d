"""A runner's writes while it works, each fenced by the claim token: live output, the recorded result, the push.

Moves no job: see settle.py. What a late or repeated write met is a value (Answer), never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tireless.domain.job import Kind
from tireless.store.db import Connection, clean_text, jsonb, transaction, translate
from tireless.store.lanes import JOIN_IN


class Answer(StrEnum):
    """What a fenced write came to."""

    DONE = "done"
    ALREADY = "already"
    """This was written before; the reply to its commit was lost."""
    LOST = "lost"
    """The claim is not ours any more; nothing was written."""


# ------------------------------------------------------------------------------------------------ output

OUTPUT_KEPT = 1024 * 1024
"""Bytes of live output kept for an attempt; older chunks go."""

_CHUNK = 16_000
"""Characters of a chunk: at most 64,000 bytes, within CHECK chunk_bounded."""

# Locks the job, so that no sweep comes between the fence and what is written behind it.
FENCE = """
SELECT a.id, j.issue_id, a.pushed_at IS NOT NULL
  FROM job j JOIN attempt a ON a.job_id = j.id AND a.claim_no = j.claim_no
 WHERE j.id = %(job_id)s::bigint AND j.claim_token = %(token)s::uuid AND j.state = 'claimed'
   FOR NO KEY UPDATE OF j
"""
FENCE_ATTEMPT = """
SELECT a.id FROM attempt a JOIN job j ON j.id = a.job_id AND j.claim_no = a.claim_no
 WHERE a.id = %(attempt_id)s::bigint AND j.claim_token = %(token)s::uuid AND j.state = 'claimed'
   FOR NO KEY UPDATE OF j
"""
APPEND = """
WITH last AS (
  SELECT coalesce(max(o.seq), 0) AS seq FROM output_chunk o WHERE o.attempt_id = %(attempt_id)s::bigint
), kept AS (
  SELECT o.seq, sum(octet_length(o.text)) OVER (ORDER BY o.seq DESC) AS bytes
    FROM output_chunk o WHERE o.attempt_id = %(attempt_id)s::bigint
), dropped AS (
  DELETE FROM output_chunk o USING kept k
   WHERE o.attempt_id = %(attempt_id)s::bigint AND o.seq = k.seq AND k.bytes > %(kept)s::int - %(new)s::int
)
INSERT INTO output_chunk (attempt_id, seq, text)
SELECT %(attempt_id)s::bigint, last.seq + piece.n, piece.text
  FROM last, unnest(%(pieces)s::text[]) WITH ORDINALITY AS piece (text, n)
"""


async def append_output(conn: Connection, attempt_id: int, token: UUID, text: str) -> bool:
    """Add to the live output of a running attempt and drop what exceeds OUTPUT_KEPT. False: the claim is lost."""
    text = clean_text(text)[-OUTPUT_KEPT // 4 :]
    if not text:
        return True
    pieces = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    values = {"attempt_id": attempt_id, "token": token, "pieces": pieces, "kept": OUTPUT_KEPT}
    doing = f"storing output of attempt {attempt_id}"
    with translate(doing):
        async with transaction(conn, doing):
            if not await (await conn.execute(FENCE_ATTEMPT, values)).fetchone():
                return False
            await conn.execute(APPEND, {**values, "new": len(text.encode())})
    return True


NOTE_USAGE = """
UPDATE attempt a SET usage = %(usage)s::jsonb
  FROM job j
 WHERE a.id = %(attempt_id)s::bigint AND j.id = a.job_id AND j.claim_no = a.claim_no AND j.claim_token = %(token)s::uuid
   AND j.state = 'claimed' AND a.ended_at IS NULL
"""


async def note_usage(conn: Connection, attempt_id: int, token: UUID, usage: Mapping[str, object]) -> bool:
    """Note what a running attempt has used so far, for the sweep should its runner die. False: the claim is lost."""
    with translate(f"noting the usage of attempt {attempt_id}"):
        values = {"attempt_id": attempt_id, "token": token, "usage": jsonb(dict(usage))}
        return (await conn.execute(NOTE_USAGE, values)).rowcount == 1


# ------------------------------------------------------------------------------------------------ result


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChild:
    """A child issue to create. `depends_on` names keys of the same plan; `proposal`: of a discovery, never opted in."""

    key: str
    title: str
    body: str
    kind: Kind
    lane: str | None = None
    depends_on: tuple[str, ...] = ()
    proposal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResult:
    """What a `done` attempt leaves to deliver. `result` is the agent's result, redacted; no commit: nothing to push."""

    result: Mapping[str, object]
    summary: str = ""
    base_sha: str | None = None
    commit_sha: str | None = None
    branch: str | None = None
    pr_title: str | None = None
    pr_body: str | None = None
    pr_draft: bool = False
    children: Sequence[NewChild] = ()


RECORD = """
UPDATE attempt a
   SET recorded_at = clock_timestamp(), result = %(result)s::jsonb, summary = %(summary)s, base_sha = %(base_sha)s,
       commit_sha = %(commit_sha)s, branch = %(branch)s, pr_title = %(pr_title)s, pr_body = %(pr_body)s,
       pr_draft = %(pr_draft)s::boolean,
       pushed_at = CASE WHEN a.commit_sha = %(commit_sha)s AND a.branch = %(branch)s THEN a.pushed_at END
 WHERE a.id = %(attempt_id)s::bigint
"""
# Created or perhaps created children stay: the next plan with their keys adopts them.
DROP_CHILDREN = """
DELETE FROM child c
 WHERE c.job_id = %(job_id)s::bigint AND c.sent_at IS NULL AND c.number IS NULL AND c.ended_at IS NULL
"""
# A key that lives is adopted: by this job, in this place, with its issue. Only what was never sent is reworded.
ADD_CHILD = """
INSERT INTO child (plan_issue_id, job_id, attempt_id, key, position, proposal, title, body, kind, lane, depends_on)
VALUES (%(plan_issue_id)s::bigint, %(job_id)s::bigint, %(attempt_id)s::bigint, %(key)s, %(position)s::int,
        %(proposal)s::boolean, %(title)s, %(body)s, %(kind)s, %(lane)s, %(depends_on)s::text[])
ON CONFLICT (plan_issue_id, key) WHERE ended_at IS NULL DO UPDATE
   SET job_id = EXCLUDED.job_id, attempt_id = EXCLUDED.attempt_id, position = EXCLUDED.position,
       depends_on = EXCLUDED.depends_on, linked_at = NULL,
       title = CASE WHEN child.sent_at IS NULL AND child.number IS NULL THEN EXCLUDED.title ELSE child.title END,
       body = CASE WHEN child.sent_at IS NULL AND child.number IS NULL THEN EXCLUDED.body ELSE child.body END,
       kind = CASE WHEN child.sent_at IS NULL AND child.number IS NULL THEN EXCLUDED.kind ELSE child.kind END,
       lane = CASE WHEN child.sent_at IS NULL AND child.number IS NULL THEN EXCLUDED.lane ELSE child.lane END
"""


async def record_result(conn: Connection, job_id: int, token: UUID, recorded: RecordedResult) -> Answer:
    """Store what is to be delivered; the job stays claimed. A transaction of its own (a savepoint inside one).

    A later record replaces this one whole, but for children that were sent already. From here on an expired lease
    goes to publishing instead of another attempt. DONE or LOST; repeating it is harmless.
    """
    doing = f"recording the result of job {job_id}"
    with translate(doing):
        async with transaction(conn, doing):
            await conn.execute(JOIN_IN)
            row = await (await conn.execute(FENCE, {"job_id": job_id, "token": token})).fetchone()
            if row is None:
                return Answer.LOST
            attempt_id, plan_issue_id, _ = row
            await conn.execute(RECORD, {"attempt_id": attempt_id, **_recorded(recorded)})
            await conn.execute(DROP_CHILDREN, {"job_id": job_id})
            for position, child in enumerate(recorded.children):
                values = {"plan_issue_id": plan_issue_id, "job_id": job_id, "attempt_id": attempt_id}
                await conn.execute(ADD_CHILD, {**values, "position": position, **_child(child)})
    return Answer.DONE


def _recorded(recorded: RecordedResult) -> dict[str, object]:
    return {
        "result": jsonb(dict(recorded.result)),
        "summary": clean_text(recorded.summary),
        "base_sha": recorded.base_sha,
        "commit_sha": recorded.commit_sha,
        "branch": recorded.branch,
        "pr_title": _clean(recorded.pr_title),
        "pr_body": _clean(recorded.pr_body),
        "pr_draft": recorded.pr_draft,
    }


def _child(child: NewChild) -> dict[str, object]:
    return {
        "key": child.key,
        "title": clean_text(child.title),
        "body": clean_text(child.body),
        "kind": child.kind.value,
        "lane": child.lane,
        "depends_on": list(child.depends_on),
        "proposal": child.proposal,
    }


def _clean(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


PUSHED = "UPDATE attempt SET pushed_at = clock_timestamp() WHERE id = %(attempt_id)s::bigint AND commit_sha IS NOT NULL"


async def mark_pushed(conn: Connection, job_id: int, token: UUID) -> Answer:
    """Note that the recorded commit is on the forge; ALREADY when that was noted before."""
    doing = f"noting the push of job {job_id}"
    with translate(doing):
        async with transaction(conn, doing):
            await conn.execute(JOIN_IN)
            row = await (await conn.execute(FENCE, {"job_id": job_id, "token": token})).fetchone()
            if row is None:
                return Answer.LOST
            attempt_id, _, pushed = row
            if pushed:
                return Answer.ALREADY
            await conn.execute(PUSHED, {"attempt_id": attempt_id})
    return Answer.DONE
