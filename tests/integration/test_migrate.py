"""Migrations: in order, once, by any number of processes; a database this code does not understand is refused."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tireless.errors import SchemaMismatch, StoreError, StoreUnavailable
from tireless.store.db import Connection, connect
from tireless.store.migrate import LOCK_KEY, check, discover, migrate, migrations_dir


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two migrations that work."""
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE a (n int);\nINSERT INTO a VALUES (100 % 7);\n")
    (tmp_path / "0002_second.sql").write_text("CREATE TABLE b (n int);\n")
    return tmp_path


async def tables(url: str) -> list[str]:
    """The tables of the public schema."""
    conn = await connect(url, application_name="tireless test")
    try:
        query = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
        return [row[0] async for row in await conn.execute(query)]
    finally:
        await conn.close()


async def test_the_shipped_migrations_apply_and_then_there_is_nothing_to_do(empty_dsn: str) -> None:
    """From empty to current in one call; the second call and the check agree."""
    versions = [migration.version for migration in discover(migrations_dir())]
    assert await migrate(empty_dsn) == versions
    assert await migrate(empty_dsn) == []
    status = await check(empty_dsn)
    assert status.current
    assert list(status.applied) == versions
    status.demand()


async def test_the_check_writes_nothing(empty_dsn: str, folder: Path) -> None:
    """On an empty database it names everything as missing and leaves not even its own table."""
    status = await check(empty_dsn, folder=folder)
    assert (status.applied, status.missing, status.faults) == ((), ("0001", "0002"), ())
    assert await tables(empty_dsn) == []
    with pytest.raises(SchemaMismatch, match="tireless migrate"):
        status.demand()


async def test_only_what_is_missing_is_applied(empty_dsn: str, folder: Path) -> None:
    """A third file added later is applied alone, percent signs and several statements per file included."""
    assert await migrate(empty_dsn, folder=folder) == ["0001", "0002"]
    (folder / "0003_third.sql").write_text("INSERT INTO a VALUES (7);")
    assert await migrate(empty_dsn, folder=folder) == ["0003"]
    assert await tables(empty_dsn) == ["a", "b", "schema_migration"]


async def test_a_current_database_asks_for_no_right_to_create(empty_dsn: str, folder: Path) -> None:
    """A user who may only read and write rows is told that nothing is missing; one that may not create, where it is."""
    await migrate(empty_dsn, folder=folder)
    name = f"tireless_test_{secrets.token_hex(6)}"
    role = sql.Identifier(name)
    owner = await connect(empty_dsn, application_name="tireless test")
    await owner.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        await owner.execute(
            sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {}").format(role)
        )
        # Not a login of its own, which the server may not allow; the session is this role's all the same.
        as_role = make_conninfo(empty_dsn, options=f"-c role={name}")
        assert await migrate(as_role, folder=folder) == []
        (folder / "0003_third.sql").write_text("CREATE TABLE c (n int);")
        with pytest.raises(StoreError, match=r"0003_third\.sql.*permission denied for schema public"):
            await migrate(as_role, folder=folder)
    finally:
        await owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))
        await owner.close()


async def test_six_at_once_apply_everything_once(empty_dsn: str, folder: Path) -> None:
    """One of them does each file, the others find it done; nobody fails."""
    done = await asyncio.gather(*(migrate(empty_dsn, folder=folder) for _ in range(6)))
    assert sorted(version for versions in done for version in versions) == ["0001", "0002"]


async def test_a_failing_file_leaves_what_came_before_and_nothing_of_itself(empty_dsn: str, folder: Path) -> None:
    """Each file is a transaction; the error names the file, and the mended file goes on from there."""
    (folder / "0002_second.sql").write_text("CREATE TABLE b (n int); SELECT 1 / 0;")
    with pytest.raises(StoreError, match=r"0002_second\.sql.*division by zero"):
        await migrate(empty_dsn, folder=folder)
    assert await tables(empty_dsn) == ["a", "schema_migration"]
    (folder / "0002_second.sql").write_text("CREATE TABLE b (n int);")
    assert await migrate(empty_dsn, folder=folder) == ["0002"]


