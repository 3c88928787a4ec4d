"""The loopback forge as a tool: requests recorded, faults held, the clock moved, run as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import FaultPlan, LoopbackForge, Stage, set_stage
from tireless.domain.issue import IssueRef
from tireless.errors import ForgeRejected, ForgeUnavailable
from tireless.forge.base import NewPull
from tireless.forge.gitea import GiteaForge
from tireless.forge.person import Person


async def test_every_request_is_recorded(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """Method, path, query, who, status, the body's beginning, in order; the admin's door is not among them."""
    number = await stage.alice.create_issue(stage.path, "Paint it")
    before = loopback.last_request
    await forge.issues(stage.repo, page=1)
    await forge.write_comment(stage.repo, number, "hello")
    async with httpx.AsyncClient(trust_env=False) as http:
        await http.get(f"{stage.url}/_loopback/state")
    listed, written = loopback.requests(after=before)
    assert (listed.method, listed.path, listed.status) == ("GET", f"/api/v1/repos/{stage.path}/issues", 200)
    assert "state=all" in listed.query
    assert (written.login, written.status, json.loads(written.body)) == (stage.bot.login, 201, {"body": "hello"})
    assert written.seq == listed.seq + 1


async def test_the_clock_is_the_tests(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """Moved on, frozen and put back: every stamp and the Date header follow."""
    await loopback.call(lambda: loopback.world.clock.freeze(1_800_000_000))
    first = await forge.create_issue(stage.repo, title="a", body="", label_ids=[])
    await loopback.advance(3600)
    second = await forge.create_issue(stage.repo, title="b", body="", label_ids=[])
    assert first.created_at.timestamp() == 1_800_000_000
    assert second.created_at.timestamp() == 1_800_003_600
    date = (await forge.issues(stage.repo, page=1)).server_date
    assert date is not None
    assert date.timestamp() == 1_800_003_600
    await loopback.advance(-7200)
    await forge.set_label(stage.repo, first.number, await stage.label("x"), on=True)
    assert (await forge.issue(stage.repo, first.number)).updated_at.timestamp() == 1_799_996_400


async def test_a_block_before_the_effect(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """Held at the door: nothing has happened; released: it happens."""
    fault = await loopback.fault(FaultPlan("POST", r"/issues$", "block"))
    creating = asyncio.create_task(forge.create_issue(stage.repo, title="a", body="", label_ids=[]))
    await fault.reached()
    assert (await forge.issues(stage.repo, page=1)).rows == 0
    await fault.release()
    assert (await creating).number == 1


async def test_who_hangs_up_at_a_block_before_was_never_there(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge
) -> None:
    """A client killed while its request is held at the door has had no effect, also after the release."""
    fault = await loopback.fault(FaultPlan("POST", r"/issues$", "block"))
    short = GiteaForge(name="short", url=stage.url, token=stage.bot.token, timeout_s=1.0)
    creating = asyncio.create_task(short.create_issue(stage.repo, title="a", body="", label_ids=[]))
    await fault.reached()
    with pytest.raises(ForgeUnavailable):
        await creating
    await short.aclose()
    await fault.release()
    assert (await forge.issues(stage.repo, page=1)).rows == 0


async def test_a_block_after_the_effect(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """The pull request exists while its maker still waits for the answer."""
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    fault = await loopback.fault(FaultPlan("POST", r"/pulls$", "block", when="after"))
    creating = asyncio.create_task(forge.create_pull(stage.repo, NewPull("x", "", "work", "main")))
    await fault.reached()
    (made,) = await forge.pulls(stage.repo, head="work")
    assert not creating.done()
    await fault.release()
    assert (await creating).number == made.number


async def test_the_second_request_of_one_login(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """A fault can wait for the n-th request of one user and strike only so often."""
    plan = FaultPlan("GET", r"/issues\?", "answer", nth=2, times=1, login=stage.bot.login, status=418)
    fault = await loopback.fault(plan)
    before = loopback.last_request
    await stage.alice.issues(stage.path)
    await forge.issues(stage.repo, page=1)
    with pytest.raises(ForgeRejected, match="418"):
        await forge.issues(stage.repo, page=1)
    await forge.issues(stage.repo, page=1)
    mine = [each.status for each in loopback.requests(after=before) if each.login == stage.bot.login]
    assert mine == [200, 418, 200]
    assert (fault.fault.matched, fault.fault.applied) == (3, 1)


async def test_a_callback_acts_in_between(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """Called on the forge's loop between labels and timeline: what a person does in a race, exactly there."""
    number = await stage.alice.create_issue(stage.path, "Paint it")
    seen: list[str] = []
    await loopback.hook("GET", r"/timeline$", lambda record: seen.append(record.login), when="before")
    await forge.timeline(stage.repo, number)
    await forge.issue(stage.repo, number)
    await forge.timeline(stage.repo, number)
    assert seen == [stage.bot.login] * 2


