"""What leaves the process holds no secret, however the secret was written and however the output was cut."""

from __future__ import annotations

import base64
import itertools
import json
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tireless.redact import MASK, MIN_LENGTH, Redactor

SECRET = 'p@ss/w"ord+ä1'
TOKEN = "8f3c0d1e55aa4b6c9d"


@pytest.mark.parametrize(
    "text",
    [
        f"the token is {TOKEN}.",
        f"https://forge.example/?x={quote(SECRET, safe='')}",
        f"postgresql://tireless:{quote(SECRET)}@db/tireless",
        json.dumps({"password": SECRET}),
        json.dumps({"password": SECRET}, ensure_ascii=False),
        f"{SECRET!r}",
        "Basic " + base64.b64encode(f"tireless:{TOKEN}".encode()).decode(),
        "x" + base64.urlsafe_b64encode(f"ab{TOKEN}yz".encode()).decode(),
        base64.b64encode(f"a{SECRET}".encode()).decode(),
    ],
)
def test_a_known_secret_goes_in_every_form(text: str) -> None:
    """Plain, percent-encoded, JSON, repr and base64 at each alignment: neither the form nor the value is left."""
    clean = Redactor([SECRET, TOKEN]).text(text)
    assert MASK in clean
    for written in (SECRET, TOKEN, quote(SECRET), quote(SECRET, safe=""), json.dumps(SECRET)[1:-1]):
        assert written not in clean


@given(before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_base64_hides_the_secret_between_any_neighbours(before: bytes, after: bytes) -> None:
    """Whatever stands around the secret before encoding, what is left of the base64 does not decode to it."""
    told = Redactor([TOKEN]).bytes(base64.b64encode(before + TOKEN.encode() + after))
    assert MASK.encode() in told
    assert len(told.replace(MASK.encode(), b"")) <= 4 * ((len(before) + len(after)) // 3 + 3)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("fatal: 'https://bot:tok@forge.example/a/b.git/'", f"fatal: 'https://{MASK}@forge.example/a/b.git/'"),
        ("https://0123456789abcdef@forge.example/a", f"https://{MASK}@forge.example/a"),
        ("postgresql://me:pa@ss@db:5432/tireless", f"postgresql://me:{MASK}@db:5432/tireless"),
        ("GET /x?access_token=abc&page=2", f"GET /x?access_token={MASK}&page=2"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {MASK}"),
        ('{"authorization": "token abc", "a": 1}', f'{{"authorization": "token {MASK}", "a": 1}}'),
        ("http.extraHeader=AUTHORIZATION: basic eA==", f"http.extraHeader=AUTHORIZATION: basic {MASK}"),
        ("authorization=0123456789abcdef0123", f"authorization={MASK}"),
        ("key sk-ant-" + "a1" * 12, f"key {MASK}"),
    ],
)
def test_credentials_nobody_told_us_of_go_by_their_shape(text: str, clean: str) -> None:
    """Userinfo, token parameters, authorization headers and well-known prefixes are found without knowing the value."""
    assert Redactor().text(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "git@forge.example:a/b.git and ssh://git@forge.example/a/b.git",
        "postgresql://postgres@/tireless?host=/var/lib/tireless/pg/run",
        "Authorization is done by the forge; mail a@b.example about https://x.example/@name",
        "http://127.0.0.1:3000/a/b/issues/1#issuecomment-2",
        'token = os.environ["X"]  # a password in code is a name',
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    """What only looks a little like a credential is not mangled: comments and summaries pass through here."""
    assert Redactor([TOKEN]).text(text) == text


def test_short_and_empty_secrets_are_not_looked_for() -> None:
    """A secret that could be any word would blank the log; the limit is MIN_LENGTH."""
    redactor = Redactor(["", " ", "a" * (MIN_LENGTH - 1)])
    assert redactor.text("aaaaa bbbbb") == "aaaaa bbbbb"


def test_a_key_of_several_lines_goes_line_by_line() -> None:
    """A private key printed with an indentation is still found."""
    key = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7x1\nqqwweerrttyyuuiioopp\n-----END KEY-----\n"
    clean = Redactor([key]).text("\n".join("    " + line for line in key.splitlines()))
    assert "MIIEpAIBAAKCAQEA7x1" not in clean
    assert "qqwweerrttyyuuiioopp" not in clean


def test_values_are_cleaned_at_any_depth() -> None:
    """Dictionaries, their keys, lists and bytes."""
    dirty = {TOKEN: [{"a": f"x{TOKEN}"}, 1, None, (True, TOKEN.encode())]}
    assert Redactor([TOKEN]).value(dirty) == {MASK: [{"a": f"x{MASK}"}, 1, None, [True, MASK.encode()]]}


@given(text=st.text())
def test_any_text_survives(text: str) -> None:
    """No text makes it fail, and a second pass changes nothing."""
    redactor = Redactor([SECRET, TOKEN])
    once = redactor.text(text + TOKEN)
    assert redactor.text(once) == once


def test_text_with_lone_surrogates_passes() -> None:
    """Names of files that are no UTF-8 come as lone surrogates and must not break the log."""
    assert Redactor([TOKEN]).text(f"\udcff{TOKEN}") == f"\udcff{MASK}"


LINES = (
    f"plain line\nhttps://bot:{TOKEN}@forge/x\r\n{TOKEN}{TOKEN}\nAuthorization: Bearer abcdef\n"
    f"no end of line {SECRET} and {TOKEN[:5]}\nlast"
).encode()


@given(cuts=st.lists(st.integers(0, len(LINES)), max_size=20))
def test_a_stream_tells_what_the_whole_tells(cuts: list[int]) -> None:
    """However the output is cut into pieces, the stream says the same as the text at once."""
    redactor = Redactor([SECRET, TOKEN])
    stream = redactor.stream()
    places = [0, *sorted(cuts), len(LINES)]
    told = b"".join(stream.feed(LINES[a:b]) for a, b in itertools.pairwise(places)) + stream.close()
    assert told == redactor.bytes(LINES)


@given(size=st.integers(200, 9000), at=st.integers(0, 30_000))
@settings(max_examples=30)
def test_a_line_without_end_is_passed_on_without_cutting_a_secret(size: int, at: int) -> None:
    """An endless line does not pile up, and a secret anywhere in it, over any piece boundary, does not come through."""
    line = b"x" * at + TOKEN.encode() + b"y" * (40_000 - at)
    stream, told, taken = Redactor([TOKEN]).stream(), b"", 0
    while taken < len(line):
        told += stream.feed(line[taken : taken + size])
        taken += size
        assert taken - len(told) <= 16_384 + size + len(TOKEN)
    assert told + stream.close() == line.replace(TOKEN.encode(), MASK.encode())


def test_a_secret_over_two_lines_is_held_back_until_it_is_whole() -> None:
    """The end of a line is no safe cut when a secret of several lines has begun before it."""
    stream = Redactor(["abcdef\nghijkl"]).stream()
    assert stream.feed(b"one\nabcdef\n") == b"one\n"
    assert stream.feed(b"ghi") == b""
    assert stream.feed(b"jkl\ntwo\n") == f"{MASK}\ntwo\n".encode()
    assert stream.feed(b"abcdef\nother\n") == b"abcdef\nother\n"
