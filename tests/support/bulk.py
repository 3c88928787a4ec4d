"""Jobs by the thousand, enqueued by pages as the poller does it, on issues made in one statement."""

from __future__ import annotations

from collections.abc import Callable

from tests.support import rows
from tireless.domain.job import Kind
from tireless.store.db import Connection
from tireless.store.jobs import NewJob, enqueue

PAGE = 50

ISSUES = """
INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login, open, url,
                   created_at, updated_at, asked_at,
                   approved_hash, approved_title, approved_body, approved_by, approved_at)
SELECT %(repository)s, top.n + s.n, %(repository)s * 1000000 + top.n + s.n, 't', 'b', 'h', 7, 'ada', true, 'u',
       now(), now(), now(), 'h', 't', 'b', 'ada', now()
  FROM (SELECT coalesce(max(number), 0) AS n FROM issue WHERE repository_id = %(repository)s) AS top,
       generate_series(1, %(count)s::int) AS s (n)
RETURNING id
"""
REQUESTS = """
INSERT INTO request (issue_id, source, asked_time, actor_login, content_hash)
SELECT i, 'operator', now(), 'ada', 'h' FROM unnest(%(issues)s::bigint[]) AS i RETURNING id, issue_id
"""


async def asks(
    conn: Connection, path: str, count: int, lane: str | Callable[[int], str] = rows.LANE, priority: int = 0
) -> list[int]:
    """So many new jobs of a repository; their issues' ids in order. `lane` may be told by the number of the job."""
    repository = await rows.repository(conn, path)
    of = lane if callable(lane) else (lambda _: str(lane))
    for name in sorted({of(n) for n in range(count)}):
        await rows.lane(conn, name)
    found = await conn.execute(ISSUES.encode(), {"repository": repository, "count": count})
    issues = [row[0] for row in await found.fetchall()]
    requests = await (await conn.execute(REQUESTS.encode(), {"issues": issues})).fetchall()
    jobs = [
        NewJob(issue, repository, request, Kind.IMPLEMENT, of(n), priority)
        for n, (request, issue) in enumerate(requests)
    ]
    for at in range(0, len(jobs), PAGE):
        await enqueue(conn, jobs[at : at + PAGE])
    return issues
