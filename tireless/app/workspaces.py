"""What an operator's `workspaces` looks at and tidies up: the runner's root of this host; no database is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tireless.agent.gitcli import Git
from tireless.agent.places import Places
from tireless.agent.retention import Item, survey
from tireless.agent.upkeep import Act, Upkeep
from tireless.agent.workspace import Workspaces
from tireless.app.running import git_environment, retention
from tireless.config import Settings
from tireless.redact import Redactor


@dataclass(frozen=True, slots=True)
class Kept:
    """What lies below the root, and what the next round would do with it, by path."""

    root: Path
    items: tuple[Item, ...]
    goes: Mapping[Path, str]


async def kept(settings: Settings, redactor: Redactor) -> Kept:
    """Look, and remove nothing. WorkspaceError when the root is not ours to look into."""
    upkeep = _upkeep(settings, redactor)
    if upkeep is None:
        return Kept(settings.runner_root, (), {})
    goes = {act.item.path: act.reason for act in await upkeep.tidy(dry=True)}
    return Kept(settings.runner_root, tuple(survey(Places(settings.runner_root))), goes)


async def prune(settings: Settings, redactor: Redactor, *, older_than_s: float | None, dry: bool) -> list[Act]:
    """One round of what a runner does by itself. WorkspaceError when the root is not ours."""
    upkeep = _upkeep(settings, redactor)
    return [] if upkeep is None else await upkeep.tidy(older_than_s=older_than_s, dry=dry)


def _upkeep(settings: Settings, redactor: Redactor) -> Upkeep | None:
    places = Places(settings.runner_root)
    if not places.look():
        return None
    spaces = Workspaces(places, Git(redactor=redactor, environ=git_environment(settings)))
    return Upkeep(spaces, redactor, retention(settings))
