"""The poller against the loopback forge: pages, cursor, quiet polls, several pollers, and trouble of every kind."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from tests.support import rows
from tests.support.forges import FaultPlan
from tests.support.ingest import GO, IMPLEMENT, RULES, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.errors import StoreUnavailable
from tireless.services.tracker import Tracker
from tireless.store.db import clock, transaction
from tireless.store.db import pool as open_pool
from tireless.store.explaining import Explanation, explain
from tireless.store.intake import sync_repositories

LIST = r"/issues\?state=all"


async def asked(ingest: Ingest, after: int) -> list[str]:
    """What the bot asked the forge since then."""
    return [one.target for one in ingest.loopback.requests(after=after) if one.login == ingest.stage.bot.login]


async def due(ingest: Ingest) -> None:
    """Make every repository due now."""
    await rows.value(
        ingest.conn, "WITH u AS (UPDATE repository SET poll_not_before = '-infinity' RETURNING 1) SELECT 1"
    )


async def let_pass(ingest: Ingest, seconds: int) -> None:
    """As if so much time had passed for the cursor and for what is stored, on the forge and here."""
    await ingest.conn.execute(
        "UPDATE repository SET newest_first_seen_at = newest_first_seen_at - %s * interval '1 s'", [seconds]
    )


# ------------------------------------------------------------------------------------------------ quiet


async def test_repeated_polls_of_an_unchanged_repository_add_nothing_and_cost_one_request(ingest: Ingest) -> None:
    """Once the newest stamp is old enough, a poll is one request for an empty page."""
    for _ in range(3):
        await ingest.ask(GO, IMPLEMENT)
    assert (await ingest.poll()).made == 3
    before = await ingest.jobs()
    for _ in range(3):
        await ingest.poll()
    await let_pass(ingest, 600)
    await ingest.poll()
    for _ in range(3):
        mark = ingest.loopback.last_request
        await ingest.poll()
        targets = await asked(ingest, mark)
        assert len(targets) == 1
        assert "since=" in targets[0]
    assert await ingest.jobs() == before
    assert [await ingest.events(job["id"]) for job in before] == [["enqueue"]] * 3


async def test_a_repository_without_issues_costs_one_request(ingest: Ingest) -> None:
    """It has no stamp to begin from, and nothing to read but an empty page."""
    await ingest.poll()
    mark = ingest.loopback.last_request
    await ingest.poll()
    assert len(await asked(ingest, mark)) == 1


async def test_no_list_is_filtered_by_the_forge(ingest: Ingest) -> None:
    """Which labels count is decided here: the forge's filter drops names it does not know, and then filters nothing."""
    await ingest.ask(GO, IMPLEMENT)
    mark = ingest.loopback.last_request
    await ingest.poll()
    await ingest.poll()
    lists = [target for target in await asked(ingest, mark) if re.search(LIST, target)]
    assert len(lists) >= 2
    assert [target for target in lists if "labels=" in target] == []


async def test_overlapping_polls_read_no_timeline_of_what_was_judged(ingest: Ingest) -> None:
    """An issue read well after its stamp, and shown with the same stamp again, needs no second judgement."""
    await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await rows.value(ingest.conn, "UPDATE issue SET settled = true RETURNING 1")
    mark = ingest.loopback.last_request
    await ingest.poll()
    assert [target for target in await asked(ingest, mark) if "timeline" in target] == []
    await ingest.loopback.advance(10)
    await ingest.stage.alice.comment(ingest.stage.path, 1, "Soon?")
    await ingest.poll()
    assert len([target for target in await asked(ingest, mark) if "timeline" in target]) == 1


async def test_explain_says_as_of_which_poll_it_speaks(ingest: Ingest) -> None:
    """A label put on since is not seen yet; a poll that shows no change moves the moment all the same."""
    await ingest.judge_strangers()
    number = await ingest.ask()

    async def explained() -> Explanation:
        return await explain(ingest.conn, ingest.stage.path, number, scheme=RULES.scheme)

    for _ in range(2):
        before = await clock(ingest.conn)
        await ingest.poll()
        found = await explained()
        assert found.first is not None
        assert found.first.gate.code == "not_asked"
        assert found.fresh is not None
        assert found.fresh.as_of is not None
        assert found.fresh.as_of >= before
        assert found.fresh.next_at == (await ingest.repository())["poll_not_before"]
    await ingest.ask(GO, IMPLEMENT, number=number)
    again = await explained()
    assert (again.first, again.fresh) == (found.first, found.fresh)
    await ingest.poll()
    assert (await explained()).first is None


