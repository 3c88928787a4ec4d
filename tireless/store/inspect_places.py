"""Read-only questions about issues, repositories, runners, looks, and counts over all. Locks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tireless.store.db import Connection
from tireless.store.inspect_jobs import rows_of

ALIVE_S = 120.0
"""A runner that showed itself within this time is taken for alive; no claim depends on it."""


@dataclass(frozen=True, slots=True)
class IssueRow:
    """An issue as triage last left it; `job_id` and `state` of its newest job."""

    forge: str
    repo: str
    number: int
    title: str
    url: str
    open: bool
    asked: bool
    code: str | None
    details: dict[str, object]
    job_id: int | None
    state: str | None
    reason: str | None
    children_done: int
    seen_at: datetime


# What an operator approved is approved, though triage has not looked again.
ISSUES = """
SELECT r.forge, r.owner || '/' || r.name AS repo, i.number, i.title, i.url, i.open, i.asked,
       CASE WHEN i.triage_code = 'needs_approval' AND i.content_hash = i.approved_hash THEN NULL
            ELSE i.triage_code END AS code,
       i.triage_details AS details, j.id AS job_id, j.state, j.reason, i.children_done, i.seen_at
  FROM issue i
  JOIN repository r ON r.id = i.repository_id
  LEFT JOIN LATERAL (
    SELECT b.id, b.state, b.reason FROM job b WHERE b.issue_id = i.id ORDER BY b.id DESC LIMIT 1) j ON true
 WHERE (%(repo)s::text IS NULL OR lower(r.owner || '/' || r.name) = lower(%(repo)s))
   AND (NOT %(told)s::boolean OR i.asked OR i.triage_code IS NOT NULL OR j.id IS NOT NULL)
 ORDER BY i.id DESC LIMIT %(limit)s::int
"""


async def issue_rows(
    conn: Connection, *, repo: str | None = None, told: bool = True, limit: int = 100
) -> list[IssueRow]:
    """Issues, last stored first; `told`: only those about which there is something to say."""
    return await rows_of(conn, IssueRow, ISSUES, "listing issues", repo=repo, told=told, limit=limit)


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    """A repository, watched or not, with its poll and its jobs counted."""

    id: int
    forge: str
    repo: str
    forge_repo_id: int
    url: str
    source: str
    tracked: bool
    readable: bool
    unreadable_reason: str | None
    default_branch: str
    max_running: int | None
    max_runs_per_day: int | None
    next_poll_at: datetime | None
    full_scan_at: datetime | None
    poll_failures: int
    poll_error: str | None
    searched: bool
    search_fault: str | None
    pending: int
    waiting: int
    claimed: int
    publishing: int


# Where the search for its owner's issues stands in, that search is its poll.
REPOSITORIES = """
SELECT r.id, r.forge, r.owner || '/' || r.name AS repo, r.forge_repo_id, r.html_url AS url, r.source, r.tracked,
       r.readable, r.unreadable_reason, r.default_branch, r.max_running, r.max_runs_per_day,
       nullif(least(r.poll_not_before, o.poll_not_before), '-infinity') AS next_poll_at, r.full_scan_at,
       greatest(r.poll_failures, o.poll_failures) AS poll_failures, coalesce(r.poll_error, o.poll_error) AS poll_error,
       r.searched, r.search_fault,
       coalesce(n.pending, 0) AS pending, coalesce(n.waiting, 0) AS waiting,
       coalesce(n.claimed, 0) AS claimed, coalesce(n.publishing, 0) AS publishing
  FROM repository r
  LEFT JOIN owner_poll o ON r.searched AND o.forge = r.forge AND o.owner = lower(r.owner)
  LEFT JOIN (
    SELECT j.repository_id, count(*) FILTER (WHERE j.state = 'pending') AS pending,
           count(*) FILTER (WHERE j.state = 'waiting') AS waiting,
           count(*) FILTER (WHERE j.state = 'claimed') AS claimed,
           count(*) FILTER (WHERE j.state = 'publishing') AS publishing
      FROM job j WHERE j.state IN ('pending', 'waiting', 'claimed', 'publishing') GROUP BY 1) n
    ON n.repository_id = r.id
 WHERE r.tracked OR %(all)s::boolean
 ORDER BY r.forge, lower(r.owner), lower(r.name), r.id
"""


async def repository_rows(conn: Connection, *, all_known: bool = False) -> list[RepositoryRow]:
    """The watched repositories, or all that are known."""
    return await rows_of(conn, RepositoryRow, REPOSITORIES, "listing repositories", all=all_known)


@dataclass(frozen=True, slots=True)
class RunnerRow:
    """A runner process as it showed itself last; `running` jobs are claimed by it."""

    name: str
    host: str
    pid: int
    lanes: list[str]
    slots: int
    version: str
    started_at: datetime
    seen_at: datetime
    alive: bool
    running: int


# A claim knows its runner's name and host. Of several processes of that name it is of the one that was started last
# before it; a process shows itself beside its first claims, so that these may be a little older.
RUNNERS = """
SELECT u.name, u.host, u.pid, u.lanes, u.slots, u.version, u.started_at, u.seen_at,
       u.seen_at > clock_timestamp() - make_interval(secs => %(alive_s)s::float8) AS alive,
       (SELECT count(*)::int FROM job j
         WHERE j.state = 'claimed' AND j.claimed_by = u.name AND j.claimed_host = u.host
           AND u.uid = (SELECT v.uid FROM runner v WHERE v.name = u.name AND v.host = u.host
                         ORDER BY v.started_at > j.claimed_at, abs(extract(epoch FROM j.claimed_at - v.started_at))
                         LIMIT 1)) AS running
  FROM runner u ORDER BY u.seen_at DESC
