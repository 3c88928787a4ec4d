"""Markers in token, title, body and database URL, searched wherever they could have got to, on every path.

Where they belong: the token in its file; the database URL in the configuration; title and body in the issue's row, in
`prompt.md` and `job.json`; the title on the page and in `jobs`, and, as a slug, in the name of a branch; nowhere else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg.conninfo
import pytest

from tests.support import marked_agent, rows
from tests.support.cli import Running, tireless
from tests.support.forges import FaultPlan
from tests.support.place import REPOSITORY, Place, a_place, ask_for, config
from tests.support.planted import (
    BODY,
    PASSWORD,
    SLUG,
    TITLE,
    GitCalls,
    Table,
    in_files,
    in_history,
    in_requests,
    in_rows,
    process_table,
)
from tests.support.proxies import DatabaseProxy
from tireless.store.db import Connection

MASK = "[redacted]"
MORE = """
[web]
port = 0
[runner]
root = "{root}"
idle_poll = "1s"
stop_grace = "1s"
"""


@dataclass
class World:
    """Everything of ours, and everything it touches."""

    home: Path
    place: Place
    conn: Connection
    door: DatabaseProxy
    path: Path
    git: GitCalls
    running: dict[str, Running] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    pages: list[str] = field(default_factory=list)

    async def start(self) -> None:
        """`serve` and `run`."""
        for who, lanes in (("serve", []), ("run", ["--lane", "claude"])):
            process = Running(who, "--config", self.path, *lanes, home=self.home, env={"PATH": self.git.path})
            self.running[who] = await process.__aenter__()
            self.pids[who] = process.process.pid

    async def ask(self, body: str = "", kind: str = "implement") -> int:
        """A marked issue; its number."""
        return await ask_for(self.place, TITLE, "tireless/go", f"tireless/{kind}", body=f"{BODY} {body}")

    async def becomes(self, number: int, state: str, reason: str | None = None) -> None:
        """Wait until the issue's job is so; then look at the pages."""
        query = """
        SELECT count(*) FROM job j JOIN issue i ON i.id = j.issue_id
         WHERE i.number = %(number)s AND j.state = %(state)s AND (%(reason)s::text IS NULL OR j.reason = %(reason)s)
        """
        async with asyncio.timeout(90):
            while await rows.value(self.conn, query, number=number, state=state, reason=reason) != 1:  # noqa: ASYNC110 - a row
                await asyncio.sleep(0.05)
        await self.read()

    async def read(self) -> None:
        """The pages there are, as anybody sees them."""
        url = str((await self.running["serve"].logged("page opened"))["url"]).rstrip("/")
        jobs = await rows.rows(self.conn, "SELECT id FROM job")
        async with httpx.AsyncClient() as client:
            for path in ("/", "/metrics", "/healthz", "/readyz", *(f"/jobs/{job['id']}" for job in jobs)):
                answer = await client.get(f"{url}{path}")
                assert answer.status_code < 300, path
                self.pages.append(answer.text)

    async def command(self, *words: str, url: str = "") -> None:
        """What a command prints is searched like a page."""
        env = {"TIRELESS_DATABASE__URL": url} if url else None
        said = await tireless(*words, "--config", self.path, home=self.home, env=env)
        self.pages.append(f"{words}: {said.code}\n{said.out}{said.err}")

    def logged(self) -> str:
        """All that our processes logged."""
        return "\n".join(line for process in self.running.values() for line in process.lines)


@pytest.fixture
async def world(dsn: str, conn: Connection, tmp_path: Path) -> AsyncIterator[World]:
    """A forge, a door in front of the database, a configuration; nothing of ours runs yet."""
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(a_place())
        door = await stack.enter_async_context(DatabaseProxy(dsn))
        url = psycopg.conninfo.make_conninfo(door.dsn, password=PASSWORD)
        command = [sys.executable, "-I", "-S", marked_agent.__file__, str(tmp_path / "go")]
        more = MORE.format(root=tmp_path / "work")
        path = config(tmp_path, place.url, token=place.bot.token, dsn=url, command=command)
        text = path.read_text().replace("[web]\nport = 0\n", "") + more
        path.write_text(text.replace("[lanes.claude]\n", "[lanes.claude]\nattempts = 1\n"))
        made = World(tmp_path, place, conn, door, path, GitCalls.below(tmp_path))
        yield made
        for process in made.running.values():
            await process.__aexit__(None, None, None)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_nothing_planted_comes_up_anywhere(world: World) -> None:
    """Success, and every way of failing we know: markers are in the places named above, and in no other."""
    token = world.place.bot.token
    markers = (token, PASSWORD, TITLE, BODY, SLUG)
    async with process_table(markers, world.pids) as table:
        await world.start()
        await _delivers(world)
        await _agents_fail(world)
        await _git_fails(world)
        await _database_fails(world, table)
        await _forge_fails(world)
    await _commands(world)
    assert table.shown == set()
    assert "tireless" in table.programs, table.programs
    assert {"git fetch", "git push", "git hash-object"} <= world.git.programs()
    await _nothing_is_anywhere(world, token)


