"""One answer: the error its status means, its body read defensively, its dates; and the request budget."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.errors import (
    ForgeDenied,
    ForgeError,
    ForgeGarbled,
    ForgeRejected,
    ForgeUnavailable,
    Moved,
    NotFound,
    RateLimited,
)
from tireless.forge.http import Budget
from tireless.forge.reply import Answer, error_of, excerpt


def _answer(status: int = 200, content: bytes = b"", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(forge="main", call="GET /repos/acme/widgets", status=status, headers=named, content=content)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, Moved),
        (307, Moved),
        (308, Moved),
        (400, ForgeRejected),
        (401, ForgeDenied),
        (403, ForgeDenied),
        (404, NotFound),
        (405, ForgeRejected),
        (408, ForgeUnavailable),
        (409, ForgeRejected),
        (412, ForgeRejected),
        (413, ForgeRejected),
        (422, ForgeRejected),
        (423, ForgeRejected),
        (425, ForgeUnavailable),
        (429, RateLimited),
        (500, ForgeUnavailable),
        (502, ForgeUnavailable),
        (503, ForgeUnavailable),
        (504, ForgeUnavailable),
        (599, ForgeUnavailable),
        (304, ForgeGarbled),
        (100, ForgeGarbled),
    ],
)
@pytest.mark.parametrize(
    "content",
    [b"", b"null", b'"CrossRepositoryDependencies not enabled"', b"<html>x", b'{"message":"not found"}', b"{"],
)
def test_the_status_alone_decides(status: int, kind: type[ForgeError], content: bytes) -> None:
    """Whatever the body is: an exact kind, the status kept, method and path in the message."""
    error = error_of(_answer(status, content), excerpt)
    assert type(error) is kind
    assert error.status == status
    assert "GET /repos/acme/widgets" in str(error)
    assert "main" in str(error)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Sun, 29 Nov 2026 23:05:42 GMT", 10.0),
        ("Sun, 29 Nov 2026 23:05:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("٣", None),
        ("", None),
    ],
)
def test_retry_after_in_both_forms(text: str, seconds: float | None) -> None:
    """Seconds, or a date against the server's own clock; what is neither is not known."""
    error = error_of(_answer(429, retry_after=text, date="Sun, 29 Nov 2026 23:05:32 GMT"), excerpt)
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == seconds


def test_a_503_without_retry_after_is_merely_unavailable() -> None:
    """The forge's own overload answer says nothing of when."""
    assert type(error_of(_answer(503, b"Service Unavailable"), excerpt)) is ForgeUnavailable
    assert type(error_of(_answer(503, retry_after="3"), excerpt)) is RateLimited


def test_messages_quote_the_forge_in_one_line() -> None:
    """What the forge said is in it, short and printable; a page is not; our cleaner sees every quoted word."""
    said = str(error_of(_answer(422, b'{"message":"bad\\n\\u001b[31m color ' + b"x" * 999 + b'"}'), excerpt))
    assert "bad [31m color" in said
    assert "\n" not in said
    assert len(said) < 400
    assert "<html" not in str(error_of(_answer(502, b"<html><body>nginx"), excerpt))
    assert "***" in str(error_of(_answer(422, b"see token s3cret"), lambda text: text.replace("s3cret", "***")))


@pytest.mark.parametrize(
    ("said", "scopes"),
    [
        ("required scope(s), required=[read:organization], token scope=write:issue", ("read:organization",)),
        ("required=[read:issue, write:issue]", ("read:issue", "write:issue")),
        ("required=[]", ()),
        ("required=[<b>@all</b>]", ()),
        ("user should have a permission to write to a repo", ()),
    ],
)
def test_the_scopes_a_refusal_names_are_kept_for_people(said: str, scopes: tuple[str, ...]) -> None:
    """Only what looks like scopes; none where the forge speaks of the user's rights."""
    error = error_of(_answer(403, json.dumps({"message": said}).encode()), excerpt)
    assert isinstance(error, ForgeDenied)
    assert error.scopes == scopes


@pytest.mark.parametrize("content", [b"<html>", b"{", b"nan nan", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_is_garbled(content: bytes) -> None:
    """A login page, a cut answer, deep nesting: ForgeGarbled with the status, no other exception."""
    with pytest.raises(ForgeGarbled) as garbled:
        _answer(200, content).json()
    assert garbled.value.status == 200


def test_control_characters_and_nul_survive() -> None:
    """Escaped or raw, they are in the text that comes out."""
    assert _answer(content=b'{"body":"a\\u0000b\x01c\td"}').json() == {"body": "a\0b\x01c\td"}


def test_nothing_and_null_are_no_list_elements() -> None:
    """An empty body and `null` are an empty list; an object where a list belongs is garbled, and the reverse."""
    assert _answer(content=b"").sequence() == _answer(content=b" null\n").sequence() == []
    for content in (b"{}", b'"x"', b"5", b"true"):
        with pytest.raises(ForgeGarbled):
            _answer(content=content).sequence()
    for content in (b"[]", b"", b"null", b'"x"'):
        with pytest.raises(ForgeGarbled):
            _answer(content=content).mapping()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sun, 29 Nov 2026 23:05:32 GMT", datetime(2026, 11, 29, 23, 5, 32, tzinfo=UTC)),
        ("Sun, 29 Nov 2026 23:05:32 +0100", datetime(2026, 11, 29, 22, 5, 32, tzinfo=UTC)),
        ("Sun, 29 Nov 2026 23:05:32 -0000", None),
        ("now", None),
        ("", None),
        ("Sun, 99 Nov 2026 23:05:32 GMT", None),
        ("Fri, 31 Dec 9999 23:00:00 -0900", None),
    ],
)
def test_the_servers_date(text: str, expected: datetime | None) -> None:
    """In UTC; absent, unreadable or without a zone it is None, never an error."""
    assert _answer(date=text).server_date == expected
    assert _answer().server_date is None


@given(st.text())
def test_no_date_header_raises(text: str) -> None:
    """Any text at all: a moment with a zone, or None."""
    found = _answer(date=text).server_date
    assert found is None or found.tzinfo is UTC


@pytest.mark.parametrize(("text", "expected"), [("53", 53), (" 0", 0), ("-1", None), ("x", None), ("٣", None)])
def test_the_total(text: str, expected: int | None) -> None:
    """X-Total-Count as a number; None where there is none."""
    assert _answer(x_total_count=text).total == expected


def test_the_budget_allows_a_burst_then_paces() -> None:
    """Sixty a minute: sixty at once, then one a second; unused time fills it again, up to one minute's worth."""
    budget = Budget(60, max_wait_s=5)
    assert [budget.wait_s(1000.0) for _ in range(61)] == [0.0] * 60 + [0.0]
    assert budget.wait_s(1000.0) == pytest.approx(1.0)
    assert budget.wait_s(1000.5) == pytest.approx(1.5)
    assert [budget.wait_s(5000.0) for _ in range(61)] == [0.0] * 61
    assert budget.wait_s(5000.0) == pytest.approx(1.0)


def test_the_budget_refuses_what_would_wait_too_long() -> None:
    """Beyond the longest wait it says None, and takes nothing for it."""
    budget = Budget(60, max_wait_s=2)
    waits = [budget.wait_s(0.0) for _ in range(70)]
    assert waits[61:63] == [1.0, 2.0]
    assert waits[63:] == [None] * 7
    assert budget.wait_s(1.0) == pytest.approx(2.0)
