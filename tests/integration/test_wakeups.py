"""Whom intake and delivery wake: once a pause however much they write, after its commit, at once for the first."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import psycopg
import pytest

from tests.support import rows
from tests.support.forges import FaultPlan
from tests.support.ingest import GO, IMPLEMENT, LANES, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.job import Kind
from tireless.domain.outcome import Outcome
from tireless.domain.routing import Route
from tireless.services.ringing import Bell, in_rung_transaction, rung_transaction
from tireless.services.sweeper import Sweeper
from tireless.store import deliver, publish
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, Pool, clock
from tireless.store.dependencies import Blocker, look_at_dependents, refresh_own_waits, store_dependencies
from tireless.store.jobs import NewJob, enqueue, refresh_lane, refresh_waits
from tireless.store.look import Ring, Wake, hint, listen, notify, write_look
from tireless.store.repos import mark_readable, mark_unreadable
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims, wake_due

RUNNER = RunnerId("r1", "h1", uuid4())
LANE = Wake("tireless_lane", rows.LANE)
LOOK, MIRROR, PUBLISH = Wake("tireless_look"), Wake("tireless_mirror"), Wake("tireless_publish")


class Ears:
    """A connection that listens to every channel."""

    def __init__(self, listener: Connection, teller: Connection) -> None:
        self._listener = listener
        self._teller = teller

    async def heard(self) -> list[Wake]:
        """What has been notified since the last time, to the last committed one."""
        await notify(self._teller, "done")
        found: list[Wake] = []
        async with asyncio.timeout(90):
            async for each in self._listener.notifies():
                if each.channel == "done":
                    break
                found.append(Wake(each.channel, each.payload))
        return found


@pytest.fixture
async def ears(dsn: str, conn: Connection) -> AsyncIterator[Ears]:
    """Somebody who hears everything."""
    async with rows.connections(dsn, 1) as (listener,):
        for channel in ("tireless_lane", "tireless_look", "tireless_mirror", "tireless_publish", "done"):
            await listener.execute(f"LISTEN {channel}".encode())
        yield Ears(listener, conn)


class Pauses:
    """A bell's pauses: each ends when the test says so."""

    def __init__(self) -> None:
        self.ended = 0
        self._may_end = asyncio.Semaphore(0)

    async def __call__(self) -> None:
        """One pause."""
        await self._may_end.acquire()
        self.ended += 1

    def end(self) -> None:
        """Let one end, now or when it has begun."""
        self._may_end.release()


# ------------------------------------------------------------------------------------------------ how often


async def test_a_page_of_issues_wakes_each_once_a_pause(ingest: Ingest, pool: Pool, ears: Ears) -> None:
    """50 jobs: a notification at once, one for each pause that has ended, and one at the end; of mirror and lane."""
    await ingest.judge_strangers()
    labels = [await ingest.label(GO), await ingest.label(IMPLEMENT)]
    for n in range(50):
        await ingest.stage.bob.create_issue(ingest.stage.path, f"Issue {n}", label_ids=labels)
    pauses = Pauses()
    async with Bell(pool, pause=pauses).running() as ring:
        pauses.end()
        assert (await ingest.another(ring=ring).poll_once()).made == 50
    counts = Counter(await ears.heard())
    assert set(counts) == {LANE, MIRROR}
    assert max(counts.values()) <= pauses.ended + 2


async def test_the_first_of_a_page_is_claimed_while_the_next_is_read(ingest: Ingest, pool: Pool, dsn: str) -> None:
    """Nobody waits for a pause to end, nor for what the next one waits for: it is asked about when its turn comes."""
    stage = ingest.stage
    blocker, second = [await stage.alice.create_issue(stage.path, title) for title in ("First this", "Paint it")]
    body = {"owner": stage.repo.owner, "repo": stage.repo.name, "index": blocker}
    await stage.bob.api("POST", f"/repos/{stage.path}/issues/{second}/dependencies", body)
    first = await ingest.ask(GO, IMPLEMENT)
    await ingest.ask(GO, IMPLEMENT, number=second)
    fault = await ingest.loopback.fault(FaultPlan("GET", f"/issues/{second}/dependencies", "block"))
    async with (
        asyncio.timeout(90),
        contextlib.aclosing(listen(dsn, ["tireless_lane"])) as wakes,
        Bell(pool, pause=Pauses()).running() as ring,
    ):
        assert await anext(wakes) == Wake()
        polling = asyncio.create_task(ingest.another(ring=ring).poll_once())
        assert await anext(wakes) == LANE
        claims = await claim_next(ingest.conn, [lane.name for lane in LANES], runner=RUNNER)
        await fault.reached()
        assert [claim.number for claim in claims] == [job["number"] for job in await ingest.jobs()] == [first]
        await fault.release()
        assert (await polling).made == 2


