"""What systemd is told, over real datagram sockets: by real processes, and by the watchdog's feeding alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.agents import LIMIT_S
from tests.support.cli import Running
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.place import Place, a_place, ask_for, config
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench
from tireless.agent.control import boottime
from tireless.app.systemd import Systemd
from tireless.services.leases import Leases
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, Pool

NO_FORGE = "http://127.0.0.1:1"
WAITS = "import os, pathlib, signal, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); signal.pause()"


class Manager:
    """systemd's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self._sock.setblocking(False)

    async def hears(self, *words: str, skip: str = "") -> str:
        """The next message, which must be one of `words` by its first line; those that are `skip` are passed over."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                line = (await asyncio.get_running_loop().sock_recv(self._sock, 4096)).decode().splitlines()[0]
                if line != skip:
                    assert line in words, line
                    return line

    @property
    def silent(self) -> bool:
        """Is there nothing to be heard now?"""
        try:
            self._sock.recv(4096)
        except BlockingIOError:
            return True
        return False

    def environ(self, **more: str) -> dict[str, str]:
        """What it gives to the process it starts."""
        return {"NOTIFY_SOCKET": self.address, **more}

    def close(self) -> None:
        """Give the socket back."""
        self._sock.close()


@pytest.fixture(params=["path", "abstract"])
async def manager(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Manager]:
    """One for each kind of socket."""
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@tireless-test-{uuid4()}")
    yield made
    made.close()


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A forge with alice's project and the bot as a writer there."""
    async with a_place() as found:
        yield found


# ------------------------------------------------------------------------------------------------ processes


async def test_serve_says_how_it_stands(tmp_path: Path, dsn: str, manager: Manager) -> None:
    """Ready once it is at work, alive while its loops are well, stopping when told; a forge away is no fault."""
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn)
    env = manager.environ(WATCHDOG_USEC="300000")
    async with Running("serve", "--config", path, home=tmp_path, env=env) as serve:
        assert await manager.hears("READY=1")
        await manager.hears("WATCHDOG=1")
        await manager.hears("WATCHDOG=1")
        serve.process.send_signal(signal.SIGTERM)
        await manager.hears("STOPPING=1", skip="WATCHDOG=1")
        assert await asyncio.wait_for(serve.process.wait(), LIMIT_S) == 0


async def test_a_runner_drains_under_its_watchdog(
    tmp_path: Path, place: Place, dsn: str, conn: Connection, manager: Manager
) -> None:
    """While agents go on to their end after SIGTERM the watchdog is fed; the agent inherits nothing to speak with."""
    seen = tmp_path / "agent.pid"
    path = config(tmp_path, place.url, token=place.bot.token, dsn=dsn, command=[sys.executable, "-c", WAITS, str(seen)])
    async with Running("serve", "--config", path, home=tmp_path) as serve:
        await serve.logged("page opened")
        await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        assert (await serve.logged("job enqueued"))["forge"] == "main"
        assert await serve.stop(signal.SIGTERM) == 0
    env = manager.environ(WATCHDOG_USEC="300000")
    async with Running("run", "--lane", "claude", "--config", path, home=tmp_path, env=env) as runner:
        await manager.hears("READY=1")
        assert (await runner.logged("job claimed"))["forge"] == "main"
        async with asyncio.timeout(LIMIT_S):
            while not (seen.exists() and seen.read_text()):
                await manager.hears("WATCHDOG=1")
        pid = int(seen.read_text())
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
        runner.process.send_signal(signal.SIGTERM)
        await manager.hears("STOPPING=1", skip="WATCHDOG=1")
        for _ in range(3):
            await manager.hears("WATCHDOG=1")
        runner.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(runner.process.wait(), LIMIT_S) == 0
    assert await rows.value(conn, "SELECT outcome FROM attempt") == "shutdown"


