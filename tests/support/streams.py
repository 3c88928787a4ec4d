"""Streams of Claude Code 2.1.197 and opencode 1.18.33, recorded against a provider of our own and shortened."""

from __future__ import annotations

import json
from typing import Any

SESSION = "3680e13c-0db8-4adf-b4a9-b181504a5b77"
OPENCODE_SESSION = "ses_dd59733cbffeihdauKvDGjmhfM"
RESETS_AT = 1784283600
RESETS = "2026-07-17T10:20:00Z"


def line(**event: Any) -> str:
    """One event as a program prints it."""
    return json.dumps(event, separators=(",", ":"))


# ------------------------------------------------------------------------------------------------ Claude Code

INIT = line(
    type="system",
    subtype="init",
    cwd="/tmp/w",
    session_id=SESSION,
    tools=["Bash", "Edit", "Write"],
    model="claude-opus-4-8[1m]",
    permissionMode="default",
    apiKeySource="none",
)


def says(text: str, **more: Any) -> str:
    """A text of the model; `error`, and the model `<synthetic>`, where Claude Code speaks for the API."""
    model = "<synthetic>" if "error" in more else "claude-opus-4-8"
    message = {"model": model, "role": "assistant", "content": [{"type": "text", "text": text}]}
    return line(type="assistant", message=message, session_id=SESSION, **more)


def uses(name: str, **given: Any) -> str:
    """A tool call."""
    part = {"type": "tool_use", "id": "toolu_1", "name": name, "input": given}
    return line(type="assistant", message={"model": "claude-opus-4-8", "content": [part]}, session_id=SESSION)


def limit(status: str, **more: Any) -> str:
    """The state of the account's limits, as it comes with every run."""
    info = {"status": status, "resetsAt": RESETS_AT, "rateLimitType": "five_hour", "isUsingOverage": False, **more}
    return line(type="rate_limit_event", rate_limit_info=info, session_id=SESSION)


def ends(text: str = "All done here.", **more: Any) -> str:
    """The last event."""
    usage = {"input_tokens": 11, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 7}
    event = {
        "subtype": "success",
        "is_error": False,
        "api_error_status": None,
        "num_turns": 1,
        "result": text,
        "stop_reason": "end_turn",
        "session_id": SESSION,
        "total_cost_usd": 0.00023,
        "usage": usage,
        "permission_denials": [],
        "terminal_reason": "completed",
    }
    return line(type="result", **{**event, **more})


TEXT_429 = "API Error: Request rejected (429) · This request would exceed your account's rate limit."
RATE_LIMITED = [INIT, says(TEXT_429, error="rate_limit"), ends(TEXT_429, is_error=True, api_error_status=429)]
TEXT_LOGIN = "Not logged in · Please run /login"
NOT_LOGGED_IN = [INIT, says(TEXT_LOGIN, error="authentication_failed"), ends(TEXT_LOGIN, is_error=True)]
DENIED = [{"tool_name": "Bash", "tool_use_id": "toolu_1", "tool_input": {"command": "touch x", "description": "d"}}]
REFUSED = [INIT, uses("Bash", command="touch x"), says("I could not."), ends("I could not.", permission_denials=DENIED)]
RETRYING = line(
    type="system",
    subtype="api_retry",
    attempt=1,
    max_retries=10,
    retry_delay_ms=524.7,
    error_status=529,
    error="overloaded",
    session_id=SESSION,
)

# ------------------------------------------------------------------------------------------------ opencode


def event(name: str, **more: Any) -> str:
    """One event of `opencode run --format json`."""
    return line(type=name, timestamp=1796007848193, sessionID=OPENCODE_SESSION, **more)


STEP = event("step_start", part={"type": "step-start"})
REFUSAL = "The user rejected permission to use this specific tool call."


def text(words: str) -> str:
    """A text of the model."""
    return event("text", part={"type": "text", "text": words, "time": {"start": 1, "end": 2}})


def tool(name: str, status: str = "completed", **state: Any) -> str:
    """A tool call that has ended."""
    return event("tool_use", part={"type": "tool", "tool": name, "state": {"status": status, **state}})


def step_ends(cost: float = 0.000138, reason: str = "stop") -> str:
    """What a step has cost, and why it ended: `tool-calls` where another one follows."""
    tokens = {"total": 18, "input": 11, "output": 7, "reasoning": 2, "cache": {"write": 3, "read": 4}}
    return event("step_finish", part={"type": "step-finish", "reason": reason, "tokens": tokens, "cost": cost})


def fails(status: int, message: str, **headers: str) -> str:
    """An error of the provider."""
    data = {"message": message, "statusCode": status, "isRetryable": False, "responseHeaders": headers}
    return event("error", error={"name": "APIError", "data": data})
