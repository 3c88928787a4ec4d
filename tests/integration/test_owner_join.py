"""How repositories join the search of their owner: together, reading nothing again, and missing nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support import rows
from tests.support.forges import FaultPlan
from tests.support.herds import Herd
from tests.support.ingest import GO, IMPLEMENT, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.store import owners

SINCE = "SELECT since FROM owner_poll WHERE owner = 'acme'"
LATE = "acme/late"
SEARCH = "issues/search\\?(?!.*before)"
Mutate = Callable[[pytest.MonkeyPatch], None]
Ending = Callable[[], Awaitable[None]]


def without(monkeypatch: pytest.MonkeyPatch, condition: str, instead: str = "") -> None:
    """JOIN without one of its conditions."""
    assert owners.JOIN.count(condition) == 1
    monkeypatch.setattr(owners, "JOIN", owners.JOIN.replace(condition, instead))


def level_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a repository joins though the last search has gone past its changes."""
    without(monkeypatch, "o.asked_at <= EXCLUDED.asked_at AND")


def in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a repository joins while a search is under way that has not read it."""
    without(monkeypatch, "AND (o.take_until IS NULL OR o.take_until < clock_timestamp())")
    not_shut_out(monkeypatch)


def not_shut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a search that has outlived its take may still move the cursor."""
    without(monkeypatch, "SET take_token = NULL, take_by = NULL, take_until = NULL,", "SET")


def searches(made: Herd, *, after: int) -> int:
    """How many pages of searches were read; trials are left out."""
    requests = made.ingest.loopback.requests(after=after)
    return sum("issues/search" in each.path and "before=" not in each.target for each in requests)


async def pages(made: Herd, minutes: int) -> int:
    """How many pages of searches so many minutes take."""
    before = made.ingest.loopback.last_request
    for _ in range(minutes):
        await made.minute()
    return searches(made, after=before)


async def late(ingest: Ingest) -> Herd:
    """Two repositories that are searched for, and a late one about to join: its list was read once."""
    made = Herd(ingest)
    await made.watch("acme/cogs")
    await made.settle()
    await made.watch(LATE)
    await ingest.loopback.advance(5)
    await ingest.stage.alice.create_issue(LATE, "The newest, by which the search is tried")
    for path in ("acme/cogs", LATE):
        for name in (GO, IMPLEMENT):
            made.labels.setdefault(path, []).append(await ingest.stage.alice.create_label(path, name))
    await made.minute()
    assert await made.searched() == ["acme/cogs", "acme/widgets"]
    return made


async def ask(made: Herd, path: str) -> None:
    """Its first issue asks for work, now."""
    await made.ingest.stage.alice.add_labels(path, 1, *made.labels[path])


async def a_minute(made: Herd) -> None:
    """Poll what is due a minute later: the search, and the late one's list where that does not serve it."""
    await made.due(*([] if LATE in await made.searched() else ["late"]), owner="acme")
    while await made.poller.tick():
        pass


async def jobs(made: Herd) -> int:
    """How many jobs the late one has."""
    query = "SELECT count(*) FROM job j JOIN repository r ON r.id = j.repository_id WHERE r.name = 'late'"
    return int(str(await rows.value(made.ingest.conn, query)))


async def beside_each_other(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, mutate: Mutate | None
) -> tuple[Herd, Ending, Ending]:
    """The late one's list is read, it changes, a search is made, all in one second; how to end poll and search."""
    made = await late(ingest)
    if mutate is not None:
        mutate(monkeypatch)
    loopback, other = made.ingest.loopback, made.another()
    await loopback.advance(90)
    await loopback.call(loopback.world.clock.freeze)
    await ask(made, "acme/cogs")
    await made.due(owner="acme")
    await made.poller.tick()
    own = await loopback.fault(FaultPlan("GET", f"{LATE}/issues\\?", "block", when="after"))
    await made.due("late")
    polling = asyncio.ensure_future(made.poller.tick())
    await own.reached()
    await ask(made, LATE)
    all_of_them = await loopback.fault(FaultPlan("GET", SEARCH, "block", when="after"))
    await made.due(owner="acme")
    searching = asyncio.ensure_future(other.tick())
    await all_of_them.reached()

    async def end_poll() -> None:
        await own.release()
        await polling

    async def end_search() -> None:
        await all_of_them.release()
        await searching

    return made, end_poll, end_search


