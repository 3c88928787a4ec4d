"""How long services leave a forge alone: one that is down waits longer each time, others go on."""

from __future__ import annotations

import pytest

from tireless.errors import (
    ForgeDenied,
    ForgeError,
    ForgeGarbled,
    ForgeRejected,
    ForgeUnavailable,
    NotFound,
    RateLimited,
)
from tireless.services.patience import OUTAGE_S, STAY_S, Patience, is_outage


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def patience(clock: Clock) -> Patience:
    """Two forges, 10 s doubling to 100 s, the longest jitter."""
    return Patience(["a", "b"], base_s=10.0, cap_s=100.0, jitter=lambda: 1.0, clock=clock)


def test_a_forge_that_is_down_is_left_alone_longer_each_time() -> None:
    """10, 20, 40, 80, 100 s; the other forge is asked all the while; one answer forgets it all."""
    clock = Clock()
    mine = patience(clock)
    waits = []
    for _ in range(6):
        mine.failed("a", ForgeUnavailable("down"))
        assert mine.ready() == ["b"]
        began = clock.now
        while mine.ready() == ["b"]:
            clock.now += 1
        waits.append(clock.now - began)
    assert waits == [10, 20, 40, 80, 100, 100]
    mine.failed("a", ForgeUnavailable("down"))
    mine.answered("a")
    assert mine.ready() == ["a", "b"]


def test_one_silence_is_counted_once_however_many_heard_it() -> None:
    """Requests that were under way together fail together: they make no row of failures, and no longer wait."""
    clock = Clock()
    mine = patience(clock)
    for _ in range(5):
        assert mine.failed("a", ForgeUnavailable("down"))
    clock.now += 10
    assert mine.ready() == ["a", "b"]
    mine.failed("a", ForgeUnavailable("down"))
    clock.now += 19
    mine.failed("a", RateLimited("wait", retry_after_s=50.0))
    clock.now += 49
    assert mine.ready() == ["b"]
    clock.now += 1
    assert mine.ready() == ["a", "b"]


@pytest.mark.parametrize("status", [None, 502, 503, 504])
def test_an_outage_of_any_length_is_over_two_minutes_later(status: int | None) -> None:
    """A forge that is away is asked every two minutes at least; one that answers 500 may wait longer."""
    mine = Patience([], base_s=30.0, cap_s=900.0, jitter=lambda: 1.0)
    assert mine.wait_s(ForgeUnavailable("away", status=status), 40) == OUTAGE_S == 120.0
    assert mine.wait_s(ForgeUnavailable("broken", status=500), 40) == 900.0


def test_a_forge_that_names_a_time_is_taken_at_its_word_within_bounds() -> None:
    """Retry-After is obeyed, but neither for less than the first backoff nor for more than the last."""
    mine = patience(Clock())
    asked = [RateLimited("wait", retry_after_s=seconds) for seconds in (0.0, 42.0, 10_000.0)]
    assert [mine.wait_s(error, 1) for error in asked] == [10.0, 42.0, 100.0]


@pytest.mark.parametrize("error", [ForgeDenied("no"), NotFound("gone"), ForgeRejected("no")])
def test_what_a_person_has_to_mend_waits_a_quarter_of_an_hour(error: ForgeError) -> None:
    """A refusal does not pass by itself: however often, it is tried again at the same slow pace."""
    assert [patience(Clock()).wait_s(error, n) for n in (1, 9)] == [STAY_S, STAY_S]


def test_jitter_never_shortens_to_nothing() -> None:
    """Many processes spread out over half the wait, none comes back at once."""
    low = Patience([], base_s=10.0, cap_s=100.0, jitter=lambda: 0.0)
    assert low.wait_s(ForgeUnavailable("down"), 1) == 5.0


@pytest.mark.parametrize(
    ("error", "whole"),
    [
        (ForgeUnavailable("no connection"), True),
        (RateLimited("wait", status=429), True),
        (ForgeUnavailable("one call", status=500), False),
        (ForgeGarbled("one answer"), False),
        (ForgeDenied("one repository", status=403), False),
    ],
)
def test_an_outage_is_of_the_whole_forge(error: ForgeError, whole: bool) -> None:
    """No connection and "wait" concern the forge; an answered failure may concern one repository only."""
    assert is_outage(error) is whole


def test_a_forge_that_answered_others_meanwhile_is_not_left_alone() -> None:
    """What was asked before that and did not come is one repository's trouble, not the forge's."""
    clock = Clock()
    mine = patience(clock)
    asked_at = mine.now()
    clock.now += 1.0
    mine.answered("a")
    assert not mine.failed("a", ForgeUnavailable("no answer"), asked_at=asked_at)
    assert mine.ready() == ["a", "b"]
    clock.now += 1.0
    assert mine.failed("a", ForgeUnavailable("no answer"), asked_at=mine.now())
    assert mine.ready() == ["b"]
