"""Connections, pools and transactions on a real server: what they set, what they survive, what they report."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest

from tests.support import rows
from tireless.errors import StoreError, StoreUnavailable
from tireless.store import db
from tireless.store.db import FIRST, LAST, Connection, Pool

SECOND = timedelta(seconds=1)
TERMINATE_OTHERS = """
SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def one(conn: Connection, query: str) -> object:
    """The single value of a query."""
    row = await (await conn.execute(query.encode())).fetchone()
    assert row is not None
    return row[0]


async def test_a_connection_says_who_it_is_and_speaks_utc(dsn: str) -> None:
    """Name, time zone and the limit on forgotten transactions are set; autocommit is on."""
    conn = await db.connect(dsn, application_name="tireless claim test")
    try:
        assert conn.autocommit
        assert await one(conn, "SHOW application_name") == "tireless claim test"
        assert await one(conn, "SHOW timezone") == "UTC"
        assert await one(conn, "SHOW idle_in_transaction_session_timeout") == "1min"
    finally:
        await conn.close()


async def test_without_autocommit_nothing_is_kept_until_commit(dsn: str, conn: Connection) -> None:
    """autocommit=False begins a transaction at the first statement, and its own settings survive a rollback."""
    await conn.execute("CREATE TABLE t (n int)")
    other = await db.connect(dsn, autocommit=False, application_name="tireless test")
    try:
        await other.execute("INSERT INTO t VALUES (1)")
        assert await one(conn, "SELECT count(*) FROM t") == 0
        await other.rollback()
        assert await one(other, "SHOW timezone") == "UTC"
    finally:
        await other.close()


async def test_pooled_connections_are_set_up_alike(pool: Pool) -> None:
    """The pool's connections are autocommit ones with the same settings."""
    async with pool.connection() as conn:
        assert conn.autocommit
        assert await one(conn, "SHOW timezone") == "UTC"


async def test_nobody_there_is_unavailable() -> None:
    """A refused connection is transient and names the place, not the password."""
    with pytest.raises(StoreUnavailable) as caught:
        await db.connect("postgresql://me:s3cret@127.0.0.1:1/jobs", application_name="tireless test")
    assert "postgresql://me@127.0.0.1:1/jobs" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_a_broken_pool_connection_is_not_handed_out(pool: Pool, conn: Connection) -> None:
    """After the server ended a pool's connections the next borrower gets one that works."""
    async with pool.connection() as pooled:
        before = await one(pooled, "SELECT pg_backend_pid()")
    await conn.execute(TERMINATE_OTHERS)
    async with pool.connection() as pooled:
        assert await one(pooled, "SELECT pg_backend_pid()") != before


async def test_to_borrow_a_connection_asks_nothing_of_the_server(dsn: str, conn: Connection) -> None:
    """It costs no round trip: the last thing the server heard is what the last borrower said.

    A pool of one: another would grow when its first borrower is faster than its first connection.
    """
    heard = """
    SELECT query FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'tireless lender'
    """
    async with db.pool(dsn, min_size=1, max_size=1, application_name="tireless lender") as pool:
        async with pool.connection() as pooled:
            await pooled.execute("SELECT 'the last word'")
        async with pool.connection():
            assert await rows.rows(conn, heard) == [{"query": "SELECT 'the last word'"}]


async def test_an_exhausted_pool_is_unavailable(dsn: str) -> None:
    """Waiting too long for a free connection is our transient error, not psycopg's."""
    async with db.pool(dsn, min_size=1, max_size=1, application_name="tireless test") as pool, pool.connection():
        with pytest.raises(StoreUnavailable, match="waiting for a free database connection"):
            await pool.getconn(timeout=0.05)


async def test_constraints_are_told_by_name(conn: Connection) -> None:
    """A refused row is a StoreError whose constraint can be asked for."""
    await conn.execute("CREATE TABLE t (n int CONSTRAINT one_of_each UNIQUE)")
    with pytest.raises(StoreError, match="one_of_each") as caught, db.translate("storing n"):
        await conn.execute("INSERT INTO t VALUES (1), (1)")
    assert db.constraint_of(caught.value) == "one_of_each"
    assert not isinstance(caught.value, StoreUnavailable)


async def test_a_connection_cut_during_a_statement_is_unavailable(dsn: str, conn: Connection) -> None:
    """A cut is an error, never an empty answer."""
    victim = await db.connect(dsn, application_name="tireless victim")
    try:
        with pytest.raises(StoreUnavailable), db.translate("claiming"):
            await victim.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    finally:
        await victim.close()


