"""Lane rows: written from the configuration, counted for people, and the lock that shuts claims out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.issue import RepoRef
from tireless.domain.job import Kind
from tireless.domain.outcome import Outcome
from tireless.domain.routing import Lane
from tireless.errors import NotKnown, StoreError, StoreUnavailable
from tireless.store import lanes
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, constraint_of
from tireless.store.lanes import lane_rows, no_claims, sync_lanes
from tireless.store.limits import Limits, limit_all, limit_repository
from tireless.store.record import Answer
from tireless.store.settle import Ending, settle
from tireless.store.sweep import wake_full

ME = RunnerId("r1", "h1", uuid4())
PLACE = RepoRef(rows.FORGE, *rows.REPO.split("/"))
CLAUDE = Lane("claude", kinds=(Kind.PLAN, Kind.IMPLEMENT), is_default=True)
CODEX = Lane("codex", kinds=(Kind.DISCOVER,), lease_s=60.0, max_attempts=2, run_timeout_s=10.0, max_running=4)


async def configured(conn: Connection) -> list[tuple[object, ...]]:
    """Name, position and whether configured, by name."""
    found = await rows.rows(conn, "SELECT name, position, configured FROM lane ORDER BY name")
    return [tuple(row.values()) for row in found]


async def test_lanes_come_from_the_configuration(conn: Connection) -> None:
    """Every setting is written; changing it changes the row; a lane may name one that comes after it."""
    await sync_lanes(conn, [replace(CLAUDE, children_of_plan="codex"), CODEX])
    claude, codex = await rows.row(conn, "lane", "claude"), await rows.row(conn, "lane", "codex")
    assert (claude["kinds"], claude["is_default"], claude["children_of_plan"]) == (["plan", "implement"], True, "codex")
    assert (claude["position"], codex["position"]) == (0, 1)
    assert (codex["lease_s"], codex["max_attempts"], codex["run_timeout_s"], codex["max_running"]) == (60.0, 2, 10.0, 4)
    await sync_lanes(conn, [CODEX, replace(CLAUDE, lease_s=99.0)])
    claude = await rows.row(conn, "lane", "claude")
    assert (claude["position"], claude["lease_s"], claude["children_of_plan"]) == (1, 99.0, None)


async def test_a_lane_that_is_gone_stays_closed(conn: Connection) -> None:
    """It keeps its jobs, gives none of them, and opens again when it is configured again."""
    await sync_lanes(conn, [CLAUDE, CODEX])
    await rows.job(conn, lane_name="codex")
    assert await sync_lanes(conn, [CLAUDE]) == ["codex"]
    assert await configured(conn) == [("claude", 0, True), ("codex", 1, False)]
    assert await claim_next(conn, ["codex"], runner=ME) == []
    assert await sync_lanes(conn, [CLAUDE, CODEX]) == []
    assert len(await claim_next(conn, ["codex"], runner=ME)) == 1


async def test_another_lane_becomes_the_default(conn: Connection) -> None:
    """Whichever comes first by name, and whether or not the one before stays: one is the default when it is over."""
    names = ("claude", "codex")
    plain = [Lane(name) for name in names]
    first, second = ([replace(lane, is_default=lane.name == name) for lane in plain] for name in names)
    for wanted in (first, second, first, second[1:], first[:1], second):
        await sync_lanes(conn, wanted)
        query = "SELECT name FROM lane WHERE is_default AND configured"
        assert await rows.value(conn, query) == next(lane.name for lane in wanted if lane.is_default)


async def test_a_lowered_limit_waits_for_claims_that_know_the_old_one(dsn: str) -> None:
    """A claim that has read the old limit is waited for: once the call has returned nobody claims by it."""
    async with rows.connections(dsn, 4) as (holder, claiming, operator, watcher):
        await sync_lanes(watcher, [replace(CODEX, max_running=3)])
        repository = await rows.repository(watcher, max_running=9)
        for state in ("claimed", "pending", "pending"):
            await rows.job(watcher, lane_name="codex", state=state)
        async with holder.transaction():
            query = "SELECT 1 FROM repository WHERE id = %(id)s FOR NO KEY UPDATE"
            await holder.execute(query, {"id": repository})
            late = asyncio.create_task(claim_next(claiming, ["codex"], runner=ME))
            await rows.until_blocked(watcher, claiming)
            lowers = asyncio.create_task(sync_lanes(operator, [replace(CODEX, max_running=1)]))
            await rows.until_blocked(watcher, operator)
        assert len(await late) == 1
        await lowers
        assert await claim_next(claiming, ["codex"], runner=ME) == []


async def test_a_limit_that_another_serve_raised_meanwhile_is_lowered(dsn: str) -> None:
    """Whether claims must be waited for is asked when nobody else can write a limit any more, not before."""
    async with rows.connections(dsn, 4) as (watcher, claiming, operator, holder):
        wanted = [CLAUDE, replace(CODEX, max_running=1)]
        await sync_lanes(watcher, wanted)
        for _ in range(3):
            await rows.job(watcher, lane_name="codex")
        async with claiming.transaction():
            async with holder.transaction():
                await holder.execute("SELECT FROM lane WHERE name = 'claude' FOR NO KEY UPDATE")
                lowers = asyncio.create_task(sync_lanes(operator, wanted))
                await rows.until_blocked(watcher, operator)
                await rows.lane(watcher, "codex", max_running=9)
                assert len(await claim_next(claiming, ["codex"], runner=ME, n=2)) == 2
            await rows.until_blocked(watcher, operator)
            assert not lowers.done()
        await lowers
        assert await claim_next(watcher, ["codex"], runner=ME) == []


async def test_a_new_limit_of_a_repository_counts_claims_under_way(dsn: str) -> None:
    """From the call's return on no claim exceeds it, though one was being made by an open lane when it was called."""
    async with rows.connections(dsn, 4) as (claiming, limiting, late, watcher):
        await rows.job(watcher)
        await rows.job(watcher)
        async with claiming.transaction():
            assert len(await claim_next(claiming, [rows.LANE], runner=ME)) == 1
            limits = asyncio.create_task(limit_repository(limiting, PLACE, Limits(max_running=1)))
            await rows.until_blocked(watcher, limiting)
        await limits
        assert await claim_next(late, [rows.LANE], runner=ME) == []
        await limit_repository(limiting, PLACE, Limits())
        assert await wake_full(limiting) == 1
        assert len(await claim_next(late, [rows.LANE], runner=ME)) == 1
    with pytest.raises(NotKnown, match="acme/nope is not watched"):
        async with rows.connections(dsn, 1) as (conn,):
            await limit_repository(conn, RepoRef(rows.FORGE, "acme", "nope"), Limits(max_running=1))


