"""Repository rows: which are watched, under which names, and whether they can be read; decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from psycopg import Rollback
from psycopg.rows import class_row

from tireless.domain.cursor import Cursor
from tireless.domain.issue import RepoRef, Repository
from tireless.errors import NotKnown, Refused
from tireless.store.db import Connection, clean_text, translate
from tireless.store.lanes import shut_out
from tireless.store.limits import NONE, Limits, limit_new
from tireless.store.look import Ring, wake_lanes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RepoRow:
    """A repository as the poller sees it."""

    id: int
    forge: str
    forge_repo_id: int
    owner: str
    name: str
    owner_is_org: bool | None
    source: str
    readable: bool
    searched: bool
    """The search for its owner's issues sees its changes; its own polls are the full scans."""
    since: datetime | None
    newest_seen: datetime | None
    newest_first_seen_at: datetime | None
    full_scan_due: bool
    doubted: bool
    """Something says it is not what it was: its next poll asks first."""
    judged_by: str | None
    poll_failures: int
    token: UUID | None = None

    @property
    def ref(self) -> RepoRef:
        """The names it has now."""
        return RepoRef(self.forge, self.owner, self.name)

    @property
    def cursor(self) -> Cursor:
        """Where its next poll begins."""
        return Cursor(self.since, self.newest_seen, self.newest_first_seen_at)


# ------------------------------------------------------------------------------------------------ which are watched

TRACKED = """
SELECT r.id, r.forge, r.forge_repo_id, r.owner, r.name, r.owner_is_org, r.source, r.readable, r.searched, r.since,
       r.newest_seen, r.newest_first_seen_at, r.full_scan_at IS NULL AS full_scan_due, r.judged_by, r.poll_failures,
       r.doubted_at IS NOT NULL AS doubted, r.take_token AS token
  FROM repository r
 WHERE r.tracked AND (%(forge)s::text IS NULL OR r.forge = %(forge)s)
 ORDER BY r.forge, lower(r.owner), lower(r.name)
"""


async def tracked_repos(conn: Connection, forge: str | None = None) -> list[RepoRow]:
    """The repositories that are watched, of one forge or of all."""
    with translate("reading the watched repositories"):
        async with conn.cursor(row_factory=class_row(RepoRow)) as cursor:
            return await (await cursor.execute(TRACKED, {"forge": forge})).fetchall()


WATCHED = """
SELECT r.id, r.forge, r.forge_repo_id, r.owner, r.name, r.owner_is_org, r.source, r.readable, r.searched, r.since,
       r.newest_seen, r.newest_first_seen_at, r.full_scan_at IS NULL AS full_scan_due, r.judged_by, r.poll_failures,
       r.doubted_at IS NOT NULL AS doubted, r.take_token AS token
  FROM repository r WHERE r.id = %(id)s AND r.tracked
"""


async def watched(conn: Connection, repository_id: int) -> RepoRow | None:
    """One repository, None when it is not watched (any more)."""
    with translate(f"reading repository {repository_id}"):
        async with conn.cursor(row_factory=class_row(RepoRow)) as cursor:
            return await (await cursor.execute(WATCHED, {"id": repository_id})).fetchone()


@dataclass(frozen=True, slots=True)
class Synced:
    """Ids of repositories that are watched from now on, and of those that are not any more."""

    added: tuple[int, ...]
    dropped: tuple[int, ...]