async def test_two_updates_in_one_second_are_both_seen(ingest: Ingest) -> None:
    """The stamp does not move for the second one; it is read again until its second is surely over."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    first = await ingest.job(number)
    await ingest.unlabel(number, GO)
    await ingest.ask(GO, number=number)
    await ingest.poll()
    assert (await ingest.job(number))["request_id"] != first["request_id"]


async def test_plain_issues_cost_no_timeline(ingest: Ingest) -> None:
    """Timelines are read only where something can come of it."""
    for n in range(5):
        await ingest.stage.alice.create_issue(ingest.stage.path, f"Plain {n}")
    mark = ingest.loopback.last_request
    await ingest.poll()
    assert [target for target in await asked(ingest, mark) if "timeline" in target] == []


async def test_changed_rules_judge_everything_again(ingest: Ingest) -> None:
    """An issue without a lane for its kind gets its job when a lane is configured, though nothing on it changed."""
    ingest.poller = ingest.another(replace(RULES, lanes=RULES.lanes[1:]))
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    assert await ingest.code(number) == "no_lane"
    await rows.value(ingest.conn, "UPDATE issue SET settled = true RETURNING 1")
    ingest.poller = ingest.another()
    assert (await ingest.poll()).made == 1


# ------------------------------------------------------------------------------------------------ pages


async def test_a_server_that_clamps_pages_is_read_to_the_end(ingest: Ingest) -> None:
    """A short page is not the last one; an exact multiple ends by the total, without another request."""
    await ingest.judge_strangers()
    labels = [await ingest.label(GO), await ingest.label(IMPLEMENT)]
    for n in range(21):
        await ingest.stage.bob.create_issue(ingest.stage.path, f"Issue {n}", label_ids=labels)
    ingest.loopback.world.rules.page_limit = 7
    mark = ingest.loopback.last_request
    assert (await ingest.poll()).made == 21
    assert len([target for target in await asked(ingest, mark) if "/issues?" in target]) == 3


async def test_an_issue_made_during_a_scan_is_taken_by_the_next(ingest: Ingest) -> None:
    """It pushes the others down a page: rows repeat, none is missed."""
    ingest.loopback.world.rules.page_limit = 2
    for _ in range(4):
        await ingest.ask(GO, IMPLEMENT)
    handle = await ingest.loopback.fault(FaultPlan("GET", LIST + ".*page=2", "block"))
    poll = asyncio.create_task(ingest.poll())
    await handle.reached()
    await ingest.ask(GO, IMPLEMENT)
    await handle.release()
    assert (await poll).made == 4
    assert (await ingest.poll()).made == 1


async def test_a_crash_between_pages_moves_no_cursor(ingest: Ingest) -> None:
    """What the first page brought stays; the next poll begins where this one began."""
    ingest.loopback.world.rules.page_limit = 2
    for _ in range(4):
        await ingest.ask(GO, IMPLEMENT)
    await ingest.loopback.fault(FaultPlan("GET", LIST + ".*page=2", "answer", status=500, times=3))
    before = await ingest.repository()
    assert list((await ingest.poller.poll_once()).failed) == ["acme/widgets"]
    after = await ingest.repository()
    assert len(await ingest.jobs()) == 2
    assert (after["since"], after["newest_seen"]) == (before["since"], before["newest_seen"])
    assert (await ingest.another().poll_once()).made == 2


async def test_an_issue_deleted_during_a_scan_moves_no_cursor(ingest: Ingest) -> None:
    """Those behind it move up a page, past the reader: what was shown stays, and the next poll reads it all again."""
    ingest.loopback.world.rules.page_limit = 2
    numbers = [await ingest.ask(GO, IMPLEMENT) for _ in range(5)]
    handle = await ingest.loopback.fault(FaultPlan("GET", LIST + ".*page=2", "block"))
    poll = asyncio.create_task(ingest.poll(full=True))
    await handle.reached()
    await ingest.stage.alice.api("DELETE", f"/repos/{ingest.stage.path}/issues/{numbers[-1]}")
    await handle.release()
    await poll
    after = await ingest.repository()
    assert (after["since"], after["newest_seen"], after["full_scan_at"]) == (None, None, None)
    assert await ingest.jobs(numbers[2]) == []
    assert (await ingest.poll()).made == 1
    assert (await ingest.repository())["newest_seen"] is not None


async def test_a_forge_that_shows_the_same_page_for_ever_is_garbled(ingest: Ingest) -> None:
    """It is set aside with that error instead of being read until the end of time."""
    await ingest.ask(GO, IMPLEMENT)
    shown = await ingest.stage.bot.api("GET", f"/repos/{ingest.stage.path}/issues")
    headers = {"Content-Type": "application/json", "X-Total-Count": "999"}
    plan = FaultPlan("GET", LIST, "answer", status=200, body=shown.content, headers=headers, times=0)
    await ingest.loopback.fault(plan)
    failed = (await ingest.poller.poll_once()).failed
    assert "earlier" in failed["acme/widgets"]
    assert len(await ingest.jobs()) == 1


# ------------------------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_an_outage_changes_no_row(ingest: Ingest, status: int) -> None:
    """5xx and 429 say nothing about what exists: jobs stay, the repository backs off."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    before = await ingest.job(number)
    await ingest.loopback.fault(FaultPlan("GET", "/api/v1/repos", "answer", status=status, times=0))
    await ingest.loopback.fault(FaultPlan("GET", "/api/v1/repositories", "answer", status=status, times=0))
    assert list((await ingest.poller.poll_once(full=True)).failed) == ["acme/widgets"]
    assert await ingest.job(number) == before
    repository = await ingest.repository()
    assert (repository["readable"], repository["poll_failures"]) == (True, 1)
    assert repository["take_token"] is None


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_repository_that_refuses_makes_its_jobs_wait_and_comes_back(ingest: Ingest, status: int) -> None:
    """Answered, by name and by id: cannot_tell, with the reason; the first poll that works wakes them."""
    queued, held = await ingest.ask(GO, IMPLEMENT), await ingest.ask(GO, IMPLEMENT, "tireless/hold")
    await ingest.poll()
    handles = [
        await ingest.loopback.fault(FaultPlan("GET", path, "answer", status=status, times=0))
        for path in ("/api/v1/repos/", "/api/v1/repositories")
    ]
    await ingest.poller.poll_once()
    assert [(await ingest.job(n))["reason"] for n in (queued, held)] == ["cannot_tell", "cannot_tell"]
    repository = await ingest.repository()
    assert repository["readable"] is False
    assert str(status) in str(repository["unreadable_reason"])
    for handle in handles:
        await handle.drop()
    await ingest.poll()
    assert [(await ingest.job(n))["reason"] for n in (queued, held)] == [None, "on_hold"]
    assert await ingest.events((await ingest.job(queued))["id"]) == ["enqueue", "wait", "wake"]


