"""Commands around an installation: configuration, migrations, doctor. What they find is judged elsewhere."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import click

from tireless.app.database import NO_DATABASE, existing_url
from tireless.app.forges import open_forges
from tireless.cli.frame import Frame, common, pass_frame, printing, run
from tireless.config import Settings, example_text
from tireless.domain.job import Kind
from tireless.domain.routing import lane_for
from tireless.errors import ConfigError, ForgeUnavailable, SchemaMismatch
from tireless.services.setup import Expected, Finding, Level, check_access
from tireless.store import migrate as migrations
from tireless.store.db import shown


@click.command("generate-config")
@common
def generate_config() -> None:
    """Print a configuration file with every key, explained, to start from."""
    click.echo(example_text(), nl=False)


@click.command("check-config")
@click.option("--offline", is_flag=True, help="Do not ask the forges whom the tokens belong to.")
@printing
@pass_frame
def check_config(frame: Frame, offline: bool) -> None:
    """Read the configuration and its secrets, ask each forge whose the token is, and say what is wrong.

    Starts nothing, writes nothing. Faults end with exit code 3; remarks are allowed and may still surprise.
    """
    settings = frame.settings
    found = [] if offline else run(_access(settings))
    _raise_faults(found)
    noted = [*remarks(settings), *(f"{each.subject}: {each.text}" for each in found if each.level is Level.REMARK)]
    data = {
        "ok": True,
        "forges": {name: {"url": it.url, "repositories": it.repositories} for name, it in settings.forges.items()},
        "lanes": list(settings.lanes),
        "remarks": noted,
    }
    frame.show(data, lambda: "\n".join(["The configuration is right.", *(f"  remark: {each}" for each in noted)]))


async def _access(settings: Settings) -> list[Finding]:
    expected = Expected(
        settings.labels.scheme, settings.lane_values, settings.asking.allow, settings.asking.who_may_ask
    )
    async with open_forges(settings, only_with_token=True) as forges:
        return [finding for forge in forges.values() for finding in await check_access(forge, expected)]


def _raise_faults(found: Sequence[Finding]) -> None:
    faults = [each for each in found if each.level is Level.FAULT]
    if not faults:
        return
    text = "\n".join(f"{each.subject}: {each.text} ({each.code})" for each in faults)
    if all(each.code == "forge_unreachable" for each in faults):
        raise ForgeUnavailable(f"{text}\n(--offline checks without asking)")
    raise ConfigError(text)


def remarks(settings: Settings) -> Iterator[str]:
    """What is allowed and may still surprise, as sentences."""
    if settings.database.address is None:
        yield f"{NO_DATABASE}; without one `serve` and `run` do not start, `up` uses a private one"
    if not settings.forges:
        yield "no forge is configured: nothing will be watched"
    for name, forge in settings.forges.items():
        if forge.token is None:
            yield f"forges.{name} has no token: good for `run`, not for `serve` and `up`"
        if forge.git_token is None:
            yield f"forges.{name} has no git credential: `run` does not start without one"
        if not forge.repositories:
            yield f"forges.{name} names no repositories: add some there, or with `tireless repos add`"
        if urlsplit(forge.url).scheme == "http" and not _is_loopback(urlsplit(forge.url).hostname or ""):
            yield f"forges.{name}.url is http: the token travels in the clear"
    if not settings.lanes:
        yield "no lane is configured: no job will find one"
    for kind in Kind if settings.lanes else ():
        if lane_for(kind, is_child=False, overrides=(), lanes=settings.lane_values) is None:
            yield f"no lane takes {kind} and none is the default: such issues make no job"
    for name, lane in settings.lanes.items():
        if not lane.command:
            yield f"lanes.{name} has no command: good for `serve`, not for `run --lane {name}` and `up`"
        elif lane.run_as is None:
            yield f"lanes.{name} has no run_as: its agent can read whatever the runner can, secrets included"
    if settings.web.enabled and not _is_loopback(settings.web.host):
        yield f"web.host is {settings.web.host}: the page can be read by others, and asks nobody who he is"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@click.command("migrate")
@click.option("--check", is_flag=True, help="Only say what is missing; exit code 3 unless nothing is.")
@printing
@pass_frame
def migrate(frame: Frame, check: bool) -> None:
    """Bring the database to the schema of this version. Any number may do it at once."""
    run(_migrate(frame, check))


async def _migrate(frame: Frame, check: bool) -> None:
    async with existing_url(frame.settings) as url:
        if not check:
            applied = await migrations.migrate(url)
            text = f"applied {', '.join(applied)}" if applied else "nothing to apply, it is current"
            frame.show({"database": shown(url), "applied": applied}, f"{shown(url)}: {text}")
            return
        status = await migrations.check(url)
        data = {"database": shown(url), "applied": status.applied, "missing": status.missing, "faults": status.faults}
        frame.show(data, f"{shown(url)}: current" if status.current else "")
        try:
            status.demand()
        except SchemaMismatch as error:
            raise SchemaMismatch(f"{shown(url)}: {error}") from None
