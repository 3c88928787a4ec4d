"""The directories of runs below one root: made, locked while in use, and removed; never anything outside the root.

ROOT/.tireless-workspaces        the mark of a root of ours; without it nothing is ever removed
ROOT/cache/KEY.git               a bare copy of a repository, shared by its runs; KEY.lock beside it
ROOT/runs/KEY/tree               the agent's work tree, and its alone
ROOT/runs/KEY/exchange           job.json, prompt.md, result.json: written by us before, by the agent during the run
ROOT/runs/KEY/own                ours: repository, index, lock, origin.json; the agent is never told of it
ROOT/saved/KEY.bundle            work that was not delivered; KEY.json beside it: where it came from
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tireless.agent.holding import stopped_holder
from tireless.errors import WorkspaceError

_MARK = ".tireless-workspaces"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOCK_TICK_S = 0.05
_LOCK_LOOK_TICKS = 20
_STOPPED_LOOKS = 2
"""A holder that is stopped in so many looks, a second apart, is not waited for: nobody knows for how long."""


class StoppedHolderError(WorkspaceError):
    """Who holds a cache's lock is stopped, and may be for ever."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"process {pid} holds {path} and is stopped: continue it (kill -CONT {pid}), or end it")
        self.pid = pid


class Hold:
    """An open descriptor with a lock on it. Let go of once, however often it is asked: numbers are used again."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def close(self) -> None:
        """Let go."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptor, for a process that shall hold the lock as well; none once it was let go of."""
        return () if self._fd is None else (self._fd,)


@dataclass(frozen=True, slots=True)
class Home:
    """The directories of one run. While `hold` is open no clean-up takes the run for dead."""

    key: str
    path: Path
    hold: Hold
    tree_id: tuple[int, int]
    """Device and inode of `tree` as we made it."""

    @property
    def tree(self) -> Path:
        """The work tree."""
        return self.path / "tree"

    @property
    def exchange(self) -> Path:
        """What agent and runner hand each other: TIRELESS_RUN_DIR."""
        return self.path / "exchange"

    @property
    def own(self) -> Path:
        """Ours alone."""
        return self.path / "own"

    def check_root(self) -> str | None:
        """Why nothing may be run or read in the tree: it is gone, or no longer the directory that we made."""
        try:
            found = os.lstat(self.tree)
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode) or (found.st_dev, found.st_ino) != self.tree_id:
            return "the work tree was replaced"
        return None

    def check_tree(self) -> str | None:
        """Why the tree may not be read as a work tree of git's; None: it may."""
        if wrong := self.check_root():
            return wrong
        try:
            inside = os.lstat(self.tree / ".git")
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        if not stat.S_ISDIR(inside.st_mode):
            return "the .git of the work tree is no directory any more"
        return None