async def test_pushes_of_one_repository_do_not_mix(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, tmp_path: Path
) -> None:
    """Ten pushes at once to ten branches: all there, each pull request at its own commit."""
    url = stage.url.replace("://", f"://bot:{stage.bot.token}@")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
    remote = f"{url}/{stage.path}.git"

    async def push(n: int) -> str:
        tree = tmp_path / f"tree{n}"
        script = f"clone -q {remote} {tree}", "commit -q --allow-empty -m work", f"push -q origin HEAD:refs/heads/w{n}"
        for step, args in enumerate(script):
            where = [] if step == 0 else ["-C", str(tree)]
            done = await asyncio.create_subprocess_exec(*git, *where, *args.split(), cwd=tmp_path)
            assert await asyncio.wait_for(done.wait(), 90) == 0
        return subprocess.run([*git, "-C", tree, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()

    heads = await asyncio.gather(*(push(n) for n in range(10)))
    assert [await forge.branch_head(stage.repo, f"w{n}") for n in range(10)] == list(heads)


@asynccontextmanager
async def _process(*args: str, tmp: Path) -> AsyncIterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """`python -m tireless.loopback`: the process, its temporary files below `tmp`, and what it said first."""
    command = [sys.executable, "-m", "tireless.loopback", "--with-stdin", *args]
    env = {**os.environ, "TMPDIR": str(tmp)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process, json.loads(await asyncio.to_thread(process.stdout.readline))
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    """It says where it is, serves the same forge, is steered over HTTP, and ends with its standard input."""
    git_dir = tmp_path / "git"
    git_dir.mkdir()
    async with _process("--git-dir", str(git_dir), "--page-limit", "7", tmp=tmp_path) as (process, said):
        site_admin = Person(url=said["url"], login=said["login"], token=said["token"], password=said["password"])
        async with site_admin:
            stage = await set_stage(site_admin)
        forge = GiteaForge(name="forge", url=said["url"], token=stage.bot.token)
        assert (await forge.about()).capabilities.page_limit == 7
        async with httpx.AsyncClient(base_url=f"{said['url']}/_loopback", trust_env=False) as door:
            await _steer(door, stage, forge)
        await forge.aclose()
        await stage.close()
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.to_thread(process.wait, 90) == 0
    assert any(git_dir.iterdir())


async def _steer(door: httpx.AsyncClient, stage: Stage, forge: GiteaForge) -> None:
    """A fault set, reached, seen and released over HTTP; requests, clock, rules, users and state."""
    plan = {"method": "POST", "path": "/issues$", "do": "block", "when": "after"}
    fault = (await door.post("/faults", json=plan)).json()["id"]
    creating = asyncio.create_task(forge.create_issue(stage.repo, title="Paint it", body="", label_ids=[]))
    assert (await door.get(f"/faults/{fault}", params={"wait": 90}, timeout=100)).json()["reached"]
    assert not creating.done()
    assert (await door.post(f"/faults/{fault}/release")).json()["released"]
    assert (await creating).number == 1
    assert (await door.get("/faults/99")).status_code == 404
    assert (await door.post("/faults", json={"path": "(", "do": "block"})).status_code == 422
    assert (await door.post("/faults", json={"path": "x", "do": "explode"})).status_code == 422

    rows: list[dict[str, Any]] = (await door.get("/requests")).json()
    assert [each["path"] for each in rows][-1] == f"/api/v1/repos/{stage.path}/issues"
    assert (await door.get("/requests", params={"after": rows[-1]["seq"]})).json() == []

    now = (await door.post("/clock", json={"advance": 100})).json()
    assert now["offset"] == 100
    assert (await door.post("/clock", json={"freeze": 1_800_000_000})).json()["now"] == 1_800_000_000
    await forge.close(IssueRef(stage.repo, 1))
    assert (await forge.issue(stage.repo, 1)).updated_at.timestamp() == 1_800_000_000
    assert not (await door.post("/clock", json={"freeze": False})).json()["frozen"]

    assert (await door.post("/rules", json={"no_such_rule": 1})).status_code == 422
    assert (await door.post("/rules", json={"page_limit": 9})).json()["page_limit"] == 9
    narrow = {"login": "carol", "token": "carols", "scopes": ["read:issue"]}
    assert (await door.post("/users", json=narrow)).json()["token"] == "carols"
    carol = GiteaForge(name="carol", url=stage.url, token="carols")
    assert (await carol.about()).login is None
    await carol.aclose()

    state = (await door.get("/state")).json()
    (issue,) = state["repositories"][stage.path]["issues"]
    assert (issue["title"], issue["state"], issue["user"]["login"]) == ("Paint it", "closed", stage.bot.login)
    assert [each["type"] for each in issue["timeline"]] == ["close"]
    assert list(state["repositories"][stage.path]["branches"]) == ["main"]


async def test_a_signal_ends_it_and_its_directory(tmp_path: Path) -> None:
    """SIGTERM: it ends by itself, and its temporary directory is gone."""
    async with _process(tmp=tmp_path) as (process, said):
        assert list(tmp_path.glob("tireless-loopback-*")) != []
        assert said["url"].startswith("http://127.0.0.1:")
        os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 90) == 0
        assert list(tmp_path.iterdir()) == []


async def test_it_is_large_enough(loopback: LoopbackForge, stage: Stage) -> None:
    """Twenty thousand issues in two hundred repositories: a page, and a search over all of them, within seconds."""

    def fill() -> None:
        world = loopback.world
        owner = world.users[world.repos[1].owner_id]
        for n in range(200):
            repo = world.add_repo(owner, f"many{n}")
            for k in range(100):
                world.add_issue(repo, owner, title=f"issue {k}", body="x")

    await loopback.call(fill)
    began = time.process_time()  # the forge's too: it is a thread of ours
    found = await stage.bot.api("GET", "/repos/issues/search", owner=stage.repo.owner, state="all", limit=50, page=3)
    assert (len(found.sequence()), found.total) == (50, 20_000)
    listed = await stage.bot.api("GET", f"/repos/{stage.repo.owner}/many7/issues", page=2, limit=50)
    assert (len(listed.sequence()), listed.total) == (50, 100)
    assert time.process_time() - began < 10
