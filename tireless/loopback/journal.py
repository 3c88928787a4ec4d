"""Every request the loopback forge received, in order, so that a test can count and quote them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

KEPT = 200_000
BODY_KEPT = 64 * 1024


@dataclass(slots=True)
class Recorded:
    """One request. `status` is 0 until it was carried out, and stays so when the client went away before that."""

    seq: int
    at: float
    """The forge's clock when it arrived."""
    method: str
    path: str
    query: str
    login: str = ""
    """Whom the token spoke for; empty for nobody."""
    status: int = 0
    size: int = 0
    """Bytes of the request's body."""
    body: str = ""
    """The beginning of the body, when it is text."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """In lower case. What authorises is left out: a record can be shown."""

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def as_json(self) -> dict[str, object]:
        """All of it."""
        return asdict(self)


class Journal:
    """The last `KEPT` requests."""

    def __init__(self) -> None:
        self._rows: deque[Recorded] = deque(maxlen=KEPT)
        self._seq = 0

    def open(self, *, at: float, method: str, path: str, query: str) -> Recorded:
        """Note a request as it arrives."""
        self._seq += 1
        record = Recorded(seq=self._seq, at=at, method=method, path=path, query=query)
        self._rows.append(record)
        return record

    def rows(self, *, after: int = 0) -> list[Recorded]:
        """The requests with a higher sequence number, oldest first."""
        return [each for each in list(self._rows) if each.seq > after]

    def clear(self) -> None:
        """Forget the requests; the numbering goes on."""
        self._rows.clear()

    @property
    def last(self) -> int:
        """The highest sequence number given so far."""
        return self._seq


def as_json(rows: Iterable[Recorded]) -> list[dict[str, object]]:
    """Requests for the admin door."""
    return [each.as_json() for each in rows]
