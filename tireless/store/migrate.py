"""Brings a database to this code's schema from plain .sql files, in order and once; never goes back, never guesses."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql

from tireless.errors import SchemaMismatch, StoreUnavailable
from tireless.store.db import Connection, connect, shown, transaction, translate

_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")

# In the comment that opens a file: for CREATE INDEX CONCURRENTLY and its like. Such a file holds exactly one statement
# that can be repeated, since it may have run without having been recorded.
_NO_TRANSACTION = re.compile(rb"\A(?:--[^\n]*\n)*?--\s*tireless:\s*no-transaction\s*\n")

LOCK_KEY = 0x3A34_B932_B632_B9B9
"""Any fixed bigint; advisory locks are per database, so that installations do not meet here."""

_POLL_S = 0.1
_LOCK_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its version (`0001`), name, bytes with plain newlines, and their SHA-256."""

    version: str
    name: str
    text: bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Status:
    """What `check` found: versions applied and missing, oldest first, and what is wrong, as sentences."""

    applied: tuple[str, ...]
    missing: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def current(self) -> bool:
        """The database is exactly what this code needs."""
        return not self.missing and not self.faults

    def demand(self) -> None:
        """Raise SchemaMismatch, which says what to do, unless the database is current."""
        if self.faults:
            raise SchemaMismatch("; ".join(self.faults))
        if self.missing:
            raise SchemaMismatch(f"the database lacks the migrations {', '.join(self.missing)}: run `tireless migrate`")


def migrations_dir() -> Path:
    """The checkout's `migrations/`; where there is no checkout, the copy in the installed package.

    In this order: an editable install copies the files once, and the copy goes stale.
    """
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent / "migrations"
    return checkout if checkout.is_dir() else package / "migrations"


def discover(folder: Path) -> tuple[Migration, ...]:
    """The files of a folder in order; SchemaMismatch when names are wrong or versions are not 0001, 0002, …"""
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise SchemaMismatch(f"{path}: a migration is named NNNN_words_in_lower_case.sql")
        text = path.read_bytes().replace(b"\r\n", b"\n")
        found.append(Migration(match[1], path.name, text, hashlib.sha256(text).hexdigest()))
    if not found:
        raise SchemaMismatch(f"no migrations in {folder}: the installation is incomplete, install tireless again")
    for number, migration in enumerate(found, start=1):
        if migration.version != f"{number:04}":
            raise SchemaMismatch(f"{folder / migration.name}: want version {number:04}; versions ascend without gaps")
    return tuple(found)


async def migrate(url: str, *, folder: Path | None = None, lock_wait_s: float = _LOCK_WAIT_S) -> list[str]:
    """Apply what is missing and return those versions. Any number of processes may call it at once.

    SchemaMismatch when the database is newer than this code or a file was edited after it was applied;
    StoreUnavailable when another migrator works for longer than `lock_wait_s`.
    """
    wanted = discover(folder or migrations_dir())
    conn = await connect(url, application_name="tireless migrate")
    try:
        await _lock(conn, lock_wait_s)
        if not await _has_ledger(conn):
            # IF NOT EXISTS asks for the right to create before it looks.
            with translate("creating the table schema_migration"):
                await conn.execute(CREATE_LEDGER)
        status = compare(wanted, await _ledger(conn))
        if status.faults:
            status.demand()
        for migration in wanted[len(status.applied) :]:
            await _apply(conn, migration)
        return list(status.missing)
    finally:
        await conn.close()  # the session's lock goes with it


async def check(url: str, *, folder: Path | None = None) -> Status:
    """Compare the database with this code; writes nothing and takes no lock."""
    wanted = discover(folder or migrations_dir())
    conn = await connect(url, application_name="tireless migrate --check")
    try:
        return compare(wanted, await _ledger(conn))
    except StoreUnavailable as error:
        raise StoreUnavailable(f"reading the migrations of {shown(url)}: {error}") from error
    finally:
        await conn.close()