async def test_a_repository_with_issues_switched_off_is_unreadable_and_says_so(ingest: Ingest) -> None:
    """It answers by id, so nothing is gone."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await ingest.stage.alice.edit_repository(ingest.stage.path, has_issues=False)
    await ingest.poller.poll_once()
    assert (await ingest.job(number))["reason"] == "cannot_tell"
    assert "issues are switched off" in str((await ingest.repository())["unreadable_reason"])
    await ingest.stage.alice.edit_repository(ingest.stage.path, has_issues=True)
    await ingest.poll()
    assert (await ingest.job(number))["state"] == "pending"


async def test_a_renamed_repository_goes_on_with_its_history(ingest: Ingest) -> None:
    """It is asked for by its id after the redirect; its jobs and issues stay its own."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    label = await ingest.label("tireless/agent:spare")
    await ingest.stage.alice.edit_repository(ingest.stage.path, name="gadgets")
    await ingest.stage.bob.add_labels("acme/gadgets", number, label)
    await ingest.poll()
    repository = await ingest.repository()
    assert (repository["name"], repository["readable"], repository["tracked"]) == ("gadgets", True, True)
    assert (await ingest.job(number))["lane"] == "spare"


async def test_a_restart_after_a_rename_goes_on_watching(ingest: Ingest) -> None:
    """The configuration still says the old name: it leads to what was watched under it, and only to that."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await ingest.stage.alice.edit_repository(ingest.stage.path, name="gadgets")
    await ingest.poll()
    again = Tracker(ingest.pool, {ingest.forge.name: ingest.forge}, [ingest.stage.repo], require_opt_in=True)
    await again.tick()
    assert again.errors == {}
    assert (await ingest.repository())["tracked"] is True
    assert (await ingest.job(number))["state"] == "pending"
    await ingest.conn.execute("UPDATE repository SET tracked = false")
    unknown = Tracker(ingest.pool, {ingest.forge.name: ingest.forge}, [ingest.stage.repo], require_opt_in=True)
    await unknown.tick()
    assert "another name" in str(unknown.errors[ingest.stage.repo])
    assert (await ingest.repository())["tracked"] is False


async def test_repositories_that_swapped_their_names_are_told_apart(ingest: Ingest) -> None:
    """Each name leads to the other one's issues: they are asked for by id, whichever is polled first."""
    stage = ingest.stage
    await stage.alice.create_repository("gadgets", org="acme")
    for person in (stage.bob, stage.bot):
        await stage.alice.add_collaborator("acme/gadgets", person.login)
    found = await ingest.forge.repository(replace(stage.repo, name="gadgets"))
    async with transaction(ingest.conn, "watching"):
        await sync_repositories(ingest.conn, ingest.forge.name, [found], "operator")
    await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    for before, after in (("widgets", "x"), ("gadgets", "widgets"), ("x", "gadgets")):
        await stage.alice.edit_repository(f"acme/{before}", name=after)
    await ingest.poll(full=True)
    names = await rows.rows(ingest.conn, "SELECT forge_repo_id, name, tracked FROM repository ORDER BY id")
    assert [(row["name"], row["tracked"]) for row in names] == [("gadgets", True), ("widgets", True)]
    assert len(await ingest.jobs()) == 1
    assert await rows.value(ingest.conn, "SELECT count(*) FROM issue") == 1


