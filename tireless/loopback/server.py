"""Runs a loopback forge: in a thread of this process (tests), or as the process's only work (`python -m`)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import uvicorn

from tireless.loopback.app import Forge
from tireless.loopback.faults import Callback, Fault, FaultPlan, When
from tireless.loopback.journal import Recorded
from tireless.loopback.state import Rules
from tireless.loopback.world import World

_T = TypeVar("_T")

ADMIN_LOGIN = "root1"
ADMIN_TOKEN = "loopback-admin-token"  # noqa: S105  reachable on a loopback port of this machine only
ADMIN_PASSWORD = "loopback-admin-password"  # noqa: S105  likewise


def build(git_root: Path, *, url: str, rules: Rules | None = None) -> Forge:
    """An instance with nothing in it but a site admin; a Gitea 1.26 unless `rules` say otherwise."""
    world = World(git_root, rules)
    world.root_url = url
    forge = Forge(world)
    admin = world.add_user(ADMIN_LOGIN, is_admin=True, password=ADMIN_PASSWORD)
    world.add_token(admin, "admin", secret=ADMIN_TOKEN, scopes=frozenset({"all"}))
    return forge


def listen(port: int = 0) -> socket.socket:
    """A listening socket on 127.0.0.1, never on anything else."""
    # the protocol is named because asyncio switches Nagle off only where it reads TCP: else 40 ms an answer
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(128)
    return sock


class Server(uvicorn.Server):
    """Leaves signals alone: uvicorn's own way re-raises them when it is done, before anything can be tidied up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def server_for(forge: Forge) -> uvicorn.Server:
    """A uvicorn server for an instance; the Date header is the instance's own."""
    config = uvicorn.Config(
        forge.app(),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=60,
    )
    return Server(config)


class FaultHandle:
    """A fault as the test's own loop may use it."""

    def __init__(self, owner: LoopbackForge, fault: Fault) -> None:
        self._owner = owner
        self.fault = fault

    async def reached(self, timeout_s: float = 30.0) -> None:
        """Wait until it has struck; TimeoutError after that long."""
        await self._owner.run(lambda: asyncio.wait_for(self.fault.reached.wait(), timeout_s))

    async def release(self) -> None:
        """Let who waits at it go on."""
        await self._owner.call(self.fault.released.set)

    async def drop(self) -> None:
        """Take it away."""
        await self._owner.call(lambda: self._owner.forge.faults.drop(self.fault.id))


class LoopbackForge:
    """`async with LoopbackForge() as forge:` a running instance with a loop and a thread of its own.

    Its own thread, so that a test may block (`subprocess.run(["git", "push", …])`) and the forge still answers.
    State is changed through HTTP, or on its loop with `call`; reading `forge.world` between requests is safe.
    """

    def __init__(self, directory: Path | None = None, *, port: int = 0, rules: Rules | None = None) -> None:
        self._rules = rules
        self._directory = directory
        self._port = port
        self._owned: Path | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self.url = ""
        self.admin_token = ADMIN_TOKEN
        self.admin_password = ADMIN_PASSWORD
        self.admin_login = ADMIN_LOGIN

    async def __aenter__(self) -> Self:
        if self._directory is None:
            self._owned = self._directory = Path(tempfile.mkdtemp(prefix="tireless-loopback-"))
        sock = listen(self._port)
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self.forge = build(self._directory, url=self.url, rules=self._rules)
        self._server = server_for(self.forge)
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(sock, started), name="loopback-forge", daemon=True)
        self._thread.start()
        await asyncio.to_thread(started.wait)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.call(self.forge.faults.clear)
        assert self._server is not None and self._thread is not None  # noqa: S101, PT018  entered
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join)
        if self._owned is not None:
            await asyncio.to_thread(shutil.rmtree, self._owned, ignore_errors=True)

    def _serve(self, sock: socket.socket, started: threading.Event) -> None:
        server = self._server
        assert server is not None  # noqa: S101  entered

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            started.set()
            try:
                await server.serve(sockets=[sock])
                await self.forge.deliverer.settle()
            finally:
                sock.close()

        asyncio.run(main())

    @property
    def world(self) -> World:
        """The state; change it on the forge's loop only."""
        return self.forge.world

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a plain function on the forge's loop."""

        async def run() -> _T:
            return function()

        return await self.run(run)

    async def run(self, function: Callable[[], Coroutine[object, object, _T]]) -> _T:
        """Run a coroutine function on the forge's loop."""
        assert self._loop is not None  # noqa: S101  entered
        future: concurrent.futures.Future[_T] = asyncio.run_coroutine_threadsafe(_started(function), self._loop)
        return await asyncio.wrap_future(future)

    async def fault(self, plan: FaultPlan) -> FaultHandle:
        """Set a fault."""
        return FaultHandle(self, await self.call(lambda: self.forge.faults.add(plan)))

    async def hook(self, method: str, path: str, callback: Callback, *, when: When = "after", times: int = 0) -> None:
        """Call back (on the forge's loop) before or after matching requests; `times=0`: all of them."""
        await self.fault(FaultPlan(method, path, "call", when=when, times=times, callback=callback))

    def requests(self, *, after: int = 0) -> list[Recorded]:
        """What was received, oldest first."""
        return self.forge.journal.rows(after=after)

    @property
    def last_request(self) -> int:
        """The highest sequence number so far: pass it to `requests(after=…)`."""
        return self.forge.journal.last

    async def advance(self, seconds: float) -> None:
        """Move the forge's clock."""
        await self.call(lambda: self.world.clock.advance(seconds))


async def _started(function: Callable[[], Coroutine[object, object, _T]]) -> _T:
    return await function()