STANDING = """
SELECT r.id, r.tracked AND r.readable, r.tracked FROM repository r
 WHERE r.forge = %(forge)s AND r.forge_repo_id = %(forge_repo_id)s FOR NO KEY UPDATE
"""
# A name may come back for another repository; only one of them is watched under it.
NAME_TAKEN = """
UPDATE repository r SET tracked = false
 WHERE r.forge = %(forge)s AND lower(r.owner) = lower(%(owner)s) AND lower(r.name) = lower(%(name)s) AND r.tracked
   AND r.forge_repo_id <> %(forge_repo_id)s
RETURNING r.id
"""
WATCH = """
INSERT INTO repository (forge, forge_repo_id, owner, name, owner_is_org, default_branch, clone_url, html_url, source,
                        asks_after)
VALUES (%(forge)s, %(forge_repo_id)s, %(owner)s, %(name)s, %(owner_is_org)s, %(default_branch)s, %(clone_url)s,
        %(html_url)s, %(source)s, CASE WHEN %(require_opt_in)s::boolean THEN NULL ELSE clock_timestamp() END)
ON CONFLICT ON CONSTRAINT repository_once DO UPDATE
   SET owner = EXCLUDED.owner, name = EXCLUDED.name,
       owner_is_org = coalesce(EXCLUDED.owner_is_org, repository.owner_is_org),
       default_branch = EXCLUDED.default_branch, clone_url = EXCLUDED.clone_url, html_url = EXCLUDED.html_url,
       searched = false, poll_not_before = CASE WHEN repository.searched THEN '-infinity'
                                                ELSE repository.poll_not_before END,
       -- what the configuration tracks stays the configuration's when an operator adds it as well
       source = CASE WHEN repository.tracked AND repository.source = 'config' THEN 'config' ELSE EXCLUDED.source END,
       tracked = true, readable = true, unreadable_reason = NULL,
       asks_after = CASE WHEN %(require_opt_in)s::boolean THEN NULL
                         WHEN repository.tracked THEN coalesce(repository.asks_after, clock_timestamp())
                         ELSE clock_timestamp() END
RETURNING id
"""
# Most of an owner's repositories are what they were an hour ago.
UNMOVED = """
SELECT r.forge_repo_id FROM repository r
  JOIN unnest(%(ids)s::bigint[], %(paths)s::text[], %(branches)s::text[], %(clone_urls)s::text[], %(html_urls)s::text[])
    AS g (id, path, branch, clone_url, html_url) ON g.id = r.forge_repo_id
 WHERE r.forge = %(forge)s AND r.tracked AND r.source = 'config'
   AND (r.owner || '/' || r.name, r.default_branch, r.clone_url, r.html_url)
     = (g.path, g.branch, g.clone_url, g.html_url)
   AND (r.asks_after IS NULL) = %(require_opt_in)s::boolean
"""
GONE_FROM_CONFIG = """
UPDATE repository r SET tracked = false
 WHERE r.forge = %(forge)s AND r.source = 'config' AND r.tracked AND r.forge_repo_id <> ALL (%(ids)s::bigint[])
   AND lower(r.owner || '/' || r.name) <> ALL (%(unresolved)s::text[])
   AND lower(r.owner || '/*') <> ALL (%(unresolved)s::text[])
RETURNING r.id
"""


async def sync_repositories(
    conn: Connection,
    forge: str,
    repositories: Sequence[Repository],
    source: str,
    *,
    require_opt_in: bool = True,
    limits: Limits = NONE,
    unresolved: Sequence[RepoRef] = (),
) -> Synced:
    """Watch these repositories; in a transaction of the caller's, first of all.

    `source` `config`: they are all that the configuration names, those it named before are dropped, but not those
    `unresolved`, which could not be looked up now (`owner/*`: all of an owner's). `operator`: they are added. Without
    opt-in only labels put on from now on ask for work. `limits`, the configured ones, hold for those that are watched
    from now on. The forge's row is there (`forge_known`).
    """
    given = {"source": source, "require_opt_in": require_opt_in}

    async def write() -> tuple[Synced, bool]:
        return await _sync(conn, forge, repositories, given, limits=limits, unresolved=unresolved)

    synced = await _shutting_out(conn, f"watching {len(repositories)} repositories of {forge}", write)
    for repository_id in sorted({*synced.added, *synced.dropped}):
        await _judge_rest(conn, repository_id)
    return synced


async def _sync(
    conn: Connection,
    forge: str,
    repositories: Sequence[Repository],
    given: Mapping[str, object],
    *,
    limits: Limits,
    unresolved: Sequence[RepoRef],
) -> tuple[Synced, bool]:
    """Which are watched from now on and which are not any more; is there one among them that may have jobs?"""
    added: list[int] = []
    dropped: list[int] = []
    known = False
    unmoved = await _unmoved(conn, forge, repositories, given) if given["source"] == "config" else frozenset[int]()
    for repository in sorted(repositories, key=lambda one: one.id):
        if repository.id in unmoved:
            continue
        values = {**_names(forge, repository), **given}
        with translate(f"watching {repository.owner}/{repository.name}"):
            before = await (await conn.execute(STANDING, values)).fetchone()
            taken = await (await conn.execute(NAME_TAKEN, values)).fetchone()
            row = await (await conn.execute(WATCH, values)).fetchone()
        dropped += [int(taken[0])] if taken else []
        if row is not None and (before is None or not before[2]):
            await limit_new(conn, int(row[0]), limits, instead_of=int(taken[0]) if taken else None)
        if row is not None and (before is None or not before[1]):
            added.append(int(row[0]))
            known = known or before is not None
    if given["source"] == "config":
        gone = {
            "forge": forge,
            "ids": [one.id for one in repositories],
            "unresolved": [ref.path.lower() for ref in unresolved],
        }
        with translate(f"dropping what is not configured any more on {forge}"):
            dropped += [int(row[0]) async for row in await conn.execute(GONE_FROM_CONFIG, gone)]
    return Synced(tuple(added), tuple(dropped)), known or dropped != []


