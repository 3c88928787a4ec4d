"""Looks ("judge this issue again"): written, taken by a token, answered, put off; and the listener that wakes loops."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID, uuid4

from psycopg import sql
from psycopg.rows import class_row, dict_row

from tireless.errors import StoreUnavailable
from tireless.store.db import Connection, clean_text, connect, translate

CHANNEL = "tireless_look"


@dataclass(frozen=True, slots=True)
class Wake:
    """A notification; `channel` None: the listener has just begun to listen (again), anything may have happened."""

    channel: str | None = None
    payload: str = ""


Ring: TypeAlias = Callable[[Sequence[Wake]], None]
"""Told whom something written here wakes, in place of a NOTIFY in its transaction; returns at once.

Whoever hands one to a function that he calls in a transaction wakes them when that has committed, never before.
"""


def wake_lanes(ring: Ring | None, lanes: Sequence[str]) -> None:
    """Tell `ring` of lanes where something is pending; without one the statement that found them has notified."""
    if ring is not None and lanes:
        ring([Wake("tireless_lane", lane) for lane in lanes])


def ring_for(wakes: Iterable[str], ring: Ring) -> None:
    """Tell `ring` whom a function of the database named, each once: a channel, perhaps with its payload."""
    if once := dict.fromkeys(wakes):
        ring([Wake(*wake.split(" ")) for wake in once])


# An unanswered look is put off to be sooner, never later; whoever is answering it will find it younger than his read.
WRITE = """
INSERT INTO look (repository_id, number, why, not_before)
VALUES (%(repository_id)s, %(number)s, %(why)s,
        CASE WHEN %(delay_s)s::float8 > 0 THEN clock_timestamp() + make_interval(secs => %(delay_s)s::float8)
             ELSE '-infinity' END)
ON CONFLICT (repository_id, number) DO UPDATE
   SET written_at = clock_timestamp(), why = EXCLUDED.why, failures = 0, error = NULL,
       not_before = least(look.not_before, EXCLUDED.not_before)
RETURNING not_before = '-infinity',
          CASE WHEN not_before = '-infinity' AND %(notify)s::boolean THEN pg_notify('tireless_look', '') END
