"""The sweeper service: one tick does all of it, and after a jump of the database's clock none of it."""

from __future__ import annotations

import pytest

from tests.support import rows
from tireless.services.sweeper import Sweeper, boot_clock
from tireless.store import sweep
from tireless.store.db import Connection, Pool
from tireless.store.sweep import Retention


class Clocks:
    """Both clocks, set by hand: ours in seconds, the database's by patching what the sweeper reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boot = 1000.0
        self.database = 5000.0
        self.leases: tuple[float | None, float | None] = (600.0, 1200.0)
        monkeypatch.setattr(sweep, "clock_and_leases", self.read)

    async def read(self, _conn: Connection) -> tuple[float, float | None, float | None]:
        """What the database would say."""
        return (self.database, *self.leases)

    def advance(self, boot: float, database: float | None = None) -> None:
        """Let time pass, on both clocks alike unless told otherwise."""
        self.boot += boot
        self.database += boot if database is None else database


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Clocks that stand until they are moved."""
    return Clocks(monkeypatch)


async def expired(conn: Connection) -> rows.Made:
    """A claim whose lease has ended."""
    return await rows.job(conn, state="claimed", lease_s=-1.0)


async def test_a_tick_does_all_that_is_due(pool: Pool, conn: Connection) -> None:
    """Expired claims, due waits, holds and old rows move in one tick; nothing more is due at once."""
    made = await expired(conn)
    past = await rows.value(conn, "SELECT clock_timestamp() - interval '1 s'")
    await rows.insert(conn, "lane_hold", lane=rows.LANE, source="operator", until=past, reason="why", held_by="x")
    old = await rows.job(conn, state="failed")
    await conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    await rows.change(conn, "job", old.job_id, finished_at=await rows.value(conn, "SELECT now() - interval '91 days'"))
    await conn.execute("ALTER TABLE job ENABLE TRIGGER USER")
    assert await Sweeper(pool).tick() is False
    assert await rows.states(conn, [made]) == ["pending"]
    assert await rows.rows(conn, "SELECT 1 FROM lane_hold") == []
    assert await rows.rows(conn, "SELECT 1 FROM job WHERE id = %(id)s", id=old.job_id) == []


async def test_steady_clocks_sweep(pool: Pool, conn: Connection, clocks: Clocks) -> None:
    """Clocks that move together, also by hours between two ticks, let the sweep go on."""
    sweeper = Sweeper(pool, boottime=lambda: clocks.boot)
    for seconds in (10.0, 7200.0):
        await sweeper.tick()
        clocks.advance(seconds)
        made = await expired(conn)
        await sweeper.tick()
        assert await rows.states(conn, [made]) == ["pending"]


async def test_after_a_jump_nothing_is_swept_for_one_lease(pool: Pool, conn: Connection, clocks: Clocks) -> None:
    """The database's clock ran ahead by a quarter of the shortest lease and more: quiet for the longest one."""
    sweeper = Sweeper(pool, boottime=lambda: clocks.boot)
    await sweeper.tick()
    made = await expired(conn)
    clocks.advance(10.0, 10.0 + 151.0)
    await sweeper.tick()
    assert await rows.states(conn, [made]) == ["claimed"]
    clocks.advance(1199.0)
    await sweeper.tick()
    assert await rows.states(conn, [made]) == ["claimed"]
    clocks.advance(2.0)
    await sweeper.tick()
    assert await rows.states(conn, [made]) == ["pending"]


async def test_less_than_a_quarter_lease_is_no_jump(pool: Pool, conn: Connection, clocks: Clocks) -> None:
    """Small corrections of the clock, and steps back, are let pass."""
    sweeper = Sweeper(pool, boottime=lambda: clocks.boot)
    await sweeper.tick()
    for ahead in (149.0, -4000.0):
        made = await expired(conn)
        clocks.advance(10.0, 10.0 + ahead)
        await sweeper.tick()
        assert await rows.states(conn, [made]) == ["pending"]


async def test_no_lanes_no_leases(pool: Pool, clocks: Clocks) -> None:
    """An empty database is swept without complaint, whatever the clock does."""
    clocks.leases = (None, None)
    sweeper = Sweeper(pool, boottime=lambda: clocks.boot)
    await sweeper.tick()
    clocks.advance(1.0, 9999.0)
    assert await sweeper.tick() is False


async def test_pruning_takes_its_time(pool: Pool, conn: Connection, clocks: Clocks) -> None:
    """Old rows are looked for at the first tick and then once in `prune_every_s`."""
    sweeper = Sweeper(pool, retention=Retention.all(0.0), prune_every_s=3600.0, boottime=lambda: clocks.boot)
    for passed, left in ((0.0, 0), (3599.0, 1), (2.0, 0)):
        clocks.advance(passed)
        await rows.job(conn, state="failed")
        await sweeper.tick()
        assert len(await rows.rows(conn, "SELECT 1 FROM job LIMIT 1")) == left


async def test_the_clock_of_the_database(conn: Connection) -> None:
    """The clock and the leases are read from the rows; our own clock runs on."""
    assert (await sweep.clock_and_leases(conn))[1:] == (None, None)
    await rows.lane(conn, "a", lease_s=30.0)
    await rows.lane(conn, "b", lease_s=90.0)
    before = boot_clock()
    database, shortest, longest = await sweep.clock_and_leases(conn)
    assert (shortest, longest) == (30.0, 90.0)
    assert database > 1_700_000_000
    assert boot_clock() >= before
