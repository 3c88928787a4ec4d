"""The guard: whatever an agent starts is gone when its run ends, however the run, the guard or the runner ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path

import pytest

from tests.support.witness import LIMIT_S, Witness
from tireless.agent import guard
from tireless.agent.control import Control, RunSpec, boottime
from tireless.agent.process import run_agent
from tireless.domain.outcome import Ended, Stop
from tireless.redact import Redactor

# Starts a process of its own session, with an empty environment, in another directory, then ends: no group, no
# mark, no parent leads back to the agent.
ESCAPE = """
import os, signal, sys
ready, freed = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.chdir("/")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        witness = os.open(os.environ["WITNESS"], os.O_WRONLY)
        os.set_inheritable(witness, True)
        os.set_inheritable(freed, True)
        hold = "import os,signal,sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
               "os.write(%d, b'%%d\\\\n' %% os.getpid()); os.close(%d); signal.pause()" % (witness, freed)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", hold], {})
    os._exit(0)
os.wait()
os.close(freed)
os.read(ready, 1)
"""


def spec(root: Path, witness: Witness, *argv: str, grace_s: float = 0.2) -> RunSpec:
    """A run in `root`, with a mark of its own."""
    env = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        guard.MARK_NAME: f"{root.name}-{os.getpid()}",
        "WITNESS": str(witness.path),
    }
    return RunSpec(argv=argv, cwd=root, env=env, grace_s=grace_s)


def shell(script: str) -> tuple[str, str, str]:
    """A shell agent that tells the witness its own pid first."""
    return ("/bin/sh", "-c", f'exec 9>"$WITNESS"; echo $$ >&9; {script}')


def begin(run: RunSpec, control: Control) -> asyncio.Task[Ended]:
    """Start a run beside the test."""
    return asyncio.create_task(
        asyncio.wait_for(run_agent(run, control, on_output=lambda _text: None, redactor=Redactor()), LIMIT_S)
    )


@pytest.fixture
async def witness(tmp_path: Path) -> AsyncIterator[Witness]:
    found = Witness(tmp_path)
    yield found
    found.close()


@contextlib.asynccontextmanager
async def guarded(run: RunSpec, *how: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, FileIO, FileIO]]:
    """A guard without any runner, with ten minutes to go: its process, and our ends of its control and report pipes."""
    control_read, control_write = os.pipe()
    report_read, report_write = os.pipe()
    numbers = (str(control_read), str(report_write), repr(boottime() + 600), repr(run.grace_s), "a-mark")
    with FileIO(report_read) as report:
        with FileIO(control_write, "w") as control:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", *(how or (guard.__file__,)), *numbers, *run.argv),
                cwd=run.cwd,
                env=dict(run.env),
                pass_fds=(control_read, report_write),
                start_new_session=True,
            )
            os.close(control_read)
            os.close(report_write)
            yield process, control, report
        await asyncio.wait_for(process.wait(), LIMIT_S)


async def test_stray_without_group_mark_or_parent_is_found(tmp_path: Path, witness: Witness) -> None:
    """A double-forked stray with a cleared environment is gone after the agent's clean exit."""
    ended = await begin(spec(tmp_path, witness, sys.executable, "-I", "-S", "-c", ESCAPE), Control(boottime() + 600))
    assert (ended.exit_code, ended.survivors) == (0, ())
    pid = int(await witness.line())
    assert guard.look_up(pid) is None
    await witness.gone()


async def test_grandchild_with_our_pipe_holds_up_nothing(tmp_path: Path, witness: Witness) -> None:
    """An agent that leaves `sleep` behind with its output ends at once, and the sleep with it."""
    ended = await begin(spec(tmp_path, witness, *shell("sleep 9999 & exit 5")), Control(boottime() + 600))
    assert ended.exit_code == 5
    await witness.line()
    await witness.gone()


