"""The servers the conformance suite runs against: the loopback forge, and a real one where the environment names it.

TIRELESS_TEST_GITEA_URL with TIRELESS_TEST_GITEA_TOKEN (a site admin's) names a running server, else
TIRELESS_TEST_GITEA_BIN a binary to start (TIRELESS_TEST_GITEA_STATIC: its source tree, if its assets are not embedded).
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
from tireless.loopback import LoopbackForge

__all__ = ["Server", "forge", "server", "stage"]

_T = TypeVar("_T")


@dataclass
class Server:
    """One server of the suite and the people on it."""

    kind: str
    """`loopback` or `gitea`."""
    cast: Cast
    loopback: LoopbackForge | None = None
    names: Iterator[int] = field(default_factory=lambda: count(1))

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


_REAL = bool(
    os.environ.get("TIRELESS_TEST_GITEA_BIN")
    or (os.environ.get("TIRELESS_TEST_GITEA_URL") and os.environ.get("TIRELESS_TEST_GITEA_TOKEN"))
)
_NONE = pytest.mark.skip(
    "no real forge: set TIRELESS_TEST_GITEA_URL and TIRELESS_TEST_GITEA_TOKEN, or TIRELESS_TEST_GITEA_BIN"
)


@pytest.fixture(scope="session", params=["loopback", pytest.param("gitea", marks=[] if _REAL else [_NONE])])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with people, for the whole run."""
    if request.param == "loopback":
        loopback = LoopbackForge(tmp_path_factory.mktemp("loopback"))
        _in_thread(loopback.__aenter__())
        try:
            yield Server("loopback", _in_thread(_hired(admin(loopback))), loopback)
        finally:
            _in_thread(loopback.__aexit__(None, None, None))
        return
    url, token = os.environ.get("TIRELESS_TEST_GITEA_URL"), os.environ.get("TIRELESS_TEST_GITEA_TOKEN")
    if url and token:
        login = _in_thread(_login(url, token))
        yield Server("gitea", _in_thread(_hired(Person(url=url, login=login, token=token))))
        return
    binary, static = os.environ["TIRELESS_TEST_GITEA_BIN"], os.environ.get("TIRELESS_TEST_GITEA_STATIC")
    work = tmp_path_factory.mktemp("gitea")
    with real_gitea.started(Path(binary), work, static=Path(static) if static else None) as (url, token):
        yield Server("gitea", _in_thread(_hired(Person(url=url, login=real_gitea.ADMIN, token=token))))


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
