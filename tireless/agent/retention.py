"""What lies below a runner's root, and what of it may go: looked up here, decided here, removed by upkeep.py.

Follows no link; never takes for free what a living process holds.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tireless.agent.origin import NAME, read_origin
from tireless.agent.places import Places

LITTER_AGE_S = 3600.0
"""Half-made things (a killed runner's, a killed git's) are nobody's after this time."""


class What(StrEnum):
    """Kinds of things that are kept."""

    TREE = "tree"
    BUNDLE = "bundle"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long, how many and how much (bytes) of one kind is kept; what is in use counts, and stays."""

    age_s: float
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Retention:
    """The bounds of each kind. Trees: those of dead runs whose work could not be saved; the others go at once."""

    trees: Bounds = field(default_factory=lambda: Bounds(7 * 86_400.0, 20, 10 * 2**30))
    bundles: Bounds = field(default_factory=lambda: Bounds(30 * 86_400.0, 500, 5 * 2**30))
    caches: Bounds = field(default_factory=lambda: Bounds(30 * 86_400.0, 200, 50 * 2**30))

    def of(self, what: What) -> Bounds:
        """The bounds of one kind."""
        return {What.TREE: self.trees, What.BUNDLE: self.bundles, What.CACHE: self.caches}[what]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing below the root. `age_s`: since it was made, or, of a cache, since it was last used."""

    what: What
    key: str
    path: Path
    age_s: float
    size: int
    in_use: bool
    job: int | None = None
    issue: str = ""


def survey(places: Places, *, measure: bool = True) -> list[Item]:
    """Everything there is. Without `measure` trees that are in use have no size: to add them up takes long."""
    now = time.time()
    return [*_trees(places, now, measure), *_bundles(places, now), *_caches(places, now)]


def _trees(places: Places, now: float, measure: bool) -> Iterator[Item]:
    for key in places.runs():
        path = places.root / "runs" / key
        try:
            made = os.lstat(path).st_mtime
            in_use = places.in_use(key)
        except FileNotFoundError:
            continue
        origin = read_origin(path / "own" / NAME)
        job, issue = (origin.subject.job, origin.subject.issue) if origin else (None, "")
        size = size_of(path) if measure or not in_use else 0
        yield Item(What.TREE, key, path, now - made, size, in_use, job, issue)


def _bundles(places: Places, now: float) -> Iterator[Item]:
    for path, found in _entries(places.root / "saved"):
        if path.suffix == ".bundle" and not path.name.startswith("."):
            origin = read_origin(path.with_suffix(".json"))
            job, issue = (origin.subject.job, origin.subject.issue) if origin else (None, "")
            yield Item(What.BUNDLE, path.stem, path, now - found.st_mtime, found.st_blocks * 512, False, job, issue)


def _caches(places: Places, now: float) -> Iterator[Item]:
    """One is in use while a run that came from it is on disk: its work is read with the cache's objects."""
    users = {
        origin.cache for key in places.runs() if (origin := read_origin(places.root / "runs" / key / "own" / NAME))
    }
    for path, found in _entries(places.root / "cache"):
        if path.suffix != ".git" or path.name.startswith("."):
            continue
        try:
            used = os.lstat(path.with_suffix(".lock")).st_mtime
        except FileNotFoundError:
            used = found.st_mtime
        in_use = path.name in users or places.cache_held(path)
        yield Item(What.CACHE, path.stem, path, now - used, size_of(path), in_use)


def litter(places: Places) -> list[Path]:
    """What killed processes left half-made, and nobody will finish."""
    limit = time.time() - LITTER_AGE_S
    found = []
    for name, whole in (("runs", ()), ("saved", (".bundle", ".json")), ("cache", (".git", ".lock"))):
        for path, status in _entries(places.root / name):
            half_made = path.name.startswith(".") or (whole and path.suffix not in whole)
            orphan = path.suffix == ".json" and name == "saved" and not path.with_suffix(".bundle").exists()
            if (half_made or orphan or stat.S_ISLNK(status.st_mode)) and status.st_mtime < limit:
                found.append(path)
    return found


def due(items: Sequence[Item], bounds: Bounds) -> dict[Path, str]:
    """Which of one kind are to go, and why: too old first, then the oldest until count and size are within bounds."""
    free = [item for item in sorted(items, key=lambda item: -item.age_s) if not item.in_use]
    goes = {item.path: f"older than {_days(bounds.age_s)}" for item in free if item.age_s > bounds.age_s}
    count = len(items) - len(goes)
    size = sum(item.size for item in items if item.path not in goes)
    for item in free:
        if item.path in goes:
            continue
        if count > bounds.count:
            goes[item.path] = f"more than {bounds.count} of them"
        elif size > bounds.size:
            goes[item.path] = f"more than {bounds.size} bytes of them"
        else:
            break
        count, size = count - 1, size - item.size
    return goes


def _days(seconds: float) -> str:
    return f"{seconds / 86_400:g} days" if seconds >= 86_400 else f"{seconds:g} s"


def _entries(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in sorted(directory.iterdir()):
        try:
            yield path, os.lstat(path)
        except FileNotFoundError:  # somebody else tidies up as well
            continue


def size_of(path: Path) -> int:
    """Bytes on disk of everything at and below `path`; what goes away meanwhile, or is closed to us, counts nothing."""
    total = 0
    queue = [os.fspath(path)]
    while queue:
        here = queue.pop()
        try:
            status = os.lstat(here)
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(here) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            queue.append(entry.path)
                        else:
                            total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total
