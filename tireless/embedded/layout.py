"""What lies where in a state directory, and the locks that say who lives; starts nothing.

clients.lock   every user holds it shared for as long as it uses the server (the kernel drops it, however it died)
keeper.lock    the keeper, parent of the server, holds it exclusively for its life
start.lock     serialises the clients that are starting a keeper
data/  run/    the cluster and its socket          server-*/  a copy of the binaries where the server can read them
keeper.log  postgres.log
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from pathlib import Path

from tireless.errors import EmbeddedError

PORT = 5432
"""Only part of the socket's file name: the server never listens on TCP."""

SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX

_SOCKET_PATH_MAX = 100
"""sun_path holds 108 bytes on Linux, 104 on macOS."""


class Lock:
    """A lock on a file: held until `close` or the end of the process, never inherited by what we start."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise EmbeddedError(f"opening {path}: {error.strerror}: choose a state directory of your own") from error

    def take(self, how: int) -> bool:
        """Try once; False when another process holds it."""
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise EmbeddedError(f"locking in the state directory: {error.strerror}: choose a local disk") from error
        return True

    def close(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def make_state(state: Path) -> None:
    """Create the state directory with its missing parents; what exists is never changed.

    As root what is made is readable for all, whatever the umask: the server runs as another user.
    """
    as_root = os.geteuid() == 0
    missing = []
    for folder in (state, *state.parents):
        if folder.exists():
            break
        missing.append(folder)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another client was faster
            folder.mkdir(mode=0o700)
            if as_root:
                folder.chmod(0o755)
    owner = state.stat().st_uid
    if not as_root and owner != os.geteuid():
        raise EmbeddedError(f"{state} belongs to user {owner}: choose a state directory of your own")


def socket_dir(state: Path) -> Path:
    """Where the server's socket lies: in the state directory, unless its path is too long for a socket."""
    inside = state / "run"
    if len(os.fsencode(inside / f".s.PGSQL.{PORT}")) <= _SOCKET_PATH_MAX:
        return inside
    # Every client must come to the same place, so not below TMPDIR; private_dir refuses one that is not ours.
    return Path("/tmp") / f"tireless-{hashlib.sha256(os.fsencode(state)).hexdigest()[:16]}"  # noqa: S108 - checked by private_dir


def private_dir(folder: Path, ids: tuple[int, int] | None) -> None:
    """Make `folder` (0700) for the server's user; refuse one that somebody else put there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    owner = ids[0] if ids else os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in ({0, owner} if ids else {owner}):
        raise EmbeddedError(f"{folder} was put there by user {found.st_uid}: remove it, then try again")
    if ids:
        os.chown(folder, *ids, follow_symlinks=False)
    folder.chmod(0o700)


def tail(path: Path, lines: int = 15) -> str:
    """The end of a log, or nothing when there is none."""
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    return ""
