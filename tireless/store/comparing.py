"""What the mirror told beside what the forge shows now: makes an issue due for repair. Changes nothing but `mirror`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from psycopg.types.json import Jsonb

from tireless.store.db import Connection, translate

# Nobody may tell us that a comment was deleted or edited: what was told long ago of a live job is compared again.
RECHECK = """
WITH old AS MATERIALIZED (  -- from the live jobs, few beside all that was ever told
  SELECT m.issue_id
    FROM job j JOIN mirror m ON m.issue_id = j.issue_id
   WHERE j.state IN ('pending', 'waiting', 'claimed', 'publishing')
     AND m.changed = m.told AND m.told_at < clock_timestamp() - make_interval(secs => %(after_s)s)
   LIMIT %(limit)s
   FOR NO KEY UPDATE OF m SKIP LOCKED
), contested AS MATERIALIZED (  -- left alone an hour ago, whether or not its job lives
  SELECT m.issue_id FROM mirror m
   WHERE m.contested AND m.changed = m.told AND m.told_at < clock_timestamp() - interval '1 hour'
   LIMIT %(limit)s
   FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE mirror m SET changed = next_after(m.changed)
 WHERE m.issue_id IN (SELECT issue_id FROM old UNION SELECT issue_id FROM contested)
"""


async def recheck(conn: Connection, *, after_s: float, limit: int = 100) -> int:
    """Make issues with a live job due that were last compared with the forge `after_s` seconds ago; how many.

    Those that somebody fought over are tried again after an hour.
    """
    with translate("looking for issues to compare with the forge again"):
        return (await conn.execute(RECHECK, {"after_s": after_s, "limit": limit})).rowcount


# A telling that is newer than the reading has written what the reading shows otherwise.
FORGE_SHOWS = """
UPDATE mirror SET changed = next_after(changed)
 WHERE issue_id = %(issue_id)s AND changed = told
   AND (%(statuses)s::text[] IS DISTINCT FROM CASE WHEN told_status IS NULL THEN '{}' ELSE ARRAY[told_status] END
        OR (%(comments)s::jsonb IS NOT NULL AND comment_id IS NOT NULL AND told_comment IS NOT NULL
            AND told_at < %(asked_at)s AND told_comment IS DISTINCT FROM %(comments)s::jsonb ->> comment_id::text))
"""


async def forge_shows(
    conn: Connection,
    issue_id: int,
    statuses: Sequence[str],
    *,
    comments: Mapping[int, str] | None = None,
    asked_at: datetime | None = None,
) -> bool:
    """What intake's last reading shows of what was told. True: it is due for repair.

    `statuses`: the suffixes of the status labels on the issue. `comments`: the bot's own by id, as `comment_hash` has
    them, read after `asked_at`; None: nobody looked. Due only when they differ from what was told and nothing is to be
    told anyway: the mirror's own writes wake nobody.
    """
    values = {
        "issue_id": issue_id,
        "statuses": sorted(statuses),
        "comments": None if comments is None else Jsonb({str(number): text for number, text in comments.items()}),
        "asked_at": asked_at,
    }
    with translate(f"comparing what issue row {issue_id} shows with what was told"):
        return (await conn.execute(FORGE_SHOWS, values)).rowcount == 1
