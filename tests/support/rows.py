"""Rows for tests: repositories, issues and jobs made whole and legal in the database, without a forge or a service.

Everything needed on the way (forge, repository, lane, issue, request) is made when it is missing. Jobs in states that
take a claim to reach are written as a claim would have left them; triggers and constraints are on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tireless.domain.issue import content_hash
from tireless.store.db import Connection, connect

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

FORGE = "loop"
REPO = "acme/widget"
LANE = "claude"


@dataclass(frozen=True, slots=True)
class Made:
    """A job and what it hangs on; `attempt_id` and `token` are those of its last claim."""

    job_id: int
    issue_id: int
    repository_id: int
    request_id: int
    number: int
    attempt_id: int | None = None
    token: UUID | None = None

    @property
    def claim(self) -> tuple[int, UUID]:
        """Job id and claim token, as fenced writes want them; only of a job that was claimed."""
        assert self.token is not None
        return self.job_id, self.token


# ------------------------------------------------------------------------------------------------ any row


async def insert(conn: Connection, table: str, **columns: object) -> dict[str, object]:
    """Insert one row and return it whole, as the database completed it."""
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) RETURNING *").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join(map(sql.Placeholder, columns)),
    )
    return await _one(conn, statement, columns)


_KEPT = {("job", "claim_no"): "claim_no_counts_claims"} | {
    ("attempt", column): "attempt_stays_its_claims" for column in ("job_id", "claim_no", "token")
}
"""The triggers that keep columns what they are."""


async def change(conn: Connection, table: str, key: object, **columns: object) -> dict[str, object]:
    """Update the columns of one row, by `id` (by `name` for lane and forge), and return it whole.

    What nobody may change by hand as well: such rows exist, they only come about otherwise.
    """
    triggers = [sql.Identifier(name) for name in sorted({_KEPT[table, c] for c in columns if (table, c) in _KEPT})]
    statement = sql.SQL("UPDATE {} SET {} WHERE {} = %(_key)s RETURNING *").format(
        sql.Identifier(table),
        sql.SQL(", ").join(sql.SQL("{} = {}").format(sql.Identifier(c), sql.Placeholder(c)) for c in columns),
        sql.Identifier(_key_of(table)),
    )
    for name in triggers:
        await conn.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}").format(sql.Identifier(table), name))
    try:
        return await _one(conn, statement, {**columns, "_key": key})
    finally:
        for name in triggers:
            await conn.execute(sql.SQL("ALTER TABLE {} ENABLE TRIGGER {}").format(sql.Identifier(table), name))


async def row(conn: Connection, table: str, key: object) -> dict[str, object]:
    """One row as a dict, by `id` (by `name` for lane and forge)."""
    statement = sql.SQL("SELECT * FROM {} WHERE {} = %(_key)s").format(
        sql.Identifier(table), sql.Identifier(_key_of(table))
    )
    return await _one(conn, statement, {"_key": key})


async def rows(conn: Connection, query: str, **params: object) -> list[dict[str, object]]:
    """All rows of a query, as dicts."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), params or None)
        return await cursor.fetchall()


async def value(conn: Connection, query: str, **params: object) -> object:
    """The single value of a query that gives one row."""
    found = await rows(conn, query, **params)
    assert len(found) == 1, f"{query} gave {len(found)} rows"
    return next(iter(found[0].values()))


def _key_of(table: str) -> str:
    return "name" if table in ("lane", "forge") else "id"


async def _one(conn: Connection, statement: sql.Composed, params: dict[str, object]) -> dict[str, object]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement, params)
        found = await cursor.fetchone()
    assert found is not None, f"no row for {statement.as_string(None)} with {params}"
    return found


# ------------------------------------------------------------------------------------------------ what a job hangs on


