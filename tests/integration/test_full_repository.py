"""A repository at its limit with a thousand jobs waiting: what it costs others, counted in pages that are looked at."""

from __future__ import annotations

from uuid import uuid4

import pytest
from psycopg import AsyncClientCursor

from tests.support import rows
from tests.support.bulk import asks
from tireless.domain.outcome import Outcome
from tireless.store import claim
from tireless.store.claim import Claim, RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.settle import POLICY, SETTLE, Answer, Ending, Word, settle, settle_values
from tireless.store.sweep import wake_full

ME = RunnerId("r1", "h1", uuid4())
MANY = 1000
FEWER_AND_MORE = (500, 4000)
"""Beside so many the indexes are equally deep: each level is a page for every look-up, and no walk."""


async def pages(conn: Connection, statement: str) -> int:
    """How many pages a statement looks at, in the leanest of its later runs; it leaves nothing behind.

    The first one makes its plans, and so does each that follows somebody else's vacuum.
    """
    looked_at = []
    for _ in range(5):
        async with conn.transaction(force_rollback=True):
            row = await (await conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode())).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        looked_at.append(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]))
    return min(looked_at[1:])


async def pages_of_a_claim(conn: Connection) -> int:
    """Of a claim of the lane."""
    params = {"lane": rows.LANE, "n": 1, "runner": "r1", "host": "h1"}
    return await pages(conn, AsyncClientCursor(conn).mogrify(claim.CLAIM, params))


async def pages_of_an_end(conn: Connection, running: Claim) -> int:
    """Of settling the full repository's running job."""
    word = Word(running.job_id, running.token, Ending(outcome=Outcome.FAILED, reason="why"))
    values = settle_values([word], policy=POLICY, alone=True, notify=True)
    return await pages(conn, AsyncClientCursor(conn).mogrify(SETTLE, values))


async def full(conn: Connection, count: int) -> Claim:
    """A repository that may run one job, runs it, and has `count` more, which have stepped aside; its running job."""
    await rows.repository(conn, "acme/full", max_running=1)
    await asks(conn, "acme/full", count + 1)
    (running,) = await claim_next(conn, [rows.LANE], runner=ME)
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    query = "SELECT count(*) FROM job WHERE reason = 'repository_full'"
    assert await rows.value(conn, query) == count
    await conn.execute("VACUUM ANALYZE job")
    return running


@pytest.mark.parametrize("others", [0, 50], ids=["nothing-else", "fifty-of-another"])
async def test_it_costs_a_claim_no_walk(conn: Connection, others: int) -> None:
    """A claim looks at as many pages beside eight times as many that stepped aside, finding a job or not."""
    looked_at = []
    for count in FEWER_AND_MORE:
        await conn.execute("TRUNCATE job, request, issue, repository CASCADE")
        await full(conn, count)
        await asks(conn, "acme/other", others)
        looked_at.append(await pages_of_a_claim(conn))
    assert looked_at[1] <= 1.2 * looked_at[0], looked_at


async def test_it_costs_an_end_no_walk(conn: Connection) -> None:
    """To wake the first takes as many pages beside eight times as many that stepped aside."""
    looked_at = []
    for count in FEWER_AND_MORE:
        await conn.execute("TRUNCATE job, request, issue, repository CASCADE")
        looked_at.append(await pages_of_an_end(conn, await full(conn, count)))
    assert looked_at[1] <= 1.2 * looked_at[0], looked_at


async def test_a_claim_moves_a_bounded_number_aside(conn: Connection) -> None:
    """No single transaction moves a whole repository: others wait for its locks."""
    await rows.repository(conn, "acme/full", max_running=1)
    await asks(conn, "acme/full", MANY)
    await claim_next(conn, [rows.LANE], runner=ME)
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    query = "SELECT max(n)::int FROM (SELECT count(*) AS n FROM job_event WHERE what = 'wait' GROUP BY xmin::text) AS t"
    assert int(str(await rows.value(conn, query))) <= 200


async def test_all_of_them_run_one_after_another(conn: Connection) -> None:
    """Each end wakes the next one: none is forgotten, none runs beside another, and their order is kept."""
    running = await full(conn, 60)
    ran = []
    while True:
        ran.append(running.job_id)
        assert await settle(conn, running.job_id, running.token, Ending(outcome=Outcome.NO_CHANGE)) is Answer.DONE
        claims = await claim_next(conn, [rows.LANE], runner=ME, n=5)
        if not claims:
            break
        (running,) = claims
    assert ran == sorted(ran)
    assert len(ran) == 61
    assert await wake_full(conn) == 0


async def test_what_waits_says_for_which_limit(conn: Connection) -> None:
    """They stepped aside for what runs; when it has ended and the day's runs are used up, they say so, all of them."""
    running = await full(conn, 250)
    await rows.repository(conn, "acme/full", max_running=1, max_runs_per_day=1)
    assert await settle(conn, running.job_id, running.token, Ending(outcome=Outcome.FAILED)) is Answer.DONE
    for _ in range(3):
        await wake_full(conn)
    reasons = await rows.rows(conn, "SELECT reason, count(*) FROM job WHERE state = 'waiting' GROUP BY 1")
    assert reasons == [{"reason": "day_limit", "count": 250}]
    await rows.repository(conn, "acme/full", max_running=1, max_runs_per_day=5)
    assert await wake_full(conn) == 1
