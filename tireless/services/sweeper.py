"""Moves what time moves: expired claims, due waits, holds, old rows. After a jump of the clock it sweeps nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tireless import log
from tireless.store import sweep
from tireless.store.db import Connection, Pool
from tireless.store.look import Ring

_log = log.get(__name__)


def boot_clock() -> float:
    """Seconds that no clock setting moves, suspended time included where the system counts it (Linux)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at both clocks: the database's, and ours before and after we asked."""

    database: float
    asked: float
    answered: float


class Sweeper:
    """One pass over everything that time decides. Any number may run, on any host."""

    name = "sweeper"

    def __init__(
        self,
        pool: Pool,
        *,
        ring: Ring | None = None,
        retention: sweep.Retention | None = None,
        limit: int = 100,
        prune_every_s: float = 3600.0,
        boottime: Callable[[], float] = boot_clock,
    ) -> None:
        """`ring` is told whom a step wakes; `limit`: rows of one; `boottime`: the machine's own seconds, for tests."""
        self._pool = pool
        self._ring = ring
        self._retention = retention or sweep.Retention()
        self._limit = limit
        self._prune_every_s = prune_every_s
        self._boottime = boottime
        self._seen: _Seen | None = None
        self._quiet_until = float("-inf")
        self._prune_at = float("-inf")

    async def tick(self) -> bool:
        """Sweep once, in steps until nothing is left; False, since nothing more is due at once."""
        async with self._pool.connection() as conn:
            if not await self._clock_is_steady(conn):
                return False
            moved = {
                "expired": await sweep.expire_stale_claims(conn, limit=self._limit, ring=self._ring),
                "woken": await sweep.wake_due(conn, limit=self._limit, ring=self._ring),
                "holds_ended": await sweep.end_holds(conn),
                "made_room": await sweep.wake_full(conn),
            }
            if self._boottime() >= self._prune_at:
                self._prune_at = self._boottime() + self._prune_every_s  # also when it fails: leases come first
                moved["pruned"] = await sweep.prune(conn, retention=self._retention)
        if any(moved.values()):
            _log.info("swept", **{what: count for what, count in moved.items() if count})
        return False

    async def _clock_is_steady(self, conn: Connection) -> bool:
        """False for one lease time after the database's clock ran ahead of our own by a quarter lease.

        Then leases look expired whose agents live; they are renewed meanwhile, and those of the dead stay expired.
        """
        before, asked = self._seen, self._boottime()
        database, shortest, longest = await sweep.clock_and_leases(conn)
        self._seen = _Seen(database, asked, self._boottime())
        if before is not None and shortest is not None and longest is not None:
            # Ours is measured at its longest, so that a slow answer is never taken for a jump.
            ahead = (database - before.database) - (self._seen.answered - before.asked)
            if ahead > shortest / 4:
                self._quiet_until = self._seen.answered + longest
                _log.warning(
                    "the database's clock jumped ahead, sweeping is suspended", seconds=round(ahead), for_s=longest
                )
        return self._boottime() >= self._quiet_until
