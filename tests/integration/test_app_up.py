"""`tireless up`: everything in one process, from a label to a pull request, on a private database, and its end."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support import rows
from tests.support.cli import Running, tireless
from tests.support.place import AGENT, REPOSITORY, Place, a_place, ask_for, config, open_home
from tests.support.processes import until_gone
from tireless.embedded import EmbeddedPostgres
from tireless.store.db import Connection

NEVER = '[runner]\nidle_poll = "1h"\n'


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A forge with alice's project and the bot as a writer there."""
    async with a_place() as found:
        yield found


@pytest.fixture
async def home() -> AsyncIterator[Path]:
    """Where the operator works."""
    async with open_home() as path:
        yield path


def agent(home: Path, text: str = AGENT) -> list[str]:
    """A script as an agent's command."""
    (home / "agent.py").write_text(text)
    return [sys.executable, str(home / "agent.py")]


async def seen(place: Place, method: str, path: str) -> asyncio.Event:
    """An event that is set once the forge has answered such a request."""
    happened, loop = asyncio.Event(), asyncio.get_running_loop()
    await place.forge.hook(method, path, lambda _request: loop.call_soon_threadsafe(happened.set))
    return happened


async def test_a_label_becomes_a_pull_request(home: Path, place: Place) -> None:
    """One command against a forge: a person labels an issue, its pull request appears; Ctrl-C ends with 0 and nothing
    of it is left running, the private database included."""
    opened = await seen(place, "POST", r"/repos/alice/project/pulls$")
    told = await seen(place, "POST", r"/issues/\d+/comments$")
    path = config(home, place.url, token=place.bot.token, command=agent(home))
    async with Running("up", "--config", path, home=home) as up:
        page = str((await up.logged("page opened"))["url"])
        assert up.lines[0].startswith("tireless: no database is configured, using a private PostgreSQL")
        assert str(home / "state" / "pg") in up.lines[0]
        number = await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        await asyncio.wait_for(opened.wait(), 90)
        await asyncio.wait_for(told.wait(), 90)
        async with httpx.AsyncClient(base_url=page) as client:
            health = (await client.get("/healthz")).json()
            assert health["ok"], health
            assert {each["name"] for each in health["loops"]} >= {"poller 1", "publisher", "mirror", "sweeper"}
            assert (await client.get("/readyz")).status_code == 200
        # From another process, on the database that `up` keeps running.
        lanes = await tireless("lanes", "ls", "--json", "--config", path, home=home)
        assert [each["name"] for each in lanes.data["lanes"]] == ["claude"]
        assert await up.stop(signal.SIGINT) == 0
    (pull,) = await place.alice.pulls(REPOSITORY)
    assert re.search(rf"(?i)closes #{number}\b", str(pull["body"]))
    assert await left_over(home) == []


async def test_a_process_has_one_ear(home: Path, place: Place, dsn: str, conn: Connection) -> None:
    """Services and runner listen over one connection: it wakes the runner for a job long before its next poll."""
    listening = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name LIKE 'tireless listen%'
    """
    path = config(home, place.url, token=place.bot.token, dsn=dsn, command=agent(home), more=NEVER)
    async with Running("up", "--config", path, home=home) as up:
        await up.logged("page opened")
        await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        await up.logged("job delivered")
        assert await rows.value(conn, listening) == 1
        assert await up.stop(signal.SIGINT) == 0


async def test_draining_lets_the_last_work_be_delivered(home: Path, place: Place) -> None:
    """Told to stop while an agent works, `up` waits for it and ends with 0; what is left the next start delivers."""
    flag, go = home / "started", home / "go"
    slow = f"""
import pathlib, time
pathlib.Path({str(flag)!r}).touch()
while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)
"""
    path = config(home, place.url, token=place.bot.token, command=agent(home, slow + AGENT))
    async with Running("up", "--config", path, home=home) as up:
        await up.logged("page opened")
        await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        while not flag.exists():  # noqa: ASYNC110 - a file cannot be awaited
            await asyncio.sleep(0.05)
        up.process.send_signal(signal.SIGTERM)
        await up.logged("draining began")
        go.touch()
        assert (await up.logged("attempt finished"))["outcome"] == "done"
        assert await asyncio.wait_for(up.process.wait(), 90) == 0
    opened = await seen(place, "POST", r"/repos/alice/project/pulls$")
    if not await place.alice.pulls(REPOSITORY):
        async with Running("up", "--config", path, home=home) as up:
            await asyncio.wait_for(opened.wait(), 90)
            assert await up.stop() == 0
    assert len(await place.alice.pulls(REPOSITORY)) == 1
    assert await left_over(home) == []


async def test_a_second_signal_gives_running_work_back(home: Path, place: Place) -> None:
    """Draining waits for the agent; one more signal stops it, and its attempt does not count."""
    flag = home / "started"
    waits = f"import pathlib, signal\npathlib.Path({str(flag)!r}).touch()\nprint('up', flush=True)\nsignal.pause()\n"
    path = config(home, place.url, token=place.bot.token, command=agent(home, waits))
    async with Running("up", "--config", path, home=home) as up:
        await up.logged("page opened")
        await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        await up.logged("job claimed")
        while not flag.exists():  # noqa: ASYNC110 - a file cannot be awaited
            await asyncio.sleep(0.05)
        up.process.send_signal(signal.SIGTERM)
        assert "agents that run go on" in (await up.logged("stop requested"))["now"]
        assert (await up.logged("draining began"))["working"] == 1
        assert await up.stop(signal.SIGTERM) == 0
        finished = await up.logged("attempt finished")
        assert finished["outcome"] == "shutdown"
    assert await left_over(home) == []


async def test_a_third_signal_stops_at_once(home: Path, place: Place) -> None:
    """An agent that will not stop holds nobody up for ever: exit 1, and the guard ends it."""
    flag = home / "started"
    waits = (
        "import pathlib, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(flag)!r}).touch()\nwhile True: signal.pause()\n"
    )
    path = config(home, place.url, token=place.bot.token, command=agent(home, waits))
    async with Running("up", "--config", path, home=home) as up:
        await up.logged("page opened")
        await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        while not flag.exists():  # noqa: ASYNC110 - a file cannot be awaited
            await asyncio.sleep(0.05)
        up.process.send_signal(signal.SIGTERM)
        await up.logged("draining began")
        up.process.send_signal(signal.SIGTERM)
        assert "agents are stopped" in (await up.logged("stop requested", nth=2))["now"]
        assert await up.stop(signal.SIGTERM) == 1
        assert "stopped at once" in up.lines[-1]
    assert await left_over(home) == []


async def left_over(home: Path) -> list[str]:
    """Command lines of processes that still live in this directory, once all of them have had time to end."""
    assert await EmbeddedPostgres(home / "state" / "pg").stopped(90)
    return [*(await until_gone(home)).values()]
