"""Processes of ours watched from outside: what they print as it comes, what of them lives by /proc, and where."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

LIMIT_S = 90.0
"""How long anything waited for may take before the test fails; nothing is ever slept through."""


def living(mark: Path | str) -> dict[int, str]:
    """Every other process whose words, environment or working directory name this place; pid to command line."""
    found: dict[int, str] = {}
    needle = os.fsencode(mark)
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            place = os.fsencode(os.readlink(entry / "cwd"))
            if needle in words or needle in place or needle in (entry / "environ").read_bytes():
                found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


async def until_gone(mark: Path | str, *, limit_s: float = LIMIT_S) -> dict[int, str]:
    """Wait until nothing lives there; what still does after that time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while living(mark):  # noqa: ASYNC110 - the processes are nobody's children here
                await asyncio.sleep(0.05)
    return living(mark)


@asynccontextmanager
async def empty_place() -> AsyncIterator[Path]:
    """A directory for somebody's temporary files, whoever he is; pytest's own are closed to other users."""
    place = Path(tempfile.mkdtemp(prefix="tireless-place-"))
    place.chmod(0o1777)
    try:
        yield place
    finally:
        for pid in living(place):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await until_gone(place)
        shutil.rmtree(place)


class Process:
    """A process that is read as it prints. `async with` it: at the end it is killed, if it still lives."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, user: str = "") -> None:
        self._argv = argv
        self._env = env
        self._cwd = cwd
        self._user = pwd.getpwnam(user) if user else None
        self._changed = asyncio.Event()
        self.out: list[str] = []
        self.err: list[str] = []

    async def __aenter__(self) -> Self:
        user = self._user
        self.process = await asyncio.create_subprocess_exec(
            *self._argv,
            cwd=self._cwd,
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**22,
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
        )
        assert self.process.stdout
        assert self.process.stderr
        self._reading = asyncio.gather(
            self._read(self.process.stdout, self.out), self._read(self.process.stderr, self.err)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def _read(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        async for raw in stream:
            lines.append(raw.decode().rstrip("\n"))
            self._changed.set()
        self._changed.set()

    async def says(self, words: str, *, limit_s: float = LIMIT_S) -> str:
        """The first line, on either stream, with these words; its end before that is a failure."""
        async with asyncio.timeout(limit_s):
            while True:
                self._changed.clear()
                for line in [*self.out, *self.err]:
                    if words in line:
                        return line
                assert not self._reading.done(), f"it ended without saying {words}:\n" + "\n".join(self.said)
                await self._changed.wait()

    async def ends(self, *, limit_s: float = LIMIT_S) -> int:
        """Its exit code, once it has ended and everything was read."""
        async with asyncio.timeout(limit_s):
            code = await self.process.wait()
            await self._reading
        return code

    @property
    def said(self) -> list[str]:
        """All it printed."""
        return [*self.out, *self.err]
