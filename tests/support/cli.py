"""Runs `tireless` as a real process, with an environment of its own, and hands back what it said."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    *words: str | Path, home: Path, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
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