async def _delivers(world: World) -> None:
    await world.becomes(await world.ask(), "delivered")
    await world.becomes(await world.ask(kind="plan"), "delivered")


async def _agents_fail(world: World) -> None:
    await world.becomes(await world.ask("please fail"), "failed", "exhausted")
    await world.becomes(await world.ask("please talk"), "failed", "exhausted")


async def _git_fails(world: World) -> None:
    """The push is refused, then nothing can be fetched."""
    forge = world.place.forge
    refused = await forge.fault(FaultPlan("POST", "git-receive-pack", "answer", status=403, times=0))
    await world.becomes(await world.ask(), "failed", "exhausted")
    await refused.drop()
    broken = await forge.fault(FaultPlan("GET", "git-upload-pack", "answer", status=500, times=0))
    await world.becomes(await world.ask(), "waiting", "backoff")
    await broken.drop()


async def _database_fails(world: World, table: Table) -> None:
    """It goes away while an agent works, and is back before its lease is over. Meanwhile commands say so."""
    number = await world.ask("please wait")
    await world.becomes(number, "claimed")
    await _only_in_the_exchange(world)
    async with asyncio.timeout(90):  # it waits: whoever looks again and again is bound to see it
        while not any("agent" in name for name in table.programs):  # noqa: ASYNC110 - a look at /proc
            await asyncio.sleep(0.05)
    world.door.shut()
    await world.command("jobs", "ls")
    await world.command("doctor")
    (world.home / "go").touch()
    await world.running["run"].logged("database out of reach")
    await world.running["serve"].logged("tick failed")
    world.door.mend()
    await world.becomes(number, "delivered")


async def _forge_fails(world: World) -> None:
    """The API knows the token no more, then it is broken; last of all, since that is waited out ever longer."""
    forge = world.place.forge
    for status in (401, 500):
        plan = FaultPlan("*", "/api/v1/", "answer", status=status, times=0, login=world.place.bot.login)
        fault = await forge.fault(plan)
        await world.command("poll", "--once")
        await world.command("doctor")
        assert fault.fault.applied
        await fault.drop()


async def _only_in_the_exchange(world: World) -> None:
    """While an agent works: neither in its tree and `.git`, nor in the cache, but in what it is handed."""
    handed, runs = {"prompt.md", "job.json"}, world.home / "work" / "runs"
    async with asyncio.timeout(90):
        while {path.name for path in in_files(runs, BODY)} != handed:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.05)
    for marker in (TITLE, BODY):
        found = in_files(runs, marker)
        assert {path.name for path in found} == handed
        assert {path.parts[1] for path in found} == {"exchange"}
        assert in_files(world.home / "work" / "cache", marker) == set()


async def _commands(world: World) -> None:
    jobs = [str(row["id"]) for row in await rows.rows(world.conn, "SELECT id FROM job")]
    for words in (("check-config",), ("doctor",), ("stats",), ("events",), ("explain", f"{REPOSITORY}#1")):
        await world.command(*words)
    for words in (("show",), ("logs",)):
        await world.command("jobs", *words, jobs[0])
    for url in (
        f"postgresql://bot:{PASSWORD}@127.0.0.1:1/none",
        f"postgresql://bot:{PASSWORD}@[::1/none",
        f"postgres:bot:{PASSWORD}",
        f"host=/nowhere password={PASSWORD} nonsense=1",
    ):
        await world.command("jobs", "ls", url=url)


async def _nothing_is_anywhere(world: World, token: str) -> None:
    """The search itself, when all of it is over."""
    rows_with = {marker: await in_rows(world.conn, marker) for marker in (token, PASSWORD, BODY, TITLE, MASK)}
    assert rows_with == {
        token: set(),
        PASSWORD: set(),
        BODY: {"issue.body", "issue.approved_body"},
        TITLE: {"issue.title", "issue.approved_title"},
        MASK: set(),
    }
    files = {marker: {str(path) for path in in_files(world.home, marker)} for marker in (token, PASSWORD, BODY, TITLE)}
    assert files == {token: {"token"}, PASSWORD: {"config.toml"}, BODY: set(), TITLE: set()}
    for marker in (token, PASSWORD, BODY, TITLE):
        assert in_requests(world.place.forge, world.place.bot.login, marker) == []
        assert not in_history(world.place.forge, REPOSITORY, marker)
        assert marker.lower() not in world.logged().lower()
    for marker in (token, PASSWORD, BODY):
        assert [page for page in world.pages if marker.lower() in page.lower()] == []
    assert any(TITLE in page for page in world.pages)
