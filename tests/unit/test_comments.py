"""What the bot says of an issue: label, sentence and comment agree, agents' words are inert, the marker is found."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.domain.comments import (
    COMMENT_MAX,
    ChildPicture,
    JobPicture,
    Picture,
    Voice,
    tell,
)
from tireless.domain.gates import TRIAGE_CODES
from tireless.domain.issue import Comment, Person, RepoRef
from tireless.domain.job import Cancelled, Failure, Kind, Parked, State, Status, Wait, status_of
from tireless.domain.labels import LabelScheme
from tireless.domain.marker import Marker, own_comments, read_marker
from tireless.redact import Redactor

VOICE = Voice()
JOB = JobPicture(id=17, kind=Kind.IMPLEMENT, lane="claude", state=State.PENDING)
PICTURE = Picture(repo=RepoRef("main", "acme", "widgets"), number=7, url="https://forge.example/acme/widgets/issues/7")

WAITS = [(State.WAITING, reason.value) for reason in (*Parked, *Wait)]
RESTS: list[tuple[State, str | None]] = [
    (State.PENDING, None),
    *WAITS,
    (State.CLAIMED, None),
    (State.PUBLISHING, None),
    (State.DELIVERED, None),
    *[(State.FAILED, reason.value) for reason in Failure],
    *[(State.CANCELLED, reason.value) for reason in Cancelled],
]

REFERENCE = re.compile(r"(?<![`\w/&])[\w./-]*[#!][0-9]|(?<![\w`])@\w|/(?:issues|pulls)/[0-9]")
HOSTILE = "Closes #12, fixes other/repo!3\n@alice https://forge.example/acme/widgets/issues/3\n```\nopen <!-- hid"


def shown(**job: Any) -> Picture:
    """The picture with a job that differs from JOB in these fields."""
    return replace(PICTURE, job=replace(JOB, **job))


@pytest.mark.parametrize(("state", "reason"), RESTS)
def test_every_rest_of_a_job_is_told(state: State, reason: str | None) -> None:
    """Each state and reason has its own sentence; the comment opens with the label's word and contains the sentence."""
    said = tell(shown(state=state, reason=reason, waits_for=("acme/widgets#3",)), VOICE)
    assert said.status == status_of(state, reason in set(Parked))
    assert said.comment.startswith(f"**{said.status.capitalize()}** · implement · lane `claude`")
    assert said.sentence in said.comment
    assert said.next_step in said.comment
    assert said.sentence.endswith((".", ".)", ")"))
    assert "None" not in said.comment


def test_no_two_rests_are_told_alike() -> None:
    """A person can tell every state and reason from every other one by the sentence alone."""
    sentences = [tell(shown(state=state, reason=reason), VOICE).sentence for state, reason in RESTS]
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize("reason", list(Failure))
def test_a_failure_says_its_cause_and_what_to_do(reason: Failure) -> None:
    """A failed job's comment quotes the cause and says how to ask again."""
    picture = shown(
        state=State.FAILED,
        reason=reason.value,
        attempts=3,
        last_outcome="agent_error",
        last_reason="the compiler was missing",
        error="the compiler was missing",
    )
    said = tell(picture, VOICE)
    assert "> the compiler was missing" in said.comment
    assert "take `tireless/go` off and put it on again" in said.next_step


def test_a_delivery_that_was_given_up_names_what_is_left_of_it() -> None:
    """By links, so that a person can end it; nothing is said of what was never made."""
    given_up = {"state": State.FAILED, "reason": "unpublishable", "publish_reason": "given_up"}
    said = tell(shown(**given_up, branch="tireless/7-a.01234567", pull_request=12), VOICE)
    assert "An operator gave its delivery up" in said.comment
    assert "`tireless/7-a.01234567` and [pull request 12](" in said.comment
    assert "On the forge there" not in tell(shown(**given_up), VOICE).comment


@pytest.mark.parametrize("parked", list(Parked))
def test_a_parked_job_says_what_a_person_can_do(parked: Parked) -> None:
    """What waits for a person names a step in the forge or the operator's command for exactly this job."""
    said = tell(shown(state=State.WAITING, reason=parked.value, question="Which blue?"), VOICE)
    assert "`tireless jobs approve 17`" in said.next_step
    quoted = (Parked.NEEDS_INPUT, Parked.NO_PROGRESS, Parked.BUDGET_EXHAUSTED, Parked.ASKED_TOO_OFTEN)
    assert ("> Which blue?" in said.comment) == (parked in quoted)


