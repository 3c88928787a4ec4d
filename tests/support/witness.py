"""A named pipe that every process of a run holds open: says when the agent is ready, and when all of them are gone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

LIMIT_S = 90.0
"""How long anything waited for may take before the test fails; nothing is ever slept through."""


class Witness:
    """The agent opens `path` for writing (`exec 9>"$WITNESS"`); what it starts inherits that end."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "witness"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._read = b""
        self._opened = False
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._take)

    def _take(self) -> None:
        data = os.read(self._fd, 65_536)
        self._read += data
        if data:
            self._changed.set()
        else:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._gone.set()

    async def line(self) -> str:
        """The next line somebody wrote."""
        while b"\n" not in self._read:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), LIMIT_S)
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    async def gone(self) -> None:
        """Returns when nobody holds the writing end any more. Call after the first line came."""
        await asyncio.wait_for(self._gone.wait(), LIMIT_S)

    def close(self) -> None:
        """Give the reading end back."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
