"""Makes text written by agents inert before it reaches a forge: it must close nothing, call nobody, hide nothing."""

from __future__ import annotations

import re

JOINER = "\u2060"
"""WORD JOINER: takes no room and breaks no line; what it separates is read by people and by no forge."""

# Bidirectional overrides and isolates show another text than is stored; the rest means nothing on a forge.
_UNSEEN = re.compile("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u2028\u2029\ud800-\udfff]")

# `#12`, `!12`, `owner/repo#12`: with these inert no closing word has anything to close, whatever words the forge's
# administrator has configured. A whole numeric entity (`&#39;`) is no reference.
_REFERENCE = re.compile(r"&#[0-9]{1,7};|([#!])(?=[0-9])")

# A forge strips Markdown before it looks for names, so `*@name*` counts; `a@b.example` is a mail address.
_MENTION = re.compile(r"(?<![A-Za-z0-9])@(?=[\w-])")

# The forge reads its own issues' addresses as references. A dot segment: people still get there, it does not match.
_ADDRESS = re.compile(r"(/(?:issues|pulls|pull)/)(?=[0-9])", re.IGNORECASE)

# Hidden text, and the blocks of raw HTML that would swallow what we write after them. Also guards our own markers.
_HIDDEN = re.compile(r"<(?=[!?]|(?:pre|script|style|textarea)\b)", re.IGNORECASE)

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r" {0,3}(?:[-*+]|[0-9]{1,9}[.)])(?: {1,4}(?=[^ ])| |$)")
_RULE = re.compile(r" {0,3}([-*_]) *(?:\1 *){2,}")


def neutralise(text: str) -> str:
    """`text` with its references, mentions and hidden parts inert, and readable as before; twice is as once.

    For titles, bodies, comments and commit messages alike: closing words find no issue to close, `#n`, `!n`,
    `owner/repo#n`, issue addresses and `@name` mean nothing to the forge, HTML comments become visible text.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _UNSEEN.sub("", text)
    text = _REFERENCE.sub(lambda found: found[1] + JOINER if found[1] else found[0], text)
    text = _MENTION.sub("@" + JOINER, text)
    text = _ADDRESS.sub(r"\1./", text)
    return _HIDDEN.sub("<" + JOINER, text)


def one_line(text: str, limit: int) -> str:
    """`text` on one line, white space runs as one blank, at most `limit` characters, the cut shown by `…`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def cut(text: str, limit: int, *, said: str = "(cut here)") -> str:
    """At most `limit` characters of `text`, its code fences closed; where it was cut, `said` on a line of its own."""
    text = text.strip()
    if len(text) <= limit:
        return close_fence(text)
    return f"{close_fence(text[:limit].rstrip())}\n\n{said}"


def close_fence(text: str) -> str:
    """`text` with a code fence that is still open at its end closed: what is written after it is no code.

    A fence within a list ends with its item, at the first line outside: to close it would open another one.
    """
    fence, items = "", [0]  # where the text of each list item begins, outermost first, the margin before all
    for line in (each.expandtabs(4) for each in text.split("\n") if each.strip()):
        while len(line) - len(line.lstrip(" ")) < items[-1]:
            items.pop()
            fence = ""
        rest = line[items[-1] :]
        while not fence and (item := _ITEM.match(rest)) and not _RULE.fullmatch(rest):
            items.append(items[-1] + max(item.end(), len(item[0].rstrip()) + 1))
            rest = rest[item.end() :]
        found = _FENCE.fullmatch(rest)
        if found is None:
            continue
        marks, said = found[1], found[2].strip()
        if not fence:
            if marks[0] == "~" or "`" not in said:
                fence = marks
        elif marks[0] == fence[0] and len(marks) >= len(fence) and not said:
            fence = ""
    return f"{text}\n{fence}" if fence and len(items) == 1 else text


def quote(text: str) -> str:
    """`text` as a Markdown quotation, line by line: nothing in it reaches past it."""
    return "\n".join(f"> {line}".rstrip() for line in text.strip().split("\n"))
