"""Reading the forge's answers: what a real Gitea said becomes our values; what does not fit is named, never guessed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.answers import recorded
from tireless.domain.issue import EntryKind, IssueState
from tireless.forge import reading


def test_an_issue_is_read() -> None:
    """The recorded issue: number, global id, author, times in UTC."""
    found = reading.snapshot(recorded("issue"))
    assert found.number > 0
    assert found.issue_id > 0
    assert found.state is IssueState.OPEN
    assert found.created_at.tzinfo is UTC
    assert found.author.login == "mallory"


def test_pull_requests_in_a_list_are_told_apart() -> None:
    """The marker is a `pull_request` that is not null."""
    assert [reading.is_pull(each) for each in recorded("issue_list")] == [True, False]


def test_label_entries_say_added_or_removed() -> None:
    """Body `1` is an add, an empty one a removal; kinds that mean nothing here are left out."""
    entries = [reading.entry(each) for each in recorded("label_entries")]
    kinds = [each.kind for each in entries if each is not None]
    assert kinds.count(EntryKind.LABEL_ADDED) == kinds.count(EntryKind.LABEL_REMOVED) == 1
    assert {EntryKind.COMMENT, EntryKind.TITLE_CHANGED, EntryKind.CLOSED, EntryKind.REOPENED} <= set(kinds)
    assert any(each is None for each in entries)
    assert reading.entry(None) is None


def test_the_ghost_is_a_system_user() -> None:
    """A deleted user's entry, and one whose user is null, belong to someone who may never ask."""
    (ghost,) = (reading.entry(each) for each in recorded("ghost_entries"))
    assert ghost is not None
    assert ghost.actor.is_system
    nobody = {**recorded("ghost_entries")[0], "user": None}
    entry = reading.entry(nobody)
    assert entry is not None
    assert entry.actor.is_system


def test_a_user_is_read_by_id_and_login_alone() -> None:
    """Forgejo's user has no `type`, and what another one says there changes nothing."""
    user = recorded("user")
    bare = {"id": user["id"], "login": user["login"]}
    assert reading.person(bare) == reading.person(user) == reading.person({**bare, "type": "Bot"})


def test_a_label_entry_whose_definition_is_gone_has_no_label() -> None:
    """It is still an entry: a removal or an add of what is no more."""
    entry = reading.entry({**recorded("ghost_entries")[0], "label": None})
    assert entry is not None
    assert (entry.kind, entry.label) == (EntryKind.LABEL_ADDED, None)


def test_a_pull_request_keeps_the_name_of_its_deleted_branch() -> None:
    """`head.ref` turns into refs/pull/N/head; the name is in `label` still."""
    data = recorded("pull_without_branch")
    assert data["head"]["ref"].startswith("refs/pull/")
    found = reading.pull(data)
    assert found.head == "probe-hdr"
    assert len(found.head_sha) == 40
    assert found.state is IssueState.CLOSED
    assert not reading.from_fork(data)


def test_a_fork_is_told_by_the_repository_of_its_head() -> None:
    """Another repository's id, or none any more, is not a branch of ours."""
    data = recorded("pull")
    assert not reading.from_fork(data)
    assert reading.from_fork({**data, "head": {**data["head"], "repo_id": 999}})
    assert reading.from_fork({**data, "head": None})


def test_has_issues_needs_the_forges_own_tracker() -> None:
    """True with `internal_tracker`; false with the unit off, and for an external tracker though the forge says true."""
    own = recorded("repository")
    assert reading.repository(own).has_issues
    assert not reading.repository(recorded("repository_without_issues")).has_issues
    external = {key: value for key, value in own.items() if key != "internal_tracker"}
    assert external["has_issues"] is True
    assert not reading.repository(external).has_issues
    assert reading.repository(recorded("empty_repository")).empty


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-29T23:08:20Z", datetime(2026, 11, 29, 23, 8, 20, tzinfo=UTC)),
        ("2026-11-30T08:08:20+09:00", datetime(2026, 11, 29, 23, 8, 20, tzinfo=UTC)),
        ("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_read_with_their_offset(text: str, expected: datetime) -> None:
    """The forge writes in the zone it is set to; we keep UTC."""
    assert reading.moment(text, "t") == expected


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        "",
        "yesterday",
        "2026-11-29T23:08:20",
        "0001-01-01T00:00:00+09:00",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
    ],
)
def test_what_is_no_time_is_a_fault(data: object) -> None:
    """Also a time without an offset, and those at the ends of the calendar: nothing can be asked from there."""
    with pytest.raises(ValueError, match="t "):
        reading.moment(data, "t")


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("number", 0),
        ("number", None),
        ("number", -4),
        ("number", 2**31),
        ("number", "7"),
        ("number", True),
        ("id", 0),
        ("id", 2**63),
        ("title", None),
        ("body", 5),
        ("labels", None),
        ("labels", [None]),
        ("labels", [{"id": 0, "name": "x"}]),
        ("labels", [{"id": 1}]),
        ("labels", [{"id": 10**30, "name": "x"}]),
        ("state", "weird"),
        ("state", None),
        ("user", {"login": "x"}),
        ("user", {"id": 2**63, "login": "x"}),
        ("user", "x"),
        ("created_at", None),
        ("updated_at", "soon"),
    ],
)
def test_an_issue_with_one_bad_field_names_it(field: str, bad: object) -> None:
    """Nothing is guessed: labels that are missing are not "none", a conversion failure of zeros is no issue."""
    with pytest.raises(ValueError, match=field):
        reading.snapshot({**recorded("issue"), field: bad})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_READERS: list[tuple[str, Callable[[Any], object]]] = [
    ("issue", reading.snapshot),
    ("comment", reading.comment),
    ("pull", reading.pull),
    ("pull", reading.from_fork),
    ("repository", reading.repository),
    ("label", reading.label),
    ("user", reading.person),
]


@given(st.sampled_from(_READERS), st.data())
def test_whatever_a_field_holds_is_a_value_or_a_fault(which: tuple[str, Callable[[Any], object]], data: Any) -> None:
    """Any field of any answer replaced by anything: the reader returns or raises ValueError, nothing else."""
    name, reader = which
    found = copy.deepcopy(recorded(name))
    found[data.draw(st.sampled_from(sorted(found)))] = data.draw(_JSON)
    with contextlib.suppress(ValueError):
        assert reader(found) is not None


@given(_JSON)
def test_anything_at_all_is_a_value_or_a_fault(data: object) -> None:
    """The same for answers that have nothing of an answer."""
    for _, reader in _READERS:
        with contextlib.suppress(ValueError):
            assert reader(data) is not None
    with contextlib.suppress(ValueError):
        found = reading.entry(data)
        assert found is None or isinstance(found.id, int)
