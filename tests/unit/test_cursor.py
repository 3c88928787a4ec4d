"""Where the next poll begins: tables of the rule, and a search for a schedule that misses an update."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tireless.domain.cursor import Cursor, after_scan, settled

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
OVERLAP = timedelta(seconds=120)


def s(seconds: float) -> timedelta:
    """Seconds."""
    return timedelta(seconds=seconds)


def scanned(
    before: Cursor, found: datetime | None, server_date: datetime | None = NOW, began: datetime = NOW
) -> Cursor:
    """The cursor after a scan of a second."""
    return after_scan(before, found=found, server_date=server_date, began=began, ended=began + s(1), overlap=OVERLAP)


def test_the_first_scan_is_followed_by_another_of_everything() -> None:
    """Nothing was seen before it began, so nothing says from where the next one may begin."""
    assert scanned(Cursor(), None) == Cursor()
    assert scanned(Cursor(), NOW - s(60)) == Cursor(None, NOW - s(60), NOW + s(1))


def test_the_next_begins_an_overlap_before_date_and_newest_whichever_is_earlier() -> None:
    """A Date that is ahead, behind or missing makes nothing later than what was seen before the scan."""
    before = Cursor(None, NOW - s(60), NOW)
    for date, since in (
        (NOW, NOW - s(180)),
        (NOW + s(600), NOW - s(180)),
        (NOW - s(600), NOW - s(720)),
        (None, NOW - s(180)),
    ):
        assert scanned(before, NOW - s(10), date).since == since
        assert scanned(before, NOW - s(10), date).newest == NOW - s(10)


def test_a_quiet_repository_begins_after_its_newest_stamp_once_twice_the_overlap_has_passed() -> None:
    """By our own clock; a new stamp begins it anew."""
    before = Cursor(NOW - s(120), NOW, NOW)
    assert scanned(before, NOW, began=NOW + s(239)).since == NOW - s(120)
    quiet = scanned(before, None, server_date=NOW + s(240), began=NOW + s(240))
    assert quiet == Cursor(NOW + s(1), NOW, NOW)
    again = scanned(quiet, NOW + s(300), server_date=NOW + s(300), began=NOW + s(300))
    assert (again.since, again.newest_first_seen) == (NOW - s(120), NOW + s(301))


def test_an_older_stamp_than_the_newest_moves_nothing() -> None:
    """Overlap shows old rows again and again."""
    before = Cursor(NOW - s(120), NOW, NOW)
    assert scanned(before, NOW - s(100), began=NOW + s(60)) == before


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 59), st.integers(0, 100)), min_size=1, max_size=12),
    st.sampled_from([0, 600, -600, None]),
    st.integers(20, 90),
)
def test_no_update_is_missed_whatever_the_date_says(
    updates: list[tuple[int, int, int]], skew: int | None, every: int
) -> None:
    """Updates become visible up to a minute after their stamp, in any order; every scan sees what it asks for, and at
    the end each one has been shown by some scan."""
    stamped = [(NOW + s(at), NOW + s(at + late)) for at, late, _ in updates]  # (stamp, visible)
    shown: set[int] = set()
    cursor = Cursor()
    for round_ in range(0, 1200, every):
        began = NOW + s(round_)
        visible = [
            (n, stamp)
            for n, (stamp, seen_from) in enumerate(stamped)
            if seen_from <= began and (cursor.since is None or stamp >= cursor.since)
        ]
        shown |= {n for n, _ in visible}
        date = None if skew is None else began + s(skew)
        found = max((stamp for _, stamp in visible), default=None)
        cursor = after_scan(cursor, found=found, server_date=date, began=began, ended=began + s(1), overlap=OVERLAP)
    assert shown == set(range(len(stamped)))


def test_a_reading_is_settled_an_overlap_after_its_stamp_by_both_clocks() -> None:
    """What is stamped now may become visible as late as the overlap allows; a Date that is absent settles nothing."""
    later = NOW + OVERLAP + s(1)
    for date, asked_at, sure in (
        (later, later, True),
        (NOW + OVERLAP, later, False),
        (later, NOW + OVERLAP, False),
        (NOW + s(86_400), NOW + s(10), False),
        (None, later, False),
    ):
        assert settled(NOW, server_date=date, asked_at=asked_at, overlap=OVERLAP) is sure