async def test_many_that_join_together_cost_no_search_of_their_own(ingest: Ingest) -> None:
    """Nine repositories of one owner: a search a minute, of one page, however many have joined in it."""
    made = Herd(ingest)
    await made.watch(*(f"acme/r{n}" for n in range(8)))
    assert await pages(made, 2) == 0
    assert len(await made.searched()) == 9
    assert [await pages(made, 1) for _ in range(3)] == [1, 1, 1]


async def test_a_stale_one_does_not_set_the_search_back(ingest: Ingest) -> None:
    """Neither where it is the first, nor where it comes late: what the others changed meanwhile is not read again."""
    made = Herd(ingest)
    await made.watch()  # the first that is polled; nothing has been done there for a month
    await ingest.loopback.advance(30 * 86_400)
    await made.watch("acme/busy")
    for n in range(60):
        await ingest.stage.alice.create_issue("acme/busy", f"Busy {n}")
    await ingest.loopback.advance(600)
    await ingest.stage.alice.create_issue("acme/busy", "Last")
    assert await pages(made, 3) == 1
    assert len(await made.searched()) == 2
    await made.minute()
    since = await rows.value(ingest.conn, SINCE)
    await made.watch(LATE)
    await made.minute()
    await ingest.conn.execute(
        "UPDATE repository SET since = '2001-01-01', newest_seen = '2001-01-01' WHERE name = 'late'"
    )
    assert await pages(made, 2) == 2
    assert LATE in await made.searched()
    assert str(await rows.value(ingest.conn, SINCE)) >= str(since)


@pytest.mark.parametrize("mutate", [None, level_or_not])
async def test_one_whose_list_was_read_before_the_last_search_waits(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, mutate: Mutate | None
) -> None:
    """It changed after its list was read, and searches went past that; its own list shows it, then it joins."""
    made = await late(ingest)
    if mutate is not None:
        mutate(monkeypatch)
    fault = await ingest.loopback.fault(FaultPlan("GET", f"{LATE}/issues\\?", "block", when="after"))
    await made.due("late")
    poll = asyncio.ensure_future(made.poller.tick())
    await fault.reached()
    await ingest.loopback.advance(90)
    await ask(made, LATE)
    await ingest.loopback.advance(90)
    await ask(made, "acme/cogs")
    other = made.another()
    for _ in range(3):
        await made.due(owner="acme")
        await other.tick()
    await fault.release()
    await poll
    assert (LATE in await made.searched()) is (mutate is not None)
    await a_minute(made)
    await a_minute(made)
    assert await jobs(made) == (mutate is None)
    assert LATE in await made.searched()


@pytest.mark.parametrize("mutate", [None, in_the_middle])
async def test_none_joins_while_a_search_is_under_way(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, mutate: Mutate | None
) -> None:
    """A search that has not read it moves the cursor past what changed in the very second of the newest stamp."""
    made, poll, search = await beside_each_other(ingest, monkeypatch, mutate)
    await poll()
    assert (LATE in await made.searched()) is (mutate is not None)
    await search()
    await a_minute(made)
    assert await jobs(made) == (mutate is None)


@pytest.mark.parametrize("mutate", [None, not_shut_out])
async def test_a_search_that_outlived_its_take_is_shut_out(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, mutate: Mutate | None
) -> None:
    """Its process stood still; a repository has joined that it did not read: it moves nothing any more."""
    made, poll, search = await beside_each_other(ingest, monkeypatch, mutate)
    await ingest.conn.execute("UPDATE owner_poll SET take_until = '-infinity' WHERE owner = 'acme'")
    await poll()
    assert LATE in await made.searched()
    await search()
    await a_minute(made)
    assert await jobs(made) == (mutate is None)
