"""Processes that use a private PostgreSQL, and looking at what they leave: from outside, by /proc."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import tireless
from tireless.store.db import connect

CLIENT = """
import asyncio, sys
from pathlib import Path
from tireless.embedded import EmbeddedPostgres

async def main():
    async with EmbeddedPostgres(Path(sys.argv[1]), fast=True) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def _environ() -> dict[str, str]:
    """What a client is given: the way to our code and to psycopg, and one thing it must keep to itself."""
    code = [str(Path(module.__path__[0]).resolve().parent) for module in (tireless, psycopg)]
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(code), "TIRELESS_SECRET": "s3cret"}


@functools.cache
def interpreter_for(user: str) -> str:
    """A Python of our version that this user can run with our code; skips the test where there is none."""
    minor = f"python3.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{minor}", f"/usr/local/bin/{minor}"):
        with contextlib.suppress(OSError):
            command = [candidate, "-P", "-c", "import tireless.embedded"]
            if subprocess.run(command, cwd="/", env=_environ(), user=user, check=False).returncode == 0:
                return candidate
    pytest.skip(f"user {user} can run no Python {minor} with this checkout: one of them lies in a closed directory")


class Client:
    """A process that uses the server until its standard input is closed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, state: Path, user: str = "") -> Client:
        """Start it; it need not be up yet."""
        entry = pwd.getpwnam(user) if user else None
        return cls(
            await asyncio.create_subprocess_exec(
                *(interpreter_for(user) if user else sys.executable, "-P", "-c", CLIENT, str(state)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
                env=_environ(),
                user=entry.pw_uid if entry else None,
                group=entry.pw_gid if entry else None,
                extra_groups=[] if entry else None,
            )
        )

    async def url(self) -> str:
        """The URL it was given, once the server is up."""
        assert self.process.stdout
        line = (await self.process.stdout.readline()).decode().strip()
        if not line:
            pytest.fail(f"the client ended: {(await self.process.communicate())[1].decode()}")
        return line

    async def stop(self) -> None:
        """Let it end by itself."""
        _, said = await self.process.communicate(b"")  # closes its input
        assert self.process.returncode == 0, said.decode()

    async def kill(self) -> None:
        """SIGKILL, unless it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.communicate()


async def until(holds: Callable[[], object], within_s: float = 90) -> None:
    """Poll until `holds`; TimeoutError when it does not in time."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.05)


def server_pid(state: Path) -> int:
    """The postmaster's process id."""
    return int((state / "data" / "postmaster.pid").read_text().splitlines()[0])


def parent_of(pid: int) -> int:
    """The parent process: the keeper, for the postmaster."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def ask(url: str, query: str) -> object:
    """The single value of a query on a connection of its own, None when it has no rows."""
    conn = await connect(url, application_name="tireless test")
    try:
        cursor = await conn.execute(query.encode())
        row = await cursor.fetchone() if cursor.description else None
        return row[0] if row else None
    finally:
        await conn.close()


async def started(clients: list[Client], state: Path, user: str = "") -> tuple[Client, str]:
    """A client that is up, and its URL."""
    clients.append(await Client.start(state, user))
    return clients[-1], await clients[-1].url()
