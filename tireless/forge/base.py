"""The Forge protocol: what the services may ask of a forge. Adapters implement it; nothing here does I/O.

Every method may raise the ForgeError tree: ForgeUnavailable (transient), ForgeDenied, NotFound, Moved,
ForgeRejected, ForgeGarbled. "I could not ask" is never "it is gone".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from tireless.domain.issue import (
    Comment,
    IssueRef,
    Label,
    LabelSpec,
    Person,
    PullRequest,
    RepoRef,
    Repository,
    Snapshot,
    TimelineEntry,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What differs between servers, found by asking, never by comparing Forgejo's number with Gitea's."""

    flavour: str = "gitea"
    """`gitea` or `forgejo`."""
    version: str = ""
    page_limit: int = 50
    """The server's MAX_RESPONSE_ITEMS; a short page is not the last page."""


@dataclass(frozen=True, slots=True)
class About:
    """Who the server is and whom the token speaks for. `login` is None when the token may not ask (no read:user)."""

    capabilities: Capabilities
    login: Person | None
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class Malformed:
    """One element of a list that could not be read; the others were. `number` is 0 when even that was missing."""

    number: int
    error: str


@dataclass(frozen=True, slots=True)
class IssuePage:
    """One page of an issue list. An empty page (no issues, no malformed, no pull requests: `rows == 0`) is the end."""

    issues: tuple[Snapshot, ...]
    rows: int
    total: int | None
    server_date: datetime | None
    malformed: tuple[Malformed, ...] = ()


@dataclass(frozen=True, slots=True)
class NewPull:
    """What a pull request is created from; `head` and `base` are branches of the same repository."""

    title: str
    body: str
    head: str
    base: str
    draft: bool = False
    label_ids: Sequence[int] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class OwnerPage:
    """One page of the issues of all repositories of an owner, each with its repository's id. `rows == 0` is the end."""

    issues: tuple[tuple[int, Snapshot], ...]
    rows: int
    total: int | None
    server_date: datetime | None
    malformed: tuple[tuple[int, Malformed], ...] = ()


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook of a repository as the forge shows it; its secret is never shown."""

    id: int
    url: str
    events: frozenset[str]
    active: bool
    content_type: str


def hidden_issue(forge: str) -> IssueRef:
    """Stands for an issue that blocks another and that the bot may not read: it has no name, and counts as open."""
    return IssueRef(RepoRef(forge, "", ""), 0)


class HookForge(Protocol):
    """A repository's webhooks: what `tireless init` needs, with a token that may administer it, and nobody else."""

    name: str

    async def hooks(self, repo: RepoRef) -> tuple[Hook, ...]:
        """All of them. ForgeDenied when the bot is no administrator of the repository."""

    async def create_hook(self, repo: RepoRef, *, url: str, events: Sequence[str], secret: str) -> Hook:
        """An active one that sends JSON. Not idempotent: look first, under a lock."""

    async def delete_hook(self, repo: RepoRef, hook_id: int) -> None:
        """Delete one; one that is gone is no error. The secret of a hook cannot be changed, only the whole hook."""


class Forge(Protocol):
    """One Gitea or Forgejo instance, by its configured name.

    Twenty methods for the work in one repository, and three that widen it: an owner's repositories, an owner's issues
    in one list, who is in a team. Each is an endpoint of its own that no other method could stand in for.
    """

    name: str
    url: str

    async def about(self) -> About:
        """Version, flavour, page limit and the token's own user."""

    async def lacks(self, repo: RepoRef) -> tuple[str, ...]:
        """The scopes to write that the token lacks, of `write:issue` and `write:repository`. Changes nothing."""

    async def repository(self, repo: RepoRef | int) -> Repository:
        """By names (Moved on a rename) or by the forge's id (safe against renames)."""

    async def repositories(self, owner: str, *, topic: str | None = None) -> tuple[Repository, ...]:
        """What the bot sees of an owner's repositories (with this topic). NotFound: there is no such owner."""

    async def owner_issues(
        self, owner: str, *, page: int, since: datetime | None = None, before: datetime | None = None
    ) -> OwnerPage:
        """One page of the issues of all repositories of an owner, as `issues`. ForgeRejected: no such owner."""

    async def issues(
        self, repo: RepoRef, *, page: int, since: datetime | None = None, created_by: str | None = None
    ) -> IssuePage:
        """One page of issues in any state, no pull requests, newest created first. `since`: inclusive seconds."""

    async def issue(self, repo: RepoRef, number: int) -> Snapshot:
        """One issue; NotFound also when the number is a pull request's."""

    async def timeline(self, repo: RepoRef, number: int) -> tuple[TimelineEntry, ...]:
        """The whole timeline, oldest first, unknown entries left out."""

    async def labels(self, repo: RepoRef) -> tuple[Label, ...]:
        """Repository labels, then those of the owning organisation, all pages. Duplicate names are kept."""

    async def create_label(self, repo: RepoRef, spec: LabelSpec) -> Label:
        """Create a repository label. Names are not unique on the forge: look first, under a lock."""

    async def set_label(self, repo: RepoRef, number: int, label_id: int, *, on: bool) -> None:
        """Add or remove one label by id; both are idempotent. ForgeRejected when the forge silently ignored the id."""

    async def assignees(self, repo: RepoRef) -> tuple[Person, ...]:
        """Users with write access; over-reports in organisation repositories."""

    async def permission(self, repo: RepoRef, login: str) -> str:
        """`none`, `read`, `write`, `admin` or `owner`. ForgeDenied when the bot may not ask: that is "cannot tell"."""

    async def in_team(self, org: str, team: str, login: str) -> bool:
        """Is he in this team? ForgeDenied or NotFound when the bot may not ask: that is "cannot tell"."""

    async def comments(self, repo: RepoRef, number: int) -> tuple[Comment, ...]:
        """All comments, oldest first."""

    async def write_comment(self, repo: RepoRef, number: int, body: str, *, comment_id: int | None = None) -> Comment:
        """Create a comment, or edit the one with `comment_id` (NotFound when it was deleted)."""

    async def create_issue(self, repo: RepoRef, *, title: str, body: str, label_ids: Sequence[int]) -> Snapshot:
        """Not idempotent: search for the hidden line before repeating."""

    async def close(self, ref: IssueRef) -> None:
        """Close an issue or a pull request; closing what is closed is no error."""

    async def dependencies(self, ref: IssueRef) -> tuple[tuple[IssueRef, bool], ...]:
        """What blocks this issue, each with "is it closed". NotFound when dependencies are disabled.

        One that the bot may not read is `hidden_issue`.
        """

    async def add_dependency(self, ref: IssueRef, on: IssueRef) -> None:
        """`on` blocks `ref`; idempotent (looks first). NotFound when dependencies are disabled."""

    async def pulls(
        self, repo: RepoRef, *, head: str | None = None, include_closed: bool = False
    ) -> tuple[PullRequest, ...]:
        """Pull requests of this repository, filtered by head branch on our side."""

    async def create_pull(self, repo: RepoRef, new: NewPull) -> PullRequest:
        """ForgeRejected with status 409 when an open one with the same head and base exists: find and adopt it."""

    async def branch_head(self, repo: RepoRef, branch: str) -> str | None:
        """The commit a branch points at, None when there is no such branch."""

    async def delete_branch(self, repo: RepoRef, branch: str) -> None:
        """Delete a branch; one that is gone is no error."""
