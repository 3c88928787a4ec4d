"""Gates and their words: complete, in order, and the same for everyone who tells them."""

from __future__ import annotations

import re

import pytest

from tireless.domain.gates import GATES, ORDER, TRIAGE_CODES, UNREADABLE_BLOCKER, triage_sentence, warning_sentences
from tireless.domain.job import Parked, Wait
from tireless.domain.labels import LabelScheme
from tireless.domain.steps import Now

SCHEME = LabelScheme()
WITHOUT = LabelScheme(prefix="bot/", opt_in="bot/ready", require_opt_in=False)


def test_every_gate_has_a_sentence_and_all_but_the_busy_ones_a_next_step() -> None:
    """A reason without a next step leaves a person where he was."""
    silent = {"running", "publishing"}
    for gate in GATES:
        for scheme in (SCHEME, WITHOUT):
            said, then = triage_sentence(gate.code, {}, Now(scheme))
            assert said.endswith(".")
            assert not said.startswith("The reason is")
            assert bool(then) == (gate.code not in silent)
        assert gate.asks.endswith("?")
    assert len(ORDER) == len(GATES)


def test_what_triage_stores_and_what_a_job_waits_for_are_gates_in_their_order() -> None:
    """The reason shown first is the gate that comes first."""
    assert set(ORDER) >= TRIAGE_CODES
    parked = [ORDER[code] for code in Parked]
    waits = [ORDER[code] for code in Wait if code not in (Wait.UNTRACKED, Wait.CANNOT_TELL)]
    assert waits == sorted(waits)
    assert max(parked) < min(waits)
    assert ORDER[Wait.UNTRACKED] < ORDER["unreadable"] < min(parked)


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        ("stranger", {"label": "tireless/go", "login": "mallory", "why": "no_write_access"}, ["mallory", "no write"]),
        ("stranger", {"label": "tireless/go", "login": "bot", "why": "bot"}, ["bot itself"]),
        ("stranger", {"label": "x", "login": "y", "why": "new_code"}, ["new_code"]),
        ("no_mode", {"unknown": ["implment"]}, ["`tireless/implment` means nothing"]),
        ("cannot_tell", {"why": "the forge is silent"}, ["the forge is silent"]),
        ("no_lane", {"kind": "plan"}, ["`plan`"]),
        ("waits_for", {"waits_for": ["acme/widgets#3"]}, ["`acme/widgets#3`"]),
        (
            "publishing",
            {"fault": "the forge is out of paper."},
            ["being delivered", "does not go on: the forge is out of"],
        ),
        ("absorbed", {"login": "bob"}, ["`bob` asked again"]),
        ("of a later version", {}, ["of a later version"]),
    ],
)
def test_a_sentence_names_what_it_is_about(code: str, details: dict[str, object], words: list[str]) -> None:
    """Labels, people, kinds and numbers are named, in backquotes, so that they call nobody and link nowhere."""
    said, then = triage_sentence(code, details, Now(SCHEME))
    for word in words:
        assert word in said
    assert not re.search(r"(?<![`\w/])[@#]\w", said + then)


def test_a_blocker_that_is_not_shown_is_not_to_be_closed_but_shown() -> None:
    """Nobody is told only to close what the bot would never see closed."""
    alone = triage_sentence("waits_for", {"waits_for": [UNREADABLE_BLOCKER]}, Now(SCHEME))[1]
    beside = triage_sentence("waits_for", {"waits_for": ["acme/widgets#3", UNREADABLE_BLOCKER]}, Now(SCHEME))[1]
    assert "give the bot's user access" in alone
    assert "close" not in alone
    assert "give the bot's user access" in beside
    assert "close the others" in beside
    assert "access" not in triage_sentence("waits_for", {"waits_for": ["acme/widgets#3"]}, Now(SCHEME))[1]


def test_words_follow_the_configured_names() -> None:
    """No sentence speaks of labels that are not in use."""
    for gate in GATES:
        said, then = triage_sentence(gate.code, {"unknown": ["x"], "kind": "plan"}, Now(WITHOUT))
        assert "tireless/" not in said + then
        assert "bot/ready" not in said + then or gate.code == "not_asked"


def test_warnings_are_told_in_whole_sentences() -> None:
    """Of two modes the sentence says which one won."""
    stored = {
        "warnings": {
            "several_modes": {"kinds": ["plan", "implement"], "kind": "plan"},
            "several_lanes": {"lanes": ["a", "b"], "lane": "a"},
            "unknown_lane": {"lanes": ["c"], "lane": "a"},
            "unknown_label": {"unknown": ["typo"]},
            "refused": {"label": "tireless/plan", "login": "mallory", "why": "not_on_list"},
            "hold_kept": {},
        }
    }
    told = warning_sentences(stored, SCHEME)
    assert len(told) == 6
    assert "`tireless/plan` goes first" in told[0]
    assert "no lane `c`" in told[2]
    assert warning_sentences({}, SCHEME) == []
    assert warning_sentences({"warnings": {"of_a_later_version": {}}}, SCHEME) == []
