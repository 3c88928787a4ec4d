"""Whether another user can run the guard of his agents: tried as that user, since no mode bits tell it all."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tireless.agent.control import RunAs
from tireless.agent.process import guard_file

_LIMIT_S = 60.0
_SAID_MAX = 300

INSTALL = "install tireless where he can, as `python3 -m venv /opt/tireless` does (README.md), and start that one"
"""What to do about a python, or a file of ours, that is closed to an agent's user."""

_READ = "import sys; open(sys.argv[1], 'rb').read(1)"


def guard_fault(who: RunAs, name: str) -> str | None:
    """Why this user could not run the guard, with what to do; None when he can. Starts a process as him: needs root."""
    try:
        done = subprocess.run(  # noqa: S603 - our own python, and no shell reads the words
            [who.python, "-I", "-S", "-c", _READ, guard_file(who)],
            user=who.uid,
            group=who.gid,
            extra_groups=who.groups,
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    else:
        if done.returncode == 0:
            return None
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        why = said[:_SAID_MAX] or f"it ended with {done.returncode}"
    shut = _shut(Path(who.python), who)
    where = f" (closed to him: {shut})" if shut else ""
    return f"{name} may not run {who.python}, by which the guard of his agents is started: {why}{where}; {INSTALL}"


def _shut(python: Path, who: RunAs) -> Path | None:
    """The first directory on the way there, links followed, whose mode keeps him out; None where modes do not tell."""
    for path in (python, python.resolve()):
        for each in reversed(path.parents):
            try:
                found = each.stat()
            except OSError:
                return None
            bit = 0o100 if found.st_uid == who.uid else 0o010 if found.st_gid in (who.gid, *who.groups) else 0o001
            if not found.st_mode & bit:
                return each
    return None
