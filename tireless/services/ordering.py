"""Issues that ask for work, kept back while a scan's pages are read, so that who asked first is taken in first.

Part of the poller. Lists show what was created last first; when somebody asked stands in the timeline alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tireless.domain.issue import TimelineEntry
from tireless.services.taking import Seen

MOST = 200
"""Issues kept back at a time: what is kept grows old, and changes meanwhile."""

MOST_TEXT = 8 << 20
"""Characters kept at a time; anyone who can write issues decides how long they are."""

_ENTRY = 500
"""What an entry of a timeline weighs beside its text."""


class KeptBack:
    """Issues kept back; `text`: how many characters of theirs."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self.text = 0

    def __len__(self) -> int:
        return len(self._seen)

    def keep(self, seen: Seen) -> None:
        """Keep one back."""
        self._seen.append(seen)
        self.text += len(seen.snapshot.body)

    def drain(self) -> list[Seen]:
        """All of them, by number; none is kept after that."""
        seen, self._seen, self.text = self._seen, [], 0
        return sorted(seen, key=lambda one: one.snapshot.number)


def full(held: Iterable[KeptBack]) -> bool:
    """Is as much kept back in these as may be?"""
    counted = [(len(one), one.text) for one in held]
    return sum(count for count, _ in counted) >= MOST or sum(text for _, text in counted) >= MOST_TEXT


class InOrder:
    """Those whose timelines have been read, in the order in which they asked."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int, Seen, tuple[TimelineEntry, ...] | None]] = []
        self._text = 0

    def add(self, seen: Seen, timeline: tuple[TimelineEntry, ...], *, asked: int) -> None:
        """`asked`: the event that asked. The timeline is kept as well, as long as there is room for it."""
        self._text += sum(_ENTRY + len(entry.body) for entry in timeline)
        kept = timeline if self._text <= MOST_TEXT else None
        self._found.append((asked, seen.snapshot.number, seen, kept))

    def in_order(self) -> Sequence[tuple[Seen, tuple[TimelineEntry, ...] | None]]:
        """Who asked first comes first; with its timeline, None when it must be read again."""
        return [(seen, timeline) for *_, seen, timeline in sorted(self._found, key=lambda one: one[:2])]
