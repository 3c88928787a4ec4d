"""Takes secrets out of whatever leaves the process (log, database, comment, page); imports nothing of ours.

Known values go first, in every form they travel in (plain, URL, JSON, base64 at any offset); then what looks like a
credential wherever it stands. Redacting twice changes nothing.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MASK = "[redacted]"

MIN_LENGTH = 6
"""Characters. A shorter secret cannot be told from words and is not looked for: the configuration refuses it."""

_MIN_LINE = 16
"""A line of a secret of several lines (a private key) is looked for by itself from this length on."""

_MASK = MASK.encode()

# Quantifiers are bounded so that a stream need not hold back more than _REACH; none crosses a line or a quote.
_PATTERNS: tuple[tuple[re.Pattern[bytes], bytes], ...] = (
    # A token may stand in either half of http userinfo; elsewhere the user is no secret.
    (re.compile(rb"(?i)(\bhttps?://)[^/\s\"'<>?#]{1,1024}@"), rb"\1" + _MASK + b"@"),
    (re.compile(rb"(?i)(\b[a-z][a-z0-9+.-]{0,30}://[^/\s\"'<>@:]{0,256}:)[^/\s\"'<>]{1,1024}@"), rb"\1" + _MASK + b"@"),
    (
        re.compile(
            rb"(?i)([?&](?:access_token|private_token|token|password|passwd|secret|api_?key)=)[^&\s\"'<>#]{1,1024}"
        ),
        rb"\1" + _MASK,
    ),
    (
        re.compile(
            rb"(?i)(authorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?"
            rb"(?:basic|bearer|token|digest|negotiate|apikey)[ \t]{1,4})[^\s\"']{1,1024}"
        ),
        rb"\1" + _MASK,
    ),
    (re.compile(rb"(?i)(authorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?)[a-z0-9._~+/=-]{16,1024}"), rb"\1" + _MASK),
    (re.compile(rb"\b(?:gh[oprsu]_|github_pat_|glpat-|sk-ant-|sk-proj-|xox[abprs]-)[A-Za-z0-9_-]{16,512}"), _MASK),
)
_REACH = 2048


class Redactor:
    """Made once from every secret the process was given. Empty and very short ones are left out."""

    __slots__ = ("_forms", "_known")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        # The longest first: a form may be part of another.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        self._known = re.compile(b"|".join(map(re.escape, self._forms))) if forms else None

    def text(self, text: str) -> str:
        """`text` without secrets."""
        return self.bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def value(self, value: object) -> object:
        """A JSON-like value with every string in it, keys included, without secrets."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return self.bytes(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def stream(self) -> RedactingStream:
        """For output that comes in pieces."""
        return RedactingStream(self)

    def safe_cut(self, data: bytes, cut: int) -> int:
        """The greatest place up to `cut` where `data` may be cut without cutting a secret, begun ones included."""
        spans = [match.span() for pattern, _ in _PATTERNS for match in pattern.finditer(data)]
        spans += [match.span() for match in self._known.finditer(data)] if self._known else []
        spans += [(start, len(data) + 1) for start in self._begun(data)]
        while inside := [start for start, end in spans if start < cut < end]:
            cut = min(inside)
        return cut

    def _begun(self, data: bytes) -> list[int]:
        """Where a known form begins that the end of `data` breaks off: the first place for each form."""
        starts = []
        for form in self._forms:
            for length in range(min(len(form) - 1, len(data)), 0, -1):
                if data.endswith(form[:length]):
                    starts.append(len(data) - length)
                    break
        return starts

    def bytes(self, data: bytes) -> bytes:
        """`data` without secrets; what is no UTF-8 passes as it is."""
        if self._known:
            data = self._known.sub(_MASK, data)
        for pattern, replacement in _PATTERNS:
            data = pattern.sub(replacement, data)
        return data


class RedactingStream:
    """Passes whole lines on, without secrets, also those split over any number of pieces.

    A line longer than `longest_line` bytes is passed on in parts, cut where no secret is. Not for two streams at once.
    """

    __slots__ = ("_held", "_longest_line", "_redactor")

    def __init__(self, redactor: Redactor, *, longest_line: int = 16_384) -> None:
        self._redactor = redactor
        self._longest_line = max(longest_line, 2 * _REACH)
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece, return what can be told already (often nothing)."""
        held = self._held + piece
        cut = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
        if len(held) - cut > self._longest_line:
            cut = len(held) - _REACH
        cut = self._redactor.safe_cut(held, cut) if cut else 0
        self._held = held[cut:]
        return self._redactor.bytes(held[:cut])

    def close(self) -> bytes:
        """The rest. The stream can then be used anew."""
        rest, self._held = self._held, b""
        return self._redactor.bytes(rest)


def _forms(secret: str) -> set[bytes]:
    """Every form in which the secret may travel."""
    values = {secret, secret.strip()}
    values |= {line.strip() for line in secret.splitlines() if len(line.strip()) >= _MIN_LINE}
    forms: set[bytes] = set()
    for value in values:
        if len(value) < MIN_LENGTH:
            continue
        raw = value.encode("utf-8", "surrogatepass")
        written = (
            quote(value, safe="", errors="surrogatepass"),
            quote(value, errors="surrogatepass"),
            quote_plus(value, errors="surrogatepass"),
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            repr(value)[1:-1],
            html.escape(value),
        )
        forms |= {raw, *(form.encode("utf-8", "surrogatepass") for form in written), *_base64_forms(raw)}
    return forms


def _base64_forms(raw: bytes) -> set[bytes]:
    """What of `raw` can be seen in the base64 of a longer text (`user:secret`), for each of the three alignments."""
    forms = set()
    for offset, mixed in ((0, 0), (1, 2), (2, 3)):  # the first `mixed` characters depend on what stands before
        whole = (offset + len(raw)) * 8 // 6  # so does the last one on what follows, where it is not whole
        for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
            forms.add(encode(bytes(offset) + raw)[mixed:whole])
    return forms
