"""Keeps the claims of one runner process alive, all in one statement, and tells their agents what the answer was.

An agent's deadline counts from *before* the claim or renewal was sent, on CLOCK_BOOTTIME: whatever the network, the
database or the machine does meanwhile, the agent is dead before another runner can have the job.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tireless import log
from tireless.agent.process import Control, boottime
from tireless.domain.outcome import Stop
from tireless.errors import StoreError
from tireless.services.waiting import first_of
from tireless.store.claim import Claim, Renewal, renew_claim
from tireless.store.db import Pool

_log = log.get(__name__)

RENEW_MAX_S = 15.0
"""The longest between two renewals, however long the lease: they also bring the news of a cancel."""
_CALL_S = 10.0
_AGAIN_S = 1.0


@dataclass(slots=True, eq=False)
class Held:
    """One claim while it is worked on. `lost`: another may have the job; nothing more is written."""

    claim: Claim
    control: Control
    margin_s: float
    sent: float
    lost: bool = False
    cancel: str | None = None
    """The reason code, once somebody wants it cancelled."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is lost or to be cancelled: wakes whoever waits for something that takes long."""

    @property
    def renew_at(self) -> float:
        """When the next renewal is due, on `boottime`."""
        return self.sent + min(self.claim.lease_s / 3, RENEW_MAX_S)

    def renewed(self, answer: Renewal | None, *, sent: float) -> None:
        """Take the answer to a renewal that was sent at `sent`; None: the claim was not ours any more."""
        if answer is None or boottime() >= sent + answer.lease_left_s:
            # An answer that comes after its own deadline is no answer.
            self.lose()
            return
        self.sent = sent
        self.control.set_deadline(sent + answer.lease_left_s - self.margin_s)
        if answer.cancel_requested and not self.cancel:
            self.cancel = answer.cancel_requested
            self.control.stop(Stop.CANCELLED)
            self.news.set()

    def lose(self) -> None:
        """The claim is gone: the agent is stopped, and what it did is not used."""
        self.lost = True
        self.control.stop(Stop.LEASE_LOST)
        self.news.set()

    @property
    def over(self) -> bool:
        """Has the lease run out by our own clock? Then nothing may be pushed under it."""
        return self.lost or boottime() >= self.control.deadline


class Leases:
    """All claims of this process. `margin_s`: how long before the end of its lease an agent must be dead."""

    def __init__(self, pool: Pool, *, margin_s: float) -> None:
        self._pool = pool
        self._margin_s = margin_s
        self._held: set[Held] = set()
        self._changed = asyncio.Event()

    def hold(self, claim: Claim, *, sent: float) -> Held:
        """Begin to renew a claim; `sent`: `boottime` before the claim was sent."""
        control = Control(sent + claim.lease_left_s - self._margin_s)
        held = Held(claim, control, self._margin_s, sent)
        self._held.add(held)
        self._changed.set()
        return held

    def let_go(self, held: Held) -> None:
        """Its last word is said, or it is lost."""
        self._held.discard(held)

    def stop_all(self, why: Stop, *, hurry: bool = False) -> None:
        """Tell every agent to end."""
        for held in self._held:
            held.control.stop(why, hurry=hurry)
            held.news.set()

    async def run(self) -> None:
        """Until cancelled: renew whatever is due, all at once; a database out of reach is asked again each second."""
        while True:
            self._changed.clear()
            now = boottime()
            due = min((held.renew_at for held in self._held), default=None)
            if due is None or due > now:
                await first_of(self._changed, timeout_s=None if due is None else due - now)
                continue
            try:
                await self.renew()
            except (StoreError, TimeoutError) as error:
                # The agents die by their deadlines if this goes on; nobody has to be told.
                _log.warning("renewal failed", claims=len(self._held), error=str(error) or "no answer in time")
                await first_of(self._changed, timeout_s=_AGAIN_S)

    async def renew(self) -> None:
        """Renew everything that is held, in one statement. Raises StoreError, TimeoutError."""
        held = [each for each in self._held if not each.lost]
        sent = boottime()
        pairs = [(each.claim.job_id, each.claim.token) for each in held]
        async with asyncio.timeout(_CALL_S), self._pool.connection() as conn:
            answers = await renew_claim(conn, pairs)
        for each in held:
            each.renewed(answers.get(each.claim.token), sent=sent)
            if each.lost:
                self._held.discard(each)
                _log.warning("lease lost", job=each.claim.job_id, attempt=each.claim.attempt_id)
