"""What operators type as arguments: durations, issues, repositories; and who they are."""

from __future__ import annotations

import getpass
import os
import re
from datetime import timedelta

import click

from tireless.config import Settings, parse_duration
from tireless.errors import UsageError

_REPOSITORY = re.compile(r"(?:(?P<forge>[a-z0-9][a-z0-9_-]*):)?(?P<owner>[A-Za-z0-9._-]+)/(?P<name>[A-Za-z0-9._-]+)")
_ISSUE = re.compile(_REPOSITORY.pattern + "#(?P<number>[1-9][0-9]{0,8})")


def duration(_ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """An option's callback: a duration as the configuration writes them."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


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
