"""Rows for measuring tireless: repositories, lanes, jobs to be claimed, claims that expired, a long history."""

from __future__ import annotations

from bench.place import session
from tireless.domain.job import Kind
from tireless.store.db import Connection
from tireless.store.jobs import NewJob
from tireless.store.migrate import migrate

OPEN = "open"
LIMITED = "limited"
LIMIT = 16
"""Of the limited lane, and of a repository: never in the way of 16 workers with one job each."""

REPOSITORIES = 20

ARRANGE = """
INSERT INTO forge (name, url) VALUES ('loop', 'http://127.0.0.1:1')
"""
ARRANGE_REPOSITORIES = """
INSERT INTO repository (forge, forge_repo_id, owner, name, default_branch, clone_url, html_url)
SELECT 'loop', n, 'acme', 'r' || n, 'main', 'http://127.0.0.1:1/acme/r' || n || '.git', 'http://127.0.0.1:1/acme/r' || n
  FROM generate_series(1, %(repositories)s::int) AS n
"""
ARRANGE_LANES = """
INSERT INTO lane (name, position, max_running) VALUES ('open', 0, NULL), ('limited', 1, %(limit)s::int)
"""
LIMIT_ONE = "UPDATE repository SET max_running = %(limit)s::int WHERE forge_repo_id = 1"
LAST_ISSUE = "SELECT coalesce(max(id), 0) FROM issue"
ISSUES = """
INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login, open,
                   url, created_at, updated_at, asked_at,
                   approved_hash, approved_title, approved_body, approved_by, approved_at)
SELECT r.id, n, n, 'Issue ' || n, repeat('What is wanted. ', 12), 'h' || n, 7, 'ada', true,
       r.html_url || '/issues/' || n, now(), now(), now(),
       'h' || n, 'Issue ' || n, repeat('What is wanted. ', 12), 'ada', now()
  FROM generate_series(%(after)s::bigint + 1, %(after)s::bigint + %(n)s::int) AS n
  JOIN repository r ON r.forge_repo_id = 1 + mod(n, %(repositories)s::int)
"""
REQUESTS = """
INSERT INTO request (issue_id, source, event_id, asked_time, actor_id, actor_login, content_hash)
SELECT i.id, 'label', i.forge_issue_id, now(), 7, 'ada', i.content_hash
  FROM issue i WHERE i.id > %(after)s::bigint
"""
JOBS = """
INSERT INTO job (issue_id, repository_id, request_id, kind, lane)
SELECT i.id, i.repository_id, q.id, 'implement', %(lane)s
  FROM issue i JOIN request q ON q.issue_id = i.id WHERE i.id > %(after)s::bigint ORDER BY i.id
"""
REQUESTED = """
SELECT i.id, i.repository_id, q.id FROM issue i JOIN request q ON q.issue_id = i.id
 WHERE i.id > %(after)s::bigint ORDER BY i.repository_id, i.id
"""
EXPIRED = """
WITH late AS (
  UPDATE job SET state = 'claimed', attempts = 1, claim_no = 1, claim_token = gen_random_uuid(), claimed_by = 'dead',
                 claimed_host = 'gone', claimed_at = now() - interval '1 h',
                 claim_expires_at = now() - interval '50 min'
   WHERE state = 'pending' AND lane = %(lane)s
  RETURNING id, repository_id, claim_no, claim_token, attempts, lane, claimed_at
)
INSERT INTO attempt (job_id, repository_id, claim_no, token, number, lane, runner, host, claimed_at)
SELECT id, repository_id, claim_no, claim_token, attempts, lane, 'dead', 'gone', claimed_at FROM late
"""
# What a round leaves: jobs that are not finished, and looks, which the poller would have answered.
TIDY_JOBS = "DELETE FROM job WHERE state IN ('pending', 'waiting', 'claimed')"
TIDY_LOOKS = "DELETE FROM look"
ANALYZE = "ANALYZE job, attempt, request, issue"

