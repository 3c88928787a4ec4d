"""Running agents for real: what they get, what is kept of them, and that they end when they are told to."""

from __future__ import annotations

import asyncio
import os
import py_compile
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tests.support.opened import opened
from tests.support.witness import LIMIT_S, Witness
from tireless.agent import guard
from tireless.agent.control import Control, RunAs, RunSpec, boottime
from tireless.agent.process import guard_file, run_agent
from tireless.domain.outcome import Ended, Stop
from tireless.errors import WorkspaceError
from tireless.redact import MASK, Redactor

SECRET = "s3cr3t-of-the-lane"


def ignore(_text: str) -> None:
    """An output that nobody follows."""


class Room:
    """A directory to run agents in, and the calls every test makes."""

    def __init__(self, root: Path, witness: Witness) -> None:
        self.root = root
        self.cwd = root / "tree"
        self.cwd.mkdir()
        self.witness = witness
        self.control = Control(boottime() + 600)
        self.chunks: list[str] = []

    def spec(self, *argv: str, stdin: bytes = b"", run_s: float = 600.0, stall_s: float = 600.0) -> RunSpec:
        env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TIRELESS_RUN_MARK": f"mark-{self.root.name}-{os.getpid()}",
            "WITNESS": str(self.witness.path),
            "PYTHON": sys.executable,
        }
        progress = self.root / "progress"
        return RunSpec(
            argv=argv,
            cwd=self.cwd,
            env=env,
            stdin=stdin,
            run_timeout_s=run_s,
            stall_timeout_s=stall_s,
            grace_s=0.2,
            progress_file=progress,
        )

    def sh(self, script: str, *, stdin: bytes = b"", run_s: float = 600.0, stall_s: float = 600.0) -> RunSpec:
        return self.spec("/bin/sh", "-c", script, stdin=stdin, run_s=run_s, stall_s=stall_s)

    async def run(self, spec: RunSpec, *, on_output: Callable[[str], None] | None = None) -> Ended:
        running = run_agent(spec, self.control, on_output=on_output or self.chunks.append, redactor=Redactor([SECRET]))
        return await asyncio.wait_for(running, LIMIT_S)

    def begin(self, spec: RunSpec) -> asyncio.Task[Ended]:
        return asyncio.create_task(self.run(spec))


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    witness = Witness(tmp_path)
    yield Room(tmp_path, witness)
    witness.close()


READY = 'exec 9>"$WITNESS"; echo ready >&9; '


async def test_prompt_arrives_on_stdin_and_ends(room: Room) -> None:
    """Two megabytes of prompt arrive whole on standard input, which then ends."""
    prompt = os.urandom(1_000_000).hex().encode()
    ended = await room.run(room.sh("cksum; echo done >&2", stdin=prompt))
    (room.root / "prompt").write_bytes(prompt)
    summer = await asyncio.create_subprocess_exec("cksum", room.root / "prompt", stdout=asyncio.subprocess.PIPE)
    expected = (await summer.communicate())[0].decode().split()[:2]
    assert ended.exit_code == 0
    assert ended.head.split() == [*expected, "done"]


async def test_unread_prompt_holds_up_nothing(room: Room) -> None:
    """An agent that reads nothing of a large prompt ends as any other."""
    ended = await room.run(room.sh("exit 7", stdin=b"x" * 2_000_000))
    assert (ended.exit_code, ended.stopped) == (7, None)


async def test_environment_is_exactly_what_was_given(room: Room) -> None:
    """Nothing of the runner's own environment reaches the agent."""
    spec = room.spec(sys.executable, "-I", "-S", "-c", "print(open('/proc/self/environ').read())")
    ended = await room.run(spec)
    seen = dict(entry.split("=", 1) for entry in ended.head.strip().replace("�", "\n").split("\n") if entry)
    assert seen == spec.env


async def test_exit_code_and_signal_are_told_apart(room: Room) -> None:
    """A signal that ends the agent is reported as one, an exit code as one."""
    assert (await room.run(room.sh("exit 44"))).exit_code == 44
    ended = await room.run(room.sh("kill -SEGV $$"))
    assert (ended.exit_code, ended.signal) == (None, signal.SIGSEGV)


@pytest.mark.parametrize("mode", [None, 0o644])
async def test_command_that_cannot_be_executed_never_started(room: Room, mode: int | None) -> None:
    """A missing command, or one without the right to execute it, is our own exec's failure."""
    command = room.root / "agent"
    if mode is not None:
        command.write_text("#!/bin/sh\nexit 0\n")
        command.chmod(mode)
    ended = await room.run(room.spec(str(command)))
    assert ended.exit_code is None
    assert ended.not_started is not None
    assert ended.not_started.startswith(f"{command}: ")


