"""The texts a job is delivered with: closing line, hidden line, adoption by key, order of creation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.domain.comments import Voice
from tireless.domain.delivery import (
    TITLE_MAX,
    ChildLine,
    ChildText,
    Text,
    child_text,
    find_child,
    in_order,
    pull_text,
    read_child_line,
    superseded,
    twin,
)
from tireless.domain.inert import JOINER
from tireless.domain.issue import IssueState, Person, Snapshot
from tireless.domain.job import Kind
from tireless.loopback.references import find
from tireless.redact import Redactor

VOICE = Voice()
UID = "11111111-2222-3333-4444-555555555555"
BOT = Person(9, "tireless-bot")


def pulled(body: str, *, title: str = "Paint", kind: Kind = Kind.IMPLEMENT, plain: bool = False) -> Text:
    """A pull request's text."""
    return pull_text(title=title, body=body, kind=kind, number=7, lane="claude", job_id=3, voice=VOICE, plain=plain)


def child(body: str = "Do it.", **fields: Any) -> Text:
    """A child issue's text."""
    given: dict[str, Any] = {
        "title": "Schema",
        "body": body,
        "key": "schema",
        "uid": UID,
        "plan_number": 7,
        "plan_address": "https://forge.example/a/b/issues/./7",
        "repo": "a/b",
        "proposal": False,
    }
    return child_text(ChildText(**{**given, **fields}), VOICE)


@pytest.mark.parametrize(
    "body", ["", "Fixed.", "```\nopen", "~~~~\n```", "<pre>", "<!-- hid", "closes", "text\n\tcloses:"]
)
def test_the_closing_line_always_closes(body: str) -> None:
    """Whatever the agent's text leaves open, a forge reads exactly one closing reference: ours, in the last line."""
    text = pulled(body)
    assert text.body.splitlines()[-1] == "Closes #7"
    assert [(each.number, each.action) for each in find(text.body)] == [(7, "closes")]


@pytest.mark.parametrize("kind", [Kind.PLAN, Kind.DISCOVER])
def test_only_an_implementation_closes_its_issue(kind: Kind) -> None:
    """A plan's or a discovery's commit is offered without closing anything."""
    assert find(pulled("Notes for #3", kind=kind).body) == []


def test_a_title_is_one_inert_line() -> None:
    """A title closes nothing, has no line break, and leaves room for a draft's prefix."""
    title = pulled("", title="fixes #12\nand @bob " + "x" * 400).title
    assert find(title) == []
    assert "\n" not in title
    assert len(title) <= TITLE_MAX
    assert title.replace(JOINER, "").startswith("fixes #12 and @bob x")
    assert pulled("", title=" \n ").title == "(no title)"


def test_plain_text_keeps_our_lines() -> None:
    """The retry's text is ASCII in one code block, and still ends in our line."""
    text = pulled("Grün **fett** ``` x\n" * 1000, title="Grün", plain=True)
    assert text.title == "Gr?n"
    assert text.body.isascii()
    assert len(text.body) < 5000
    assert text.body.splitlines()[-1] == "Closes #7"


def test_secrets_stay_out_of_what_is_delivered() -> None:
    """Title and body of a pull request pass the redactor."""
    voice = Voice(redactor=Redactor(["hunter2-hunter2"]))
    text = pull_text(
        title="hunter2-hunter2", body="hunter2-hunter2", kind=Kind.PLAN, number=1, lane="a", job_id=1, voice=voice
    )
    assert "hunter2" not in text.title + text.body


def test_a_child_names_its_plan_and_what_it_waits_for() -> None:
    """The body links the plan, names what has to be closed first without referring to it, and says who opts in."""
    text = child(waits=[(8, "Base of @all")], unknown_lane="fa`st")
    assert "Part of the plan in [issue 7](https://forge.example/a/b/issues/./7)." in text.body
    assert "Waits until these are closed: `a/b#8` (Base of @⁠all)." in text.body
    assert "The plan named the lane `fa'st`, which does not exist here." in text.body
    assert "once a person puts `tireless/go` on it" in text.body
    assert find(text.body) == []
    assert "once a person" not in child(runs=True).body
    assert "Proposed by the discovery" in child(proposal=True).body


