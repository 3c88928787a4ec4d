"""The loopback forge's whole state and the steps every act on it is made of. No HTTP here, and no rights."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from pathlib import Path

from tireless.loopback.state import Clock, Entry, Event, Issue, Label, Pull, Repo, Rules, Token, User


class World:
    """The whole instance. Every mutation runs on the server's loop; tests outside it go through HTTP or `call`."""

    def __init__(self, git_root: Path, rules: Rules | None = None) -> None:
        self.git_root = git_root
        self.clock = Clock()
        self.rules = rules or Rules()
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
