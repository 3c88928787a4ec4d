"""Hooks around an agent as real processes: when they run, as whom, with what, and what a bad one can do."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.assignment import assignment
from tests.support.githttp import TOKEN, USER, GitServer, seed
from tests.support.opened import opened
from tireless.agent.attempt import AgentRoom, LaneCommand, Prepared
from tireless.agent.control import Control, RunAs, boottime
from tireless.agent.gitcli import Credential, Git, Remote
from tireless.agent.hooks import Hook, HookError, Hooks
from tireless.agent.places import Places
from tireless.agent.workspace import Workspaces
from tireless.domain.outcome import Ended, Outcome, Stop, Verdict
from tireless.redact import MASK, Redactor
from tireless.services.waiting import all_gone

LIMIT_S = 90.0
SYSTEM_PYTHON = "/usr/bin/python3"
"""One that every user may run: the checkout's environment may be closed to others."""
EVERY = ("after_create", "before_run", "after_run", "before_remove")


class House:
    """A forge's git and an agent room; attempts with hooks that are shell scripts."""

    def __init__(self, root: Path, server: GitServer, run_as: RunAs | None = None) -> None:
        self.root = root
        self.run_as = run_as
        seed(server.root)
        self.remote = Remote(f"{server.url}/lamp.git", Credential(USER, TOKEN))
        redactor = Redactor([TOKEN])
        places = Places(root / "root")
        places.open(shared=run_as is not None)
        spaces = Workspaces(places, Git(redactor=redactor, environ=os.environ))
        self.room = AgentRoom(spaces, redactor=redactor, environ={"PATH": os.environ["PATH"], "HOME": str(root)})
        self.output: list[str] = []
        self.control = Control(boottime() + 600)
        self.timeout_s = LIMIT_S

    def command(self, agent: str, **scripts: str) -> LaneCommand:
        hooks = Hooks({Hook(name): ("/bin/sh", "-c", text) for name, text in scripts.items()}, self.timeout_s)
        return LaneCommand(("/bin/sh", "-c", agent), grace_s=0.2, run_as=self.run_as, hooks=hooks)

    async def prepare(self, command: LaneCommand) -> Prepared:
        return await self.room.prepare(assignment(), command, self.remote, repository="main-1", control=self.control)

    async def attempt(self, agent: str = "echo more >> README", **hooks: str) -> tuple[Verdict, Ended]:
        """As a runner does it, without its rows."""
        return await self.run(await self.prepare(self.command(agent, **hooks)))

    async def run(self, prepared: Prepared) -> tuple[Verdict, Ended]:
        try:
            ended = await self.room.execute(prepared, self.control, on_output=self.output.append)
            verdict = await self.room.collect(prepared, ended)
            if verdict.commit:
                await self.room.spaces.save(prepared.space, verdict.commit)
            return verdict, await self.room.after_run(prepared, ended, self.control)
        finally:
            await self.room.remove(prepared)

    @property
    def runs(self) -> list[str]:
        return os.listdir(self.root / "root" / "runs")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    (tmp_path / "forge").mkdir()
    with GitServer(tmp_path / "forge") as server:
        yield House(tmp_path, server)


async def test_all_hooks_run_in_order_in_the_tree_with_the_agents_environment(house: House) -> None:
    """Each runs once, at its moment, in the work tree, with exactly the agent's environment; what they say is kept."""
    (house.root / "seen").touch()
    seen = f'env -u _ -u PWD -u SHLVL -u OLDPWD | sort > "{house.root}/env.$name"; pwd >> "{house.root}/seen"'
    note = f'{seen}; echo "i am $name"'
    hooks = {name: f"name={name}; {note}" for name in EVERY}
    verdict, ended = await house.attempt(f"name=agent; {note}; echo more >> README", **hooks)
    assert verdict.outcome is Outcome.DONE
    moments = ["after_create", "before_run", "agent", "after_run"]
    assert [line for line in ended.head.splitlines() if line.startswith("i am")] == [f"i am {name}" for name in moments]
    assert "[hook before_run]" in ended.head
    assert "i am after_create" in "".join(house.output)
    environments = {(house.root / f"env.{name}").read_text() for name in (*EVERY, "agent")}
    assert len(environments) == 1
    assert "TIRELESS_RUN_DIR=" in environments.pop()
    assert len(set((house.root / "seen").read_text().split())) == 1
    assert house.runs == []


