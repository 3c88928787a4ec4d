"""A fake agent that follows a script, run as a real process; and the test's side of it: the script, records, a gate.

The agent's half imports nothing but the standard library: it is run as a file, `python -I -S agents.py SCRIPT`.

    script.runs(7, [say("hello"), write("a.txt", "x"), commit("Add a"), result("done")])
    script.runs(8, [exits(1)], [exits(0)])                  # first run, then every later one; None: any other issue

Runs are counted per job by the records (`begin`, `end`) the agents append; a kernel lock per job, held as long as the
agent lives, shows in `begin` whether another one was alive. `wait()` says so through the gate and blocks until the
test lets it go on.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Step = list[Any]
"""A verb and its words, as JSON has them."""

LIMIT_S = 90.0
"""How long anything waited for may take before the test fails; nothing is ever slept through."""


# ------------------------------------------------------------------------------------------------ what an agent may do


def say(text: str) -> Step:
    """Print a line."""
    return ["say", text]


def write(path: str, text: str) -> Step:
    """Write a file of the work tree."""
    return ["write", path, text]


def commit(message: str) -> Step:
    """Commit everything."""
    return ["commit", message]


def result(outcome: str, **more: object) -> Step:
    """Hand back a result of protocol 1."""
    return ["result", {"protocol": 1, "outcome": outcome, **more}]


def progress(text: str) -> Step:
    """Add to the progress file, as it is."""
    return ["progress", text]


def exits(code: int) -> Step:
    """Exit with a code, at once."""
    return ["exits", code]


def dies(number: int) -> Step:
    """End by a signal."""
    return ["dies", number]


def wait() -> Step:
    """Say through the gate that it waits, and wait to be let go on."""
    return ["wait"]


def stray() -> Step:
    """Start a process in a session of its own that never ends, and name it through the gate."""
    return ["stray"]


def deaf() -> Step:
    """Ignore SIGTERM from here on."""
    return ["deaf"]


def betray() -> Step:
    """Send SIGTERM to the process that started us: the guard."""
    return ["betray"]


def dump(path: Path) -> Step:
    """Write what the agent can see of itself: argv, environment, prompt."""
    return ["dump", str(path)]


# ------------------------------------------------------------------------------------------------ the test's side


@dataclass(frozen=True, slots=True)
class Said:
    """A line that came through the gate."""

    what: str
    job: int
    run: int
    pid: int


class Gate:
    """Two named pipes: agents say where they are, the test lets them go on."""

    def __init__(self, directory: Path) -> None:
        self.said, self.hold = directory / "said", directory / "hold"
        for path in (self.said, self.hold):
            os.mkfifo(path)
        # Both ends are held open by us: no end of file, whoever comes and goes.
        self._said = os.open(self.said, os.O_RDWR | os.O_NONBLOCK)
        self._hold = os.open(self.hold, os.O_RDWR | os.O_NONBLOCK)
        self._read = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._said, self._take)

    def _take(self) -> None:
        self._read += os.read(self._said, 65_536)
        self._changed.set()

    async def line(self, what: str = "waiting") -> Said:
        """The next thing an agent says; it must be this."""
        async with asyncio.timeout(LIMIT_S):
            while b"\n" not in self._read:
                self._changed.clear()
                await self._changed.wait()
        line, _, self._read = self._read.partition(b"\n")
        said = Said(**json.loads(line))
        assert said.what == what, said
        return said

    @property
    def quiet(self) -> bool:
        """Has nobody said anything that was not read?"""
        return not self._read

    def release(self, agents: int = 1) -> None:
        """Let so many waiting agents go on, now or when they come."""
        os.write(self._hold, b"x" * agents)

    def close(self) -> None:
        """Give the pipes back."""
        asyncio.get_running_loop().remove_reader(self._said)
        os.close(self._said)
        os.close(self._hold)


class Script:
    """What the agents of a test do, and what they recorded."""

    def __init__(self, directory: Path, gate: Gate) -> None:
        self.path = directory / "script.json"
        self.records = directory / "records"
        self._runs: dict[str, list[list[Step]]] = {}
        self._places = {
            "records": str(self.records),
            "locks": str(directory),
            "said": str(gate.said),
            "hold": str(gate.hold),
        }
        self._save()

    @property
    def argv(self) -> tuple[str, ...]:
        """A lane's command."""
        return (sys.executable, "-I", "-S", __file__, str(self.path))

    def runs(self, number: int | None, *runs: Sequence[Step]) -> None:
        """What is done in the first, second, … run of a job of this issue; the last one is repeated."""
        self._runs[str(number)] = [list(steps) for steps in runs]
        self._save()

    def _save(self) -> None:
        self.path.write_text(json.dumps({**self._places, "runs": self._runs}))

    def recorded(self, what: str | None = None, *, job: int | None = None) -> list[dict[str, Any]]:
        """The agents' own records, oldest first."""
        lines = self.records.read_text().splitlines() if self.records.exists() else []
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [each for each in found if what in (None, each["what"]) and job in (None, each["job"])]


