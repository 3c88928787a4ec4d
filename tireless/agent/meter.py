"""Reads in progress.ndjson what a running agent has used so far, by its word. Bounded; torn lines say nothing."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from tireless.domain.result import Usage, parse_progress
from tireless.redact import Redactor

READ_MAX = 256 * 1024
"""Bytes read at once. Where more was written meanwhile the end of it is read: what is said there is the sum."""
LINE_MAX = 64 * 1024
"""Bytes of a line that is not whole yet that are kept; a longer one is passed over."""


class Meter:
    """`read` whenever there may be news; `usage` is the most that was said."""

    def __init__(self, path: Path | None, redactor: Redactor) -> None:
        self._path = path
        self._redactor = redactor
        self._seen = (0, 0)
        """Inode and size at the last look."""
        self._at = 0
        self._torn = b""
        self._skipping = False
        self.usage = Usage()

    def read(self) -> bool:
        """Take in what was written since the last time; did it say anything new?"""
        before = self.usage
        for line in self._lines():
            # Most lines tell of progress only: those are not worth a parser.
            if b'"usage"' in line:
                self._take(line)
        return self.usage != before

    def _take(self, line: bytes) -> None:
        try:
            data = self._redactor.value(json.loads(line))
        except (ValueError, RecursionError):
            return  # the agent's file: garbage in it says nothing
        said = parse_progress(data)
        if said is not None:
            self.usage = self.usage.then(said)

    def _lines(self) -> list[bytes]:
        """The lines that are whole now."""
        if self._path is None:
            return []
        try:
            if self._unchanged():
                return []
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            with open(os.open(self._path, flags), "rb") as file:
                data = self._new(file.fileno())
        except OSError:
            return []  # not there (yet), a link, not ours to read
        *whole, torn = (self._torn + data).split(b"\n")
        if self._skipping and whole:
            self._skipping = False
            whole = whole[1:]
        self._torn = torn if len(torn) <= LINE_MAX else b""
        self._skipping = self._skipping or len(torn) > LINE_MAX
        return whole

    def _unchanged(self) -> bool:
        if self._path is None:
            return True
        now = self._path.lstat()
        return (now.st_ino, now.st_size) == self._seen

    def _new(self, fd: int) -> bytes:
        """What was added, at most READ_MAX bytes from the end; of a file that was replaced or cut, all of it."""
        now = os.fstat(fd)
        if not stat.S_ISREG(now.st_mode):
            return b""
        if now.st_ino != self._seen[0] or now.st_size < self._at:
            self._at, self._torn, self._skipping = 0, b"", False
        if now.st_size - self._at > READ_MAX:
            self._at, self._torn, self._skipping = now.st_size - READ_MAX, b"", True
        data = os.pread(fd, READ_MAX, self._at)
        self._at += len(data)
        self._seen = (now.st_ino, self._at)
        return data
