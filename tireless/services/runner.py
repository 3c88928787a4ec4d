"""One runner process: claims for its lanes as long as it has free slots, and works on what it gets; drains when told.

Knows neither the forge nor what becomes of a job: it claims, has the work done (work.py), and claims again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from tireless import __version__, log
from tireless.agent.control import boottime
from tireless.agent.upkeep import Upkeep
from tireless.domain.outcome import Stop
from tireless.domain.retry import doubling
from tireless.errors import StoreError, StoreUnavailable
from tireless.services.leases import Held, Leases
from tireless.services.waiting import all_gone, first_of, unless
from tireless.services.work import Worker
from tireless.store.claim import MAX_BATCH, Claim, RunnerId, claim_next, forget_runner, show_runner
from tireless.store.db import Pool

_log = log.get(__name__)

_SHOW_S = 30.0
_FORGET_S = 5.0
_COLD_S = 60.0
"""By when the agents of a runner that was killed are surely gone: their guards hold the runs until then."""
_FAILED_BASE_S, _FAILED_CAP_S = 0.5, 30.0
_CLAIM_S = 60.0
"""How long a claim may take at most: longer than anybody may lock claims out for."""
_FAULT_BASE_S, _FAULT_CAP_S = 1.0, 60.0
"""The pause before the next claim when attempts end by faults of our own: a broken host must not churn the queue."""
_LAST_CLAIM_S = 10.0
"""How long a claim under way may take once we were told to stop: what it took is given back, not forgotten."""


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
        upkeep: Upkeep,
        tidy_every_s: float = 600.0,
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._leases = leases
        self._identity = identity
        self._lanes = list(lanes)
        self._slots = slots
        self._idle_poll_s = idle_poll_s
        self._wake = wake
        self._upkeep = upkeep
        self._tidy_every_s = tidy_every_s
        self._after: str | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._haunted: set[asyncio.Task[None]] = set()
        """Slots without a job whose last run left processes that nobody could kill."""
        self._freed = asyncio.Event()
        self._faults = 0

    @property
    def cancels(self) -> asyncio.Event:
        """To be set by whoever hears that somebody wants a running job cancelled (NOTIFY `tireless_cancel`)."""
        return self._leases.wake

    @property
    def healthy(self) -> bool:
        """Are its agents' leases looked after? Not whether database and forge answer: a new start mends neither."""
        return self._leases.turning

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event, *, once: bool = False) -> None:
        """Claim and work until `stop`, then wait for the agents; `hurry` stops them and gives their attempts back.

        To be cancelled is to be in a hurry, and again: at once. `once`: end when there is nothing left to claim and
        everything claimed has ended; then a database out of reach is a StoreError, not waited for.
        """
        if once:
            await self._tidy()
        parts = [self._leases.run(), self._show()]
        if not once:
            parts.append(self._keep_tidy())
        helpers = [asyncio.create_task(part) for part in parts]
        try:
            await self._serve(stop, hurry, once=once)
            await self._drain(hurry)
            if once:
                await self._tidy()
        except BaseException:
            # No agent may go on without us.
            await self._give_back()
            raise
        finally:
            for helper in (*helpers, *self._haunted):
                helper.cancel()
            await asyncio.gather(*helpers, *self._haunted, return_exceptions=True)
        await self._forget()

    async def _serve(self, stop: asyncio.Event, hurry: asyncio.Event, *, once: bool) -> None:
        failures = 0
        while not stop.is_set():
            # Cleared before asking: a wake during the claim must not be lost.
            self._wake.clear()
            self._freed.clear()
            if self._free() <= 0:
                await first_of(stop, self._freed)
                continue
            if self._faults:
                await first_of(stop, timeout_s=doubling(self._faults, base_s=_FAULT_BASE_S, cap_s=_FAULT_CAP_S))
            try:
                got = await unless(stop, self._claim(stop), patience_s=_LAST_CLAIM_S)
            except StoreError as error:
                failures += 1
                wait_s = doubling(failures, base_s=_FAILED_BASE_S, cap_s=_FAILED_CAP_S)
                _log.warning("claim failed", lanes=self._lanes, error=str(error), again_in_s=wait_s)
                if once:
                    await self._drain(hurry)
                    raise
                await first_of(stop, timeout_s=wait_s)
                continue
            failures = 0
            if got:
                continue
            if once and not self._working:
                return
            # Also woken by an end of ours: it may have freed a place that a limit had closed.
            await first_of(stop, self._wake, self._freed, timeout_s=self._idle_poll_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret

    def _free(self) -> int:
        return self._slots - len(self._working) - len(self._haunted)

    async def _claim(self, stop: asyncio.Event) -> int:
        """Claim for every free slot and begin to work; how many were claimed. Raises StoreError."""
        try:
            async with asyncio.timeout(_CLAIM_S), self._pool.connection() as conn:
                sent = boottime()
                n = min(self._free(), MAX_BATCH)
                claims = await claim_next(conn, self._lanes, runner=self._identity, n=n, after=self._after)
                # Inside: to give the connection back is to wait, and somebody may cancel us then.
                for claim in claims:
                    self._begin(claim, sent, stop)
        except TimeoutError as error:
            raise StoreUnavailable(f"claiming a job: the database did not answer within {_CLAIM_S:g} s") from error
        return len(claims)

    def _begin(self, claim: Claim, sent: float, stop: asyncio.Event) -> None:
        self._after = claim.lane
        held = self._leases.hold(claim, sent=sent, draining=stop)
        if stop.is_set():
            held.call_off(Stop.SHUTDOWN)  # given back at once: a drain must not begin to wait for it
        task = asyncio.create_task(self._work(held), name=f"job {claim.job_id}")
        self._working.add(task)
        task.add_done_callback(self._ended)

    async def _work(self, held: Held) -> None:
        """One job, to its last word. Nothing escapes: the other agents go on, and the lease frees the job."""
        claim = held.claim
        try:
            worked = await self._worker.work(held)
        except Exception as error:  # noqa: BLE001 - the top of one job's task
            _log.error("attempt broke off", job=claim.job_id, claim_no=claim.claim_no, exc_info=error)
            return
        finally:
            self._leases.let_go(held)
        self._faults = self._faults + 1 if worked.our_fault else 0
        if worked.survivors:
            what = "end them by hand: they keep a slot of this runner"
            _log.error("processes survived", job=claim.job_id, pids=list(worked.survivors), what=what)
            self._haunted.add(task := asyncio.create_task(all_gone(worked.survivors)))
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        self._haunted.discard(task)
        self._freed.set()

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Wait for the agents; stop them as soon as somebody is in a hurry."""
        if self._working:
            _log.info("draining began", working=len(self._working))
        while self._working and not hurry.is_set():
            self._freed.clear()
            await first_of(self._freed, hurry)
        await self._give_back()

    async def _give_back(self) -> None:
        """Stop every agent and wait for the last words; to be cancelled meanwhile leaves out the agents' grace."""
        if self._working:
            _log.warning("agents stopped", working=len(self._working))
        self._leases.call_off_all(Stop.SHUTDOWN)
        cancelled: asyncio.CancelledError | None = None
        while self._working:
            try:
                await asyncio.wait(self._working)
            except asyncio.CancelledError as error:
                cancelled = error
                self._leases.call_off_all(Stop.SHUTDOWN, hurry=True)
        if cancelled is not None:
            raise cancelled

    async def _keep_tidy(self) -> None:
        """Beside the work: to save a large tree takes its time. The second round comes when the dead are cold."""
        await self._tidy()
        await first_of(timeout_s=min(self._tidy_every_s, _COLD_S))
        while True:
            await self._tidy()
            await first_of(timeout_s=self._tidy_every_s)

    async def _tidy(self) -> None:
        try:
            await self._upkeep.tidy()
        except Exception as error:  # noqa: BLE001 - the top of a loop
            _log.error("workspaces not tidied up", exc_info=error)

    async def _show(self) -> None:
        """Say that we are alive, for people; a database out of reach is not told."""
        while True:
            try:
                async with asyncio.timeout(_SHOW_S), self._pool.connection() as conn:
                    await show_runner(conn, self._identity, lanes=self._lanes, slots=self._slots, version=__version__)
            except (StoreError, TimeoutError) as error:
                _log.warning("runner not shown", error=str(error) or "no answer in time")
            except Exception as error:  # noqa: BLE001 - the top of a loop
                _log.error("runner not shown by a fault of ours", exc_info=error)
            await first_of(timeout_s=_SHOW_S)

    async def _forget(self) -> None:
        try:
            async with asyncio.timeout(_FORGET_S), self._pool.connection() as conn:
                await forget_runner(conn, self._identity)
        except (StoreError, TimeoutError) as error:
            _log.warning("runner not taken off the list", error=str(error) or "no answer in time")