async def test_the_configurations_limits_are_for_all_but_what_an_operator_limited(conn: Connection) -> None:
    """New ones get them with the next round, changed ones follow; an operator's stay till he gives them back."""
    for name in ("a", "b", "c"):
        await rows.repository(conn, f"acme/{name}")
    await rows.repository(conn, "acme/old", tracked=False)
    by_hand = await rows.repository(conn, "acme/hand", max_running=7)
    ref = RepoRef(rows.FORGE, "acme", "b")
    await limit_repository(conn, ref, Limits(max_runs_per_day=9))

    async def limits() -> dict[object, object]:
        query = "SELECT name, max_running AS running, max_runs_per_day AS day FROM repository"
        return {row["name"]: (row["running"], row["day"]) for row in await rows.rows(conn, query)}

    assert await limit_all(conn, Limits()) == 0
    assert await limit_all(conn, Limits(2, 50)) == 2
    assert await limits() == {"a": (2, 50), "b": (None, 9), "c": (2, 50), "old": (None, None), "hand": (7, None)}
    assert await limit_all(conn, Limits(2, 50)) == 0
    await rows.repository(conn, "acme/new")
    assert await limit_all(conn, Limits(3, None)) == 3
    await limit_repository(conn, ref, Limits(3, None), by_operator=False)
    assert await limit_all(conn, Limits()) == 4
    assert await limits() == {**dict.fromkeys(("a", "b", "c", "new", "old"), (None, None)), "hand": (7, None)}
    assert await rows.value(conn, "SELECT max_running FROM repository WHERE id = %(id)s", id=by_hand) == 7


async def test_who_shuts_claims_out_and_a_settle_never_wait_for_each_other(dsn: str) -> None:
    """A settle in a limited repository takes its locks behind the one that shuts claims out, not around it."""
    async with rows.connections(dsn, 3) as (operator, runner, watcher):
        repository = await rows.repository(watcher, max_running=1)
        made = await rows.job(watcher, state="claimed")
        async with no_claims(operator, "limiting"):
            settling = asyncio.create_task(settle(runner, *made.claim, Ending(outcome=Outcome.NO_CHANGE)))
            await rows.until_blocked(watcher, runner)
            await rows.change(operator, "repository", repository, max_running=2)
        assert await settling is Answer.DONE