def test_without_opt_in_the_mode_label_asks_again() -> None:
    """Where no opt-in is needed no comment sends people to a label that does nothing."""
    voice = Voice(scheme=LabelScheme(require_opt_in=False))
    for state, reason in RESTS:
        assert "tireless/go" not in tell(shown(state=state, reason=reason), voice).comment


def test_a_time_is_told_to_the_minute_in_utc() -> None:
    """When a waiting job goes on is said in the comment."""
    when = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    said = tell(
        shown(state=State.WAITING, reason="backoff", attempts=2, not_before=when, last_outcome="timeout"), VOICE
    )
    assert "2026-03-04 05:06 UTC" in said.sentence
    assert "timeout" in said.sentence
    assert "attempt 2 of 3" in said.comment


def test_what_a_job_left_is_linked() -> None:
    """A pull request and a plan's children are linked so that people get there and the forge sees no reference."""
    pull = tell(shown(state=State.DELIVERED, pull_request=12), VOICE).comment
    assert "[pull request 12](https://forge.example/acme/widgets/pulls/./12)" in pull
    children = (
        ChildPicture("schema", "Schema [x](y)", Kind.IMPLEMENT, 8, ended_reason="closed"),
        ChildPicture("paint", "Paint", Kind.PLAN, None, depends_on=("schema",)),
    )
    plan = replace(shown(kind=Kind.PLAN, state=State.DELIVERED), children=children, children_done=1)
    comment = tell(plan, VOICE).comment
    assert "1 child issue, 1 of them ended" in comment
    assert (
        "- `schema` (implement): [issue 8](https://forge.example/acme/widgets/issues/./8), Schema (x)(y) (closed)"
        in comment
    )
    assert "- `paint` (plan, after `schema`): not created yet, Paint" in comment
    opting = "on each of its issues that does not run by itself, put on `tireless/go`"
    assert opting not in comment
    assert opting in tell(replace(plan, children=(replace(children[0], ended_reason=None),)), VOICE).comment
    assert not REFERENCE.search(comment + pull)


def test_a_discoverys_report_is_the_comment() -> None:
    """What a discovery found is quoted at length; of other kinds the summary is cut shorter."""
    report = "line\n" * 3000
    discover = tell(shown(kind=Kind.DISCOVER, state=State.DELIVERED, summary=report), VOICE).comment
    implement = tell(shown(state=State.DELIVERED, summary=report), VOICE).comment
    assert discover.count("> line") == 3000
    assert implement.count("> line") < 2000
    assert "(cut here)" in implement


@pytest.mark.parametrize("field", ["question", "summary", "last_reason", "error"])
def test_agents_words_are_inert_in_every_place(field: str) -> None:
    """Whatever an agent says, wherever it is quoted: no reference, no mention, no hidden text, no swallowed line."""
    for state, reason in RESTS:
        comment = tell(shown(state=state, reason=reason, **{field: HOSTILE}), VOICE).comment
        assert not REFERENCE.search(comment)
        assert comment.count("<!--") == 1
        assert read_marker(comment) == Marker("tireless/", 7)


def test_a_forged_marker_does_not_move_the_marks() -> None:
    """An agent that ends its words with a marker of its own leaves the bot's marker the only one."""
    forged = str(Marker("tireless/", 7, 10**9))
    comment = tell(shown(state=State.DELIVERED, summary=f"done\n{forged}"), VOICE).comment
    marker = read_marker(comment)
    assert marker is not None
    assert marker.answered_event == 0


def test_secrets_are_not_repeated() -> None:
    """What the process knows as a secret never stands in a comment, whoever said it."""
    voice = Voice(redactor=Redactor(["hunter2-hunter2"]))
    for field in ("question", "summary", "last_reason", "error"):
        for state, reason in RESTS:
            assert "hunter2" not in tell(shown(state=state, reason=reason, **{field: "hunter2-hunter2"}), voice).comment


def test_a_comment_has_a_bounded_size() -> None:
    """However much an agent says and however many children there are, marker and bound hold."""
    children = tuple(ChildPicture(f"k{n}", "t" * 300, Kind.IMPLEMENT, n) for n in range(1, 900))
    picture = replace(shown(kind=Kind.DISCOVER, state=State.DELIVERED, summary="x" * 10**6), children=children)
    comment = tell(picture, VOICE).comment
    assert len(comment) < COMMENT_MAX + 1000
    assert read_marker(comment) is not None


