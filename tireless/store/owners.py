"""Owners whose issues are searched for in place of polls: which is next, its cursor, which repositories it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

from psycopg.rows import class_row

from tireless.domain.cursor import Cursor
from tireless.store.db import Connection, clean_text, translate
from tireless.store.repos import RepoRow


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """An owner taken to be asked for."""

    forge: str
    owner: str
    since: datetime | None
    newest_seen: datetime | None
    newest_first_seen_at: datetime | None
    poll_failures: int
    listed_s: float
    """Seconds since its repositories were last looked at."""
    token: UUID

    @property
    def cursor(self) -> Cursor:
        """Where its next search begins."""
        return Cursor(self.since, self.newest_seen, self.newest_first_seen_at)


TAKE_OWNER = """
WITH due AS MATERIALIZED (
  SELECT o.forge, o.owner FROM owner_poll o
   WHERE o.forge = ANY (%(forges)s::text[]) AND o.poll_not_before <= clock_timestamp()
     AND (o.take_until IS NULL OR o.take_until < clock_timestamp())
     AND EXISTS (SELECT FROM repository r
                  WHERE r.forge = o.forge AND lower(r.owner) = o.owner AND r.tracked AND r.searched)
   ORDER BY o.poll_not_before LIMIT 1
   FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE owner_poll o SET take_token = %(token)s::uuid, take_by = %(by)s,
                        take_until = clock_timestamp() + make_interval(secs => %(take_s)s::float8)
  FROM due WHERE o.forge = due.forge AND o.owner = due.owner
RETURNING o.forge, o.owner, o.since, o.newest_seen, o.newest_first_seen_at, o.poll_failures,
          extract(epoch FROM clock_timestamp() - o.listed_at)::float8 AS listed_s, o.take_token AS token
"""


async def take_owner(conn: Connection, forges: Sequence[str], *, by: str, take_s: float = 120.0) -> OwnerRow | None:
    """The owner whose search is due longest, for this caller alone; None: none is due, or others have them."""
    values = {"forges": list(forges), "by": by, "take_s": take_s, "token": uuid4()}
    with translate("taking an owner to search"):
        async with conn.cursor(row_factory=class_row(OwnerRow)) as cursor:
            return await (await cursor.execute(TAKE_OWNER, values)).fetchone()


KEEP_OWNER = """
UPDATE owner_poll SET take_until = clock_timestamp() + make_interval(secs => %(take_s)s::float8)
 WHERE forge = %(forge)s AND owner = %(owner)s AND take_token = %(token)s
"""


async def keep_owner(conn: Connection, row: OwnerRow, *, take_s: float = 120.0) -> bool:
    """Go on with an owner; False: it took too long and another poller has it."""
    values = {"forge": row.forge, "owner": row.owner, "token": row.token, "take_s": take_s}
    with translate(f"going on with the search of {row.owner}"):
        return (await conn.execute(KEEP_OWNER, values)).rowcount == 1


SEARCHED = """
SELECT r.id, r.forge, r.forge_repo_id, r.owner, r.name, r.owner_is_org, r.source, r.readable, r.searched, r.since,
       r.newest_seen, r.newest_first_seen_at, false AS full_scan_due, r.doubted_at IS NOT NULL AS doubted, r.judged_by,
       r.poll_failures, r.take_token AS token
  FROM repository r
 WHERE r.forge = %(forge)s AND lower(r.owner) = %(owner)s AND r.tracked AND r.searched
"""


async def searched_repos(conn: Connection, row: OwnerRow) -> dict[int, RepoRow]:
    """The repositories an owner's search serves, by the forge's ids."""
    with translate(f"reading the repositories of {row.owner}"):
        async with conn.cursor(row_factory=class_row(RepoRow)) as cursor:
            await cursor.execute(SEARCHED, {"forge": row.forge, "owner": row.owner})
            return {found.forge_repo_id: found async for found in cursor}


OWNER_POLLED = """
UPDATE owner_poll SET
       since = %(since)s, newest_seen = %(newest)s, newest_first_seen_at = %(first_seen)s,
       asked_at = CASE WHEN %(moved)s::boolean THEN %(began)s ELSE asked_at END,
       poll_not_before = clock_timestamp() + make_interval(secs => %(delay_s)s::float8),
       poll_failures = 0, poll_error = NULL, take_token = NULL, take_by = NULL, take_until = NULL
 WHERE forge = %(forge)s AND owner = %(owner)s AND take_token = %(token)s
"""
# The rules have changed: everything of theirs is judged again, which only their own scans do.
JUDGE_ANEW = """
UPDATE repository r SET poll_not_before = '-infinity'
 WHERE r.forge = %(forge)s AND lower(r.owner) = %(owner)s AND r.tracked AND r.searched AND r.poll_failures = 0
   AND r.judged_by IS DISTINCT FROM %(judged_by)s AND r.poll_not_before > clock_timestamp()
"""


async def owner_polled(
    conn: Connection, row: OwnerRow, cursor: Cursor | None, *, began: datetime, judged_by: str, delay_s: float
) -> bool:
    """A search begun at `began` came to its end; the next one is due in `delay_s` seconds. In a transaction.

    `cursor` None: it stays where it was. False: the take is lost, nothing moved.
    """
    to = cursor or row.cursor
    values = {
        "forge": row.forge,
        "owner": row.owner,
        "token": row.token,
        "moved": cursor is not None,
        "began": began,
        "since": to.since,
        "newest": to.newest,
        "first_seen": to.newest_first_seen,
        "judged_by": judged_by,
        "delay_s": delay_s,
    }
    with translate(f"ending the search of {row.owner}"):
        if (await conn.execute(OWNER_POLLED, values)).rowcount != 1:
            return False
        await conn.execute(JUDGE_ANEW, values)
    return True


LISTED = "UPDATE owner_poll SET listed_at = clock_timestamp() WHERE forge = %(forge)s AND owner = %(owner)s"
OF_OWNER = """
SELECT r.id, r.forge_repo_id, r.owner, r.name, r.readable FROM repository r
 WHERE r.forge = %(forge)s AND lower(r.owner) = %(owner)s AND r.tracked
"""


@dataclass(frozen=True, slots=True)
class OfOwner:
    """A watched repository as it was when it was last asked for."""

    id: int
    forge_repo_id: int
    owner: str
    name: str
    readable: bool


async def of_owner(conn: Connection, row: OwnerRow) -> list[OfOwner]:
    """All watched repositories of an owner, to be compared with the forge's list."""
    with translate(f"reading the repositories of {row.owner}"):
        async with conn.cursor(row_factory=class_row(OfOwner)) as cursor:
            return await (await cursor.execute(OF_OWNER, {"forge": row.forge, "owner": row.owner})).fetchall()


async def owner_listed(conn: Connection, row: OwnerRow) -> None:
    """They are being compared: the next time is counted from now."""
    with translate(f"noting that the repositories of {row.owner} are looked at"):
        await conn.execute(LISTED, {"forge": row.forge, "owner": row.owner})


OWNER_FAILED = """
UPDATE owner_poll SET poll_failures = once_more(poll_failures), poll_error = %(error)s,
       poll_not_before = clock_timestamp() + make_interval(secs => %(delay_s)s::float8),
       take_token = NULL, take_by = NULL, take_until = NULL
 WHERE forge = %(forge)s AND owner = %(owner)s AND take_token = %(token)s
"""


async def owner_failed(conn: Connection, row: OwnerRow, error: str, *, delay_s: float) -> None:
    """A search could not be ended: its cursor stays, and it is tried again in `delay_s` seconds."""
    values: dict[str, object] = {"forge": row.forge, "owner": row.owner, "token": row.token, "delay_s": delay_s}
    with translate(f"putting off the search of {row.owner}"):
        await conn.execute(OWNER_FAILED, {**values, "error": clean_text(error)[:2000]})


# ------------------------------------------------------------------------------------------------ who is served

SIBLINGS = """
SELECT count(*) FROM repository r
 WHERE r.forge = %(forge)s AND lower(r.owner) = lower(%(owner)s) AND r.tracked AND r.readable
"""


async def siblings(conn: Connection, repo: RepoRow) -> int:
    """How many repositories of this owner are watched and can be read, this one included."""
    with translate(f"counting the repositories of {repo.owner}"):
        row = await (await conn.execute(SIBLINGS, {"forge": repo.forge, "owner": repo.owner})).fetchone()
    return int(row[0]) if row else 0


UNTRIED = "SELECT r.search_fault IS NULL FROM repository r WHERE r.id = %(id)s"


async def untried(conn: Connection, repo: RepoRow) -> bool:
    """Has the search never been seen to fail for this repository?"""
    with translate(f"looking whether the search serves {repo.ref}"):
        row = await (await conn.execute(UNTRIED, {"id": repo.id})).fetchone()
    return bool(row and row[0])


NEWEST = """
SELECT i.number, i.updated_at FROM issue i
 WHERE i.repository_id = %(id)s AND i.gone_since IS NULL ORDER BY i.updated_at DESC, i.number LIMIT 1
"""


async def newest_issue(conn: Connection, repo: RepoRow) -> tuple[int, datetime] | None:
    """The number and stamp of the issue that changed last, as far as is known."""
    with translate(f"looking for the newest issue of {repo.ref}"):
        row = await (await conn.execute(NEWEST, {"id": repo.id})).fetchone()
    return (int(row[0]), row[1]) if row else None


WITNESS = """
SELECT r.newest_seen, r.newest_first_seen_at FROM repository r
 WHERE r.forge = %(forge)s AND lower(r.owner) = lower(%(owner)s) AND r.tracked AND r.newest_first_seen_at < %(began)s
 ORDER BY r.newest_seen DESC LIMIT 1
"""


async def witness(conn: Connection, repo: RepoRow, *, began: datetime) -> Cursor:
    """The greatest stamp seen of any repository of this owner before `began`: the forge's clock stood there."""
    with translate(f"looking how far the lists of {repo.owner} are read"):
        row = await (await conn.execute(WITNESS, {"forge": repo.forge, "owner": repo.owner, "began": began})).fetchone()
    return Cursor(None, row[0], row[1]) if row else Cursor()


# Level with the search: read by its own list after the search that set the cursor was asked for. Then the next search
# shows of it what it shows of all others, and the cursor stays where it is. Whoever is not level joins after a later
# poll of its own. The row's lock keeps a search from beginning; one that is under way has not read this repository,
# so that nobody joins then; one that has outlived its take is shut out by the loss of its token.
JOIN = """
WITH joining AS (SELECT r.id FROM repository r WHERE r.id = %(id)s AND r.tracked AND NOT r.searched),
level AS (
  INSERT INTO owner_poll AS o (forge, owner, since, newest_seen, newest_first_seen_at, asked_at, poll_not_before)
  SELECT %(forge)s, lower(%(owner)s), %(since)s, %(newest)s, %(first_seen)s, %(began)s,
         clock_timestamp() + make_interval(secs => %(delay_s)s::float8) FROM joining
  ON CONFLICT (forge, owner) DO UPDATE
     SET take_token = NULL, take_by = NULL, take_until = NULL,
         poll_not_before = least(o.poll_not_before, EXCLUDED.poll_not_before)
   WHERE o.asked_at <= EXCLUDED.asked_at AND (o.take_until IS NULL OR o.take_until < clock_timestamp())
  RETURNING o.owner
)
UPDATE repository SET searched = true, search_fault = NULL FROM level WHERE id = %(id)s
"""


async def join(conn: Connection, repo: RepoRow, start: Cursor, *, began: datetime, delay_s: float) -> bool:
    """Its owner's search serves a repository after a poll of its own that began at `began`; False: not yet.

    A search that is the first of its owner is due in `delay_s` seconds and begins at `start`.
    """
    values = {
        "id": repo.id,
        "forge": repo.forge,
        "owner": repo.owner,
        "since": start.since,
        "newest": start.newest,
        "first_seen": start.newest_first_seen,
        "began": began,
        "delay_s": delay_s,
    }
    with translate(f"leaving {repo.ref} to the search of its owner"):
        return (await conn.execute(JOIN, values)).rowcount == 1


REFUSE = """
UPDATE repository SET searched = false, search_fault = nullif(%(fault)s, '') WHERE id = %(id)s
"""


async def refuse(conn: Connection, repo: RepoRow, fault: str) -> None:
    """The search does not serve this repository, and why (empty: there is no need)."""
    with translate(f"not leaving {repo.ref} to the search of its owner"):
        await conn.execute(REFUSE, {"id": repo.id, "fault": clean_text(fault)[:2000]})


LEAVE = """
UPDATE repository SET searched = false, search_fault = %(fault)s, poll_not_before = '-infinity'
 WHERE id = ANY (%(ids)s::bigint[]) AND searched
"""


async def leave(conn: Connection, ids: Sequence[int], fault: str) -> int:
    """These repositories are polled by themselves again, at once, and why; how many were not before."""
    with translate(f"polling {len(ids)} repositories by themselves again"):
        done = await conn.execute(LEAVE, {"ids": list(ids), "fault": clean_text(fault)[:2000]})
    return done.rowcount
