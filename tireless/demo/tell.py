"""Tells the story of `tireless demo`: starts everything, acts as the people, watches, checks, ends everything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tireless.demo import setting
from tireless.demo.forge_side import read_forge
from tireless.demo.parts import Part, advance, forge_part, left_running, tireless
from tireless.demo.people import Town, act, settle_in
from tireless.demo.row_side import read_rows
from tireless.demo.sides import Rows, Side, differences, out_of_step
from tireless.demo.story import STEADY, SWIFT, Scene
from tireless.demo.watch import Watch
from tireless.domain.issue import RepoRef
from tireless.domain.labels import LabelScheme, label_specs
from tireless.domain.routing import Lane
from tireless.embedded import EmbeddedPostgres
from tireless.forge.gitea import GiteaForge
from tireless.forge.person import Person
from tireless.services.labelling import ensure_labels
from tireless.store.db import Pool
from tireless.store.db import pool as open_pool
from tireless.store.migrate import migrate

LIMIT_S = 55.0
"""How long the story may take before it is ended and called wrong."""
SCHEME = LabelScheme()
_LOOK_S = 0.2
_GONE_S = 20.0

Say = Callable[[str], None]
Keep = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Told:
    """How it came out. `left_running` counts processes of the demo that still live after everything was ended."""

    seconds: float
    forge_url: str
    database_url: str
    repository: str
    cast: Mapping[int, Scene]
    rows: Rows
    forge: Side
    wrong: tuple[str, ...]
    left_running: int = 0

    @property
    def ok(self) -> bool:
        """Is the forge as the rows say, are the rows as the labels asked, and is nothing left?"""
        return not self.wrong and self.left_running == 0

    @property
    def mirror_in_step(self) -> bool:
        """Do labels and comments on the forge equal the rows?"""
        return not out_of_step(self.rows, self.forge)


@dataclass(frozen=True, slots=True)
class Ground:
    """A forge to tell the story on. `later` returns when the forge's clock has moved on by more than a second."""

    admin: Person
    later: Callable[[], Awaitable[None]]
    suffix: str = ""
    """Keeps the names of the people apart from others' on a forge that is not ours alone."""


async def tell(say: Say, *, keep: Keep | None = None, ground: Ground | None = None) -> Told:
    """The whole story, on a loopback forge of its own unless there is a `ground`.

    `keep`: leave everything up after it until this returns. To be cancelled is to end everything, too.

    Raises EmbeddedError or another TirelessError when a part could not be started, or ended by itself.
    """
    directory = _directory()
    server = EmbeddedPostgres(directory / "pg", fast=True)
    try:
        try:
            told = await _with_parts(directory, server, say, keep, ground)
        finally:
            if server.state.exists():
                await server.stopped(_GONE_S)  # it writes to the end
        left = left_running(directory)
        if left:
            say(f"still running: {left}")
        return replace(told, left_running=len(left))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="tireless-demo-"))
    if os.geteuid() == 0:
        directory.chmod(0o711)  # the database's user has to pass; what is secret is closed by itself
    return directory


async def _with_parts(
    directory: Path, server: EmbeddedPostgres, say: Say, keep: Keep | None, ground: Ground | None
) -> Told:
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        say("Starting a private PostgreSQL and a forge …" if ground is None else "Starting a private PostgreSQL …")
        await stack.enter_async_context(server)
        ground = ground or await _own_forge(stack, directory)
        town = await settle_in(ground.admin, suffix=ground.suffix)
        stack.push_async_callback(town.close)
        url = ground.admin.url
        config = setting.write(
            directory, database=server.url, url=url, token=town.bot.token, repository=town.repository
        )
        await migrate(server.url)
        pool = await stack.enter_async_context(open_pool(server.url, max_size=2, application_name="tireless demo"))
        await _labels(pool, town, url)
        say(f"Acting as {town.owner.login} and {town.stranger.login} in {url}/{town.repository} …")
        cast = await act(town, later=ground.later)
        parts = [await stack.enter_async_context(part) for part in _working_parts(directory, config)]
        stack.callback(_end, parts)
        done = await _until_rest(pool, town, cast, Watch(say, cast), parts)
        rows, side = await read_rows(pool), await read_forge(town.owner, town.repository, bot=town.bot.login)
        wrong = differences(cast, rows, side)
        if not done:
            wrong.append(f"the story did not come to rest within {LIMIT_S:.0f} s")
        told = Told(time.monotonic() - began, url, server.url, town.repository, cast, rows, side, tuple(wrong))
        if keep is not None:
            _invite(say, told, config)
            await keep()
        say("Ending everything …")
    return told


def _end(parts: list[Part]) -> None:
    """All at once, and before any is waited for."""
    for part in parts:
        part.end()


async def _own_forge(stack: contextlib.AsyncExitStack, directory: Path) -> Ground:
    """A loopback forge as a child process."""
    forge = await stack.enter_async_context(forge_part(directory))
    said = await forge.first_line()
    admin = Person(url=said["url"], login=said["login"], token=said["token"], password=said["password"])
    await stack.enter_async_context(admin)
    return Ground(admin, later=lambda: advance(said["url"], 2.0))


def _working_parts(directory: Path, config: Path) -> list[Part]:
    """`serve` and a runner for each lane."""
    options = ("--config", str(config))
    return [
        Part("serve", tireless("serve", *options), log=directory / "serve.log"),
        *(
            Part(
                f"run {lane}", tireless("run", *options, "--lane", lane, "--name", lane), log=directory / f"{lane}.log"
            )
            for lane in (STEADY, SWIFT)
        ),
    ]


async def _labels(pool: Pool, town: Town, url: str) -> None:
    """The labels people steer with, as `tireless labels sync` makes them."""
    forge = GiteaForge(name=setting.FORGE, url=url, token=town.bot.token)
    lanes = [Lane(STEADY), Lane(SWIFT)]
    try:
        await ensure_labels(pool, forge, RepoRef(forge.name, *town.repository.split("/")), label_specs(SCHEME, lanes))
    finally:
        await forge.aclose()


async def _until_rest(pool: Pool, town: Town, cast: Mapping[int, Scene], watch: Watch, parts: list[Part]) -> bool:
    """Watch until every job rests and the forge shows it. False when the time is over."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for part in parts:
            if not part.alive:
                raise part.died()
        rows = await read_rows(pool)
        watch.look(rows)
        if _rests(rows, cast):
            side = await read_forge(town.owner, town.repository, bot=town.bot.login)
            watch.see(side)
            if not differences(cast, rows, side):
                return True
        await asyncio.sleep(_LOOK_S)
    return False


def _rests(rows: Rows, cast: Mapping[int, Scene]) -> bool:
    """Has everything that asks a job, and has every job ended or does it wait for a person?"""
    asking = {number for number, scene in cast.items() if scene.asks}
    ended = {
        job.number for job in rows.jobs if job.state in ("delivered", "failed", "cancelled") or job.status == "parked"
    }
    return asking <= ended and len(ended) == len({job.number for job in rows.jobs})


def _invite(say: Say, told: Told, config: Path) -> None:
    """How to look around while everything is up."""
    command = f"tireless {{}} --config {config}"
    say("Everything stays up until Ctrl-C. Look and play:")
    say(f"  forge     {told.forge_url}/{told.repository}")
    say(f"  database  {told.database_url}")
    for words in ("jobs ls", "lanes ls", f"explain {told.repository}#{min(told.cast)}", "doctor"):
        say(f"  {command.format(words)}")
