"""./run bench: brings the queues it measures beside ours, and goes on without them where it cannot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
case $1:$2:$3 in
    -c:*procrastinate*) exit 1 ;;
    -c:*) exit 0 ;;
    -m:pip:install) echo "$@" && exit {installs} ;;
esac
echo python "$@"
"""


@pytest.mark.parametrize("installs", [0, 1])
def test_bench_installs_its_rivals_when_they_are_missing(tmp_path: Path, installs: int) -> None:
    """The extra bench is asked of pip; a machine without a network measures the rest."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "tireless"):
        program = tmp_path / "bin" / name
        program.write_text(PYTHON.format(installs=installs))
        program.chmod(0o755)
    (tmp_path / ".tireless-stamp").touch()
    env = {"PATH": os.environ["PATH"], "TIRELESS_VENV": str(tmp_path), "TIRELESS_NO_UV": "1"}
    done = subprocess.run([ROOT / "run", "bench", "--quick"], env=env, capture_output=True, text=True, timeout=120)
    asked, started = done.stdout.splitlines()
    assert f"-e {ROOT}[dev,bench] -c {ROOT}/constraints.txt" in asked
    assert (started, done.returncode) == ("python -m bench --quick", 0)
    assert ("could not be installed" in done.stderr) == bool(installs)
