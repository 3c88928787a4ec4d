"""Tidies up a runner's root: saves the work of dead runs, then removes what retention.py lets go.

Everything is removed under the lock that its users hold; what cannot be removed is told, and stays.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tireless import log
from tireless.agent.collect import Collector
from tireless.agent.control import RunAs
from tireless.agent.origin import NAME, Origin, read_origin
from tireless.agent.places import Home
from tireless.agent.retention import Item, Retention, What, due, litter, survey
from tireless.agent.workspace import Workspace, Workspaces
from tireless.errors import WorkspaceError
from tireless.redact import Redactor

_log = log.get(__name__)

PACKS_MAX = 50
"""A cache with more packs (one comes with each fetch) is packed anew."""


@dataclass(frozen=True, slots=True)
class Act:
    """What was done, or would be, with one thing. `error`: it was to go, and could not."""

    item: Item
    reason: str
    saved: str | None = None
    """The bundle its work is kept in."""
    error: str | None = None


class Upkeep:
    """For one root, by any number of processes at once."""

    def __init__(self, spaces: Workspaces, redactor: Redactor, retention: Retention) -> None:
        self._spaces = spaces
        self._redactor = redactor
        self._retention = retention
        self._told: set[Path] = set()
        """What could not be removed, and was said to: once, not with every round."""

    async def tidy(self, *, older_than_s: float | None = None, dry: bool = False) -> list[Act]:
        """One round. `older_than_s`: what is not in use goes at this age. `dry`: only say what would be done."""
        places = self._spaces.places
        items = await asyncio.to_thread(survey, places, measure=False)
        acts = [*await self._dead(items, older_than_s, dry), *await self._surplus(items, older_than_s, dry)]
        if not dry:
            for path in await asyncio.to_thread(litter, places):
                await self._litter(path)
            await self._pack([item for item in items if item.what is What.CACHE])
        for act in acts:
            facts = {"kind": act.item.what.value, "key": act.item.key, "reason": act.reason}
            if act.error is not None:
                if act.item.path not in self._told:
                    _log.error("workspace not removed", error=act.error, **facts)
                self._told.add(act.item.path)
            elif not dry:
                _log.info("workspace removed", saved=act.saved, **facts)
        return acts

    # ---------------------------------------------------------------- trees

    async def _dead(self, items: Sequence[Item], older_than_s: float | None, dry: bool) -> list[Act]:
        """Runs whose process died. Their work is saved first; where it cannot be, they stay for their time."""
        trees = [item for item in items if item.what is What.TREE]
        bounds = self._retention.trees
        if older_than_s is not None:
            bounds = replace(bounds, age_s=min(bounds.age_s, older_than_s))
        out_of_bounds = due(trees, bounds)
        acts = []
        for item in trees:
            if item.in_use:
                continue
            reason = out_of_bounds.get(item.path)
            if dry:
                acts.append(Act(item, reason or "nobody works on it any more; its work is saved first"))
            elif act := await self._bury(item, reason):
                acts.append(act)
        return acts

    async def _bury(self, item: Item, out_of_bounds: str | None) -> Act | None:
        """Save and remove one dead run; None when somebody else has it."""
        reason, saved = out_of_bounds or "nobody works on it any more", None
        try:
            origin = read_origin(item.path / "own" / NAME)
            home = self._spaces.places.take(item.key, origin.tree_id if origin else (0, 0))
            if home is None:
                return None
            try:
                saved, lost = await self._save(home, origin)
                if lost is not None and out_of_bounds is None:
                    return Act(item, reason, error=f"its work could not be saved ({lost}); it is kept for its time")
                await self._spaces.places.remove(home.key)
            finally:
                home.hold.close()
        except (WorkspaceError, OSError) as error:
            return Act(item, reason, saved=saved, error=str(error))
        return Act(item, reason, saved=saved)

    async def _save(self, home: Home, origin: Origin | None) -> tuple[str | None, str | None]:
        """The bundle's name if there was work, and why work that may be there could not be saved."""
        if origin is None:
            # It died before its tree was made, or somebody took the note away.
            return None, "nothing says what it came from" if _has_git(home.tree) else None
        if self._spaces.places.saved(home.key).exists():
            return self._spaces.places.saved(home.key).name, None  # by the runner itself, just before it died
        if not self._spaces.may_lose(home):
            return None, None  # no agent ever ran in it, or its work was delivered
        space = Workspace(
            home=home,
            cache=self._spaces.places.root / "cache" / origin.cache,
            base_branch=origin.base_branch,
            base_sha=origin.base_sha,
            run_as=_owner(home.tree),
        )
        await self._spaces.forget_work(space)
        collector = Collector(self._spaces.git, space, identity=self._spaces.identity, redactor=self._redactor)
        try:
            evidence = await collector.evidence(
                request=origin.subject.request or "unknown", subject=f"Work left on {origin.subject.issue or home.key}"
            )
            if evidence.unreadable is not None:
                return None, evidence.unreadable
            if evidence.commit is None:
                return None, None
            return (await self._spaces.save(space, evidence.commit)).name, None
        except WorkspaceError as error:
            return None, str(error)

    # ---------------------------------------------------------------- bundles and caches

    async def _surplus(self, items: Sequence[Item], older_than_s: float | None, dry: bool) -> list[Act]:
        acts = []
        for what in (What.BUNDLE, What.CACHE):
            bounds = self._retention.of(what)
            if older_than_s is not None:
                bounds = replace(bounds, age_s=min(bounds.age_s, older_than_s))
            chosen = [item for item in items if item.what is what]
            reasons = due(chosen, bounds)
            for item in chosen:
                if item.path not in reasons:
                    continue
                act = Act(item, reasons[item.path])
                try:
                    gone = dry or await self._remove(item)
                except (WorkspaceError, OSError) as error:
                    acts.append(replace(act, error=str(error)))
                    continue
                if gone:
                    acts.append(act)
        return acts

    async def _remove(self, item: Item) -> bool:
        """Remove one bundle or cache; False when somebody uses it after all."""
        places = self._spaces.places
        if item.what is What.BUNDLE:
            await places.remove_entry(item.path)
            await places.remove_entry(item.path.with_suffix(".json"))
            return True
        hold = places.lock_cache(item.path)
        if hold is None:
            return False
        try:
            # Asked again under the lock: a run that came meanwhile has pinned its base there.
            if await self._spaces.pinned(item.path):
                return False
            await places.remove_cache(item.path)
        finally:
            hold.close()
        return True

    async def _pack(self, caches: Sequence[Item]) -> None:
        for item in caches:
            try:
                if len(list((item.path / "objects" / "pack").glob("*.pack"))) > PACKS_MAX:
                    await self._spaces.pack(item.path)
            except (WorkspaceError, OSError) as error:
                _log.warning("cache not packed", key=item.key, error=str(error))

    async def _litter(self, path: Path) -> None:
        try:
            await self._spaces.places.remove_entry(path)
        except (WorkspaceError, OSError) as error:
            _log.error("litter not removed", path=str(path), error=str(error))


def _has_git(tree: Path) -> bool:
    return os.path.lexists(tree / ".git")


def _owner(tree: Path) -> RunAs | None:
    """Whose the tree is, if not ours: git refuses to read it as anybody else."""
    try:
        found = os.lstat(tree)
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid == os.geteuid():
        return None
    return RunAs(uid=found.st_uid, gid=found.st_gid)
