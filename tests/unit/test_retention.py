"""What may go, as a table: age, then count, then size; what is in use counts and stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tireless.agent.retention import Bounds, Item, What, due

ALL = Bounds(age_s=1000.0, count=100, size=10_000)


def items(*given: tuple[float, int, bool]) -> list[Item]:
    """Age, size, in use; the paths are their numbers."""
    return [Item(What.CACHE, str(n), Path(str(n)), age, size, used) for n, (age, size, used) in enumerate(given)]


@pytest.mark.parametrize(
    ("given", "bounds", "gone"),
    [
        ([], ALL, {}),
        ([(999, 1, False), (1001, 1, False)], ALL, {"1": "older than 1000 s"}),
        ([(5000, 1, True)], ALL, {}),
        ([(3, 1, False), (1, 1, False), (2, 1, False)], Bounds(10, 1, 99), dict.fromkeys("02", "more than 1 of them")),
        ([(3, 6, False), (2, 6, False), (1, 6, False)], Bounds(10, 9, 12), {"0": "more than 12 bytes of them"}),
        ([(3, 6, True), (2, 6, False), (1, 6, False)], Bounds(10, 9, 12), {"1": "more than 12 bytes of them"}),
        ([(3, 9, True), (2, 9, True)], Bounds(1, 0, 0), {}),
        ([(99, 6, False), (2, 6, False), (1, 6, False)], Bounds(10, 2, 99), {"0": "older than 10 s"}),
        ([(200_000, 1, False)], Bounds(86_400 * 2, 9, 99), {"0": "older than 2 days"}),
        ([(1, 1, False)], Bounds(0, 9, 99), {"0": "older than 0 s"}),
    ],
)
def test_what_goes(given: list[tuple[float, int, bool]], bounds: Bounds, gone: dict[str, str]) -> None:
    """Too old goes; then the oldest that are free, until what is left is within count and size."""
    assert {str(path): why for path, why in due(items(*given), bounds).items()} == gone
