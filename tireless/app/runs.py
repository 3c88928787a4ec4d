"""The process `tireless run`: a runner of some lanes until a signal has drained it.

Loads neither page nor forge nor schedule: a host of agents may hold many of these.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from tireless import log
from tireless.app.database import configured_url
from tireless.app.hearing import CANCEL, LANE, Ears, Waking, until
from tireless.app.parts import run_parts
from tireless.app.running import build_runner, check_leases, demand_credentials, lane_commands
from tireless.app.signals import Stage, until_told
from tireless.app.systemd import Systemd
from tireless.app.told import Told
from tireless.config import Settings
from tireless.services.ringing import Bell
from tireless.store import migrate
from tireless.store.db import Pool, pool

_log = log.get(__name__)


async def run(settings: Settings, told: Told, *, lanes: Sequence[str], once: bool = False) -> None:
    """A runner of these lanes, until a signal has drained it; `once`: until there is nothing left to claim."""
    url = configured_url(settings)
    lane_commands(settings, lanes)
    demand_credentials(settings)
    (await migrate.check(url)).demand()
    stop, hurry, systemd = asyncio.Event(), asyncio.Event(), Systemd.of(os.environ)

    async def work() -> None:
        async with open_pool(settings, url, "run") as db, Bell(db).running() as ring:
            waking = Waking(ring, Ears(url, LANE, CANCEL))
            runner = run_lanes(settings, told, url, db, lanes, stop, hurry, systemd, waking, once=once)
            await run_parts({"runner": runner, "listener": until(stop, waking.ears.run())}, stop)

    async with systemd.following(stop):
        await until_told(work(), draining(stop, hurry))


async def run_lanes(
    settings: Settings,
    told: Told,
    url: str,
    db: Pool,
    lanes: Sequence[str],
    stop: asyncio.Event,
    hurry: asyncio.Event,
    systemd: Systemd,
    waking: Waking,
    *,
    once: bool,
) -> None:
    """The runner itself, on a database known to be right, until `stop` and until its agents have ended.

    `once`: sets `stop` itself, when there is nothing left to claim.
    """
    wake = asyncio.Event()
    async with pool(url, min_size=1, max_size=1, application_name="tireless renewals") as renewals:
        async with db.connection() as conn:
            await check_leases(conn, settings, lanes)
        runner = build_runner(settings, db, renewals, lanes=lanes, redactor=told.redactor, wake=wake, ring=waking.ring)
        waking.ears.wake({LANE: [wake], CANCEL: [runner.cancels]}, lanes)
        _log.info(
            "runner began", runner=settings.runner.shown_name, lanes=list(lanes), slots=settings.runner.concurrency
        )
        systemd.began(lambda: runner.healthy)
        await runner.run(stop, hurry, once=once)
        if once:
            stop.set()
        _log.info("runner ended", runner=settings.runner.shown_name)


def draining(stop: asyncio.Event, hurry: asyncio.Event) -> list[Stage]:
    """What the first signal brings, and the second."""
    return [
        Stage(stop, "nothing more is started, agents that run go on to their end"),
        Stage(hurry, "agents are stopped, their work is saved, their attempts are given back"),
    ]


def open_pool(settings: Settings, url: str, what: str) -> Pool:
    """The connections of a process, or of a command that works on rows."""
    return pool(url, min_size=1, max_size=settings.database.connections, application_name=f"tireless {what}")
