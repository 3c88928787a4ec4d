"""One runner process: claims for its lanes as long as it has free slots, and works on what it gets; drains when told.

Knows neither the forge nor what becomes of a job: it claims, has the work done (work.py), and claims again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from tireless import __version__, log
from tireless.agent.process import boottime
from tireless.domain.outcome import Stop
from tireless.domain.retry import doubling
from tireless.errors import StoreError
from tireless.services.leases import Held, Leases
from tireless.services.waiting import first_of
from tireless.services.work import Worker
from tireless.store.claim import RunnerId, claim_next, forget_runner, show_runner
from tireless.store.db import Pool

_log = log.get(__name__)

_SHOW_S = 30.0
_FAILED_BASE_S, _FAILED_CAP_S = 0.5, 30.0


class Runner:
    """`run` returns when it has drained. `wake` is set by whoever hears that a lane of ours got work."""

    name = "runner"

    def __init__(
        self,
        pool: Pool,
        worker: Worker,
        leases: Leases,
        *,
        identity: RunnerId,
        lanes: Sequence[str],
        slots: int,
        idle_poll_s: float,
        wake: asyncio.Event,
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._leases = leases
        self._identity = identity
        self._lanes = list(lanes)
        self._slots = slots
        self._idle_poll_s = idle_poll_s
        self._wake = wake
        self._after: str | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event, *, once: bool = False) -> None:
        """Claim and work until `stop`, then wait for the agents; `hurry` stops them and gives their attempts back.

        `once`: end when there is nothing left to claim and everything claimed has ended.
        """
        helpers = [asyncio.create_task(self._leases.run()), asyncio.create_task(self._show())]
        try:
            await self._serve(stop, once=once)
            await self._drain(hurry)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        async with self._pool.connection() as conn:
            await forget_runner(conn, self._identity)

    async def _serve(self, stop: asyncio.Event, *, once: bool) -> None:
        failures = 0
        while not stop.is_set():
            # Cleared before asking: a wake during the claim must not be lost.
            self._wake.clear()
            self._freed.clear()
            if len(self._working) >= self._slots:
                await first_of(stop, self._freed)
                continue
            try:
                got = await self.claim_once()
            except StoreError as error:
                failures += 1
                wait_s = doubling(failures, base_s=_FAILED_BASE_S, cap_s=_FAILED_CAP_S)
                _log.warning("claim failed", lanes=self._lanes, error=str(error), again_in_s=wait_s)
                await first_of(stop, timeout_s=wait_s)
                continue
            failures = 0
            if got:
                continue
            if once and not self._working:
                return
            # Also woken by an end of ours: it may have freed a place that a limit had closed.
            await first_of(stop, self._wake, self._freed, timeout_s=self._idle_poll_s * random.uniform(0.8, 1.2))  # noqa: S311

    async def claim_once(self) -> int:
        """Claim for every free slot and begin to work; how many were claimed. Raises StoreError."""
        sent = boottime()
        async with self._pool.connection() as conn:
            free = self._slots - len(self._working)
            claims = await claim_next(conn, self._lanes, runner=self._identity, n=free, after=self._after)
        for claim in claims:
            self._after = claim.lane
            held = self._leases.hold(claim, sent=sent)
            task = asyncio.create_task(self._work(held), name=f"job {claim.job_id}")
            self._working.add(task)
            task.add_done_callback(self._ended)
        return len(claims)

    async def _work(self, held: Held) -> None:
        """One job, to its last word. Nothing escapes: the other agents go on, and the lease frees the job."""
        try:
            await self._worker.work(held)
        except Exception as error:  # noqa: BLE001 - the top of one job's task
            _log.error("attempt broke off", job=held.claim.job_id, attempt=held.claim.attempt_id, exc_info=error)
        finally:
            self._leases.let_go(held)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        self._freed.set()

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Wait for the agents; stop them as soon as somebody is in a hurry."""
        if self._working:
            _log.info("draining began", working=len(self._working))
        told = False
        while self._working:
            self._freed.clear()
            if hurry.is_set() and not told:
                told = True
                self._leases.stop_all(Stop.SHUTDOWN)
            await first_of(self._freed, *(() if told else (hurry,)))

    async def _show(self) -> None:
        """Say that we are alive, for people; a database out of reach is not told."""
        while True:
            try:
                async with self._pool.connection() as conn:
                    await show_runner(conn, self._identity, lanes=self._lanes, slots=self._slots, version=__version__)
            except StoreError as error:
                _log.warning("runner not shown", error=str(error))
            await first_of(asyncio.Event(), timeout_s=_SHOW_S)
