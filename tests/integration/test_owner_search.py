"""One search in place of many polls: what it costs, where it is trusted, and what is done where it is not."""

from __future__ import annotations

import asyncio
import contextlib

from tests.support import rows
from tests.support.forges import FaultPlan
from tests.support.herds import Herd, herd
from tests.support.ingest import GO, IMPLEMENT, LANES, RULES, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.people import Policy
from tireless.services.poller import Poller
from tireless.store import inspect
from tireless.store.intake import Rules
from tireless.store.look import listen


async def test_an_idle_round_costs_one_request_an_owner(ingest: Ingest) -> None:
    """Six repositories of two owners: two requests a minute, and never more than one for each repository."""
    made = await herd(ingest)
    assert await made.searched() == sorted(made.paths)
    assert [await made.minute() for _ in range(3)] == [2, 2, 2]
    paths = {each.path for each in ingest.loopback.requests()[-2:]}
    assert paths == {"/api/v1/repos/issues/search"}
    alone = Poller(ingest.pool, {ingest.forge.name: ingest.forge}, rules=RULES, overlap_s=0.0, by_owner=False)
    await ingest.conn.execute("UPDATE repository SET searched = false, poll_not_before = '-infinity'")
    await made.minute(alone)
    assert [await made.minute(alone) for _ in range(2)] == [6, 6]


async def test_a_change_is_seen_by_the_search(ingest: Ingest) -> None:
    """In whichever repository: read from the search's own answer, with its timeline, and a job made of it."""
    made = await herd(ingest)
    for path in ("acme/cogs", "bob/own"):
        number = await made.ask(path)
        before = ingest.loopback.last_request
        await made.minute()
        lists = [each.path for each in ingest.loopback.requests(after=before) if each.path.endswith("/issues")]
        assert lists == []
        assert [job["number"] for job in await ingest.jobs() if job["state"] == "pending"] == [number]
        await ingest.conn.execute("UPDATE issue SET settled = true")
        await ingest.deliver()
        await made.minute()


async def test_a_search_that_shows_less_is_not_trusted(ingest: Ingest) -> None:
    """What it hides is polled by its own list, which is said; every full scan tries it again, either way."""
    fault = await ingest.loopback.fault(FaultPlan("GET", "search.*before=", "answer", status=200, body=b"[]", times=0))
    made = Herd(ingest)
    await made.watch("acme/gears", "acme/cogs")
    await made.settle()
    assert await made.searched() == []
    assert "does not show #1" in str(await made.fault("acme/gears"))
    before = ingest.loopback.last_request
    assert await made.minute() == 3
    assert all("search" not in each.path for each in ingest.loopback.requests(after=before))
    await fault.drop()
    await ingest.conn.execute("UPDATE repository SET full_scan_at = '-infinity'")
    await made.minute()
    assert await made.searched() == sorted(made.paths)
    assert await made.fault("acme/gears") is None
    await ingest.loopback.fault(FaultPlan("GET", "search.*before=", "answer", status=200, body=b"[]", times=0))
    await made.minute(minutes=66)
    await ingest.conn.execute("UPDATE repository SET full_scan_at = '-infinity', poll_not_before = '-infinity'")
    await made.minute()
    assert await made.searched() == []


async def test_a_search_that_fails_is_given_up(ingest: Ingest) -> None:
    """Refused, at once; failing, after the third time: then every repository is polled by itself, and none is late."""
    made = await herd(ingest)
    plan = FaultPlan("GET", "search.owner=acme(?!.*before)", "answer", status=500, times=0)
    fault = await ingest.loopback.fault(plan)
    for _ in range(2):
        await made.minute(minutes=20)
        assert len(await made.searched()) == 6
    told = {row.repo: (row.poll_failures, str(row.poll_error)) for row in await inspect.repository_rows(ingest.conn)}
    assert (told["acme/gears"][0], told["bob/own"][0]) == (2, 0)
    assert "answered 500" in told["acme/gears"][1]
    assert (await inspect.stats(ingest.conn)).repositories_failing == 4
    await made.minute(minutes=20)
    assert await made.searched() == ["bob/more", "bob/own"]
    assert "answered 500" in str(await made.fault("acme/gears"))
    number = await made.ask("acme/gears")
    await made.minute()
    assert len(await ingest.jobs(number)) == 1
    await fault.drop()
    await ingest.loopback.fault(FaultPlan("GET", "search.owner=bob", "answer", status=400))
    await made.minute()
    assert await made.searched() == []


