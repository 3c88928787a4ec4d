"""What an agent prints, bounded: redacted before anything keeps it, decoded, head and tail kept, pieces passed on."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from tireless.redact import Redactor

KEPT = 65_536
"""Bytes (UTF-8) of the head, and as many of the tail."""


class Capture:
    """Takes raw bytes in pieces of any size; holds at most a few times its bound, however much is printed."""

    def __init__(self, redactor: Redactor, on_output: Callable[[str], None], *, kept: int = KEPT) -> None:
        self._stream = redactor.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._on_output = on_output
        self._kept = kept
        self._head = b""
        self._tail = bytearray()
        self.total = 0
        """Bytes seen, before redaction."""

    def feed(self, piece: bytes) -> None:
        """Take what was read; `on_output` gets what can be told already."""
        self.total += len(piece)
        self._keep(self._decoder.decode(self._stream.feed(piece)))

    def close(self) -> None:
        """The output has ended: let out what was held back."""
        self._keep(self._decoder.decode(self._stream.close(), final=True))

    @property
    def head(self) -> str:
        """The beginning, cut between characters."""
        return self._head.decode("utf-8", "ignore")

    @property
    def tail(self) -> str:
        """The last of what did not fit the head, cut between characters; empty when everything did."""
        return bytes(self._tail[-self._kept :]).decode("utf-8", "ignore")

    def _keep(self, text: str) -> None:
        if not text:
            return
        text = text.replace("\0", "�")  # no database takes a NUL
        data = text.encode()
        room = 0 if self._tail else self._kept - len(self._head)
        while 0 < room < len(data) and data[room] & 0xC0 == 0x80:
            room -= 1
        self._head += data[:room]
        self._tail += data[room:]
        # Trimmed now and then, not with every piece: moving 64 KiB for each line would cost more than the agent.
        if len(self._tail) > 8 * self._kept:
            del self._tail[: -self._kept]
        self._on_output(text)
