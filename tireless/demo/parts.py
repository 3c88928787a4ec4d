"""The processes of the demo: the loopback forge, `tireless serve`, two `tireless run`; each started, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tireless.errors import TirelessError

_STOP_S = 15.0
"""How long a process that was told to end may take before it is killed."""

# By a program in between, not between fork and exec: in a process with threads Python code there may hang.
_LEASH = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):  # gone before it was arranged
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Part:
    """One child process in a session of its own, its output in a file; `async with` ends it. It never outlives us."""

    def __init__(self, name: str, argv: Sequence[str], *, log: Path, said: bool = False) -> None:
        self.name = name
        self.log = log
        self._argv = argv
        self._said = said
        self._told = False
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        # Out of our own group: Ctrl-C in the terminal is for the demo, which ends its parts.
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *_leashed(self._argv),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if self._said else log,
                stderr=log,
                start_new_session=True,
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.end()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def end(self) -> None:
        """Tell it to end, once: a second signal would mean more than that."""
        if self.alive and self._process is not None and not self._told:
            self._told = True
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    async def first_line(self) -> dict[str, str]:
        """The JSON object that a part with `said` prints first."""
        if self._process is None or self._process.stdout is None:
            raise TirelessError(f"{self.name} was asked what it says before it was started")
        line = await self._process.stdout.readline()
        if not line:
            raise self.died()
        return {key: str(value) for key, value in json.loads(line).items()}

    @property
    def alive(self) -> bool:
        """Has it been started and not ended?"""
        return self._process is not None and self._process.returncode is None

    def died(self) -> TirelessError:
        """What to say when it ended by itself."""
        last = self.log.read_text(errors="replace").strip().splitlines()[-5:] if self.log.exists() else []
        return TirelessError(f"{self.name} ended by itself; its log {self.log} ends:\n" + "\n".join(last))


def _leashed(argv: Sequence[str]) -> list[str]:
    """The command line of a program that is killed when we are gone, however we went (Linux)."""
    if sys.platform != "linux":
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *argv]


def tireless(*words: str) -> list[str]:
    """The command line of another tireless process with this interpreter."""
    return [sys.executable, "-P", "-m", "tireless", *words]


def forge_part(directory: Path) -> Part:
    """The loopback forge as a process that ends with its standard input, so that it never outlives us."""
    words = ["-m", "tireless.loopback", "--with-stdin", "--git-dir", str(directory / "git")]
    return Part("the loopback forge", [sys.executable, "-P", *words], log=directory / "forge.log", said=True)


def left_running(directory: Path) -> list[int]:
    """Pids of other processes whose words or environment name the demo's directory (Linux; elsewhere none are seen)."""
    found: list[int] = []
    mark = os.fsencode(directory)
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "cmdline").read_bytes() or mark in (entry / "environ").read_bytes():
                found.append(pid)
    return sorted(found)


async def advance(forge_url: str, seconds: float) -> None:
    """The loopback forge's clock moves on, so that nobody has to sleep through the resolution of its stamps."""
    call = urllib.request.Request(  # noqa: S310  the address of our own child process
        f"{forge_url}/_loopback/clock",
        data=json.dumps({"advance": seconds}).encode(),
        headers={"Content-Type": "application/json"},
    )
    answer = await asyncio.to_thread(urllib.request.urlopen, call, timeout=10)
    answer.close()
