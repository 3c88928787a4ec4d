"""Where measurements run: a private PostgreSQL as safe as in production, a database for each subject, and the machine.

The server lies below /var/tmp, since /tmp may be memory, where a commit costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median

from psycopg import sql

from tireless.embedded import EmbeddedPostgres
from tireless.embedded.install import find_install
from tireless.store.db import Connection, connect

WHO = "tireless bench"

SHOWN = (
    "server_version",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_connections",
    "autovacuum",
    "jit",
)
"""The settings that a reader needs to compare."""

PACKAGES = ("tireless", "psycopg", "psycopg-pool", "procrastinate", "pgqueuer", "asyncpg", "uvloop")


class Place:
    """The server while it runs."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self.url = server.url
        """Of the maintenance database."""
        self.state = server.state
        """Its directory, ours to write in."""

    async def database(self, name: str) -> str:
        """A new, empty database of this name; its URL."""
        async with session(self.url) as conn:
            await conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            await conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_of(name)

    def url_of(self, name: str) -> str:
        """The URL of one of its databases."""
        return self._server.url_of(name)

    async def settle_down(self) -> None:
        """Write out what was prepared, so that no checkpoint of it falls into a measurement."""
        async with session(self.url) as conn:
            await conn.execute("CHECKPOINT")


@contextlib.contextmanager
def place(parent: Path | None = None) -> Iterator[Place]:
    """A private server in safe mode, gone with its data at the end."""
    state = (parent or _on_disk()) / f"tireless-bench-{secrets.token_hex(6)}"
    server = EmbeddedPostgres(state, dbname="postgres")
    asyncio.run(server.open())
    try:
        yield Place(server)
    finally:
        server.release()
        asyncio.run(server.stopped(60))
        shutil.rmtree(state)


@contextlib.asynccontextmanager
async def session(url: str) -> AsyncIterator[Connection]:
    """One connection in autocommit, closed at the end."""
    conn = await connect(url, application_name=WHO)
    try:
        yield conn
    finally:
        await conn.close()


def pgbench() -> Path:
    """The program: beside the server's binaries, else the one on PATH."""
    beside = find_install(None) / "bin" / "pgbench"
    if beside.exists():
        return beside
    if found := shutil.which("pgbench"):
        return Path(found)
    raise FileNotFoundError(f"there is no pgbench in {beside.parent} nor on PATH: install postgresql-contrib")


def _on_disk() -> Path:
    kept = Path("/var/tmp")  # noqa: S108 - the directory made in it is new, with a name nobody can guess
    return kept if kept.is_dir() else Path(tempfile.gettempdir())


# ------------------------------------------------------------------------------------------------ what to tell of it

SETTINGS = "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%(names)s)"


async def settings(at: Place) -> dict[str, str]:
    """The server's settings that matter here, as it tells them."""
    async with session(at.url) as conn:
        cursor = await conn.execute(SETTINGS, {"names": list(SHOWN)})
        found = {str(name): str(value) async for name, value in cursor}
    return {name: found[name] for name in SHOWN if name in found}


def versions() -> dict[str, str]:
    """Python and the packages that take part; the ones that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def machine(at: Place) -> dict[str, object]:
    """Processor, memory, kernel, the disk below the server and how long it takes to be sure of a write."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(at.state),
        "sync_ms": round(_sync_ms(at.state), 3),
    }


def load() -> float:
    """How many processes wanted to run, over the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    tool = shutil.which("stat")
    if tool is None:
        return "unknown"
    command = [tool, "--file-system", "--format=%T", str(folder)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words and a path of ours
    return told.stdout.strip() or "unknown"


def _sync_ms(folder: Path, times: int = 50) -> float:
    """The median time to write a page and be sure of it, as a commit must."""
    sync = os.fdatasync if sys.platform == "linux" else os.fsync
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * 8192, 0)
            sync(file.fileno())
            took.append((time.perf_counter() - begun) * 1000)
    return median(took)
