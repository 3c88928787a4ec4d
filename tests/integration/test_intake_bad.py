"""Bad input: huge, empty and unprintable issues, torn answers, forged histories; each stops nothing but itself."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support import rows
from tests.support.forges import FaultPlan
from tests.support.ingest import GO, IMPLEMENT, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.issue import content_hash

LIST = r"/issues\?state=all"


@pytest.mark.parametrize(
    ("title", "body"),
    [
        ("Empty", ""),
        ("Two megabytes", "é" * 1_048_576),
        ("N\0UL", "before\0after\x01\x02\x1b[31m\u202eright to left"),
        ("A surrogate's replacement", "\ufffd\U0001f600"),
        ("x" * 255, "y"),
    ],
)
async def test_a_text_of_any_kind_is_stored_and_enqueued(ingest: Ingest, title: str, body: str) -> None:
    """At most a MiB is kept, the hash covers all; what Postgres refuses is replaced, also in what an agent gets."""
    number = await ingest.stage.alice.create_issue(ingest.stage.path, title, body)
    await ingest.ask(GO, IMPLEMENT, number=number)
    assert (await ingest.poll()).made == 1
    issue = await ingest.issue(number)
    stored = str(issue["body"])
    assert len(stored.encode()) <= 1_048_576
    assert stored == body.replace("\0", "\ufffd").encode()[:1_048_576].decode(errors="ignore")
    assert issue["approved_body"] == stored
    shown = await ingest.stage.bot.issue(ingest.stage.path, number)
    assert issue["content_hash"] == content_hash(str(shown["title"]), body)
    assert (await ingest.claim()).body == stored
    await ingest.poll(full=True)
    assert len(await ingest.jobs(number)) == 1


async def test_labels_of_255_characters_and_strange_names_are_survived(ingest: Ingest) -> None:
    """They are stored as they are; an unknown one of ours is named, never guessed."""
    long = "tireless/" + "x" * 246
    number = await ingest.ask(GO, IMPLEMENT, long, "ünïcode \U0001f600", " tireless/agent: spare ")
    assert (await ingest.poll()).made == 1
    assert (await ingest.job(number))["lane"] == "spare"
    details = (await ingest.issue(number))["triage_details"]
    assert details == {"warnings": {"unknown_label": {"unknown": ["x" * 246]}}}


async def test_a_bad_issue_among_a_hundred_stops_none_of_the_others(ingest: Ingest) -> None:
    """The list shows one that does not parse: 99 enqueue, the bad one is a look with its error, and heals."""
    stage = ingest.stage
    labels = [await ingest.label(GO), await ingest.label(IMPLEMENT)]
    await ingest.judge_strangers()
    for n in range(100):
        await stage.bob.create_issue(stage.path, f"Issue {n}", label_ids=labels)
    page = [await stage.bot.issue(stage.path, number) for number in range(100, 50, -1)]
    page[20]["title"] = None
    body = json.dumps(page).encode()
    headers = {"Content-Type": "application/json", "X-Total-Count": "100"}
    plan = FaultPlan("GET", LIST + ".*page=1&", "answer", status=200, body=body, headers=headers)
    await ingest.loopback.fault(plan)
    assert (await ingest.poll()).made == 99
    [look] = await ingest.looks()
    assert look["number"] == 80
    assert "title" in str(look["error"])
    await ingest.due()
    await ingest.poller.tick()
    assert (await ingest.job(80))["state"] == "pending"
    assert await ingest.looks() == []


@pytest.mark.parametrize(
    ("changed", "looked_at"), [({"number": 2**31}, []), ({"number": 10**30}, []), ({"id": 2**63}, [2])]
)
async def test_numbers_that_no_database_holds_stop_none_of_the_others(
    ingest: Ingest, changed: dict[str, int], looked_at: list[int]
) -> None:
    """A list with such an issue among two others: they enqueue, and it is a look where it can be asked for."""
    stage = ingest.stage
    for _ in range(3):
        await ingest.ask(GO, IMPLEMENT)
    page = [await stage.bot.issue(stage.path, number) for number in (3, 2, 1)]
    page[1] |= changed
    headers = {"Content-Type": "application/json", "X-Total-Count": "3"}
    plan = FaultPlan("GET", LIST, "answer", status=200, body=json.dumps(page).encode(), headers=headers)
    await ingest.loopback.fault(plan)
    assert (await ingest.poll()).made == 2
    assert [look["number"] for look in await ingest.looks()] == looked_at


async def test_an_issue_whose_timeline_fails_is_looked_at_later(ingest: Ingest) -> None:
    """The forge answers 500 for one timeline for good: the others are taken in, and its look backs off."""
    broken, well = await ingest.ask(GO, IMPLEMENT), await ingest.ask(GO, IMPLEMENT)
    await ingest.loopback.fault(FaultPlan("GET", f"/issues/{broken}/timeline", "answer", status=500, times=0))
    assert (await ingest.poll()).made == 1
    assert (await ingest.job(well))["state"] == "pending"
    assert await ingest.jobs(broken) == []
    for failures in (1, 2):
        [look] = await ingest.looks()
        assert (look["number"], look["failures"]) == (broken, failures)
        await ingest.due()
        await ingest.poller.tick()


async def test_a_timeline_that_shows_other_labels_is_read_again_and_then_not_believed(ingest: Ingest) -> None:
    """Three readings of both; a forged or torn history moves nothing."""
    number = await ingest.ask(GO, IMPLEMENT)
    headers = {"Content-Type": "application/json"}
    plan = FaultPlan("GET", "/timeline", "answer", status=200, body=b"null", headers=headers, times=0)
    await ingest.loopback.fault(plan)
    before = ingest.loopback.last_request
    assert (await ingest.poll()).made == 0
    asked = [request.path for request in ingest.loopback.requests(after=before) if "/timeline" in request.path]
    assert len(asked) == 3
    assert await ingest.code(number) == "cannot_tell"
    assert await ingest.jobs() == []


async def test_a_label_put_on_between_list_and_timeline_is_read_again(ingest: Ingest) -> None:
    """The timeline knows more than the page: the second reading agrees with itself."""
    number = await ingest.ask(GO)
    await ingest.label(IMPLEMENT)
    handle = await ingest.loopback.fault(FaultPlan("GET", "/timeline", "block"))
    poll = asyncio.create_task(ingest.poll())
    await handle.reached()
    await ingest.ask(IMPLEMENT, number=number)
    await handle.release()
    assert (await poll).made == 1
    assert (await ingest.job(number))["kind"] == "implement"


async def test_garbage_for_a_whole_page_sets_the_repository_aside(ingest: Ingest) -> None:
    """Its error is shown, nothing is read as gone, and the next poll goes on as if nothing had been."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    handle = await ingest.loopback.fault(FaultPlan("GET", LIST, "answer", status=200, body=b"<html>", times=0))
    failed = (await ingest.poller.poll_once(full=True)).failed
    assert list(failed) == ["acme/widgets"]
    repository = await ingest.repository()
    assert (repository["poll_failures"], repository["readable"]) == (1, True)
    assert (await ingest.job(number))["state"] == "pending"
    await handle.drop()
    await ingest.poll(full=True)
    assert (await ingest.repository())["poll_error"] is None
    assert await rows.value(ingest.conn, "SELECT count(*) FROM job") == 1
