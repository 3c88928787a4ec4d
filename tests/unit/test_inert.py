"""Agents' texts as they reach a forge: inert, readable, and unable to swallow what the bot writes after them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.domain.inert import JOINER, close_fence, cut, neutralise, one_line, quote

# What a Gitea looks for, wider than the real thing: no word boundary is demanded on either side.
FOUND_BY_A_FORGE = re.compile(
    r"(?<!&)[#!][0-9]+|(?:^|[^A-Za-z0-9])@[\w-]|/(?:issues|pulls)/[0-9]+|<!--", re.IGNORECASE | re.MULTILINE
)

PIECES = st.sampled_from(
    [
        *(
            "closes ",
            "Fixes: ",
            "resolve\n",
            "#1",
            "#12",
            "!3",
            "a/b#4",
            "@bob",
            "@",
            "#",
            "!",
            "/issues/",
            "/pulls/",
            "7",
        ),
        *(
            "<!--",
            "-->",
            "`",
            "```\n",
            "\n",
            " ",
            "(",
            "[",
            "*",
            "é",
            "x",
            "\u202e",
            "\u2060",
            "&#39;",
            "\r\n",
            "<pre>",
        ),
    ]
)


@pytest.mark.parametrize(
    "hostile",
    [
        "closes #12",
        "Fixes: other/repo#12",
        "resolves !7",
        "(#12)",
        "**#12**",
        "ask *@alice* or @org/team",
        "closes https://forge.example/o/r/issues/12",
        "[x](/o/r/pulls/3)",
        "<!-- tireless:status installation=a answered_event=9 -->",
        "`#12`",
        "#1\u202e2",
    ],
)
def test_nothing_in_a_hostile_text_is_found(hostile: str) -> None:
    """Closing words, references, mentions, issue addresses and hidden lines of an agent mean nothing to a forge."""
    assert FOUND_BY_A_FORGE.search(hostile)
    assert not FOUND_BY_A_FORGE.search(neutralise(hostile))


@pytest.mark.parametrize("hostile", ["closes #12", "ask @alice", "owner/repo!3 <!-- hid -->"])
def test_an_inert_text_reads_as_before(hostile: str) -> None:
    """Only a character without width is added, so that a person reads the same words."""
    assert neutralise(hostile).replace(JOINER, "") == hostile


def test_an_issue_address_still_leads_there() -> None:
    """An address keeps host, path and number; the dot segment is dropped by every browser."""
    assert neutralise("see https://example.org/o/r/issues/12?a=1") == "see https://example.org/o/r/issues/./12?a=1"


@pytest.mark.parametrize(
    "plain", ["mail a.b@example.org", "x = &#39;y&#39;", "C# is fine!", "a != b", "# Heading", "List<String>", "-3 @ 4"]
)
def test_plain_text_is_left_alone(plain: str) -> None:
    """Mail addresses, entities, headings and code keep every character."""
    assert neutralise(plain) == plain


@given(st.lists(PIECES, max_size=30).map("".join))
def test_random_mixtures_are_inert_and_stable(text: str) -> None:
    """However the pieces meet, a forge finds nothing, and neutralising again changes nothing."""
    once = neutralise(text)
    assert not FOUND_BY_A_FORGE.search(once)
    assert neutralise(once) == once


@given(st.text(max_size=200))
def test_any_text_is_taken(text: str) -> None:
    """Any string at all is taken, NUL and lone surrogates included, and comes out storable."""
    once = neutralise(text)
    assert neutralise(once) == once
    assert "\0" not in once
    once.encode()


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("a\n```py\nb", "a\n```py\nb\n```"),
        ("a\n```py\nb\n```", "a\n```py\nb\n```"),
        ("~~~~\n```\n~~~", "~~~~\n```\n~~~\n~~~~"),
        ("``` not `a fence", "``` not `a fence"),
        ("````\n```\n````", "````\n```\n````"),
        ("- a\n\n```py\nb", "- a\n\n```py\nb\n```"),
        ("- - -\n  ```\nb", "- - -\n  ```\nb\n```"),
    ],
)
def test_an_open_fence_is_closed(text: str, closed: str) -> None:
    """What follows an agent's text is never inside its code block."""
    assert close_fence(text) == closed


@pytest.mark.parametrize(
    "text",
    [
        "- ```sh\n  make\n  ```",
        "1. ```\n   make\n   ```\nend",
        "- a\n  ```\n  make",
        "- a\n  - b\n\n    ```\n    make",
        "* - ```\n    make\n\n    ```",
        "-\t```\n\tmake\n\t```",
        "> ```\n> make",
        "a\n\n    ```\n    make",
    ],
)
def test_a_fence_in_a_list_or_quotation_ends_with_it(text: str) -> None:
    """Nothing is added for one: at the margin it would open a block that swallows the closing line after it."""
    assert close_fence(text) == text


def test_a_long_text_is_cut_and_says_so() -> None:
    """A cut text is bounded, closes its fence, and says on a line of its own that it was cut."""
    assert cut("```\n" + "x" * 100, 20) == "```\n" + "x" * 16 + "\n```\n\n(cut here)"
    assert cut("short", 20) == "short"


def test_one_line_has_no_breaks() -> None:
    """A title is one line of bounded length."""
    assert one_line(" a\n\tb  c ", 10) == "a b c"
    assert one_line("abcdefghij", 5) == "abcd…"


def test_a_quotation_quotes_every_line() -> None:
    """No line of a quoted text stands outside the quotation."""
    assert quote("a\n\nb\n") == "> a\n>\n> b"
