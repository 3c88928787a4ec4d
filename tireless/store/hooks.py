"""The webhooks `tireless init` made: which they are on the forge, and the print of the secret each was made with."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import class_row

from tireless.store.db import Connection, translate


@dataclass(frozen=True, slots=True)
class KnownHook:
    """A webhook of ours, by the forge's id."""

    hook_id: int
    secret_print: str


KNOWN_HOOK = """
SELECT h.hook_id, h.secret_print FROM hook h WHERE h.forge = %(forge)s AND h.forge_repo_id = %(forge_repo_id)s
"""


async def known_hook(conn: Connection, forge: str, forge_repo_id: int) -> KnownHook | None:
    """The webhook made in this repository, None when none was made from this database."""
    values = {"forge": forge, "forge_repo_id": forge_repo_id}
    with translate(f"reading the webhook of repository {forge_repo_id} on {forge}"):
        async with conn.cursor(row_factory=class_row(KnownHook)) as cursor:
            return await (await cursor.execute(KNOWN_HOOK, values)).fetchone()


HOOK_MADE = """
INSERT INTO hook (forge, forge_repo_id, hook_id, secret_print)
VALUES (%(forge)s, %(forge_repo_id)s, %(hook_id)s, %(secret_print)s)
ON CONFLICT (forge, forge_repo_id) DO UPDATE
   SET hook_id = EXCLUDED.hook_id, secret_print = EXCLUDED.secret_print, made_at = clock_timestamp()
"""


async def hook_made(conn: Connection, forge: str, forge_repo_id: int, hook: KnownHook) -> None:
    """Remember the webhook that was made in this repository."""
    values: dict[str, object] = {
        "forge": forge,
        "forge_repo_id": forge_repo_id,
        "hook_id": hook.hook_id,
        "secret_print": hook.secret_print,
    }
    with translate(f"recording the webhook of repository {forge_repo_id} on {forge}"):
        await conn.execute(HOOK_MADE, values)
