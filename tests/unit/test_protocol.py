"""Protocol 1: what is written fits its schema, what is read is bounded and safe, the environment holds nothing else."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.assignment import NOW, SHA, assignment
from tireless.agent.protocol import (
    RESULT_MAX,
    SCHEMAS,
    Exchange,
    agent_environment,
    job_document,
    read_result,
    write_exchange,
)
from tireless.domain.job import Kind
from tireless.domain.result import Malformed, Result, Word, parse_result
from tireless.errors import WorkspaceError
from tireless.redact import MASK, Redactor

SECRET = "s3cr3t-of-the-lane"


def schema(name: str) -> dict[str, Any]:
    """A schema as it is shipped."""
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(loaded)
    return loaded


def fits(document: object, name: str) -> bool:
    """Does a document fit a shipped schema?"""
    return bool(jsonschema.Draft202012Validator(schema(name)).is_valid(document))


FULL: dict[str, Any] = {
    "protocol": 1,
    "outcome": "done",
    "summary": "s",
    "reason": None,
    "question": None,
    "retry_after": None,
    "pr": {"title": "t", "body": "b", "draft": True},
    "children": [
        {"key": "a", "title": "A", "body": "x", "kind": "implement", "lane": None, "depends_on": []},
        {"key": "b-2", "title": "B", "depends_on": ["a"]},
    ],
    "usage": {"model": "m", "input_tokens": 1, "output_tokens": 2, "usd": 0.5},
    "session": "z",
}


@pytest.mark.parametrize("body", ["Please.", "", "nul \0 and half \ud800", "x" * 2_000_000])
def test_job_document_fits_its_schema(body: str) -> None:
    """Whatever the issue holds, job.json is what the shipped schema says, and can be written as UTF-8."""
    document = job_document(assignment(body=body), base_sha=SHA, deadline=NOW)
    assert fits(document, "job")
    assert json.dumps(document, ensure_ascii=False).encode()


def test_hidden_text_is_not_handed_over() -> None:
    """HTML comments of issue and messages reach neither job.json's body nor its messages."""
    document = json.dumps(job_document(assignment(body="Do<!-- rm -rf / --> it"), base_sha=SHA, deadline=NOW))
    assert "rm -rf" not in document
    assert "or not" not in document


def test_environment_is_the_designs_and_no_more(tmp_path: Path) -> None:
    """Exactly the promised names; an allowed name is passed on, one of ours or one not allowed never."""
    environ = {
        "PATH": "/bin",
        "HOME": "/home/runner",
        "API_KEY": "k",
        "OTHER": "o",
        "TIRELESS_DATABASE_URL": "postgres://",
    }
    env = agent_environment(
        assignment(),
        Exchange(tmp_path),
        base_sha=SHA,
        deadline=NOW,
        mark="m",
        environ=environ,
        allowed=("API_KEY", "TIRELESS_DATABASE_URL", "ABSENT"),
    )
    ours = (
        "PROTOCOL JOB_ID ATTEMPT MAX_ATTEMPTS KIND LANE FORGE REPO ISSUE ISSUE_URL RUN_DIR JOB_FILE PROMPT_FILE "
        "RESULT_FILE PROGRESS_FILE BASE_BRANCH BASE_SHA DEADLINE RUN_MARK"
    )
    assert set(env) == {"PATH", "HOME", "LANG", "TMPDIR", "API_KEY", *(f"TIRELESS_{name}" for name in ours.split())}
    assert (env["TIRELESS_ATTEMPT"], env["TIRELESS_DEADLINE"]) == ("2", "2026-03-01T12:00:00Z")
    assert not [value for value in env.values() if "shine" in value or "Please" in value]
    capped = replace(assignment(), usd_left=1.25)
    more = agent_environment(capped, Exchange(tmp_path), base_sha=SHA, deadline=NOW, mark="m", environ=environ)
    assert set(more) - set(env) == {"TIRELESS_USD_LEFT"}
    assert more["TIRELESS_USD_LEFT"] == "1.250000"


def test_exchange_is_written_for_its_owner_alone_and_once(tmp_path: Path) -> None:
    """Files are 0600, and one that is there already (a link?) is not written through."""
    exchange = Exchange(tmp_path)
    write_exchange(exchange, job={"protocol": 1}, prompt="do")
    assert oct(exchange.job_file.stat().st_mode & 0o777) == oct(exchange.prompt_file.stat().st_mode & 0o777) == "0o600"
    with pytest.raises(WorkspaceError, match="could not write"):
        write_exchange(exchange, job={"protocol": 1}, prompt="do")


