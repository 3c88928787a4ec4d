"""An issue the forge says is blocked has a job that waits, and wakes when the last blocker is closed."""

from __future__ import annotations

from tests.support import rows
from tests.support.ingest import GO, IMPLEMENT, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.gates import UNREADABLE_BLOCKER
from tireless.domain.issue import IssueRef, RepoRef
from tireless.domain.labels import LabelScheme
from tireless.domain.outcome import Outcome
from tireless.store import inspect
from tireless.store.db import transaction
from tireless.store.intake import sync_repositories


async def block(ingest: Ingest, number: int, on: int, *, repo: RepoRef | None = None) -> None:
    """bob makes an issue wait for another."""
    at = repo or ingest.stage.repo
    body = {"owner": at.owner, "repo": at.name, "index": on}
    path = f"/repos/{ingest.stage.path}/issues/{number}/dependencies"
    await ingest.stage.bob.api("POST", path, body)


async def other(ingest: Ingest, *, watched: bool, private: bool = False) -> RepoRef:
    """Another repository of the organisation, with one issue; watched beside the first one, or not."""
    repo = RepoRef(ingest.forge.name, ingest.stage.repo.owner, "gears")
    await ingest.stage.alice.create_repository(repo.name, org=repo.owner, private=private)
    await ingest.stage.alice.create_issue(repo.path, "First this")
    if not private:
        await ingest.stage.alice.add_collaborator(repo.path, ingest.stage.bob.login)
    if watched:
        found = [await ingest.forge.repository(each) for each in (ingest.stage.repo, repo)]
        async with transaction(ingest.conn, "watching"):
            await sync_repositories(ingest.conn, ingest.forge.name, found, "config")
    return repo


async def waits(ingest: Ingest, number: int) -> tuple[object, object]:
    """State of the job and what it waits for."""
    job = (await ingest.jobs(number))[-1]
    return job["state"], job["waits_for"]


async def test_an_open_blocker_holds_the_job_and_its_end_wakes_it(ingest: Ingest) -> None:
    """Closed it is pending, opened again it waits again; explain names what it waits for."""
    stage = ingest.stage
    blocker = await stage.alice.create_issue(stage.path, "First this")
    number = await stage.alice.create_issue(stage.path, "Paint it")
    await block(ingest, number, blocker)
    await ingest.ask(GO, IMPLEMENT, number=number)
    assert (await ingest.poll()).made == 1
    assert await waits(ingest, number) == ("waiting", [f"acme/widgets#{blocker}"])
    told = await inspect.explain(ingest.conn, stage.path, number, scheme=LabelScheme())
    assert told.first is not None
    assert (told.first.gate.code, told.first.details) == ("waits_for", {"waits_for": [f"acme/widgets#{blocker}"]})
    assert f"`acme/widgets#{blocker}`" in told.first.sentence
    for act, then in (
        (stage.alice.close, ("pending", [])),
        (stage.alice.reopen, ("waiting", [f"acme/widgets#{blocker}"])),
        (stage.alice.close, ("pending", [])),
    ):
        await act(stage.path, blocker)
        await ingest.poll()
        assert await waits(ingest, number) == then
    assert await ingest.events((await ingest.job(number))["id"]) == ["enqueue", "wake", "wait", "wake"]
    assert await ingest.looks() == []


async def test_a_dependency_put_on_or_taken_off_later(ingest: Ingest) -> None:
    """A pending job begins to wait, and stops waiting when nobody wants it to; an issue never waits for itself."""
    stage = ingest.stage
    blocker = await stage.alice.create_issue(stage.path, "First this")
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    assert await waits(ingest, number) == ("pending", [])
    await block(ingest, number, number)
    await block(ingest, number, blocker)
    await ingest.poll()
    assert await waits(ingest, number) == ("waiting", [f"acme/widgets#{blocker}"])
    body = {"owner": stage.repo.owner, "repo": stage.repo.name, "index": blocker}
    await stage.bob.api("DELETE", f"/repos/{stage.path}/issues/{number}/dependencies", body)
    await ingest.poll()
    assert await waits(ingest, number) == ("pending", [])


async def test_a_blocker_in_another_watched_repository(ingest: Ingest) -> None:
    """Its own repository's poll sees it closed and wakes the job at once; a rename in between changes only the name."""
    stage = ingest.stage
    gears = await other(ingest, watched=True)
    number = await stage.alice.create_issue(stage.path, "Paint it")
    await block(ingest, number, 1, repo=gears)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    assert await waits(ingest, number) == ("waiting", ["acme/gears#1"])
    await stage.alice.edit_repository(gears.path, name="cogs")
    await stage.alice.close("acme/cogs", 1)
    await ingest.poll()
    assert await waits(ingest, number) == ("pending", [])
    assert await ingest.looks() == []


