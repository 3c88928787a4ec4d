"""Read-only questions about jobs: lists, one job whole, events, what an agent printed. Locks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, TypeVar

from psycopg.rows import class_row

from tireless.errors import NotKnown
from tireless.store.db import Connection, translate

T = TypeVar("T")

LIVE = frozenset({"pending", "waiting", "claimed", "publishing"})


async def rows_of(conn: Connection, kind: type[T], statement: LiteralString, doing: str, **values: object) -> list[T]:
    """The rows of a question, as values of `kind`."""
    with translate(doing):
        async with conn.cursor(row_factory=class_row(kind)) as cursor:
            return await (await cursor.execute(statement, values)).fetchall()


SEVERAL_FORGES = "SELECT count(*) > 1 FROM forge"


async def several_forges(conn: Connection) -> bool:
    """Must an issue's name say of which forge it is?"""
    with translate("counting the forges"):
        row = await (await conn.execute(SEVERAL_FORGES)).fetchone()
    return bool(row and row[0])


@dataclass(frozen=True, slots=True)
class ChildOf:
    """A plan's child or a discovery's proposal, in the plan's order; `number` None: not created (yet)."""

    plan: int
    key: str
    title: str
    kind: str
    lane: str | None
    proposal: bool
    depends_on: list[str]
    number: int | None
    ended_reason: str | None
    job_id: int | None
    state: str | None


CHILDREN = """
SELECT p.number AS plan, c.key, c.title, c.kind, c.lane, c.proposal, c.depends_on, c.number, c.ended_reason,
       j.id AS job_id, j.state
  FROM child c
  JOIN issue p ON p.id = c.plan_issue_id
  JOIN repository r ON r.id = p.repository_id
  LEFT JOIN LATERAL (SELECT b.id, b.state FROM job b WHERE b.issue_id = c.issue_id ORDER BY b.id DESC LIMIT 1) j ON true
 WHERE (%(job_id)s::bigint IS NULL OR c.job_id = %(job_id)s)
   AND (%(repo)s::text IS NULL OR lower(r.owner || '/' || r.name) = lower(%(repo)s))
   AND (%(number)s::int IS NULL OR p.number = %(number)s)
 ORDER BY p.id, c.position, c.id
"""


async def children_of(conn: Connection, repo: str, number: int) -> list[ChildOf]:
    """The children of a plan's issue."""
    doing = f"reading the children of {repo}#{number}"
    return await rows_of(conn, ChildOf, CHILDREN, doing, job_id=None, repo=repo, number=number)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with the issue it is of. `parent` is the number of the plan whose child that issue is; `asked_by` who
    asked, by which `source`; `runs` its attempts that were not given back, and what all of them said they used;
    `spent_usd` of that since a person last acted, of `max_usd` that its lane allows."""

    id: int
    forge: str
    repo: str
    number: int
    title: str
    url: str
    kind: str
    lane: str
    state: str
    reason: str | None
    priority: int
    attempts: int
    max_attempts: int
    created_at: datetime
    claimed_at: datetime | None
    claimed_by: str | None
    claimed_host: str | None
    claim_expires_at: datetime | None
    not_before: datetime | None
    waits_for: list[str]
    question: str | None
    cancel_requested: str | None
    publish_reason: str | None
    pull_request: int | None
    summary: str | None
    rerun_of: int | None
    finished_at: datetime | None
    parent: int | None
    source: str
    asked_by: str
    runs: int
    input_tokens: int | None
    output_tokens: int | None
    usd: float | None
    spent_usd: float
    max_usd: float | None


# What both lists show, and what they are filtered by.
JOB_ROWS = """
SELECT j.id, r.forge, r.owner || '/' || r.name AS repo, i.number, i.title, i.url, j.kind, j.lane, j.state, j.reason,
       j.priority, j.attempts, j.max_attempts, j.created_at, j.claimed_at, j.claimed_by, j.claimed_host,
       j.claim_expires_at, j.not_before, j.waits_for, j.question, j.cancel_requested, j.publish_reason, j.pull_request,
       j.summary, j.rerun_of, j.finished_at, q.source, q.actor_login AS asked_by,
       u.runs, u.input_tokens, u.output_tokens, u.usd, j.spent_usd::float8 AS spent_usd, l.max_usd::float8 AS max_usd,
       (SELECT p.number FROM child c JOIN issue p ON p.id = c.plan_issue_id WHERE c.issue_id = i.id) AS parent
  FROM job j
  JOIN issue i ON i.id = j.issue_id
  JOIN repository r ON r.id = j.repository_id
  JOIN request q ON q.id = j.request_id
  JOIN lane l ON l.name = j.lane
 CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE a.burned IS NOT FALSE) AS runs,
           sum((a.usage ->> 'input_tokens')::numeric)::bigint AS input_tokens,
           sum((a.usage ->> 'output_tokens')::numeric)::bigint AS output_tokens,
           sum((a.usage ->> 'usd')::numeric)::float8 AS usd
      FROM attempt a WHERE a.job_id = j.id) u
 WHERE (%(states)s::text[] = '{}' OR j.state = ANY (%(states)s::text[]))
   AND (%(lane)s::text IS NULL OR j.lane = %(lane)s)
   AND (%(forge)s::text IS NULL OR r.forge = %(forge)s)
   AND (%(repo)s::text IS NULL OR lower(r.owner || '/' || r.name) = lower(%(repo)s))
   AND (%(number)s::int IS NULL OR i.number = %(number)s)
   AND (%(before_id)s::bigint IS NULL OR j.id < %(before_id)s)