async def test_hooks_see_no_token(house: House) -> None:
    """No hook finds the forge's token in an environment, a command line or the tree; one that it prints is masked."""
    script = f'cat /proc/$PPID/environ /proc/$$/environ /proc/[0-9]*/cmdline | tr "\\0" "\\n"; grep -r {TOKEN[:8]} .'
    _, ended = await house.attempt(before_run=f"{script} && echo FO'UND'; echo {TOKEN[:4]}'{TOKEN[4:]}'; :")
    assert "TIRELESS_JOB_ID=12" in ended.head
    assert "FOUND" not in ended.head
    assert TOKEN not in ended.head + "".join(house.output)
    assert MASK in ended.head


async def test_work_of_after_create_is_the_agents_to_find(house: House) -> None:
    """What after_create made lies in the tree when the agent begins, and is delivered with its work."""
    verdict, _ = await house.attempt("test -f made && cp made kept", after_create="echo x > made")
    assert verdict.outcome is Outcome.DONE


@pytest.mark.parametrize("hook", ["after_create", "before_run"])
async def test_failing_hook_before_the_agent_ends_the_attempt(house: House, hook: str) -> None:
    """The agent never runs; the error names the hook and ends with its last lines; before_remove still cleans up."""
    touched = house.root / "agent-ran"
    cleaned = house.root / "cleaned"
    scripts = {hook: "seq 1 100; echo 'no such package' >&2; exit 3", "before_remove": f"touch {cleaned}"}
    with pytest.raises(HookError, match=f"the hook {hook} ended with exit code 3") as caught:
        await house.attempt(f"touch {touched}", **scripts)
    assert str(caught.value).endswith("99\n100\nno such package")
    assert "\n50\n" not in str(caught.value)
    assert "\n50\n" in caught.value.said
    assert not touched.exists()
    assert cleaned.exists()
    assert house.runs == []


async def test_failing_hooks_after_the_agent_change_nothing(house: House) -> None:
    """after_run and before_remove fail: the outcome stands, the output tells, the tree is gone."""
    verdict, ended = await house.attempt(after_run="echo bad luck; exit 7", before_remove="exit 9")
    assert verdict.outcome is Outcome.DONE
    assert "bad luck" in ended.head
    assert "the hook after_run ended with exit code 7" in ended.head
    assert house.runs == []


async def test_after_run_cannot_spoil_the_work(house: House) -> None:
    """A hook that deletes the tree after the run takes nothing away: the work was collected before."""
    verdict, _ = await house.attempt(after_run='rm -rf "$PWD"', before_remove="echo never")
    assert verdict.outcome is Outcome.DONE
    assert verdict.commit
    assert house.runs == []


@pytest.mark.parametrize("hook", ["after_create", "before_run"])
@pytest.mark.parametrize("ruin", ['rm -rf "$PWD"', "rm -rf .git", "rm -rf .git; ln -s /tmp .git"])
async def test_hook_that_deletes_the_tree_is_said(house: House, hook: str, ruin: str) -> None:
    """A hook that leaves no work tree ends the attempt before the agent, with a sentence, although it exited with 0."""
    with pytest.raises(HookError, match=f"the hook {hook} left no work tree"):
        await house.attempt(**{hook: ruin})


async def test_hook_never_runs_in_what_stands_in_the_trees_place(house: House) -> None:
    """The agent replaced its tree by a link to somebody's directory: no hook is run in there."""
    precious = house.root / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    verdict, ended = await house.attempt(
        f'cd /; rm -rf "$OLDPWD"; ln -s {precious} "$OLDPWD"', after_run="rm -f file", before_remove="rm -f file"
    )
    assert verdict.outcome is not Outcome.DONE
    assert "was not run: the work tree was replaced" in ended.head
    assert (precious / "file").read_text() == "kept"


