"""What a run on disk came from, written beside it, so that whoever finds it after its runner died can save its work.

The file lies where the agent is told of nothing; it is read all the same as if somebody else had written it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "origin.json"
_MAX = 16_384
_CACHE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.git")
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_LINE = re.compile(r"[\x20-\x7e]{0,300}")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a run is about, for people, and what its commits name."""

    job: int | None = None
    issue: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """One run: the cache's directory name, what the tree stood on, its device and inode, and what it was about."""

    cache: str
    base_branch: str
    base_sha: str
    tree_id: tuple[int, int]
    subject: Subject = Subject()

    def write(self, directory: Path) -> None:
        """To a directory of ours, whole or not at all."""
        aside = directory / f".{NAME}.new"
        aside.write_text(json.dumps(asdict(self)))
        aside.rename(directory / NAME)


def read_origin(path: Path) -> Origin | None:
    """What the file says; None when it is not there, no regular file, or says what we never write."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = dict(json.loads(file.read(_MAX))) if plain else {}
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    with contextlib.suppress(KeyError, TypeError, ValueError):
        device, inode = map(int, data["tree_id"])
        said = data["subject"]
        job, issue, request = said["job"], str(said["issue"]), str(said["request"])
        found = Origin(
            cache=str(data["cache"]),
            base_branch=str(data["base_branch"]),
            base_sha=str(data["base_sha"]),
            tree_id=(device, inode),
            subject=Subject(None if job is None else int(job), issue, request),
        )
        named = _CACHE.fullmatch(found.cache) and _SHA.fullmatch(found.base_sha)
        if named and _LINE.fullmatch(issue) and _LINE.fullmatch(request):
            return found
    return None
