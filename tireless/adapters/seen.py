"""What an adapter saw of a run, and the result it makes of that: one table for every program.

Decides by structured facts only. Words of a model that speak of limits or permissions decide nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

Result = dict[str, object]

RESULT_MAX = 4 * 1024 * 1024
_TEXT_MAX = 60_000
_FENCE = re.compile(r"```json[ \t]*\r?\n(.*?)\r?\n```[ \t]*\s*\Z", re.DOTALL)


@dataclass(slots=True)
class Seen:
    """What a stream said so far. `provider` and `error` are sentences; `retry_after` seconds, or epoch seconds."""

    program: str
    finished: bool = False
    """Its last event came: what follows is only its exit."""
    whole: bool = False
    """The model had its say to the end. A stream that stops before was cut, whatever the exit code says."""
    said: int = 0
    """Texts and tool calls of the model."""
    last_text: str = ""
    session: str | None = None
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = None
    usd_left: str | None = None
    """What the runner lets it cost, and the program was told: to stop there is no word of its own."""
    refused: list[str] = field(default_factory=list)
    """Tools that were denied, as a person would recognise them."""
    provider: str | None = None
    """Why the provider takes no more from us: a limit, or an account that may not."""
    retry_after: float | None = None
    resets_at: float | None = None
    error: str | None = None
    """Why the run failed, otherwise; worth another try."""
    gave_up: str | None = None
    """A bound of the program's own (turns, money) was reached: another run would meet it again."""
    broken: int = 0
    """Lines that were no JSON object, or too long to be read."""

    @property
    def usage(self) -> Result:
        """As protocol 1 has it."""
        usage: Result = {}
        if self.model:
            usage["model"] = self.model[:255]
        if self.input_tokens or self.output_tokens:
            usage |= {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        if self.usd is not None:
            usage["usd"] = round(self.usd, 6)
        return usage


def conclude(seen: Seen, *, exit_code: int | None, signal: int | None, own: Result | None) -> Result | None:
    """The result to hand back; None: nothing that deserves one, which the runner calls an agent error.

    `own` is what the model itself wrote. It counts where nothing structured speaks against it.
    """
    if seen.provider is not None:
        result: Result = {"outcome": "quota", "reason": seen.provider}
        if (when := _retry_after(seen)) is not None:
            result["retry_after"] = when
    elif seen.gave_up is not None:
        result = {"outcome": "failed", "reason": seen.gave_up}
    elif seen.error is not None:
        result = {"outcome": "retry", "reason": seen.error}
    elif signal is not None or (exit_code != 0 and not seen.finished):
        how = f"was ended by signal {signal}" if signal is not None else f"exited with {exit_code}"
        if not seen.said:
            return None
        result = {"outcome": "retry", "reason": f"{seen.program} {how} before it had finished"}
    elif own is not None:
        result = dict(own)
    elif seen.refused:
        result = {"outcome": "needs_input", "question": _question(seen)}
    elif not seen.said:
        return None
    elif not seen.whole:
        result = embedded(seen.last_text) or {
            "outcome": "retry",
            "reason": f"{seen.program} exited with 0 before it had finished",
        }
    else:
        result = embedded(seen.last_text) or {"outcome": "done", "summary": seen.last_text[:_TEXT_MAX]}
    if seen.usage:  # counted, not told
        result["usage"] = seen.usage
    if seen.session:
        result["session"] = seen.session[:255]
    return {"protocol": 1} | result


def _question(seen: Seen) -> str:
    wanted = "\n".join(f"- {each}" for each in list(dict.fromkeys(seen.refused))[:20])
    said = f"\n\nIt ended with:\n\n{seen.last_text[:4000]}" if seen.last_text else ""
    return (
        f"{seen.program} was refused tools that it asked for:\n\n{wanted}\n\n"
        f"Allow them in the configuration of its lane, or say how to go on without.{said}"
    )


def _retry_after(seen: Seen) -> float | str | None:
    if seen.resets_at is not None:
        # Some write milliseconds.
        seconds = seen.resets_at / 1000 if seen.resets_at > 1e11 else seen.resets_at
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return max(0.0, seen.retry_after) if seen.retry_after is not None else None


def embedded(text: str) -> Result | None:
    """A result of protocol 1 in the last fenced block of a message: for a model that may not write the file."""
    found = _FENCE.search(text[-RESULT_MAX:].rstrip())
    if found is None:
        return None
    start = found[1]
    # A lazy match begins at the first fence: the last block is meant.
    if "```json" in start:
        start = start.rsplit("```json", 1)[1]
    return _result_of(start.encode())


def written(path: Path) -> Result | None:
    """What the model wrote as result.json, if it can be read as an object; the runner judges it more closely."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return _result_of(file.read(RESULT_MAX + 1))
    except OSError:
        return None


def _result_of(raw: bytes) -> Result | None:
    if len(raw) > RESULT_MAX:
        return None
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if isinstance(data, dict) and data.get("protocol") == 1 and isinstance(data.get("outcome"), str):
        return data
    return None


def hand_back(path: Path, result: Result) -> None:
    """Write aside and rename."""
    aside = path.with_name(f"{path.name}.adapter")
    aside.unlink(missing_ok=True)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump(result, file)
    aside.rename(path)
