"""Names made from titles: always a valid branch of ours, whatever the title."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.domain.text import branch_name, branch_prefix, slug, visible


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Make it shine!", "make-it-shine"),
        ("  Ünïcode & Größe  ", "unicode-groe"),
        ("日本語", "issue"),
        ("", "issue"),
        ("../../etc/passwd", "etc-passwd"),
        ("a" * 100, "a" * 40),
        ("word " * 20, "word-word-word-word-word-word-word-word"),
        ("---", "issue"),
    ],
)
def test_slug_is_plain(title: str, expected: str) -> None:
    """Lower-case letters, digits and single dashes, at most 40, never empty, no dash at either end."""
    assert slug(title) == expected


@given(number=st.integers(1, 2**31), title=st.text(max_size=300), uid=st.uuids())
def test_every_title_makes_a_branch_of_ours(number: int, title: str, uid: UUID) -> None:
    """The name has the promised form, begins with its issue's prefix, and ends in the attempt."""
    name = branch_name(number, title, uid.hex)
    assert re.fullmatch(r"tireless/[0-9]+-[a-z0-9-]{1,40}\.[0-9a-f]{8}", name)
    assert name.startswith(branch_prefix(number))
    assert name.endswith(uid.hex[:8])


@given(text=st.text())
def test_visible_text_can_be_stored_and_is_stable(text: str) -> None:
    """What is shown can be encoded, holds no control character, and is not changed by a second pass."""
    shown = visible(text)
    shown.encode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]", shown)
    assert visible(shown) == shown
