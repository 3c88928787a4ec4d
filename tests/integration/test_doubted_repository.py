"""A repository that is not what it was: found out soon, whoever noticed; and no job of it is paid for in vain."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import rows
from tests.support.forges import FaultPlan
from tests.support.herds import Herd, herd
from tests.support.ingest import Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.store import inspect, polls
from tireless.store.look import write_look

LISTED_LONG_AGO = "UPDATE owner_poll SET listed_at = clock_timestamp() - interval '1 h'"
STAND = "SELECT readable, unreadable_reason, doubted_at FROM repository WHERE name = %(name)s AND tracked"


async def why_not_read(ingest: Ingest, name: str) -> str | None:
    """Why a repository cannot be read; None when it can."""
    [row] = await rows.rows(ingest.conn, STAND, name=name)
    assert row["readable"] == (row["unreadable_reason"] is None)
    return None if row["readable"] else str(row["unreadable_reason"])


async def listed(made: Herd) -> int:
    """Let the time pass after which owners' repositories are looked at; the requests of that minute."""
    await made.ingest.conn.execute(LISTED_LONG_AGO)
    return await made.minute()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"archived": True}, "it is archived"), ({"has_issues": False}, "its issues are switched off")],
    ids=["archived", "issues-off"],
)
async def test_behind_a_search_it_is_seen_to_be_set_aside(ingest: Ingest, change: dict[str, bool], said: str) -> None:
    """Within minutes, not with the next full scan; its job waits and says why, and goes on when it is mended."""
    made = await herd(ingest)
    number = await made.ask("acme/cogs")
    await made.minute()
    await ingest.stage.alice.edit_repository("acme/cogs", **change)
    await made.minute()
    assert await why_not_read(ingest, "cogs") is None  # the search does not show it
    await listed(made)
    assert said in str(await why_not_read(ingest, "cogs"))
    assert [(job["state"], job["reason"]) for job in await ingest.jobs(number)] == [("waiting", "cannot_tell")]
    await ingest.stage.alice.edit_repository("acme/cogs", **{key: not value for key, value in change.items()})
    await listed(made)
    assert await why_not_read(ingest, "cogs") is None
    assert [job["state"] for job in await ingest.jobs(number)] == ["pending"]


async def test_behind_a_search_it_is_seen_to_be_gone(ingest: Ingest) -> None:
    """Deleted: said within minutes. The others are served by the search as before."""
    made = await herd(ingest)
    await ingest.stage.alice.api("DELETE", "/repos/acme/pins")
    await listed(made)
    assert "404" in str(await why_not_read(ingest, "pins"))
    assert await made.searched() == sorted({*made.paths} - {"acme/pins"})


async def test_behind_a_search_it_is_seen_to_have_another_owner(ingest: Ingest) -> None:
    """Transferred: it keeps its history under its new name, and what is asked there is a job within minutes."""
    made = await herd(ingest)
    await ingest.stage.alice.api("POST", "/repos/acme/cogs/transfer", {"new_owner": "bob"})
    await listed(made)
    watched = {row.repo: row for row in await inspect.repository_rows(ingest.conn)}
    assert "bob/cogs" in watched
    assert "acme/cogs" not in watched
    number = await made.ask("bob/cogs")
    await made.minute()
    await made.minute()
    assert [job["state"] for job in await ingest.jobs(number)] == ["pending"]


async def test_a_bot_that_may_not_write_any_more(ingest: Ingest) -> None:
    """Its write access was taken away: nothing could be delivered, so nothing is run; given back, it goes on."""
    made = await herd(ingest)
    number = await made.ask("acme/cogs")
    await made.minute()
    await ingest.stage.alice.add_collaborator("acme/cogs", ingest.stage.bot.login, "read")
    await listed(made)
    assert "may not write" in str(await why_not_read(ingest, "cogs"))
    assert [(job["state"], job["reason"]) for job in await ingest.jobs(number)] == [("waiting", "cannot_tell")]
    await ingest.stage.alice.add_collaborator("acme/cogs", ingest.stage.bot.login, "write")
    await listed(made)
    assert [job["state"] for job in await ingest.jobs(number)] == ["pending"]


