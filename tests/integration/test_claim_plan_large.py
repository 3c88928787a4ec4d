"""The claim over a large table: a million jobs that ended, 100,000 pending in twenty lanes, 50,000 that wait.

It walks one index, looks at no page of history and at hardly more pages than without it: as a plain statement, as the
prepared one that the driver makes of it, with statistics that are fresh, stale, or not there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest
from psycopg import AsyncClientCursor

from tests.support import rows
from tests.support.plans import Node, nodes, pages, walks_one_index
from tests.support.statements import numbered
from tireless.domain.outcome import Outcome
from tireless.embedded import EmbeddedPostgres
from tireless.store import claim
from tireless.store.claim import RunnerId, claim_next, renew_claim
from tireless.store.db import Connection, connect
from tireless.store.migrate import migrate
from tireless.store.settle import Answer, Ending, settle

ME = RunnerId("r1", "h1", uuid4())
LANE = "lane-7"
PARAMS = {"lane": LANE, "n": 1, "runner": "r1", "host": "h1"}

LIVE = """
INSERT INTO forge (name, url) VALUES ('loop', 'http://127.0.0.1:1');
INSERT INTO repository (forge, forge_repo_id, owner, name)
SELECT 'loop', n, 'acme', 'r' || n FROM generate_series(1, 50) AS n;
INSERT INTO lane (name, position) SELECT 'lane-' || n, n FROM generate_series(0, 19) AS n;
UPDATE lane SET max_running = 16 WHERE name = 'lane-8';
INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login, open, url,
                   created_at, updated_at, asked_at,
                   approved_hash, approved_title, approved_body, approved_by, approved_at)
SELECT 1 + n % 50, n, n, 't', 'b', 'h', 7, 'ada', true, 'u', now(), now(), now(), 'h', 't', 'b', 'ada', now()
  FROM generate_series(1, 150000) AS n;
INSERT INTO job (issue_id, repository_id, request_id, kind, lane, turn, state, hold, reason)
SELECT n, 1 + n % 50, n, 'implement', 'lane-' || n % 20, n, CASE WHEN n % 3 = 0 THEN 'waiting' ELSE 'pending' END,
       n % 3 = 0, CASE WHEN n % 3 = 0 THEN 'on_hold' END
  FROM generate_series(1, 150000) AS n
"""
HISTORY = """
INSERT INTO job (issue_id, repository_id, request_id, kind, lane, state, claim_no, attempts, finished_at, reason)
SELECT 1 + n % 150000, 1 + n % 50, 150000 + n, 'implement', 'lane-' || n % 20, 'failed', 1, 1,
       now() - n * interval '1 s', 'rejected'
  FROM generate_series(1, 1000000) AS n;
INSERT INTO attempt (job_id, repository_id, claim_no, token, number, lane, runner, host, claimed_at, ended_at,
                     outcome, burned)
SELECT 150000 + n, 1 + n % 50, 1, gen_random_uuid(), 1, 'lane-' || n % 20, 'r', 'h', now() - n * interval '1 s',
       now() - n * interval '1 s', 'failed', true
  FROM generate_series(1, 1000000) AS n
"""
COUNTED = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM claim_counted('lane-8', 1, 'r1', 'h1')"
FORGET_STATISTICS = """
DELETE FROM pg_statistic WHERE starelid IN ('job'::regclass, 'attempt'::regclass, 'issue'::regclass);
UPDATE pg_class SET reltuples = -1, relpages = 0, relallvisible = 0
 WHERE oid IN ('job'::regclass, 'attempt'::regclass, 'issue'::regclass)
