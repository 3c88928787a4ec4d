"""How a service waits for a forge that does not answer: per forge, in this process; decides nothing about a row."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

from tireless.domain.retry import doubling
from tireless.errors import ForgeDenied, ForgeError, ForgeRejected, ForgeUnavailable, Moved, NotFound, RateLimited

STAY_S = 900.0
"""Between two tries of what a person has to mend."""

OUTAGE_S = 120.0
"""At most so long a forge that does not answer is left alone: to ask costs next to nothing, and it is back any time."""

MOVED_S = 60.0
"""After a redirect: the poller finds the repository's new name meanwhile."""


class Patience:
    """One forge that is down must not hold up the others: it is left alone for a while, longer each time."""

    def __init__(
        self,
        forges: Iterable[str],
        *,
        base_s: float,
        cap_s: float,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forges = tuple(forges)
        self._base_s = base_s
        self._cap_s = cap_s
        self._jitter = jitter
        self._clock = clock
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}

    def now(self) -> float:
        """The moment, for `failed`."""
        return self._clock()

    def ready(self) -> list[str]:
        """The forges that may be asked now."""
        now = self._clock()
        return [name for name in self._forges if self._until.get(name, 0.0) <= now]

    def answered(self, forge: str) -> None:
        """It answered."""
        self._answered_at[forge] = self._clock()
        self._failures.pop(forge, None)
        self._until.pop(forge, None)

    def failed(self, forge: str, error: ForgeError, *, asked_at: float | None = None) -> bool:
        """It did not answer: leave it alone. False: it has answered others since we asked, so it is not the forge."""
        if asked_at is not None and self._answered_at.get(forge, float("-inf")) >= asked_at:
            return False
        now, until = self._clock(), self._until.get(forge, 0.0)
        if until > now:
            # Sent before it was left alone: the same silence, heard by another. Only a time it names is news.
            if isinstance(error, RateLimited):
                self._until[forge] = max(until, now + self.wait_s(error, 1))
            return True
        failures = self._failures[forge] = self._failures.get(forge, 0) + 1
        self._until[forge] = now + self.wait_s(error, failures)
        return True

    def wait_s(self, error: ForgeError, failures: int) -> float:
        """Seconds until what failed with `error` for the `failures`-th time in a row is tried again."""
        match error:
            case RateLimited(retry_after_s=float(asked)):
                return min(max(asked, self._base_s), self._cap_s)
            case ForgeDenied() | NotFound() | ForgeRejected():
                return STAY_S
            case ForgeUnavailable(status=None | 502 | 503 | 504):
                cap_s = min(self._cap_s, OUTAGE_S)
            case _:
                cap_s = self._cap_s
        return doubling(failures, base_s=self._base_s, cap_s=cap_s) * (0.5 + self._jitter() / 2)


def is_doubtful(error: ForgeError) -> bool:
    """Does it say that a repository may not be what it was: gone, renamed, archived, not to be written to any more?"""
    return isinstance(error, Moved | NotFound) or error.status in (403, 423)


def is_outage(error: ForgeError) -> bool:
    """Whether the forge as a whole is out of reach, rather than one repository or one call."""
    return isinstance(error, ForgeUnavailable) and (error.status is None or isinstance(error, RateLimited))
