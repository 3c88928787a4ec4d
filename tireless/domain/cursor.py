"""Where the next poll of a repository begins: from forge stamps and our own clock, so that nothing is missed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Cursor:
    """`since` None: the next poll reads everything. `newest` is forge time, `newest_first_seen` our clock's."""

    since: datetime | None = None
    newest: datetime | None = None
    newest_first_seen: datetime | None = None


def after_scan(
    before: Cursor,
    *,
    found: datetime | None,
    server_date: datetime | None,
    began: datetime,
    ended: datetime,
    overlap: timedelta,
) -> Cursor:
    """The cursor after a whole scan that began at `began` (our clock) and met `found` as its greatest stamp.

    Forge stamps become visible out of order and have whole seconds, a proxy's Date may be wrong or missing: the next
    scan begins an overlap before both that Date and what was seen *before* this scan. Only when twice the overlap has
    passed on our clock since the newest stamp was first seen, it begins right after that stamp, and a quiet repository
    costs one request.
    """
    newest = max((stamp for stamp in (before.newest, found) if stamp is not None), default=None)
    if newest is None:
        return Cursor()
    if before.newest is None:
        return Cursor(None, newest, ended)
    if newest > before.newest or before.newest_first_seen is None:
        first_seen = ended
    else:
        first_seen = before.newest_first_seen
        if began - first_seen >= 2 * overlap:
            return Cursor(newest + _SECOND, newest, first_seen)
    sure = before.newest if server_date is None else min(server_date, before.newest)
    return Cursor(sure - overlap, newest, first_seen)


def settled(updated_at: datetime, *, server_date: datetime | None, asked_at: datetime, overlap: timedelta) -> bool:
    """Whether a list asked for at `asked_at` (our clock) shows all that carries the stamp `updated_at` (forge time).

    Stamps have whole seconds, and a change may become visible late: labels taken off and put on again in one second
    look as if nothing had been. An overlap later all of it is there; by both clocks, since either may be wrong.
    """
    return server_date is not None and updated_at + overlap < min(server_date, asked_at)