"""


async def fill(conn: Connection, statements: str) -> None:
    """Rows that nobody wrote by the store: without triggers and foreign keys. Superusers only."""
    await conn.execute(f"SET session_replication_role = replica; {statements}; RESET session_replication_role".encode())


# ------------------------------------------------------------------------------------------------ plans


async def explained(conn: Connection, statement: str) -> Node:
    """The plan of the leanest of seven runs on warm caches: now and then one splits a page of some index.

    Nothing is rolled back: the driver would forget its statements.
    """
    query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    return min([await _run(conn, query) for _ in range(8)][1:], key=pages)


async def _run(conn: Connection, query: str) -> Node:
    row: object = await (await conn.execute(query.encode(), prepare=False)).fetchone()
    assert isinstance(row, tuple)
    return cast(Node, row[0][0]["Plan"])


async def plain(conn: Connection) -> Node:
    """As a statement with its values in place."""
    return await explained(conn, AsyncClientCursor(conn).mogrify(claim.CLAIM, PARAMS))


async def generic(conn: Connection) -> Node:
    """As a prepared statement that knows none of its values."""
    text, names = numbered(claim.CLAIM)
    values = ", ".join(repr(PARAMS[name]) for name in names)
    await conn.execute("SET plan_cache_mode = force_generic_plan")
    await conn.execute(f"PREPARE unknown (text, text, int, text) AS {text}".encode())
    return await explained(conn, f"EXECUTE unknown ({values})")


async def as_driven(conn: Connection) -> Node:
    """As a pool's connection has prepared it by itself after a good many claims: past the fifth run in the server."""
    for _ in range(9):
        assert len(await claim_next(conn, [LANE], runner=ME)) == 1
    query = """
    SELECT name, generic_plans + custom_plans AS runs FROM pg_prepared_statements WHERE statement LIKE '%open_lane%'
    """
    (prepared,) = await rows.rows(conn, query)
    assert int(str(prepared["runs"])) > 5
    _, names = numbered(claim.CLAIM)
    return await explained(conn, f"EXECUTE {prepared['name']} ({', '.join(repr(PARAMS[name]) for name in names)})")


async def limited(conn: Connection) -> Node:
    """The leanest claim of a lane with a limit, when its function has made all its plans; each is ended at once."""
    found = []
    for _ in range(9):
        found.append(await _run(conn, COUNTED))
        (taken,) = await rows.rows(conn, "SELECT id, claim_token FROM job WHERE state = 'claimed' AND lane = 'lane-8'")
        job_id, token = int(str(taken["id"])), UUID(str(taken["claim_token"]))
        assert await settle(conn, job_id, token, Ending(outcome=Outcome.NO_CHANGE)) is Answer.DONE
    return min(found[6:], key=pages)


async def measured(dsn: str) -> dict[str, int]:
    """The pages each kind of plan looks at, on a connection that has planned nothing yet; each walks one index once."""
    found = {}
    for kind in (plain, generic, as_driven):
        async with await connect(dsn, application_name="tireless test") as conn:
            conn.prepare_threshold = 2
            plan = await kind(conn)
        walks_one_index(plan)
        (walk,) = [node for node in nodes(plan) if node.get("Index Name") == "job_pending"]
        assert pages(walk) <= 8, f"{kind.__name__} looks at {pages(walk)} pages to find its job"
        found[kind.__name__] = pages(plan)
    async with await connect(dsn, application_name="tireless test") as conn:
        found["limited"] = pages(await limited(conn))
    return found


@pytest.fixture
async def alone_dsn() -> AsyncIterator[str]:
    """A migrated database on a server of its own, without autovacuum.

    Whether a dead index entry may be passed by hangs on the oldest transaction of the whole server: beside other tests
    the claims would walk over what the claims before them have left.
    """
    state = Path(tempfile.mkdtemp(prefix="tireless-alone-"))
    state.chmod(0o755)
    server = EmbeddedPostgres(state / "pg", dbname="alone", fast=True)
    await server.open()
    try:
        async with await connect(server.url, application_name="tireless test") as conn:
            await conn.execute("ALTER SYSTEM SET autovacuum = off")
            await conn.execute("SELECT pg_reload_conf()")
        await migrate(server.url)
        yield server.url
    finally:
        server.release()
        await server.stopped(90)
        shutil.rmtree(state)


