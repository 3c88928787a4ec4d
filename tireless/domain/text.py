"""Foreign text made safe to show to an agent, and names made from it. Neutralising what agents write: inert.py."""

from __future__ import annotations

import re
import unicodedata

SLUG_MAX = 40

# What a person reading the issue does not see, and an agent would: format characters that hide or reorder text,
# the tag block (a whole invisible alphabet), blanks that are letters to Unicode, variation selectors 17-256.
_HIDDEN_RANGES = (
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF9, 0xFFFB),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}
_HIDDEN = str.maketrans(
    _CONTROLS
    | {code: None for low, high in _HIDDEN_RANGES for code in range(low, high + 1)}
    | dict.fromkeys((0, *range(55296, 57344)), "�")
    | {0x2028: "\n", 0x2029: "\n"}
)


def visible(text: str) -> str:
    """Foreign text as a person sees it: no HTML comments, zero-width, bidi, tag or control characters.

    Invisible characters go first, so that none of them can hide the beginning of a comment. NUL and lone surrogates
    become U+FFFD: they were there, and no database takes them.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_HIDDEN)
    return _without_comments(text)


def _without_comments(text: str) -> str:
    """Replace each `<!-- … -->` by a blank; one that is never closed hides the rest, as it does on the page."""
    kept: list[str] = []
    at = 0
    while (start := text.find("<!--", at)) >= 0:
        kept += [text[at:start], " "]
        # `<!-->` is a whole comment to a browser, and `--!>` ends one.
        end = _end_of_comment(text, start + 2)
        if end is None:
            return "".join(kept)
        at = end
    return "".join([*kept, text[at:]])


_COMMENT_END = re.compile(r"--!?>")


def _end_of_comment(text: str, start: int) -> int | None:
    found = _COMMENT_END.search(text, start)
    return found.end() if found else None


def one_line(text: str) -> str:
    """`visible`, with every run of white space as one blank: for titles."""
    return " ".join(visible(text).split())


def slug(title: str) -> str:
    """A title as part of a branch name: `[a-z0-9-]`, at most SLUG_MAX characters, never empty."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain)[: SLUG_MAX * 4].strip("-")
    return words[:SLUG_MAX].strip("-") or "issue"


def branch_name(number: int, title: str, attempt_uid_hex: str) -> str:
    """The ref of its own that one attempt may create: `tireless/<number>-<slug>.<8 hex digits of its uid>`."""
    return f"{branch_prefix(number)}{slug(title)}.{attempt_uid_hex[:8]}"


def branch_prefix(number: int) -> str:
    """What every branch of an issue begins with."""
    return f"tireless/{number}-"