async def test_a_repository_made_again_under_its_name_starts_clean(ingest: Ingest) -> None:
    """Another id: the old one keeps its history and waits, the new one is watched, and its issue 1 is its own."""
    stage = ingest.stage
    await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await stage.alice.api("DELETE", f"/repos/{stage.path}")
    await stage.alice.create_repository("widgets", org="acme")
    for person in (stage.bob, stage.bot):
        await stage.alice.add_collaborator(stage.path, person.login)
    stage.labels.clear()
    number = await ingest.ask(GO, IMPLEMENT)
    assert number == 1
    await ingest.poller.poll_once()
    await due(ingest)
    while await ingest.poller.tick():
        pass
    found = await rows.rows(
        ingest.conn,
        "SELECT r.tracked, j.state, j.reason FROM repository r JOIN job j ON j.repository_id = r.id ORDER BY r.id",
    )
    assert found == [
        {"tracked": False, "state": "waiting", "reason": "untracked"},
        {"tracked": True, "state": "pending", "reason": None},
    ]


async def test_one_bad_repository_stops_no_other(ingest: Ingest) -> None:
    """It answers 500 for good; the other is polled in the same round, and the bad one backs off longer each time."""
    stage = ingest.stage
    await stage.alice.create_repository("gadgets", org="acme")
    for person in (stage.bob, stage.bot):
        await stage.alice.add_collaborator("acme/gadgets", person.login)
    found = await ingest.forge.repository(replace(stage.repo, name="gadgets"))
    async with transaction(ingest.conn, "watching"):
        await sync_repositories(ingest.conn, ingest.forge.name, [found], "operator")
    await ingest.ask(GO, IMPLEMENT)
    await ingest.loopback.fault(FaultPlan("GET", "/acme/gadgets/issues", "answer", status=500, times=0))
    waits = []
    for _ in range(3):
        done = await ingest.poller.poll_once()
        assert list(done.failed) == ["acme/gadgets"]
        waits.append(
            await rows.value(
                ingest.conn,
                "SELECT extract(epoch FROM poll_not_before - clock_timestamp())::int FROM repository"
                " WHERE name = 'gadgets'",
            )
        )
    assert len(await ingest.jobs()) == 1
    assert waits == sorted(waits, key=lambda wait: int(str(wait)))
    assert len(set(waits)) == 3


