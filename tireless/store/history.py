"""What a runner asks about its job beside the claim: what the request is called for good, how the last attempt ended,
what people answered, where the repository is now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tireless.errors import StoreError
from tireless.store.db import Connection, translate

PREVIOUS_MAX = 8_000
"""Characters of each of the last attempt's own texts."""


@dataclass(frozen=True, slots=True)
class Said:
    """One comment; `at` by the forge's clock."""

    login: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Recall:
    """`request` names the request by what the forge knows of it: the same after a database was lost or restored."""

    request: str
    previous: str | None
    """How the last attempt ended that tells an agent something, in its own words; None: there was none."""
    answers: tuple[Said, ...]
    """What people who count said to the question, oldest first."""


# Of the job, or of the ended one that it runs again. What the runner did to an attempt (stopped it, lost it, could not
# start it) teaches the next agent nothing; the attempt that asks has not ended and is not among them.
RECALL = """
SELECT r.forge_repo_id, i.number, q.source, q.event_id, q.asked_time, a.outcome, a.reason, a.summary
  FROM job j
  JOIN request q ON q.id = j.request_id
  JOIN issue i ON i.id = j.issue_id
  JOIN repository r ON r.id = j.repository_id
  LEFT JOIN LATERAL (
    SELECT p.outcome, p.reason, p.summary FROM attempt p
     WHERE p.job_id = ANY (ARRAY[j.id, j.rerun_of])
       AND p.outcome IN ('done', 'no_change', 'needs_input', 'blocked', 'retry', 'failed', 'agent_error', 'no_evidence',
                         'protocol_error', 'timeout', 'stalled', 'over_budget')
     ORDER BY p.id DESC LIMIT 1) a ON true
 WHERE j.id = %(job_id)s::bigint
"""


ANSWERS = """
SELECT a.login, a.at, a.text FROM answer a JOIN job j ON a.job_id = ANY (ARRAY[j.id, j.rerun_of])
 WHERE j.id = %(job_id)s::bigint
 ORDER BY a.at, a.comment_id
"""


async def recall(conn: Connection, job_id: int) -> Recall:
    """What went before the attempt that this job is at now."""
    with translate(f"reading what went before in job {job_id}"):
        row = await (await conn.execute(RECALL, {"job_id": job_id})).fetchone()
        answers = await (await conn.execute(ANSWERS, {"job_id": job_id})).fetchall()
    if row is None:
        raise StoreError(f"reading what went before in job {job_id}: there is no such job any more")
    forge_repo_id, number, source, event_id, asked_time, outcome, reason, summary = row
    return Recall(
        request=_request(forge_repo_id, number, source, event_id, asked_time),
        previous=_previous(outcome, reason, summary) if outcome else None,
        answers=tuple(Said(*answer) for answer in answers),
    )


def _request(repository: int, number: int, source: str, event_id: int | None, asked: datetime) -> str:
    """One printable line. No `#`: a commit that carries it must not refer to an issue."""
    where = f"repository={repository} issue={number}"
    when = asked.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    match source:
        case "label":
            return f"{where} label={event_id} at={when}"
        case "child":  # one for ever, and its time is our own
            return f"{where} child"
        case _:
            return f"{where} {source} at={when}"


def _previous(outcome: str, reason: str | None, summary: str | None) -> str:
    said = f"{outcome}: {(reason or 'no reason was given')[:PREVIOUS_MAX]}"
    return f"{said}\n\n{summary[:PREVIOUS_MAX]}" if summary else said


# Whose claim it is does not matter: nothing is written, and the push itself is checked.
CLONE_URL = "SELECT r.clone_url FROM job j JOIN repository r ON r.id = j.repository_id WHERE j.id = %(job_id)s::bigint"


async def clone_url(conn: Connection, job_id: int) -> str:
    """Where the job's repository is fetched from and pushed to, as the poller saw it last: it may have been renamed."""
    with translate(f"reading where the repository of job {job_id} is"):
        row = await (await conn.execute(CLONE_URL, {"job_id": job_id})).fetchone()
    if row is None:
        raise StoreError(f"reading where the repository of job {job_id} is: there is no such job any more")
    return str(row[0])
