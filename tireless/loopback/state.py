"""What the loopback forge remembers: people, repositories, issues, entries, pull requests. No HTTP here."""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path


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

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.frozen_at if self.frozen_at is not None else time.time() + self.offset_s

    def stamp(self) -> int:
        """Now in whole seconds, as every `*_unix` column of the real one holds it."""
        return int(self.now())

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
    cross_repo_dependencies: bool = True
    date: str = "true"
    """The Date header: `true`, `absent`, `garbage`, or seconds of skew (`+600`), or a fixed HTTP date."""
    utc_offset_minutes: int = 0
    """The zone times are written in."""


class World:
    """The whole instance. Every mutation runs on the server's loop; tests outside it go through HTTP or `call`."""

    def __init__(self, git_root: Path) -> None:
        self.git_root = git_root
        self.clock = Clock()
        self.rules = Rules()
        self.users: dict[int, User] = {}
        self.repos: dict[int, Repo] = {}
        self.redirects: dict[tuple[int, str], int] = {}
        """(owner id, old name in lower case) -> repository id."""
        self.listeners: list[Callable[[Event], None]] = []
        self.root_url = ""
        self._by_login: dict[str, int] = {}
        self._by_token: dict[str, tuple[int, Token]] = {}
        self._by_path: dict[tuple[int, str], int] = {}
        self._last_id: dict[str, int] = {}

    def next_id(self, kind: str) -> int:
        """The next id of a table."""
        self._last_id[kind] = self._last_id.get(kind, 0) + 1
        return self._last_id[kind]

    def emit(self, event: Event) -> None:
        """Tell the listeners, in order."""
        for listener in self.listeners:
            listener(event)

    # people

    def add_user(self, login: str, *, is_org: bool = False, is_admin: bool = False, password: str = "") -> User:
        """A new person or organisation; the caller has checked that the name is free."""
        user = User(
            id=self.next_id("user"),
            login=login,
            created=self.clock.stamp(),
            is_org=is_org,
            is_admin=is_admin,
            password=password,
            email="" if is_org else f"{login.lower()}@localhost",
        )
        self.users[user.id] = user
        self._by_login[login.lower()] = user.id
        return user

    def user(self, login: str) -> User | None:
        """By login, in any case."""
        found = self._by_login.get(login.lower())
        return None if found is None else self.users[found]

    def remove_user(self, user: User) -> None:
        """Forget a user; his id keeps pointing nowhere, which reads as the Ghost."""
        for token in list(user.tokens):
            self.drop_token(user, token)
        del self._by_login[user.login.lower()]
        del self.users[user.id]

    def add_token(self, user: User, name: str, *, secret: str, scopes: frozenset[str]) -> Token:
        """Give a user a token."""
        token = Token(id=self.next_id("token"), name=name, secret=secret, scopes=scopes)
        user.tokens.append(token)
        self._by_token[secret] = (user.id, token)
        return token

    def drop_token(self, user: User, token: Token) -> None:
        """Revoke a token."""
        user.tokens.remove(token)
        self._by_token.pop(token.secret, None)

    def bearer(self, secret: str) -> tuple[User, Token] | None:
        """Whom a token speaks for."""
        found = self._by_token.get(secret)
        return None if found is None else (self.users[found[0]], found[1])

    def identify(self, authorization: str) -> tuple[User, Token | None] | None:
        """Whom an Authorization header speaks for: a token, or by password (then there is no token)."""
        kind, _, rest = authorization.partition(" ")
        rest = rest.strip()
        match kind.lower():
            case "token" | "bearer":
                return self.bearer(rest)
            case "basic":
                try:
                    login, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
                except ValueError:
                    return None
                found = self.bearer(password) or self.bearer(login)
                if found is not None:
                    return found
                user = self.user(login)
                fits = user is not None and user.password and hmac.compare_digest(user.password, password)
                return (user, None) if user is not None and fits else None
            case _:
                return None

    def login_of(self, authorization: str) -> str:
        """The login an Authorization header speaks for, empty for nobody."""
        found = self.identify(authorization)
        return "" if found is None else found[0].login

    # repositories

    def add_repo(self, owner: User, name: str, *, private: bool = False, description: str = "") -> Repo:
        """A new empty repository; the caller makes its git directory."""
        now = self.clock.stamp()
        repo = Repo(
            id=self.next_id("repo"),
            owner_id=owner.id,
            name=name,
            created=now,
            updated=now,
            private=private,
            description=description,
        )
        self.repos[repo.id] = repo
        self._by_path[(owner.id, name.lower())] = repo.id
        self.redirects.pop((owner.id, name.lower()), None)
        return repo

    def repo(self, owner: str, name: str) -> Repo | None:
        """By names, in any case; renamed ones are in `redirects`."""
        user = self.user(owner)
        found = None if user is None else self._by_path.get((user.id, name.lower()))
        return None if found is None else self.repos[found]

    def moved(self, owner: str, name: str) -> Repo | None:
        """The repository that once had this name."""
        user = self.user(owner)
        found = None if user is None else self.redirects.get((user.id, name.lower()))
        return None if found is None else self.repos.get(found)

    def rename_repo(self, repo: Repo, name: str, owner: User | None = None) -> None:
        """Give a repository another name or owner; the old one redirects from then on."""
        old = (repo.owner_id, repo.name.lower())
        del self._by_path[old]
        repo.name = name
        repo.owner_id = repo.owner_id if owner is None else owner.id
        new = (repo.owner_id, name.lower())
        self._by_path[new] = repo.id
        self.redirects[old] = repo.id
        self.redirects.pop(new, None)

    def delete_repo(self, repo: Repo) -> None:
        """Forget a repository; its git directory is the caller's."""
        del self._by_path[(repo.owner_id, repo.name.lower())]
        del self.repos[repo.id]
        self.redirects = {key: value for key, value in self.redirects.items() if value != repo.id}

    def owner(self, repo: Repo) -> User:
        """Who owns a repository."""
        return self.users[repo.owner_id]

    def path(self, repo: Repo) -> str:
        """`owner/name`."""
        return f"{self.owner(repo).login}/{repo.name}"

    def git_dir(self, repo: Repo) -> Path:
        """The bare repository."""
        return self.git_root / f"{repo.id}.git"

    def label(self, repo: Repo, label_id: int) -> Label | None:
        """A label usable in a repository: its own or its organisation's."""
        return repo.labels.get(label_id) or self.owner(repo).labels.get(label_id)

    # issues

    def add_issue(self, repo: Repo, author: User, *, title: str, body: str, pull: Pull | None = None) -> Issue:
        """A new issue or pull request; both draw from one row of numbers."""
        now = self.clock.stamp()
        issue = Issue(
            id=self.next_id("issue"),
            number=repo.next_number,
            title=title,
            body=body,
            author_id=author.id,
            created=now,
            updated=now,
            pull=pull,
        )
        repo.next_number += 1
        repo.issues[issue.number] = issue
        return issue

    def touch(self, issue: Issue) -> None:
        """Move `updated_unix`."""
        issue.updated = self.clock.stamp()

    def add_entry(self, issue: Issue, user: User, kind: str, *, body: str = "", label_id: int | None = None) -> Entry:
        """A timeline entry; every one of them moves the issue's `updated_unix`."""
        now = self.clock.stamp()
        entry = Entry(
            id=self.next_id("entry"), type=kind, user_id=user.id, created=now, updated=now, body=body, label_id=label_id
        )
        issue.entries.append(entry)
        issue.updated = now
        return entry

    def open_blockers(self, issue: Issue) -> list[tuple[int, int]]:
        """The dependencies of an issue that are still open."""
        found = []
        for repo_id, number in issue.blocked_by:
            repo = self.repos.get(repo_id)
            blocker = None if repo is None else repo.issues.get(number)
            if blocker is not None and not blocker.is_closed:
                found.append((repo_id, number))
        return found