async def test_a_blocker_where_nobody_watches(ingest: Ingest) -> None:
    """It is read again every fifteen minutes while it is open, and no more after that."""
    stage = ingest.stage
    gears = await other(ingest, watched=False)
    number = await stage.alice.create_issue(stage.path, "Paint it")
    await block(ingest, number, 1, repo=gears)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    assert await waits(ingest, number) == ("waiting", ["acme/gears#1"])
    in_s = "SELECT extract(epoch FROM not_before - clock_timestamp())::int FROM look"
    assert 800 < int(str(await rows.value(ingest.conn, in_s))) <= 900
    await ingest.due()
    await ingest.poll()
    assert await waits(ingest, number) == ("waiting", ["acme/gears#1"])
    assert 800 < int(str(await rows.value(ingest.conn, in_s))) <= 900
    await stage.alice.close(gears.path, 1)
    await ingest.due()
    await ingest.poll()
    assert await waits(ingest, number) == ("pending", [])
    assert await ingest.looks() == []


async def test_a_pull_request_blocks_too(ingest: Ingest) -> None:
    """It is no issue of ours to poll: the issue that waits for it is read again until it is merged or closed."""
    stage = ingest.stage
    await stage.bob.commit(stage.path, "a.txt", "x", new_branch="work")
    pull = await stage.bob.create_pull(stage.path, "Work", head="work")
    number = await stage.alice.create_issue(stage.path, "Paint it")
    await block(ingest, number, pull)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    assert await waits(ingest, number) == ("waiting", [f"acme/widgets#{pull}"])
    await stage.alice.merge(stage.path, pull)
    await ingest.due()
    await ingest.poll()
    assert await waits(ingest, number) == ("pending", [])


async def test_a_blocker_the_bot_may_not_read(ingest: Ingest) -> None:
    """Nobody can tell whether it is closed: it is waited for, said so, and asked for again."""
    stage = ingest.stage
    secret = await other(ingest, watched=False, private=True)
    number = await stage.alice.create_issue(stage.path, "Paint it")
    body = {"owner": secret.owner, "repo": secret.name, "index": 1}
    await stage.alice.api("POST", f"/repos/{stage.path}/issues/{number}/dependencies", body)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    assert await waits(ingest, number) == ("waiting", [UNREADABLE_BLOCKER])
    assert [look["why"] for look in await ingest.looks()] == ["what it waits for is not watched"]


async def test_switched_off_dependencies_hold_nothing(ingest: Ingest) -> None:
    """404 is no wait and no error; what waited before is woken by the next whole scan."""
    stage = ingest.stage
    blocker = await stage.alice.create_issue(stage.path, "First this")
    number = await stage.alice.create_issue(stage.path, "Paint it")
    await block(ingest, number, blocker)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    tracker = {"enable_time_tracker": False, "enable_issue_dependencies": False}
    await stage.alice.edit_repository(stage.path, has_issues=True, internal_tracker=tracker)
    second = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll(full=True)
    assert await waits(ingest, number) == ("pending", [])
    assert await waits(ingest, second) == ("pending", [])
    assert await ingest.looks() == []


async def test_a_dependency_seen_while_it_runs_holds_it_when_it_comes_back(ingest: Ingest) -> None:
    """A running agent is not disturbed; the next attempt waits."""
    stage = ingest.stage
    blocker = await stage.alice.create_issue(stage.path, "First this")
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    claim = await ingest.claim()
    await block(ingest, number, blocker)
    await ingest.poll()
    assert (await ingest.job(number))["state"] == "claimed"
    await ingest.settle(claim, Outcome.SHUTDOWN)
    assert await waits(ingest, number) == ("waiting", [f"acme/widgets#{blocker}"])
    await stage.alice.close(stage.path, blocker)
    await ingest.poll()
    assert await waits(ingest, number) == ("pending", [])


async def test_a_deleted_blocker_blocks_nothing(ingest: Ingest) -> None:
    """The forge forgets the dependency with it: the next whole scan sees that."""
    stage = ingest.stage
    blocker = await stage.alice.create_issue(stage.path, "First this")
    number = await stage.alice.create_issue(stage.path, "Paint it")
    await block(ingest, number, blocker)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    await stage.alice.api("DELETE", f"/repos/{stage.path}/issues/{blocker}")
    assert await ingest.forge.dependencies(IssueRef(stage.repo, number)) == ()
    await ingest.poll(full=True)
    assert await waits(ingest, number) == ("pending", [])


async def test_an_idle_poll_asks_for_no_dependency(ingest: Ingest) -> None:
    """Issues that never had one are never asked about it; one that waits costs nothing while nothing moves."""
    stage = ingest.stage
    blocker = await stage.alice.create_issue(stage.path, "First this")
    plain = await ingest.ask(GO, IMPLEMENT)
    number = await stage.alice.create_issue(stage.path, "Paint it")
    await block(ingest, number, blocker)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    asked = [each.path for each in ingest.loopback.requests() if "dependencies" in each.path and each.method == "GET"]
    assert asked == [f"/api/v1/repos/acme/widgets/issues/{number}/dependencies"] * len(asked)
    assert 1 <= len(asked) <= 2
    assert await waits(ingest, plain) == ("pending", [])
    await rows.value(ingest.conn, "WITH u AS (UPDATE issue SET settled = true RETURNING 1) SELECT 1")
    before = ingest.loopback.last_request
    await ingest.poll()
    assert len(ingest.loopback.requests(after=before)) == 1
