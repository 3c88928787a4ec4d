"""The demo's agent with two children instead of three: run as a file, imports nothing of ours."""

from __future__ import annotations

import runpy
from pathlib import Path

_DEMO = str(Path(__file__).resolve().parents[2] / "tireless" / "demo" / "agent.py")


def main() -> int:
    """As the demo's."""
    demo = runpy.run_path(_DEMO)
    run = demo["main"]
    run.__globals__["CHILDREN"] = demo["CHILDREN"][:2]
    return int(run())
