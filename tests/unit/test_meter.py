"""What a running agent says of its usage: read as it grows, bounded, whatever else stands in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tireless.agent import meter
from tireless.agent.meter import Meter
from tireless.domain.result import Usage
from tireless.redact import MASK, Redactor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.ndjson"


def says(**usage: object) -> str:
    """A line of progress."""
    return json.dumps({"usage": usage}) + "\n"


def add(path: Path, text: str) -> None:
    """Append."""
    with path.open("a") as file:
        file.write(text)


def test_sums_are_read_as_they_come(path: Path) -> None:
    """Each read takes what is new; the greatest sum stands, a smaller later one gives nothing back."""
    of = Meter(path, Redactor())
    assert not of.read()
    add(path, '{"message": "hello"}\n' + says(usd=0.5, model="m"))
    assert of.read()
    assert of.usage == Usage(model="m", usd=0.5)
    assert not of.read()
    add(path, says(usd=0.25, input_tokens=7))
    assert of.read()
    assert of.usage == Usage(model="m", input_tokens=7, usd=0.5)


def test_a_torn_line_is_read_once_it_is_whole(path: Path) -> None:
    """A line that comes in pieces says nothing before its end."""
    of = Meter(path, Redactor())
    line = says(usd=2.0)
    for at in range(0, len(line) - 1, 5):
        add(path, line[at : min(at + 5, len(line) - 1)])
        assert not of.read()
    add(path, "\n")
    assert of.read()
    assert of.usage.usd == 2.0


@pytest.mark.parametrize(
    "garbage",
    [
        '{"usage": {"usd": 9',
        '{"usage": {"usd": "9"}}',
        '{"usage": {"usd": -9}}',
        '{"usage": {"usd": NaN}}',
        '{"usage": {"usd": 1e999}}',
        '{"usage": {"usd": true}}',
        '{"usage": [9]}',
        '["usage", 9]',
        '"usage"',
        "[" * 100_000 + '"usage"',
        "\0\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + '"usage"',
    ],
)
def test_garbage_says_nothing(path: Path, garbage: str) -> None:
    """What is no line of the protocol is passed over, and hides no line after it."""
    of = Meter(path, Redactor())
    add(path, garbage + "\n" + says(usd=1.0))
    assert of.read()
    assert of.usage.usd == 1.0


def test_a_flood_is_read_from_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much was written, one read takes a bounded piece, and the sum at its end is seen at once."""
    monkeypatch.setattr(meter, "READ_MAX", 1000)
    of = Meter(path, Redactor())
    add(path, "".join(says(usd=number / 100) for number in range(1000)))
    assert of.read()
    assert of.usage.usd == 9.99


def test_an_endless_line_is_passed_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without an end is not held; what comes behind it counts."""
    monkeypatch.setattr(meter, "LINE_MAX", 100)
    of = Meter(path, Redactor())
    for _ in range(5):
        add(path, '{"usage": {"usd": 5}, "x": "' + "y" * 200)
        assert not of.read()
        assert len(of._torn) <= 100
    add(path, '"}\n' + says(usd=1.0))
    assert of.read()
    assert of.usage.usd == 1.0


def test_a_file_that_was_replaced_is_read_anew(path: Path) -> None:
    """Cut or put in place of the old one: read from its beginning."""
    of = Meter(path, Redactor())
    add(path, says(usd=1.0) * 3)
    of.read()
    path.write_text(says(usd=2.0))
    assert of.read()
    path.with_suffix(".new").write_text(says(usd=3.0) * 9)
    path.with_suffix(".new").rename(path)
    assert of.read()
    assert of.usage.usd == 3.0


def test_only_a_plain_file_is_read(path: Path, tmp_path: Path) -> None:
    """A link is not followed, a pipe that nobody writes to holds nothing up, nothing at all is no error."""
    of = Meter(path, Redactor())
    (tmp_path / "other").write_text(says(usd=1.0))
    path.symlink_to(tmp_path / "other")
    assert not of.read()
    path.unlink()
    os.mkfifo(path)
    assert not of.read()
    assert not Meter(None, Redactor()).read()
    assert of.usage == Usage()


def test_secrets_do_not_pass(path: Path) -> None:
    """A model's name is the agent's text: redacted like all of it."""
    of = Meter(path, Redactor(["s3cr3t-word"]))
    add(path, says(model="a s3cr3t-word"))
    of.read()
    assert of.usage.model == f"a {MASK}"