async def test_orphans_are_reaped_while_the_agent_lives(tmp_path: Path, witness: Witness) -> None:
    """Children orphaned to the guard do not pile up as zombies during a long run."""
    script = (
        "for n in 1 2 3 4 5; do (true & echo $! >&9) ; done; "
        'while ps -o ppid=,state= -A | grep -q "^ *$PPID *Z"; do :; done; exit 0'
    )
    ended = await begin(spec(tmp_path, witness, *shell(script)), Control(boottime() + 600))
    assert ended.exit_code == 0


async def test_deadline_kills_without_the_runner(tmp_path: Path, witness: Witness) -> None:
    """Nobody renews, nobody else looks at the clock: the guard itself kills an agent that ignores TERM."""
    run = spec(tmp_path, witness, *shell("trap '' TERM; echo deaf >&9; sleep 9999 & wait; wait"))
    async with guarded(run) as (guarding, control, report):
        for _ in range(2):
            await witness.line()
        # Only now, so that no machine is too slow for the agent to have begun.
        control.write(f"deadline {boottime() + 0.5!r}\n".encode())
        await witness.gone()
        assert await asyncio.wait_for(guarding.wait(), LIMIT_S) == 0
        ended = json.loads(report.readall().splitlines()[-1])
    assert (ended["cause"], ended["signal"], ended["left"]) == ("deadline", signal.SIGKILL, [])


async def test_stop_begins_a_grace_before_the_deadline(tmp_path: Path, witness: Witness) -> None:
    """An agent that obeys has ended when its whole grace is still to come, by TERM: what is due is due by then."""
    run = spec(tmp_path, witness, *shell("sleep 9999"), grace_s=300.0)
    async with guarded(run) as (guarding, control, report):
        await witness.line()
        deadline = boottime() + run.grace_s + 0.5
        control.write(f"deadline {deadline!r}\n".encode())
        await witness.gone()
        assert await asyncio.wait_for(guarding.wait(), LIMIT_S) == 0
        ended = json.loads(report.readall().splitlines()[-1])
    assert (ended["cause"], ended["signal"], ended["left"]) == ("deadline", signal.SIGTERM, [])
    assert boottime() < deadline


SOON_S = 4.0
"""A deadline that is to pass, and still leaves the time to begin an agent before it; the one here that is too slow for
that fails, and does not pass unseen."""


async def test_renewed_deadline_lets_it_live(tmp_path: Path, witness: Witness) -> None:
    """A deadline that was moved on in time is not the one that kills."""
    os.mkfifo(tmp_path / "go")
    go = os.open(tmp_path / "go", os.O_RDWR)  # also to read, so that nobody waits here for an agent that was killed
    first = boottime() + SOON_S
    control = Control(first)
    running = begin(spec(tmp_path, witness, *shell("read go < go; exit 6")), control)
    await witness.line()
    control.set_deadline(boottime() + 600)
    await asyncio.sleep(first - boottime())  # what is waited for is the deadline itself
    os.write(go, b"go\n")
    assert (await running).exit_code == 6
    os.close(go)


async def test_deadline_that_passed_is_not_renewed(tmp_path: Path, witness: Witness) -> None:
    """A guard stopped (SIGSTOP) past its deadline kills when it goes on, whatever was written to it meanwhile."""
    control = Control(boottime() + SOON_S)
    run = spec(tmp_path, witness, *shell("echo $PPID >&9; sleep 9999"))
    running = begin(run, control)
    await witness.line()
    pid = int(await witness.line())
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(control.deadline - boottime())  # what is waited for is the deadline itself
    control.set_deadline(boottime() + 600)
    os.kill(pid, signal.SIGCONT)
    assert (await running).stopped is Stop.LEASE_LOST


async def test_guard_that_does_not_obey_is_killed(tmp_path: Path, witness: Witness) -> None:
    """A guard stopped for good (its agent may do that) is killed past the deadline, and the agent is gone."""
    run = spec(tmp_path, witness, *shell("kill -STOP $PPID; sleep 9999"))
    running = begin(run, Control(boottime() + SOON_S))
    await witness.line()
    ended = await running
    assert ended.stopped is Stop.LEASE_LOST
    await witness.gone()


