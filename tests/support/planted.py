"""Markers planted where secrets and strangers' words are, and everything they could have got into, searched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from psycopg import sql

from tests.support.forges import LoopbackForge
from tireless.store.db import Connection

TITLE, BODY, PASSWORD = "Titlemark 4711", "bodymark-4711", "dbmark-4711"
SLUG = "titlemark-4711"
"""What of the title is in the name of a branch."""

_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns
 WHERE table_schema = 'public' AND table_name IN (SELECT tablename FROM pg_tables WHERE schemaname = 'public')
 ORDER BY 1, 2
"""


async def in_rows(conn: Connection, marker: str) -> set[str]:
    """The columns of any table, as `table.column`, in which a marker is; every column is read as text."""
    found = set()
    columns = await (await conn.execute(_COLUMNS)).fetchall()
    assert len(columns) > 150
    for table, column in columns:
        asked = sql.SQL("SELECT count(*) FROM {} WHERE position(lower(%(marker)s) IN lower({}::text)) > 0").format(
            sql.Identifier(table), sql.Identifier(column)
        )
        row = await (await conn.execute(asked, {"marker": marker})).fetchone()
        if row != (0,):
            found.add(f"{table}.{column}")
    return found


def in_files(root: Path, marker: str) -> set[Path]:
    """Files below `root` that have a marker in their content or name, whatever the case; links are not followed."""
    needle, found = marker.lower().encode(), set()
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and (needle in path.read_bytes().lower() or needle in os.fsencode(path).lower()):
                    found.add(path.relative_to(root))
    return found


def in_requests(forge: LoopbackForge, login: str, marker: str) -> list[str]:
    """The bot's requests in whose address, headers or body a marker is; what authorises is not looked at."""
    mine = [each for each in forge.requests() if each.login == login]
    assert mine
    assert all("user-agent" in each.headers for each in mine)
    return [
        f"{each.method} {each.target}"
        for each in mine
        if marker.lower() in f"{each.target}\n{each.headers}\n{each.body}".lower()
    ]


def in_history(forge: LoopbackForge, path: str, marker: str) -> bool:
    """Is a marker in what was pushed: names of refs, messages, authors, contents?"""
    repo = forge.world.repo(*path.split("/"))
    assert repo is not None
    git = ["git", "-c", "safe.directory=*", "--git-dir", str(forge.world.git_dir(repo))]
    told = [subprocess.run([*git, *words], check=True, capture_output=True).stdout for words in _HISTORY]
    assert b"tireless/" in told[0]
    return marker.lower().encode() in b"\n".join(told).lower()


_HISTORY = (["for-each-ref"], ["log", "--all", "--patch", "--format=raw"])


# ------------------------------------------------------------------------------------------------ processes


@dataclass
class Table:
    """What was seen of processes: which programs, and who showed a marker."""

    programs: Counter[str] = field(default_factory=Counter)
    shown: set[str] = field(default_factory=set)


# Git is often gone before anybody can look. This one, first on PATH, notes its words and environment.
_NOTING = """\
#!/bin/sh
cat /proc/$$/cmdline /proc/$$/environ > {place}/$$
exec {git} "$@"
"""


@dataclass(frozen=True)
class GitCalls:
    """Every call of git made through `path`, a value for PATH: what its process was given."""

    place: Path

    @classmethod
    def below(cls, home: Path) -> GitCalls:
        """Lay the noting git below `home`."""
        made = cls(home / "git-calls")
        (made.place / "bin").mkdir(parents=True)
        noting = made.place / "bin" / "git"
        noting.write_text(_NOTING.format(place=made.place, git=shutil.which("git")))
        noting.chmod(0o755)
        return made

    @property
    def path(self) -> str:
        """PATH with the noting git first."""
        return f"{self.place / 'bin'}:{os.environ['PATH']}"

    def programs(self) -> set[str]:
        """`git push` and so on. The first two words are the shell and the file it reads."""
        noted = [path.read_bytes().split(b"\0") for path in self.place.iterdir() if path.is_file()]
        return {_program(b"\0".join([b"git", *words[2:]])) for words in noted}


@asynccontextmanager
async def process_table(markers: Iterable[str], roots: Mapping[str, int]) -> AsyncIterator[Table]:
    """Look at everything that lives below these processes (a live mapping), again and again."""
    needles = [marker.lower().encode() for marker in markers]
    table = Table()

    async def look() -> None:
        while True:
            for pid in list(roots.values()):
                _look(pid, needles, table)
            await asyncio.sleep(0.01)  # the others run meanwhile

    looking = asyncio.create_task(look())
    try:
        yield table
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


def _look(pid: int, needles: list[bytes], table: Table) -> None:
    try:
        words, environment = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        children = [
            child for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
        ]
    except OSError:  # it has ended
        return
    table.programs[_program(words)] += 1
    for where, text in (("words", words), ("environment", environment)):
        if any(needle in text.lower() for needle in needles):
            table.shown.add(f"{where} of {words.replace(bytes(1), b' ')[:200]!r}")
    for child in children:
        _look(int(child), needles, table)


def _program(words: bytes) -> str:
    """`git push`, `guard`, `agent.py`, …: what tells processes apart."""
    parts = words.decode("utf-8", "replace").split("\0")
    if Path(parts[0]).name == "git":
        rest = iter(parts[1:])
        for word in rest:
            if word in ("-c", "--git-dir"):
                next(rest, None)
            elif not word.startswith("-"):
                return f"git {word}"
        return "git"
    names = [Path(part).name for part in parts if part and not part.startswith("-")]
    return next((name for name in names if "guard" in name or "agent" in name or name == "tireless"), "")
