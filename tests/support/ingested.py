"""Fixtures of tests that poll: `from tests.support.ingested import *` (beside those of tests.support.forges)."""

from __future__ import annotations

import pytest_asyncio

from tests.support.forges import LoopbackForge, Stage, client, forge, loopback, stage
from tests.support.ingest import Ingest
from tireless.forge.gitea import GiteaForge
from tireless.store.db import Connection, Pool

__all__ = ["client", "forge", "ingest", "loopback", "stage"]


@pytest_asyncio.fixture
async def ingest(pool: Pool, conn: Connection, forge: GiteaForge, stage: Stage, loopback: LoopbackForge) -> Ingest:
    """A watched repository and its poller."""
    made = Ingest(pool, conn, forge, stage, loopback)
    await made.watch()
    return made
