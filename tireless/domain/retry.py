"""How long to wait before trying again: pure arithmetic in seconds; jitter and the time are handed in."""

from __future__ import annotations

from datetime import datetime

BACKOFF_BASE_S = 30.0
BACKOFF_CAP_S = 1800.0
BLOCKED_BASE_S = 3600.0
BLOCKED_CAP_S = 86_400.0
PERMANENT_BASE_S = 60.0
PERMANENT_CAP_S = 900.0
"""Between two looks at a repository that cannot be worked on."""
QUOTA_BASE_S = 300.0
MAX_HOLD_S = 3600.0
"""The longest an agent's word may hold a lane."""
BREAKER_BASE_S = 900.0
BREAKER_CAP_S = 14_400.0
PROMISE_CAP_S = 7 * 86_400.0
"""The longest an agent may ask to be left alone (`retry_after` of a blocked job)."""


def doubling(times: int, *, base_s: float, cap_s: float) -> float:
    """`base_s` after the first time, twice as much after each further one, at most `cap_s`."""
    # The exponent is bounded so that a job given back ten thousand times overflows nothing.
    return min(cap_s, base_s * 2.0 ** min(max(times - 1, 0), 64))


def backoff_s(attempt: int, *, jitter: float, base_s: float = BACKOFF_BASE_S, cap_s: float = BACKOFF_CAP_S) -> float:
    """The wait after failed attempt number `attempt` (from 1), full jitter: `jitter` in [0, 1) of the doubled base."""
    return jitter * doubling(attempt, base_s=base_s, cap_s=cap_s)


def blocked_s(times: int, *, asked_s: float | None = None) -> float:
    """How long a blocked job sleeps: what the agent asked for, else 1 h doubling to 24 h over `times` in a row."""
    if asked_s is not None:
        return min(asked_s, PROMISE_CAP_S)
    return doubling(times, base_s=BLOCKED_BASE_S, cap_s=BLOCKED_CAP_S)


def quota_hold_s(
    times: int, *, jitter: float, asked_s: float | None = None, base_s: float = QUOTA_BASE_S, max_s: float = MAX_HOLD_S
) -> float:
    """How long a lane is held after a provider's limit: the time it named, else `base_s` doubling over `times`.

    Never longer than `max_s`: an agent's word must not close a lane for a week. Jitter in [0, 1) lengthens a guess
    by up to a quarter, so that lanes of one provider do not all come back at once.
    """
    if asked_s is not None:
        return min(max(asked_s, 1.0), max_s)
    return min(max_s, doubling(times, base_s=base_s, cap_s=max_s) * (1.0 + jitter / 4.0))


def breaker_hold_s(times: int) -> float:
    """How long the breaker holds a lane when it trips for the `times`-th time in a row: 15 min doubling to 4 h."""
    return doubling(times, base_s=BREAKER_BASE_S, cap_s=BREAKER_CAP_S)


def wait_s(retry_after: float | datetime | None, *, now: datetime) -> float | None:
    """A result's `retry_after` as seconds from `now` (aware), never negative; None when nothing was asked."""
    match retry_after:
        case None:
            return None
        case datetime():
            return max(0.0, (retry_after - now).total_seconds())
        case _:
            return max(0.0, retry_after)
