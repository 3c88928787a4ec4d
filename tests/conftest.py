"""A real Postgres for the tests: one server for the whole run, one template per worker, one fresh clone per test.

The server is a private one below the temporary directory, shared by all xdist workers; TIRELESS_TEST_DATABASE_URL
(a user who may create databases) names one of your own instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from psycopg import sql

from tireless.embedded import EmbeddedPostgres
from tireless.store.db import Connection, Pool, connect, with_database
from tireless.store.db import pool as open_pool
from tireless.store.migrate import migrate

_STATE = "PYTEST_TIRELESS_STATE"
"""Environment: where the run's server lies, as the first pytest process told its workers."""

# No deadlines: what a slow or shared machine does to an example says nothing about the code.
settings.register_profile("tireless", deadline=None)
settings.load_profile("tireless")


def pytest_configure(config: pytest.Config) -> None:
    """Name the server's directory for the whole run, and remove it when all workers have let go of the server."""
    if _STATE not in os.environ:
        # Not below tmp_path: as root that is closed to the user the server runs as.
        os.environ[_STATE] = str(Path(tempfile.gettempdir()) / f"tireless-tests-{secrets.token_hex(6)}")
        config.add_cleanup(_remove_server)


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
def template(server_url: str) -> Iterator[str]:
    """The name of a migrated database that nobody connects to."""
    name = f"tireless_test_{secrets.token_hex(6)}"
    asyncio.run(_administer(server_url, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))))
    asyncio.run(migrate(with_database(server_url, name)))
    yield name
    asyncio.run(_drop(server_url, name))


@pytest.fixture
async def dsn(server_url: str, template: str) -> AsyncIterator[str]:
    """The connection string of a migrated, empty database of this test's own."""
    async with _database(server_url, sql.SQL("TEMPLATE {}").format(sql.Identifier(template))) as url:
        yield url


@pytest.fixture
async def empty_dsn(server_url: str) -> AsyncIterator[str]:
    """The connection string of a database of this test's own that is not migrated."""
    async with _database(server_url, sql.SQL("")) as url:
        yield url


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


@contextlib.asynccontextmanager
async def _database(server_url: str, how: sql.Composable) -> AsyncIterator[str]:
    name = f"tireless_test_{secrets.token_hex(6)}"
    await _administer(server_url, sql.SQL("CREATE DATABASE {} {}").format(sql.Identifier(name), how))
    yield with_database(server_url, name)
    await _drop(server_url, name)


async def _drop(server_url: str, name: str) -> None:
    await _administer(server_url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


async def _administer(server_url: str, statement: sql.Composed) -> None:
    connection = await connect(server_url, application_name="tireless tests")
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
