"""What is run, and the runner's hand on it while it runs: plain values and orders; process.py carries them out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tireless.agent import guard
from tireless.agent.output import KEPT
from tireless.domain.outcome import Stop

boottime = guard.now
"""The clock of every deadline here: seconds, CLOCK_BOOTTIME."""


@dataclass(frozen=True, slots=True)
class RunAs:
    """Another user for the agent and its guard; needs root. `python` runs the guard: that user must reach it."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    python: str = sys.executable


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What is run. `env` is the whole environment and must hold TIRELESS_RUN_MARK; times in seconds."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    stdin: bytes = b""
    run_timeout_s: float = 5400.0
    stall_timeout_s: float = 600.0
    grace_s: float = 10.0
    progress_file: Path | None = None
    """A file whose growth is a sign of life, as output is; what it says of usage is read while the agent runs."""
    usd_left: float | None = None
    """What the run may cost by its own word: it is stopped once it says so much. None: anything."""
    run_as: RunAs | None = None
    kept: int = KEPT
    hold: tuple[int, ...] = ()
    """Descriptors (locks) that stay open until the guard has ended, also when the runner is gone before; never the
    agent's."""


class Control:
    """The runner's hand on an agent, also before it has started: new deadlines, and the order to stop."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        """By when the agent must be dead, on `boottime`; the guard begins to stop it `grace_s` earlier."""
        self.stopped: Stop | None = None
        self._say: Callable[[str], None] | None = None

    def set_deadline(self, deadline: float) -> None:
        """After a renewal. The guard does not forgive a deadline that has passed."""
        self.deadline = deadline
        if self._say:
            self._say(f"deadline {deadline!r}")

    def stop(self, why: Stop, *, hurry: bool = False) -> None:
        """TERM, grace, KILL; `hurry` leaves out the rest of the grace. The first reason stands."""
        self.stopped = self.stopped or why
        if self._say:
            self._say("kill" if hurry else "stop")

    def attach(self, say: Callable[[str], None] | None) -> None:
        """For `run_agent` only: where the orders go."""
        self._say = say
        if say and self.stopped:
            say("stop")