@pytest.fixture
async def alone(alone_dsn: str) -> AsyncIterator[Connection]:
    """A connection to it."""
    async with await connect(alone_dsn, application_name="tireless test") as conn:
        yield conn


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_million_ended_jobs_cost_a_claim_nothing(alone: Connection, alone_dsn: str) -> None:
    """With statistics that are not there, fresh, or from before the history, prepared or not: within a fifth."""
    conn, dsn = alone, alone_dsn
    for table in ("job", "attempt", "issue"):
        await conn.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)".encode())
    await fill(conn, LIVE)
    found = {"empty history, no statistics": await measured(dsn)}
    await conn.execute("ANALYZE")
    found["empty history"] = await measured(dsn)
    await fill(conn, HISTORY)
    found["stale statistics"] = await measured(dsn)
    await conn.execute("ANALYZE")
    found["fresh statistics"] = await measured(dsn)
    await conn.execute(FORGET_STATISTICS.encode())
    found["no statistics"] = await measured(dsn)
    least = found["empty history"]
    limits = dict.fromkeys(least, 1.2 * min(least.values())) | {"limited": 1.2 * least["limited"]}
    over = [(when, kind) for when, plans in found.items() for kind in plans if plans[kind] > limits[kind]]
    assert over == [], (limits, found)
    await renewals_stay_hot(conn)
    await no_page_of_history_is_looked_at(conn)


async def renewals_stay_hot(conn: Connection) -> None:
    """Fifty claims renewed ten times: not one in twenty touches an index."""
    claims = [(one.job_id, one.token) for one in await claim_next(conn, [LANE], runner=ME, n=50)]
    before = await updates(conn)
    for _ in range(10):
        assert len(await renew_claim(conn, claims)) == 50
    after = await updates(conn)
    assert after[0] - before[0] == 500
    assert after[1] - before[1] >= 475


async def updates(conn: Connection) -> tuple[int, int]:
    """How often rows of `job` were updated in this database, and how often without touching an index."""
    await conn.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT n_tup_upd::int AS all, n_tup_hot_upd::int AS hot FROM pg_stat_user_tables WHERE relname = 'job'"
    (counted,) = await rows.rows(conn, query)
    return int(str(counted["all"])), int(str(counted["hot"]))


async def no_page_of_history_is_looked_at(conn: Connection) -> None:
    """Of the table's pages a claim brings into an empty cache only such as hold a job that lives."""
    known = (
        "SELECT count(*)::int FROM pg_available_extension_versions WHERE name = 'pg_buffercache' AND version >= '1.6'"
    )
    if not await rows.value(conn, known):
        pytest.skip("pages in the cache are told by pg_buffercache 1.6 (PostgreSQL 18) only")
    await conn.execute("CREATE EXTENSION pg_buffercache")
    await claim_next(conn, [LANE], runner=ME)  # so that planning looks at nothing any more
    await conn.execute("SELECT pg_buffercache_evict_relation('job')")
    assert len(await claim_next(conn, [LANE], runner=ME)) == 1
    query = """
    SELECT b.relblocknumber AS page,
           EXISTS (SELECT FROM job j WHERE j.ctid >= format('(%s,0)', b.relblocknumber)::tid
                      AND j.ctid < format('(%s,0)', b.relblocknumber + 1)::tid AND j.finished_at IS NULL) AS lives
      FROM pg_buffercache b
     WHERE b.relfilenode = pg_relation_filenode('job') AND b.relforknumber = 0
       AND b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    """
    await conn.execute(b"CREATE TEMP TABLE seen AS SELECT * FROM pg_buffercache")
    found = await rows.rows(conn, query.replace("FROM pg_buffercache b", "FROM seen b"))
    assert found
    assert [row["page"] for row in found if not row["lives"]] == []
