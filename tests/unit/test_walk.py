"""Reading a list that changes under our hands: where it ends, what is new, and when rows may have slipped past."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tireless.domain.walk import SAME_AGAIN, Step, Walk


def read(walk: Walk, numbers: Sequence[int], *, total: int | None = None, nameless: int = 0) -> Step:
    """Note a page of these rows."""
    return walk.page(numbers, nameless=nameless, newest=None, rows=len(numbers) + nameless, total=total)


@pytest.mark.parametrize("total", [None, 9])
def test_a_short_page_is_not_the_last_and_an_empty_one_is(total: int | None) -> None:
    """Without a total, or with one not reached."""
    walk = Walk()
    assert [read(walk, rows, total=total) for rows in ([9, 8, 7], [6], [])] == [Step.ON, Step.ON, Step.END]


def test_all_of_the_total_shown_is_the_end() -> None:
    """Rows that repeat count once."""
    walk = Walk()
    steps = [read(walk, rows, total=total) for rows, total in (([3, 2], 3), ([2], 4), ([1], 4), ([4], 4))]
    assert steps == [Step.ON, Step.ON, Step.ON, Step.END]
    assert walk.fresh([4, 5]) == {5}
    assert not walk.torn


def test_rows_without_a_number_may_be_counted_twice_and_end_nothing() -> None:
    """Only an empty page does then; before, the same bad row shown twice hid the last good one."""
    walk = Walk()
    assert read(walk, [4, 3], nameless=1, total=5) is Step.ON
    assert read(walk, [2], nameless=1, total=5) is Step.ON
    assert read(walk, [1], total=5) is Step.ON
    assert read(walk, [], total=5) is Step.END


def test_a_total_that_falls_tears_the_walk() -> None:
    """A deleted row lets those behind it move up, perhaps from the page to come to the one that was read."""
    walk = Walk()
    assert read(walk, [9, 8, 7], total=6) is Step.ON
    assert read(walk, [5, 4], total=5) is Step.END  # 6 moved up to the first page; 9, which is gone, was counted
    assert walk.torn


@pytest.mark.parametrize("nameless", [0, 2])
def test_pages_that_show_nothing_new_go_in_circles(nameless: int) -> None:
    """The same rows, or rows nobody can read, page after page."""
    walk = Walk()
    read(walk, [1], total=100)
    steps = [read(walk, [] if nameless else [1], nameless=nameless, total=100) for _ in range(SAME_AGAIN)]
    assert steps == [Step.ON] * (SAME_AGAIN - 1) + [Step.CIRCLES]
