"""./run: what it starts, when it sets up, and what it says where it cannot; it never removes what it did not make."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the virtual environment is to be."""
    return tmp_path / "venv"


@pytest.fixture
def ready(place: Path) -> Path:
    """An environment that is set up; its programs tell what they were called with."""
    (place / "bin").mkdir(parents=True)
    for name in ("python", "tireless"):
        script(place / "bin" / name, f'echo {name} "$@"')
    (place / ".tireless-stamp").touch()
    return place


def script(path: Path, body: str) -> Path:
    """A program for the shell."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def launch(place: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`./run` with this environment, and no uv."""
    env = {"PATH": os.environ["PATH"], "TIRELESS_VENV": str(place), "TIRELESS_NO_UV": "1", **environ}
    return subprocess.run([str(ROOT / "run"), *words], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("words", "started"),
    [
        ([], "tireless demo"),
        (["demo", "--json"], "tireless demo --json"),
        (["jobs", "ls", "a b"], "tireless jobs ls a b"),
        (["test", "-n", "0", "-k", "claim"], "python -m pytest -n 4 --dist loadgroup -n 0 -k claim"),
        (["bench", "claims"], "python -m bench claims"),
    ],
)
def test_words_are_passed_on(ready: Path, words: list[str], started: str) -> None:
    """An environment that is up to date is used at once; the demo is what one gets without a word."""
    done = launch(ready, *words)
    assert (done.stdout.strip(), done.stderr, done.returncode) == (started, "", 0)


def test_a_changed_project_is_installed_again(ready: Path) -> None:
    """pyproject.toml newer than the last setup: pip is run again, in the environment that is there."""
    os.utime(ready / ".tireless-stamp", (0, 0))
    done = launch(ready, "doctor")
    assert "setting up" in done.stderr
    assert f"python -m pip install -qq --disable-pip-version-check --no-input -e {ROOT}[dev]" in done.stdout
    assert done.stdout.splitlines()[-1] == "tireless doctor"
    assert (ready / ".tireless-stamp").stat().st_mtime > 0


def test_without_git_it_says_so_first(ready: Path, tmp_path: Path) -> None:
    """Demo and tests need git: said before anything is set up; other words do without."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "dirname").symlink_to(shutil.which("dirname") or "")
    done = launch(ready, "test", PATH=str(tools))
    assert done.returncode == 1
    assert "apt-get install -y git" in done.stderr
    assert launch(ready, "doctor", PATH=str(tools)).stdout == "tireless doctor\n"


def test_without_python_it_says_what_to_install(place: Path) -> None:
    """No Python of ours and no uv."""
    done = launch(place, "doctor", TIRELESS_PYTHON="/nonexistent/python3")
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr
    assert not place.exists()


def test_a_python_without_venv_and_pip_is_no_use(place: Path, tmp_path: Path) -> None:
    """A bare system's Python: the package to install is named, and the half-made environment is gone."""
    bare = (
        f'case "$*" in *"-m venv"*) mkdir -p {place}; exit 1 ;; *"-m pip"*) exit 1 ;; esac; exec {sys.executable} "$@"'
    )
    done = launch(place, "doctor", TIRELESS_PYTHON=str(script(tmp_path / "python3", bare)))
    assert done.returncode == 1
    assert "python3-venv" in done.stderr
    assert not place.exists()


def test_what_it_did_not_make_it_does_not_remove(place: Path) -> None:
    """A directory that is no environment, or one that this user cannot run, stays and is named."""
    place.mkdir()
    (place / "precious").touch()
    done = launch(place, "doctor")
    assert done.returncode == 1
    assert f"{place} is there" in done.stderr
    assert (place / "precious").exists()


@pytest.mark.parametrize("failing", ["", "python", "ruff", "mypy", "lint-imports"])
def test_the_check_of_everything_fails_with_any_part(ready: Path, failing: str) -> None:
    """.ci/run runs every part even after one has failed, and names those that did."""
    for name in ("python", "ruff", "mypy", "lint-imports"):
        script(ready / "bin" / name, f'echo {name} "$@"; exit {int(name == failing)}')
    done = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run")],
        env={"PATH": os.environ["PATH"], "TIRELESS_VENV": str(ready)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == bool(failing)
    for part in ("python -m pytest", "ruff check", "ruff format --check", "mypy --strict", "lint-imports"):
        assert f"\n{part}" in done.stdout
    assert ("FAILED:" in done.stdout) is bool(failing)
