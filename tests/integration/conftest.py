"""Fixtures for tests of the private PostgreSQL itself."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.clusters import Client
from tests.support.processes import until_gone


@pytest.fixture
def state() -> Iterator[Path]:
    """The path of a state directory not there yet, where any user may make it; nothing may be left running below."""
    parent = Path(tempfile.mkdtemp(prefix="tireless-embedded-"))
    parent.chmod(0o1777)
    yield parent / "pg"
    left = asyncio.run(until_gone(f"{parent}/"))
    shutil.rmtree(parent)
    assert left == {}


@pytest.fixture
async def clients(state: Path) -> AsyncIterator[list[Client]]:
    """Clients that are killed at the end, if they are not gone by then."""
    started: list[Client] = []
    yield started
    for client in started:
        await client.kill()
