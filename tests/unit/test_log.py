"""The log: one format for us and for the libraries, quiet libraries, and no secret in any field or traceback."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import stamina
import structlog

from tireless.errors import ConfigError
from tireless.log import OurHandler, configure, get
from tireless.redact import MASK, Redactor

TOKEN = "8f3c0d1e55aa4b6c9d"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _clean_log() -> Iterator[None]:
    """Leave the process's logging as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def logged(level: str = "INFO") -> io.StringIO:
    """A configured log that writes JSON to the stream returned."""
    out = io.StringIO()
    configure(level, redactor=Redactor([TOKEN]), stream=out)
    return out


def lines(out: io.StringIO) -> list[dict[str, object]]:
    """What was logged, parsed."""
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_facts_are_fields() -> None:
    """Phrase, level, logger, time in UTC and every fact stand in one JSON object per line."""
    out = logged()
    with structlog.contextvars.bound_contextvars(job=17):
        get("tireless.services.runner").info("job claimed", lane="claude")
    (line,) = lines(out)
    assert str(line.pop("at")).endswith("Z")
    assert line == {
        "event": "job claimed",
        "job": 17,
        "lane": "claude",
        "level": "info",
        "logger": "tireless.services.runner",
    }


def test_libraries_are_rendered_alike_and_quieted() -> None:
    """uvicorn, httpx, APScheduler and psycopg's pool speak from WARNING on, in our format."""
    out = logged()
    for name in ("uvicorn.access", "uvicorn.error", "httpx", "apscheduler.scheduler", "psycopg.pool"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble in %s", name, extra={"attempt": 3})
    assert [line["event"] for line in lines(out)] == [
        f"trouble in {name}"
        for name in ("uvicorn.access", "uvicorn.error", "httpx", "apscheduler.scheduler", "psycopg.pool")
    ]
    assert {line["attempt"] for line in lines(out)} == {3}


def test_debug_lets_the_libraries_speak() -> None:
    """Whoever asks for DEBUG wants to see what the libraries do."""
    out = logged("debug")
    logging.getLogger("httpx").info("request sent")
    assert [line["event"] for line in lines(out)] == ["request sent"]


def test_no_secret_reaches_the_log() -> None:
    """Neither in the phrase, a field, a nested field, a library's message nor a traceback."""
    out = logged()
    get("a").info(f"phrase {TOKEN}", url=f"https://bot:{TOKEN}@forge/x", nested={"deep": [TOKEN]})
    logging.getLogger("b").warning("library %s", TOKEN)
    try:
        raise ValueError(f"bad token {TOKEN}")
    except ValueError:
        get("c").exception("request failed")
    text = out.getvalue()
    assert TOKEN not in text
    assert text.count(MASK) >= 5
    assert "Traceback" in str(lines(out)[2]["exception"])


def test_a_terminal_gets_lines_for_people() -> None:
    """At a terminal the log is text, not JSON, and it is redacted just so."""
    out = Terminal()
    configure(redactor=Redactor([TOKEN]), stream=out)
    get("a").warning("lane held", lane="claude", token=TOKEN)
    with pytest.raises(json.JSONDecodeError):
        json.loads(out.getvalue())
    assert "lane held" in out.getvalue()
    assert TOKEN not in out.getvalue()


def test_configuring_again_replaces_and_doubles_nothing() -> None:
    """The second configuration is the one in force; every line is written once."""
    first, second = logged(), logged("WARNING")
    get("a").info("job claimed")
    get("a").warning("lane held")
    assert first.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["lane held"]
    assert sum(isinstance(handler, OurHandler) for handler in logging.getLogger().handlers) == 1


def test_a_call_that_is_repeated_is_told_in_our_words() -> None:
    """The library that repeats calls logs as we do: a fixed phrase, the error as a field, no secret."""
    out = logged("WARNING")
    for attempt in stamina.retry_context(on=OSError, attempts=2, wait_initial=0, wait_jitter=0):
        with attempt:
            if attempt.num == 1:
                raise OSError(f"no answer to {TOKEN}")
    (line,) = lines(out)
    assert (line["event"], line["error"], line["level"]) == ("call repeated", f"no answer to {MASK}", "warning")


def test_an_unknown_level_is_refused() -> None:
    """The message names the levels there are."""
    with pytest.raises(ConfigError, match="DEBUG, INFO, WARNING, ERROR"):
        configure("LOUD", redactor=Redactor())
