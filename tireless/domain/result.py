"""What an agent may say in result.json, as values: parsing and bounds. Decides nothing about a job; see outcome.py."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from tireless.domain.job import Kind

PROTOCOL = 1
TITLE_MAX = 255
CHILDREN_MAX = 50
SUMMARY_MAX = 65_536
"""Characters kept of `summary`, `reason`, `question`: a discovery's report is its summary. More is cut, not refused."""
BODY_MAX = 262_144
"""Characters kept of a body."""
SHORT_MAX = 255
"""Characters kept of lane, model, session."""
COUNT_MAX = 2**53

_KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Word(StrEnum):
    """The outcomes an agent may name, by result or by exit code. The worst comes first: see outcome.SEVERITY."""

    DONE = "done"
    NO_CHANGE = "no_change"
    NEEDS_INPUT = "needs_input"
    BLOCKED = "blocked"
    QUOTA = "quota"
    RETRY = "retry"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PullText:
    """What the agent would like its pull request to say; not neutralised yet."""

    title: str
    body: str = ""
    draft: bool = False


@dataclass(frozen=True, slots=True)
class Child:
    """One issue a plan or a discovery proposes. `depends_on` holds keys of the same result, acyclic."""

    key: str
    title: str
    body: str = ""
    kind: Kind = Kind.IMPLEMENT
    lane: str | None = None
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What the attempt cost, as far as the agent says. None: not said."""

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    usd: float | None = None

    def then(self, later: Usage) -> Usage:
        """This and what was said after it. Totals: a later word counts, but none makes what was spent less."""
        return Usage(
            model=later.model or self.model,
            input_tokens=_most(self.input_tokens, later.input_tokens),
            output_tokens=_most(self.output_tokens, later.output_tokens),
            usd=_most(self.usd, later.usd),
        )


@dataclass(frozen=True, slots=True)
class Result:
    """A valid result.json. Text is free of NUL and lone surrogates, and bounded; it is still the agent's text."""

    outcome: Word
    summary: str = ""
    reason: str | None = None
    question: str | None = None
    retry_after: float | datetime | None = None
    """Seconds from now, or an aware time: `retry.wait_s` tells the two apart."""
    pr: PullText | None = None
    children: tuple[Child, ...] = ()
    usage: Usage = field(default_factory=Usage)
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Malformed:
    """A result.json that is there and cannot be used. `error` is a sentence for people."""

    error: str


_N = TypeVar("_N", int, float)


def _most(one: _N | None, other: _N | None) -> _N | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


class _Bad(ValueError):
    """A rule of the protocol was broken; the message says which."""


def parse_result(data: object) -> Result | Malformed:
    """Read decoded JSON as a result. Unknown keys are ignored, so that protocol 1 can grow."""
    try:
        return _result(_mapping(data, "result.json"))
    except _Bad as bad:
        return Malformed(f"result.json: {bad}")


def parse_progress(data: object) -> Usage | None:
    """What one decoded line of progress.ndjson says was used so far; None for one that says nothing usable."""
    if not isinstance(data, Mapping) or data.get("usage") is None:
        return None
    try:
        return _usage(data["usage"])
    except _Bad:
        return None


def clean(text: str) -> str:
    """Replace what no database and no page can hold: NUL and lone surrogates."""
    return _SURROGATE.sub("�", text.replace("\0", "�"))


def _result(data: Mapping[str, object]) -> Result:
    if data.get("protocol") != PROTOCOL or isinstance(data["protocol"], bool):
        raise _Bad(f'"protocol" must be {PROTOCOL}, not {_show(data.get("protocol"))}')
    result = Result(
        outcome=_word(data.get("outcome")),
        summary=_text(data, "summary", SUMMARY_MAX) or "",
        reason=_text(data, "reason", SUMMARY_MAX) or None,
        question=_text(data, "question", SUMMARY_MAX) or None,
        retry_after=_retry_after(data.get("retry_after")),
        pr=_pull(data.get("pr")),
        children=_children(data.get("children")),
        usage=_usage(data.get("usage")),
        session=_text(data, "session", SHORT_MAX) or None,
    )
    match result.outcome:
        case Word.NEEDS_INPUT if not result.question:
            raise _Bad('outcome "needs_input" needs a "question"')
        case Word.BLOCKED | Word.FAILED if not (result.reason or result.summary):
            raise _Bad(f'outcome "{result.outcome}" needs a "reason"')
        case _:
            return result


def _word(value: object) -> Word:
    if not isinstance(value, str) or value not in tuple(Word):
        raise _Bad(f'"outcome" must be one of {", ".join(Word)}, not {_show(value)}')
    return Word(value)


