"""Which repositories are watched: by name, by owner, by topic; and why one is not read, said where people look."""

from __future__ import annotations

import asyncio

from tests.support import rows
from tests.support.forges import FaultPlan
from tests.support.ingest import GO, IMPLEMENT, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.issue import RepoRef
from tireless.services.selecting import Owned
from tireless.services.tracker import OWNERS_S, Tracker
from tireless.store.forges import unfound_rows
from tireless.store.limits import Limits


class Watch:
    """A tracker with a clock of its own."""

    def __init__(self, ingest: Ingest, *names: str, owners: tuple[str, ...] = (), topics: tuple[str, ...] = ()) -> None:
        self.ingest = ingest
        self.now = 0.0
        refs = [RepoRef(ingest.forge.name, *name.split("/")) for name in names]
        owned = [Owned(ingest.forge.name, owner, topics) for owner in owners]
        forges = {ingest.forge.name: ingest.forge}
        self.tracker = Tracker(ingest.pool, forges, refs, owners=owned, require_opt_in=True, clock=lambda: self.now)

    async def __call__(self, *, later: float = 0.0) -> list[str]:
        """Let time pass, tick, and say what is watched."""
        self.now += later
        assert not await self.tracker.tick()
        query = "SELECT owner || '/' || name AS path FROM repository WHERE tracked ORDER BY 1"
        return [str(row["path"]) for row in await rows.rows(self.ingest.conn, query)]


async def make(ingest: Ingest, name: str, *, private: bool = False) -> str:
    """Another repository of the organisation."""
    await ingest.stage.alice.create_repository(name, org="acme", private=private)
    return f"acme/{name}"


async def reasons(ingest: Ingest) -> dict[str, object]:
    """Why repositories cannot be read."""
    query = "SELECT owner || '/' || name AS path, unreadable_reason FROM repository WHERE tracked AND NOT readable"
    return {str(row["path"]): row["unreadable_reason"] for row in await rows.rows(ingest.conn, query)}


async def test_all_repositories_of_an_owner(ingest: Ingest) -> None:
    """Those the bot sees; a new one within the hour, and not sooner; what it may not see is not watched."""
    await make(ingest, "gears")
    await make(ingest, "secret", private=True)
    watch = Watch(ingest, owners=("ACME",))
    assert await watch() == ["acme/gears", "acme/widgets"]
    await make(ingest, "cogs")
    before = ingest.loopback.last_request
    assert await watch(later=OWNERS_S - 1) == ["acme/gears", "acme/widgets"]
    assert ingest.loopback.requests(after=before) == []
    assert await watch(later=2) == ["acme/cogs", "acme/gears", "acme/widgets"]
    await ingest.poller.poll_once()
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    assert (await ingest.job(number))["state"] == "pending"


async def test_a_users_repositories_and_one_by_name(ingest: Ingest) -> None:
    """Names and owners add up; one that is named by both is watched once."""
    await ingest.stage.bob.create_repository("own")
    await make(ingest, "gears")
    assert await Watch(ingest, "acme/widgets", "bob/own", owners=("bob",))() == ["acme/widgets", "bob/own"]


async def test_only_those_with_a_topic(ingest: Ingest) -> None:
    """One of the topics is enough; one that loses it is not watched any more, and its jobs wait."""
    gears, cogs = await make(ingest, "gears"), await make(ingest, "cogs")
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    for path, topic in ((gears, "agents"), (ingest.stage.path, "robots"), (cogs, "other")):
        await ingest.stage.alice.api("PUT", f"/repos/{path}/topics", {"topics": [topic]})
    watch = Watch(ingest, owners=("acme",), topics=("agents", "robots"))
    assert await watch() == ["acme/gears", "acme/widgets"]
    await ingest.stage.alice.api("PUT", f"/repos/{ingest.stage.path}/topics", {"topics": []})
    assert await watch(later=OWNERS_S + 1) == ["acme/gears"]
    assert (await ingest.job(number))["reason"] == "untracked"


async def test_what_is_not_there_is_told_and_drops_nothing(ingest: Ingest) -> None:
    """A misspelt name and owner, each with its reason; once they are there, they are watched and nothing is told."""
    watch = Watch(ingest, "acme/widgets", "acme/nope", owners=("nobody-here",))
    assert await watch() == ["acme/widgets"]
    told = {each.repo: each.reason for each in await unfound_rows(ingest.conn)}
    assert set(told) == {"acme/nope", "nobody-here/*"}
    assert "check the name" in told["acme/nope"]
    assert "no user or organisation nobody-here" in told["nobody-here/*"]
    await make(ingest, "nope")
    await ingest.stage.alice.create_org("nobody-here")
    assert await watch(later=1000) == ["acme/nope", "acme/widgets"]
    assert await unfound_rows(ingest.conn) == []


