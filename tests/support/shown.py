"""What a forge shows, as an adapter has read it: for tests of the store, which ask no forge."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.support import rows
from tireless.domain.issue import IssueState, Person, Repository, Snapshot

STAMP = datetime(2026, 1, 1, tzinfo=UTC)


def repository(number: int, path: str = rows.REPO) -> Repository:
    """The repository of this id, as rows.repository() writes it."""
    owner, _, name = path.partition("/")
    return Repository(
        id=number,
        owner=owner,
        name=name,
        owner_is_org=None,
        default_branch="main",
        clone_url=f"http://127.0.0.1:1/{path}.git",
        html_url=f"http://127.0.0.1:1/{path}",
        private=False,
        archived=False,
        empty=False,
        has_issues=True,
        has_pulls=True,
    )


def issue(
    number: int,
    issue_id: int,
    *,
    title: str = "Plain",
    body: str = "Words.",
    state: IssueState = IssueState.OPEN,
    created_at: datetime = STAMP,
    updated_at: datetime = STAMP,
) -> Snapshot:
    """An issue of ada's without a label."""
    return Snapshot(
        number=number,
        issue_id=issue_id,
        title=title,
        body=body,
        author=Person(7, "ada"),
        state=state,
        labels=(),
        created_at=created_at,
        updated_at=updated_at,
        url="u",
    )
