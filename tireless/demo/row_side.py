"""Reads the rows' side of the demo; knows no forge."""

from __future__ import annotations

from tireless.demo.sides import ChildRow, JobRow, Rows
from tireless.domain.job import State, status_of
from tireless.store import overview
from tireless.store.db import Pool


async def read_rows(pool: Pool) -> Rows:
    """Issues, jobs and children as they are now. Raises StoreError."""
    async with pool.connection() as conn:
        issues = await overview.issues(conn)
        jobs = await overview.jobs(conn)
        children = await overview.children(conn)
    return Rows(
        issues={issue.number: (issue.asked, issue.triage_code) for issue in issues},
        jobs=[_job(job) for job in jobs],
        children=[_child(each) for each in children],
    )


def _job(job: overview.JobGlance) -> JobRow:
    return JobRow(
        id=job.id,
        number=job.number,
        kind=job.kind,
        lane=job.lane,
        state=job.state,
        reason=job.reason,
        attempts=job.attempts,
        claims=job.claims,
        pull_request=job.pull_request,
        branch=job.branch,
        parent=job.parent,
        holds_claim=job.holds_claim,
        status=status_of(State(job.state), job.parked).value,
    )


def _child(child: overview.ChildGlance) -> ChildRow:
    return ChildRow(
        plan=child.plan,
        key=child.key,
        kind=child.kind,
        lane=child.lane,
        number=child.number,
        depends_on=child.depends_on,
    )