async def test_up_is_ready_when_all_of_it_is(tmp_path: Path, dsn: str) -> None:
    """One READY for services and runner together, and one STOPPING."""
    made = Manager(str(tmp_path / "notify"))
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn)
    async with Running("up", "--config", path, home=tmp_path, env=made.environ()) as up:
        await made.hears("READY=1")
        up.process.send_signal(signal.SIGTERM)
        await made.hears("STOPPING=1")
        assert await asyncio.wait_for(up.process.wait(), LIMIT_S) == 0
    assert {line["event"] for line in up.log} >= {"serving began", "runner began"}
    assert made.silent
    made.close()


async def test_a_socket_that_is_gone_stops_nothing(tmp_path: Path, dsn: str) -> None:
    """Nobody listens there: a warning, and the process does its work."""
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn)
    env = {"NOTIFY_SOCKET": str(tmp_path / "nobody")}
    async with Running("run", "--lane", "claude", "--config", path, home=tmp_path, env=env) as runner:
        assert (await runner.logged("systemd not told"))["what"] == "READY=1"
        assert await runner.stop(signal.SIGTERM) == 0


# ------------------------------------------------------------------------------------------------ the watchdog


async def test_a_watchdog_is_fed_only_while_all_is_well(manager: Manager) -> None:
    """Not before it is ready, not while one part is unwell, and again when it is better."""
    well = [True, True]
    asked = asyncio.Semaphore(0)

    def first() -> bool:
        asked.release()
        return well[0]

    environ = manager.environ(WATCHDOG_USEC="30000", WATCHDOG_PID=str(os.getpid()), OTHER="kept")
    systemd, stop = Systemd.of(environ, parts=2), asyncio.Event()
    assert environ == {"OTHER": "kept"}
    async with systemd.following(stop):
        systemd.began(first)
        assert manager.silent
        systemd.began(lambda: well[1])
        await manager.hears("READY=1")
        await manager.hears("WATCHDOG=1")
        for part in range(2):
            well[part] = False
            for _ in range(2):  # what was sent meanwhile
                await asyncio.wait_for(_asked_anew(asked), LIMIT_S)
            while not manager.silent:
                pass
            await asyncio.wait_for(_asked_anew(asked), LIMIT_S)
            assert manager.silent
            well[part] = True
            await manager.hears("WATCHDOG=1")
        stop.set()
        await manager.hears("STOPPING=1", skip="WATCHDOG=1")
        await manager.hears("WATCHDOG=1")


async def _asked_anew(asked: asyncio.Semaphore) -> None:
    """Until a question that comes from now on."""
    while not asked.locked():
        await asked.acquire()
    await asked.acquire()


@pytest.mark.parametrize(
    "given", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "no"}, {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1"}]
)
async def test_a_watchdog_of_somebody_else_is_not_fed(manager: Manager, given: dict[str, str]) -> None:
    """Without a time, or with another process meant, only ready and stopping are said."""
    systemd, stop = Systemd.of(manager.environ(**given)), asyncio.Event()

    def never() -> bool:
        raise AssertionError("nobody is to ask")

    async with systemd.following(stop):
        systemd.began(never)
        await manager.hears("READY=1")
        stop.set()
        await manager.hears("STOPPING=1")
    assert manager.silent


async def test_without_systemd_nothing_is_said() -> None:
    """No socket, no word, no error."""
    systemd, stop = Systemd.of({}), asyncio.Event()
    async with systemd.following(stop):
        systemd.began(lambda: True)
        stop.set()


async def test_leases_that_nobody_tries_to_renew_are_unwell(bench: Bench, pool: Pool) -> None:
    """A renewal long overdue and not tried means that the process hangs; one that is tried in vain does not."""
    await bench.job([])
    (claim,) = await claim_next(bench.conn, [rows.LANE], runner=RunnerId("r1", "h1", uuid4()))
    leases = Leases(pool, margin_s=0.5)
    assert leases.turning
    held = leases.hold(replace(claim, lease_left_s=10_000.0), sent=boottime())
    assert leases.turning
    held.sent -= 3600.0
    leases._tried_at -= 3600.0
    assert not leases.turning
    leases._tried_at += 3600.0
    assert leases.turning
