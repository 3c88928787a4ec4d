"""Migrations by processes of their own, started together and killed in the middle; databases of earlier versions."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.job import State
from tireless.domain.outcome import Outcome
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.migrate import check, discover, migrate, migrations_dir
from tireless.store.record import Answer
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims

VERSIONS = [migration.version for migration in discover(migrations_dir())]
MIGRATE = """
import asyncio, json, sys
from pathlib import Path
from tireless.store.migrate import migrate
print(json.dumps(asyncio.run(migrate(sys.argv[1], folder=Path(sys.argv[2])))))
"""


async def migrator(url: str, folder: Path) -> asyncio.subprocess.Process:
    """A process that migrates and prints which versions it applied."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MIGRATE, url, str(folder)),
        cwd=rows.ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def applied(process: asyncio.subprocess.Process) -> list[str]:
    """What it said, once it has ended well."""
    said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    versions = json.loads(said)
    assert isinstance(versions, list)
    return versions


async def indexes(conn: Connection) -> list[tuple[object, ...]]:
    """The indexes of table a, and whether they serve."""
    query = "SELECT indexrelid::regclass::text, indisvalid FROM pg_index WHERE indrelid = 'a'::regclass ORDER BY 1"
    return [tuple(row.values()) for row in await rows.rows(conn, query)]


async def tables(conn: Connection) -> list[object]:
    """The tables there are."""
    query = "SELECT tablename::text AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    return [row["name"] for row in await rows.rows(conn, query)]


async def at_the_gate(conn: Connection, gate: Connection) -> None:
    """Return when a migration waits for what `gate` holds."""
    query = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'tireless migrate'
       AND %(pid)s = ANY (pg_blocking_pids(pid))
    """
    async with asyncio.timeout(rows.LIMIT_S):
        while not await rows.value(conn, query, pid=gate.info.backend_pid):
            pass


async def kill(process: asyncio.subprocess.Process) -> None:
    """SIGKILL: whatever it was at, it says nothing more to the server."""
    process.kill()
    await process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table, and a gate that a later migration can be stopped at."""
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE a (n int); CREATE TABLE gate (n int);\n")
    return tmp_path


async def test_processes_started_together_apply_each_file_once(empty_dsn: str) -> None:
    """Five of them on an empty database: all end well, and every version was applied by exactly one."""
    processes = [await migrator(empty_dsn, migrations_dir()) for _ in range(5)]
    done = await asyncio.gather(*(applied(process) for process in processes))
    assert sorted(version for versions in done for version in versions) == VERSIONS
    assert (await check(empty_dsn)).current


async def test_a_migrator_killed_in_the_middle_of_a_file(empty_dsn: str, folder: Path) -> None:
    """What it had finished stays, of the file it was at nothing; those that waited for it go on, and do it once."""
    await migrate(empty_dsn, folder=folder)
    (folder / "0002_second.sql").write_text("CREATE TABLE b (n int);\n")
    (folder / "0003_third.sql").write_text("CREATE TABLE c (n int); LOCK TABLE gate; CREATE TABLE d (n int);\n")
    async with rows.connections(empty_dsn, 2) as (conn, gate):
        await gate.execute("BEGIN; LOCK TABLE gate IN ACCESS SHARE MODE")
        first = await migrator(empty_dsn, folder)
        await at_the_gate(conn, gate)
        others = [await migrator(empty_dsn, folder) for _ in range(2)]
        await kill(first)
        await gate.execute("ROLLBACK")
        done = [await applied(process) for process in others]
        assert sorted(version for versions in done for version in versions) == ["0003"]
        assert await tables(conn) == ["a", "b", "c", "d", "gate", "schema_migration"]
    assert (await check(empty_dsn, folder=folder)).current


async def test_a_migrator_killed_while_it_builds_an_index_beside_the_traffic(empty_dsn: str, folder: Path) -> None:
    """What is left of the index is no index: the next migrator builds it anew instead of finding it there."""
    await migrate(empty_dsn, folder=folder)
    concurrent = "-- tireless: no-transaction\nCREATE INDEX CONCURRENTLY IF NOT EXISTS i ON a (n);\n"
    (folder / "0002_index.sql").write_text(concurrent)
    async with rows.connections(empty_dsn, 2) as (conn, gate):
        await gate.execute("BEGIN; INSERT INTO a VALUES (1)")
        first = await migrator(empty_dsn, folder)
        await at_the_gate(conn, gate)
        await kill(first)
        query = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'tireless migrate'
        """
        assert await rows.rows(conn, query) == [{"pg_terminate_backend": True}]
        await gate.execute("COMMIT")
        assert await indexes(conn) == [("i", False)]
        assert await migrate(empty_dsn, folder=folder) == ["0002"]
        assert await indexes(conn) == [("i", True)]


# ------------------------------------------------------------------------------------------------ earlier versions


@pytest.mark.parametrize("version", VERSIONS[:-1])
async def test_every_earlier_version_goes_on_with_its_rows(empty_dsn: str, tmp_path: Path, version: str) -> None:
    """A database of that version with jobs in every state: migrated, they are as they were, and go on."""
    for migration in discover(migrations_dir()):
        if migration.version <= version:
            shutil.copy(migrations_dir() / migration.name, tmp_path)
    await migrate(empty_dsn, folder=tmp_path)
    async with rows.connections(empty_dsn, 1) as (conn,):
        made = {}
        for state in State:
            waits = state is State.WAITING
            reason = {State.WAITING: "on_hold", State.FAILED: "rejected", State.CANCELLED: "closed"}.get(state)
            made[state] = await rows.job(conn, state=state, recorded=True, hold=waits, reason=reason)
        before = await rows.rows(conn, "SELECT id, state, reason, attempts, claim_no FROM job ORDER BY id")
        assert await migrate(empty_dsn) == [later for later in VERSIONS if later > version]
        assert await rows.rows(conn, "SELECT id, state, reason, attempts, claim_no FROM job ORDER BY id") == before
        (got,) = await claim_next(conn, [rows.LANE], runner=RunnerId("r1", "h1", uuid4()), n=9)
        assert got.job_id == made[State.PENDING].job_id
        assert await settle(conn, *made[State.CLAIMED].claim, Ending(outcome=Outcome.DONE)) is Answer.DONE
        await rows.expire(conn, got.job_id)
        assert await expire_stale_claims(conn) == 1
    assert (await check(empty_dsn)).current