def compare(wanted: tuple[Migration, ...], ledger: dict[str, str]) -> Status:
    """Pure: the files against the ledger (version -> SHA-256)."""
    faults = []
    files = {migration.version: migration for migration in wanted}
    if newer := sorted(set(ledger) - set(files)):
        faults.append(
            f"the database has migrations this code does not know ({', '.join(newer)}): "
            "it was migrated by a newer tireless; install that version or newer"
        )
    applied = [migration for migration in wanted if migration.version in ledger]
    faults += [
        f"{migration.name} was edited after it was applied: restore the file, and put the change into a new migration"
        for migration in applied
        if ledger[migration.version] != migration.sha256
    ]
    missing = [migration for migration in wanted if migration.version not in ledger]
    faults += [
        f"{migration.name} is missing in a database that has {applied[-1].name}: restore it from a backup"
        for migration in missing
        if applied and migration.version < applied[-1].version
    ]
    return Status(tuple(m.version for m in applied), tuple(m.version for m in missing), tuple(faults))


TRY_LOCK = "SELECT pg_try_advisory_lock(%(key)s)"


async def _lock(conn: Connection, wait_s: float) -> None:
    # Polled: a peer *blocked* in pg_advisory_lock holds a snapshot for which CREATE INDEX CONCURRENTLY would wait, and
    # the two would wait for each other.
    deadline = time.monotonic() + wait_s
    while True:
        with translate("taking the migration lock"):
            row = await (await conn.execute(TRY_LOCK, {"key": LOCK_KEY})).fetchone()
        if row and row[0]:
            return
        if time.monotonic() >= deadline:
            raise StoreUnavailable(
                f"another process has been migrating this database for more than {wait_s:.0f} s: "
                "wait for it, or end it if it hangs (pg_stat_activity, application_name 'tireless migrate')"
            )
        await asyncio.sleep(_POLL_S)


CREATE_LEDGER = """
CREATE TABLE schema_migration (
    version    text PRIMARY KEY,
    name       text NOT NULL,
    sha256     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    took_ms    integer NOT NULL
)
"""
LEDGER_EXISTS = "SELECT to_regclass('schema_migration') IS NOT NULL"
LEDGER = "SELECT version, sha256 FROM schema_migration"


async def _has_ledger(conn: Connection) -> bool:
    with translate("looking for the table schema_migration"):
        row = await (await conn.execute(LEDGER_EXISTS)).fetchone()
    return bool(row and row[0])


async def _ledger(conn: Connection) -> dict[str, str]:
    if not await _has_ledger(conn):
        return {}
    with translate("reading the table schema_migration"):
        return {str(version): str(sha256) async for version, sha256 in await conn.execute(LEDGER)}


# A migration that waits for a lock makes everything behind it wait as well.
MIGRATION_LIMITS = "SET LOCAL lock_timeout = '10s'"
RECORD = """
INSERT INTO schema_migration (version, name, sha256, took_ms)
VALUES (%(version)s, %(name)s, %(sha256)s, %(took_ms)s)
"""


async def _apply(conn: Connection, migration: Migration) -> None:
    doing = f"applying the migration {migration.name}"
    if _NO_TRANSACTION.match(migration.text):
        await _drop_half_built(conn, doing)
        await _run(conn, migration, doing)
        return
    async with transaction(conn, doing):
        await conn.execute(MIGRATION_LIMITS)
        await _run(conn, migration, doing)


# What a killed CREATE INDEX CONCURRENTLY leaves is found by IF NOT EXISTS, costs every write, and serves nobody.
HALF_BUILT = """
SELECT n.nspname, c.relname
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT i.indisvalid AND n.nspname = current_schema()
"""


async def _drop_half_built(conn: Connection, doing: str) -> None:
    with translate(doing):
        for name in await (await conn.execute(HALF_BUILT)).fetchall():
            await conn.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(*name)))


async def _run(conn: Connection, migration: Migration, doing: str) -> None:
    begun = time.monotonic()
    with translate(doing):
        await conn.execute(migration.text)  # without parameters: many statements at once, % stays %
        took_ms = round((time.monotonic() - begun) * 1000)
        await conn.execute(
            RECORD,
            {"version": migration.version, "name": migration.name, "sha256": migration.sha256, "took_ms": took_ms},
        )