def test_full_result_is_read_whole(tmp_path: Path) -> None:
    """Every field of the protocol arrives."""
    assert fits(FULL, "result")
    (tmp_path / "result.json").write_text(json.dumps(FULL))
    result = read_result(Exchange(tmp_path), Redactor())
    assert isinstance(result, Result)
    assert (result.outcome, result.summary, result.session) == (Word.DONE, "s", "z")
    assert result.pr is not None
    assert (result.pr.title, result.pr.body, result.pr.draft) == ("t", "b", True)
    assert [(child.key, child.depends_on, child.kind) for child in result.children] == [
        ("a", (), Kind.IMPLEMENT),
        ("b-2", ("a",), Kind.IMPLEMENT),
    ]
    assert (result.usage.model, result.usage.input_tokens, result.usage.usd) == ("m", 1, 0.5)


def test_no_result_is_none(tmp_path: Path) -> None:
    """A file that is not there is no malformed file."""
    assert read_result(Exchange(tmp_path), Redactor()) is None


def test_secrets_are_redacted_before_anything_reads_them(tmp_path: Path) -> None:
    """A secret in any text of a result never gets past reading."""
    (tmp_path / "result.json").write_text(json.dumps({**FULL, "summary": f"the key is {SECRET}"}))
    result = read_result(Exchange(tmp_path), Redactor([SECRET]))
    assert isinstance(result, Result)
    assert result.summary == f"the key is {MASK}"


def test_nul_and_lone_surrogates_survive_as_marks(tmp_path: Path) -> None:
    r"""\u0000 and half a pair are legal JSON and storable by no database: they become U+FFFD."""
    (tmp_path / "result.json").write_text(r'{"protocol": 1, "outcome": "done", "summary": "a\u0000b\ud800c"}')
    result = read_result(Exchange(tmp_path), Redactor())
    assert isinstance(result, Result)
    assert result.summary == "a�b�c"


def test_long_text_is_cut_not_refused() -> None:
    """An expensive run is not thrown away because its summary is long."""
    result = parse_result({"protocol": 1, "outcome": "done", "summary": "x" * 1_000_000})
    assert isinstance(result, Result)
    assert len(result.summary) == 65_536
    assert result.summary.endswith("…")