async def test_exit_127_of_a_started_agent_is_its_own(room: Room) -> None:
    """A shell that does not find a command exits 127: that is the agent's word, not our exec's."""
    ended = await room.run(room.sh("no-such-command-anywhere"))
    assert (ended.exit_code, ended.not_started) == (127, None)


async def test_missing_directory_is_an_error_of_ours(room: Room) -> None:
    """A work tree that is not there raises, and the message names it."""
    room.cwd.rmdir()
    with pytest.raises(WorkspaceError, match="tree"):
        await room.run(room.sh("exit 0"))


async def test_agent_may_delete_its_directory(room: Room) -> None:
    """An agent that deletes the directory it works in ends with its own exit code."""
    ended = await room.run(room.sh('rm -rf "$PWD"; exit 3'))
    assert ended.exit_code == 3
    assert not room.cwd.exists()


async def test_broken_pipe_ends_writers_as_usual(room: Room) -> None:
    """SIGPIPE has its default effect in the agent: `yes | head` ends."""
    ended = await room.run(room.sh("yes | head -n 1"))
    assert (ended.exit_code, ended.head) == (0, "y\n")


async def test_output_is_kept_head_and_tail(room: Room) -> None:
    """Of 10 MB in one line, as of any more, the first and the last 64 KiB are kept, and every byte was counted."""
    script = "import sys; sys.stdout.write('a' * 10_000_000 + 'end')"
    ended = await room.run(room.spec(sys.executable, "-I", "-S", "-c", script), on_output=ignore)
    assert ended.output_bytes == 10_000_003
    assert ended.head == "a" * 65_536
    assert ended.tail == "a" * 65_533 + "end"


async def test_output_of_any_bytes_becomes_text(room: Room) -> None:
    """Invalid UTF-8 and NUL are replaced; what is kept can be stored by a database."""
    ended = await room.run(room.sh(r"printf 'a\377b\000c\303'"))
    assert ended.head == "a�b�c�"
    assert "".join(room.chunks) == ended.head


async def test_secret_split_over_writes_is_redacted(room: Room) -> None:
    """A secret printed in two writes is in neither what is kept nor what is passed on."""
    half = len(SECRET) // 2
    script = f'printf %s {SECRET[:half]}; {READY} read go < "$PWD/../go"; printf "%s\\n" {SECRET[half:]}'
    os.mkfifo(room.root / "go")
    running = room.begin(room.sh(script))
    await room.witness.line()
    await asyncio.to_thread((room.root / "go").write_text, "go\n")
    ended = await running
    assert ended.head == f"{MASK}\n"
    assert SECRET[half:] not in "".join(room.chunks)


async def test_stop_before_the_start_runs_nothing(room: Room) -> None:
    """A job cancelled while its work tree was prepared never starts an agent."""
    room.control.stop(Stop.CANCELLED)
    ended = await room.run(room.sh("touch ran"))
    assert (ended.stopped, ended.exit_code) == (Stop.CANCELLED, None)
    assert not (room.cwd / "ran").exists()


async def test_term_is_enough_for_the_willing(room: Room) -> None:
    """An agent that handles TERM gets to clean up; the runner's reason is what is told."""
    spec = room.sh(f"trap 'echo cleaned; exit 0' TERM; {READY} while :; do sleep 0.05; done")
    running = room.begin(replace(spec, grace_s=20.0))
    await room.witness.line()
    room.control.stop(Stop.SHUTDOWN)
    ended = await running
    assert ended.stopped is Stop.SHUTDOWN
    assert ended.head.endswith("cleaned\n")
    await room.witness.gone()


async def test_term_ignored_is_killed_after_the_grace(room: Room) -> None:
    """An agent and its child that ignore TERM are gone after the grace."""
    running = room.begin(room.sh(f"trap '' TERM; {READY} sleep 9999 & wait; wait"))
    await room.witness.line()
    room.control.stop(Stop.CANCELLED)
    ended = await running
    assert (ended.stopped, ended.signal, ended.survivors) == (Stop.CANCELLED, signal.SIGKILL, ())
    await room.witness.gone()


