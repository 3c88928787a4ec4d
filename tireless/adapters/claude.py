"""tireless-agent-claude: Claude Code in print mode as an agent. `tireless-agent-claude [--program PATH] WORDS…`

WORDS are handed to `claude` as they are. Its stream-json events are read; what they mean stands in docs/agents.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from tireless.adapters.program import Place, Run, chosen
from tireless.adapters.seen import Seen

_OVER_BUDGET = "error_max_budget_usd"
_SPENT = ("error_max_turns", _OVER_BUDGET, "error_max_structured_output_retries")
_ACCOUNT = (401, 402, 403)
_LIMIT = 429


def command(program: str, words: Sequence[str], place: Place, usd_left: str | None = None) -> list[str]:
    """Print mode, one event a line (which wants --verbose), with leave to write result.json outside of the tree.

    Its events tell what it cost only at the end, so it is told itself what it may cost.
    """
    budget = () if usd_left is None else ("--max-budget-usd", usd_left)
    return [
        *(program, "-p", "--output-format", "stream-json", "--verbose"),
        *("--add-dir", str(place.run_dir)),
        *budget,
        *words,
    ]


def read(event: Mapping[str, object], seen: Seen) -> str | None:
    """Take one event; what is to be shown of it."""
    if isinstance(session := event.get("session_id"), str):
        seen.session = session
    match event.get("type"):
        case "system" if event.get("subtype") == "init":
            model = event.get("model")
            seen.model = model if isinstance(model, str) else seen.model
            return None
        case "system" if event.get("subtype") == "api_retry":
            delay = (_number(event.get("retry_delay_ms")) or 0) / 1000
            return f"[waits {delay:.0f} s for its provider: {event.get('error_status')} {event.get('error')}]"
        case "assistant":
            if event.get("parent_tool_use_id") is None:
                # Also after a result: what ran in the background came back, and this turn has a result of its own.
                seen.finished = seen.whole = False
            return _assistant(event, seen)
        case "rate_limit_event":
            _limit(_object(event.get("rate_limit_info")), seen)
            return None
        case "result":
            _result(event, seen)
            return None
        case _:
            return None


def _assistant(event: Mapping[str, object], seen: Seen) -> str | None:
    message = _object(event.get("message"))
    error = event.get("error")
    content = message.get("content")
    shown = []
    for part in content if isinstance(content, list) else ():
        part = _object(part)
        match part.get("type"):
            case "text" if isinstance(text := part.get("text"), str) and text.strip():
                if error is None and message.get("model") != "<synthetic>":
                    seen.said += 1
                    seen.last_text = text
                shown.append(text)
            case "tool_use":
                seen.said += 1
                shown.append(f"[{part.get('name')}] {_what(_object(part.get('input')))}")
    if isinstance(error, str):
        _api_error(error, "\n".join(shown), seen)
    return "\n".join(shown) or None


def _api_error(code: str, text: str, seen: Seen) -> None:
    """The code of a message that Claude Code made up for an error of the API."""
    reason = f"Claude: {code}: {text}"[:2000]
    if code in ("rate_limit", "billing_error", "authentication_failed", "oauth_org_not_allowed"):
        seen.provider = reason
    else:
        seen.error = reason


def _limit(info: Mapping[str, object], seen: Seen) -> None:
    """Only `rejected` is a limit that was met; `allowed` and `allowed_warning` come with every run."""
    if info.get("status") == "rejected":
        seen.resets_at = _number(info.get("resetsAt"))
        seen.provider = f"Claude's {info.get('rateLimitType') or 'usage'} limit is reached"
    elif seen.provider is not None and seen.provider.startswith("Claude's "):
        seen.provider = seen.resets_at = None  # it was waited for, and is over


def _result(event: Mapping[str, object], seen: Seen) -> None:
    """The last event. `subtype: success` and exit code 0 also stand on runs that came to nothing: other fields tell."""
    seen.finished = seen.whole = True
    seen.gave_up = None  # of a turn before
    text = event.get("result")
    status = _number(event.get("api_error_status"))
    failed = event.get("is_error") is True or status is not None
    usage = _object(event.get("usage"))
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    seen.input_tokens = int(sum(_number(usage.get(name)) or 0 for name in names))
    seen.output_tokens = int(_number(usage.get("output_tokens")) or 0)
    seen.usd = _number(event.get("total_cost_usd"))
    denials = event.get("permission_denials")
    for denial in denials if isinstance(denials, list) else ():
        denial = _object(denial)
        seen.refused.append(f"{denial.get('tool_name')} {_what(_object(denial.get('tool_input')))}".strip())
    said = text.strip() if isinstance(text, str) else ""
    subtype = event.get("subtype")
    if subtype == _OVER_BUDGET and seen.usd_left is not None:
        seen.error = f"Claude stopped at the {seen.usd_left} USD that were left of what its job may cost"
    elif subtype in _SPENT:
        seen.gave_up = f"Claude stopped at a bound of its own: {subtype}"
    elif status in (_LIMIT, *_ACCOUNT):
        seen.provider = seen.provider or f"Claude's provider answered {status:g}: {said}"[:2000]
    elif failed or subtype != "success":
        errors = event.get("errors")
        why = said or ", ".join(map(str, errors if isinstance(errors, list) else ())) or str(subtype)
        if seen.provider is None:
            seen.error = seen.error or f"Claude failed: {why}"[:2000]
    else:
        # It ended well: limits and errors on the way were waited for.
        seen.provider = seen.resets_at = seen.error = None
        if said:
            seen.said += 1
            seen.last_text = said


def _what(given: Mapping[str, object]) -> str:
    """The most telling word of a tool's input."""
    for name in ("command", "file_path", "path", "pattern", "url", "description"):
        if isinstance(value := given.get(name), str):
            return value[:300]
    return ""


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _names_a_budget(words: Sequence[str]) -> bool:
    """The lane's own words have the last say."""
    return any(word.partition("=")[0] == "--max-budget-usd" for word in words)


def main() -> None:
    """The console script."""
    place = Place.of(os.environ)
    program, words = chosen(sys.argv[1:], "claude")
    left = None if _names_a_budget(words) else os.environ.get("TIRELESS_USD_LEFT")
    seen = Seen("claude", usd_left=left)
    raise SystemExit(Run(command(program, words, place, left), place, seen, read).whole())


if __name__ == "__main__":
    main()
