"""The processes that need everything: serve, up, and one poll or sweep. Each is a set of parts under one stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace

from tireless import log
from tireless.app.database import configured_url, existing_database, private_state
from tireless.app.forges import open_forges
from tireless.app.hearing import CANCEL, LANE, LOOK, MIRROR, PUBLISH, Ears, Waking, until
from tireless.app.loops import Loop, schedule
from tireless.app.page import build_page, page_socket
from tireless.app.parts import run_parts
from tireless.app.running import lane_commands
from tireless.app.runs import draining, open_pool, run_lanes
from tireless.app.serving import build_loops, build_poller, build_sweeper, build_tracker, wakes
from tireless.app.signals import Stage, until_told
from tireless.app.systemd import Systemd
from tireless.app.told import Told
from tireless.config import Settings
from tireless.embedded import EmbeddedPostgres
from tireless.errors import ConfigError, ForgeError, ForgeUnavailable
from tireless.forge.base import Forge
from tireless.services.poller import Round
from tireless.services.ringing import Bell
from tireless.store import migrate
from tireless.store.db import Pool
from tireless.store.lanes import lane_rows, sync_lanes
from tireless.store.polls import poll_sooner
from tireless.web.server import serve as serve_web
from tireless.web.server import url_of

_log = log.get(__name__)


# ------------------------------------------------------------------------------------------------ serve


async def serve(settings: Settings, told: Told) -> None:
    """Poller, sweeper, publisher, mirror and the page, until a signal; on a database that was migrated before."""
    url = configured_url(settings)
    _demand_forges(settings)
    with page_socket(settings) as sock:
        (await migrate.check(url)).demand()
        stop, systemd = asyncio.Event(), Systemd.of(os.environ)
        stages = [Stage(stop, "what is under way ends, for a few seconds")]

        async def work() -> None:
            async with open_pool(settings, url, "serve") as db, Bell(db).running() as ring:
                waking = Waking(ring, Ears(url, LOOK, PUBLISH, MIRROR))
                services = _serve(settings, told, db, sock, stop, systemd, waking)
                await run_parts({"services": services, "listener": until(stop, waking.ears.run())}, stop)

        async with systemd.following(stop):
            await until_told(work(), stages)


async def _serve(
    settings: Settings,
    told: Told,
    db: Pool,
    sock: socket.socket | None,
    stop: asyncio.Event,
    systemd: Systemd,
    waking: Waking,
) -> None:
    async with open_forges(settings) as forges:
        await _configure_lanes(settings, db)
        await _poll_as_configured(settings, db)
        loops = build_loops(settings, db, forges, told.redactor, ring=waking.ring)
        waking.ears.wake(wakes(loops))
        parts = {name: loop.run(stop) for name, loop in loops.items()}
        if sock is not None:
            app = build_page(settings, db, loops, told.redactor, ring=waking.ring)
            parts["page"] = serve_web(app, sock, stop)
            _log.info("page opened", url=url_of(sock))
        _log.info("serving began", forges=list(forges), lanes=list(settings.lanes))
        systemd.began(lambda: all(loop.pulse().ok for loop in loops.values()))
        with _scheduled(loops):
            await run_parts(parts, stop)
        _log.info("serving ended")


# ------------------------------------------------------------------------------------------------ up


async def up(settings: Settings, told: Told) -> None:
    """Everything in this one process: what `serve` does, and a runner of every lane that has a command."""
    _demand_forges(settings)
    lanes = list(lane_commands(settings, _with_command(settings)))
    with page_socket(settings) as sock:
        async with _own_database(settings, told) as url:
            if applied := await migrate.migrate(url):
                _log.info("database migrated", applied=applied)
            stop, hurry = asyncio.Event(), asyncio.Event()
            systemd = Systemd.of(os.environ, parts=2)
            work = _everything(settings, told, url, lanes, sock, stop, hurry, systemd)
            async with systemd.following(stop):
                await until_told(work, draining(stop, hurry))


async def _everything(
    settings: Settings,
    told: Told,
    url: str,
    lanes: Sequence[str],
    sock: socket.socket | None,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    systemd: Systemd,
) -> None:
    drained = asyncio.Event()
    async with (
        open_pool(settings, url, "serve") as db,
        open_pool(settings, url, "run") as work_db,
        Bell(db).running() as ring,
    ):
        await _configure_lanes(settings, db)  # before the runner asks for them
        waking = Waking(ring, Ears(url, LANE, LOOK, PUBLISH, MIRROR, CANCEL))

        async def work() -> None:
            await run_lanes(settings, told, url, work_db, lanes, stop, hurry, systemd, waking, once=False)
            drained.set()

        # The services go on until the last agent has ended: what it made is to be delivered, and shown.
        services = _serve(settings, told, db, sock, drained, systemd, waking)
        listener = until(drained, waking.ears.run())
        await run_parts({"services": services, "runner": work(), "listener": listener}, stop)


@contextlib.asynccontextmanager
async def _own_database(settings: Settings, told: Told) -> AsyncIterator[str]:
    if address := settings.database.address:
        yield address
        return
    state = private_state(settings)
    told.say(f"tireless: no database is configured, using a private PostgreSQL; its data lie in {state}")
    async with EmbeddedPostgres(state) as server:
        yield server.url


def _with_command(settings: Settings) -> list[str]:
    """The lanes this process can work on. ConfigError when there is none: jobs would wait for ever."""
    silent = [name for name, lane in settings.lanes.items() if not lane.command]
    chosen = [name for name in settings.lanes if name not in silent]
    if not chosen:
        raise ConfigError(
            "no lane has a command: set command under [lanes.NAME], or use `tireless serve` here and run elsewhere"
            if silent
            else "no lane is configured: add a [lanes.NAME] with kinds and a command, see `tireless generate-config`"
        )
    if silent:
        _log.warning("lanes without a command are served by other runners only", lanes=silent)
    return chosen


# ------------------------------------------------------------------------------------------------ once


async def poll_once(settings: Settings, *, full: bool) -> Round:
    """Find the configured repositories, poll every watched one now, answer due looks; what came of it."""
    _demand_forges(settings)
    async with (
        existing_database(settings) as url,
        open_pool(settings, url, "poll") as db,
        Bell(db).running() as ring,
        open_forges(settings) as forges,
    ):
        await _agree_on_lanes(settings, db)
        tracker = build_tracker(settings, db, forges)
        await tracker.tick()
        done = await build_poller(settings, db, forges, ring=ring).poll_once(full=full)
        failed = {str(repo): str(error) for repo, error in tracker.errors.items()} | dict(done.failed)
        if failed and not done.polled:
            await _demand_answer(forges)
        return replace(done, failed=failed)


async def _demand_answer(forges: Mapping[str, Forge]) -> None:
    """Nothing could be polled: ForgeUnavailable if that is because no forge answers at all."""
    for forge in forges.values():
        try:
            await forge.about()
        except ForgeUnavailable as error:
            silent = error
        except ForgeError:
            return
        else:
            return
    raise silent


async def sweep_once(settings: Settings) -> None:
    """One pass of the sweeper; what it moved stands in the log."""
    async with existing_database(settings) as url, open_pool(settings, url, "sweep") as db:
        await build_sweeper(settings, db).tick()


# ------------------------------------------------------------------------------------------------ parts of them


def _demand_forges(settings: Settings) -> None:
    if not settings.forges:
        raise ConfigError(
            "no forge is configured: add a [forges.NAME] with url, token_file and repositories, "
            "see `tireless generate-config`"
        )


async def _configure_lanes(settings: Settings, db: Pool) -> None:
    async with db.connection() as conn:
        if closed := await sync_lanes(conn, settings.lane_values):
            _log.warning("lanes closed, they are gone from the configuration", lanes=closed)


async def _poll_as_configured(settings: Settings, db: Pool) -> None:
    """A shorter interval counts at once: when each repository is due was written down under the former one."""
    poll = settings.poll
    async with db.connection() as conn:
        sooner = await poll_sooner(
            conn,
            list(settings.forges),
            poll_s=poll.interval.total_seconds(),
            full_scan_s=poll.full_scan.total_seconds(),
        )
    if sooner:
        _log.info("polls brought forward, the interval is shorter now", count=sooner)


async def _agree_on_lanes(settings: Settings, db: Pool) -> None:
    """Lanes are `serve`'s to configure. Judging issues by others would send their jobs elsewhere: ConfigError.

    Where no `serve` has ever been, ours are written.
    """
    async with db.connection() as conn:
        known = {row.name for row in await lane_rows(conn) if row.configured}
    if not known:
        await _configure_lanes(settings, db)
    elif known != set(settings.lanes):
        raise ConfigError(
            f"the lanes here ({', '.join(settings.lanes) or 'none'}) are not those that `serve` configured "
            f"({', '.join(sorted(known))}): use the configuration of `serve`, or start it again with this one"
        )


@contextlib.contextmanager
def _scheduled(loops: Mapping[str, Loop]) -> Iterator[None]:
    scheduler = schedule(list(loops.values()))
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown(wait=False)