def _retry_after(value: object) -> float | datetime | None:
    match value:
        case None:
            return None
        case bool():
            pass
        case int() | float() if abs(value) <= COUNT_MAX and value >= 0:
            return float(value)
        case str():
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                moment = None
            if moment is not None and moment.tzinfo is not None:
                return moment
    raise _Bad(f'"retry_after" must be seconds or a time with UTC offset (2026-01-31T12:00:00Z), not {_show(value)}')


def _pull(value: object) -> PullText | None:
    if value is None:
        return None
    data = _mapping(value, '"pr"')
    return PullText(
        title=_title(data, 'the title of "pr"'),
        body=_text(data, "body", BODY_MAX) or "",
        draft=_flag(data, "draft"),
    )


def _children(value: object) -> tuple[Child, ...]:
    if value is None:
        return ()
    rows = _sequence(value, '"children"')
    if len(rows) > CHILDREN_MAX:
        raise _Bad(f'"children" has {len(rows)} entries; at most {CHILDREN_MAX} are taken')
    children = tuple(_child(_mapping(row, f"child {n}"), n) for n, row in enumerate(rows, 1))
    _check_graph(children)
    return children


def _child(data: Mapping[str, object], position: int) -> Child:
    key = data.get("key")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise _Bad(f"the key of child {position} must match [a-z0-9][a-z0-9-]{{0,63}}, not {_show(key)}")
    kind = data.get("kind") or Kind.IMPLEMENT
    if kind not in tuple(Kind):
        raise _Bad(f'the kind of child "{key}" must be one of {", ".join(Kind)}, not {_show(kind)}')
    depends_on = _sequence(data.get("depends_on") or [], f'"depends_on" of child "{key}"')
    if not all(isinstance(other, str) for other in depends_on):
        raise _Bad(f'"depends_on" of child "{key}" must hold keys of children')
    return Child(
        key=key,
        title=_title(data, f'the title of child "{key}"'),
        body=_text(data, "body", BODY_MAX) or "",
        kind=Kind(str(kind)),
        lane=_text(data, "lane", SHORT_MAX) or None,
        depends_on=tuple(dict.fromkeys(str(other) for other in depends_on)),
    )


def _check_graph(children: Sequence[Child]) -> None:
    """Keys unique, dependencies known, no cycle: peel off what depends on nothing until nothing is left."""
    waiting = {child.key: set(child.depends_on) for child in children}
    if len(waiting) < len(children):
        counts = Counter(child.key for child in children)
        raise _Bad(f'two children have the key "{counts.most_common(1)[0][0]}"')
    for key, others in waiting.items():
        if unknown := sorted(others - waiting.keys()):
            raise _Bad(f'child "{key}" depends on "{unknown[0]}", which is no child of this result')
    while waiting:
        free = {key for key, others in waiting.items() if not others}
        if not free:
            raise _Bad(f"the dependencies of {', '.join(sorted(waiting))} go in a circle")
        waiting = {key: others - free for key, others in waiting.items() if key not in free}


def _usage(value: object) -> Usage:
    if value is None:
        return Usage()
    data = _mapping(value, '"usage"')
    return Usage(
        model=_text(data, "model", SHORT_MAX) or None,
        input_tokens=_count(data, "input_tokens"),
        output_tokens=_count(data, "output_tokens"),
        usd=_money(data.get("usd")),
    )


def _count(data: Mapping[str, object], name: str) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= COUNT_MAX:
        raise _Bad(f'"{name}" of "usage" must be a whole number from 0, not {_show(value)}')
    return value


def _money(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= COUNT_MAX:
        raise _Bad(f'"usd" of "usage" must be a number from 0, not {_show(value)}')
    return float(value)


def _title(data: Mapping[str, object], what: str) -> str:
    """One line, not empty, at most TITLE_MAX characters: what a forge takes as a title."""
    title = " ".join((_text(data, "title", BODY_MAX) or "").split())
    if not title:
        raise _Bad(f"{what} is missing or empty")
    if len(title) > TITLE_MAX:
        raise _Bad(f"{what} has {len(title)} characters; at most {TITLE_MAX} are taken")
    return title


def _text(data: Mapping[str, object], name: str, limit: int) -> str | None:
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _Bad(f'"{name}" must be text, not {_show(value)}')
    # Cut, not refused: an expensive run is not thrown away because it talks too much.
    return clean(value if len(value) <= limit else value[: limit - 1] + "…")


def _flag(data: Mapping[str, object], name: str) -> bool:
    value = data.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _Bad(f'"{name}" must be true or false, not {_show(value)}')


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    raise _Bad(f"{what} must be a JSON object, not {_show(value)}")


def _sequence(value: object, what: str) -> Sequence[object]:
    if isinstance(value, list | tuple):
        return value
    raise _Bad(f"{what} must be a JSON array, not {_show(value)}")


def _show(value: object) -> str:
    """A value as a person may read it in an error: short, without what a database refuses."""
    text = clean(repr(value))
    return text if len(text) <= 60 else text[:57] + "…"
