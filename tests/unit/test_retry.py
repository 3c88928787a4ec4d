"""Waiting times: they grow, they are bounded, and what was asked for is believed only so far."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.domain.retry import backoff_s, blocked_s, breaker_hold_s, quota_hold_s, wait_s

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("attempt", "ceiling"), [(1, 30), (2, 60), (3, 120), (6, 960), (7, 1800), (8, 1800), (10_000, 1800)]
)
def test_backoff_doubles_to_its_cap_with_full_jitter(attempt: int, ceiling: float) -> None:
    """Base 30 s, doubling, cap 30 min; the jitter takes any share of it, also none."""
    assert backoff_s(attempt, jitter=0.0) == 0
    assert backoff_s(attempt, jitter=0.5) == ceiling / 2


def test_backoff_takes_the_lanes_values() -> None:
    """Base and cap of a lane replace the defaults (the demo waits fractions of a second)."""
    assert backoff_s(3, jitter=0.5, base_s=0.2, cap_s=0.5) == 0.25


@pytest.mark.parametrize(("times", "hours"), [(1, 1), (2, 2), (5, 16), (6, 24), (500, 24)])
def test_blocked_sleeps_longer_each_time(times: int, hours: float) -> None:
    """1 h doubling to 24 h, unless the agent named a time."""
    assert blocked_s(times) == hours * 3600
    assert blocked_s(times, asked_s=90) == 90


def test_blocked_for_ever_is_a_week() -> None:
    """An agent cannot put a job to sleep for longer than a week."""
    assert blocked_s(1, asked_s=1e12) == 7 * 86_400


@pytest.mark.parametrize(("times", "least"), [(1, 300), (2, 600), (3, 1200), (4, 2400), (5, 3600), (99, 3600)])
def test_quota_without_a_reset_time_grows(times: int, least: float) -> None:
    """A limit without a time holds 5 min, doubling, at most the longest hold; jitter only lengthens."""
    assert quota_hold_s(times, jitter=0.0) == least
    assert least <= quota_hold_s(times, jitter=0.99) <= min(least * 1.25, 3600)


def test_quota_with_a_reset_time_is_believed_up_to_the_longest_hold() -> None:
    """The named time counts, but an agent's word holds a lane at most an hour, and at least a second."""
    assert quota_hold_s(1, jitter=0.5, asked_s=61) == 61
    assert quota_hold_s(1, jitter=0.5, asked_s=1e9) == 3600
    assert quota_hold_s(1, jitter=0.5, asked_s=0) == 1


@pytest.mark.parametrize(("times", "minutes"), [(1, 15), (2, 30), (4, 120), (5, 240), (50, 240)])
def test_breaker_holds_longer_each_time(times: int, minutes: float) -> None:
    """15 min doubling to 4 h."""
    assert breaker_hold_s(times) == minutes * 60


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (None, None),
        (12.5, 12.5),
        (NOW + timedelta(minutes=5), 300),
        (NOW - timedelta(minutes=5), 0),
        ((NOW + timedelta(hours=1)).astimezone(timezone(timedelta(hours=-7))), 3600),
    ],
)
def test_times_and_seconds_are_told_apart(asked: float | datetime | None, seconds: float | None) -> None:
    """A reset time of any zone becomes seconds from now; one that has passed means at once."""
    assert wait_s(asked, now=NOW) == seconds


@given(times=st.integers(-5, 10**9), jitter=st.floats(0, 1, exclude_max=True))
def test_no_number_of_failures_leaves_the_bounds(times: int, jitter: float) -> None:
    """However often something failed, every wait is finite and within its cap."""
    assert 0 <= backoff_s(times, jitter=jitter) <= 1800
    assert 3600 <= blocked_s(times) <= 86_400
    assert 300 <= quota_hold_s(times, jitter=jitter) <= 3600
    assert 900 <= breaker_hold_s(times) <= 14_400
