"""What operators type and are told: durations, issues, repositories, jobs, holds of lanes; and who they are."""

from __future__ import annotations

import getpass
import os
import re
from datetime import timedelta

import click

from tireless.config import Settings, parse_duration
from tireless.domain.held_lane import release_command
from tireless.errors import UsageError
from tireless.store.lanes import HoldRow

_REPOSITORY = re.compile(r"(?:(?P<forge>[a-z0-9][a-z0-9_-]*):)?(?P<owner>[A-Za-z0-9._-]+)/(?P<name>[A-Za-z0-9._-]+)")
_ISSUE = re.compile(_REPOSITORY.pattern + "#(?P<number>[1-9][0-9]{0,8})")
_JOB = re.compile("[1-9][0-9]{0,17}")


def duration(_ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """An option's callback: a duration as the configuration writes them."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


def job_number(_ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A callback: a job's number; who gives an issue instead is told where the numbers of its jobs are."""
    if value is None or _JOB.fullmatch(value):
        return None if value is None else int(value)
    of_issue = f" --issue {value}" if _ISSUE.fullmatch(value) else ""
    said = f"{value!r} is not the number of a job: see `tireless jobs ls{of_issue}`"
    raise click.BadParameter(said, param=param)


def repository(text: str) -> tuple[str | None, str, str]:
    """`[FORGE:]OWNER/REPO` in its parts; click's usage error otherwise."""
    found = _REPOSITORY.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{text!r} is no repository: write OWNER/REPO, or FORGE:OWNER/REPO with several forges")
    return found["forge"], found["owner"], found["name"]


def issue(text: str) -> tuple[str | None, str, str, int]:
    """`[FORGE:]OWNER/REPO#N` in its parts; click's usage error otherwise."""
    found = _ISSUE.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{text!r} is no issue: write OWNER/REPO#N")
    return found["forge"], found["owner"], found["name"], int(found["number"])


def why_held(hold: HoldRow) -> str:
    """Where, until when and why a lane is held, after words that say what of it is."""
    where = f"on {hold.host} " if hold.host else ""
    until = f"until {hold.until:%Y-%m-%d %H:%M:%S} UTC" if hold.until else "until it is released"
    return f"{where}{until}: {hold.reason.rstrip('.')}"


def held(hold: HoldRow) -> str:
    """A hold in one line, without what ends it."""
    where = f" on {hold.host}" if hold.host else ""
    until = f" until {hold.until:%Y-%m-%d %H:%M:%S} UTC" if hold.until else ""
    return f"held{where} by {hold.held_by} ({hold.source}){until}: {hold.reason.rstrip('.')}"


def how_to_end(hold: HoldRow) -> str:
    """What an operator does to end a hold."""
    first = "correct it there, then" if hold.source == "setup" else "to end it:"
    return f"{first} `{release_command(hold.lane, hold.source, hold.host)}`"


def operator() -> str:
    """Who is acting: the name his acts are recorded under."""
    # sudo keeps who it was; acts of three people as root would all look alike otherwise.
    return os.environ.get("SUDO_USER") or getpass.getuser()


def chosen_forge(settings: Settings, named: str | None) -> str:
    """The forge that was named, else the only one there is. UsageError otherwise."""
    known = ", ".join(settings.forges) or "none"
    if named is None and len(settings.forges) == 1:
        return next(iter(settings.forges))
    if named is None:
        raise UsageError(f"which forge? Write FORGE:OWNER/REPO; configured are {known}")
    if named not in settings.forges:
        raise UsageError(f"there is no forge {named} in the configuration; configured are {known}")
    return named