# History comes as it would lie there: five jobs an issue, an attempt and three events each, triggers and keys off.
AS_REPLICA = "SET session_replication_role = replica"
OLD_REQUESTS = """
INSERT INTO request (issue_id, source, event_id, asked_time, actor_id, actor_login, content_hash, created_at)
SELECT i.id, 'label', i.forge_issue_id * 10 + n, now() - interval '40 days', 7, 'ada', i.content_hash,
       now() - interval '40 days'
  FROM issue i CROSS JOIN generate_series(1, 5) AS n WHERE i.id > %(after)s::bigint
"""
OLD_JOBS = """
INSERT INTO job (issue_id, repository_id, request_id, turn, claim_no, created_at, finished_at,
                 attempts, kind, lane, state, summary)
SELECT i.id, i.repository_id, q.id, i.id, 1, now() - interval '40 days',
       now() - interval '30 days' + q.id * interval '1 ms', 1, 'implement', 'open', 'delivered', 'Nothing to change.'
  FROM request q JOIN issue i ON i.id = q.issue_id WHERE i.id > %(after)s::bigint ORDER BY q.id
"""
OLD_ATTEMPTS = """
INSERT INTO attempt (job_id, repository_id, claim_no, token, number, lane, runner, host, claimed_at, ended_at,
                     outcome, burned, reason, summary, output_head, output_tail)
SELECT j.id, j.repository_id, 1, gen_random_uuid(), 1, j.lane, 'bench', 'localhost', j.finished_at - interval '5 min',
       j.finished_at, 'no_change', true, '', j.summary, '', 'done'
  FROM job j WHERE j.issue_id > %(after)s::bigint ORDER BY j.id
"""
OLD_EVENTS = """
INSERT INTO job_event (job_id, at, who, what, from_state, to_state, details)
SELECT j.id, j.finished_at, e.who, e.what, e.from_state, e.to_state,
       '{"claim_no": 1, "outcome": "no_change", "burned": true}'
  FROM job j
 CROSS JOIN (VALUES ('intake', 'enqueue', NULL, 'pending'), ('runner bench', 'claim', 'pending', 'claimed'),
                    ('runner bench', 'settle', 'claimed', 'delivered')) AS e (who, what, from_state, to_state)
 WHERE j.issue_id > %(after)s::bigint ORDER BY j.id
"""
OLD_MIRRORS = (
    "INSERT INTO mirror (issue_id, changed, told) SELECT i.id, 15, 15 FROM issue i WHERE i.id > %(after)s::bigint"
)
VACUUM = "VACUUM (ANALYZE) issue, request, job, attempt, job_event, mirror, look"


class Rows:
    """The database at `url`, which nobody else writes."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def arrange(self) -> None:
        """Schema, forge, repositories and both lanes."""
        await migrate(self._url)
        async with session(self._url) as conn:
            await conn.execute(ARRANGE)
            await conn.execute(ARRANGE_REPOSITORIES, {"repositories": REPOSITORIES})
            await conn.execute(ARRANGE_LANES, {"limit": LIMIT})

    async def pending(self, lane: str, jobs: int) -> None:
        """So many jobs to be claimed, over all repositories, written as enqueue writes them: triggers and keys on."""
        async with session(self._url) as conn:
            after = await _issues(conn, jobs)
            await conn.execute(REQUESTS, {"after": after})
            await conn.execute(JOBS, {"after": after, "lane": lane})
            await conn.execute(ANALYZE)

    async def requested(self, lane: str, jobs: int) -> list[NewJob]:
        """So many jobs to be enqueued: their issues and requests are there. Neighbours are of one repository."""
        async with session(self._url) as conn:
            after = await _issues(conn, jobs)
            await conn.execute(REQUESTS, {"after": after})
            cursor = await conn.execute(REQUESTED, {"after": after})
            return [NewJob(issue, place, request, Kind.IMPLEMENT, lane) async for issue, place, request in cursor]

    async def expired(self, lane: str, jobs: int) -> None:
        """So many claims of a runner that died an hour ago."""
        await self.pending(lane, jobs)
        async with session(self._url) as conn:
            await conn.execute(EXPIRED, {"lane": lane})
            await conn.execute(ANALYZE)

    async def limit_one(self, most: int | None) -> None:
        """Give one repository a limit, or take it away."""
        async with session(self._url) as conn:
            await conn.execute(LIMIT_ONE, {"limit": most})

    async def tidy(self) -> None:
        """Remove what the round left unfinished."""
        async with session(self._url) as conn:
            await conn.execute(TIDY_JOBS)
            await conn.execute(TIDY_LOOKS)

    async def history(self, finished: int) -> None:
        """So many finished jobs, with statistics and visibility as vacuum leaves them."""
        async with session(self._url) as conn:
            await conn.execute(AS_REPLICA)
            after = await _issues(conn, finished // 5)
            for statement in (OLD_REQUESTS, OLD_JOBS, OLD_ATTEMPTS, OLD_EVENTS, OLD_MIRRORS):
                await conn.execute(statement, {"after": after})
            await conn.execute(VACUUM)


async def _issues(conn: Connection, count: int) -> int:
    """New issues with approved text; the id after which they begin."""
    row = await (await conn.execute(LAST_ISSUE)).fetchone()
    after = int(row[0]) if row else 0
    await conn.execute(ISSUES, {"after": after, "n": count, "repositories": REPOSITORIES})
    return after
