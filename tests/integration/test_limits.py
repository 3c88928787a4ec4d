"""Limits of a repository that comes to be watched: they hold from its first job on, an operator's go with the name."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.support import rows, shown
from tireless.domain.issue import RepoRef
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, transaction
from tireless.store.limits import NONE, Limits, limit_all, limit_repository
from tireless.store.repos import replace_repository, sync_repositories, tracked_repos, untrack

ME = RunnerId("r1", "h1", uuid4())
NEW = RepoRef(rows.FORGE, "acme", "new")


async def watch(conn: Connection, number: int, name: str = NEW.name, limits: Limits = NONE) -> None:
    """What `repos add` writes."""
    await rows.forge(conn)
    async with transaction(conn, "watching"):
        await sync_repositories(
            conn, rows.FORGE, [shown.repository(number, f"{NEW.owner}/{name}")], "operator", limits=limits
        )


async def limits_of(conn: Connection, name: str = NEW.name) -> tuple[object, ...]:
    """The limits of what is watched under this name, and whose they are."""
    query = "SELECT max_running, max_runs_per_day, limits_by FROM repository WHERE tracked AND name = %(name)s"
    [row] = await rows.rows(conn, query, name=name)
    return tuple(row.values())


async def test_a_newly_watched_repository_is_limited_from_the_first_claim(conn: Connection) -> None:
    """What is configured for all holds in the transaction that makes it watched, whether or not others have limits."""
    for name, number in (("new", 1), ("newer", 2)):
        await watch(conn, number, name, Limits(max_running=1))
        for _ in range(3):
            await rows.job(conn, f"acme/{name}")
        assert len(await claim_next(conn, [rows.LANE], runner=ME, n=5)) == 1
    assert await limit_all(conn, Limits(max_running=1)) == 0


async def test_one_that_is_watched_again_has_todays_limits_or_its_operators(conn: Connection) -> None:
    """The configuration's of now, not of when it was dropped; an operator's own are kept, and so is his "none"."""
    await watch(conn, 1, limits=Limits(7, 70))
    for own, configured, then in (
        (None, Limits(1, None), (1, None, "config")),
        (None, NONE, (None, None, "config")),
        (Limits(3, 30), Limits(1, None), (3, 30, "operator")),
        (Limits(), Limits(1, None), (None, None, "operator")),
    ):
        if own is not None:
            await limit_repository(conn, NEW, own)
        async with transaction(conn, "dropping"):
            await untrack(conn, NEW)
        await watch(conn, 1, limits=configured)
        assert await limits_of(conn) == then


async def test_to_watch_what_is_watched_changes_no_limit(conn: Connection) -> None:
    """A claim under way may go by the limit it has read: a lower one waits for it, which is limit_all's."""
    await watch(conn, 1, limits=Limits(max_running=4))
    await watch(conn, 1, limits=Limits(max_running=1))
    assert await limits_of(conn) == (4, None, "config")


async def test_jobs_that_waited_for_their_repository_come_back_under_its_limit(dsn: str) -> None:
    """A claim that was begun while nothing had a limit is waited for: it would count nothing of what it finds."""
    async with rows.connections(dsn, 3) as (claiming, watching, watcher):
        await rows.lane(watcher, max_running=9)  # its claims ask more than once, each time anew
        await watch(watcher, 1)
        for _ in range(3):
            await rows.job(watcher, "acme/new")
        async with transaction(watcher, "dropping"):
            await untrack(watcher, NEW)
        async with claiming.transaction():
            assert await claim_next(claiming, [rows.LANE], runner=ME, n=5) == []
            again = asyncio.create_task(watch(watching, 1, limits=Limits(max_running=1)))
            await rows.until_blocked(watcher, watching, work=again)
            assert not again.done()
            assert await claim_next(claiming, [rows.LANE], runner=ME, n=5) == []
        await again
        assert len(await claim_next(claiming, [rows.LANE], runner=ME, n=5)) == 1


@pytest.mark.parametrize("by_poll", [True, False])
async def test_an_operators_limit_stays_with_the_name(conn: Connection, by_poll: bool) -> None:
    """Deleted and made again, seen by the poll or by the look for the name: it is limited as the one before it."""
    await watch(conn, 1, limits=Limits(max_running=5))
    await watch(conn, 8, "other", limits=Limits(max_running=5))
    await limit_repository(conn, NEW, Limits(2, 20))
    for name, number, limits in (("new", 2, (2, 20, "operator")), ("other", 9, (5, None, "config"))):
        if by_poll:
            [old] = [row for row in await tracked_repos(conn) if row.name == name]
            async with transaction(conn, "replacing"):
                await replace_repository(conn, old, shown.repository(number, f"{NEW.owner}/{name}"))
        else:
            await watch(conn, number, name, limits=Limits(max_running=5))
        assert await limits_of(conn, name) == limits
    assert [row.forge_repo_id for row in await tracked_repos(conn)] == [2, 9]