async def test_hurry_leaves_out_the_grace(room: Room) -> None:
    """A second, hurried stop does not wait for the rest of a long grace."""
    spec = room.sh(f"trap '' TERM; {READY} while :; do sleep 0.05; done")
    running = room.begin(replace(spec, grace_s=50.0))
    await room.witness.line()
    room.control.stop(Stop.SHUTDOWN)
    room.control.stop(Stop.SHUTDOWN, hurry=True)
    assert (await running).signal == signal.SIGKILL


async def test_agent_that_kills_its_group_kills_only_itself(room: Room) -> None:
    """`kill 0` in the agent reaches neither its guard nor us."""
    ended = await room.run(room.sh("kill -KILL 0"))
    assert (ended.signal, ended.guard_lost) == (signal.SIGKILL, False)


async def test_run_timeout_stops_a_noisy_agent(room: Room) -> None:
    """Output does not lengthen the time limit."""
    ended = await room.run(room.sh("while :; do echo again; sleep 0.05; done", run_s=0.4))
    assert ended.stopped is Stop.TIMEOUT


async def test_stall_stops_a_quiet_agent(room: Room) -> None:
    """No output for the stall time is a stall, long before the time limit."""
    ended = await room.run(room.sh("echo once; sleep 9999", stall_s=2.0))
    assert (ended.stopped, ended.head) == (Stop.STALLED, "once\n")


async def test_growing_progress_file_is_a_sign_of_life(room: Room) -> None:
    """An agent that only writes progress is not stalled."""
    script = "for n in $(seq 30); do echo $n >> ../progress; sleep 0.1; done"
    ended = await room.run(room.sh(script, stall_s=2.5))
    assert (ended.stopped, ended.exit_code) == (None, 0)


async def test_cancelled_task_leaves_no_agent(room: Room) -> None:
    """Cancelling the task that runs an agent returns only when the agent is gone."""
    task = asyncio.create_task(
        run_agent(room.sh(f"trap '' TERM; {READY} sleep 9999"), room.control, on_output=ignore, redactor=Redactor())
    )
    await room.witness.line()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await room.witness.gone()


async def test_fault_of_the_listener_stops_the_run_and_is_raised(room: Room) -> None:
    """An `on_output` that raises ends the agent, and its error is not swallowed."""

    def broken(_text: str) -> None:
        raise RuntimeError("cannot listen")

    with pytest.raises(RuntimeError, match="cannot listen"):
        await room.run(room.sh(f"{READY} echo hello; sleep 9999"), on_output=broken)
    await room.witness.gone()


SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin") or ""


@pytest.mark.skipif(os.getuid() != 0 or not SYSTEM_PYTHON, reason="needs root and a Python that others can reach")
async def test_run_as_another_user() -> None:
    """With `run_as` agent and guard belong to the other user, and the agent still dies when told."""
    with opened() as root:
        witness = Witness(root)
        room = Room(root, witness)
        os.chown(witness.path, 65534, 65534)
        spec = replace(
            room.sh(f"ps -o uid= -p $PPID; id -u; id -G; {READY} sleep 9999"),
            grace_s=5,
            run_as=RunAs(uid=65534, gid=65534, python=SYSTEM_PYTHON),
        )
        running = room.begin(spec)
        await witness.line()
        room.control.stop(Stop.CANCELLED)
        ended = await running
        await witness.gone()
        witness.close()
    assert ended.head.split()[:3] == ["65534", "65534", "65534"]
    assert ended.signal == signal.SIGTERM


async def test_a_guard_is_run_compiled_only_where_that_is_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an import compiled is run; its source where that is stale, not there, or closed to the agent's user."""
    source, compiled = tmp_path / "guard.py", tmp_path / "cache" / "guard.pyc"
    shutil.copy(guard.__file__, source)
    spec = ModuleSpec("guard", None)
    spec.cached = str(compiled)
    monkeypatch.setattr(guard, "__file__", str(source))
    monkeypatch.setattr(guard, "__spec__", spec)
    other = RunAs(uid=os.getuid(), gid=os.getgid())
    assert guard_file(None) == str(source)
    py_compile.compile(str(source), str(compiled), doraise=True)
    assert [guard_file(None), guard_file(other)] == [str(compiled)] * 2
    compiled.parent.chmod(0o700)
    assert [guard_file(None), guard_file(other)] == [str(compiled), str(source)]
    compiled.parent.chmod(0o755)
    assert guard_file(replace(other, python="/usr/bin/another")) == str(source)
    os.utime(source, (1, 1))
    assert guard_file(None) == str(source)
