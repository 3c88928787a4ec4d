"""A real Postgres for the tests: one server for the whole run, one template per worker, one fresh clone per test.

The server is a private one below the temporary directory, shared by all xdist workers; TIRELESS_TEST_DATABASE_URL
(a user who may create databases) names one of your own instead.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from psycopg import conninfo
from pytest_postgresql.janitor import DatabaseJanitor

from tireless.embedded import EmbeddedPostgres
from tireless.store.db import Connection, Pool, connect, with_database
from tireless.store.db import pool as open_pool
from tireless.store.migrate import migrate

# Their assertions are what a failing test shows.
pytest.register_assert_rewrite("tests.support.storemachine", "tests.support.storerows", "tests.support.storemodel")

_STATE = "PYTEST_TIRELESS_STATE"
"""Environment: where the run's server lies, as the first pytest process told its workers."""

# No deadlines: what a slow or shared machine does to an example says nothing about the code.
settings.register_profile("tireless", deadline=None)
settings.load_profile("tireless")


def pytest_configure(config: pytest.Config) -> None:
    """Name the server's directory for the whole run, and remove it when all workers have let go of the server."""
    config.addinivalue_line("markers", "long: takes more than ten seconds; `-m 'not long'` leaves these out")
    if _STATE not in os.environ:
        # Not below tmp_path: as root that is closed to the user the server runs as.
        os.environ[_STATE] = str(Path(tempfile.gettempdir()) / f"tireless-tests-{secrets.token_hex(6)}")
        config.add_cleanup(_remove_server)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first: with two workers the last of them would otherwise run alone."""
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
def template(server_url: str) -> Iterator[DatabaseJanitor]:
    """A migrated database that nobody connects to, from which each test's own is cloned."""
    with _janitor(server_url, as_template=True) as janitor:
        asyncio.run(migrate(with_database(server_url, janitor.dbname)))
        yield janitor


@pytest.fixture
def dsn(server_url: str, template: DatabaseJanitor) -> Iterator[str]:
    """The connection string of a migrated, empty database of this test's own."""
    with _janitor(server_url, template=template.dbname) as janitor:
        yield with_database(server_url, janitor.dbname)


@pytest.fixture
def databases(server_url: str, template: DatabaseJanitor) -> Callable[[], AbstractContextManager[str]]:
    """Makes migrated, empty databases, one each time it is entered: for tests that need one after another."""

    @contextmanager
    def fresh() -> Iterator[str]:
        with _janitor(server_url, template=template.dbname) as janitor:
            yield with_database(server_url, janitor.dbname)

    return fresh


@pytest.fixture
def empty_dsn(server_url: str) -> Iterator[str]:
    """The connection string of a database of this test's own that is not migrated."""
    with _janitor(server_url) as janitor:
        yield with_database(server_url, janitor.dbname)


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
        asyncio.run(EmbeddedPostgres(state).stopped(20))
        shutil.rmtree(state)


def _janitor(server_url: str, *, as_template: bool = False, template: str | None = None) -> DatabaseJanitor:
    """Who makes and drops one database on the run's server."""
    at = conninfo.conninfo_to_dict(server_url)
    return DatabaseJanitor(
        user=str(at.get("user") or "postgres"),
        password=str(at["password"]) if at.get("password") else None,
        host=str(at.get("host") or "localhost"),
        port=str(at.get("port") or 5432),
        dbname=f"tireless_test_{secrets.token_hex(6)}",
        as_template=as_template,
        template_dbname=template,
    )