async def test_one_bad_repository_keeps_no_other_from_being_seen(ingest: Ingest) -> None:
    """Its timelines fail: it is polled by itself from then on; what changed beside it is taken in all the same."""
    made = await herd(ingest)
    bad = [await made.ask("acme/cogs") for _ in range(1)]
    for _ in range(3):
        number = await ingest.stage.alice.create_issue("acme/cogs", "More")
        labels = (await ingest.stage.alice.api("GET", "/repos/acme/cogs/labels", page=1, limit=50)).sequence()
        ids = [int(str(each["id"])) for each in labels if isinstance(each, dict)]
        await ingest.stage.alice.add_labels("acme/cogs", number, *ids)
        bad.append(number)
    good = await made.ask("acme/gears")
    await ingest.loopback.fault(FaultPlan("GET", "cogs/issues/[0-9]+/timeline", "answer", status=502, times=0))
    await made.minute()
    assert "acme/cogs" not in await made.searched()
    assert "acme/gears" in await made.searched()
    query = "SELECT r.name FROM job j JOIN repository r ON r.id = j.repository_id"
    assert [row["name"] for row in await rows.rows(ingest.conn, query)] == ["gears"]
    assert (good, len(bad)) == (2, 4)


async def test_one_hanging_repository_holds_up_no_other(ingest: Ingest, dsn: str) -> None:
    """While its timeline hangs, what the same search showed of another is a job already."""
    made = await herd(ingest)
    await made.ask("acme/cogs")
    await made.ask("acme/gears")
    fault = await ingest.loopback.fault(FaultPlan("GET", "cogs/issues/[0-9]+/timeline", "block"))
    await ingest.conn.execute("UPDATE owner_poll SET poll_not_before = '-infinity' WHERE owner = 'acme'")
    async with contextlib.aclosing(listen(dsn, ["tireless_lane"])) as heard, asyncio.timeout(90):
        await anext(heard)
        tick = asyncio.ensure_future(made.poller.tick())
        await fault.reached()
        await anext(heard)
    assert not tick.done()
    assert [job["number"] for job in await ingest.jobs()] == [2]
    query = "SELECT r.name FROM job j JOIN repository r ON r.id = j.repository_id"
    assert await rows.value(ingest.conn, query) == "gears"
    await fault.release()
    await tick
    assert len(await ingest.jobs()) == 2


async def test_a_repository_renamed_under_the_search_goes_on(ingest: Ingest) -> None:
    """The search still shows it, under its id; its own poll finds the new name, and its changes are not lost."""
    made = await herd(ingest)
    await made.ask("acme/cogs")
    await ingest.stage.alice.edit_repository("acme/cogs", name="wheels")
    await made.minute()
    query = "SELECT r.name FROM job j JOIN repository r ON r.id = j.repository_id"
    assert [row["name"] for row in await rows.rows(ingest.conn, query)] == ["wheels"]


async def test_new_rules_are_applied_at_once(ingest: Ingest) -> None:
    """What a search serves is scanned by itself when people, labels or lanes are configured otherwise."""
    made = await herd(ingest)
    stranger = ingest.stage.mallory
    number = await stranger.create_issue("acme/gears", "Mine")
    label = await ingest.stage.alice.create_label("acme/gears", GO)
    mode = await ingest.stage.alice.create_label("acme/gears", IMPLEMENT)
    await stranger.create_issue_by_form("acme/gears", "By form", label_ids=[label, mode])
    await made.minute()
    assert await ingest.jobs() == []
    judge = Rules(RULES.scheme, Policy(who_may_ask="allow-list", allow=frozenset({stranger.login})), LANES)
    other = made.another(judge)
    await made.minute(other)
    await made.minute(other)
    assert len(await ingest.jobs()) == 1
    assert number


async def test_an_owner_of_one_repository_is_not_searched(ingest: Ingest) -> None:
    """There is nothing to be gained; a second one makes it worth while, and dropping it ends it."""
    made = Herd(ingest)
    await made.watch()
    await made.settle()
    assert await made.searched() == []
    await made.watch("acme/gears")
    await made.settle()
    await ingest.conn.execute("UPDATE repository SET full_scan_at = '-infinity', poll_not_before = '-infinity'")
    await made.minute()
    assert await made.searched() == ["acme/gears", "acme/widgets"]
