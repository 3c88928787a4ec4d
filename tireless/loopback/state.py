"""What the loopback forge is made of: people, repositories, issues, entries, pull requests, its clock. Data only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum


class Level(IntEnum):
    """Access to a repository or to one of its units, in Gitea's order."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3
    OWNER = 4


class Clock:
    """The forge's clock: the machine's plus an offset, or standing still; tests move it instead of sleeping."""

    def __init__(self) -> None:
        self.offset_s = 0.0
        self.frozen_at: float | None = None
        self._pinned: int | None = None

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.frozen_at if self.frozen_at is not None else time.time() + self.offset_s

    def stamp(self) -> int:
        """Now in whole seconds, as every `*_unix` column of the real one holds it."""
        return int(self.now()) if self._pinned is None else self._pinned

    @contextmanager
    def pinned(self, stamp: int) -> Iterator[None]:
        """Stamp with another moment for one act (nothing may be awaited in it): Forgejo's `updated_at`."""
        self._pinned = stamp
        try:
            yield
        finally:
            self._pinned = None

    def advance(self, seconds: float) -> None:
        """Move the clock; a frozen one too. Negative goes back."""
        self.offset_s += seconds
        if self.frozen_at is not None:
            self.frozen_at += seconds

    def freeze(self, at: float | None = None) -> None:
        """Stand still, now or at a moment."""
        self.frozen_at = self.now() if at is None else at

    def run(self) -> None:
        """Go on from where the clock stands."""
        if self.frozen_at is not None:
            self.offset_s = self.frozen_at - time.time()
            self.frozen_at = None


@dataclass(slots=True)
class Token:
    """An access token: its secret, and the scopes it was given (`all` or names like `write:issue`)."""

    id: int
    name: str
    secret: str
    scopes: frozenset[str]


@dataclass(slots=True)
class User:
    """A person or an organisation (`is_org`)."""

    id: int
    login: str
    created: int
    is_org: bool = False
    is_admin: bool = False
    password: str = ""
    email: str = ""
    full_name: str = ""
    tokens: list[Token] = field(default_factory=list)
    labels: dict[int, Label] = field(default_factory=dict)
    """Organisation labels."""
    teams: dict[int, Team] = field(default_factory=dict)
    """Organisation teams; the one named Owners is made with the organisation."""


@dataclass(slots=True)
class Team:
    """A team of an organisation: a general level or a level per unit, on all its repositories."""

    id: int
    name: str
    level: Level
    units: dict[str, Level]
    members: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Label:
    """A label definition. Names are not unique."""

    id: int
    name: str
    color: str
    description: str = ""
    exclusive: bool = False
    archived: bool = False

    @property
    def scope(self) -> str:
        """Everything before the last slash, and only when exclusive; empty for none."""
        if not self.exclusive:
            return ""
        head, slash, tail = self.name.rpartition("/")
        return head if slash and head and tail else ""


@dataclass(slots=True)
class Entry:
    """One timeline entry; a comment is one of type `comment`."""

    id: int
    type: str
    user_id: int
    created: int
    updated: int
    body: str = ""
    label_id: int | None = None
    old_title: str = ""
    new_title: str = ""
    old_ref: str = ""
    ref_repo_id: int = 0
    ref_number: int = 0
    ref_commit: str = ""
    ref_action: str = "none"
    """What a reference does to the referenced issue once merged: `none`, `closes`, `reopens`."""
    dependent: tuple[int, int] | None = None
    """(repository id, number) of the issue a dependency entry names."""


@dataclass(slots=True)
class Pull:
    """What a pull request has beyond an issue. `head_sha` stays at the last commit when the branch goes."""

    id: int
    head: str
    base: str
    head_sha: str
    merge_base: str
    conflicts: bool = False
    merged: int = 0
    merged_by: int = 0
    merge_sha: str = ""


