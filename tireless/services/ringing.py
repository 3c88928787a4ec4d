"""Wakes other processes for what committed here: soon, at most once in a while, never for sure (polling is the truth).

With NOTIFY inside them busy transactions commit one behind the other; a statement of its own, now and then, is cheap.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from tireless import log
from tireless.errors import StoreError
from tireless.services.waiting import first_of
from tireless.store.db import Connection, Pool, in_transaction, transaction
from tireless.store.look import Ring, Wake, notify_all

T = TypeVar("T")

_log = log.get(__name__)

EVERY_S = 0.05
"""At most one notification of a channel and payload in so many seconds."""

_ANSWER_S = 5.0


async def _pause() -> None:
    await first_of(timeout_s=EVERY_S)


class Bell:
    """One for all services of a pool. `ring` says whom to wake and returns at once; `run` wakes them.

    `pause` is what it waits for between two notifications.
    """

    def __init__(self, pool: Pool, *, pause: Callable[[], Awaitable[None]] = _pause) -> None:
        self._pool = pool
        self._pause = pause
        self._due: dict[Wake, None] = {}
        self._rung = asyncio.Event()

    def ring(self, wakes: Sequence[Wake]) -> None:
        """Wake these, once each, however often they are named before it happens."""
        self._due |= dict.fromkeys(wakes)
        self._rung.set()

    async def run(self) -> None:
        """For ever; what is due when it is cancelled is for `flush`."""
        while True:
            await self._rung.wait()
            try:
                await self.flush()
            except Exception as error:  # noqa: BLE001 - the top of a loop
                _log.error("nobody woken by a fault of ours", exc_info=error)
            await self._pause()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Ring]:
        """Runs beside what is inside, which rings it; at the end everybody is woken who is due."""
        beside = asyncio.create_task(self.run())
        try:
            yield self.ring
        finally:
            beside.cancel()
            await asyncio.wait([beside])
            await self.flush()

    async def flush(self) -> None:
        """Wake everybody who is due. A database out of reach is told: they find out at their next poll."""
        self._rung.clear()
        wakes, self._due = list(self._due), {}
        if not wakes:
            return
        try:
            async with asyncio.timeout(_ANSWER_S), self._pool.connection() as conn:
                await notify_all(conn, wakes)
        except asyncio.CancelledError:
            self._due = dict.fromkeys([*wakes, *self._due])
            raise
        except (StoreError, TimeoutError) as error:
            channels = sorted({str(wake.channel) for wake in wakes})
            _log.warning("nobody woken, polls will find it", channels=channels, error=str(error) or "no answer in time")


@contextlib.asynccontextmanager
async def rung_transaction(pool: Pool, doing: str, ring: Ring | None) -> AsyncIterator[tuple[Connection, Ring | None]]:
    """A transaction, and whom to tell in it of those it wakes: `ring` hears of them once it has committed.

    Without `ring` they are notified by the transaction itself.
    """
    wakes: list[Wake] = []
    async with pool.connection() as conn, transaction(conn, doing):
        yield conn, None if ring is None else wakes.extend
    if ring is not None and wakes:
        ring(wakes)


async def in_rung_transaction(
    pool: Pool, work: Callable[[Connection, Ring | None], Awaitable[T]], *, doing: str, ring: Ring | None
) -> T:
    """The same around `work`, which is tried again as by `in_transaction`; of a try rolled back nobody hears."""
    wakes: list[Wake] = []

    async def tried(conn: Connection) -> T:
        wakes.clear()
        return await work(conn, None if ring is None else wakes.extend)

    done = await in_transaction(pool, tried, doing=doing)
    if ring is not None and wakes:
        ring(wakes)
    return done
