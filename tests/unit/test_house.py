"""The rules of the house as checks: what only stands in a document does not hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted((ROOT / "tireless").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
ALL = [*CODE, *TESTS, *sorted((ROOT / "bench").rglob("*.py"))]

FILE_MAX = 400
FUNCTION_MAX = 60
NO_ROOMS = {"util", "utils", "common", "helpers", "models", "types", "misc"}


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a file, methods and inner ones included."""
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def where(path: Path, line: int | None = None) -> str:
    """A place as editors understand it."""
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def run(*command: str) -> None:
    """A tool of our own environment over the checkout; the test fails with what it said."""
    done = subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]], cwd=ROOT, capture_output=True)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}:\n{done.stdout.decode()}{done.stderr.decode()}", pytrace=False)


def test_imports_go_where_the_house_lets_them() -> None:
    """The contracts of pyproject.toml: layers point down; psycopg, httpx and their like stay behind their doors."""
    run("lint-imports", "--no-cache")


def test_ruff_has_nothing_to_say() -> None:
    """The rules of pyproject.toml hold in code, tests and measurements."""
    run("ruff", "check", "--no-cache")


def test_the_code_is_formatted() -> None:
    """One format, the formatter's."""
    run("ruff", "format", "--check", "--no-cache")


def test_every_module_says_what_it_is_for() -> None:
    """The first thing in a file is a sentence."""
    assert [where(path) for path in ALL if not ast.get_docstring(parsed(path))] == []


def test_files_and_functions_stay_small() -> None:
    """A file fits into a head, a function on a screen."""
    long = [where(path) for path in CODE if len(path.read_text().splitlines()) > FILE_MAX]
    long += [
        f"{where(path, node.lineno)} {node.name}"
        for path in ALL
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_MAX
    ]
    assert long == []


def test_nothing_is_hidden_from_the_type_checker() -> None:
    """Not one ignore: a wrong type is mended, not silenced."""
    ignore = re.compile(r"#\s*(type:\s*ignore|mypy:)")
    assert [
        where(path, number)
        for path in ALL
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if ignore.search(line)
    ] == []


def test_every_exception_from_a_rule_has_its_reason() -> None:
    """`noqa` names the rule, and why it does not hold here, on the same line."""
    silent = re.compile(r"#\s*noqa(?!: [A-Z]+\d+(, [A-Z]+\d+)*\s+\S)")
    assert [
        where(path, number)
        for path in ALL
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if path != Path(__file__) and silent.search(line)
    ] == []


def test_every_test_says_what_holds() -> None:
    """A test without a sentence cannot be judged when it fails."""
    assert [
        f"{where(path, node.lineno)} {node.name}"
        for path in TESTS
        if path.name.startswith("test_")
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ] == []


def test_test_files_have_names_of_their_own() -> None:
    """Two files of one name in two folders are confused by people first."""
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_no_room_is_named_for_nothing() -> None:
    """Files are named for what a newcomer would search."""
    assert [where(path) for path in CODE if path.stem in NO_ROOMS] == []


def pinned() -> dict[str, str]:
    """Package -> version, as constraints.txt has it."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_both_lock_files_pin_the_same_versions() -> None:
    """./run (constraints.txt) and uv (uv.lock) install alike, and everything that is asked for is pinned."""
    lock = {normal(entry["name"]): entry for entry in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ours = lock.pop("tireless")
    differing = {name: version for name, version in pinned().items() if lock.get(name, {}).get("version") != version}
    assert differing == {}
    asked = {normal(entry["name"]) for entry in ours["dependencies"]}
    asked |= {normal(entry["name"]) for extra in ours["optional-dependencies"].values() for entry in extra}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(word for extra in project["optional-dependencies"].values() for word in extra),
    ]
    names = {normal(re.split(r"[\[<>=!~ ;]", word)[0]) for word in wanted}
    assert names - {"tireless"} == asked - {"tireless"}
    assert names - {"tireless"} <= set(pinned())


def test_the_lock_names_only_the_public_index() -> None:
    """Nobody else's mirror is asked."""
    hosts = set(re.findall(r"https?://[^/\"]+", (ROOT / "uv.lock").read_text()))
    assert hosts == {"https://pypi.org", "https://files.pythonhosted.org"}