@dataclass(slots=True)
class Issue:
    """An issue, or a pull request when `pull` is set."""

    id: int
    number: int
    title: str
    body: str
    author_id: int
    created: int
    updated: int
    closed: int = 0
    """When it was closed; 0 while open."""
    label_ids: list[int] = field(default_factory=list)
    assignee_ids: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    blocked_by: list[tuple[int, int]] = field(default_factory=list)
    """(repository id, number) of the issues this one depends on."""
    pull: Pull | None = None
    locked: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self.closed != 0


@dataclass(slots=True)
class Hook:
    """A registered webhook."""

    id: int
    url: str
    secret: str
    content_type: str
    events: frozenset[str]
    active: bool
    created: int
    authorization: str = ""


@dataclass(slots=True)
class Repo:
    """A repository. Its git directory is named by id, so that a rename moves nothing."""

    id: int
    owner_id: int
    name: str
    created: int
    updated: int
    description: str = ""
    private: bool = False
    archived: bool = False
    has_issues: bool = True
    external_tracker: bool = False
    has_pulls: bool = True
    dependencies_enabled: bool = True
    default_branch: str = "main"
    topics: list[str] = field(default_factory=list)
    labels: dict[int, Label] = field(default_factory=dict)
    collaborators: dict[int, Level] = field(default_factory=dict)
    issues: dict[int, Issue] = field(default_factory=dict)
    hooks: dict[int, Hook] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    """Branch name -> commit; every push passes through here, so git need not be asked."""
    next_number: int = 1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held over everything that runs git and then changes rows."""

    @property
    def empty(self) -> bool:
        """Whether it has no commit yet."""
        return not self.branches


@dataclass(frozen=True, slots=True)
class Event:
    """Something webhooks may be told of."""

    name: str
    """Fine name, as `X-Gitea-Event-Type` says it: `issues`, `issue_label`, `issue_comment`, `pull_request` …"""
    action: str
    repo: Repo
    sender: User
    issue: Issue | None = None
    comment: Entry | None = None
    extra: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Rules:
    """Settings of the instance: what a real one has in app.ini, and the quirks of its version."""

    version: str = "1.26.0+dev-tireless-loopback"
    page_limit: int = 50
    default_page: int = 30
    redirect_status: int = 301
    missing_issue_status: int = 500
    """What comments, timeline and comment creation of a missing issue answer; newer servers say 404."""
    missing_branch_status: int = 204
    """What deleting a branch that is not there answers."""
    unknown_state_status: int = 412
    """For a state word nobody knows; 0 takes it as `open`."""
    odd_label_status: int = 400
    """For labels that are neither ids nor names; 0 ignores them."""
    title_bytes: int = 255
    """What a title is cut to; 0 leaves it whole."""
    org_label_names: bool = True
    """Whether organisation labels may be put on by name."""
    own_permission: bool = True
    """Whether anyone may ask for his own permission."""
    strangers_open_pulls: bool = False
    """Whether someone without write access may open a pull request from a branch of the repository itself."""
    same_edit_hides_author: bool = True
    """Whether editing a comment to what it is, is answered without its author."""
    comment_deletion_moves: bool = False
    """Whether deleting a comment moves the issue's stamp."""
    refusal_page: bool = False
    """Whether a stranger's labels are refused with an HTML page."""
    backdating: bool = False
    """Whether a repository admin may date his acts with `updated_at`."""
    cross_repo_dependencies: bool = True
    date: str = "true"
    """The Date header: `true`, `absent`, seconds of skew (`+600`), or any text that is sent as it is."""
    utc_offset_minutes: int = 0
    """The zone times are written in."""

    @property
    def is_forgejo(self) -> bool:
        """By the version, as clients tell it."""
        return "+gitea-" in self.version


def forgejo_rules() -> Rules:
    """What a live Forgejo 10 (of November 2024) did differently."""
    return Rules(
        version="10.0.0-dev+gitea-1.22.0",
        redirect_status=307,
        missing_branch_status=500,
        unknown_state_status=0,
        odd_label_status=0,
        title_bytes=0,
        org_label_names=False,
        own_permission=False,
        strangers_open_pulls=True,
        same_edit_hides_author=False,
        comment_deletion_moves=True,
        refusal_page=True,
        backdating=True,
    )