"""


async def runner_rows(conn: Connection) -> list[RunnerRow]:
    """The runners that showed themselves lately, the last seen first."""
    return await rows_of(conn, RunnerRow, RUNNERS, "listing runners", alive_s=ALIVE_S)


@dataclass(frozen=True, slots=True)
class LookRow:
    """A look that is not answered yet."""

    repo: str
    number: int
    why: str
    written_at: datetime
    not_before: datetime | None
    failures: int
    error: str | None


LOOKS = """
SELECT r.owner || '/' || r.name AS repo, l.number, l.why, l.written_at,
       CASE WHEN l.not_before > '-infinity' THEN l.not_before END AS not_before, l.failures, l.error
  FROM look l JOIN repository r ON r.id = l.repository_id
 ORDER BY l.failures DESC, l.written_at LIMIT %(limit)s::int
"""


async def look_rows(conn: Connection, *, limit: int = 100) -> list[LookRow]:
    """Looks that wait, those that failed most first."""
    return await rows_of(conn, LookRow, LOOKS, "listing looks", limit=limit)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts over all. Ages in seconds, None where there is nothing to be old."""

    pending: int
    waiting: int
    parked: int
    claimed: int
    publishing: int
    delivered_today: int
    failed_today: int
    cancelled_today: int
    oldest_pending_s: float | None
    oldest_claim_s: float | None
    expired_claims: int
    oldest_publishing_s: float | None
    looks: int
    looks_failing: int
    oldest_look_s: float | None
    mirrors_due: int
    repositories: int
    repositories_failing: int
    repositories_unreadable: int
    runners_alive: int


# Each part walks a partial index or a small table; history is read through job_finished, one day of it.
STATS = """
SELECT n.pending, n.waiting, n.parked, n.claimed, n.publishing, n.oldest_pending_s, n.oldest_claim_s, n.expired_claims,
       n.oldest_publishing_s, d.delivered_today, d.failed_today, d.cancelled_today, l.looks, l.looks_failing,
       l.oldest_look_s, m.mirrors_due, r.repositories, r.repositories_failing, r.repositories_unreadable,
       u.runners_alive
  FROM (SELECT count(*) FILTER (WHERE j.state = 'pending') AS pending,
               count(*) FILTER (WHERE j.state = 'waiting') AS waiting,
               count(*) FILTER (WHERE j.state = 'waiting' AND j.parked IS NOT NULL) AS parked,
               count(*) FILTER (WHERE j.state = 'claimed') AS claimed,
               count(*) FILTER (WHERE j.state = 'publishing') AS publishing,
               extract(epoch FROM clock_timestamp() - min(j.pending_at) FILTER (WHERE j.state = 'pending'))::float8
                 AS oldest_pending_s,
               extract(epoch FROM clock_timestamp() - min(j.claimed_at))::float8 AS oldest_claim_s,
               count(*) FILTER (WHERE j.claim_expires_at < clock_timestamp()) AS expired_claims,
               -- by itself: attempts joined to all of these jobs are read from the first to the last
               (SELECT extract(epoch FROM clock_timestamp() - min(a.ended_at))::float8
                  FROM job o JOIN attempt a ON a.id = o.result_attempt
                 WHERE o.state = 'publishing') AS oldest_publishing_s
          FROM job j
         WHERE j.state IN ('pending', 'waiting', 'claimed', 'publishing')) n,
       (SELECT count(*) FILTER (WHERE j.state = 'delivered') AS delivered_today,
               count(*) FILTER (WHERE j.state = 'failed') AS failed_today,
               count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled_today
          FROM job j WHERE j.finished_at > (SELECT clock_timestamp()) - interval '1 day') d,
       (SELECT count(*) AS looks, count(*) FILTER (WHERE k.failures > 0) AS looks_failing,
               extract(epoch FROM clock_timestamp()
                       - min(k.written_at) FILTER (WHERE k.not_before <= clock_timestamp()))::float8 AS oldest_look_s
          FROM look k JOIN repository p ON p.id = k.repository_id AND p.tracked AND p.readable) l,
       (SELECT count(*) AS mirrors_due FROM mirror w WHERE w.changed > w.told) m,
       (SELECT count(*) AS repositories,
               count(*) FILTER (WHERE p.poll_failures > 0 OR o.poll_failures > 0) AS repositories_failing,
               count(*) FILTER (WHERE NOT p.readable) AS repositories_unreadable
          FROM repository p LEFT JOIN owner_poll o ON p.searched AND o.forge = p.forge AND o.owner = lower(p.owner)
         WHERE p.tracked) r,
       (SELECT count(*) AS runners_alive FROM runner v
         WHERE v.seen_at > clock_timestamp() - make_interval(secs => %(alive_s)s::float8)) u
"""


async def stats(conn: Connection) -> Stats:
    """Counts over everything, cheap enough for a scrape every few seconds."""
    [found] = await rows_of(conn, Stats, STATS, "counting", alive_s=ALIVE_S)
    return found
