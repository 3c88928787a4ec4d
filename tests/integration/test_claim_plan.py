"""The claim's plan: one walk of job_pending, whatever lies in the table, whatever the planner knows."""

from __future__ import annotations

from typing import cast
from uuid import uuid4

import pytest
from psycopg import AsyncClientCursor

from tests.support import rows
from tests.support.plans import Node, pages, walks_one_index
from tests.support.statements import numbered
from tireless.store import claim
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection

ME = RunnerId("r1", "h1", uuid4())
PARAMS = {"lane": "lane-3", "n": 1, "runner": "r1", "host": "h1"}

LANES = "INSERT INTO lane (name, position) SELECT 'lane-' || n, n FROM generate_series(0, 19) AS n"
ISSUES = """
INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login, open, url,
                   created_at, updated_at, asked_at,
                   approved_hash, approved_title, approved_body, approved_by, approved_at)
SELECT %(repository)s, 1000 + n, 1000000 + n, 't', 'b', 'h', 7, 'ada', true, 'u',
       now(), now(), now(), 'h', 't', 'b', 'ada', now()
  FROM generate_series(1, %(live)s) AS n
"""
REQUESTS = """
INSERT INTO request (issue_id, source, event_id, asked_time, actor_login, content_hash)
SELECT i.id, 'label', 1000000 + i.id, now(), 'ada', 'h' FROM issue i WHERE i.number > 1000
"""
LIVE_JOBS = """
INSERT INTO job (issue_id, repository_id, request_id, kind, lane, state, turn, hold, reason)
SELECT r.issue_id, %(repository)s, r.id, 'implement', 'lane-' || mod(r.id, 20),
       CASE WHEN mod(r.id, 4) = 0 THEN 'waiting' ELSE 'pending' END, r.id,
       mod(r.id, 4) = 0, CASE WHEN mod(r.id, 4) = 0 THEN 'on_hold' END
  FROM request r WHERE r.event_id > 1000000
"""
OLD_REQUESTS = """
INSERT INTO request (issue_id, source, asked_time, actor_login, content_hash)
SELECT (SELECT min(id) FROM issue), 'operator', now(), 'ada', 'h' FROM generate_series(1, %(history)s)
"""
OLD_JOBS = """
INSERT INTO job (issue_id, repository_id, request_id, kind, lane, state, finished_at, reason)
SELECT r.issue_id, %(repository)s, r.id, 'implement', 'lane-' || mod(r.id, 20), 'failed', now(), 'rejected'
  FROM request r WHERE r.source = 'operator'
"""


async def fill(conn: Connection, *statements: str, live: int = 0, history: int = 0) -> None:
    """Run these fillers with triggers off: history is what it is, and the turns are given."""
    values = {"repository": await rows.repository(conn), "live": live, "history": history}
    await conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    for statement in statements:
        await conn.execute(statement.encode(), values)
    await conn.execute("ALTER TABLE job ENABLE TRIGGER USER")


LIVE = (LANES, ISSUES, REQUESTS, LIVE_JOBS)
HISTORY = (OLD_REQUESTS, OLD_JOBS)


async def claims_plan(conn: Connection, options: str = "") -> Node:
    """The plan of CLAIM with its parameters in place."""
    literal = AsyncClientCursor(conn).mogrify(claim.CLAIM, PARAMS)
    return await explained(conn, f"EXPLAIN ({options}FORMAT JSON) {literal}")


async def generic_plan(conn: Connection) -> Node:
    """The plan of CLAIM as a prepared statement that knows no parameter, as after its fifth run."""
    text, names = numbered(claim.CLAIM)
    assert names == ["lane", "host", "n", "runner"]
    await conn.execute("SET plan_cache_mode = force_generic_plan")
    await conn.execute(f"PREPARE claim (text, text, int, text) AS {text}".encode())
    return await explained(conn, "EXPLAIN (FORMAT JSON) EXECUTE claim ('lane-3', 'h1', 1, 'r1')")


async def explained(conn: Connection, query: str) -> Node:
    """The topmost node of a plan."""
    row = await (await conn.execute(query.encode())).fetchone()
    assert row is not None
    return cast(Node, row[0][0]["Plan"])


@pytest.mark.parametrize("statistics", [True, False])
async def test_the_claim_walks_one_index(conn: Connection, statistics: bool) -> None:
    """With many rows and with or without statistics, with parameters in place and as a generic plan."""
    await conn.execute("ALTER TABLE job SET (autovacuum_enabled = false)")
    await fill(conn, *LIVE, *HISTORY, live=8000, history=20_000)
    if statistics:
        await conn.execute("ANALYZE")
    walks_one_index(await claims_plan(conn))
    walks_one_index(await generic_plan(conn))


async def test_history_costs_a_claim_nothing(conn: Connection) -> None:
    """A claim beside twenty thousand ended jobs touches as many buffers as one beside none, up to a fifth."""
    touched = []
    await fill(conn, *LIVE, live=2000)
    for statements in ((), HISTORY):
        await fill(conn, *statements, history=20_000)
        await conn.execute("VACUUM ANALYZE job")
        looked_at = []
        for _ in range(5):
            async with conn.transaction(force_rollback=True):
                looked_at.append(pages(await claims_plan(conn, "ANALYZE, BUFFERS, ")))
        touched.append(min(looked_at[1:]))  # the first one fills the session's caches, as each after a vacuum does
    assert touched[1] <= 1.2 * touched[0]


async def test_the_filled_lane_serves(conn: Connection) -> None:
    """The rows these plans are made over are claimable ones."""
    await fill(conn, *LIVE, *HISTORY, live=200, history=50)
    assert [c.lane for c in await claim_next(conn, ["lane-3"], runner=ME, n=3)] == ["lane-3"] * 3
