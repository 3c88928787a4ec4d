"""Tells systemd how this process stands, by $NOTIFY_SOCKET: ready, stopping, alive. Without one it says nothing.

What may go wrong here is logged and never stops the process; a watchdog that is not fed does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Self

from tireless import log
from tireless.services.waiting import first_of

_log = log.get(__name__)

_FEEDS = 3
"""How often a watchdog is fed within its time."""


class Systemd:
    """`began` by each of `parts`, `following` around them. `watchdog_s`: how long it may be silent; None: for ever."""

    def __init__(self, address: str | None, *, watchdog_s: float | None = None, parts: int = 1) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._parts = parts
        self._healthy: list[Callable[[], bool]] = []
        self._ready = asyncio.Event()
        self._starved = False

    @classmethod
    def of(cls, environ: MutableMapping[str, str], *, parts: int = 1) -> Self:
        """From what systemd put into the environment; it is taken out, so that no child speaks for us."""
        address = environ.pop("NOTIFY_SOCKET", None)
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        meant = usec.isdigit() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(address or None, watchdog_s=int(usec) / 1e6 if meant else None, parts=parts)

    def began(self, healthy: Callable[[], bool]) -> None:
        """A part does its work from now on; once all do, the process is ready. `healthy` is asked all the while."""
        self._healthy.append(healthy)
        if len(self._healthy) == self._parts:
            self._say("READY=1", "STATUS=at work")
            self._ready.set()

    @contextlib.asynccontextmanager
    async def following(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Say that it stops once `stop` is set, and feed the watchdog, also while it drains."""
        tasks = [asyncio.create_task(self._stopping(stop))] if self._address else []
        if self._address and self._watchdog_s is not None:
            tasks.append(asyncio.create_task(self._feed(self._watchdog_s / _FEEDS)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stopping(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._say("STOPPING=1", "STATUS=draining")

    async def _feed(self, every_s: float) -> None:
        """Only while all parts are well: a process that hangs is started again."""
        await self._ready.wait()
        while True:
            well = all(healthy() for healthy in self._healthy)
            if well:
                self._say("WATCHDOG=1")
            elif not self._starved:
                _log.error("watchdog not fed, a loop has not succeeded for too long", what="see /healthz and this log")
            self._starved = not well
            await first_of(timeout_s=every_s)

    def _say(self, *lines: str) -> None:
        if self._address is None:
            return
        # An abstract socket's name begins with a zero byte, which no environment can hold: systemd writes @.
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), name)
        except OSError as error:
            _log.warning("systemd not told", address=self._address, what=lines[0], error=str(error))
