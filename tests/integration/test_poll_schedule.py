"""When repositories are due: a shorter interval counts from the start of `serve`, whatever was written down before."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

from tests.support import rows
from tests.support.cli import Running, inside
from tests.support.place import a_place, config
from tireless.store.db import Connection, clock
from tireless.store.polls import poll_sooner

POLL_S, FULL_SCAN_S = 60.0, 3600.0


async def due(conn: Connection, name: str, seconds: float, **columns: object) -> int:
    """A repository that is due in so many seconds."""
    at = await clock(conn) + timedelta(seconds=seconds)
    return await rows.repository(conn, f"acme/{name}", poll_not_before=at, **columns)


async def schedule(conn: Connection) -> dict[str, datetime]:
    """When each repository, and each owner, is due."""
    query = """
    SELECT name, poll_not_before AS at FROM repository
    UNION ALL SELECT 'owner ' || owner, poll_not_before FROM owner_poll
    """
    found: dict[str, datetime] = {}
    for row in await rows.rows(conn, query):
        assert isinstance(row["at"], datetime)
        found[str(row["name"])] = row["at"]
    return found


async def test_what_was_scheduled_under_a_longer_interval_comes_sooner(conn: Connection) -> None:
    """Within the interval of today: full scans of what a search serves or cannot be read, else polls."""
    day = 86_400.0
    await due(conn, "plain", day)
    await due(conn, "soon", 10.0)
    await due(conn, "jittered", 65.0)
    await due(conn, "searched", day, searched=True)
    await due(conn, "searched soon", 1800.0, searched=True)
    await due(conn, "aside", day, readable=False, unreadable_reason="archived")
    await due(conn, "aside soon", 1800.0, readable=False, unreadable_reason="archived")
    await due(conn, "failed", day, poll_failures=3, poll_error="429 Too Many Requests")
    await due(conn, "dropped", day, tracked=False)
    await rows.forge(conn, "another")
    await due(conn, "elsewhere", day, forge="another")
    for owner, seconds in {"acme": day, "calm": 10.0}.items():
        at = await clock(conn) + timedelta(seconds=seconds)
        await rows.insert(conn, "owner_poll", forge=rows.FORGE, owner=owner, asked_at=at, poll_not_before=at)
    before = await schedule(conn)
    assert await poll_sooner(conn, [rows.FORGE], poll_s=POLL_S, full_scan_s=FULL_SCAN_S) == 4
    ended, after = await clock(conn), await schedule(conn)
    most_s = {"plain": POLL_S, "searched": FULL_SCAN_S, "aside": FULL_SCAN_S, "owner acme": POLL_S}
    assert {name for name in after if after[name] != before[name]} == set(most_s)
    assert [name for name, seconds in most_s.items() if after[name] > ended + timedelta(seconds=seconds)] == []
    assert await poll_sooner(conn, [rows.FORGE], poll_s=POLL_S, full_scan_s=FULL_SCAN_S) == 0


async def test_several_at_once_are_harmless(dsn: str) -> None:
    """Each poll is brought forward by one of them, once, though all had seen it before the first one was done."""
    async with rows.connections(dsn, 6) as (watcher, holder, *processes):
        for number in range(20):
            await due(watcher, f"r{number}", 86_400.0)
        async with holder.transaction():
            await holder.execute("SELECT FROM repository FOR UPDATE")
            starting = [
                asyncio.create_task(poll_sooner(one, [rows.FORGE], poll_s=POLL_S, full_scan_s=FULL_SCAN_S))
                for one in processes
            ]
            for one in processes:
                await rows.until_blocked(watcher, one)
        assert sum(await asyncio.gather(*starting)) == 20
        latest = max((await schedule(watcher)).values())
        assert latest <= await clock(watcher) + timedelta(seconds=POLL_S)


async def test_serve_goes_by_its_own_interval_from_its_start(tmp_path: Path, dsn: str, conn: Connection) -> None:
    """Polled last when the interval was an hour, a repository is polled by a `serve` of today before that is over."""
    async with a_place() as place:
        path = config(tmp_path, place.url, token=place.bot.token, dsn=dsn)
        hasty = path.read_text()
        path.write_text(hasty.replace('[poll]\ninterval = "1s"', '[poll]\ninterval = "1h"'))
        assert (await inside("poll", "--config", path, home=tmp_path)).code == 0
        [when] = (await schedule(conn)).values()
        assert when > await clock(conn) + timedelta(minutes=30)
        path.write_text(hasty)
        polled, loop = asyncio.Event(), asyncio.get_running_loop()
        await place.forge.hook("GET", r"/issues\?", lambda _request: loop.call_soon_threadsafe(polled.set))
        async with Running("serve", "--config", path, home=tmp_path) as serve:
            assert (await serve.logged("polls brought forward, the interval is shorter now"))["count"] == 1
            await asyncio.wait_for(polled.wait(), 90)
            assert await serve.stop() == 0