class Places:
    """One root. Keys are made by us from ids; a key that could lead elsewhere is refused."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))

    def open(self, *, shared: bool = False) -> None:
        """Make or check the root. `shared`: other users (run_as) must be able to pass through it."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            mark = self.root / _MARK
            if not mark.exists():
                if any(self.root.iterdir()):
                    raise WorkspaceError(
                        f"the workspace root {self.root} is not empty and not ours; name an empty directory"
                    )
                mark.touch(0o600)
            self._plain(self.root)
            self.root.chmod(0o711 if shared else 0o700)
            for name, mode in (("cache", 0o700), ("runs", 0o711 if shared else 0o700), ("saved", 0o700)):
                (self.root / name).mkdir(mode=mode, exist_ok=True)
                self._plain(self.root / name)
        except OSError as error:
            raise WorkspaceError(f"could not use the workspace root {self.root}: {error}") from error

    def create(self, key: str) -> Home:
        """Make the directories of a new run."""
        path = self._run(key)
        # Under a name that `stale` does not look at: between its making and its locking it would pass for a dead run.
        aside = path.with_name(f".{key}")
        try:
            aside.mkdir(mode=0o711)
            for name in ("tree", "exchange", "own"):
                (aside / name).mkdir(mode=0o700)
            lock = os.open(aside / "own" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside.rename(path)
            made = os.lstat(path / "tree")
        except OSError as error:
            raise WorkspaceError(f"could not make the directories of a run at {path}: {error}") from error
        return Home(key=key, path=path, hold=Hold(lock), tree_id=(made.st_dev, made.st_ino))

    def look(self) -> bool:
        """Is there a root of ours? Makes nothing. WorkspaceError when something else stands there."""
        if not os.path.lexists(self.root):
            return False
        try:
            self._plain(self.root)
            if not (self.root / _MARK).is_file():
                raise WorkspaceError(f"{self.root} does not carry our mark {_MARK}: it is no workspace root")
            for name in ("cache", "runs", "saved"):
                self._plain(self.root / name)
        except OSError as error:
            raise WorkspaceError(f"could not look into the workspace root {self.root}: {error}") from error
        return True

    def runs(self) -> list[str]:
        """Keys of all runs on disk."""
        with os.scandir(self.root / "runs") as entries:
            ours = [each.name for each in entries if _KEY.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
        return sorted(ours)

    def stale(self) -> list[str]:
        """Keys of runs that no living process holds: what crashed runners of this host left."""
        return [key for key in self.runs() if not self.in_use(key)]

    def in_use(self, key: str) -> bool:
        """Does a living process (a runner, a guard, who tidies up) hold this run? When in doubt, it does."""
        return _held(self._run(key) / "own" / "lock")

    def take(self, key: str, tree_id: tuple[int, int]) -> Home | None:
        """Hold a run that nobody holds, to tidy it up; None when somebody does, or it is gone meanwhile."""
        path = self._run(key)
        try:
            (path / "own").mkdir(mode=0o700, exist_ok=True)
            lock = os.open(path / "own" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WorkspaceError(f"could not lock the run {path}: {error}") from error
        hold = Hold(lock)
        with contextlib.suppress(FileNotFoundError):
            # Taken after somebody else had removed it, the lock is on a file that has no name any more.
            if _flock(lock) and _same(lock, path / "own" / "lock"):
                return Home(key=key, path=path, hold=hold, tree_id=tree_id)
        hold.close()
        return None

    async def remove(self, key: str) -> None:
        """Remove a run's directories; gone already is as good. Verified: WorkspaceError if anything is left."""
        await asyncio.to_thread(self._remove_aside, self._run(key))

    def has_run(self, key: str) -> bool:
        """Is there a run of this key on disk?"""
        return bool(_KEY.fullmatch(key)) and os.path.lexists(self.root / "runs" / key)

    def cache(self, key: str) -> Path:
        """The bare repository for a repository's key."""
        return self.root / "cache" / f"{_checked(key)}.git"

    def saved(self, key: str) -> Path:
        """Where undelivered work of a run is kept."""
        return self.root / "saved" / f"{_checked(key)}.bundle"

    @contextlib.asynccontextmanager
    async def locked(self, cache: Path, *, limit_s: float) -> AsyncIterator[int]:
        """Hold a cache's lock; yields the descriptor, for git to hold as well: it may outlive us.

        StoppedHolderError within seconds when who holds it is stopped.
        """
        path = cache.with_suffix(".lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Asked for again and again: a thread that blocks in flock could not be called off.
            stopped = 0
            for tick in range(1, 1 + max(1, int(limit_s / _LOCK_TICK_S))):
                if _flock(lock):
                    break
                if tick % _LOCK_LOOK_TICKS == 0:
                    pid = stopped_holder(lock)
                    stopped = 0 if pid is None else stopped + 1
                    if pid is not None and stopped == _STOPPED_LOOKS:
                        raise StoppedHolderError(path, pid)
                await asyncio.sleep(_LOCK_TICK_S)
            else:
                raise WorkspaceError(f"another process has held {path} for {limit_s:.0f} s; look who does")
            os.utime(lock)  # when the cache was last used: its age, to who tidies up
            yield lock
        finally:
            os.close(lock)

    def cache_held(self, cache: Path) -> bool:
        """Does somebody fetch into this cache, or copy from it, at this moment?"""
        return _held(cache.with_suffix(".lock"))

    def lock_cache(self, cache: Path) -> Hold | None:
        """The same lock, at once or not at all: to remove a cache, or to tidy it up."""
        lock = os.open(cache.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if _flock(lock):
            return Hold(lock)
        os.close(lock)
        return None

    async def remove_cache(self, cache: Path) -> None:
        """Remove a cache; the caller holds its lock, whose file stays: somebody may be waiting for it."""
        await asyncio.to_thread(self._remove_aside, cache)

    async def remove_entry(self, path: Path) -> None:
        """Remove one file or directory directly below `cache`, `runs` or `saved`; links themselves, never through."""
        if path.parent not in {self.root / name for name in ("cache", "runs", "saved")} or path.name in ("", ".", ".."):
            raise WorkspaceError(f"refused to remove {path}: it is no entry of the workspace root {self.root}")
        await asyncio.to_thread(self._remove, path)

    def _run(self, key: str) -> Path:
        return self.root / "runs" / _checked(key)

    def _remove_aside(self, path: Path) -> None:
        """Out of the way at once, then removed: nobody meets half of it, or its lock without it, meanwhile."""
        self._check_removal(path)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            path.rename(aside)
            os.utime(aside, follow_symlinks=False)  # not litter yet
        except FileNotFoundError:
            return
        except OSError as error:
            raise WorkspaceError(f"could not remove {path}: {error}; remove it by hand") from error
        self._remove(aside)

    def _check_removal(self, path: Path) -> None:
        for part in (self.root, path.parent):
            self._plain(part)
        if not (self.root / _MARK).is_file():
            raise WorkspaceError(f"refused to remove {path}: {self.root} does not carry our mark {_MARK}")

    def _remove(self, path: Path) -> None:
        self._check_removal(path)
        try:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                remove_tree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise WorkspaceError(f"could not remove {path}: {error}; remove it by hand") from error
        if os.path.lexists(path):
            raise WorkspaceError(f"{path} is still there after its removal; something writes to it")

    def _plain(self, path: Path) -> None:
        """A directory of ours itself, not a link to one."""
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise WorkspaceError(f"{path} is a link or belongs to another user: refused to work below it")


def remove_tree(path: Path) -> None:
    """Like `rm -rf`: follows no link, and opens directories that an agent closed (a Go module cache is read-only)."""
    try:
        shutil.rmtree(path)
    except PermissionError:
        _open_directories(path)
        shutil.rmtree(path)


def _open_directories(path: Path) -> None:
    os.chmod(path, 0o700)
    for directory, names, _files in os.walk(path):
        # Before the walk goes into them.
        for name in names:
            inside = os.path.join(directory, name)
            if stat.S_ISDIR(os.lstat(inside).st_mode):
                os.chmod(inside, 0o700)


def _held(lock: Path) -> bool:
    """Does a living process hold this lock? Where it is not there, nobody does; where we cannot open it, somebody."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        return not _flock(fd)
    finally:
        os.close(fd)


def _same(fd: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(fd), os.lstat(path))


def _flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise WorkspaceError(f"{key!r} cannot be the name of a workspace")
    return key