async def test_killed_guard_takes_the_agent_along(tmp_path: Path, witness: Witness) -> None:
    """SIGKILL of the guard ends the agent at once, and the runner sweeps what the agent had started."""
    run = spec(tmp_path, witness, *shell("setsid sleep 9999 & sleep 9999 & kill -KILL $PPID; sleep 9999"))
    ended = await begin(run, Control(boottime() + 600))
    assert (ended.guard_lost, ended.exit_code, ended.survivors) == (True, None, ())
    await witness.line()
    await witness.gone()


RUNNER = """
import asyncio, json, sys
from pathlib import Path
from tireless.agent.control import Control, RunSpec, boottime
from tireless.agent.process import run_agent
from tireless.redact import Redactor

root, argv, env = json.loads(sys.argv[1])
run = RunSpec(argv=tuple(argv), cwd=Path(root), env=env, grace_s=0.2)
asyncio.run(run_agent(run, Control(boottime() + 600), on_output=print, redactor=Redactor()))
"""


@pytest.mark.parametrize("agent", ["willing", "stubborn", "escaping"])
async def test_killed_runner_leaves_no_agent(tmp_path: Path, witness: Witness, agent: str) -> None:
    """SIGKILL of the runner: agent, children and strays are gone within the grace, without anybody's help."""
    scripts = {
        "willing": shell("sleep 9999"),
        "stubborn": shell("trap '' TERM; sleep 9999 & wait; wait"),
        "escaping": (sys.executable, "-I", "-S", "-c", ESCAPE + "signal.pause()"),
    }
    run = spec(tmp_path, witness, *scripts[agent])
    runner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", RUNNER, json.dumps([str(run.cwd), run.argv, dict(run.env)])),
        env={**os.environ, "PYTHONPATH": str(Path(guard.__file__).parents[2])},
    )
    try:
        await witness.line()
    finally:
        runner.kill()
        await runner.wait()
    await witness.gone()


async def test_signal_to_the_guard_is_a_shutdown(tmp_path: Path, witness: Witness) -> None:
    """A TERM to every process of a service (systemd) ends the agent as a shutdown: the attempt is given back."""
    run = spec(tmp_path, witness, *shell("kill -TERM $PPID; sleep 9999"))
    assert (await begin(run, Control(boottime() + 600))).stopped is Stop.SHUTDOWN


async def test_mark_finds_only_its_own(tmp_path: Path, witness: Witness) -> None:
    """The sweep by mark leaves a process with another mark alone."""
    quiet = (sys.executable, "-I", "-S", "-c", "import signal; print(flush=True); signal.pause()")
    mine, other = [
        await asyncio.create_subprocess_exec(
            *quiet, env={guard.MARK_NAME: mark}, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        for mark in ("mine", "mine-not")
    ]
    try:
        for one in (mine, other):
            assert one.stdout is not None
            await one.stdout.readline()
        assert await asyncio.to_thread(guard.sweep, root=None, group=-1, mark="mine") == []
        assert await asyncio.wait_for(mine.wait(), LIMIT_S) == -signal.SIGKILL
        assert guard.look_up(other.pid) is not None
    finally:
        with contextlib.suppress(ProcessLookupError):
            mine.kill()
        other.kill()
        await other.wait()


# As if this were a system without /proc and without subreapers.
REDUCED = """
import runpy, sys
guard = runpy.run_path(sys.argv[1])
guard["main"].__globals__["LINUX"] = False
guard["main"](sys.argv[2:])
"""


async def test_reduced_form_kills_the_group(tmp_path: Path, witness: Witness) -> None:
    """Without /proc and subreaper (macOS) the group is stopped and the pipe's end is obeyed all the same."""
    run = spec(tmp_path, witness, *shell("trap '' TERM; sleep 9999 & wait; wait"))
    async with guarded(run, "-c", REDUCED, guard.__file__) as (process, control, report):
        await witness.line()
        control.close()
        await witness.gone()
        assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
        assert b'"cause": "pipe"' in report.readall()
