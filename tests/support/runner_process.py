"""A runner composed from plain values, in the test's process or as one of its own: `python -m … SETUP.json`.

As a process it says `ready`, `stopping`, `hurrying` on standard output, logs to standard error, drains at the first
SIGTERM and gives back at the second, as `tireless run` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tireless import log
from tireless.agent.attempt import AgentRoom, LaneCommand
from tireless.agent.gitcli import Credential, Git
from tireless.agent.hooks import Hook, Hooks
from tireless.agent.places import Places
from tireless.agent.retention import Retention
from tireless.agent.upkeep import Upkeep
from tireless.agent.workspace import Workspaces
from tireless.redact import Redactor
from tireless.services.leases import Leases
from tireless.services.ringing import Bell
from tireless.services.runner import Runner
from tireless.services.speaking import Limits
from tireless.services.work import Worker
from tireless.store.claim import RunnerId
from tireless.store.db import Pool
from tireless.store.db import pool as open_pool

HASTY = Limits(store_base_s=0.05, store_cap_s=0.2, push_base_s=0.01, push_cap_s=0.05)
"""As patient as ever, but asking again much sooner."""


@dataclass(slots=True)
class Setup:
    """What makes a runner; `dsn` may differ for the leases, to cut only them off."""

    dsn: str
    root: str
    argv: list[str]
    forge: str
    git_user: str
    git_token: str
    name: str = "r1"
    host: str = "h1"
    lanes: list[str] = field(default_factory=lambda: ["claude"])
    silent_lanes: list[str] = field(default_factory=list)
    """Lanes it claims for without a command."""
    slots: int = 1
    margin_s: float = 0.5
    grace_s: float = 0.2
    idle_poll_s: float = 60.0
    leases_dsn: str | None = None
    hooks: dict[str, list[str]] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=lambda: asdict(HASTY))

    def save(self, path: Path) -> Path:
        """For a process of its own."""
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: Path) -> Setup:
        """What `save` wrote."""
        return cls(**json.loads(path.read_text()))


@dataclass(slots=True)
class Rig:
    """A runner and its strings."""

    runner: Runner
    leases: Leases
    worker: Worker
    pool: Pool
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, *, once: bool = False) -> None:
        """To its end."""
        await self.runner.run(self.stop, self.hurry, once=once)


@contextlib.asynccontextmanager
async def rig(setup: Setup, *, worker_type: type[Worker] = Worker) -> AsyncIterator[Rig]:
    """Everything of a runner, open."""
    redactor = Redactor([setup.git_token])
    places = Places(Path(setup.root))
    places.open()
    room = AgentRoom(
        Workspaces(places, Git(redactor=redactor, environ=os.environ)),
        redactor=redactor,
        environ={"PATH": os.environ["PATH"], "HOME": setup.root},
    )
    hooks = Hooks({Hook(name): tuple(argv) for name, argv in setup.hooks.items()})
    command = LaneCommand(tuple(setup.argv), grace_s=setup.grace_s, hooks=hooks)
    name = f"tireless runner {setup.name}"
    async with (
        open_pool(setup.dsn, min_size=0, max_size=2 + 2 * setup.slots, application_name=name) as pool,
        open_pool(setup.leases_dsn or setup.dsn, min_size=0, max_size=1, application_name=f"{name} leases") as own,
        Bell(pool).running() as ring,
    ):
        worker = worker_type(
            pool,
            room,
            commands={lane: command for lane in setup.lanes if lane not in setup.silent_lanes},
            credentials={setup.forge: Credential(setup.git_user, setup.git_token)},
            ring=ring,
            limits=Limits(**setup.limits),
        )
        leases = Leases(own, margin_s=setup.margin_s)
        wake = asyncio.Event()
        runner = Runner(
            pool,
            worker,
            leases,
            identity=RunnerId(setup.name, setup.host, uuid4()),
            lanes=setup.lanes,
            slots=setup.slots,
            idle_poll_s=setup.idle_poll_s,
            wake=wake,
            upkeep=Upkeep(room.spaces, redactor, Retention()),
        )
        yield Rig(runner, leases, worker, pool, wake=wake)


async def main(path: Path) -> None:
    """The process."""
    setup = Setup.load(path)
    log.configure("DEBUG", json=True, redactor=Redactor([setup.git_token]))
    async with rig(setup) as made:

        def told() -> None:
            (made.hurry if made.stop.is_set() else made.stop).set()
            say("hurrying" if made.hurry.is_set() else "stopping")

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told)
        say("ready")
        await made.run()


def say(word: str) -> None:
    """Where we are, for the test."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
