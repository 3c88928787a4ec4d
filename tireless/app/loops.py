"""Runs services for ever: tick, wait to be woken, back off after a failure. It knows no service and decides nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import UTC
from typing import Protocol

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from tireless import log
from tireless.errors import TirelessError
from tireless.services.waiting import first_of
from tireless.web.health import Pulse

_log = log.get(__name__)

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 60.0
JITTER_PART = 0.1
"""How far a schedule may stray, as a part of its interval: many processes shall not ask in step."""

DRAIN_S = 10.0
"""How long a tick under way may go on once the process was told to stop; every tick may be cut anywhere."""


class Service(Protocol):
    """One of the services: a name, and one step at a time."""

    name: str

    async def tick(self) -> bool:
        """One unit of work; True when there may be more at once."""


class Loop:
    """One service, ticked for ever. `every_s` is how often it is woken when nobody else wakes it."""

    def __init__(self, service: Service, *, every_s: float) -> None:
        self.service = service
        self.every_s = every_s
        self.wake = asyncio.Event()
        self.failures = 0
        self.error: str | None = None
        self._good_at = time.monotonic()
        self._ticked = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. A tick that fails is logged and tried again, later each time."""
        while not stop.is_set():
            # Cleared before the tick: a wake that comes during it must not be lost.
            self.wake.clear()
            try:
                more = await self._tick(stop)
            except Exception as error:  # noqa: BLE001 - the top of a loop: log, back off, go on
                await self._failed(error, stop)
                continue
            self._good_at, self._ticked = time.monotonic(), True
            self.failures, self.error = 0, None
            if more:
                await asyncio.sleep(0)  # a busy service must not starve its neighbours
            else:
                await first_of(stop, self.wake)

    async def _tick(self, stop: asyncio.Event) -> bool:
        """One tick; one under way when the process is told to stop may go on for DRAIN_S, then it is cut."""
        tick = asyncio.ensure_future(self.service.tick())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([tick, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not tick.done():
                await asyncio.wait([tick], timeout=DRAIN_S)
            if tick.done():
                return await tick
            _log.warning("tick cut", service=self.service.name, after_s=DRAIN_S)
            return False
        finally:
            stopping.cancel()
            await _cancelled(tick)

    async def _failed(self, error: Exception, stop: asyncio.Event) -> None:
        self.failures += 1
        self.error = str(error) or type(error).__name__
        wait_s = backoff_s(self.failures, random.random())  # noqa: S311 - jitter, no secret
        facts = {"service": self.service.name, "failures": self.failures, "again_in_s": round(wait_s, 1)}
        if isinstance(error, TirelessError):
            _log.warning("tick failed", error=self.error, **facts)
        else:
            _log.error("tick failed by a fault of ours", exc_info=error, **facts)
        # Not woken early: what wakes a loop is new work, and the fault is still there.
        await first_of(stop, timeout_s=wait_s)

    def pulse(self, name: str | None = None) -> Pulse:
        """Good while the last successful tick is not older than three schedules and the longest backoff."""
        age_s = time.monotonic() - self._good_at
        return Pulse(
            name=name or self.service.name,
            ok=age_s <= 3 * self.every_s + BACKOFF_MAX_S,
            started=self._ticked,
            age_s=age_s,
            failures=self.failures,
            error=self.error,
        )


def backoff_s(failures: int, random_part: float) -> float:
    """Seconds to wait after the n-th failure in a row: doubling, capped, between half and all of it at random."""
    full = min(BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 30), BACKOFF_MAX_S)
    return full * (0.5 + random_part / 2)


async def _cancelled(task: asyncio.Future[bool]) -> None:
    """Cancel and see it end: nothing of a tick may go on behind our back."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # fetched, lest it be reported as lost


def schedule(loops: Sequence[Loop]) -> AsyncIOScheduler:
    """The schedule, not yet started: it only sets wake events, each loop does its own work."""
    scheduler = AsyncIOScheduler(
        timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
    )
    for loop in loops:
        # No first run is asked for: every loop begins with a tick of its own.
        scheduler.add_job(
            _set,
            "interval",
            args=[loop.wake],
            seconds=loop.every_s,
            jitter=loop.every_s * JITTER_PART,
            name=loop.service.name,
        )
    return scheduler


async def _set(event: asyncio.Event) -> None:
    """A coroutine, since a plain function would run in a thread, where no event may be set."""
    event.set()
