"""Runs `tireless` as a real process, with an environment of its own, and hands back what it said."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

from tireless.cli import tireless as tireless_group
from tireless.cli.frame import run_main

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "tireless")


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:  # whatever JSON holds: tests look into it
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which nothing of the machine's own installation counts."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "TIRELESS_INSTALLATION__STATE_DIR": str(home / "state"),
        **(more or {}),
    }


async def tireless(
    *words: str | Path, home: Path, env: Mapping[str, str] | None = None, timeout_s: float = 120.0
) -> Said:
    """Run one command to its end."""
    done = await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, *map(str, words)],
        cwd=home,
        env=environment(home, env),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def closed(path: Path, content: str) -> Path:
    """A file only its owner can read."""
    path.write_text(content)
    path.chmod(0o600)
    return path


class Running:
    """A `tireless` process that stays; its log, one JSON object a line, is read as it comes. `async with` it."""

    def __init__(self, *words: str | Path, home: Path, env: Mapping[str, str] | None = None) -> None:
        self._words = [*COMMAND, *map(str, words)]
        self._home = home
        self._env = environment(home, env)
        self._changed = asyncio.Event()
        self.lines: list[str] = []
        self.log: list[dict[str, Any]] = []

    async def __aenter__(self) -> Running:
        self.process = await asyncio.create_subprocess_exec(
            *self._words,
            cwd=self._home,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            line = raw.decode()
            self.lines.append(line.rstrip("\n"))
            if line.startswith("{"):
                self.log.append(json.loads(line))
            self._changed.set()
        self._changed.set()

    async def logged(self, event: str, *, nth: int = 1, timeout_s: float = 120.0) -> dict[str, Any]:
        """The n-th log line of this event, which may still have to come; its end before that is a failure."""
        async with asyncio.timeout(timeout_s):
            while True:
                self._changed.clear()
                found = [line for line in self.log if line["event"] == event]
                if len(found) >= nth:
                    return found[nth - 1]
                assert not self._reading.done(), "it ended:\n" + "\n".join(self.lines)
                await self._changed.wait()

    async def stop(self, number: signal.Signals = signal.SIGINT, *, timeout_s: float = 120.0) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), timeout_s)


_ONE_AT_A_TIME = threading.Lock()


async def inside(*words: str | Path, home: Path, env: Mapping[str, str] | None = None) -> Said:
    """The same command in a thread of this process: starting one costs a second where many tests share two cores.

    One at a time, since standard output and the environment are the process's. Signals and imports are not tested.
    """

    def work() -> Said:
        out, err = io.StringIO(), io.StringIO()
        with (
            _ONE_AT_A_TIME,
            mock.patch.dict(os.environ, environment(home, env), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run_main(tireless_group, [str(word) for word in words])
        return Said(code, out.getvalue(), err.getvalue())

    return await asyncio.to_thread(work)


class Desk:
    """An operator with nothing but a database URL."""

    def __init__(self, home: Path, dsn: str) -> None:
        self.home = home
        self.env = {"TIRELESS_DATABASE__URL": dsn, "SUDO_USER": "olga"}

    async def __call__(self, *words: str | int) -> Said:
        """Run one command."""
        return await inside(*map(str, words), home=self.home, env=self.env)

    async def process(self, *words: str | int) -> Said:
        """Run one command as a process of its own."""
        return await tireless(*map(str, words), home=self.home, env=self.env)