async def test_an_edited_file_is_refused(empty_dsn: str, folder: Path) -> None:
    """The checksum of an applied file is compared; line ends do not count."""
    await migrate(empty_dsn, folder=folder)
    first = folder / "0001_first.sql"
    first.write_bytes(first.read_bytes().replace(b"\n", b"\r\n"))
    assert await migrate(empty_dsn, folder=folder) == []
    first.write_text("CREATE TABLE a (n bigint);")
    with pytest.raises(SchemaMismatch, match="edited after it was applied"):
        await migrate(empty_dsn, folder=folder)


async def test_a_newer_database_is_refused(empty_dsn: str, folder: Path) -> None:
    """Migrated by a later release: this code neither migrates nor starts on it, and says which release to take."""
    (folder / "0003_third.sql").write_text("CREATE TABLE c (n int);")
    await migrate(empty_dsn, folder=folder)
    (folder / "0003_third.sql").unlink()
    with pytest.raises(SchemaMismatch, match=r"0003.*newer tireless"):
        await migrate(empty_dsn, folder=folder)
    assert not (await check(empty_dsn, folder=folder)).current


async def test_a_hole_in_the_ledger_is_refused(empty_dsn: str, folder: Path) -> None:
    """A version missing below an applied one cannot be made up for."""
    await migrate(empty_dsn, folder=folder)
    conn = await connect(empty_dsn, application_name="tireless test")
    await conn.execute("DELETE FROM schema_migration WHERE version = '0001'")
    await conn.close()
    with pytest.raises(SchemaMismatch, match=r"0001_first\.sql is missing"):
        await migrate(empty_dsn, folder=folder)


async def test_a_busy_migrator_is_waited_for_only_so_long(empty_dsn: str, folder: Path) -> None:
    """The lock is polled; who waits too long is told whom it waited for, and nothing was done."""
    holder = await connect(empty_dsn, application_name="tireless test")
    try:
        await holder.execute("SELECT pg_advisory_lock(%(key)s)", {"key": LOCK_KEY})
        with pytest.raises(StoreUnavailable, match="another process has been migrating"):
            await migrate(empty_dsn, folder=folder, lock_wait_s=0.2)
    finally:
        await holder.close()
    assert await migrate(empty_dsn, folder=folder) == ["0001", "0002"]


async def test_an_index_can_be_built_concurrently_while_others_wait(empty_dsn: str, folder: Path) -> None:
    """A file marked no-transaction runs by itself, and waiting migrators do not block it."""
    concurrent = "-- serves nothing\n-- tireless: no-transaction\nCREATE INDEX CONCURRENTLY IF NOT EXISTS i ON a (n);\n"
    (folder / "0003_index.sql").write_text(concurrent)
    done = await asyncio.gather(*(migrate(empty_dsn, folder=folder) for _ in range(3)))
    assert sorted(version for versions in done for version in versions) == ["0001", "0002", "0003"]
    conn = await connect(empty_dsn, application_name="tireless test")
    row = await (await conn.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'i'::regclass")).fetchone()
    await conn.close()
    assert row == (True,)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["0001_a.sql", "0003_b.sql"], "want version 0002"),
        (["0002_a.sql"], "want version 0001"),
        (["0001_a.sql", "0001_b.sql"], "want version 0002"),
        (["1_a.sql"], "NNNN_words_in_lower_case"),
        (["0001_A.sql"], "NNNN_words_in_lower_case"),
        ([], "no migrations"),
    ],
)
def test_wrong_names_are_refused(tmp_path: Path, names: list[str], says: str) -> None:
    """Gaps, twins, other names and an empty folder: said before a database is touched."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(SchemaMismatch, match=says):
        discover(tmp_path)


async def test_the_template_is_the_shipped_schema(conn: Connection, dsn: str) -> None:
    """What every other test runs on is what `tireless migrate` makes."""
    assert (await check(dsn)).current
    row = await (await conn.execute("SELECT count(*) FROM schema_migration")).fetchone()
    assert row == (len(discover(migrations_dir())),)