# ------------------------------------------------------------------------------------------------ the agent's side


class _Agent:
    """One run."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.prompt = sys.stdin.read()
        self.job = int(os.environ["TIRELESS_JOB_ID"])
        lock = os.open(f"{script['locks']}/job-{self.job}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        self.run = 1 + sum(1 for each in self.read() if (each["what"], each["job"]) == ("begin", self.job))
        self.record("begin", alone=alone, attempt=int(os.environ["TIRELESS_ATTEMPT"]))

    def read(self) -> list[dict[str, Any]]:
        try:
            with open(self.script["records"]) as file:
                return [json.loads(line) for line in file]
        except FileNotFoundError:
            return []

    def record(self, what: str, **more: object) -> None:
        facts = {"what": what, "job": self.job, "pid": os.getpid(), "at": time.monotonic(), **more}
        with open(self.script["records"], "a") as file:
            file.write(json.dumps(facts) + "\n")

    def tell(self, what: str, pid: int) -> None:
        with open(self.script["said"], "w") as pipe:
            pipe.write(json.dumps({"what": what, "job": self.job, "run": self.run, "pid": pid}) + "\n")

    def follow(self) -> int:
        runs = self.script["runs"]
        mine = runs.get(os.environ["TIRELESS_ISSUE"], runs.get("None"))
        if mine is None:
            raise SystemExit(f"the script says nothing of issue {os.environ['TIRELESS_ISSUE']}")
        for verb, *words in mine[min(self.run, len(mine)) - 1]:
            if verb == "exits":
                self.record("end")
                return int(words[0])
            getattr(self, f"do_{verb}")(*words)
        self.record("end")
        return 0

    def do_say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def do_write(self, path: str, text: str) -> None:
        Path(path).write_text(text)

    def do_commit(self, message: str) -> None:
        who = ["-c", "user.name=Fake Agent", "-c", "user.email=agent@example.org"]
        for words in (["add", "--all"], [*who, "commit", "--quiet", "--message", message]):
            subprocess.run(["git", *words], check=True)

    def do_result(self, content: dict[str, object]) -> None:
        target = Path(os.environ["TIRELESS_RESULT_FILE"])
        aside = target.with_suffix(".part")
        aside.write_text(json.dumps(content))
        aside.rename(target)

    def do_progress(self, text: str) -> None:
        with open(os.environ["TIRELESS_PROGRESS_FILE"], "a") as file:
            file.write(text)

    def do_dies(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_wait(self) -> None:
        self.tell("waiting", os.getpid())
        hold = os.open(self.script["hold"], os.O_RDONLY)
        os.read(hold, 1)
        os.close(hold)

    def do_stray(self) -> None:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"],
            start_new_session=True,
        )
        self.tell("stray", child.pid)

    def do_deaf(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_betray(self) -> None:
        os.kill(os.getppid(), signal.SIGTERM)

    def do_dump(self, path: str) -> None:
        seen = {"argv": sys.orig_argv, "environ": dict(os.environ), "prompt": self.prompt, "cwd": os.getcwd()}
        Path(path).write_text(json.dumps(seen))


if __name__ == "__main__":
    sys.exit(_Agent(json.loads(Path(sys.argv[1]).read_text())).follow())
