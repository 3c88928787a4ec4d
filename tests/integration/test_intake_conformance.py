"""Conformance of intake: dependencies, the search of an owner's changes, teams; on the loopback forge and real ones."""

from __future__ import annotations

from dataclasses import replace

import pytest_asyncio

from tests.support import rows
from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.conformance import Server, other_repo
from tests.support.forges import LoopbackForge, Stage
from tests.support.ingest import GO, IMPLEMENT, RULES, Ingest
from tireless.domain.issue import RepoRef
from tireless.forge.gitea import GiteaForge
from tireless.services.poller import Poller
from tireless.store.db import Connection, Pool, transaction
from tireless.store.intake import sync_repositories


@pytest_asyncio.fixture
async def ingest(pool: Pool, conn: Connection, forge: GiteaForge, stage: Stage, server: Server) -> Ingest:
    """A watched repository of the server, and its poller; `loopback` is there only where the server is one."""
    made = Ingest(pool, conn, forge, stage, server.loopback or LoopbackForge())
    await made.watch()
    return made


async def _block(ingest: Ingest, number: int, repo: RepoRef, on: int) -> None:
    body = {"owner": repo.owner, "repo": repo.name, "index": on}
    await ingest.stage.alice.api("POST", f"/repos/{ingest.stage.path}/issues/{number}/dependencies", body)


async def _waits(ingest: Ingest, number: int) -> tuple[object, object]:
    [job] = await ingest.jobs(number)
    return job["state"], job["waits_for"]


async def test_blockers_hold_and_free_a_job(ingest: Ingest) -> None:
    """In the same repository and in one nobody watches; put on before and after the label, closed, switched off."""
    stage = ingest.stage
    other = other_repo(stage.repo, f"{stage.repo.name}-gears")
    await stage.alice.create_repository(other.name, org=other.owner)
    await stage.alice.create_issue(other.path, "First this")
    blocker = await stage.alice.create_issue(stage.path, "Then this")
    number = await stage.alice.create_issue(stage.path, "Paint it")
    await _block(ingest, number, stage.repo, blocker)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    assert await _waits(ingest, number) == ("waiting", [f"{stage.path}#{blocker}"])
    await _block(ingest, number, other, 1)
    await ingest.poll()
    both = sorted([f"{stage.path}#{blocker}", f"{other.path}#1"], key=lambda each: int(each.rpartition("#")[2]))
    assert await _waits(ingest, number) == ("waiting", both)
    await stage.alice.close(stage.path, blocker)
    await ingest.poll()
    assert await _waits(ingest, number) == ("waiting", [f"{other.path}#1"])
    await stage.alice.close(other.path, 1)
    await ingest.due()
    await ingest.poll()
    assert await _waits(ingest, number) == ("pending", [])
    assert await ingest.looks() == []
    await stage.alice.reopen(stage.path, blocker)
    await ingest.poll()
    assert await _waits(ingest, number) == ("waiting", [f"{stage.path}#{blocker}"])
    tracker = {
        "enable_time_tracker": False,
        "allow_only_contributors_to_track_time": False,
        "enable_issue_dependencies": False,
    }
    await stage.alice.edit_repository(stage.path, has_issues=True, internal_tracker=tracker)
    await ingest.poll(full=True)
    assert await _waits(ingest, number) == ("pending", [])
    assert await rows.value(ingest.conn, "SELECT count(*) FROM dependency") == 0


async def test_the_search_of_an_owner_stands_in_for_polls(ingest: Ingest, server: Server) -> None:
    """Both repositories of an owner, one of them private, come to be seen by one request; a label put on there too."""
    stage = ingest.stage
    other = other_repo(stage.repo, f"{stage.repo.name}-gears")
    await stage.alice.create_repository(other.name, org=other.owner, private=True)
    for person in (stage.bot, stage.bob):
        await stage.alice.add_collaborator(other.path, person.login)
    for path in (stage.path, other.path):
        await stage.alice.create_issue(path, "First")
    found = [await ingest.forge.repository(each) for each in (stage.repo, other)]
    async with transaction(ingest.conn, "watching"):
        await sync_repositories(ingest.conn, ingest.forge.name, found, "config")
    forges = {ingest.forge.name: ingest.forge}
    poller = Poller(ingest.pool, forges, rules=RULES, jitter=lambda: 0.5, overlap_s=0.0)

    async def minute() -> None:
        for table in ("repository", "owner_poll"):
            await ingest.conn.execute(
                f"UPDATE {table} SET poll_not_before = poll_not_before - interval '66 s'"  # noqa: S608  one of two names
                " WHERE isfinite(poll_not_before)"
            )
        while await poller.tick():
            pass

    for _ in range(4):
        await minute()
        await ingest.conn.execute("UPDATE issue SET settled = true")
    assert await rows.value(ingest.conn, "SELECT count(*) FROM repository WHERE searched") == 2
    for _ in range(2):
        before = ingest.forge.requests
        await minute()
        assert ingest.forge.requests == before + 1
    await server.next_second(stage)  # this poller looks back no further than the newest second it has seen
    number = await stage.alice.create_issue(other.path, "Paint it")
    for name, exclusive in ((GO, False), (IMPLEMENT, True)):
        label = await stage.alice.create_label(other.path, name, exclusive=exclusive)
        await stage.bob.add_labels(other.path, number, label)
    await minute()
    assert [(job["number"], job["state"]) for job in await ingest.jobs()] == [(number, "pending")]
    assert await rows.value(ingest.conn, "SELECT count(*) FROM repository WHERE searched") == 2


async def test_members_of_a_team_may_ask_and_nobody_else(ingest: Ingest) -> None:
    """As the forge tells the bot; where it does not tell, nothing is decided, and a look asks again."""
    stage = ingest.stage
    org, name = stage.repo.owner, f"askers-{stage.repo.name}"
    units = {"repo.issues": "write", "repo.code": "read"}
    team = await stage.alice.create_team(org, name, units=units, members=[stage.bob.login])
    rules = replace(RULES, policy=replace(RULES.policy, who_may_ask=f"team:{org}/{name}"))
    ingest.poller = ingest.another(rules)
    first = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    assert await ingest.code(first) == "cannot_tell"
    assert "who is in the team" in str((await ingest.issue(first))["triage_details"])
    await stage.alice.api("PUT", f"/teams/{team}/members/{stage.bot.login}")
    await ingest.due()
    await ingest.poll()
    assert [job["number"] for job in await ingest.jobs()] == [first]
    second = await stage.alice.create_issue(stage.path, "By one who is not in it")
    for label in (GO, IMPLEMENT):
        await stage.alice.add_labels(stage.path, second, await ingest.label(label))
    await ingest.poll()
    assert await ingest.code(second) == "stranger"
    assert "not_in_team" in str((await ingest.issue(second))["triage_details"])
    await stage.alice.api("DELETE", f"/teams/{team}/members/{stage.bot.login}")
