"""Forges for tests: the loopback one, started per test in a thread, and the people who work on it.

How to use it. In a test module: `from tests.support.forges import *  # noqa: F403  fixtures`. It brings the fixtures

    loopback    a running LoopbackForge (`.url`, `.requests()`, `.fault(FaultPlan(...))`, `.hook(...)`, `.advance(s)`)
    stage       people and a repository on it: `stage.alice` (owner), `stage.bob` (writer), `stage.mallory` (stranger),
                `stage.bot` (writer), `stage.repo` (RepoRef of acme/widgets, first commit on main; acme is an
                organisation alice owns), `stage.path` ("acme/widgets"), `stage.label("tireless/go")` -> id
    forge       a GiteaForge speaking as the bot (it does not wait between tries)

Each person is a `tireless.forge.person.Person`: `await stage.alice.create_issue(stage.path, "title", label_ids=[...])`,
`create_issue_by_form` (labels in the author's name, whoever he is), `add_labels`, `comment`, `merge` …

    async def test_x(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
        number = await stage.alice.create_issue(stage.path, "Paint it")
        await stage.bob.add_labels(stage.path, number, await stage.label("tireless/go"))
        before = loopback.last_request
        await forge.timeline(stage.repo, number)
        assert len(loopback.requests(after=before)) == 1

Without fixtures: `async with LoopbackForge() as loopback: stage = await set_stage(admin(loopback))`.
As a process: `python -m tireless.loopback --with-stdin`; its first line of output is JSON with url, admin login,
token and password; tests steer it through `/_loopback/…` (see tireless/loopback/admin.py).
Faults: `handle = await loopback.fault(FaultPlan("POST", r"/pulls$", "block", when="after"))`,
then `await handle.reached()`, `await handle.release()`.
Time: the forge's clock moves by `await loopback.advance(3)`; nothing sleeps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest_asyncio

from tireless.domain.issue import RepoRef
from tireless.forge.gitea import GiteaForge
from tireless.forge.person import Person
from tireless.loopback import FaultPlan, LoopbackForge

__all__ = [
    "Cast",
    "FaultPlan",
    "LoopbackForge",
    "Stage",
    "admin",
    "build_stage",
    "client",
    "forge",
    "hire",
    "loopback",
    "set_stage",
    "stage",
]


@dataclass(frozen=True)
class Cast:
    """People on a server who outlive a test: logins, tokens, passwords. No connections, so any loop may use it."""

    url: str
    logins: dict[str, str]
    tokens: dict[str, str]
    passwords: dict[str, str]
    org: str

    def person(self, role: str) -> Person:
        """One of them, with a connection of his own."""
        return Person(
            url=self.url, login=self.logins[role], token=self.tokens[role], password=self.passwords.get(role, "")
        )


@dataclass
class Stage:
    """People and one repository on a forge."""

    cast: Cast
    repo: RepoRef
    admin: Person
    alice: Person
    bob: Person
    mallory: Person
    bot: Person
    labels: dict[str, int] = field(default_factory=dict)
    clients: list[GiteaForge] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where the forge is."""
        return self.cast.url

    @property
    def path(self) -> str:
        """`owner/name`."""
        return self.repo.path

    async def label(self, name: str, *, exclusive: bool = False) -> int:
        """The id of a repository label of this name, made when it is new."""
        if name not in self.labels:
            self.labels[name] = await self.alice.create_label(self.path, name, exclusive=exclusive)
        return self.labels[name]

    def as_person(self, person: Person) -> GiteaForge:
        """A client that speaks as one of them; closed with the stage."""
        return self.with_token(person.token)

    def with_token(self, token: str | None) -> GiteaForge:
        """A client with any token, or none; closed with the stage."""
        self.clients.append(client(self.url, token, name=self.repo.forge))
        return self.clients[-1]

    async def close(self) -> None:
        """Close everybody's connections."""
        for each in self.clients:
            await each.aclose()
        for person in (self.admin, self.alice, self.bob, self.mallory, self.bot):
            await person.aclose()


def admin(loopback: LoopbackForge) -> Person:
    """The site admin of a loopback forge."""
    return Person(
        url=loopback.url, login=loopback.admin_login, token=loopback.admin_token, password=loopback.admin_password
    )


ROLES = {"alice": "alice", "bob": "bob", "mallory": "mallory", "bot": "tireless-bot"}


async def hire(site_admin: Person, *, suffix: str = "") -> Cast:
    """Make the people and alice's organisation; `suffix` keeps their names apart on a shared server."""
    logins, tokens, passwords = {"admin": site_admin.login}, {"admin": site_admin.token}, {}
    for role, name in ROLES.items():
        async with await site_admin.create_user(f"{name}{suffix}") as made:
            logins[role], tokens[role], passwords[role] = made.login, made.token, made.password
    cast = Cast(url=site_admin.url, logins=logins, tokens=tokens, passwords=passwords, org=f"acme{suffix}")
    async with cast.person("alice") as alice:
        await alice.create_org(cast.org)
    return cast


async def build_stage(cast: Cast, *, name: str = "widgets", forge: str = "forge") -> Stage:
    """A repository of the organisation, with a first commit; bob and the bot may write in it."""
    made = Stage(
        cast=cast,
        repo=RepoRef(forge, cast.org, name),
        admin=cast.person("admin"),
        alice=cast.person("alice"),
        bob=cast.person("bob"),
        mallory=cast.person("mallory"),
        bot=cast.person("bot"),
    )
    await made.alice.create_repository(name, org=cast.org)
    for role in ("bob", "bot"):
        await made.alice.add_collaborator(made.path, cast.logins[role])
    return made


async def set_stage(site_admin: Person, *, forge: str = "forge") -> Stage:
    """People and acme/widgets on a fresh server."""
    cast = await hire(site_admin)
    return await build_stage(cast, forge=forge)


def client(url: str, token: str | None, *, name: str = "forge", timeout_s: float = 10.0) -> GiteaForge:
    """A client that does not wait between tries."""
    return GiteaForge(name=name, url=url, token=token, timeout_s=timeout_s, retry_wait_s=0.0)


@pytest_asyncio.fixture
async def loopback() -> AsyncIterator[LoopbackForge]:
    """A running loopback forge with nothing in it but its admin."""
    async with LoopbackForge() as running:
        yield running


@pytest_asyncio.fixture
async def stage(loopback: LoopbackForge) -> AsyncIterator[Stage]:
    """alice, bob, mallory, the bot, and acme/widgets."""
    async with admin(loopback) as site_admin:
        made = await set_stage(site_admin)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def forge(stage: Stage) -> AsyncIterator[GiteaForge]:
    """The bot's client."""
    made = client(stage.url, stage.bot.token)
    yield made
    await made.aclose()
