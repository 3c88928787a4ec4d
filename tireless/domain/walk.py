"""Reading a list of issues page by page while it changes: which rows are new, and whether all was shown. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from enum import StrEnum

SAME_AGAIN = 3
"""Pages in a row that show nothing new, from a forge that goes round in circles."""


class Step(StrEnum):
    """What comes after a page."""

    ON = "on"
    END = "end"
    CIRCLES = "circles"
    """Page after page shows what earlier ones did, or nothing that can be read."""


class Walk:
    """The pages of one list. Rows may repeat: what enters during the walk pushes others down a page."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.newest: datetime | None = None
        """The greatest stamp shown (forge time)."""
        self.torn = False
        """Rows left while we read: those behind them moved up, perhaps past us. Nothing may be concluded from what was
        not shown, and the next walk begins where this one began."""
        self._nameless = False
        self._total: int | None = None
        self._stale = 0

    def fresh(self, numbers: Collection[int]) -> frozenset[int]:
        """Those of a page that no earlier page has shown; asked before the page is noted."""
        return frozenset(numbers) - self.seen

    def page(
        self, numbers: Collection[int], *, nameless: int, newest: datetime | None, rows: int, total: int | None
    ) -> Step:
        """Note a page: numbers shown, rows without a number, its newest stamp, all its rows, and what it says all
        pages have. A short page is not the last one; an empty one is, or one with which all of the total were shown."""
        before = len(self.seen)
        self.seen.update(numbers)
        self.newest = max((each for each in (self.newest, newest) if each is not None), default=None)
        self.torn = self.torn or (total is not None and self._total is not None and total < self._total)
        self._total = total if total is not None else self._total
        self._nameless = self._nameless or nameless > 0
        # A row without a number may have been counted twice: then only an empty page is the end.
        if rows == 0 or (not self._nameless and total is not None and len(self.seen) >= total):
            return Step.END
        self._stale = self._stale + 1 if len(self.seen) == before else 0
        return Step.CIRCLES if self._stale >= SAME_AGAIN else Step.ON
