"""One repository answers 500, one hangs, one tells nonsense: the others go on, and none of it is believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support import rows
from tests.support.forges import FaultPlan, client
from tests.support.ingest import GO, IMPLEMENT, RULES, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.app.serving import POLLERS
from tireless.cli.repos import state
from tireless.services.poller import Poller
from tireless.store import inspect
from tireless.store.db import transaction
from tireless.store.intake import sync_repositories

JSON = {"Content-Type": "application/json", "X-Total-Count": "3"}
GARBAGE = {
    "html": b"<html><body>Sign in</body></html>",
    "cut": b'[{"id": 1, "number": 1, "title": "Pai',
    "null": b"null",
    "an object": b'{"message": "something else"}',
    "a text": b'"soon"',
    "a number": b"42",
    "nothing": b"",
    "numbers": b"[1, 2, 3]",
    "objects without a number": b"[{}, {}, {}]",
}


async def add(ingest: Ingest, *names: str) -> None:
    """More watched repositories of the same organisation, each with an issue that asks."""
    stage = ingest.stage
    for name in names:
        path = f"acme/{name}"
        await stage.alice.create_repository(name, org="acme")
        for person in (stage.bob, stage.bot):
            await stage.alice.add_collaborator(path, person.login)
        found = await ingest.forge.repository(replace(stage.repo, name=name))
        async with transaction(ingest.conn, "watching"):
            await sync_repositories(ingest.conn, ingest.forge.name, [found], "operator")
        number = await stage.alice.create_issue(path, "Paint it", "Blue, please.")
        for label in (GO, IMPLEMENT):
            await stage.bob.add_labels(path, number, await stage.alice.create_label(path, label))


async def repositories(ingest: Ingest) -> dict[str, inspect.RepositoryRow]:
    """What `tireless repos ls` says of each, by its name."""
    return {row.repo.partition("/")[2]: row for row in await inspect.repository_rows(ingest.conn)}


async def made(ingest: Ingest) -> set[object]:
    """The names of the repositories that have a job."""
    found = await rows.rows(ingest.conn, "SELECT r.name FROM job j JOIN repository r ON r.id = j.repository_id")
    return {row["name"] for row in found}


async def loop(poller: Poller) -> None:
    """One of the loops `serve` has: ticks until nothing is due."""
    while await poller.tick():
        pass


@pytest.fixture
async def impatient(ingest: Ingest) -> AsyncIterator[Poller]:
    """A poller whose forge is given a second and a half for an answer, three times."""
    forge = client(ingest.stage.url, ingest.stage.bot.token, timeout_s=1.5)
    yield Poller(ingest.pool, {forge.name: forge}, rules=RULES, jitter=lambda: 0.5)
    await forge.aclose()


async def test_the_others_complete_the_round_while_one_hangs_one_fails_and_one_tells_nonsense(ingest: Ingest) -> None:
    """Loops as many as `serve` has: all but one come to the end of what is due while the last still hangs."""
    await add(ingest, "hangs", "fails", "garbles", *(f"good{n}" for n in range(4)))
    hanging = await ingest.loopback.fault(FaultPlan("GET", r"/acme/hangs/issues\?", "block"))
    await ingest.loopback.fault(FaultPlan("GET", "/acme/fails/issues", "answer", status=500, times=0))
    nonsense = FaultPlan("GET", "/acme/garbles/issues", "answer", status=200, body=GARBAGE["html"], times=0)
    await ingest.loopback.fault(nonsense)
    loops = [asyncio.create_task(loop(ingest.poller)) for _ in range(POLLERS)]
    await hanging.reached()
    pending = set(loops)
    while len(pending) > 1:
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    [last] = pending
    assert not last.done()
    assert await made(ingest) == {f"good{n}" for n in range(4)}
    found = await repositories(ingest)
    polled = {name for name, row in found.items() if row.full_scan_at is not None}
    assert polled == {"widgets", *(f"good{n}" for n in range(4))}
    assert {name for name, row in found.items() if row.poll_failures} == {"fails", "garbles"}
    assert "500" in state(found["fails"])
    assert "not JSON" in state(found["garbles"])
    assert all(row.readable for row in found.values())
    await hanging.release()
    await last
    assert await made(ingest) == {"hangs", *(f"good{n}" for n in range(4))}


async def test_a_repository_that_never_answers_does_not_make_the_forge_unreachable(
    ingest: Ingest, impatient: Poller
) -> None:
    """Others answered meanwhile: it alone is left alone for a while, and what is due next is polled at once."""
    await add(ingest, "hangs", "good")
    hanging = await ingest.loopback.fault(FaultPlan("GET", r"/acme/hangs/issues\?", "block", times=0))
    await asyncio.gather(*(loop(impatient) for _ in range(POLLERS)))
    found = await repositories(ingest)
    assert found["hangs"].poll_failures == 1
    assert "did not answer" in state(found["hangs"])
    assert await made(ingest) == {"good"}
    await rows.value(ingest.conn, "UPDATE repository SET poll_not_before = '-infinity' WHERE name = 'good' RETURNING 1")
    before = ingest.loopback.last_request
    assert await impatient.tick()
    assert any("/acme/good/" in each.path for each in ingest.loopback.requests(after=before))
    await hanging.drop()


@pytest.mark.parametrize("name", ["widgets", "gadgets"])
async def test_looks_at_other_repositories_are_answered_while_one_hangs(ingest: Ingest, name: str) -> None:
    """Taken in one go, answered beside each other: an issue that hangs holds up none of another repository."""
    await ingest.ask(GO, IMPLEMENT)
    await add(ingest, "gadgets")
    [other] = {"widgets", "gadgets"} - {name}
    await ingest.conn.execute("UPDATE repository SET poll_not_before = 'infinity'")
    await ingest.conn.execute("INSERT INTO look (repository_id, number, why) SELECT id, 1, 'test' FROM repository")
    await ingest.conn.execute("UPDATE look SET not_before = '-infinity'")
    hanging = await ingest.loopback.fault(FaultPlan("GET", f"/acme/{name}/issues/1$", "block"))
    answered = await ingest.loopback.fault(FaultPlan("GET", f"/acme/{other}/issues/1/timeline", "call", when="after"))
    tick = asyncio.create_task(ingest.poller.tick())
    await hanging.reached()
    await answered.reached()
    assert not tick.done()
    await hanging.release()
    await tick
    assert await made(ingest) == {name, other}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
async def test_a_list_that_is_nonsense_sets_the_repository_aside_with_its_error(ingest: Ingest, body: bytes) -> None:
    """Shown by `repos ls`, tried again later and later, never read as gone: its job stays, its cursor stays."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    before = await ingest.repository()
    handle = await ingest.loopback.fault(
        FaultPlan("GET", r"/widgets/issues\?", "answer", status=200, body=body, headers=JSON, times=0)
    )
    waits = []
    for failures in (1, 2, 3):
        assert list((await ingest.poller.poll_once(full=True)).failed) == ["acme/widgets"]
        after = await ingest.repository()
        assert (after["poll_failures"], after["readable"]) == (failures, True)
        assert [after[key] for key in ("since", "newest_seen", "full_scan_at")] == [
            before[key] for key in ("since", "newest_seen", "full_scan_at")
        ]
        told = state((await repositories(ingest))["widgets"])
        assert told.startswith(f"polls failed {failures} times: ")
        assert "issues" in told
        assert "\n" not in told
        waits.append(
            await rows.value(
                ingest.conn, "SELECT extract(epoch FROM poll_not_before - clock_timestamp())::int FROM repository"
            )
        )
    assert waits == sorted(set(waits), key=lambda wait: int(str(wait)))
    assert (await ingest.job(number))["state"] == "pending"
    assert await ingest.looks() == []
    await handle.drop()
    await ingest.poll()
    assert state((await repositories(ingest))["widgets"]) == "fine"


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
async def test_an_issue_or_a_repository_that_is_nonsense_is_not_gone(ingest: Ingest, body: bytes) -> None:
    """Asked by a look, and by id: the look waits with its error, the job stays."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await ingest.conn.execute(
        "INSERT INTO look (repository_id, number, why) VALUES (%s, %s, 'test')", [ingest.repository_id, number]
    )
    for path in (f"/issues/{number}$", r"/repositories/\d+$"):
        await ingest.loopback.fault(FaultPlan("GET", path, "answer", status=200, body=body, headers=JSON, times=0))
    for failures in (1, 2):
        await ingest.due()
        await ingest.conn.execute("UPDATE repository SET poll_not_before = 'infinity'")
        await ingest.poller.tick()
        [look] = await ingest.looks()
        assert look["failures"] == failures
        assert str(number) in str(look["error"])
    assert (await ingest.issue(number))["gone_since"] is None
    assert (await ingest.job(number))["state"] == "pending"
    assert (await ingest.repository())["readable"] is True