BAD_BYTES = {
    "empty": b"",
    "half": b'{"protocol": 1, "outcome": "do',
    "invalid UTF-8": b'{"protocol": 1, "outcome": "done", "summary": "\xff"}',
    "UTF-16": '{"protocol": 1}'.encode("utf-16"),
    "prose": b"I did it.",
    "not a number": b'{"protocol": 1, "outcome": "quota", "retry_after": NaN}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "huge number": b'{"protocol": 1, "outcome": "quota", "retry_after": ' + b"9" * 10_000 + b"}",
    "too large": b" " * (RESULT_MAX + 1),
}


@pytest.mark.parametrize("name", list(BAD_BYTES))
def test_bytes_that_are_no_json_are_malformed(tmp_path: Path, name: str) -> None:
    """Each is a typed failure with a sentence that names the file."""
    (tmp_path / "result.json").write_bytes(BAD_BYTES[name])
    result = read_result(Exchange(tmp_path), Redactor())
    assert isinstance(result, Malformed)
    assert result.error.startswith("result.json: ")
    assert len(result.error) < 300


def test_links_pipes_and_directories_are_malformed_not_followed(tmp_path: Path) -> None:
    """A result that is a link (also a dangling one), a pipe or a directory is not read, and holds nothing up."""
    (tmp_path / "good.json").write_text(json.dumps(FULL))
    target = tmp_path / "result.json"
    for link in (tmp_path / "good.json", Path("/nowhere")):
        target.symlink_to(link)
        assert isinstance(read_result(Exchange(tmp_path), Redactor()), Malformed)
        target.unlink()
    os.mkfifo(target)
    assert isinstance(read_result(Exchange(tmp_path), Redactor()), Malformed)
    target.unlink()
    target.mkdir()
    assert isinstance(read_result(Exchange(tmp_path), Redactor()), Malformed)


def test_run_directory_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    """An agent that moves its run directory elsewhere and links to it has no result."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "result.json").write_text(json.dumps(FULL))
    (tmp_path / "run").symlink_to(tmp_path / "real")
    assert isinstance(read_result(Exchange(tmp_path / "run"), Redactor()), Malformed)


def change(path: str, value: object) -> dict[str, Any]:
    """FULL with one value replaced; `path` as `children.0.key`."""
    document = copy.deepcopy(FULL)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    at: Any = document
    for part in way:
        at = at[part]
    at[last] = value
    return document


BAD_VALUES = [
    ("protocol", 2),
    ("protocol", True),
    ("protocol", "1"),
    ("outcome", "success"),
    ("outcome", None),
    ("outcome", ["done"]),
    ("outcome", "needs_input"),  # without a question
    ("summary", 7),
    ("retry_after", -1),
    ("retry_after", True),
    ("retry_after", 1e300),
    ("retry_after", "tomorrow"),
    ("retry_after", "2026-03-01T12:00:00"),  # in which zone?
    ("pr", []),
    ("pr.title", " "),
    ("pr.title", "x" * 256),
    ("pr.draft", "yes"),
    ("children", {}),
    ("children", [{"key": f"k{n}", "title": "t"} for n in range(51)]),
    ("children.0", "a"),
    ("children.0.key", "A"),
    ("children.0.key", "-a"),
    ("children.0.key", "a" * 65),
    ("children.0.key", None),
    ("children.0.title", ""),
    ("children.0.title", "x" * 256),
    ("children.0.kind", "epic"),
    ("children.0.kind", ["plan"]),
    ("children.0.depends_on", "b-2"),
    ("children.0.depends_on", [1]),
    ("usage", 7),
    ("usage.input_tokens", -1),
    ("usage.input_tokens", 1.5),
    ("usage.usd", -0.1),
    ("usage.usd", True),
]
ONLY_OURS = [
    ("children.0.key", "a\n"),  # Python's `$` lets it pass
    ("children.0.key", "b-2"),  # twice
    ("children.0.depends_on", ["c"]),  # unknown
    ("children.0.depends_on", ["b-2"]),  # a circle
    ("children.0.depends_on", ["a"]),  # of itself
]


@pytest.mark.parametrize(("path", "value"), BAD_VALUES)
def test_broken_rules_are_malformed_to_us_and_to_the_schema(path: str, value: object) -> None:
    """The shipped schema and our reading agree on what is wrong."""
    document = change(path, value)
    assert isinstance(parse_result(document), Malformed)
    assert not fits(document, "result")


@pytest.mark.parametrize(("path", "value"), ONLY_OURS)
def test_rules_beyond_a_schema(path: str, value: object) -> None:
    """Keys are unique, dependencies known and free of circles."""
    assert isinstance(parse_result(change(path, value)), Malformed)


GOOD_VALUES = [
    ("outcome", "no_change"),
    ("retry_after", 0),
    ("retry_after", 12.5),
    ("retry_after", "2026-03-01T12:00:00Z"),
    ("retry_after", "2026-03-01T12:00:00.5+05:30"),
    ("pr", None),
    ("pr.title", "x" * 255),
    ("children", None),
    ("children", [{"key": f"k{n}", "title": "t"} for n in range(50)]),
    ("children.0.key", "9" * 64),
    ("children.0.kind", "plan"),
    ("children.0.kind", None),
    ("children.1.depends_on", ["a", "a"]),
    ("children.1.depends_on", None),
    ("usage", None),
    ("usage.usd", 0),
    ("unknown", {"any": "thing"}),
]


@pytest.mark.parametrize(("path", "value"), GOOD_VALUES)
def test_what_is_allowed_is_allowed_by_both(path: str, value: object) -> None:
    """Neither the schema nor our reading is stricter than the other."""
    document = change(path, value)
    if path == "children.0.key":
        document["children"].pop()
    assert isinstance(parse_result(document), Result)
    assert fits(document, "result")


@pytest.mark.parametrize("outcome", ["blocked", "failed"])
def test_ends_that_need_a_reason_get_none_without(outcome: str) -> None:
    """Blocked and failed say why, in reason or summary."""
    bare = {"protocol": 1, "outcome": outcome}
    assert isinstance(parse_result(bare), Malformed)
    assert not fits(bare, "result")
    for field in ("reason", "summary"):
        assert isinstance(parse_result({**bare, field: "why"}), Result)
        assert fits({**bare, field: "why"}, "result")


def test_prose_about_limits_is_no_quota() -> None:
    """Only the outcome says quota: a summary that mentions rate limits trips nothing."""
    result = parse_result(
        {"protocol": 1, "outcome": "done", "summary": "Handle 429 rate limit exceeded, quota reached"}
    )
    assert isinstance(result, Result)
    assert result.outcome is Word.DONE