@pytest.mark.parametrize("body", ["Do it.", "", "```\nopen", "<!-- hid", str(ChildLine("x", 1, "other", UID))])
def test_the_hidden_line_is_found_under_any_body(body: str) -> None:
    """The hidden line is the last one and the only hidden text, also where the agent wrote one of its own."""
    text = child(body)
    assert read_child_line(text.body) == ChildLine("tireless/", 7, "schema", UID)
    assert text.body.count("<!--") == 1


@given(
    st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable()),
    st.integers(1, 10**9),
    st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,20}\Z"),
)
def test_a_hidden_line_is_read_as_it_was_written(installation: str, plan: int, key: str) -> None:
    """Any installation, plan and key come back."""
    line = ChildLine(installation, plan, key.strip("\n"), UID)
    assert read_child_line(f"text\n\n{line}\n") == line


def issue(
    number: int,
    *,
    uid: str = UID,
    author: Person = BOT,
    is_open: bool = True,
    key: str = "schema",
    inst: str = "tireless/",
) -> Snapshot:
    """An issue with a hidden line."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Snapshot(
        number=number,
        issue_id=number,
        title="t",
        body=f"x\n\n{ChildLine(inst, 7, key, uid)}",
        author=author,
        state=IssueState.OPEN if is_open else IssueState.CLOSED,
        labels=(),
        created_at=now,
        updated_at=now,
        url="",
    )


OTHER = "99999999-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("issues", "found"),
    [
        ([], []),
        ([issue(5), issue(3)], [3, 5]),
        ([issue(3, is_open=False)], [3]),
        ([issue(3, uid=OTHER)], [3]),
        ([issue(3, uid=OTHER, is_open=False)], []),
        ([issue(3, uid=OTHER), issue(4)], [4]),
        ([issue(3, author=Person(1, "eve"))], []),
        ([issue(3, key="paint", uid=OTHER)], []),
        ([issue(3, inst="other")], []),
    ],
)
def test_a_child_is_found_by_uid_or_by_its_key_while_open(issues: list[Snapshot], found: list[int]) -> None:
    """The bot's own issue of this uid in any state, else an open one of the plan and key; of several the lowest."""
    same = find_child(issues, BOT, installation="tireless/", plan_number=7, key="schema", uid=UID)
    assert [each.number for each in same] == found


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdefg"), max_size=4), max_size=6))
def test_children_come_after_what_they_depend_on(graph: dict[str, list[str]]) -> None:
    """Every key comes once; without a circle each comes after those it depends on."""
    order = in_order(graph)
    assert sorted(order) == sorted(graph)
    reach: dict[str, set[str]] = {key: {other for other in after if other in graph} for key, after in graph.items()}
    for _ in graph:
        reach = {key: others | {far for other in others for far in reach[other]} for key, others in reach.items()}
    if all(key not in others for key, others in reach.items()):
        assert all(
            order.index(other) < order.index(key) for key, after in graph.items() for other in after if other in graph
        )


def test_independent_children_keep_the_plans_order() -> None:
    """Order is changed only where a dependency demands it."""
    assert in_order({"b": [], "a": [], "c": ["b"]}) == ["b", "a", "c"]
    assert in_order({"b": ["a"], "a": [], "c": []}) == ["a", "c", "b"]


def test_sentences_about_others_make_no_reference() -> None:
    """What is said on a replaced pull request and on a twin links the other one without referring to it."""
    for said in (superseded("https://f/a/b/pulls/./9", 9), twin("https://f/a/b/issues/./9", 9, pull=False)):
        assert find(said) == []
        assert "/./9)" in said
