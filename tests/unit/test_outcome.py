"""The decision table: what the runner did comes first, then the worse of two words, and success needs evidence."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.domain.job import Kind
from tireless.domain.outcome import (
    EXIT_CODES,
    SEVERITY,
    Ended,
    Evidence,
    Note,
    Outcome,
    Stop,
    burns,
    decide,
    repeats,
)
from tireless.domain.result import Child, Malformed, PullText, Result, Usage, Word

WORK = Evidence(commit="c" * 40, commits=1)
NOTHING = Evidence()
CHILDREN = (Child(key="a", title="A"),)


SAID = Result(outcome=Word.DONE, summary="did it", reason="because", question="which?", children=CHILDREN)


def result(word: Word) -> Result:
    """A result that breaks no rule."""
    return replace(SAID, outcome=word)


def test_outcomes_are_those_of_the_schema() -> None:
    """Enum and CHECK attempt_outcome_known name the same values."""
    schema = (Path(__file__).parents[2] / "migrations" / "0001_schema.sql").read_text()
    check = re.search(r"attempt_outcome_known CHECK \(outcome = ANY \('\{(.*?)\}'\)\)", schema, re.S)
    assert check is not None
    assert set(re.findall(r"\w+", check[1])) == set(Outcome)


def test_given_back_are_just_these() -> None:
    """Quota, blocked, shutdown and a fault of our own side before the agent ran do not count; everything else does."""
    given_back = {outcome for outcome in Outcome if not burns(outcome)}
    assert given_back == {Outcome.QUOTA, Outcome.BLOCKED, Outcome.SHUTDOWN, Outcome.WORKSPACE_ERROR}


def test_only_what_may_repeat_is_compared() -> None:
    """No progress is seen in ends that lead to another run; `blocked` only where the agent named no time."""
    alike = {outcome for outcome in Outcome if repeats(outcome, named_a_time=False)}
    assert alike - {outcome for outcome in Outcome if repeats(outcome, named_a_time=True)} == {Outcome.BLOCKED}
    ends = {Outcome.DONE, Outcome.NO_CHANGE, Outcome.FAILED, Outcome.CANCELLED, Outcome.LEASE_LOST}
    asks = {Outcome.NEEDS_INPUT, Outcome.OVER_BUDGET}
    assert alike == set(Outcome) - ends - asks - {Outcome.QUOTA, Outcome.SHUTDOWN, Outcome.WORKSPACE_ERROR}


def test_usage_is_the_greater_word() -> None:
    """What a run said on its way is its usage where its end says nothing, or less."""
    ended = Ended(exit_code=0, usage=Usage(model="m", usd=2.0, output_tokens=3))
    said = replace(SAID, outcome=Word.FAILED, reason="no", usage=Usage(usd=1.0, input_tokens=5))
    usage = Usage(model="m", input_tokens=5, output_tokens=3, usd=2.0)
    assert decide(ended, said, NOTHING, Kind.IMPLEMENT).usage == usage
    assert decide(ended, Malformed("bad"), NOTHING, Kind.IMPLEMENT).usage == ended.usage
    assert decide(ended, None, NOTHING, Kind.IMPLEMENT).usage == ended.usage
    assert decide(replace(ended, stopped=Stop.OVER_BUDGET), None, NOTHING, Kind.IMPLEMENT).usage == ended.usage


@pytest.mark.parametrize("stop", list(Stop))
@pytest.mark.parametrize("said", [None, Malformed("bad"), result(Word.DONE), result(Word.FAILED)])
@pytest.mark.parametrize("kind", list(Kind))
def test_what_the_runner_did_comes_first(stop: Stop, said: Result | Malformed | None, kind: Kind) -> None:
    """A run that the runner ended has that outcome, whatever the agent wrote, and delivers nothing."""
    verdict = decide(Ended(stopped=stop, signal=9), said, WORK, kind)
    assert verdict.outcome == stop.value
    assert (verdict.commit, verdict.children) == (None, ())


@pytest.mark.parametrize("said", [None, Malformed("bad"), result(Word.DONE)])
def test_command_that_never_ran_is_our_side(said: Result | Malformed | None) -> None:
    """A command that could not be executed is given back and names the host as the place to look."""
    verdict = decide(Ended(not_started="agent: No such file or directory"), said, NOTHING, Kind.PLAN)
    assert (verdict.outcome, verdict.burns, verdict.notes) == (Outcome.WORKSPACE_ERROR, False, (Note.CANNOT_START,))
    assert "No such file" in verdict.reason


@pytest.mark.parametrize("code", [126, 127, 1, 2, 39, 45, 76, 255])
def test_other_exit_codes_are_agent_errors(code: int) -> None:
    """126 and 127 of a started agent are its own, as is every code that is not in the table."""
    assert decide(Ended(exit_code=code), None, WORK, Kind.IMPLEMENT).outcome is Outcome.AGENT_ERROR


def test_signal_is_an_agent_error() -> None:
    """An agent that crashed counts as one, and the signal is named."""
    verdict = decide(Ended(signal=11), None, WORK, Kind.IMPLEMENT)
    assert (verdict.outcome, "signal 11" in verdict.reason) == (Outcome.AGENT_ERROR, True)


def test_lost_guard_is_an_agent_error() -> None:
    """A guard that was killed burns the attempt: an agent that kills its guard gains nothing by it."""
    verdict = decide(Ended(guard_lost=True), result(Word.DONE), WORK, Kind.IMPLEMENT)
    assert (verdict.outcome, verdict.notes, verdict.commit) == (Outcome.AGENT_ERROR, (Note.GUARD_LOST,), None)


@pytest.mark.parametrize("code", [0, 1, 43, 44])
def test_malformed_result_is_a_protocol_error(code: int) -> None:
    """Whatever the exit code, a result that breaks a rule is told as that, with the rule."""
    verdict = decide(Ended(exit_code=code), Malformed("result.json: bad"), WORK, Kind.IMPLEMENT)
    assert (verdict.outcome, verdict.reason) == (Outcome.PROTOCOL_ERROR, "result.json: bad")


@pytest.mark.parametrize(("code", "word"), sorted(EXIT_CODES.items()))
def test_exit_code_alone_speaks_for_a_script(code: int, word: Word) -> None:
    """Without a result the exit code decides; `done` stands on the diff alone."""
    assert decide(Ended(exit_code=code), None, WORK, Kind.IMPLEMENT).outcome == word.value


@pytest.mark.parametrize("word", list(Word))
def test_exit_zero_contradicts_no_result(word: Word) -> None:
    """An adapter that wrote its result and ended properly says what the result says."""
    verdict = decide(Ended(exit_code=0), result(word), WORK, Kind.IMPLEMENT)
    assert verdict.outcome == word.value
    assert Note.PROTOCOL_CONFLICT not in verdict.notes


@pytest.mark.parametrize(("code", "word"), list(itertools.product([*EXIT_CODES, 1, None], Word)))
def test_worse_of_result_and_exit_code_counts(code: int | None, word: Word) -> None:
    """When result and exit code disagree the earlier one in the order of severity counts, and both are named."""
    ended = Ended(exit_code=code, signal=None if code is not None else 9)
    verdict = decide(ended, result(word), WORK, Kind.IMPLEMENT)
    said = EXIT_CODES.get(code, Outcome.AGENT_ERROR) if code is not None else Outcome.AGENT_ERROR
    order = [str(entry) for entry in SEVERITY] + ["done"]
    assert verdict.outcome == min(str(said), str(word), key=order.index)
    conflict = said not in (Word.DONE, word)
    assert (Note.PROTOCOL_CONFLICT in verdict.notes) is conflict
    if conflict:
        assert f'"{word}"' in verdict.reason
        assert str(code if code is not None else "signal 9") in verdict.reason


def test_order_of_severity_is_the_designs() -> None:
    """failed, quota, retry, blocked, needs_input, no_change, done; an agent error stands just above retry."""
    words = [str(entry) for entry in SEVERITY]
    assert words == ["failed", "quota", "agent_error", "retry", "blocked", "needs_input", "no_change"]


def test_done_implement_with_a_diff_is_delivered() -> None:
    """Commit and pull request text come along."""
    said = replace(SAID, outcome=Word.DONE, pr=PullText("T", "B"), usage=Usage(model="m", usd=0.5), session="s")
    verdict = decide(Ended(exit_code=0), said, WORK, Kind.IMPLEMENT)
    assert (verdict.outcome, verdict.commit, verdict.pr) == (Outcome.DONE, WORK.commit, PullText("T", "B"))
    assert (verdict.usage.usd, verdict.session, verdict.summary) == (0.5, "s", "did it")
    assert (verdict.children, verdict.notes) == ((), (Note.CHILDREN_IGNORED,))


@pytest.mark.parametrize(("commits", "seen"), [(0, "nothing was changed"), (3, "3 commits change nothing together")])
def test_valid_result_without_a_diff_is_no_change(commits: int, seen: str) -> None:
    """No pull request is made for an empty difference, also when there are commits."""
    verdict = decide(Ended(exit_code=0), result(Word.DONE), Evidence(commits=commits), Kind.IMPLEMENT)
    assert (verdict.outcome, verdict.commit) == (Outcome.NO_CHANGE, None)
    assert seen in verdict.reason


@pytest.mark.parametrize("kind", list(Kind))
def test_exit_zero_with_nothing_is_no_evidence(kind: Kind) -> None:
    """A program that prints nothing, changes nothing and exits 0 did not succeed."""
    assert decide(Ended(exit_code=0), None, NOTHING, kind).outcome is Outcome.NO_EVIDENCE


@pytest.mark.parametrize("kind", [Kind.PLAN, Kind.DISCOVER])
def test_diff_is_no_evidence_for_plan_and_discover(kind: Kind) -> None:
    """A changed tree does not stand in for children or a report, and is not delivered."""
    verdict = decide(Ended(exit_code=0), None, WORK, kind)
    assert (verdict.outcome, verdict.commit, verdict.notes) == (Outcome.NO_EVIDENCE, None, (Note.WORK_IGNORED,))


@pytest.mark.parametrize(
    ("kind", "children", "summary", "outcome"),
    [
        (Kind.PLAN, CHILDREN, "", Outcome.DONE),
        (Kind.PLAN, (), "a report", Outcome.NO_EVIDENCE),
        (Kind.DISCOVER, CHILDREN, "", Outcome.DONE),
        (Kind.DISCOVER, (), "a report", Outcome.DONE),
        (Kind.DISCOVER, (), " \n", Outcome.NO_EVIDENCE),
    ],
)
def test_evidence_of_plan_and_discover(kind: Kind, children: tuple[Child, ...], summary: str, outcome: Outcome) -> None:
    """A plan needs children; a discovery needs proposals or a report."""
    said = replace(SAID, outcome=Word.DONE, children=children, summary=summary)
    verdict = decide(Ended(exit_code=0), said, NOTHING, kind)
    assert verdict.outcome is outcome
    assert verdict.children == (children if outcome is Outcome.DONE else ())


def test_unreadable_tree_is_an_agent_error_where_work_was_claimed() -> None:
    """`done` about a tree that cannot be read burns; a `failed` needs no tree."""
    ruined = Evidence(unreadable="the work tree was replaced")
    verdict = decide(Ended(exit_code=0), result(Word.DONE), ruined, Kind.IMPLEMENT)
    assert (verdict.outcome, verdict.notes) == (Outcome.AGENT_ERROR, (Note.WORK_UNREADABLE, Note.CHILDREN_IGNORED))
    assert decide(Ended(exit_code=0), result(Word.FAILED), ruined, Kind.IMPLEMENT).outcome is Outcome.FAILED


@pytest.mark.parametrize("word", [word for word in Word if word is not Word.DONE])
def test_work_beside_another_outcome_is_noted_not_delivered(word: Word) -> None:
    """A diff of an agent that does not say `done` is mentioned and stays where it is."""
    verdict = decide(Ended(exit_code=0), result(word), WORK, Kind.IMPLEMENT)
    assert verdict.commit is None
    assert Note.WORK_IGNORED in verdict.notes


def test_question_is_asked_even_by_exit_code_alone() -> None:
    """Exit 41 without a result parks with words a person can do something with."""
    assert decide(Ended(exit_code=41), None, NOTHING, Kind.PLAN).question
    said = replace(SAID, outcome=Word.NEEDS_INPUT, question="Which colour?")
    assert decide(Ended(exit_code=0), said, NOTHING, Kind.PLAN).question == "Which colour?"
    assert decide(Ended(exit_code=0), result(Word.BLOCKED), NOTHING, Kind.PLAN).question is None


def test_survivors_are_noted() -> None:
    """Processes that could not be killed show beside any outcome."""
    assert Note.SURVIVORS in decide(Ended(exit_code=0, survivors=(7,)), None, NOTHING, Kind.PLAN).notes
    assert Note.SURVIVORS in decide(Ended(stopped=Stop.TIMEOUT, survivors=(7,)), None, NOTHING, Kind.PLAN).notes


@given(
    ended=st.builds(
        Ended,
        stopped=st.none() | st.sampled_from(Stop),
        exit_code=st.none() | st.integers(0, 255),
        signal=st.none() | st.integers(1, 64),
        guard_lost=st.booleans(),
    ),
    said=st.none() | st.just(Malformed("bad")) | st.sampled_from(Word).map(result),
    evidence=st.sampled_from([WORK, NOTHING, Evidence(commits=2), Evidence(unreadable="gone")]),
    kind=st.sampled_from(Kind),
)
def test_every_end_has_a_verdict(ended: Ended, said: Result | Malformed | None, evidence: Evidence, kind: Kind) -> None:
    """Nothing raises; only `done` delivers, and what it delivers was seen."""
    verdict = decide(ended, said, evidence, kind)
    assert verdict.reason
    if verdict.outcome is not Outcome.DONE:
        assert (verdict.commit, verdict.children, verdict.pr) == (None, (), None)
    elif kind is Kind.IMPLEMENT:
        assert verdict.commit == evidence.commit is not None