async def _unmoved(
    conn: Connection, forge: str, repositories: Sequence[Repository], given: Mapping[str, object]
) -> frozenset[int]:
    values: dict[str, object] = {
        "forge": forge,
        "require_opt_in": given["require_opt_in"],
        "ids": [one.id for one in repositories],
        "paths": [f"{one.owner}/{one.name}" for one in repositories],
        "branches": [one.default_branch for one in repositories],
        "clone_urls": [one.clone_url for one in repositories],
        "html_urls": [one.html_url for one in repositories],
    }
    with translate(f"comparing {len(repositories)} repositories of {forge} with what is stored"):
        return frozenset([int(row[0]) async for row in await conn.execute(UNMOVED, values)])


FIND = """
SELECT r.id, r.source, r.tracked FROM repository r
 WHERE r.forge = %(forge)s AND lower(r.owner) = lower(%(owner)s) AND lower(r.name) = lower(%(name)s)
 ORDER BY r.tracked DESC, r.id DESC LIMIT 1 FOR NO KEY UPDATE
"""


DROP = "UPDATE repository SET tracked = false WHERE id = %(id)s"


async def untrack(conn: Connection, repo: RepoRef) -> None:
    """Stop watching a repository an operator added; its jobs wait. In a transaction of the caller's, first of all.

    NotKnown when there is none; Refused(`configured`) when the configuration names it.
    """
    doing = f"dropping {repo.path}"
    with translate(doing):
        await shut_out(conn, doing)
        found = {"forge": repo.forge, "owner": repo.owner, "name": repo.name}
        row = await (await conn.execute(FIND, found)).fetchone()
        if row is None or not row[2]:
            raise NotKnown(f"{repo.path} on {repo.forge} is not watched: see `tireless repos ls`")
        if row[1] == "config":
            raise Refused("configured", f"{repo.path} is named by the configuration: take it out there")
        await conn.execute(DROP, {"id": row[0]})
    await _judge_rest(conn, int(row[0]))


# Watched under a name that is another's now, it was renamed or deleted itself. Under a name nobody has its next poll
# finds nothing and asks for it by id.
SET_ASIDE = """
UPDATE repository r SET name = r.name || '~' || r.id, poll_not_before = '-infinity'
 WHERE r.forge = %(forge)s AND lower(r.owner) = lower(%(owner)s) AND lower(r.name) = lower(%(name)s) AND r.tracked
   AND r.forge_repo_id <> %(forge_repo_id)s
"""
RENAME = """
UPDATE repository SET owner = %(owner)s, name = %(name)s, owner_is_org = coalesce(%(owner_is_org)s, owner_is_org),
                      default_branch = %(default_branch)s, clone_url = %(clone_url)s, html_url = %(html_url)s,
                      searched = searched AND lower(owner) = lower(%(owner)s),
                      search_fault = CASE WHEN (owner, name) = (%(owner)s, %(name)s) THEN search_fault END
 WHERE id = %(id)s
"""


async def refresh_repository(conn: Connection, repository_id: int, found: Repository, *, forge: str) -> None:
    """Write what the forge says of a repository now, a new name included; its history stays. In a transaction."""
    values = {**_names(forge, found), "id": repository_id}
    with translate(f"writing what {found.owner}/{found.name} is"):
        await conn.execute(SET_ASIDE, values)
        await conn.execute(RENAME, values)


async def replace_repository(conn: Connection, old: RepoRow, new: Repository, *, require_opt_in: bool = True) -> None:
    """Watch what was made anew under the old one's name and limits; in a transaction of the caller's, first of all."""
    doing = f"replacing {old.ref}"
    with translate(doing):
        await shut_out(conn, doing)
        await conn.execute(DROP, {"id": old.id})
        values = {**_names(old.forge, new), "source": old.source, "require_opt_in": require_opt_in}
        row = await (await conn.execute(WATCH, values)).fetchone()
    if row is not None:
        await limit_new(conn, int(row[0]), None, instead_of=old.id)
    await _judge_rest(conn, old.id)