async def test_a_sweep_of_many_steps_wakes_each_once_a_pause(pool: Pool, conn: Connection, ears: Ears) -> None:
    """Forty claims taken back two by two: a notification at once, and one at the end; of mirror and lane."""
    for _ in range(40):
        await rows.expire(conn, (await rows.job(conn, state="claimed")).job_id)
    await ears.heard()
    async with Bell(pool, pause=Pauses()).running() as ring:
        await Sweeper(pool, ring=ring, limit=2).tick()
    assert await rows.value(conn, "SELECT count(*) FROM job WHERE state = 'pending'") == 40
    counts = Counter(await ears.heard())
    assert set(counts) == {LANE, MIRROR}
    assert max(counts.values()) <= 2


# ------------------------------------------------------------------------------------------------ not too early


class Witness:
    """A ring that looks, from outside, how many jobs have been committed when it is told."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.told: list[tuple[Wake, int]] = []

    def __call__(self, wakes: object) -> None:
        """Note each with what is to be seen."""
        assert isinstance(wakes, list)
        with psycopg.connect(self._dsn) as other:
            row = other.execute("SELECT count(*) FROM job").fetchone()
        assert row is not None
        self.told += [(wake, int(row[0])) for wake in wakes]


async def new(conn: Connection, lane: str = rows.LANE) -> NewJob:
    """A request that no job answers yet."""
    issue_id = await rows.issue(conn)
    repository_id = await rows.repository(conn)
    name = await rows.lane(conn, lane)
    return NewJob(issue_id, repository_id, await rows.request(conn, issue_id), Kind.IMPLEMENT, name)


async def test_nobody_is_woken_before_the_commit(dsn: str, pool: Pool, conn: Connection, ears: Ears) -> None:
    """Whom a transaction wakes is told when what it wrote can be seen; the transaction itself notifies nobody."""
    first, second = await new(conn), await new(conn)
    witness = Witness(dsn)
    async with rung_transaction(pool, "testing", witness) as (inside, ring):
        await enqueue(inside, [first], ring=ring)
        assert witness.told == []

    async def work(inside: Connection, ring: Ring | None) -> int:
        return await enqueue(inside, [second], ring=ring)

    assert await in_rung_transaction(pool, work, doing="testing", ring=witness) == 1
    assert witness.told == [(LANE, 1), (LANE, 2)]
    assert await ears.heard() == []


async def test_nobody_is_woken_for_what_was_rolled_back(dsn: str, pool: Pool, conn: Connection) -> None:
    """Not for a transaction that failed, nor for the failed try of one that was repeated."""
    job, other = await new(conn), await new(conn, "spare")
    witness, tries = Witness(dsn), 0

    async def fail() -> None:
        async with rung_transaction(pool, "testing", witness) as (inside, ring):
            await enqueue(inside, [job], ring=ring)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await fail()

    async def work(inside: Connection, ring: Ring | None) -> None:
        nonlocal tries
        tries += 1
        await enqueue(inside, [job if tries == 1 else other], ring=ring)
        if tries == 1:
            raise psycopg.errors.DeadlockDetected

    await in_rung_transaction(pool, work, doing="testing", ring=witness)
    assert (tries, witness.told) == (2, [(Wake("tireless_lane", "spare"), 1)])


async def test_who_has_no_bell_notifies_with_its_commit(pool: Pool, conn: Connection, ears: Ears) -> None:
    """As other callers do: a notification that the commit sends."""
    job = await new(conn)
    async with rung_transaction(pool, "testing", None) as (inside, ring):
        await enqueue(inside, [job], ring=ring)
        assert await ears.heard() == []
    assert await ears.heard() == [LANE]


# ------------------------------------------------------------------------------------------------ whom

Act = Callable[[Connection, Ring | None], Awaitable[object]]


async def ends(conn: Connection) -> dict[str, tuple[Act, set[Wake]]]:
    """What ends attempts and waits, ready to be done, and whom it wakes."""
    ended = await rows.job(conn, state="claimed")
    for more in ({}, {"recorded": True}, {"max_attempts": 1}):
        await rows.expire(conn, (await rows.job(conn, state="claimed", **more)).job_id)
    later = await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'")
    for most in (3, 1):
        made = await rows.job(conn, state="waiting", not_before=later, not_before_reason="backoff")
        await rows.change(conn, "job", made.job_id, attempts=1, claim_no=1, max_attempts=most)
        await rows.due(conn, made)
    return {
        "settle": (lambda c, r: settle(c, *ended.claim, Ending(outcome=Outcome.NO_CHANGE), ring=r), {LOOK, MIRROR}),
        "expire_stale_claims": (lambda c, r: expire_stale_claims(c, ring=r), {LANE, PUBLISH, LOOK, MIRROR}),
        "wake_due": (lambda c, r: wake_due(c, ring=r), {LANE, LOOK, MIRROR}),
    }


async def acts(conn: Connection) -> dict[str, tuple[Act, set[Wake]]]:
    """Everything else that tells a bell whom it wakes."""
    await rows.lane(conn, "spare")
    enqueued, resting, looked, plan = (
        await new(conn),
        await rows.job(conn),
        await rows.job(conn),
        await rows.issue(conn),
    )
    await rows.child(conn, plan, "a", number=looked.number, issue_id=looked.issue_id)
    blocked = await rows.job(conn)
    place = await rows.repository(conn)
    blocker = Blocker(rows.REPO, looked.number, open=True)
    await store_dependencies(conn, blocked.issue_id, [blocker], asked_at=await clock(conn))
    await refresh_own_waits(conn, blocked.job_id)
    await store_dependencies(conn, blocked.issue_id, [], asked_at=await clock(conn))
    follower = await rows.job(conn)
    await store_dependencies(conn, follower.issue_id, [blocker], asked_at=await clock(conn))
    elsewhere = await rows.repository(conn, "acme/closed")
    await rows.job(conn, "acme/closed")
    async with conn.transaction():
        await mark_unreadable(conn, elsewhere, "404")
    forge_repo_id = int(str((await rows.row(conn, "repository", place))["forge_repo_id"]))
    deliveries = []
    for _ in range(3):
        await rows.job(conn, state="publishing")
        taken = await publish.take_publishing(conn, [rows.FORGE], by="p", take_s=600, unanswered_s=0)
        assert taken is not None
        deliveries.append(taken)
    done, refused, unpushed = deliveries
    route = Route(Kind.IMPLEMENT, "spare")
    return {
        "enqueue": (lambda c, r: enqueue(c, [enqueued], ring=r), {LANE}),
        "refresh_lane": (
            lambda c, r: refresh_lane(c, resting.job_id, route, ring=r),
            {Wake("tireless_lane", "spare")},
        ),
        "refresh_waits": (lambda c, r: refresh_waits(c, plan, ring=r), {LANE}),
        "refresh_own_waits": (lambda c, r: refresh_own_waits(c, blocked.job_id, ring=r), {LANE}),
        "look_at_dependents": (
            lambda c, r: look_at_dependents(c, place, looked.number, plan_issue_id=None, why="closed", ring=r),
            {LOOK},
        ),
        "write_look": (lambda c, r: write_look(c, place, 1, why="now", ring=r), {LOOK}),
        "write_look for later": (lambda c, r: write_look(c, place, 99, why="later", not_before_s=60, ring=r), set()),
        "hint": (lambda c, r: hint(c, rows.FORGE, forge_repo_id, 1, sender_id=5, why="hook", ring=r), {LOOK}),
        "hint of nothing": (lambda c, r: hint(c, rows.FORGE, 0, 1, sender_id=5, why="hook", ring=r), set()),
        "notify": (lambda c, r: notify(c, "tireless_mirror", ring=r), {MIRROR}),
        "mark_readable": (lambda c, r: mark_readable(c, elsewhere, ring=r), {LANE}),
        "deliver": (lambda c, r: deliver.deliver(c, done, by="p", ring=r), {LOOK, MIRROR}),
        "fail_unpublishable": (
            lambda c, r: deliver.fail_unpublishable(c, refused, by="p", reason="refused", error="no", ring=r),
            {LOOK, MIRROR},
        ),
        "return_to_pending": (
            lambda c, r: deliver.return_to_pending(c, unpushed, by="p", found=None, ring=r),
            {LANE},
        ),
    }


async def test_a_bell_is_told_of_all_who_would_be_notified(conn: Connection, ears: Ears) -> None:
    """Each act, done with a bell and rolled back, tells it whom the same act notifies that is done without."""
    ready = await acts(conn) | await ends(conn)
    await ears.heard()
    for name, (act, whom) in ready.items():
        told: list[Wake] = []
        with contextlib.suppress(psycopg.Rollback):
            async with conn.transaction():
                await act(conn, told.extend)
                raise psycopg.Rollback
        assert await ears.heard() == [], name
        async with conn.transaction():
            await act(conn, None)
        assert (set(told), set(await ears.heard())) == (whom, whom), name