async def forge(conn: Connection, name: str = FORGE) -> str:
    """A forge by name; made when missing."""
    query = "INSERT INTO forge (name, url) VALUES (%(name)s, 'http://127.0.0.1:1') ON CONFLICT DO NOTHING"
    await conn.execute(query, {"name": name})
    return name


async def repository(conn: Connection, path: str = REPO, **columns: object) -> int:
    """A tracked repository by `owner/name`, made when missing; `columns` are set either way. Its id."""
    owner, _, name = path.partition("/")
    query = "SELECT id FROM repository WHERE tracked AND owner = %(owner)s AND name = %(name)s"
    found = await rows(conn, query, owner=owner, name=name)
    if found:
        if columns:
            await change(conn, "repository", found[0]["id"], **columns)
        return _id(found[0])
    given: dict[str, object] = {
        "forge": await forge(conn),
        "forge_repo_id": await value(conn, "SELECT coalesce(max(forge_repo_id), 100) + 1 FROM repository"),
        "owner": owner,
        "name": name,
        "default_branch": "main",
        "clone_url": f"http://127.0.0.1:1/{path}.git",
        "html_url": f"http://127.0.0.1:1/{path}",
    }
    return _id(await insert(conn, "repository", **{**given, **columns}))


async def lane(conn: Connection, name: str = LANE, **columns: object) -> str:
    """A configured lane by name, made when missing; `columns` are set either way."""
    query = """
    INSERT INTO lane (name, position) VALUES (%(name)s, (SELECT count(*) FROM lane)) ON CONFLICT (name) DO NOTHING
    """
    await conn.execute(query, {"name": name})
    if columns:
        await change(conn, "lane", name, **columns)
    return name


async def issue(conn: Connection, path: str = REPO, number: int | None = None, **columns: object) -> int:
    """An open issue with approved text, its number the repository's next one unless given. Its id.

    `approved=False` leaves it without approved text; every other keyword is a column.
    """
    repository_id = await repository(conn, path)
    if number is None:
        query = "SELECT coalesce(max(number), 0) + 1 AS n FROM issue WHERE repository_id = %(id)s"
        number = _int((await rows(conn, query, id=repository_id))[0]["n"])
    approved = columns.pop("approved", True)
    title, body = str(columns.get("title", f"Issue {number}")), str(columns.get("body", "What is wanted."))
    now = await value(conn, "SELECT clock_timestamp()")
    given: dict[str, object] = {
        "repository_id": repository_id,
        "number": number,
        "forge_issue_id": repository_id * 100_000 + number,
        "title": title,
        "body": body,
        "content_hash": content_hash(title, body),
        "author_id": 7,
        "author_login": "ada",
        "open": True,
        "url": f"http://127.0.0.1:1/{path}/issues/{number}",
        "created_at": now,
        "updated_at": now,
        "asked_at": now,
    }
    if approved:
        given |= {
            "approved_hash": given["content_hash"],
            "approved_title": title,
            "approved_body": body,
            "approved_by": "ada",
            "approved_at": now,
        }
    if "labels" in columns:
        columns["labels"] = Jsonb(columns["labels"])
    return _id(await insert(conn, "issue", **{**given, **columns}))


async def request(conn: Connection, issue_id: int, **columns: object) -> int:
    """A label request on an issue. Its id."""
    given: dict[str, object] = {
        "issue_id": issue_id,
        "source": "label",
        "event_id": await value(conn, "SELECT coalesce(max(event_id), 1000) + 1 FROM request"),
        "asked_time": await value(conn, "SELECT clock_timestamp()"),
        "actor_id": 7,
        "actor_login": "ada",
        "content_hash": (await row(conn, "issue", issue_id))["content_hash"],
    }
    return _id(await insert(conn, "request", **{**given, **columns}))


# ------------------------------------------------------------------------------------------------ jobs


