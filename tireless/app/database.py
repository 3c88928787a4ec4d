"""Which database a command works on: the configured one, or the private one of the state directory; opens no pool."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tireless.config import Settings
from tireless.embedded import EmbeddedPostgres
from tireless.errors import ConfigError
from tireless.store import migrate

NO_DATABASE = (
    "no database is configured: set url_file (or url) under [database] in the configuration, "
    "or TIRELESS_DATABASE__URL in the environment"
)


def configured_url(settings: Settings) -> str:
    """The configured database, for `serve` and `run`: several hosts could never share a private one. ConfigError."""
    if address := settings.database.address:
        return address
    raise ConfigError(f"{NO_DATABASE}. For a single machine `tireless up` starts a private one by itself")


def private_state(settings: Settings) -> Path:
    """Where the private PostgreSQL of this installation lies, if it has one."""
    return settings.installation.state_dir / "pg"


@contextlib.asynccontextmanager
async def existing_url(settings: Settings) -> AsyncIterator[str]:
    """The configured database; without one the private server that `up` left in the state directory, if there is one.

    ConfigError when there is neither: a command that looks at rows never makes an empty database of its own.
    """
    if address := settings.database.address:
        yield address
        return
    state = private_state(settings)
    try:
        there = (state / "data" / "PG_VERSION").exists()
    except PermissionError:
        there = False
    if not there:
        raise ConfigError(f"{NO_DATABASE}; there is no private one in {state} either, `tireless up` makes it")
    async with EmbeddedPostgres(state) as server:
        yield server.url


@contextlib.asynccontextmanager
async def existing_database(settings: Settings) -> AsyncIterator[str]:
    """`existing_url`, once its schema is this code's; SchemaMismatch says what to do otherwise."""
    async with existing_url(settings) as url:
        (await migrate.check(url)).demand()
        yield url
