"""What is installed: the built wheel holds everything the code reads at run time, and works away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psycopg
import pytest

pytestmark = pytest.mark.xdist_group("wheel")  # built once

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of this checkout."""
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("tireless-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "unpacked")
    return out / "unpacked"


def test_the_migrations_come_along_byte_by_byte(installed: Path) -> None:
    """All of them and nothing else: a stale or missing one would be noticed only by an operator."""
    shipped = {path.name: path.read_bytes() for path in (installed / "tireless" / "migrations").iterdir()}
    assert shipped == {path.name: path.read_bytes() for path in (ROOT / "migrations").glob("*.sql")}
    assert any(name.startswith("0001_") for name in shipped)


def test_every_file_of_the_package_comes_along(installed: Path) -> None:
    """Templates, static files and schemas as well as code."""
    listed = subprocess.run(["git", "ls-files", "tireless"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    assert tracked
    assert [name for name in tracked if not (installed / name).is_file()] == []


def test_the_licence_and_the_command_come_along(installed: Path) -> None:
    """The metadata name the `tireless` command and the agents that are shipped, and carry the licence's text."""
    (info,) = installed.glob("tireless-*.dist-info")
    scripts = (info / "entry_points.txt").read_text()
    assert "tireless = tireless.cli:main" in scripts
    for name in ("claude", "opencode"):
        assert f"tireless-agent-{name} = tireless.adapters.{name}:main" in scripts
    assert "Permission is hereby granted" in (info / "licenses" / "LICENSE").read_text()


def test_it_finds_its_migrations_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    """Installed, there is no checkout to look in: the package's own copy is used."""
    libraries = str(Path(psycopg.__path__[0]).parent)
    program = "from tireless.store import migrate as m; d = m.migrations_dir(); print(d, len(m.discover(d)))"
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([str(installed), libraries])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [
        str(installed / "tireless" / "migrations"),
        str(len(list((ROOT / "migrations").glob("*.sql")))),
    ], done.stderr