async def job(
    conn: Connection,
    path: str = REPO,
    *,
    number: int | None = None,
    issue_id: int | None = None,
    state: str = "pending",
    lane_name: str = LANE,
    runner: str = "r1",
    host: str = "h1",
    lease_s: float = 600.0,
    recorded: bool = False,
    **columns: object,
) -> Made:
    """A job in `state`, on a new issue of `path` unless `issue_id` names one; other keywords are columns of job.

    `claimed`, `publishing` and `delivered` come with their attempt; in the last two it ended as done with a recorded
    result, in `claimed` it runs, with a result only if `recorded`. A waiting job needs its reason among the columns:
    `hold=True`, `parked=…`, `not_before=…` with `not_before_reason=…`.
    """
    await lane(conn, lane_name)
    if issue_id is None:
        issue_id = await issue(conn, path, number)
    of = await row(conn, "issue", issue_id)
    request_id = _int(columns.pop("request_id", None) or await request(conn, issue_id))
    given: dict[str, object] = {
        "issue_id": issue_id,
        "repository_id": of["repository_id"],
        "request_id": request_id,
        "kind": "implement",
        "lane": lane_name,
        "state": state,
    }
    token, attempt_id = uuid4(), None
    now = await value(conn, "SELECT clock_timestamp()")
    if state in ("claimed", "publishing", "delivered"):
        attempt_id = await value(conn, "SELECT nextval(pg_get_serial_sequence('attempt', 'id'))")
        given |= {"attempts": 1, "claim_no": 1}
    if state == "claimed":
        given |= {"claimed_by": runner, "claimed_host": host, "claim_token": token, "claimed_at": now}
        given["claim_expires_at"] = await value(conn, "SELECT clock_timestamp() + %(s)s * interval '1 s'", s=lease_s)
    elif attempt_id is not None:
        given["result_attempt"] = attempt_id
    if state in ("delivered", "failed", "cancelled"):
        given |= {"finished_at": now, "reason": {"failed": "rejected", "cancelled": "closed"}.get(state)}
    async with conn.transaction():  # a result names an attempt that names its job
        job_id = _id(await insert(conn, "job", **{**given, **columns}))
        if attempt_id is not None:
            ended = {} if state == "claimed" else {"ended_at": now, "outcome": "done", "burned": True}
            begun = {"id": attempt_id, "token": token, "runner": runner, "host": host}
            await attempt(conn, job_id, recorded=recorded or state != "claimed", **begun, **ended)
    claim = (None, None) if attempt_id is None else (_int(attempt_id), token)
    return Made(job_id, issue_id, _int(of["repository_id"]), request_id, _int(of["number"]), *claim)


async def attempt(conn: Connection, job_id: int, recorded: bool = False, **columns: object) -> dict[str, object]:
    """The attempt row of a job's current claim number; `recorded` adds a result with a commit to deliver."""
    of = await row(conn, "job", job_id)
    given: dict[str, object] = {
        "job_id": job_id,
        "repository_id": of["repository_id"],
        "claim_no": of["claim_no"],
        "token": uuid4(),
        "number": of["attempts"],
        "lane": of["lane"],
        "runner": "r1",
        "host": "h1",
    }
    if recorded:
        given |= {
            "recorded_at": await value(conn, "SELECT clock_timestamp()"),
            "result": Jsonb({"protocol": 1, "outcome": "done"}),
            "base_sha": "b" * 40,
            "commit_sha": "c" * 40,
            "branch": f"tireless/{of['issue_id']}-issue.{uuid4().hex[:8]}",
            "pr_title": "A title",
            "pr_body": "A body.",
            "pr_draft": False,
        }
    given |= columns
    statement = sql.SQL("INSERT INTO attempt ({}) {} VALUES ({}) RETURNING *").format(
        sql.SQL(", ").join(map(sql.Identifier, given)),
        sql.SQL("OVERRIDING SYSTEM VALUE" if "id" in given else ""),
        sql.SQL(", ").join(map(sql.Placeholder, given)),
    )
    return await _one(conn, statement, given)


