"""What is known of each forge: what it said of itself, why it could not be asked, what it does not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg.rows import class_row

from tireless.domain.issue import Person
from tireless.store.db import Connection, clean_text, jsonb, translate

FORGE_KNOWN = """
INSERT INTO forge (name, url) VALUES (%(name)s, %(url)s)
ON CONFLICT (name) DO UPDATE SET url = EXCLUDED.url
"""
FORGE_REACHED = """
UPDATE forge SET flavour = %(flavour)s, version = %(version)s, bot_id = coalesce(%(bot_id)s::bigint, bot_id),
                 bot_login = coalesce(%(bot_login)s, bot_login), reached_at = clock_timestamp(),
                 error = NULL, error_at = NULL
 WHERE name = %(name)s
"""
FORGE_FAILED = "UPDATE forge SET error = %(error)s, error_at = clock_timestamp() WHERE name = %(name)s"


async def forge_known(conn: Connection, name: str, url: str) -> None:
    """A forge of this name and URL is configured."""
    with translate(f"recording the forge {name}"):
        await conn.execute(FORGE_KNOWN, {"name": name, "url": url})


async def forge_reached(conn: Connection, name: str, *, flavour: str, version: str, bot: Person | None) -> None:
    """What a forge said of itself just now."""
    values = {
        "name": name,
        "flavour": flavour,
        "version": version,
        "bot_id": bot.id if bot else None,
        "bot_login": bot.login if bot else None,
    }
    with translate(f"recording what the forge {name} is"):
        await conn.execute(FORGE_REACHED, values)


async def forge_failed(conn: Connection, name: str, error: str) -> None:
    """Why a forge could not be asked."""
    with translate(f"recording that the forge {name} failed"):
        await conn.execute(FORGE_FAILED, {"name": name, "error": clean_text(error)[:2000]})


UNFOUND = "UPDATE forge SET unfound = %(unfound)s WHERE name = %(name)s AND unfound IS DISTINCT FROM %(unfound)s"


async def forge_unfound(conn: Connection, name: str, unfound: Mapping[str, str]) -> None:
    """What the configuration names and the forge does not show, each with the reason."""
    with translate(f"recording what is not found on {name}"):
        said = {path: clean_text(why)[:2000] for path, why in unfound.items()}
        await conn.execute(UNFOUND, {"name": name, "unfound": jsonb(said)})


@dataclass(frozen=True, slots=True)
class Unfound:
    """`owner/name`, or `owner/*` for all of an owner's, and why it is not watched."""

    forge: str
    repo: str
    reason: str


UNFOUND_ROWS = """
SELECT f.name AS forge, u.key AS repo, u.value AS reason FROM forge f CROSS JOIN jsonb_each_text(f.unfound) AS u
 ORDER BY f.name, u.key
"""


async def unfound_rows(conn: Connection) -> list[Unfound]:
    """What is configured and not watched."""
    with translate("reading what is not found"):
        async with conn.cursor(row_factory=class_row(Unfound)) as cursor:
            return await (await cursor.execute(UNFOUND_ROWS)).fetchall()