@pytest.mark.parametrize("deaf", ["", "trap '' TERM; "])
async def test_hook_that_hangs_is_ended(house: House, deaf: str) -> None:
    """A hook that goes on beyond hook_timeout is stopped, also when it ignores TERM, and the error says so."""
    house.timeout_s = 2.0
    command = house.command("true", before_run=f"{deaf}echo begun; while :; do sleep 1; done")
    prepared = await house.prepare(command)
    with pytest.raises(HookError, match=r"took longer than 2 s \(hook_timeout\); the last it said:\nbegun"):
        await asyncio.wait_for(house.room.execute(prepared, house.control, on_output=house.output.append), LIMIT_S)
    assert house.control.stopped is None  # the attempt is not timed out by it
    await house.room.remove(prepared)


@pytest.mark.skipif(sys.platform != "linux", reason="strays are found through /proc")
async def test_what_a_hook_forks_dies_with_it(house: House) -> None:
    """A process that a hook forked twice into a session of its own is dead before the agent begins."""
    pids = house.root / "pids"
    stray = f"setsid sh -c 'setsid sleep 9999 & echo $! > {pids}.new; mv {pids}.new {pids}' &"
    script = f"{stray} while ! test -f {pids}; do sleep 0.01; done"
    prepared = await house.prepare(house.command("true", after_create=script))
    await asyncio.wait_for(all_gone([int(pids.read_text())]), LIMIT_S)
    await house.run(prepared)


async def test_missing_program_of_a_hook_is_the_hosts_fault(house: House) -> None:
    """A hook that does not exist holds the lane for this host, as a missing agent does."""
    command = LaneCommand(("/bin/true",), hooks=Hooks({Hook.BEFORE_RUN: ("/no/such/hook",)}))
    prepared = await house.prepare(command)
    with pytest.raises(HookError, match="could not be started: /no/such/hook") as caught:
        await house.room.execute(prepared, house.control, on_output=house.output.append)
    assert caught.value.not_started
    await house.room.remove(prepared)


@pytest.mark.parametrize("why", [Stop.CANCELLED, Stop.SHUTDOWN])
async def test_stop_of_the_run_stops_its_hook(house: House, why: Stop) -> None:
    """A cancel or a shutdown during before_run ends the hook, and the attempt ends by that, without its agent."""
    said = asyncio.Event()
    touched = house.root / "agent-ran"
    prepared = await house.prepare(house.command(f"touch {touched}", before_run="echo begun; exec sleep 9999"))

    def heard(text: str) -> None:
        if "begun" in text:
            said.set()

    running = asyncio.create_task(house.room.execute(prepared, house.control, on_output=heard))
    await asyncio.wait_for(said.wait(), LIMIT_S)
    house.control.stop(why)
    ended = await asyncio.wait_for(running, LIMIT_S)
    assert (ended.stopped, touched.exists()) == (why, False)
    await house.room.remove(prepared)


async def test_after_run_has_its_time_after_a_stopped_run_but_not_after_a_lost_lease(house: House) -> None:
    """A cancelled run is cleaned up after; one whose lease was lost is not, since the next may have begun."""
    for why, expected in ((Stop.CANCELLED, True), (Stop.LEASE_LOST, False)):
        house.control = Control(boottime() + 600)
        mark = house.root / f"cleaned-{why}"
        prepared = await house.prepare(house.command("true", after_run=f"touch {mark}"))
        house.control.stop(why)
        await house.run(prepared)
        assert mark.exists() is expected


async def test_flood_of_a_hook_is_bounded(house: House) -> None:
    """A hook that prints 5 MB costs a few kilobytes of the attempt's output; the agent's own is all there."""
    verdict, ended = await house.attempt("echo the agent; echo more >> README", before_run="yes | head -c 5000000")
    assert verdict.outcome is Outcome.DONE
    assert "the agent\n" in ended.head
    assert len(ended.head) < 20_000


@pytest.mark.skipif(
    os.getuid() != 0 or not (shutil.which("setpriv") and os.path.exists(SYSTEM_PYTHON)),
    reason="needs root, setpriv and a python for everybody",
)
async def test_hooks_run_as_the_agents_user() -> None:
    """With `run_as` every hook is the other user, and can write to the tree."""
    with opened() as root, GitServer(root) as server:
        house = House(root, server, RunAs(uid=65534, gid=65534, groups=(65534,), python=SYSTEM_PYTHON))
        hooks = dict.fromkeys(EVERY, 'test "$(id -u)" = 65534 && touch hooked')
        verdict, ended = await house.attempt(**hooks)
        assert verdict.outcome is Outcome.DONE, ended
        assert "exit code" not in ended.head
