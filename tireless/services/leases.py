"""Keeps the claims of one runner process alive, all in one statement, and tells their agents what the answer was.

An agent's deadline counts from *before* the claim or renewal was sent, on CLOCK_BOOTTIME: whatever the network, the
database or the machine does meanwhile, the agent is dead before another runner can have the job.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tireless import log
from tireless.agent.control import Control, boottime
from tireless.domain.outcome import Stop
from tireless.errors import StoreError
from tireless.services.waiting import first_of
from tireless.store.claim import Claim, Renewal, renew_claim
from tireless.store.db import Pool

_log = log.get(__name__)

RENEW_MAX_S = 10.0
"""The longest between two renewals, however long the lease: they bring the news of a cancel whose NOTIFY was lost."""
_CALL_S = 10.0
_AGAIN_S = 1.0
_STUCK_S = 60.0
"""Longer than any try takes, and the wait for the next."""
_OUTRANKS = (Stop.LEASE_LOST, Stop.CANCELLED, Stop.SHUTDOWN)
"""What stands when an attempt was called off for several reasons: the first of these."""


@dataclass(slots=True, eq=False)
class Held:
    """One claim while it is worked on, and whether it was called off meanwhile."""

    claim: Claim
    control: Control
    margin_s: float
    sent: float
    """`boottime` before the claim or its last renewal was sent."""
    grace_s: float = 0.0
    """How long before its deadline the guard begins to stop the agent: no renewal brings it back then."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the runner was told to stop: what others signal to its agents then may be part of that."""
    called_off: Stop | None = None
    """LEASE_LOST: another may have the job, and nothing is pushed any more. CANCELLED, SHUTDOWN: end it, say so."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is called off: wakes whoever waits for something that takes long."""
    settling: bool = False
    """The last word is under way. A renewal that finds the claim gone then may have met nothing but that."""

    @property
    def renew_at(self) -> float:
        """When the next renewal is due, on `boottime`."""
        return self.sent + min(self.claim.lease_s / 3, RENEW_MAX_S)

    @property
    def over(self) -> bool:
        """Is the agent dead by now, or being stopped? Then the claim is lost, whatever the database may still say."""
        return self.called_off is Stop.LEASE_LOST or boottime() >= self.control.deadline - self.grace_s

    def renewed(self, answer: Renewal | None, *, sent: float) -> None:
        """Take the answer to a renewal that was sent at `sent`; None: the claim was not ours any more."""
        if answer is None and self.settling:
            return
        # An answer that comes after the deadline is no answer: the guard has not waited for it.
        if answer is None or self.over or boottime() >= sent + answer.lease_left_s - self.margin_s:
            self.call_off(Stop.LEASE_LOST)
            return
        self.sent = sent
        self.control.set_deadline(sent + answer.lease_left_s - self.margin_s)
        if answer.cancel_requested:
            self.call_off(Stop.CANCELLED)

    def call_off(self, why: Stop, *, hurry: bool = False) -> None:
        """End the attempt: stop its agent, wake who waits for something else. `hurry` leaves out the agent's grace."""
        if self.called_off is None or _OUTRANKS.index(why) < _OUTRANKS.index(self.called_off):
            self.called_off = why
        self.control.stop(why, hurry=hurry)
        self.news.set()


class Leases:
    """All claims of this process. `margin_s`: how long before the end of its lease an agent must be dead.

    The pool must be its own (one connection is enough): renewals must not queue behind other words. `wake` is set by
    whoever hears that somebody wants a running job cancelled (NOTIFY `tireless_cancel`): renewals bring the news.
    """

    def __init__(self, pool: Pool, *, margin_s: float, wake: asyncio.Event | None = None) -> None:
        self._pool = pool
        self._margin_s = margin_s
        self._held: set[Held] = set()
        self._changed = asyncio.Event()
        self._tried_at = boottime()
        self.wake = wake or asyncio.Event()

    @property
    def turning(self) -> bool:
        """Is every renewal tried when it is due? A database that does not answer is no fault of this process."""
        due = min((held.renew_at for held in self._held), default=None)
        return due is None or boottime() < max(due, self._tried_at) + _STUCK_S

    def hold(self, claim: Claim, *, sent: float, draining: asyncio.Event | None = None) -> Held:
        """Begin to renew a claim; `sent`: `boottime` before the claim was sent; `draining`: see Held."""
        control = Control(sent + claim.lease_left_s - self._margin_s)
        held = Held(claim, control, self._margin_s, sent, draining=draining or asyncio.Event())
        self._held.add(held)
        self._changed.set()
        return held

    def let_go(self, held: Held) -> None:
        """Its last word is said, or it is lost."""
        self._held.discard(held)

    def call_off_all(self, why: Stop, *, hurry: bool = False) -> None:
        """Tell every attempt to end."""
        for held in self._held:
            held.call_off(why, hurry=hurry)

    async def run(self) -> None:
        """Until cancelled: renew whatever is due, all at once; a database out of reach is asked again each second."""
        while True:
            self._changed.clear()
            due = min((held.renew_at for held in self._held), default=None)
            if due is None:
                await first_of(self._changed)
                continue
            if not self.wake.is_set() and due > boottime():
                await first_of(self._changed, self.wake, timeout_s=due - boottime())
                continue
            self.wake.clear()
            self._tried_at = boottime()
            try:
                await self.renew()
            except (StoreError, TimeoutError) as error:
                # The agents die by their deadlines if this goes on; nobody has to be told.
                _log.warning("renewal failed", claims=len(self._held), error=str(error) or "no answer in time")
                await first_of(timeout_s=_AGAIN_S)
            except Exception as error:  # noqa: BLE001 - the top of a loop: without it every agent would die
                _log.error("renewal failed by a fault of ours", claims=len(self._held), exc_info=error)
                await first_of(timeout_s=_AGAIN_S)

    async def renew(self) -> None:
        """Renew everything that is held, in one statement. Raises StoreError, TimeoutError."""
        self._drop_lost()
        held = list(self._held)
        if not held:
            return
        async with asyncio.timeout(_CALL_S), self._pool.connection() as conn:
            sent = boottime()
            answers = await renew_claim(conn, [(each.claim.job_id, each.claim.token) for each in held])
        for each in held:
            each.renewed(answers.get(each.claim.token), sent=sent)
        self._drop_lost()

    def _drop_lost(self) -> None:
        """What is over is not renewed: its agent is dead, and a fresh lease would only keep the job from others."""
        for each in [held for held in self._held if held.over]:
            self._held.discard(each)
            each.call_off(Stop.LEASE_LOST)
            _log.warning("lease lost", job=each.claim.job_id, claim_no=each.claim.claim_no)
