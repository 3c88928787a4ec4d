"""Notes what a webhook hints at, durably and in one statement: a look, nothing else; what was said is not believed."""

from __future__ import annotations

from enum import StrEnum

from psycopg.rows import dict_row

from tireless.store.db import Connection, clean_text, translate


class Hinted(StrEnum):
    """What a hint came to."""

    NOTED = "noted"
    OWN = "own"
    """The bot did it itself: it never wakes itself."""
    UNKNOWN = "unknown"
    """The repository is not watched."""


HINT = """
WITH place AS (
  SELECT r.id, f.bot_id IS NOT DISTINCT FROM %(sender_id)s::bigint AS own
    FROM repository r JOIN forge f ON f.name = r.forge
   WHERE r.forge = %(forge)s AND r.forge_repo_id = %(forge_repo_id)s AND r.tracked
), noted AS (
  INSERT INTO look (repository_id, number, why)
  SELECT p.id, %(number)s::int, %(why)s FROM place p WHERE NOT p.own
  ON CONFLICT (repository_id, number) DO UPDATE
     SET written_at = clock_timestamp(), why = EXCLUDED.why, failures = 0, error = NULL, not_before = '-infinity'
  RETURNING pg_notify('tireless_look', '')
)
SELECT p.own, (SELECT count(*) FROM noted) AS noted FROM place p
"""


async def hint(conn: Connection, forge: str, forge_repo_id: int, number: int, *, sender_id: int, why: str) -> Hinted:
    """Ask for an issue to be judged again because a webhook spoke of it."""
    values = {
        "forge": forge,
        "forge_repo_id": forge_repo_id,
        "number": number,
        "sender_id": sender_id,
        "why": clean_text(why)[:200],
    }
    with translate(f"noting a webhook of {forge} about issue {number}"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            row = await (await cursor.execute(HINT, values)).fetchone()
    if row is None:
        return Hinted.UNKNOWN
    return Hinted.OWN if row["own"] else Hinted.NOTED