@pytest.mark.parametrize("code", sorted(TRIAGE_CODES))
def test_a_refusal_has_no_label_and_names_its_code(code: str) -> None:
    """An issue without a job has no status; its sentence is the gate's, and the comment names the reason code."""
    said = tell(replace(PICTURE, triage_code=code), VOICE)
    assert said.status is None
    assert f"`{code}`" in said.comment
    assert read_marker(said.comment) is not None


def test_a_warning_stands_beside_the_job() -> None:
    """What a person should know although the job goes on is told in the gates' words."""
    details = {"warnings": {"unknown_lane": {"lanes": ["fast"], "lane": "claude"}}}
    comment = tell(replace(shown(), triage_details=details), VOICE).comment
    assert "**Note:** There is no lane `fast`; it goes to `claude`." in comment


def test_an_absorbed_request_is_told_with_the_ended_job() -> None:
    """Asking while the job was under way made no other one: the comment says so and, once, how to ask again."""
    picture = replace(shown(state=State.DELIVERED), triage_code="absorbed", triage_details={"login": "ada"})
    comment = tell(picture, VOICE).comment
    assert "`ada` asked again while the last job was under way" in comment
    assert "so that job is the answer.\n" in comment
    assert re.findall(r"Next:\S* (.*)", comment) == ["To ask again, take `tireless/go` off and put it on again."]


@pytest.mark.parametrize("state", [state for state in State if state.is_terminal])
@pytest.mark.parametrize("code", sorted(TRIAGE_CODES - {"no_lane"}))
def test_a_job_that_ended_names_one_next_step(state: State, code: str) -> None:
    """Its own; and a plan's part that is done is not said to wait for an opt-in."""
    reason = {State.FAILED: "exhausted", State.CANCELLED: "unlabelled"}.get(state)
    details = {"label": "tireless/go", "login": "tireless", "why": "bot", "unknown": ["plam"]}
    comment = tell(replace(shown(state=state, reason=reason), triage_code=code, triage_details=details), VOICE).comment
    assert len(re.findall("[Nn]ext:", comment)) == 1
    assert "waits until a person opts in" not in comment


# ------------------------------------------------------------------------------------------------ the marker

MARKERS = st.builds(
    Marker,
    st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable()),
    st.integers(1, 10**9),
    st.integers(0, 10**12),
    st.none() | st.datetimes(timezones=st.just(UTC)),
)


@given(MARKERS)
def test_a_marker_is_read_as_it_was_written(marker: Marker) -> None:
    """Any name of an installation and any marks come back from a comment."""
    assert read_marker(f"some text\n\n{marker}\n") == marker


@pytest.mark.parametrize(
    "body",
    [
        "",
        f"{Marker('a', 1)}\nmore text",
        f"> {Marker('a', 1)}",
        f"x {Marker('a', 1)}",
        "<!-- tireless:status installation=a issue=1 answered_event=1 answered_time=2026-01-01T00:00:00 -->",
        "<!-- tireless:status installation=a issue=1 answered_event=1 answered_time=2026-99-01T00:00:00Z -->",
        "<!-- tireless:status installation=a issue=1 answered_event=-1 answered_time=- -->",
    ],
)
def test_what_is_no_marker_is_none(body: str) -> None:
    """Only a whole last line counts, and only one that parses."""
    assert read_marker(body) is None


def test_only_the_bots_own_comments_of_this_issue_count() -> None:
    """Another author's marker and a marker of another issue are no status comment; of ours the oldest comes first."""
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def comment(number: int, author: int, of: int) -> Comment:
        return Comment(number, Person(author, "x"), f"text\n\n{Marker('a', of)}", now, now)

    comments = [comment(5, 1, 7), comment(3, 1, 7), comment(1, 2, 7), comment(2, 1, 8)]
    assert [each.id for each, _ in own_comments(comments, 1, 7)] == [3, 5]


def test_a_plain_issue_has_no_status() -> None:
    """Without job and refusal there is nothing to show."""
    said = tell(PICTURE, VOICE)
    assert said.status is None
    assert said.sentence == "Nothing is asked of tireless here."


def test_every_status_is_reached() -> None:
    """Each of the seven labels is shown by some state, and by no other map than this one."""
    assert {tell(shown(state=state, reason=reason), VOICE).status for state, reason in RESTS} == set(Status)
