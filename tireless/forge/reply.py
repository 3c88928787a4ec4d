"""One answer of a forge, read defensively, and the error its status means; never decided by its text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import unquote

from tireless.errors import (
    ForgeDenied,
    ForgeError,
    ForgeGarbled,
    ForgeRejected,
    ForgeUnavailable,
    Moved,
    NotFound,
    RateLimited,
)


class AnswerTooLarge(ForgeGarbled):
    """The answer was longer than we read: ask for less of it. Anyone who can write issues can cause this."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One 2xx answer, body unread. `call` is `METHOD path`, for messages."""

    forge: str
    call: str
    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> object:
        """The body as JSON; None for an empty one. Raw control characters inside strings are taken as they are."""
        text = self.content.decode("utf-8", "replace").strip()
        if not text:
            return None
        try:
            return json.loads(text, strict=False)
        except (ValueError, RecursionError) as error:
            raise ForgeGarbled(
                f"{self.call}: forge {self.forge} answered {self.status} with a body that is not JSON "
                f"(starts {excerpt(text)!r}); look for a proxy or a login page before the forge",
                status=self.status,
            ) from error

    def mapping(self) -> dict[str, object]:
        """The body as a JSON object; anything else is ForgeGarbled."""
        data = self.json()
        if not isinstance(data, dict):
            raise self.garbled(f"expected an object, got {_kind(data)}")
        return data

    def sequence(self) -> list[object]:
        """The body as a JSON array; `null` and nothing count as empty, as Gitea means them.

        The search for repositories wraps its array into an object.
        """
        data = self.json()
        if isinstance(data, dict) and data.get("ok") is True and isinstance(data.get("data"), list):
            data = data["data"]
        if data is None:
            return []
        if not isinstance(data, list):
            raise self.garbled(f"expected a list, got {_kind(data)}")
        return data

    def garbled(self, what: str) -> ForgeGarbled:
        """The error for an answer that parses and still does not have the shape it must have."""
        return ForgeGarbled(
            f"{self.call}: forge {self.forge} answered {self.status}, but {what}; "
            "nothing was concluded from it, it will be asked again",
            status=self.status,
        )

    @property
    def server_date(self) -> datetime | None:
        """The `Date` header, None when it is absent or no date."""
        return _http_date(self.headers.get("date", ""))

    @property
    def total(self) -> int | None:
        """`X-Total-Count`, None when it is absent or no number."""
        text = self.headers.get("x-total-count", "").strip()
        return int(text) if text.isascii() and text.isdigit() else None


def error_of(answer: Answer, clean: Callable[[str], str]) -> ForgeError:
    """The error of the tree a non-2xx answer means. `clean` makes foreign text fit for a message."""
    status = answer.status
    said = clean(_message(answer))
    head = f"{answer.call}: forge {answer.forge} answered {status}{f' ({said})' if said else ''}"
    match status:
        case 301 | 302 | 303 | 307 | 308:
            said = f"{head}; the repository or its owner was renamed: find it by its id"
            return Moved(said, status=status, to=_moved_to(answer.headers.get("location", "")))
        case 401:
            return ForgeDenied(f"{head}; the token is wrong or revoked: make a new one", status=status)
        case 403:
            return ForgeDenied(
                f"{head}; the token's scopes or its user's rights do not reach", status=status, scopes=_scopes(said)
            )
        case 404:
            return NotFound(f"{head}; it is not there, or this token may not see it", status=status)
        case 429 | 503:
            retry_after_s = _retry_after(answer.headers.get("retry-after"), answer.server_date)
            if status == 429 or retry_after_s is not None:
                return RateLimited(f"{head}; it asks us to wait", status=status, retry_after_s=retry_after_s)
            return ForgeUnavailable(f"{head}; this passes, it will be tried again", status=status)
        case 408 | 425:
            return ForgeUnavailable(f"{head}; this passes, it will be tried again", status=status)
        case _ if status >= 500:
            return ForgeUnavailable(f"{head}; look at the forge's log if this stays", status=status)
        case _ if status >= 400:
            return ForgeRejected(f"{head}; it understood the call and refused it", status=status)
        case _:
            return ForgeGarbled(f"{head}, which means nothing here", status=status)


def _scopes(said: str) -> tuple[str, ...]:
    """The scopes that Gitea and Forgejo say would have done, for people: `required=[read:organization]`."""
    found = re.search(r"required=\[([a-z:, ]{1,200})\]", said)
    return tuple(found[1].replace(",", " ").split()) if found else ()


def _moved_to(location: str) -> tuple[str, str] | None:
    """Owner and name in the address a redirect leads to; it is only read, never followed."""
    found = re.search(r"/api/v1/repos/([^/?#]+)/([^/?#]+)", location)
    return (unquote(found[1]), unquote(found[2])) if found else None


def _message(answer: Answer) -> str:
    """What the forge said in words, for people only. HTML pages say nothing worth repeating."""
    try:
        data = answer.json()
    except ForgeGarbled:
        text = answer.content.decode("utf-8", "replace")
        return "" if "<" in text[:200] else text
    if isinstance(data, dict):
        said = data.get("message")
        return said if isinstance(said, str) else ""
    return data if isinstance(data, str) else ""


def _retry_after(text: str | None, now: datetime | None) -> float | None:
    """Seconds of a `Retry-After` header, in either of its forms; None when it is absent or unreadable."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    until = _http_date(text)
    return None if until is None or now is None else max(0.0, (until - now).total_seconds())


def _http_date(text: str) -> datetime | None:
    """A date of an HTTP header in UTC, None for anything else."""
    try:
        found = parsedate_to_datetime(text)
        return found.astimezone(UTC) if found.tzinfo else None
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def excerpt(text: str) -> str:
    """At most 200 printable characters on one line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[:400]).split())
    return line if len(line) <= 200 else line[:199] + "…"


def _kind(data: object) -> str:
    """What a JSON value is called."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(data), "a number")