async def test_a_torn_list_drops_nothing(ingest: Ingest) -> None:
    """An empty answer, or none at all, is no word that a repository is gone: each is asked for by its id."""
    await make(ingest, "gears")
    watch = Watch(ingest, owners=("acme",))
    both = await watch()
    fault = await ingest.loopback.fault(FaultPlan("GET", "/orgs/acme/repos", "answer", status=200, body=b"[]", times=0))
    assert await watch(later=OWNERS_S + 1) == both
    await fault.drop()
    fault = await ingest.loopback.fault(FaultPlan("GET", "/orgs/acme/repos", "answer", status=500, times=0))
    assert await watch(later=OWNERS_S + 1) == both
    await fault.drop()
    await ingest.loopback.fault(FaultPlan("GET", "/orgs/acme/repos", "answer", status=403))
    assert await watch(later=OWNERS_S + 1) == both


async def test_renamed_moved_deleted_and_made_again(ingest: Ingest) -> None:
    """A rename goes on with its jobs; given to another owner it is dropped; deleted says so; made again it is new."""
    stage = ingest.stage
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    gears = await make(ingest, "gears")
    watch = Watch(ingest, owners=("acme",))
    assert await watch() == ["acme/gears", "acme/widgets"]
    await ingest.poll()
    await stage.alice.edit_repository(stage.path, name="gadgets")
    assert await watch(later=OWNERS_S + 1) == ["acme/gadgets", "acme/gears"]
    await ingest.poll()
    assert (await ingest.job(number))["state"] == "pending"
    await stage.alice.create_org("other")
    await stage.alice.api("POST", f"/repos/{gears}/transfer", {"new_owner": "other"})
    assert await watch(later=OWNERS_S + 1) == ["acme/gadgets"]
    await stage.alice.api("DELETE", "/repos/acme/gadgets")
    assert await watch(later=OWNERS_S + 1) == ["acme/gadgets"]
    await ingest.poller.poll_once()
    assert "not there, or this token may not see it" in str((await reasons(ingest))["acme/gadgets"])
    assert (await ingest.job(number))["reason"] == "cannot_tell"
    await stage.alice.add_collaborator(await make(ingest, "gadgets"), stage.bot.login)
    await stage.alice.create_issue("acme/gadgets", "Another one")
    assert await watch(later=OWNERS_S + 1) == ["acme/gadgets"]
    await ingest.poller.poll_once()
    found = "SELECT i.number, r.tracked FROM issue i JOIN repository r ON r.id = i.repository_id ORDER BY i.id"
    assert await rows.rows(ingest.conn, found) == [{"number": number, "tracked": False}, {"number": 1, "tracked": True}]
    assert (await ingest.job(number))["reason"] == "untracked"


async def test_repositories_in_which_nothing_can_be_done(ingest: Ingest) -> None:
    """Archived, issues off, a tracker elsewhere: each says so, is asked for once an hour, and goes on when mended."""
    stage = ingest.stage
    number = await ingest.ask(GO, IMPLEMENT)
    off, elsewhere = await make(ingest, "off"), await make(ingest, "elsewhere")
    tracker = {"external_tracker_url": "http://tracker.invalid", "external_tracker_format": "http://t.invalid/{index}"}
    await stage.alice.edit_repository(off, has_issues=False)
    await stage.alice.edit_repository(elsewhere, has_issues=True, external_tracker=tracker)
    await Watch(ingest, owners=("acme",))()
    done = await ingest.poller.poll_once()
    assert (done.failed, (await ingest.job(number))["state"]) == ({}, "pending")
    await stage.alice.edit_repository(stage.path, archived=True)
    await ingest.poller.poll_once(full=True)
    found = await reasons(ingest)
    assert sorted(found) == ["acme/elsewhere", "acme/off", "acme/widgets"]
    for path, words in ((stage.path, "archived"), (off, "issues are switched off"), (elsewhere, "external issue")):
        assert words in str(found[path])
    assert (await ingest.job(number))["reason"] == "cannot_tell"
    due = "SELECT min(extract(epoch FROM poll_not_before - clock_timestamp()))::int FROM repository WHERE tracked"
    assert int(str(await rows.value(ingest.conn, due))) > 3000
    await stage.alice.edit_repository(stage.path, archived=False)
    await ingest.poller.poll_once()
    assert sorted(await reasons(ingest)) == ["acme/elsewhere", "acme/off"]
    assert (await ingest.job(number))["state"] == "pending"


async def test_configured_limits_wait_for_no_forge(ingest: Ingest) -> None:
    """A forge that is slow to say which repositories there are holds up no limit of those that are watched."""
    blocked = await ingest.loopback.fault(FaultPlan("GET", "repos/acme/widgets$", "block"))
    forges = {ingest.forge.name: ingest.forge}
    limits = Limits(max_running=1)
    tracker = Tracker(ingest.pool, forges, [ingest.stage.repo], require_opt_in=True, limits=limits)
    ticking = asyncio.create_task(tracker.tick())
    await blocked.reached()
    assert (await ingest.repository())["max_running"] == 1
    await blocked.release()
    assert not await ticking
