"""The hidden line by which the bot knows its own status comment, and what it had answered, after losing its rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote as percent
from urllib.parse import unquote

from tireless.domain.issue import Comment


@dataclass(frozen=True, slots=True)
class Marker:
    """The hidden last line of the status comment. It counts only where the comment's author is the bot."""

    installation: str
    number: int
    answered_event: int = 0
    answered_time: datetime | None = None

    def __str__(self) -> str:
        answered = self.answered_time.astimezone(UTC).isoformat() if self.answered_time else "-"
        return (
            f"<!-- tireless:status installation={percent(self.installation, safe='/')} issue={self.number} "
            f"answered_event={self.answered_event} answered_time={answered} -->"
        )


_MARKER = re.compile(
    r"<!-- tireless:status installation=(\S+) issue=([0-9]{1,18}) "
    r"answered_event=([0-9]{1,18}) answered_time=(-|[0-9T:.+-]{20,40}) -->"
)


def read_marker(body: str) -> Marker | None:
    """The marker that ends a comment, None when it has none. Only the last line counts: what is above may be quoted."""
    found = _MARKER.fullmatch(body.rstrip().rpartition("\n")[2].strip())
    if found is None:
        return None
    try:
        answered = None if found[4] == "-" else datetime.fromisoformat(found[4])
    except ValueError:
        return None
    if answered is not None and answered.tzinfo is None:
        return None
    return Marker(unquote(found[1]), int(found[2]), int(found[3]), answered)


def own_comments(comments: Iterable[Comment], bot_id: int, number: int) -> list[tuple[Comment, Marker]]:
    """The status comments of the bot's user on issue `number`, oldest first, of whatever installation."""
    found = [(each, read_marker(each.body)) for each in comments if each.author.id == bot_id]
    return sorted(
        ((each, marker) for each, marker in found if marker is not None and marker.number == number),
        key=lambda pair: pair[0].id,
    )


def comment_hash(body: str) -> str:
    """What is kept of a comment's text, to see whether it still stands there: SHA-256, hex."""
    return hashlib.sha256(body.encode()).hexdigest()