async def child(conn: Connection, plan_issue_id: int, key: str, **columns: object) -> int:
    """A child row of a plan's issue, not created on the forge unless the columns say so. Its id."""
    query = "SELECT count(*) FROM child WHERE plan_issue_id = %(id)s"
    given: dict[str, object] = {
        "plan_issue_id": plan_issue_id,
        "key": key,
        "position": await value(conn, query, id=plan_issue_id),
        "title": f"Child {key}",
        "body": "A part.",
        "kind": "implement",
    }
    return _id(await insert(conn, "child", **{**given, **columns}))


async def expire(conn: Connection, job_id: int) -> None:
    """Let a claim's lease have ended a second ago."""
    await conn.execute(
        "UPDATE job SET claim_expires_at = clock_timestamp() - interval '1 s' WHERE id = %(id)s", {"id": job_id}
    )


async def events(conn: Connection, job_id: int) -> list[tuple[object, object, object, object]]:
    """A job's events, oldest first, as (what, from, to, reason)."""
    query = "SELECT what, from_state, to_state, reason FROM job_event WHERE job_id = %(id)s ORDER BY id"
    return [(e["what"], e["from_state"], e["to_state"], e["reason"]) for e in await rows(conn, query, id=job_id)]


async def states(conn: Connection, made: Sequence[Made]) -> list[object]:
    """The states of these jobs, in their order."""
    return [(await row(conn, "job", m.job_id))["state"] for m in made]


async def not_due(conn: Connection) -> None:
    """No repository is to be polled, until something asks for it."""
    await conn.execute("UPDATE repository SET poll_not_before = 'infinity'")


async def doubted(conn: Connection) -> list[str]:
    """The repositories whose next poll is to ask what they are, and is due."""
    query = "SELECT name FROM repository WHERE doubted_at IS NOT NULL AND poll_not_before = '-infinity' ORDER BY name"
    return [str(each["name"]) for each in await rows(conn, query)]


# ------------------------------------------------------------------------------------------------ concurrency

LIMIT_S = 90.0
"""How long a wait may take before the test fails; nothing is ever slept through."""


@contextlib.asynccontextmanager
async def connections(dsn: str, count: int) -> AsyncIterator[list[Connection]]:
    """So many autocommit connections at once, closed at the end."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(await connect(dsn, application_name="tireless test")) for _ in range(count)
        ]


async def due(conn: Connection, made: Made) -> None:
    """Let a waiting job be due, without anybody noticing."""
    now = await value(conn, "SELECT clock_timestamp() - interval '1 s'")
    await conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    await change(conn, "job", made.job_id, not_before=now)
    await conn.execute("ALTER TABLE job ENABLE TRIGGER USER")


async def until_blocked(watcher: Connection, waiter: Connection, *, work: asyncio.Task[object] | None = None) -> None:
    """Return when `waiter`'s backend waits for a lock that another one holds; asks through `watcher`.

    `work`: what it does; return also when that is done, without having waited for anybody.
    """
    query = "SELECT cardinality(pg_blocking_pids(%(pid)s::int)) > 0"
    async with asyncio.timeout(LIMIT_S):
        while not (await value(watcher, query, pid=waiter.info.backend_pid) or (work is not None and work.done())):
            pass


async def rewrite(conn: Connection, function: str, *changes: tuple[str, str]) -> None:
    """Replace words of a function of this database, each of which must be there once."""
    row = await (await conn.execute("SELECT pg_get_functiondef(%(name)s::regproc)", {"name": function})).fetchone()
    assert row is not None
    text = row[0]
    for old, new in changes:
        assert text.count(old) == 1, f"{function} has {text.count(old)} times: {old}"
        text = text.replace(old, new)
    await conn.execute(text.encode())


def _id(of: dict[str, object]) -> int:
    return _int(of["id"])


def _int(number: object) -> int:
    assert isinstance(number, int)
    return number
