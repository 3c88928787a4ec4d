"""Everything of an installation at a glance: issues, jobs, children. For small ones (the demo, tests): no paging."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import class_row

from tireless.store.db import Connection, translate


@dataclass(frozen=True, slots=True)
class IssueGlance:
    """What triage last said of an issue."""

    number: int
    asked: bool
    triage_code: str | None


@dataclass(frozen=True, slots=True)
class JobGlance:
    """A job and the issue it is of; `parent`: the plan issue whose child that is; `branch`: the settled one."""

    id: int
    number: int
    kind: str
    lane: str
    state: str
    reason: str | None
    parked: bool
    attempts: int
    claims: int
    holds_claim: bool
    pull_request: int | None
    branch: str | None
    parent: int | None


@dataclass(frozen=True, slots=True)
class ChildGlance:
    """A child row; `depends_on`: the numbers of the issues its keys stand for, as far as they exist."""

    plan: int
    key: str
    kind: str
    lane: str | None
    number: int | None
    depends_on: tuple[int, ...]


ISSUES = "SELECT i.number, i.asked, i.triage_code FROM issue i ORDER BY i.repository_id, i.number"


async def issues(conn: Connection) -> list[IssueGlance]:
    """All issues, by number."""
    with translate("reading all issues"):
        async with conn.cursor(row_factory=class_row(IssueGlance)) as cursor:
            return await (await cursor.execute(ISSUES)).fetchall()


JOBS = """
SELECT j.id, i.number, j.kind, j.lane, j.state, j.reason, j.parked IS NOT NULL AS parked, j.attempts,
       j.claim_no::int AS claims, j.claim_token IS NOT NULL AS holds_claim, j.pull_request, a.branch, p.number AS parent
  FROM job j
  JOIN issue i ON i.id = j.issue_id
  LEFT JOIN attempt a ON a.id = j.result_attempt
  LEFT JOIN child c ON c.issue_id = i.id
  LEFT JOIN issue p ON p.id = c.plan_issue_id
 ORDER BY j.id
"""


async def jobs(conn: Connection) -> list[JobGlance]:
    """All jobs, oldest first."""
    with translate("reading all jobs"):
        async with conn.cursor(row_factory=class_row(JobGlance)) as cursor:
            return await (await cursor.execute(JOBS)).fetchall()


CHILDREN = """
SELECT p.number, c.key, c.kind, c.lane, c.number,
       ARRAY(SELECT d.number FROM child d
              WHERE d.plan_issue_id = c.plan_issue_id AND d.key = ANY (c.depends_on) AND d.number IS NOT NULL
              ORDER BY d.number)
  FROM child c JOIN issue p ON p.id = c.plan_issue_id
 ORDER BY p.number, c.position
"""


async def children(conn: Connection) -> list[ChildGlance]:
    """All children, in their plans' order."""
    with translate("reading all children"):
        cursor = await conn.execute(CHILDREN)
        return [
            ChildGlance(plan, key, kind, lane, number, tuple(after))
            async for plan, key, kind, lane, number, after in cursor
        ]