async def test_looking_costs_one_request_an_owner_every_five_minutes(ingest: Ingest) -> None:
    """Beside the search's own; and one more for whatever is not what it was, once."""
    made = await herd(ingest)
    assert [await made.minute() for _ in range(3)] == [2, 2, 2]
    assert await listed(made) == 2 + 2 * 2  # each list has a last page, which is empty
    assert [await made.minute() for _ in range(2)] == [2, 2]


async def test_a_list_that_is_not_shown_doubts_nobody(ingest: Ingest) -> None:
    """An error of the list says nothing about the repositories: none of them is asked what it is."""
    made = await herd(ingest)
    lists = await ingest.loopback.fault(FaultPlan("GET", "(orgs|users)/[^/]+/repos", "answer", status=500, times=0))
    before = ingest.loopback.last_request
    await listed(made)
    assert lists.fault.struck
    asked = [each.path for each in ingest.loopback.requests(after=before) if each.seq not in lists.fault.struck]
    assert [path for path in asked if not path.endswith("/issues/search")] == []
    assert await made.searched() == sorted(made.paths)


async def test_a_doubt_during_a_poll_outlives_it(ingest: Ingest) -> None:
    """Only a poll that asked what the repository is, after the doubt was written, is an answer to it."""
    made = await herd(ingest)
    [row] = await rows.rows(ingest.conn, "SELECT id FROM repository WHERE name = 'own'")
    await made.due("own")
    fault = await ingest.loopback.fault(FaultPlan("GET", "repos/bob/own/issues", "block"))
    poll = asyncio.create_task(made.poller.tick())
    await fault.reached()
    await polls.doubt(ingest.conn, [int(str(row["id"]))])
    await fault.release()
    await poll
    state = """SELECT doubted_at IS NOT NULL AS doubted, poll_not_before <= clock_timestamp() AS due
                 FROM repository WHERE name = 'own'"""
    assert await rows.rows(ingest.conn, state) == [{"doubted": True, "due": True}]
    await made.poller.tick()
    assert await rows.rows(ingest.conn, state) == [{"doubted": False, "due": False}]


async def test_who_rests_when_a_doubt_is_confirmed_says_so(ingest: Ingest) -> None:
    """A doubt makes its pending jobs wait; found to be archived, those that waited already say that, too."""
    made = await herd(ingest)
    number = await made.ask("acme/cogs")
    await made.minute()
    await ingest.conn.execute(
        "UPDATE job SET state = 'waiting', not_before = now() + interval '1 h', not_before_reason = 'backoff'"
    )
    await ingest.conn.execute(
        "UPDATE repository SET readable = false, unreadable_reason = 'x', doubted_at = now(), "
        "poll_not_before = '-infinity' WHERE name = 'cogs'"
    )
    await ingest.stage.alice.edit_repository("acme/cogs", archived=True)
    await made.minute()
    assert "it is archived" in str(await why_not_read(ingest, "cogs"))
    assert [(job["state"], job["reason"]) for job in await ingest.jobs(number)] == [("waiting", "cannot_tell")]


async def test_looks_of_what_is_set_aside_alarm_nobody(ingest: Ingest) -> None:
    """A look at an issue of an archived repository counts as none that nobody answers, and is answered all the same."""
    made = await herd(ingest)
    number = await made.ask("acme/cogs")
    await made.minute()
    await ingest.stage.alice.edit_repository("acme/cogs", archived=True)
    await listed(made)
    [row] = await rows.rows(ingest.conn, "SELECT id FROM repository WHERE name = 'cogs'")
    await write_look(ingest.conn, int(str(row["id"])), number, why="test")
    stats = await inspect.stats(ingest.conn)
    assert (stats.looks, stats.oldest_look_s) == (0, None)
    await made.minute()
    assert await rows.rows(ingest.conn, "SELECT number FROM look") == []
