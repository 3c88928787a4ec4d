"""The servers the conformance suite runs against: the loopback forge in both its characters, and real ones.

TIRELESS_TEST_GITEA_URL with TIRELESS_TEST_GITEA_TOKEN (a site admin's) names a running Gitea, else
TIRELESS_TEST_GITEA_BIN a binary to start (TIRELESS_TEST_GITEA_STATIC: its source tree, if its assets are not embedded).
The same with FORGEJO for GITEA names a Forgejo.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from tests.support import real_gitea
from tests.support.forges import Cast, Stage, admin, build_stage, client, hire
from tireless.domain.issue import RepoRef
from tireless.forge.gitea import GiteaForge
from tireless.forge.person import Person
from tireless.loopback import LoopbackForge, Rules, forgejo_rules

__all__ = ["Server", "forge", "server", "stage"]

_T = TypeVar("_T")


@dataclass
class Server:
    """One server of the suite and the people on it."""

    kind: str
    """`loopback`, `loopback-forgejo`, `gitea` or `forgejo`."""
    cast: Cast
    loopback: LoopbackForge | None = None
    names: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def is_forgejo(self) -> bool:
        """Whether it behaves as Forgejo does."""
        return self.kind.endswith("forgejo")

    async def next_second(self, stage: Stage) -> None:
        """Let the server's clock pass into another second: moved on the loopback forge, awaited on a real one."""
        if self.loopback is not None:
            await self.loopback.advance(1)
            return
        before = (await stage.bot.api("GET", "/version")).server_date
        for _ in range(100):
            if (await stage.bot.api("GET", "/version")).server_date != before:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the server's clock stands still")


def _in_thread(work: Coroutine[object, object, _T]) -> _T:
    """Run to the end on a loop of its own, whatever loop the tests use."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _hired(site_admin: Person) -> Cast:
    async with site_admin:
        return await hire(site_admin, suffix=f"-{secrets.token_hex(3)}")


def _named(kind: str) -> bool:
    """Whether the environment names a real server of this kind."""
    given = {name: os.environ.get(f"TIRELESS_TEST_{kind.upper()}_{name}") for name in ("BIN", "URL", "TOKEN")}
    return bool(given["BIN"] or (given["URL"] and given["TOKEN"]))


def _param(kind: str) -> object:
    """A real server as a parameter; skipped, visibly, when none is named."""
    name = f"TIRELESS_TEST_{kind.upper()}"
    none = pytest.mark.skip(f"no real {kind}: set {name}_URL and {name}_TOKEN, or {name}_BIN")
    return pytest.param(kind, marks=[] if _named(kind) else [none])


@pytest.fixture(scope="session", params=["loopback", "loopback-forgejo", _param("gitea"), _param("forgejo")])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with people, for the whole run."""
    kind = str(request.param)
    directory = tmp_path_factory.mktemp(kind)
    if kind.startswith("loopback"):
        loopback = LoopbackForge(directory, rules=forgejo_rules() if kind.endswith("forgejo") else Rules())
        _in_thread(loopback.__aenter__())
        try:
            yield Server(kind, _in_thread(_hired(admin(loopback))), loopback)
        finally:
            _in_thread(loopback.__aexit__(None, None, None))
        return
    given = {name: os.environ.get(f"TIRELESS_TEST_{kind.upper()}_{name}") for name in ("BIN", "STATIC", "URL", "TOKEN")}
    if given["URL"] and given["TOKEN"]:
        login = _in_thread(_login(given["URL"], given["TOKEN"]))
        yield Server(kind, _in_thread(_hired(Person(url=given["URL"], login=login, token=given["TOKEN"]))))
        return
    static = Path(given["STATIC"]) if given["STATIC"] else None
    with real_gitea.started(Path(str(given["BIN"])), directory, static=static) as (url, token):
        yield Server(kind, _in_thread(_hired(Person(url=url, login=real_gitea.ADMIN, token=token))))


async def _login(url: str, token: str) -> str:
    forge = client(url, token)
    try:
        about = await forge.about()
    finally:
        await forge.aclose()
    assert about.login is not None, "TIRELESS_TEST_GITEA_TOKEN may not ask who it speaks for"
    return about.login.login


@pytest_asyncio.fixture
async def stage(server: Server) -> AsyncIterator[Stage]:
    """A fresh repository on the server."""
    made = await build_stage(server.cast, name=f"widgets{next(server.names)}")
    yield made
    await made.close()


@pytest_asyncio.fixture
async def forge(stage: Stage) -> AsyncIterator[GiteaForge]:
    """The bot's client."""
    made = client(stage.url, stage.bot.token)
    yield made
    await made.aclose()


def other_repo(repo: RepoRef, name: str) -> RepoRef:
    """Another repository of the same owner."""
    return RepoRef(repo.forge, repo.owner, name)
