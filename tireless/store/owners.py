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
    """An owner taken to be asked for. `joins` tells whether a repository has joined since."""

    forge: str
    owner: str
    since: datetime | None
    newest_seen: datetime | None
    newest_first_seen_at: datetime | None
    joins: int
    poll_failures: int
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
RETURNING o.forge, o.owner, o.since, o.newest_seen, o.newest_first_seen_at, o.joins, o.poll_failures,
          o.take_token AS token
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
       r.newest_seen, r.newest_first_seen_at, false AS full_scan_due, r.judged_by, r.poll_failures,
       r.take_token AS token
  FROM repository r
 WHERE r.forge = %(forge)s AND lower(r.owner) = %(owner)s AND r.tracked AND r.searched
"""


async def searched_repos(conn: Connection, row: OwnerRow) -> dict[int, RepoRow]:
    """The repositories an owner's search serves, by the forge's ids."""
    with translate(f"reading the repositories of {row.owner}"):
        async with conn.cursor(row_factory=class_row(RepoRow)) as cursor:
            await cursor.execute(SEARCHED, {"forge": row.forge, "owner": row.owner})
            return {found.forge_repo_id: found async for found in cursor}


# A repository that joined meanwhile has set the cursor back: then it stays there.
OWNER_POLLED = """
UPDATE owner_poll SET
       since = CASE WHEN joins = %(joins)s THEN %(since)s ELSE since END,
       newest_seen = CASE WHEN joins = %(joins)s THEN %(newest)s ELSE newest_seen END,
       newest_first_seen_at = CASE WHEN joins = %(joins)s THEN %(first_seen)s ELSE newest_first_seen_at END,
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


async def owner_polled(conn: Connection, row: OwnerRow, cursor: Cursor, *, judged_by: str, delay_s: float) -> bool:
    """A search came to its end; the next one is due in `delay_s` seconds. In a transaction; False: the take is lost."""
    values = {
        "forge": row.forge,
        "owner": row.owner,
        "token": row.token,
        "joins": row.joins,
        "since": cursor.since,
        "newest": cursor.newest,
        "first_seen": cursor.newest_first_seen,
        "judged_by": judged_by,
        "delay_s": delay_s,
    }
    with translate(f"ending the search of {row.owner}"):
        if (await conn.execute(OWNER_POLLED, values)).rowcount != 1:
            return False
        await conn.execute(JUDGE_ANEW, values)
    return True


OWNER_FAILED = """
UPDATE owner_poll SET poll_failures = poll_failures + 1, poll_error = %(error)s,
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


JOIN = """
WITH joined AS (
  UPDATE repository SET searched = true, search_fault = NULL WHERE id = %(id)s AND tracked AND NOT searched RETURNING id
)
INSERT INTO owner_poll (forge, owner, since, newest_seen, newest_first_seen_at)
SELECT %(forge)s, lower(%(owner)s), %(since)s, %(newest)s, %(first_seen)s FROM joined
ON CONFLICT (forge, owner) DO UPDATE
   SET joins = owner_poll.joins + 1,
       since = CASE WHEN EXCLUDED.since < owner_poll.since THEN EXCLUDED.since ELSE owner_poll.since END,
       poll_not_before = least(owner_poll.poll_not_before, clock_timestamp())
"""


REFUSE = """
UPDATE repository SET searched = false, search_fault = nullif(%(fault)s, '') WHERE id = %(id)s
"""


async def serve(conn: Connection, repo: RepoRow, cursor: Cursor, *, fault: str | None) -> None:
    """After a poll of its own: its owner's search serves this repository from there on, or does not, and why."""
    values = {
        "id": repo.id,
        "forge": repo.forge,
        "owner": repo.owner,
        "since": cursor.since,
        "newest": cursor.newest,
        "first_seen": cursor.newest_first_seen,
    }
    with translate(f"leaving {repo.ref} to the search of its owner"):
        if fault is None:
            await conn.execute(JOIN, values)
        else:
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
