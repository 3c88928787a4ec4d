"""Who holds a lock on a file, and whether it is stopped: then it may never let go. Linux only; changes nothing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tireless.agent.guard import look_up

_LOCKS = Path("/proc/locks")


def stopped_holder(fd: int) -> int | None:
    """The process that took the lock on this open file, when it is stopped (SIGSTOP, a debugger); None else.

    Whoever has inherited the lock lets go of it, or is ended by whoever started it; a stopped one does neither.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = os.fstat(fd).st_ino
        for line in _LOCKS.read_text().splitlines():
            # "3: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; the device there is not always the one stat tells
            words = line.split()
            if words[1] != "FLOCK" or words[5].rpartition(":")[2] != str(inode):
                continue
            holder = look_up(int(words[4]))
            if holder is not None and holder.stopped:
                return holder.pid
    return None
