"""The bell of a process: whom it wakes, how often, and what becomes of it without a database."""

from __future__ import annotations

import asyncio

from tests.support import rows
from tireless.services.ringing import Bell
from tireless.services.waiting import first_of
from tireless.store.db import Connection, pool
from tireless.store.look import Wake

LANE, MIRROR = Wake("tireless_lane", "claude"), Wake("tireless_mirror")


async def heard(listener: Connection, until: str) -> list[tuple[str, str]]:
    """What came before the notification of channel `until`."""
    found = []
    async for each in listener.notifies(timeout=90):
        if each.channel == until:
            break
        found.append((each.channel, each.payload))
    return found


async def test_it_wakes_each_once_however_often_it_rang(dsn: str, conn: Connection) -> None:
    """Many rings before it comes to it are one notification each; later ones are new; none is left at the end."""
    async with rows.connections(dsn, 1) as (listener,), pool(dsn, max_size=1, application_name="tireless test") as lent:
        await listener.execute(b"LISTEN tireless_lane; LISTEN tireless_mirror; LISTEN done")
        bell = Bell(lent)
        for _ in range(50):
            bell.ring([LANE, MIRROR])
        running = asyncio.create_task(bell.run())
        async for _ in listener.notifies(timeout=90, stop_after=2):
            pass
        while lent.get_stats()["pool_available"] == 0:  # until it knows that they were woken
            await first_of(timeout_s=0.01)
        bell.ring([LANE])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await bell.flush()
        await bell.flush()
        await conn.execute(b"NOTIFY done")
        assert await heard(listener, "done") == [("tireless_lane", "claude")]


async def test_to_be_stopped_while_it_waits_for_a_connection_loses_nothing(dsn: str, conn: Connection) -> None:
    """What it was about to say when it was cancelled is said by the last flush."""
    async with rows.connections(dsn, 1) as (listener,), pool(dsn, max_size=1, application_name="tireless test") as lent:
        await listener.execute(b"LISTEN tireless_mirror; LISTEN done")
        bell = Bell(lent)
        async with lent.connection():
            bell.ring([MIRROR])
            running = asyncio.create_task(bell.run())
            while lent.get_stats().get("requests_waiting", 0) == 0:
                await first_of(timeout_s=0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await bell.flush()
        await conn.execute(b"NOTIFY done")
        assert await heard(listener, "done") == [("tireless_mirror", "")]


async def test_a_database_that_is_away_stops_nobody() -> None:
    """Nobody is woken, which costs a poll; the bell goes on."""
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    async with pool(nowhere, max_size=1, application_name="tireless test") as lent:
        bell = Bell(lent)
        bell.ring([MIRROR])
        await bell.flush()