"""


async def write_look(
    conn: Connection,
    repository_id: int,
    number: int,
    *,
    why: str,
    not_before_s: float = 0.0,
    ring: Ring | None = None,
) -> None:
    """Ask for an issue to be judged again, at once or in `not_before_s` seconds. One statement."""
    values = {
        "repository_id": repository_id,
        "number": number,
        "why": clean_text(why),
        "delay_s": not_before_s,
        "notify": ring is None,
    }
    with translate(f"writing a look at issue {number} of repository {repository_id}"):
        row = await (await conn.execute(WRITE, values)).fetchone()
    if ring is not None and row is not None and row[0]:
        ring([Wake(CHANNEL)])


@dataclass(frozen=True, slots=True)
class Look:
    """A look taken to be answered."""

    repository_id: int
    number: int
    why: str
    written_at: datetime
    failures: int
    token: UUID


TAKE = """
WITH due AS MATERIALIZED (
  SELECT l.repository_id, l.number FROM look l
    JOIN repository r ON r.id = l.repository_id
   WHERE l.not_before <= (SELECT clock_timestamp()) AND (l.take_until IS NULL OR l.take_until < clock_timestamp())
     AND r.tracked AND r.forge = ANY (%(forges)s::text[])
   ORDER BY l.not_before, l.written_at LIMIT %(limit)s::int
   FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE look SET take_token = %(token)s::uuid,
                take_until = clock_timestamp() + make_interval(secs => %(take_s)s::float8)
  FROM due WHERE look.repository_id = due.repository_id AND look.number = due.number
RETURNING look.repository_id, look.number, look.why, look.written_at, look.failures, look.take_token AS token
"""


async def take_looks(conn: Connection, forges: Sequence[str], *, limit: int, take_s: float = 120.0) -> list[Look]:
    """Due looks at issues of these forges, for this caller alone until `take_s` seconds have passed; oldest first."""
    values = {"forges": list(forges), "limit": limit, "take_s": take_s, "token": uuid4()}
    with translate("taking looks"):
        async with conn.cursor(row_factory=class_row(Look)) as cursor:
            taken = await (await cursor.execute(TAKE, values)).fetchall()
    return sorted(taken, key=lambda look: look.written_at)


# Not by a time: whoever writes a look anew stamps it before he commits, and a read sent in between has not seen what he
# did. Only the very look that was there before anything was judged is answered; the DELETE waits for such a writer.
ANSWER = """
DELETE FROM look
 WHERE repository_id = %(repository_id)s AND number = %(number)s AND written_at = %(written_at)s::timestamptz
"""
RELEASE = """
UPDATE look SET take_token = NULL, take_until = NULL
 WHERE repository_id = %(repository_id)s AND number = %(number)s AND take_token = %(token)s
"""


async def answer_look(conn: Connection, look: Look) -> bool:
    """Delete the look, which was taken before the read that answers it was sent. False: written anew, it stays."""
    values = {
        "repository_id": look.repository_id,
        "number": look.number,
        "written_at": look.written_at,
        "token": look.token,
    }
    with translate(f"answering the look at issue {look.number}"):
        if (await conn.execute(ANSWER, values)).rowcount:
            return True
        await conn.execute(RELEASE, values)
    return False


WRITTEN = """
SELECT l.written_at FROM look l
 WHERE l.repository_id = %(repository_id)s AND l.number = %(number)s AND l.written_at < %(asked_at)s
"""


async def written_look(conn: Connection, repository_id: int, number: int, *, asked_at: datetime) -> datetime | None:
    """When the look was written that a read sent at `asked_at`, not for its sake, may answer; for `drop_look`.

    To be asked before anything is judged: what its writer did is seen then, as what it is about is by the read.
    """
    values = {"repository_id": repository_id, "number": number, "asked_at": asked_at}
    with translate(f"reading whether a look at issue {number} is answered"):
        row = await (await conn.execute(WRITTEN, values)).fetchone()
    return row[0] if row is not None else None


async def drop_look(conn: Connection, repository_id: int, number: int, *, written_at: datetime) -> None:
    """Delete a look that a read answered which was not sent for its sake: whoever took it finds it gone."""
    with translate(f"answering the look at issue {number}"):
        await conn.execute(ANSWER, {"repository_id": repository_id, "number": number, "written_at": written_at})


# A look that was written again meanwhile is due as that writing says.
PUT_OFF = """
UPDATE look SET take_token = NULL, take_until = NULL, failures = once_more(failures), error = %(error)s,
                not_before = CASE WHEN written_at <> %(written_at)s::timestamptz THEN not_before
                                  ELSE clock_timestamp() + make_interval(secs => %(delay_s)s::float8) END
 WHERE repository_id = %(repository_id)s AND number = %(number)s AND take_token = %(token)s
"""


async def put_off(conn: Connection, look: Look, *, error: str, delay_s: float) -> None:
    """Leave a look for later: it could not be answered."""
    values = {
        "repository_id": look.repository_id,
        "number": look.number,
        "written_at": look.written_at,
        "error": clean_text(error)[:2000],
        "delay_s": delay_s,
        "token": look.token,
    }
    with translate(f"putting off the look at issue {look.number}"):
        await conn.execute(PUT_OFF, values)


# An issue that could not be taken in during a scan. A look that waits already waits longer; a fresh one stays due.
FAIL = """
INSERT INTO look (repository_id, number, why, failures, error, not_before)
VALUES (%(repository_id)s, %(number)s, %(why)s, 1, %(error)s,
        clock_timestamp() + make_interval(secs => %(base_s)s::float8))
ON CONFLICT (repository_id, number) DO UPDATE
   SET failures = once_more(look.failures), error = EXCLUDED.error,
       not_before = CASE WHEN look.failures = 0 THEN look.not_before ELSE greatest(
         look.not_before, clock_timestamp() + make_interval(
           secs => least(%(cap_s)s::float8, %(base_s)s::float8 * 2 ^ least(look.failures, 20)))) END
"""


async def fail_look(
    conn: Connection,
    repository_id: int,
    number: int,
    *,
    why: str,
    error: str,
    base_s: float = 30.0,
    cap_s: float = 3600.0,
) -> None:
    """Remember that an issue could not be judged, with a backoff that doubles while it stays so."""
    values = {
        "repository_id": repository_id,
        "number": number,
        "why": clean_text(why),
        "error": clean_text(error)[:2000],
        "base_s": base_s,
        "cap_s": cap_s,
    }
    with translate(f"noting the failure of issue {number}"):
        await conn.execute(FAIL, values)


# ------------------------------------------------------------------------------------------------ waking

NOTIFY = "SELECT pg_notify(%(channel)s, %(payload)s)"


async def notify(conn: Connection, channel: str, payload: str = "", *, ring: Ring | None = None) -> None:
    """Wake whoever listens; a lost wake costs one poll. With `ring` nothing is sent, it is told."""
    if ring is not None:
        ring([Wake(channel, payload)])
        return
    with translate(f"notifying {channel}"):
        await conn.execute(NOTIFY, {"channel": channel, "payload": payload})


NOTIFY_ALL = """
SELECT pg_notify(channel, payload) FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS due (channel, payload)
"""


async def notify_all(conn: Connection, wakes: Sequence[Wake]) -> None:
    """Wake whoever listens on any of these, in one statement."""
    values = {"channels": [wake.channel for wake in wakes], "payloads": [wake.payload for wake in wakes]}
    with translate(f"notifying {len(wakes)} channels"):
        await conn.execute(NOTIFY_ALL, values)


_PROBE_S = 30.0
"""How often a silent connection is asked whether it is alive; a dead peer would be silent for ever."""


async def listen(
    url: str, channels: Sequence[str], *, application_name: str = "tireless listen", retry_s: float = 1.0
) -> AsyncGenerator[Wake, None]:
    """Notifications on these channels, for ever; reconnects by itself, with a Wake after every LISTEN.

    One connection, not from a pool: LISTEN belongs to a session. Close the iterator to stop.
    """
    statements = [sql.SQL("LISTEN {}").format(sql.Identifier(channel)) for channel in channels]
    while True:
        try:
            conn = await connect(url, application_name=application_name)
            try:
                with translate("listening"):
                    for statement in statements:
                        await conn.execute(statement)
                    yield Wake()
                    while True:
                        # Also what came with the answer to a statement: no byte of that will be seen to come.
                        async with contextlib.aclosing(conn.notifies(timeout=0.0)) as found:
                            async for each in found:
                                yield Wake(each.channel, each.payload)
                        if not await _readable(conn.fileno(), within_s=_PROBE_S):
                            await conn.execute("SELECT 1")
            finally:
                await conn.close()
        except StoreUnavailable:
            await asyncio.sleep(retry_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads reconnects, guards nothing


async def _readable(fd: int, *, within_s: float) -> bool:
    """Has something come within this time? psycopg's own wait would look ten times a second, in every idle process."""
    loop, come = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, come.set)
    try:
        async with asyncio.timeout(within_s):
            await come.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True


# ------------------------------------------------------------------------------------------------ webhooks


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
  RETURNING CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_look', '') END
)
SELECT p.own, (SELECT count(*) FROM noted) AS noted FROM place p
"""


async def hint(
    conn: Connection,
    forge: str,
    forge_repo_id: int,
    number: int,
    *,
    sender_id: int,
    why: str,
    ring: Ring | None = None,
) -> Hinted:
    """Ask for an issue to be judged again because a webhook spoke of it. One statement."""
    values = {
        "forge": forge,
        "forge_repo_id": forge_repo_id,
        "number": number,
        "sender_id": sender_id,
        "why": clean_text(why)[:200],
        "notify": ring is None,
    }
    with translate(f"noting a webhook of {forge} about issue {number}"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            row = await (await cursor.execute(HINT, values)).fetchone()
    if row is None:
        return Hinted.UNKNOWN
    if row["own"]:
        return Hinted.OWN
    if ring is not None:
        ring([Wake(CHANNEL)])
    return Hinted.NOTED