async def test_a_database_that_goes_away_is_an_error_and_loses_nothing(ingest: Ingest, dsn: str) -> None:
    """The scan ends with StoreUnavailable, the cursor stays, and when its take is over the next poll takes in all."""
    await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    before = await ingest.repository()
    for _ in range(2):
        await ingest.loopback.advance(10)
        await ingest.ask(GO, IMPLEMENT)
    handle = await ingest.loopback.fault(FaultPlan("GET", "/issues/3/timeline", "block"))
    poll = asyncio.create_task(ingest.poller.poll_once())
    await handle.reached()
    await ingest.pool.close()
    await handle.release()
    with pytest.raises(StoreUnavailable):
        await poll
    assert len(await ingest.jobs()) == 1
    after = await ingest.repository()
    assert (after["since"], after["newest_seen"]) == (before["since"], before["newest_seen"])
    await ingest.conn.execute("UPDATE repository SET take_until = '-infinity'")
    async with open_pool(dsn, application_name="tireless test") as again:
        assert (await ingest.another(pool=again).poll_once()).made == 2


# ------------------------------------------------------------------------------------------------ several pollers


async def test_two_pollers_never_poll_one_repository_at_a_time(ingest: Ingest) -> None:
    """The second finds it taken; a poller that died is forgotten when its take has run out."""
    await ingest.ask(GO, IMPLEMENT)
    handle = await ingest.loopback.fault(FaultPlan("GET", LIST, "block"))
    first = asyncio.create_task(ingest.poller.tick())
    await handle.reached()
    second = ingest.another()
    assert not await second.tick()
    await rows.value(ingest.conn, "UPDATE repository SET take_until = clock_timestamp() RETURNING 1")
    assert await second.tick()
    assert len(await ingest.jobs()) == 1
    after = await ingest.repository()
    await handle.release()
    await first
    assert len(await ingest.jobs()) == 1
    # the late one has lost its take: it moves no cursor
    assert (await ingest.repository())["poll_not_before"] == after["poll_not_before"]


async def test_pollers_over_the_same_issues_at_once_make_each_job_once(ingest: Ingest) -> None:
    """Scans and looks of four pollers overlap as they please; one job per issue, one request, no error."""
    numbers = [await ingest.ask(GO, IMPLEMENT) for _ in range(8)]
    pollers = [ingest.another() for _ in range(4)]
    for number in numbers:
        await ingest.conn.execute(
            "INSERT INTO look (repository_id, number, why) VALUES (%s, %s, 'test')", [ingest.repository_id, number]
        )
    await asyncio.gather(*(poller.tick() for poller in pollers for _ in range(3)))
    assert sorted(int(str(job["number"])) for job in await ingest.jobs()) == numbers
    assert await rows.value(ingest.conn, "SELECT count(*) FROM request") == 8
    assert await rows.value(ingest.conn, "SELECT count(*) FROM job_event") == 8


async def test_an_answer_asked_before_the_stored_one_arrived_is_dropped(ingest: Ingest) -> None:
    """A slow page must not undo what a look has seen since; it leaves a look instead."""
    number = await ingest.ask(GO, IMPLEMENT)
    handle = await ingest.loopback.fault(FaultPlan("GET", LIST, "block", when="after"))
    slow = asyncio.create_task(ingest.poller.tick())
    await handle.reached()  # the page is answered, with the labels, but not delivered
    await ingest.unlabel(number, GO)
    await ingest.conn.execute(
        "INSERT INTO look (repository_id, number, why) VALUES (%s, %s, 'test')", [ingest.repository_id, number]
    )
    assert await ingest.another().tick()
    assert await ingest.code(number) == "no_opt_in"
    await handle.release()
    await slow
    assert await ingest.jobs() == []
    assert await ingest.code(number) == "no_opt_in"
    assert [look["why"] for look in await ingest.looks()] == ["a newer answer was stored first"]
