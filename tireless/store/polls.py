"""Which repository is polled next, taken by a token with an expiry; the cursor moves here and nowhere else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import uuid4

from psycopg.rows import class_row, dict_row

from tireless.domain.cursor import Cursor
from tireless.domain.issue import IssueState, Snapshot
from tireless.store.db import Connection, clean_text, translate
from tireless.store.repos import RepoRow

TAKE_REPOSITORY = """
WITH due AS MATERIALIZED (
  SELECT r.id FROM repository r
   WHERE r.tracked AND r.forge = ANY (%(forges)s::text[])
     AND (r.poll_not_before <= clock_timestamp() OR r.id = ANY (%(at_once)s::bigint[]))
     AND (%(at_once)s::bigint[] = '{}' OR r.id = ANY (%(at_once)s::bigint[]))
     AND (r.take_until IS NULL OR r.take_until < clock_timestamp())
   ORDER BY r.poll_not_before, r.id LIMIT 1
   FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE repository r SET take_token = %(token)s::uuid, take_by = %(by)s,
                        take_until = clock_timestamp() + make_interval(secs => %(take_s)s::float8)
  FROM due WHERE r.id = due.id
RETURNING r.id, r.forge, r.forge_repo_id, r.owner, r.name, r.owner_is_org, r.source, r.readable, r.searched, r.since,
          r.newest_seen, r.newest_first_seen_at,
          r.full_scan_at IS NULL
            OR r.full_scan_at < clock_timestamp() - make_interval(secs => %(full_scan_s)s::float8) AS full_scan_due,
          r.doubted_at IS NOT NULL AS doubted, r.judged_by, r.poll_failures, r.take_token AS token
"""


async def take_repository(
    conn: Connection,
    forges: Sequence[str],
    *,
    by: str,
    full_scan_s: float,
    take_s: float = 120.0,
    at_once: Sequence[int] = (),
) -> RepoRow | None:
    """The repository whose poll is due longest, for this caller alone; None: none is due, or others have them.

    `at_once`: of these ids, due or not.
    """
    values = {
        "forges": list(forges),
        "by": by,
        "full_scan_s": full_scan_s,
        "take_s": take_s,
        "at_once": list(at_once),
        "token": uuid4(),
    }
    with translate("taking a repository to poll"):
        async with conn.cursor(row_factory=class_row(RepoRow)) as cursor:
            return await (await cursor.execute(TAKE_REPOSITORY, values)).fetchone()


KEEP_TAKE = """
UPDATE repository SET take_until = clock_timestamp() + make_interval(secs => %(take_s)s::float8)
 WHERE id = %(id)s AND take_token = %(token)s AND tracked
"""


async def keep_take(conn: Connection, repo: RepoRow, *, take_s: float = 120.0) -> bool:
    """Go on with a repository; False: it took too long and another poller has it, or nobody watches it any more."""
    with translate(f"going on with {repo.ref}"):
        done = await conn.execute(KEEP_TAKE, {"id": repo.id, "token": repo.token, "take_s": take_s})
    return done.rowcount == 1


# The cursor moves here alone, after the last page. A doubt that came after it was asked what it is stays, and is due.
POLLED = """
UPDATE repository SET since = %(since)s, newest_seen = %(newest)s, newest_first_seen_at = %(first_seen)s,
       full_scan_at = CASE WHEN %(full)s::boolean THEN clock_timestamp() ELSE full_scan_at END,
       judged_by = CASE WHEN %(full)s::boolean THEN %(judged_by)s ELSE judged_by END,
       doubted_at = CASE WHEN doubted_at > coalesce(%(asked)s::timestamptz, '-infinity') THEN doubted_at END,
       poll_not_before = CASE WHEN doubted_at > coalesce(%(asked)s::timestamptz, '-infinity') THEN '-infinity'
         ELSE clock_timestamp() + make_interval(
           secs => CASE WHEN searched THEN %(searched_delay_s)s::float8 ELSE %(delay_s)s::float8 END) END,
       polled_at = coalesce(%(began)s::timestamptz, polled_at),
       poll_failures = 0, poll_error = NULL, take_token = NULL, take_by = NULL, take_until = NULL
 WHERE id = %(id)s AND take_token = %(token)s
"""


async def polled(
    conn: Connection,
    repo: RepoRow,
    cursor: Cursor,
    *,
    full: bool,
    judged_by: str,
    delay_s: float,
    searched_delay_s: float = 3600.0,
    began: datetime | None = None,
    asked: datetime | None = None,
) -> bool:
    """A poll came to its end; the next one is due in `delay_s` seconds. False: the take was lost, nothing moved.

    `asked`: when it was last asked what the repository is now; None: not in this poll, so a doubt stays.

    `began`: when, if it has seen all that had changed by then.

    `searched_delay_s`: in so many where the search for its owner's issues sees its changes.

    `judged_by` names the rules; a full scan under them is what makes all issues judged by them.
    """
    values = {
        "id": repo.id,
        "token": repo.token,
        "since": cursor.since,
        "newest": cursor.newest,
        "first_seen": cursor.newest_first_seen,
        "full": full,
        "judged_by": judged_by,
        "delay_s": delay_s,
        "searched_delay_s": searched_delay_s,
        "began": began,
        "asked": asked,
    }
    with translate(f"ending the poll of {repo.ref}"):
        return (await conn.execute(POLLED, values)).rowcount == 1


POLL_FAILED = """
UPDATE repository SET poll_failures = once_more(poll_failures), poll_error = %(error)s,
       poll_not_before = clock_timestamp() + make_interval(secs => %(delay_s)s::float8),
       take_token = NULL, take_by = NULL, take_until = NULL
 WHERE id = %(id)s AND take_token = %(token)s
"""


async def poll_failed(conn: Connection, repo: RepoRow, error: str, *, delay_s: float) -> None:
    """A poll could not be ended: its cursor stays, and it is tried again in `delay_s` seconds."""
    values = {"id": repo.id, "token": repo.token, "error": clean_text(error)[:2000], "delay_s": delay_s}
    with translate(f"putting off the poll of {repo.ref}"):
        await conn.execute(POLL_FAILED, values)


SET_ASIDE = """
UPDATE repository SET doubted_at = NULL,
       poll_not_before = clock_timestamp() + make_interval(secs => %(delay_s)s::float8), poll_failures = 0,
       poll_error = NULL, take_token = NULL, take_by = NULL, take_until = NULL
 WHERE id = %(id)s AND take_token = %(token)s
"""


async def set_aside(conn: Connection, repo: RepoRow, *, delay_s: float) -> None:
    """The repository answered that nothing is to be read there: it is asked again in `delay_s` seconds."""
    with translate(f"setting {repo.ref} aside"):
        await conn.execute(SET_ASIDE, {"id": repo.id, "token": repo.token, "delay_s": delay_s})


# A doubt that is there already changes nothing: the backoff of a poll that cannot be ended stays.
DOUBT = """
UPDATE repository SET doubted_at = clock_timestamp(), poll_not_before = '-infinity'
 WHERE id = ANY (%(ids)s::bigint[]) AND tracked AND doubted_at IS NULL
"""


async def doubt(conn: Connection, ids: Sequence[int]) -> None:
    """These may not be what they were (archived, renamed, gone, not to be written to): polled at once, asked first."""
    with translate(f"doubting {len(ids)} repositories"):
        await conn.execute(DOUBT, {"ids": list(ids)})


# Spread, lest all be due in one moment. A backoff is no schedule: it stays.
SOONER = """
WITH late AS MATERIALIZED (
  SELECT r.id, h.most_s FROM repository r
   CROSS JOIN LATERAL (
     SELECT CASE WHEN r.searched OR NOT r.readable THEN %(full_scan_s)s::float8 ELSE %(poll_s)s::float8 END AS most_s) h
   WHERE r.tracked AND r.forge = ANY (%(forges)s::text[]) AND r.poll_failures = 0
     AND r.poll_not_before > clock_timestamp() + make_interval(secs => 1.1 * h.most_s)
   ORDER BY r.id FOR NO KEY UPDATE OF r
)
UPDATE repository r SET poll_not_before = clock_timestamp() + make_interval(secs => late.most_s * random())
  FROM late WHERE r.id = late.id
"""
OWNERS_SOONER = """
WITH late AS MATERIALIZED (
  SELECT o.forge, o.owner FROM owner_poll o
   WHERE o.forge = ANY (%(forges)s::text[]) AND o.poll_failures = 0
     AND o.poll_not_before > clock_timestamp() + make_interval(secs => 1.1 * %(poll_s)s::float8)
   ORDER BY o.forge, o.owner FOR NO KEY UPDATE
)
UPDATE owner_poll o SET poll_not_before = clock_timestamp() + make_interval(secs => %(poll_s)s::float8 * random())
  FROM late WHERE o.forge = late.forge AND o.owner = late.owner
"""


async def poll_sooner(conn: Connection, forges: Sequence[str], *, poll_s: float, full_scan_s: float) -> int:
    """Bring forward what was scheduled later than these intervals allow, as under longer ones; how many polls.

    Any number of processes may do it, while others poll.
    """
    values = {"forges": list(forges), "poll_s": poll_s, "full_scan_s": full_scan_s}
    with translate("bringing polls forward"):
        repositories = (await conn.execute(SOONER, values)).rowcount
        return repositories + (await conn.execute(OWNERS_SOONER, values)).rowcount


# ------------------------------------------------------------------------------------------------ what need not be read

STORED = """
SELECT i.number, i.forge_issue_id, i.updated_at, i.content_hash, i.open, i.labels,
       EXISTS (SELECT FROM job j WHERE j.issue_id = i.id AND j.state IN ('pending', 'waiting', 'claimed', 'publishing'))
         AS live
  FROM issue i
 WHERE i.repository_id = %(repository_id)s AND i.number = ANY (%(numbers)s::int[]) AND i.settled
   AND i.triage_code IS DISTINCT FROM 'cannot_tell'
"""


async def unchanged(
    conn: Connection, repository_id: int, snapshots: Sequence[Snapshot], *, live_too: bool
) -> frozenset[int]:
    """Numbers of those issues that were judged exactly as they are now, so that their timelines need no reading.

    Only where the stored reading was sent well after the issue's stamp: stamps have whole seconds. Renaming or
    deleting a label moves no stamp, so labels are compared too. `live_too`: also issues with a live job.
    """
    values = {"repository_id": repository_id, "numbers": [one.number for one in snapshots]}
    with translate(f"comparing {len(snapshots)} issues of repository {repository_id} with what is stored"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(STORED, values)
            stored = {row["number"]: row async for row in cursor}
    return frozenset(
        one.number
        for one in snapshots
        if (row := stored.get(one.number)) is not None
        and (live_too or not row["live"])
        and (row["forge_issue_id"], row["updated_at"], row["open"], row["content_hash"])
        == (one.issue_id, one.updated_at, one.state is IssueState.OPEN, one.content_hash)
        and {(each["id"], each["name"]) for each in row["labels"]} == {(each.id, each.name) for each in one.labels}
    )


# A scan of everything did not show them: deleted, or a page was torn. One read tells.
LOOK_FOR_UNSEEN = """
INSERT INTO look (repository_id, number, why)
SELECT i.repository_id, i.number, 'missing from a full scan'
  FROM job j JOIN issue i ON i.id = j.issue_id
 WHERE j.repository_id = %(repository_id)s AND j.state IN ('pending', 'waiting', 'claimed', 'publishing')
   AND i.number <> ALL (%(seen)s::int[]) AND i.seen_at < %(began)s
 ORDER BY i.number
ON CONFLICT (repository_id, number) DO NOTHING
"""


async def look_for_unseen(conn: Connection, repo: RepoRow, seen: Collection[int], *, began: datetime) -> int:
    """Looks at issues with a live job that a full scan begun at `began` did not show; how many."""
    values = {"repository_id": repo.id, "seen": list(seen), "began": began}
    with translate(f"looking for issues missing from {repo.ref}"):
        return (await conn.execute(LOOK_FOR_UNSEEN, values)).rowcount
