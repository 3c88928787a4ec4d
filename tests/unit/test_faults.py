"""docs/faults.md against the tests: every line names tests that are there, or says why none shows it."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import NamedTuple

from tests.support.documents import ROOT

PAGE = ROOT / "docs" / "faults.md"
LINES = 101
NOT_SHOWN = 0
"""Lines of which some part is shown by no test. One more of them is a decision: say so in its line, and here."""


class Fault(NamedTuple):
    """One line of the page."""

    id: str
    broke: str
    ruled_out: str
    shown: str

    @property
    def tests(self) -> list[str]:
        """`path::name` of each test that it names."""
        return [word for word in re.findall(r"`([^`]+)`", self.shown) if word.startswith("tests/")]


FAULTS = [
    Fault(*(cell.strip() for cell in line.strip("|").split(" | ")))
    for line in PAGE.read_text("utf-8").splitlines()
    if re.match(r"\| [A-Z]\d+ \|", line)
]


@cache
def functions(path: str) -> frozenset[str]:
    """The tests of one file; none where there is no such file."""
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_fault_stands_once() -> None:
    """No line got lost, none is there twice, and every line of the tables was read."""
    ids = [fault.id for fault in FAULTS]
    assert len(ids) == len(set(ids)) == LINES
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len([line for line in rows if not line.startswith("| id |")]) == LINES


def test_every_fault_names_tests_that_are_there() -> None:
    """Each test is a function of its file; a line without any does not apply, or is counted as not shown."""
    assert [
        f"{fault.id}: {test}"
        for fault in FAULTS
        for test in fault.tests
        if test.count("::") != 1 or test.partition("::")[2] not in functions(test.partition("::")[0])
    ] == []
    silent = re.compile(r"(does not apply|not shown): \w")
    assert [fault.id for fault in FAULTS if not fault.tests and not silent.search(fault.shown)] == []


def test_what_is_not_shown_is_counted() -> None:
    """The number of such lines does not grow unnoticed, nor stay when one of them is shown after all."""
    assert len([fault.id for fault in FAULTS if "not shown" in fault.shown]) == NOT_SHOWN
