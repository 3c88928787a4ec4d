"""How old what is stored of an issue is, and when it is read again: for `explain`. Locks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row

from tireless.store.db import Connection, translate

LATE_S = 120.0
"""A poll that was due longer ago than this: nobody seems to poll."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """Until when the stored issue is what the forge shows, and when it is compared again."""

    as_of: datetime | None
    """The newest reading that showed the issue as it is stored, or did not show it as changed; None: none has ended."""
    next_at: datetime | None
    """None: nobody watches the repository."""
    under_way: bool
    late: bool
    """It was due a while ago: `serve` does not run, or cannot."""
    fault: str | None
    """What the last poll failed with."""


# A poll that does not list an issue shows that it has not changed. A look reads it by itself, maybe sooner.
FRESHNESS = """
WITH here AS (
  SELECT greatest(i.asked_at, r.polled_at, CASE WHEN r.searched THEN o.asked_at END) AS as_of,
         least(l.not_before, CASE WHEN r.searched THEN o.poll_not_before ELSE r.poll_not_before END) AS due,
         -- what is due at once is late a while after it was written
         coalesce(l.written_at, CASE WHEN r.polled_at IS NULL THEN r.created_at END) AS wanted_at,
         r.tracked, CASE WHEN r.searched THEN o.poll_error ELSE r.poll_error END AS fault,
         coalesce(greatest(l.take_until, CASE WHEN r.searched THEN o.take_until ELSE r.take_until END)
                  > clock_timestamp(), false) AS under_way
    FROM repository r
    LEFT JOIN owner_poll o ON o.forge = r.forge AND o.owner = lower(r.owner)
    LEFT JOIN issue i ON i.repository_id = r.id AND i.number = %(number)s
    LEFT JOIN look l ON l.repository_id = r.id AND l.number = %(number)s
   WHERE r.id = %(repository_id)s
)
SELECT as_of, under_way, fault,
       CASE WHEN NOT tracked OR due = 'infinity' THEN NULL
            WHEN due = '-infinity' THEN clock_timestamp() ELSE due END AS next_at,
       tracked AND NOT under_way AND coalesce(
         CASE WHEN due = '-infinity' THEN wanted_at ELSE due END
           < clock_timestamp() - make_interval(secs => %(late_s)s::float8), false) AS late
  FROM here
"""


async def freshness(conn: Connection, repository_id: int, number: int) -> Freshness | None:
    """How it stands with issue `number`, which may not have been read at all; None: no such repository."""
    values = {"repository_id": repository_id, "number": number, "late_s": LATE_S}
    with translate(f"looking when issue {number} of repository {repository_id} was read"):
        async with conn.cursor(row_factory=class_row(Freshness)) as cursor:
            return await (await cursor.execute(FRESHNESS, values)).fetchone()