async def test_the_clock_is_the_databases(conn: Connection) -> None:
    """Aware, in UTC, moving also inside a transaction."""
    async with db.transaction(conn, "reading the clock twice"):
        first, second = await db.clock(conn), await db.clock(conn)
    assert first < second
    assert first.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - first) < timedelta(minutes=1)


async def test_a_time_that_no_clock_shows_is_read_as_a_very_early_or_late_one(
    dsn: str, pool: Pool, conn: Connection
) -> None:
    """A row that somebody changed to `infinity` must not make its whole list unreadable, and may be reckoned with."""
    written = ("infinity", "-infinity", "290000-01-01", "10000-01-01", "4000-01-01 BC", "2026-11-30 12:00+02")
    told = [LAST, FIRST, LAST, LAST, FIRST, datetime(2026, 11, 30, 10, tzinfo=UTC)]
    query = "SELECT m::timestamptz FROM unnest(%(written)s::text[]) WITH ORDINALITY AS w (m, n) ORDER BY n"
    alone = await db.connect(dsn, application_name="tireless test")
    try:
        async with pool.connection() as pooled:
            for each in (alone, pooled):
                found = await each.execute(query.encode(), {"written": list(written)})
                assert [row[0] for row in await found.fetchall()] == told
    finally:
        await alone.close()
    for moment, is_one in ((FIRST, True), (LAST, True), (FIRST - SECOND, False), (LAST + SECOND, False)):
        # What is compared or asked from is stored only where it is read as what it is.
        with contextlib.nullcontext() if is_one else pytest.raises(psycopg.errors.CheckViolation, match="moment_has"):
            await conn.execute("SELECT %(moment)s::moment", {"moment": moment})
    for zone in (timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))):
        assert FIRST.astimezone(zone) - timedelta(days=300) < LAST.astimezone(zone) + timedelta(days=300)


async def test_a_transaction_rolls_back_and_nests(conn: Connection) -> None:
    """An inner failure undoes the inner part alone; the commit's own failure is translated."""
    await conn.execute("CREATE TABLE t (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    async with db.transaction(conn, "outer"):
        await conn.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(StoreError, match="inner"):
            async with db.transaction(conn, "inner"):
                await conn.execute("INSERT INTO t VALUES (2 / 0)")
    assert await one(conn, "SELECT array_agg(n) FROM t") == [1]
    with pytest.raises(StoreError, match="storing twins"):
        async with db.transaction(conn, "storing twins"):
            await conn.execute("INSERT INTO t VALUES (3), (3)")
    assert await one(conn, "SELECT count(*) FROM t") == 1


async def test_idempotent_work_is_done_again_after_a_lost_connection(pool: Pool, conn: Connection) -> None:
    """The connection dies under the work once: the second try, on another connection, commits."""
    await conn.execute("CREATE TABLE t (n int)")
    tries = 0

    async def work(pooled: Connection) -> str:
        nonlocal tries
        tries += 1
        await pooled.execute("INSERT INTO t VALUES (1)")
        if tries == 1:
            await conn.execute(TERMINATE_OTHERS)
            await pooled.execute("SELECT 1")
        return "done"

    assert await db.in_transaction(pool, work, doing="storing one") == "done"
    assert tries == 2
    assert await one(conn, "SELECT count(*) FROM t") == 1


async def test_retries_end_and_other_errors_are_not_retried(pool: Pool) -> None:
    """After `tries` the last error comes out; a refused row comes out at once."""
    tries = 0

    async def deadlocked(_: Connection) -> None:
        nonlocal tries
        tries += 1
        raise psycopg.errors.DeadlockDetected("deadlock detected")

    with pytest.raises(StoreUnavailable, match="settling"):
        await db.in_transaction(pool, deadlocked, doing="settling", tries=3)
    assert tries == 3

    async def refused(_: Connection) -> None:
        nonlocal tries
        tries += 1
        raise psycopg.errors.CheckViolation("no")

    with pytest.raises(StoreError, match="settling"):
        await db.in_transaction(pool, refused, doing="settling", tries=3)
    assert tries == 4


async def test_cleaned_values_are_stored(conn: Connection) -> None:
    """What was cleaned is taken by text and jsonb, and comes back as it was cleaned."""
    row = await (
        await conn.execute(
            "SELECT %(text)s::text, %(json)s::jsonb",
            {"text": db.clean_text("a\0"), "json": db.jsonb({"k\0": "\ud800"})},
        )
    ).fetchone()
    assert row == ("a\ufffd", {"k\ufffd": "\ufffd"})
