"""A real Postgres for the tests: one server for the whole run, one template per worker, one fresh clone per test.

The server is a private one, in memory where the machine has room there, shared by all xdist workers;
TIRELESS_TEST_DATABASE_URL (a user who may create databases) names one of your own instead.
`TIRELESS_TEST_EXAMPLES=10000 ./run test tests/unit` plays so many examples of each property, others each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from psycopg import Connection as Session
from psycopg import conninfo, sql
from pytest_postgresql.janitor import DatabaseJanitor

from tireless.embedded import EmbeddedPostgres
from tireless.store.db import Connection, Pool, connect, with_database
from tireless.store.db import pool as open_pool
from tireless.store.migrate import migrate

# Their assertions are what a failing test shows.
pytest.register_assert_rewrite("tests.support.storemachine", "tests.support.storerows", "tests.support.storemodel")

_STATE = "PYTEST_TIRELESS_STATE"
"""Environment: where the run's server lies, as the first pytest process told its workers."""

_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes: the databases of a whole run were seen to take 0.2 GB at once, and the log ahead of them may take 1 GB."""

_EXAMPLES = os.environ.get("TIRELESS_TEST_EXAMPLES")

# Neither deadlines nor a word on how slowly examples are made: what a slow or shared machine does to an example says
# nothing about the code. The same examples each time, unless more were asked for.
settings.register_profile(
    "tireless",
    deadline=None,
    derandomize=_EXAMPLES is None,
    max_examples=int(_EXAMPLES or 100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tireless")


def pytest_configure(config: pytest.Config) -> None:
    """Name the server's directory for the whole run, and remove it when all workers have let go of the server."""
    config.addinivalue_line("markers", "long: takes more than ten seconds; `-m 'not long'` leaves these out")
    if _STATE not in os.environ:
        os.environ[_STATE] = str(_roomy() / f"tireless-tests-{secrets.token_hex(6)}")
        config.add_cleanup(_remove_server)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first, one by one to who is free (`--dist loadgroup`): the last of them would else run alone."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of the server's maintenance database, where a test may create databases."""
    if url := os.environ.get("TIRELESS_TEST_DATABASE_URL"):
        yield url
        return
    server = EmbeddedPostgres(Path(os.environ[_STATE]), dbname="postgres", fast=True)
    asyncio.run(server.open())
    yield server.url
    server.release()


@pytest.fixture(scope="session")
def admin(server_url: str) -> Iterator[Session]:
    """The session in which databases are made and dropped."""
    with Session.connect(server_url, autocommit=True) as session:
        yield session


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """A migrated database that nobody connects to, from which each test's own is cloned: its name."""
    at = conninfo.conninfo_to_dict(server_url)
    janitor = DatabaseJanitor(
        user=str(at.get("user") or "postgres"),
        password=str(at["password"]) if at.get("password") else None,
        host=str(at.get("host") or "localhost"),
        port=str(at.get("port") or 5432),
        dbname=f"tireless_template_{secrets.token_hex(6)}",
        as_template=True,
    )
    with janitor:
        asyncio.run(migrate(with_database(server_url, janitor.dbname)))
        yield janitor.dbname


@pytest.fixture
def dsn(server_url: str, admin: Session, template: str) -> Iterator[str]:
    """The connection string of a migrated, empty database of this test's own."""
    with _database(admin, template) as name:
        yield with_database(server_url, name)


@pytest.fixture
def databases(server_url: str, admin: Session, template: str) -> Callable[[], AbstractContextManager[str]]:
    """Makes migrated, empty databases, one each time it is entered: for tests that need one after another."""

    @contextmanager
    def fresh() -> Iterator[str]:
        with _database(admin, template) as name:
            yield with_database(server_url, name)

    return fresh


@pytest.fixture
def empty_dsn(server_url: str, admin: Session) -> Iterator[str]:
    """The connection string of a database of this test's own that is not migrated."""
    with _database(admin) as name:
        yield with_database(server_url, name)


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[Connection]:
    """An autocommit connection to this test's database."""
    connection = await connect(dsn, application_name="tireless test")
    yield connection
    await connection.close()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    """An open pool on this test's database."""
    async with open_pool(dsn, min_size=1, max_size=10, application_name="tireless test pool") as opened:
        yield opened


def _remove_server() -> None:
    state = Path(os.environ.pop(_STATE))
    if state.is_dir():
        asyncio.run(EmbeddedPostgres(state).stopped(90))
        shutil.rmtree(state)


def _roomy() -> Path:
    """Where the server may lie: hundreds of files come and go with each test, and no file system likes that.

    Never below tmp_path: as root that is closed to the user the server runs as.
    """
    with contextlib.suppress(OSError):
        told = os.statvfs(_MEMORY)
        # Where root keeps its binaries closed, the server runs from a copy of them.
        runs = not told.f_flag & os.ST_NOEXEC
        if runs and told.f_bavail * told.f_frsize >= _ROOM and os.access(_MEMORY, os.W_OK | os.X_OK):
            return _MEMORY
    return Path(tempfile.gettempdir())


@contextmanager
def _database(admin: Session, template: str = "template1") -> Iterator[str]:
    """A database by its name, copied file by file; whoever is still connected when it goes is cut off.

    Not by a janitor: the copy that goes through the log, and a session for each, took ten times as long, 900 times.
    """
    name = f"tireless_test_{secrets.token_hex(6)}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
    admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield name
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
