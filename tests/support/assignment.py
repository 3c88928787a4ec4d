"""An assignment as a runner would make it of a claim, for the tests of the agent room."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from tireless.agent.protocol import Assignment, Message
from tireless.domain.issue import IssueRef, RepoRef
from tireless.domain.job import Kind

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SHA = "0123456789abcdef0123456789abcdef01234567"


def assignment(*, title: str = "Make it shine", body: str = "Please.") -> Assignment:
    """A claim of an implement job."""
    return Assignment(
        job_id=12,
        attempt_uid=UUID("0123abcd-0000-4000-8000-000000000000"),
        attempt=2,
        max_attempts=3,
        kind=Kind.IMPLEMENT,
        lane="claude",
        issue=IssueRef(RepoRef("main", "ada", "lamp"), 7),
        issue_url="https://forge.example/ada/lamp/issues/7",
        title=title,
        body=body,
        base_branch="main",
        request="main/ada/lamp#7 label 12",
        messages=(Message("ada", NOW, "In gold<!-- or not -->, please"),),
        previous="the agent ran into its time limit",
    )