async def test_writing_lanes_leaves_holds_and_probes(conn: Connection) -> None:
    """What happened to a lane is not the configuration's: a restart of serve opens nothing."""
    await sync_lanes(conn, [CLAUDE])
    await rows.lane(conn, "claude", probing=True, probe_avoid_job=5)
    await rows.insert(conn, "lane_hold", lane="claude", source="operator", reason="why", held_by="ada")
    await sync_lanes(conn, [CLAUDE])
    lane = await rows.row(conn, "lane", "claude")
    assert (lane["probing"], lane["probe_avoid_job"]) == (True, 5)
    assert len(await rows.rows(conn, "SELECT 1 FROM lane_hold")) == 1


async def test_a_new_limit_counts_the_claims_under_way(dsn: str) -> None:
    """A claim begun before the lane became limited is waited for, so that it is counted from the first moment."""
    async with rows.connections(dsn, 4) as (watcher, claiming, serving, late):
        await sync_lanes(watcher, [CLAUDE])
        for _ in range(2):
            await rows.job(watcher)
        async with claiming.transaction():
            assert len(await claim_next(claiming, ["claude"], runner=ME)) == 1
            syncing = asyncio.create_task(sync_lanes(serving, [replace(CLAUDE, max_running=1)]))
            await rows.until_blocked(watcher, serving)
        await syncing
        assert await claim_next(late, ["claude"], runner=ME) == []


async def test_a_lane_the_schema_refuses_changes_nothing(conn: Connection) -> None:
    """A senseless lane is refused by its constraint's name, and no other lane of that configuration is written."""
    with pytest.raises(StoreError) as caught:
        await sync_lanes(conn, [CLAUDE, replace(CODEX, lease_s=0.0)])
    assert constraint_of(caught.value) == "lane_times_positive"
    assert await configured(conn) == []


async def test_claims_shut_out_for_good_is_an_error(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who never lets go of the table: after all tries StoreUnavailable, and nothing is written."""
    monkeypatch.setattr(lanes, "_TRIES_MS", (1, 1, 1))
    async with rows.connections(dsn, 1) as (stubborn,), stubborn.transaction():
        await stubborn.execute("LOCK TABLE attempt IN ROW EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match="keeps the table `attempt` locked"):
            async with no_claims(conn, "testing"):
                raise AssertionError("claims were not shut out")
    async with no_claims(conn, "testing"):
        assert await rows.value(conn, "SHOW lock_timeout") == "0"


async def test_what_people_see_of_lanes(conn: Connection) -> None:
    """Counts by state, holds, probe and breaker; configured lanes first, in their order."""
    await sync_lanes(conn, [CODEX, CLAUDE, Lane("gone")])
    await sync_lanes(conn, [CODEX, CLAUDE])
    for state in ("pending", "pending", "claimed", "publishing", "delivered"):
        await rows.job(conn, state=state)
    await rows.job(conn, state="waiting", hold=True)
    await rows.job(conn, state="waiting", parked="needs_input")
    for source, host in (("operator", ""), ("setup", "h1")):
        await rows.insert(conn, "lane_hold", lane="claude", source=source, host=host, reason="why", held_by="ada")
    await rows.insert(conn, "lane_breaker", lane="claude", failures=3, opened=1)
    codex, claude, gone = await lane_rows(conn)
    assert [lane.name for lane in (codex, claude, gone)] == ["codex", "claude", "gone"]
    assert (claude.pending, claude.waiting, claude.parked, claude.claimed, claude.publishing) == (2, 2, 1, 1, 1)
    assert (claude.failures, claude.opened, claude.configured, gone.configured) == (3, 1, True, False)
    assert [(hold.source, hold.host, hold.held_by) for hold in claude.holds] == [
        ("operator", "", "ada"),
        ("setup", "h1", "ada"),
    ]
    oldest = await rows.value(conn, "SELECT min(pending_at) FROM job WHERE state = 'pending'")
    assert claude.oldest_pending_at == oldest
    assert (codex.pending, codex.oldest_pending_at, codex.holds) == (0, None, [])
