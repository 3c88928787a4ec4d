"""Ten thousand random schedules of updates and polls: the poller's own cursor, walk and skipping miss none of them.

`TIRELESS_TEST_SCHEDULES=1000000 ./run test -k random_schedules` plays so many, others each time; one of them is played
again by `play(range(n, n + 1))` of tests/support/schedules.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from datetime import datetime, timedelta

import pytest

from tests.support.schedules import DATES, LIMITS, Parts, play
from tireless.domain.cursor import Cursor, after_scan
from tireless.domain.walk import Step, Walk

ENDLESS = os.environ.get("TIRELESS_TEST_SCHEDULES")
SCHEDULES = 10_000

AT_LEAST = {
    "same second": 5_000,
    "during a scan": 5_000,
    "crash": 2_000,
    "torn": 100,
    "several pages": 10_000,
    "quiet": 5_000,
    "skipped": 20_000,
    "versions": 100_000,
    **{f"date {date}": 1_000 for date in DATES},
    **{f"limit {limit}": 1_000 for limit in LIMITS},
}
"""What must have happened, so that none of it goes to sleep unseen."""


@pytest.mark.timeout(max(300, int(ENDLESS or 0) // 100))
def test_no_update_is_missed_over_random_schedules() -> None:
    """Two in one second, at a page's edge, during a scan, before a crash; clamped pages; a Date of any kind."""
    many = int(ENDLESS) if ENDLESS else SCHEDULES
    first = random.SystemRandom().randrange(2**32) if ENDLESS else 0
    missed, count = play(range(first, first + many))
    assert missed == []
    assert many < SCHEDULES or {what: count[what] for what, least in AT_LEAST.items() if count[what] < least} == {}, (
        dict(count)
    )


def at_once(
    before: Cursor,
    *,
    found: datetime | None,
    server_date: datetime | None,
    began: datetime,
    ended: datetime,
    overlap: timedelta,
) -> Cursor:
    """The next scan begins right after the newest stamp, without waiting."""
    moved = after_scan(before, found=found, server_date=server_date, began=began, ended=ended, overlap=overlap)
    return moved if moved.newest is None else Cursor(moved.newest + timedelta(seconds=1), moved.newest, ended)


class ShortIsLast(Walk):
    """A page that is shorter than what was asked for is the last one."""

    def page(
        self, numbers: Collection[int], *, nameless: int, newest: datetime | None, rows: int, total: int | None
    ) -> Step:
        """As the real one, but for short pages."""
        step = super().page(numbers, nameless=nameless, newest=newest, rows=rows, total=total)
        return Step.END if rows < 50 else step


@pytest.mark.parametrize(
    "mutant",
    [
        Parts(overlap=timedelta()),
        Parts(cursor=at_once),
        Parts(settled=lambda *_, **__: True),
        Parts(walk=ShortIsLast),
        Parts(moves_after_crash=True),
    ],
    ids=["no overlap", "newest + 1 at once", "always settled", "short page", "moves after a crash"],
)
def test_the_schedules_catch_mutants(mutant: Parts) -> None:
    """Each of these faults misses an update within the same ten thousand schedules."""
    missed, _ = play(range(SCHEDULES), mutant)
    assert missed != []
