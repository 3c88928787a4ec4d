"""Wakes other processes for what committed here: soon, at most once in a while, never for sure (polling is the truth).

With NOTIFY inside them busy transactions commit one behind the other; a statement of its own, now and then, is cheap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tireless import log
from tireless.errors import StoreError
from tireless.services.waiting import first_of
from tireless.store.db import Pool
from tireless.store.look import Wake, notify_all

_log = log.get(__name__)

EVERY_S = 0.05
"""At most one notification of a channel and payload in so many seconds."""

_ANSWER_S = 5.0


class Bell:
    """One for a process. `ring` says whom to wake and returns at once; `run` wakes them, by a connection of `pool`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
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
            await first_of(timeout_s=EVERY_S)

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
