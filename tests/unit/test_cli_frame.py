"""What every command shares: how values are printed, what a terminal never gets, which code an error ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import click
import pytest
import stamina
from hypothesis import given
from hypothesis import strategies as st

from tireless.cli.frame import Frame, common, pass_frame, plain, printable, printing, run_main, table
from tireless.cli.words import issue, repository
from tireless.domain.job import Kind
from tireless.errors import (
    ConfigError,
    ForgeUnavailable,
    NotKnown,
    Refused,
    StoreUnavailable,
    TirelessError,
    UsageError,
)
from tireless.redact import Redactor


@dataclass(frozen=True, slots=True)
class _Row:
    at: datetime
    kind: Kind
    uid: UUID


def test_everything_we_print_becomes_json() -> None:
    """Dataclasses, times, durations, ids, enums and paths have one spelling each; anything else is a fault of ours."""
    moment = datetime(2026, 11, 1, 12, tzinfo=UTC)
    row = _Row(moment, Kind.PLAN, UUID(int=7))
    data = plain({"row": row, "for": timedelta(minutes=2), "path": Path("/x"), "some": {"b", "a"}, 3: (None, True)})
    assert json.loads(json.dumps(data)) == {
        "row": {"at": "2026-11-01T12:00:00+00:00", "kind": "plan", "uid": str(UUID(int=7))},
        "for": 120.0,
        "path": "/x",
        "some": ["a", "b"],
        "3": [None, True],
    }
    with pytest.raises(TypeError, match="object has no place"):
        plain(object())


@given(st.text())
def test_nothing_a_terminal_obeys_is_printed(text: str) -> None:
    """Whatever a stranger wrote: no control character but newline and tab is left of it."""
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(c in "\n\t" or (c.isprintable() and ord(c) >= 32) for c in shown)


def test_tables_align_and_have_words_for_nothing() -> None:
    """Columns are as wide as their widest cell, cells are one line each, no rows are a sentence."""
    rows = [("a", 1, None), ("longer", 22, ["x", "y"]), ("two\nlines", True, [])]
    assert table(("NAME", "N", "SOME"), rows, empty="none").splitlines() == [
        "NAME       N    SOME",
        "a          1    -",
        "longer     22   x, y",
        "two lines  yes  -",
    ]
    assert table(("NAME",), [], empty="none at all") == "none at all"


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConfigError("the file is wrong"), 3, "tireless: the file is wrong"),
        (UsageError("twice the same"), 2, "tireless: twice the same"),
        (Refused("too_late", "wait"), 7, "tireless: refused (too_late): wait"),
        (NotKnown("no such job"), 4, "tireless: no such job"),
        (ForgeUnavailable("silent"), 5, "tireless: silent"),
        (StoreUnavailable("away"), 5, "tireless: away"),
        (TirelessError("it failed"), 1, "tireless: it failed"),
        (KeyError("bug"), 1, "tireless: a fault in tireless itself: KeyError: 'bug'"),
        (KeyboardInterrupt(), 130, "tireless: interrupted"),
        (click.UsageError("what?"), 2, "what?"),
    ],
)
def test_every_error_ends_with_its_code_and_a_sentence(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of our tree, of click and bugs of ours: one sentence on standard error, the code of design §11."""
    assert run_main(_group(error), ["go"]) == code
    told = capsys.readouterr()
    assert says in told.err
    assert "Traceback" not in told.err
    assert told.out == ""


def test_debug_shows_the_traceback_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    """--debug, before or after the command, adds the traceback; what is secret stays so in it."""
    for words in (["--debug", "go"], ["go", "--debug"]):
        assert run_main(_group(RuntimeError("my secret-token is")), words) == 1
        told = capsys.readouterr().err
        assert "Traceback" in told
        assert "secret-token" not in told


def _group(error: BaseException) -> click.Group:
    @click.group()
    @common
    def group() -> None:
        """A command line with one command."""

    @group.command("go")
    @common
    @pass_frame
    def go(frame: Frame) -> None:
        """Fail."""
        frame.redactor = Redactor(["secret-token"])
        raise error

    return group


def test_what_is_printed_is_redacted_either_way(capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON pass the redactor; JSON is one document."""

    @click.command("show")
    @printing
    @pass_frame
    def show(frame: Frame) -> None:
        """Print something secret."""
        frame.redactor = Redactor(["secret-token"])
        frame.show({"token": "secret-token"}, "token secret-token")

    group = click.Group(commands={"show": show})
    assert run_main(group, ["show"]) == 0
    assert capsys.readouterr().out == "token [redacted]\n"
    assert run_main(group, ["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"token": "[redacted]"}


def test_what_is_logged_meanwhile_is_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A call repeated while a command works is told on standard error; the JSON stays one object."""

    @click.command("show")
    @printing
    @pass_frame
    def show(frame: Frame) -> None:
        assert frame.settings.forges == {}
        for attempt in stamina.retry_context(on=OSError, attempts=2, wait_initial=0, wait_jitter=0):
            with attempt:
                if attempt.num == 1:
                    raise OSError("no answer")
        frame.show({"ok": True}, "fine")

    file = tmp_path / "tireless.toml"
    file.write_text("")
    assert run_main(click.Group(commands={"show": show}), ["show", "--json", "--config", str(file)]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"ok": True}
    assert "call repeated" in said.err


@pytest.mark.parametrize(
    ("parse", "text", "parts"),
    [
        (issue, "acme/web#7", (None, "acme", "web", 7)),
        (issue, "main:acme/web.js#12", ("main", "acme", "web.js", 12)),
        (repository, "acme/web", (None, "acme", "web")),
        (repository, "main:acme/web", ("main", "acme", "web")),
    ],
)
def test_issues_and_repositories_are_read(parse: Callable[[str], object], text: str, parts: object) -> None:
    """OWNER/REPO#N and OWNER/REPO, with a forge in front or not."""
    assert parse(text) == parts


@given(st.text(max_size=20))
def test_no_word_makes_a_traceback(text: str) -> None:
    """Any text is an issue, or a usage error."""
    try:
        found = issue(text)
    except click.UsageError:
        return
    assert f"{found[1]}/{found[2]}#{found[3]}" in text
