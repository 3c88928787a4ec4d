"""How a runner says a word to the database about its claim: again while the database is out of reach, but not for ever.

Every word may be said twice, since each is fenced by the claim's token and answers when it was said before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tireless import log
from tireless.agent.control import boottime
from tireless.domain.outcome import Stop
from tireless.domain.retry import doubling
from tireless.errors import StoreUnavailable
from tireless.services.leases import Held
from tireless.services.waiting import first_of
from tireless.store.db import Connection, Pool

_log = log.get(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a runner tries, in seconds. Waits double from `base` to `cap`."""

    borrow_s: float = 5.0
    """For a connection of the pool: all of them may be waiting for a network that is gone."""
    word_s: float = 30.0
    """For a word to be answered, its connection included."""
    store_base_s: float = 0.5
    store_cap_s: float = 5.0
    store_limit_s: float = 900.0
    """After the end of the lease: a database that is away for so long does not get the word. The sweep has it then."""
    push_base_s: float = 1.0
    push_cap_s: float = 60.0
    push_limit_s: float = 3600.0
    """With a forge that is out of reach. The agent has been paid for: waiting is cheaper than another run."""
    push_refusals: int = 3
    """So often a forge that answers may refuse the branch."""
    hurry_s: float = 15.0
    """For each step that is still to be taken once the runner was told to stop at once."""


class Speaker:
    """Says words about claims over one pool."""

    def __init__(self, pool: Pool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits

    async def say(self, held: Held, word: Callable[[Connection], Awaitable[T]]) -> T:
        """What `word` answers. StoreUnavailable when the database stayed away for too long, StoreError at once."""
        limits, began, failures = self._limits, boottime(), 0
        while True:
            try:
                async with asyncio.timeout(limits.word_s), self._pool.connection(limits.borrow_s) as conn:
                    return await word(conn)
            except (StoreUnavailable, TimeoutError) as error:
                failures += 1
                why = str(error) or f"no answer within {limits.word_s:g} s"
                hurried = held.called_off is Stop.SHUTDOWN
                until = began + limits.hurry_s if hurried else held.control.deadline + limits.store_limit_s
                if boottime() >= until:
                    raise StoreUnavailable(f"gave up a word about job {held.claim.job_id}: {why}") from error
                wait_s = doubling(failures, base_s=limits.store_base_s, cap_s=limits.store_cap_s)
                _log.warning("database out of reach", error=why, again_in_s=wait_s)
            # Not cut short by news: it stays set, and an outage would be met by a busy loop.
            await first_of(timeout_s=wait_s)
