"""Hold, drain, release: when the command returns, no claim is made under the hold, and none was missed."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.errors import NotKnown
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.steer import drain_done, hold, release

ME = RunnerId("r1", "h1", uuid4())


async def test_a_hold_closes_and_a_release_opens(conn: Connection) -> None:
    """Held: nothing; released: the job. Holding again replaces reason and end."""
    await rows.job(conn)
    until = await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'")
    assert isinstance(until, datetime)
    await hold(conn, rows.LANE, "ada", reason="a look")
    await hold(conn, rows.LANE, "bob", reason="a longer look", until=until)
    (held,) = await rows.rows(conn, "SELECT source, host, reason, held_by, until FROM lane_hold")
    assert tuple(held.values()) == ("operator", "", "a longer look", "bob", until)
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    assert await release(conn, rows.LANE, "ada") is True
    assert await release(conn, rows.LANE, "ada") is False
    assert len(await claim_next(conn, [rows.LANE], runner=ME)) == 1


async def test_a_release_changes_its_own_source_only(conn: Connection) -> None:
    """An operator's release leaves the quota's hold; named, that is ended as well, and the lane probes."""
    await rows.lane(conn)
    values = {"source": "quota", "reason": "limit", "held_by": "r1", "job_id": 9}
    await rows.insert(conn, "lane_hold", lane=rows.LANE, **values)
    await hold(conn, rows.LANE, "ada", reason="a look")
    await release(conn, rows.LANE, "ada")
    assert await rows.value(conn, "SELECT source FROM lane_hold") == "quota"
    assert await release(conn, rows.LANE, "ada", source="quota")
    lane = await rows.row(conn, "lane", rows.LANE)
    assert (lane["probing"], lane["probe_avoid_job"]) == (True, 9)


async def test_a_hold_waits_for_claims_under_way(dsn: str) -> None:
    """A claim begun before the hold is waited for, so that drain counts it; one begun after waits and gets nothing."""
    async with rows.connections(dsn, 4) as (claiming, holding, late, watcher):
        await rows.job(watcher)
        await rows.job(watcher)
        async with claiming.transaction():
            assert len(await claim_next(claiming, [rows.LANE], runner=ME)) == 1
            holds = asyncio.create_task(hold(holding, rows.LANE, "ada", reason="a look"))
            await rows.until_blocked(watcher, holding)
            assert not holds.done()
        await holds
        assert not await drain_done(watcher, rows.LANE)
        assert await claim_next(late, [rows.LANE], runner=ME) == []
        await watcher.execute("UPDATE job SET claim_expires_at = now() WHERE state = 'claimed'")
        await watcher.execute("SELECT expire_claims(10, true)")
        assert await drain_done(watcher, rows.LANE)


async def test_a_long_reader_does_not_delay_a_hold(dsn: str) -> None:
    """A transaction that only reads, however old, is not waited for."""
    async with rows.connections(dsn, 2) as (reader, operator):
        await rows.job(operator, state="claimed")
        async with reader.transaction():
            await reader.execute("SELECT count(*) FROM attempt")
            await hold(operator, rows.LANE, "ada", reason="a look")


async def test_unknown_lanes_are_named(conn: Connection) -> None:
    """Holding or releasing what is no lane says so."""
    with pytest.raises(NotKnown, match="no lane nowhere"):
        await hold(conn, "nowhere", "ada", reason="why")
    with pytest.raises(NotKnown, match="no lane nowhere"):
        await release(conn, "nowhere", "ada")


async def test_holds_are_committed_first(conn: Connection) -> None:
    """Inside a transaction the barrier would wait in vain: refused before anything is written."""
    await rows.lane(conn)
    async with conn.transaction():
        with pytest.raises(ValueError, match="not inside a transaction"):
            await hold(conn, rows.LANE, "ada", reason="why")
        with pytest.raises(ValueError, match="not inside a transaction"):
            await release(conn, rows.LANE, "ada")
    assert await rows.rows(conn, "SELECT 1 FROM lane_hold") == []
