"""tireless-agent-opencode: `opencode run` as an agent. `tireless-agent-opencode [--program PATH] WORDS…`

WORDS are handed to `opencode run` as they are. Its JSON events are read; what they mean stands in docs/agents.md.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence

from tireless.adapters.program import Place, Run, chosen
from tireless.adapters.seen import Seen

_LIMIT = 429
_ACCOUNT = (401, 402, 403)
_REJECTED = "rejected permission"
"""Of opencode's own sentence for a tool that was refused; tools' own errors are quoted otherwise."""
_NOT_THE_LAST = ("tool-calls", "unknown", "length")
"""Ends of a step that another one follows; at `length` the model's own bound cut it."""


def command(program: str, words: Sequence[str]) -> list[str]:
    """One event a line; the prompt comes on standard input."""
    return [program, "run", "--format", "json", *words]


def read(event: Mapping[str, object], seen: Seen) -> str | None:
    """Take one event; what is to be shown of it."""
    if isinstance(session := event.get("sessionID"), str):
        seen.session = session
    part = _object(event.get("part"))
    match event.get("type"):
        case "step_start":
            seen.whole = False
            return None
        case "text" if isinstance(text := part.get("text"), str) and text.strip():
            seen.said += 1
            seen.last_text = text
            return text
        case "tool_use":
            return _tool(part, seen)
        case "step_finish":
            _step(part, seen)
            return None
        case "error":
            return _error(_object(event.get("error")), seen)
        case "done":
            seen.finished = seen.whole = True
            rejected = event.get("rejected")
            seen.refused += [str(each) for each in (rejected if isinstance(rejected, list) else ())]
            return None
        case _:
            return None


def _tool(part: Mapping[str, object], seen: Seen) -> str:
    state = _object(part.get("state"))
    given = _object(state.get("input"))
    what = next((str(given[name]) for name in ("command", "filePath", "path", "pattern", "url") if name in given), "")
    shown = f"[{part.get('tool')}] {what[:300]}".strip()
    error = state.get("error")
    if state.get("status") == "error" and isinstance(error, str) and _REJECTED in error:
        seen.refused.append(f"{part.get('tool')} {what[:300]}".strip())
        return f"{shown} was refused"
    seen.said += 1
    return shown


def _step(part: Mapping[str, object], seen: Seen) -> None:
    """Each step says what it alone has cost, and why it ended."""
    seen.whole = part.get("reason") not in _NOT_THE_LAST
    tokens = _object(part.get("tokens"))
    cache = _object(tokens.get("cache"))
    fresh = _number(tokens.get("input")) or 0
    seen.input_tokens += int(fresh + (_number(cache.get("read")) or 0) + (_number(cache.get("write")) or 0))
    seen.output_tokens += int((_number(tokens.get("output")) or 0) + (_number(tokens.get("reasoning")) or 0))
    if (cost := _number(part.get("cost"))) is not None:
        seen.usd = (seen.usd or 0.0) + cost


def _error(error: Mapping[str, object], seen: Seen) -> str:
    data = _object(error.get("data"))
    name = str(error.get("name") or "an error")
    reason = f"opencode: {name}: {data.get('message') or ''}"[:2000]
    status = _number(data.get("statusCode"))
    if status == _LIMIT or status in _ACCOUNT or name == "ProviderAuthError":
        seen.provider = reason
        seen.retry_after = _seconds(_object(data.get("responseHeaders")).get("retry-after"))
    else:
        seen.error = reason
    return reason


def _seconds(value: object) -> float | None:
    """Of a Retry-After header that names seconds."""
    try:
        return float(str(value))
    except ValueError:
        return None


def _model(words: Sequence[str]) -> str | None:
    """Its events do not name the model; our own words may."""
    for word, after in itertools.zip_longest(words, words[1:]):
        if word in ("--model", "-m"):
            return after
        if word.startswith("--model="):
            return word.partition("=")[2] or None
    return None


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def main() -> None:
    """The console script."""
    place = Place.of(os.environ)
    program, words = chosen(sys.argv[1:], "opencode")
    seen = Seen("opencode", model=_model(words))
    raise SystemExit(Run(command(program, words), place, seen, read).whole())


if __name__ == "__main__":
    main()
