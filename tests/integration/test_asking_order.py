"""Who asked first is served first: what a poll finds is taken in by the time of each request, not as it is listed."""

from __future__ import annotations

import pytest

from tests.support import rows
from tests.support.forges import FaultPlan
from tests.support.herds import herd
from tests.support.ingest import GO, IMPLEMENT, PLAN, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.services import ordering
from tireless.store import look as looks

ASKED = (3, 1, 5, 2, 4)
"""Issues in the order in which they were asked for; a forge lists 5 first."""


async def asked(ingest: Ingest) -> None:
    """Five issues, asked for out of order; then somebody talks on the one that was asked for first."""
    await ingest.judge_strangers()
    for _ in ASKED:
        await ingest.stage.alice.create_issue(ingest.stage.path, "Paint it", "Blue, please.")
    await ingest.loopback.advance(90)
    for number in ASKED:
        await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.loopback.advance(10)
    await ingest.stage.bob.comment(ingest.stage.path, ASKED[0], "Soon?")


async def claimed(ingest: Ingest) -> list[int]:
    """The issues of all jobs there are, as runners get them."""
    return [(await ingest.claim()).number for _ in await ingest.jobs()]


async def test_what_one_poll_finds_is_claimed_in_the_order_of_the_requests(ingest: Ingest) -> None:
    """Also across pages, and however much is said on an issue since."""
    await ingest.poll()
    ingest.loopback.world.rules.page_limit = 2
    await asked(ingest)
    assert (await ingest.poll()).made == len(ASKED)
    assert await claimed(ingest) == list(ASKED)


async def test_a_full_scan_serves_them_in_that_order_too(ingest: Ingest) -> None:
    """A repository that is read from its beginning, as when it is watched for the first time."""
    ingest.loopback.world.rules.page_limit = 2
    await asked(ingest)
    assert (await ingest.poll(full=True)).made == len(ASKED)
    assert await claimed(ingest) == list(ASKED)


async def test_a_search_serves_them_in_that_order_too(ingest: Ingest) -> None:
    """Issues of several repositories on the pages of one search: each repository's in the order of its requests."""
    made = await herd(ingest)
    ingest.loopback.world.rules.page_limit = 2
    numbers = [await ingest.stage.alice.create_issue("acme/gears", "Paint it") for _ in range(4)]
    await ingest.loopback.advance(90)
    go = await ingest.stage.alice.create_label("acme/gears", GO, exclusive=False)
    mode = await ingest.stage.alice.create_label("acme/gears", IMPLEMENT, exclusive=True)
    order = [numbers[n] for n in (2, 0, 3, 1)]
    for number in order:
        await ingest.stage.alice.add_labels("acme/gears", number, go, mode)
        await made.ask("acme/cogs")
    await made.minute()
    assert "acme/gears" in await made.searched()
    claims = [await ingest.claim() for _ in await ingest.jobs()]
    assert [claim.number for claim in claims if claim.repo.name == "gears"] == order
    of_cogs = [claim.number for claim in claims if claim.repo.name == "cogs"]
    assert (of_cogs, len(of_cogs)) == (sorted(of_cogs), 4)


async def test_the_act_that_completed_a_request_counts(ingest: Ingest) -> None:
    """Opted in early and given a mode last, an issue has asked last; and a mode that is not ours says nothing."""
    await ingest.poll()
    early, late = await ingest.ask(GO), await ingest.ask()
    await ingest.ask(PLAN, GO, number=late)
    await ingest.ask(IMPLEMENT, number=early)
    await ingest.stage.bob.add_labels(ingest.stage.path, late, await ingest.stage.label("unrelated", exclusive=False))
    await ingest.poll()
    assert [job["number"] for job in await ingest.jobs()] == [late, early]


async def test_what_is_kept_back_is_bounded(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time here: the pages before are taken in when it is full, each such part in the order of its requests,
    and a timeline that is too long to be kept is read again."""
    monkeypatch.setattr(ordering, "MOST", 2)
    monkeypatch.setattr(ordering, "MOST_TEXT", 1)
    await ingest.poll()
    ingest.loopback.world.rules.page_limit = 2
    await asked(ingest)
    mark = ingest.loopback.last_request
    assert (await ingest.poll()).made == len(ASKED)
    assert [job["number"] for job in await ingest.jobs()] == [5, 4, 3, 2, 1]
    timelines = [one for one in ingest.loopback.requests(after=mark) if one.path.endswith("/timeline")]
    assert len(timelines) == 2 * len(ASKED)


async def test_pages_read_before_one_that_cannot_be_read_are_taken_in(ingest: Ingest) -> None:
    """A page that is nonsense for good starves none of those before it."""
    ingest.loopback.world.rules.page_limit = 2
    await asked(ingest)
    page = r"/issues\?state=all.*page=3"
    await ingest.loopback.fault(FaultPlan("GET", page, "answer", status=200, body=b"nonsense", times=0))
    assert list((await ingest.poller.poll_once()).failed) == ["acme/widgets"]
    assert [job["number"] for job in await ingest.jobs()] == [3, 5, 2, 4]
    assert (await ingest.repository())["newest_seen"] is None


async def test_issues_whose_timelines_fail_starve_no_other(ingest: Ingest) -> None:
    """Three in a row are an outage that ends the scan; what could be read before is taken in all the same."""
    await asked(ingest)
    await ingest.loopback.fault(FaultPlan("GET", "/issues/[345]/timeline", "answer", status=500, times=0))
    assert list((await ingest.poller.poll_once()).failed) == ["acme/widgets"]
    assert [job["number"] for job in await ingest.jobs()] == [1, 2]
    assert [look["number"] for look in await ingest.looks()] == [3, 4, 5]


async def test_looks_are_answered_in_the_order_in_which_they_were_written(ingest: Ingest) -> None:
    """As webhooks write them, one for each act: however the database hands them out."""
    await asked(ingest)
    for number in ASKED:
        await looks.write_look(ingest.conn, ingest.repository_id, number, why="webhook")
    await ingest.conn.execute("UPDATE repository SET poll_not_before = 'infinity'")
    await ingest.poller.tick()
    assert [job["number"] for job in await ingest.jobs()] == list(ASKED)
    assert await rows.value(ingest.conn, "SELECT count(*) FROM look") == 0