"""
# By the predicate of one_live_job_per_issue, so that no history is walked.
LIVE_JOBS = (
    JOB_ROWS
    + """
   AND j.state IN ('pending', 'waiting', 'claimed', 'publishing')
 ORDER BY j.id DESC LIMIT %(limit)s::int
"""
)
ALL_JOBS = (
    JOB_ROWS
    + """
   AND (%(id)s::bigint IS NULL OR j.id = %(id)s)
 ORDER BY j.id DESC LIMIT %(limit)s::int
"""
)


async def job_rows(
    conn: Connection,
    *,
    states: Sequence[str] = (),
    lane: str | None = None,
    forge: str | None = None,
    repo: str | None = None,
    number: int | None = None,
    before_id: int | None = None,
    limit: int = 50,
) -> list[JobRow]:
    """Jobs, newest first; filters that are not given match all. `before_id`: the page after that job."""
    values = {
        "states": list(states),
        "lane": lane,
        "forge": forge,
        "repo": repo,
        "number": number,
        "before_id": before_id,
        "limit": limit,
    }
    if states and set(states) <= LIVE:
        return await rows_of(conn, JobRow, LIVE_JOBS, "listing jobs", **values)
    return await rows_of(conn, JobRow, ALL_JOBS, "listing jobs", **values, id=None)


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One claim of a job and how it ended; `number` counts the attempts that burn, as of this claim."""

    id: int
    claim_no: int
    number: int
    lane: str
    runner: str
    host: str
    claimed_at: datetime
    ended_at: datetime | None
    outcome: str | None
    burned: bool | None
    reason: str | None
    summary: str | None
    exit_code: int | None
    usage: dict[str, object] | None
    branch: str | None
    commit_sha: str | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """What happened to a job: who, which transition or act, from which state to which, why."""

    id: int
    job_id: int
    forge: str
    repo: str
    issue: int
    at: datetime
    who: str
    what: str
    from_state: str | None
    to_state: str
    reason: str | None
    details: dict[str, object]


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with its attempts, its events and what became of its children, each oldest first."""

    job: JobRow
    attempts: list[AttemptRow]
    events: list[EventRow]
    children: list[ChildOf]


ATTEMPTS = """
SELECT a.id, a.claim_no, a.number, a.lane, a.runner, a.host, a.claimed_at, a.ended_at, a.outcome, a.burned, a.reason,
       a.summary, a.exit_code, a.usage, a.branch, a.commit_sha
  FROM attempt a WHERE a.job_id = %(job_id)s ORDER BY a.claim_no
