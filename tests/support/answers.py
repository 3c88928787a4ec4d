"""Recorded answers of a real Gitea, for tests of what reads them and of what imitates them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    """The body of one recorded answer, fresh each time."""
    return _load("gitea-1.26-answers.json")[name]["body"]


def recorded_headers(name: str) -> dict[str, str]:
    """The headers of one recorded webhook delivery."""
    found: dict[str, str] = _load("gitea-1.26-answers.json")[name]["headers"]
    return found


def definitions() -> dict[str, Any]:
    """The definitions of Gitea's own specification."""
    found: dict[str, Any] = _load("gitea-definitions-1.26.json")["definitions"]
    return found


def _load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_RECORDED / name).read_text(encoding="utf-8"))
    return data
