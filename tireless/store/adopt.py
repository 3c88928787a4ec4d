"""Hands what an earlier attempt of the same request pushed to the attempt that would pay for it again; moves no job.

The caller has found the branches and read their trailers; only the rows say which of them count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from psycopg.rows import dict_row

from tireless.store.db import Connection, jsonb, transaction, translate
from tireless.store.lanes import JOIN_IN
from tireless.store.record import Answer


@dataclass(frozen=True, slots=True)
class Offer:
    """A branch of ours (its name ends in 8 hex digits) that answers the request by its trailer, and its commit."""

    branch: str
    commit: str


@dataclass(frozen=True, slots=True)
class Adopted:
    """What the attempt delivers instead of running an agent. `claim_no` None: the record of that attempt was lost."""

    branch: str
    commit: str
    claim_no: int | None
    summary: str


# Locks the job, so that no sweep comes between the fence and what is written behind it.
FENCE_ADOPTER = """
SELECT a.id AS attempt_id, a.branch, a.commit_sha
  FROM job j JOIN attempt a ON a.job_id = j.id AND a.claim_no = j.claim_no
 WHERE j.id = %(job_id)s::bigint AND j.claim_token = %(token)s::uuid AND j.state = 'claimed'
   FOR NO KEY UPDATE OF j
"""
# A branch counts when an attempt of this job recorded just this commit for it under its lease, or when no attempt is
# known that could have made it: then its record was lost with the database. An attempt that is known and recorded
# nothing had lost its claim. What people said since (another text, an answer) is an agent's to read.
CHOOSE = """
WITH offered AS (
  SELECT o.branch, o.commit_sha, o.place, right(o.branch, 8) AS uid8
    FROM unnest(%(branches)s::text[], %(commits)s::text[]) WITH ORDINALITY AS o (branch, commit_sha, place)
)
SELECT o.branch, o.commit_sha, a.id AS attempt_id, a.claim_no
  FROM offered o
  LEFT JOIN attempt a ON a.job_id = %(job_id)s::bigint AND a.id <> %(mine)s::bigint AND a.recorded_at IS NOT NULL
                     AND a.branch = o.branch AND a.commit_sha = o.commit_sha AND left(a.uid::text, 8) = o.uid8
 WHERE CASE WHEN a.id IS NULL
            THEN NOT EXISTS (  -- a range, which the index on uid serves
              SELECT FROM attempt k WHERE k.uid BETWEEN (o.uid8 || '-0000-0000-0000-000000000000')::uuid
                                                    AND (o.uid8 || '-ffff-ffff-ffff-ffffffffffff')::uuid)
            ELSE NOT EXISTS (
              SELECT FROM job_event e WHERE e.job_id = a.job_id AND e.what = 'edited' AND e.at > a.claimed_at)
             AND NOT EXISTS (
              SELECT FROM attempt q WHERE q.job_id = a.job_id AND q.claim_no > a.claim_no AND q.outcome = 'needs_input')
       END
   AND NOT EXISTS (  -- adopted before, and the publisher did not find it all the same: not again and again
     SELECT FROM attempt b WHERE b.job_id = %(job_id)s::bigint AND b.id <> %(mine)s::bigint AND b.branch = o.branch
                             AND left(b.uid::text, 8) <> o.uid8)
 ORDER BY a.claim_no DESC NULLS LAST, o.place
 LIMIT 1
"""
# With a lost record the pull request may have been made as well: as if its create had just been sent, the publisher
# waits and looks, also among the closed ones.
ADOPT = """
UPDATE attempt m
   SET recorded_at = clock_timestamp(), pushed_at = clock_timestamp(), commit_sha = %(commit_sha)s, branch = %(branch)s,
       result = coalesce(a.result, %(result)s::jsonb), summary = coalesce(a.summary, ''), base_sha = a.base_sha,
       pr_title = a.pr_title, pr_body = a.pr_body, pr_draft = coalesce(a.pr_draft, false),
       pr_sent_at = CASE WHEN a.id IS NULL THEN clock_timestamp() ELSE a.pr_sent_at END
  FROM (SELECT %(of)s::bigint AS id) work LEFT JOIN attempt a ON a.id = work.id
 WHERE m.id = %(mine)s::bigint
RETURNING m.summary
"""
TELL_ADOPTED = """
INSERT INTO job_event (job_id, who, what, from_state, to_state, details)
SELECT j.id, 'runner ' || j.claimed_by, 'adopt', 'claimed', 'claimed', %(details)s::jsonb
  FROM job j WHERE j.id = %(job_id)s::bigint
"""


async def adopt(
    conn: Connection, job_id: int, token: UUID, offers: Sequence[Offer]
) -> Adopted | Literal[Answer.LOST] | None:
    """Record one of `offers` (the newest first) as this attempt's result, pushed already; the job stays claimed.

    None: none of them counts, run the agent. LOST: the claim is not ours, nothing was written. May be repeated.
    """
    doing = f"adopting the pushed work of job {job_id}"
    fence = {"job_id": job_id, "token": token}
    with translate(doing):
        async with transaction(conn, doing), conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(JOIN_IN)
            mine = await (await cursor.execute(FENCE_ADOPTER, fence)).fetchone()
            if mine is None:
                return Answer.LOST
            values = {
                "job_id": job_id,
                "mine": mine["attempt_id"],
                "branches": [offer.branch for offer in offers],
                "commits": [offer.commit for offer in offers],
            }
            chosen = await (await cursor.execute(CHOOSE, values)).fetchone()
            if chosen is None:
                return None
            given = {
                "mine": mine["attempt_id"],
                "of": chosen["attempt_id"],
                "branch": chosen["branch"],
                "commit_sha": chosen["commit_sha"],
                "result": jsonb({"outcome": "done"}),
            }
            adopted = await (await cursor.execute(ADOPT, given)).fetchone()
            made = Adopted(
                chosen["branch"], chosen["commit_sha"], chosen["claim_no"], adopted["summary"] if adopted else ""
            )
            if (mine["branch"], mine["commit_sha"]) != (made.branch, made.commit):  # else: the reply was lost
                details = {"branch": made.branch, "commit": made.commit, "of_claim": made.claim_no}
                await cursor.execute(TELL_ADOPTED, {"job_id": job_id, "details": jsonb(details)})
    return made