def _names(forge: str, repository: Repository) -> dict[str, object]:
    return {
        "forge": forge,
        "forge_repo_id": repository.id,
        "owner": repository.owner,
        "name": repository.name,
        "owner_is_org": repository.owner_is_org,
        "default_branch": repository.default_branch,
        "clone_url": repository.clone_url,
        "html_url": repository.html_url,
    }


# ------------------------------------------------------------------------------------------------ which can be read

UNREADABLE = """
WITH before AS (
  -- A doubt made only its pending jobs wait (settle_shared).
  SELECT r.id, r.readable OR r.doubted_at IS NOT NULL AS news
    FROM repository r WHERE r.id = %(id)s AND r.tracked FOR NO KEY UPDATE)
UPDATE repository r SET readable = false, unreadable_reason = %(reason)s, searched = false
  FROM before b WHERE r.id = b.id
RETURNING b.news
"""
READABLE = """
UPDATE repository SET readable = true, unreadable_reason = NULL WHERE id = %(id)s AND NOT readable RETURNING id
"""


async def mark_unreadable(conn: Connection, repository_id: int, reason: str) -> None:
    """The forge answered that the bot may not read it: its resting jobs wait, cannot_tell.

    In a transaction of the caller's, first of all.
    """
    values = {"id": repository_id, "reason": clean_text(reason)[:2000]}

    async def write() -> tuple[bool | None, bool]:
        row = await (await conn.execute(UNREADABLE, values)).fetchone()
        return (None, False) if row is None else (bool(row[0]), bool(row[0]))

    news = await _shutting_out(conn, f"marking repository {repository_id} unreadable", write)
    if news is not None:
        # Said before: only what has come back to pending since.
        await _judge_rest(conn, repository_id, pending_only=not news)


async def mark_readable(conn: Connection, repository_id: int, *, ring: Ring | None = None) -> None:
    """It can be read: its jobs wait no more for that. In a transaction of the caller's, first of all."""

    async def write() -> tuple[bool, bool]:
        row = await (await conn.execute(READABLE, {"id": repository_id})).fetchone()
        return row is not None, row is not None

    if await _shutting_out(conn, f"marking repository {repository_id} readable", write):
        await _judge_rest(conn, repository_id, ring=ring)


async def _shutting_out(conn: Connection, doing: str, write: Callable[[], Awaitable[tuple[T, bool]]]) -> T:
    """What `write` answers, and whether it changes how jobs rest: then it is written with claims shut out.

    A claimed job that comes back at this moment rests by what was true when it began to; judging comes too soon for
    that one, and nobody else would judge it. Seldom does anything change: it is tried without, and that is undone.
    """
    with translate(doing):
        async with conn.transaction() as tried:
            answer, changes = await write()
            if not changes:
                return answer
            raise Rollback(tried)
        await shut_out(conn, doing)
        return (await write())[0]


# The trigger of 0002 looks at `tracked` and `readable`; it only has to be touched. The repository's row is locked.
JUDGE_REST = """
WITH kin AS MATERIALIZED (
  SELECT id, state FROM job
   WHERE repository_id = %(id)s AND state IN ('pending', 'waiting') AND (state = 'pending' OR NOT %(pending_only)s)
   ORDER BY id FOR NO KEY UPDATE
), moved AS (
  UPDATE job SET state = 'waiting' FROM kin WHERE job.id = kin.id
  RETURNING job.id, kin.state AS was, job.state, job.reason, job.lane
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason)
  SELECT id, 'intake', CASE WHEN state = 'pending' THEN 'wake' ELSE 'wait' END, was, state, reason
    FROM moved WHERE was <> state
), woken AS MATERIALIZED (
  SELECT lane, CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_lane', lane) END
    FROM (SELECT DISTINCT lane FROM moved WHERE state = 'pending') AS one
)
SELECT lane FROM woken
"""


async def _judge_rest(
    conn: Connection, repository_id: int, *, pending_only: bool = False, ring: Ring | None = None
) -> None:
    values = {"id": repository_id, "pending_only": pending_only, "notify": ring is None}
    with translate(f"judging the resting jobs of repository {repository_id}"):
        wake_lanes(ring, [str(row[0]) async for row in await conn.execute(JUDGE_REST, values)])