"""


async def job_detail(conn: Connection, job_id: int) -> JobDetail:
    """Everything about one job. NotKnown when there is none."""
    filters = dict.fromkeys(("lane", "forge", "repo", "number", "before_id"))
    doing = f"reading job {job_id}"
    found = await rows_of(conn, JobRow, ALL_JOBS, doing, **filters, states=[], limit=1, id=job_id)
    if not found:
        raise NotKnown(f"there is no job {job_id}: see `tireless jobs ls`")
    attempts = await rows_of(conn, AttemptRow, ATTEMPTS, doing, job_id=job_id)
    events = await event_rows(conn, job_id=job_id, limit=1000)
    children = await rows_of(conn, ChildOf, CHILDREN, doing, job_id=job_id, repo=None, number=None)
    return JobDetail(found[0], attempts, events, children)


EVENTS_OF_JOB = """
SELECT e.id, e.job_id, r.forge, r.owner || '/' || r.name AS repo, i.number AS issue, e.at, e.who, e.what, e.from_state,
       e.to_state, e.reason, e.details
  FROM job_event e
  JOIN job j ON j.id = e.job_id
  JOIN issue i ON i.id = j.issue_id
  JOIN repository r ON r.id = j.repository_id
 WHERE e.job_id = %(job_id)s AND e.id > %(after_id)s ORDER BY e.id LIMIT %(limit)s::int
"""
# The last of them, then in order: a follower passes the id he has seen last.
EVENTS = """
SELECT l.id, l.job_id, r.forge, r.owner || '/' || r.name AS repo, i.number AS issue, l.at, l.who, l.what, l.from_state,
       l.to_state, l.reason, l.details
  FROM (SELECT e.* FROM job_event e WHERE e.id > %(after_id)s ORDER BY e.id DESC LIMIT %(limit)s::int) l
  JOIN job j ON j.id = l.job_id
  JOIN issue i ON i.id = j.issue_id
  JOIN repository r ON r.id = j.repository_id
 ORDER BY l.id
"""


async def event_rows(
    conn: Connection, *, job_id: int | None = None, after_id: int = 0, limit: int = 100
) -> list[EventRow]:
    """Events after `after_id`, oldest first: of one job its first, of all jobs the last `limit`."""
    statement = EVENTS if job_id is None else EVENTS_OF_JOB
    return await rows_of(conn, EventRow, statement, "reading events", job_id=job_id, after_id=after_id, limit=limit)


@dataclass(frozen=True, slots=True)
class Output:
    """What an agent printed: head and tail once it ended, else the chunks since `seq`."""

    attempt_id: int
    claim_no: int
    ended: bool
    head: str | None
    tail: str | None
    chunks: list[str]
    seq: int


OUTPUT = """
SELECT a.id AS attempt_id, a.claim_no, a.ended_at IS NOT NULL AS ended, a.output_head AS head, a.output_tail AS tail,
       coalesce(o.chunks, '{}') AS chunks, coalesce(o.seq, %(after)s::int) AS seq
  FROM attempt a
  LEFT JOIN LATERAL (
    SELECT array_agg(c.text ORDER BY c.seq) AS chunks, max(c.seq) AS seq
      FROM output_chunk c WHERE c.attempt_id = a.id AND c.seq > %(after)s::int) o ON true
 WHERE a.job_id = %(job_id)s AND (%(claim_no)s::bigint IS NULL OR a.claim_no = %(claim_no)s)
 ORDER BY a.claim_no DESC LIMIT 1
"""


async def attempt_output(
    conn: Connection, job_id: int, *, claim_no: int | None = None, after: int = -1
) -> Output | None:
    """Output of the job's last attempt (or that of `claim_no`), live chunks after number `after`; None: never run."""
    found = await rows_of(
        conn, Output, OUTPUT, f"reading the output of job {job_id}", job_id=job_id, claim_no=claim_no, after=after
    )
    return found[0] if found else None
