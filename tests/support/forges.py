"""Forges for tests: the loopback one, started per test in a thread, and the people who work on it.

How to use it. In a test module (or a conftest.py): `from tests.support.forges import *` — it exports the fixtures

    loopback    a running LoopbackForge (`.url`, `.requests()`, `.fault(FaultPlan(...))`, `.hook(...)`, `.advance(s)`)
    stage       people and a repository on it: `stage.alice` (owner), `stage.bob` (writer), `stage.mallory` (stranger),
                `stage.bot` (writer), `stage.repo` (RepoRef of acme/widgets, first commit on main; acme is an
                organisation alice owns), `stage.path` ("acme/widgets"), `stage.label("tireless/go")` -> id
    forge       a GiteaForge speaking as the bot

Each person is a `tireless.forge.person.Person`: `await stage.alice.create_issue(stage.path, "title", label_ids=[...])`,
`create_issue_by_form` (labels in the author's name, whoever he is), `add_labels`, `comment`, `merge` …

    async def test_x(loopback, stage, forge):
        number = await stage.alice.create_issue(stage.path, "Paint it")
        await stage.bob.add_labels(stage.path, number, await stage.label("tireless/go"))
        before = loopback.last_request
        await forge.timeline(stage.repo, number)
        assert len(loopback.requests(after=before)) == 1

Without fixtures: `async with LoopbackForge() as loopback: stage = await set_stage(loopback.url, admin(loopback))`.
As a process: `python -m tireless.loopback --with-stdin`; its first line of output is JSON with url and admin token;
tests steer it through `/_loopback/…` (see tireless/loopback/admin.py).
Faults: `FaultPlan("POST", r"/pulls$", "block", when="after")`, then `await handle.reached()`, `await handle.release()`.
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

__all__ = ["FaultPlan", "LoopbackForge", "Stage", "admin", "client", "forge", "loopback", "set_stage", "stage"]


@dataclass
class Stage:
    """People and one repository on a forge. `suffix` keeps names apart on a shared server."""

    url: str
    admin: Person
    alice: Person
    bob: Person
    mallory: Person
    bot: Person
    repo: RepoRef
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """`owner/name`."""
        return self.repo.path

    async def label(self, name: str, *, exclusive: bool = False) -> int:
        """The id of a repository label of this name, made when it is new."""
        if name not in self.labels:
            self.labels[name] = await self.alice.create_label(self.path, name, exclusive=exclusive)
        return self.labels[name]

    async def close(self) -> None:
        """Close everybody's connections."""
        for person in (self.admin, self.alice, self.bob, self.mallory, self.bot):
            await person.aclose()


def admin(loopback: LoopbackForge) -> Person:
    """The site admin of a loopback forge."""
    return Person(
        url=loopback.url, login=loopback.admin_login, token=loopback.admin_token, password=loopback.admin_password
    )


async def set_stage(url: str, site_admin: Person, *, suffix: str = "", name: str = "forge") -> Stage:
    """Make the people and acme/widgets, on a loopback forge or a real one."""
    alice, bob, mallory, bot = [
        await site_admin.create_user(f"{login}{suffix}") for login in ("alice", "bob", "mallory", "tireless-bot")
    ]
    org = f"acme{suffix}"
    await alice.create_org(org)
    await alice.create_repository("widgets", org=org)
    repo = RepoRef(name, org, "widgets")
    for person in (bob, bot):
        await alice.add_collaborator(repo.path, person.login)
    return Stage(url=url, admin=site_admin, alice=alice, bob=bob, mallory=mallory, bot=bot, repo=repo)


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
    made = await set_stage(loopback.url, admin(loopback))
    yield made
    await made.close()


@pytest_asyncio.fixture
async def forge(stage: Stage) -> AsyncIterator[GiteaForge]:
    """The bot's client."""
    made = client(stage.url, stage.bot.token)
    yield made
    await made.aclose()
