"""Who keeps dead rows from being cleared away: each kind of holder is named, with the statement that ends it.

On a server of its own: prepared transactions and slots are nothing that a private PostgreSQL allows by itself, and a
slot's transactions are those of the whole server.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from psycopg.errors import AdminShutdown

from tireless.embedded import EmbeddedPostgres
from tireless.store.db import Connection, connect
from tireless.store.snapshots import HeldSnapshot, held_snapshots

ALLOWS = ("ALTER SYSTEM SET max_prepared_transactions = 2", "ALTER SYSTEM SET wal_level = logical")


@pytest.fixture
async def allowing() -> AsyncIterator[str]:
    """A database whose server allows prepared transactions and logical slots."""
    state = Path(tempfile.mkdtemp(prefix="tireless-snapshots-"))
    state.chmod(0o755)
    try:
        for last in (False, True):
            server = EmbeddedPostgres(state / "pg", dbname="held")
            await server.open()
            try:
                if last:
                    yield server.url
                    break
                async with await connect(server.url, application_name="tireless test") as conn:
                    for statement in ALLOWS:
                        await conn.execute(statement.encode())
            finally:
                server.release()
                await server.stopped(90)
    finally:
        shutil.rmtree(state)


async def held(conn: Connection) -> list[HeldSnapshot]:
    """The holders, but for the server's own processes, which come and go."""
    return [one for one in await held_snapshots(conn) if one.kind != "session" or one.name == "holder"]


async def test_every_kind_of_holder_is_named_and_can_be_ended(allowing: str) -> None:
    """A session, a prepared transaction, a slot that nobody reads; each ends by the statement told with it."""
    async with await connect(allowing, application_name="watcher") as watcher:
        await watcher.execute("CREATE TABLE t (n int)")
        assert await held(watcher) == []
        # First of all, since it waits for whatever has begun to write.
        await watcher.execute("SELECT pg_create_logical_replication_slot('gone', 'pgoutput')")
        session = await connect(allowing, application_name="holder")
        await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await session.execute("SELECT n FROM t")
        async with await connect(allowing, application_name="tireless test") as other:
            await other.execute("BEGIN")
            await other.execute("INSERT INTO t VALUES (1)")
            await other.execute("PREPARE TRANSACTION 'it''s half done'")
        for _ in range(20):
            await watcher.execute("INSERT INTO t VALUES (2)")

        found = {one.kind: one for one in await held(watcher)}
        assert list(found) == ["session", "prepared", "slot"]
        assert found["session"].doing.endswith("idle in transaction")
        assert found["prepared"].name == "it's half done"
        assert found["slot"].doing == "logical, nobody reads it"
        assert [one.age_s is None for one in found.values()] == [False, False, True]
        assert min(one.transactions for one in found.values()) >= 20

        for kind in ("slot", "prepared", "session"):
            await watcher.execute(found.pop(kind).ending.encode())
            async with asyncio.timeout(90):
                while {one.kind for one in await held(watcher)} != {*found}:
                    pass  # a session that was told to end needs a moment
        with pytest.raises(AdminShutdown):
            await session.execute("SELECT 1")
        await session.close()
