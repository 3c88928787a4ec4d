"""Composes a runner from the configuration: commands, users, work trees, credentials; it claims and decides nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from uuid import uuid4

from tireless import log
from tireless.agent.attempt import AgentRoom, LaneCommand
from tireless.agent.gitcli import Credential, Git
from tireless.agent.hooks import Hook, Hooks
from tireless.agent.places import Places
from tireless.agent.retention import Bounds, Retention
from tireless.agent.upkeep import Upkeep
from tireless.agent.workspace import Workspaces
from tireless.app.users import agents_user
from tireless.config import LaneSection, Settings, format_duration
from tireless.errors import ConfigError, UsageError
from tireless.redact import Redactor
from tireless.services.leases import Leases
from tireless.services.runner import Runner
from tireless.services.work import Worker
from tireless.store.claim import RunnerId
from tireless.store.db import Connection, Pool
from tireless.store.lanes import lane_rows
from tireless.store.look import Ring

_log = log.get(__name__)


def build_runner(
    settings: Settings,
    pool: Pool,
    renewals: Pool,
    *,
    lanes: Sequence[str],
    redactor: Redactor,
    wake: asyncio.Event,
    ring: Ring,
) -> Runner:
    """A runner of these lanes on this host. `renewals`: a pool of its own, so that no renewal queues behind a word.

    `wake` is set when there may be something to claim, `ring` is told whom its ends wake. ConfigError lists what its
    lanes, users and forges lack.
    """
    commands = lane_commands(settings, lanes)
    places = Places(settings.runner_root)
    places.open(shared=any(command.run_as is not None for command in commands.values()))
    spaces = Workspaces(places, Git(redactor=redactor, environ=git_environment(settings)))
    room = AgentRoom(spaces, redactor=redactor, environ=os.environ)
    leases = Leases(renewals, margin_s=settings.runner.lease_margin.total_seconds())
    return Runner(
        pool,
        Worker(pool, room, commands=commands, credentials=credentials(settings), ring=ring),
        leases,
        identity=RunnerId(settings.runner.shown_name, socket.gethostname(), uuid4()),
        lanes=list(commands),
        slots=settings.runner.concurrency,
        idle_poll_s=settings.runner.idle_poll.total_seconds(),
        wake=wake,
        upkeep=Upkeep(spaces, redactor, retention(settings)),
        tidy_every_s=settings.workspaces.interval.total_seconds(),
    )


def retention(settings: Settings) -> Retention:
    """What of each kind is kept below the runner's root."""
    kept = settings.workspaces
    return Retention(
        trees=Bounds(kept.trees_age.total_seconds(), kept.trees_count, kept.trees_size),
        bundles=Bounds(kept.bundles_age.total_seconds(), kept.bundles_count, kept.bundles_size),
        caches=Bounds(kept.caches_age.total_seconds(), kept.caches_count, kept.caches_size),
    )


def lane_commands(settings: Settings, lanes: Sequence[str]) -> dict[str, LaneCommand]:
    """The command of each lane that is to be served. UsageError for an unknown lane, ConfigError for a silent one."""
    if unknown := [name for name in lanes if name not in settings.lanes]:
        known = f"configured here are {', '.join(settings.lanes)}" if settings.lanes else "no lane is configured here"
        raise UsageError(f"no lane {', '.join(unknown)} in this runner's configuration: {known}")
    faults: list[str] = []
    commands: dict[str, LaneCommand] = {}
    for name in lanes:
        section = settings.lanes[name]
        if not section.command:
            faults.append(
                f'lanes.{name} has no command: set command = ["PROGRAM", "WORD", …] under [lanes.{name}] on this host'
            )
            continue
        try:
            commands[name] = _command(section, settings)
        except ConfigError as error:
            faults.append(f"lanes.{name}.run_as: {error}")
    if faults:
        raise ConfigError("\n".join(faults))
    return commands


def _command(section: LaneSection, settings: Settings) -> LaneCommand:
    run_as, home = agents_user(section.run_as) if section.run_as is not None else (None, None)
    return LaneCommand(
        argv=section.command,
        allowed_env=section.env,
        grace_s=settings.runner.stop_grace.total_seconds(),
        run_as=run_as,
        home=home,
        hooks=Hooks(
            commands={hook: argv for hook in Hook if (argv := getattr(section, hook.value))},
            timeout_s=section.hook_timeout.total_seconds(),
        ),
    )


def demand_credentials(settings: Settings) -> None:
    """Each forge must be fetched from and pushed to: ConfigError before any agent has worked for nothing."""
    if not settings.forges:
        raise ConfigError(
            "no forge is configured: add [forges.NAME] with the url and git_token_file, named as `serve` names it"
        )
    if closed := [name for name, section in settings.forges.items() if not section.git_token]:
        raise ConfigError(
            f"no git credential for {', '.join(f'forges.{name}' for name in closed)}: nothing could be pushed there; "
            "write a token into a file, `chmod 600` it, and name it as git_token_file"
        )


def credentials(settings: Settings) -> Mapping[str, Credential]:
    """What opens each forge's git."""
    return {
        name: Credential(section.git_user, section.git_token)
        for name, section in settings.forges.items()
        if section.git_token
    }


def git_environment(settings: Settings) -> Mapping[str, str]:
    """Our environment, of which git takes little, with the forge's certificate authority. ConfigError for two."""
    authority = _certificate_authority(settings)
    return {**os.environ, "GIT_SSL_CAINFO": authority} if authority else os.environ


def _certificate_authority(settings: Settings) -> str | None:
    named = {str(section.ca_file) for section in settings.forges.values() if section.ca_file is not None}
    if len(named) > 1:
        raise ConfigError(
            f"git can be told of one certificate authority only, and there are {', '.join(sorted(named))}: "
            "put them into one file, and name that as ca_file of each forge"
        )
    return next(iter(named), None)


async def check_leases(conn: Connection, settings: Settings, lanes: Sequence[str]) -> None:
    """Compare this runner's times with the leases `serve` configured. ConfigError when an agent could outlive one."""
    rows = {row.name: row for row in await lane_rows(conn)}
    runner = settings.runner
    need_s = (runner.lease_margin + runner.stop_grace).total_seconds() * 1.5
    for name in lanes:
        row = rows.get(name)
        if row is None or not row.configured:
            _log.warning("lane not configured by serve yet, waiting for it", lane=name)
        elif row.lease_s <= need_s:
            raise ConfigError(
                f"the lease of lane {name} is {row.lease_s:g} s, too short for this runner: stop_grace "
                f"({format_duration(runner.stop_grace)}) and lease_margin ({format_duration(runner.lease_margin)}) "
                f"need more than {need_s:g} s; lengthen the lease in the configuration of `serve`, or shorten those"
            )
