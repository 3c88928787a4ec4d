"""Who asked: requests, verdicts, refusals and doubts over histories of labels."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.support.histories import (
    ALICE,
    BOB,
    BOT,
    DISCOVER,
    GHOST,
    GO,
    HOLD,
    IMPLEMENT,
    MALLORY,
    PLAN,
    POLICY,
    History,
    at,
    knows,
)
from tireless.domain.case import Marks
from tireless.domain.issue import Person
from tireless.domain.job import Kind
from tireless.domain.labels import LabelScheme, Role
from tireless.domain.people import ALLOW_LIST, Fact, Facts, Need, Policy, Verdict

LIST = Policy(ALLOW_LIST, frozenset({"alice"}), BOT)
WITHOUT = LabelScheme(require_opt_in=False)


def by_writer(*names: str, author: Person = MALLORY) -> History:
    """An issue on which bob, a writer, put these labels after its creation."""
    history = History(author)
    for name in names:
        history.add(BOB, name)
    return history


# ------------------------------------------------------------------------------------------------ proper requests


def test_an_add_after_creation_is_a_request_of_its_actor() -> None:
    """The forge demands write access for it, so it proves itself; the newest entry is the request."""
    history = by_writer(GO, IMPLEMENT)
    asked = history.asked()
    assert asked.proper
    assert asked.request == history.entries[-1]
    assert asked.view.kinds == (Kind.IMPLEMENT,)
    assert [(v.event_id, v.allowed, v.reason) for v in asked.verdicts] == [
        (10, True, "write_proven"),
        (11, True, "write_proven"),
    ]
    assert (asked.needs, asked.disagreement, asked.cannot_tell) == (frozenset(), None, None)


def test_labels_set_by_the_new_issue_form_prove_nothing() -> None:
    """The form takes labels from anyone: the author's rights have to be fetched, and decide."""
    history = History(MALLORY, labels=(GO, IMPLEMENT))
    need = Need(Fact.PERMISSION, "mallory")
    assert history.asked().needs == {need}
    for rights, proper in {"read": False, "none": False, "write": True, "admin": True, "owner": True}.items():
        asked = history.asked(facts=knows({"mallory": rights}))
        assert asked.needs == frozenset()
        assert asked.proper is proper
        assert asked.code == (None if proper else "stranger")


def test_a_stranger_is_told_apart_by_label_name_and_reason() -> None:
    """A refusal names the label, the person and why, so that somebody can act on it."""
    asked = History(MALLORY, labels=(GO, IMPLEMENT)).asked(facts=knows({"mallory": "read"}))
    assert [(r.label, r.login, r.reason) for r in asked.refused] == [(GO, "mallory", "no_write_access")]
    assert asked.marks.event == 11


def test_the_assignees_decide_only_in_a_user_owned_repository() -> None:
    """In an organisation that list also holds people who merely read pull requests: there it is "cannot tell"."""
    history = History(MALLORY, labels=(GO, IMPLEMENT))
    denied: dict[str, str | None] = {"mallory": None}
    assert history.asked(facts=knows(denied, owner_is_org=False)).needs == {Need(Fact.ASSIGNEES)}
    for owner_is_org in (True, None):
        asked = history.asked(facts=knows(denied, owner_is_org=owner_is_org, assignees=frozenset({MALLORY.id})))
        assert not asked.proper
        assert asked.cannot_tell is not None
        assert asked.verdicts == ()
    for listed in (True, False):
        assignees = frozenset({MALLORY.id} if listed else {ALICE.id})
        asked = history.asked(facts=knows(denied, owner_is_org=False, assignees=assignees))
        assert asked.proper is listed
        assert asked.cannot_tell is None


def test_the_minute_of_creation_ends_after_a_minute() -> None:
    """At 60 s the author's add still proves nothing, at 61 s it proves write access."""
    for seconds, needs in ((0, True), (60, True), (61, False)):
        history = History(MALLORY)
        history.add(MALLORY, GO, s=seconds)
        history.add(MALLORY, IMPLEMENT, s=seconds)
        assert bool(history.asked().needs) is needs


def test_an_add_by_another_within_the_minute_proves_itself() -> None:
    """Only the author can label in the creating transaction."""
    history = History(MALLORY)
    history.add(BOB, GO, s=1)
    history.add(BOB, IMPLEMENT, s=1)
    assert history.asked().proper


@pytest.mark.parametrize(
    ("person", "reason"),
    [
        (Person(41, "bob[bot]"), "not_on_list"),
        (Person(42, "Alice"), "not_on_list"),
        (Person(43, "\N{CYRILLIC SMALL LETTER A}lice"), "not_on_list"),
        (Person(44, "alice "), "not_on_list"),
        (Person(45, "tireless-bot2"), "not_on_list"),
        (GHOST, "system_user"),
        (Person(-2, "gitea-actions"), "system_user"),
        (BOT, "bot"),
        (Person(46, BOT.login), "bot"),
        (Person(BOT.id, "renamed"), "bot"),
    ],
)
def test_look_alikes_system_users_and_the_bot_never_ask(person: Person, reason: str) -> None:
    """Logins are compared exactly; nobody is trusted for the shape of a name."""
    history = History(MALLORY)
    history.add(person, GO)
    history.add(ALICE, IMPLEMENT)
    asked = history.asked(policy=LIST)
    assert not asked.proper
    assert asked.code == "stranger"
    assert asked.refused[0].reason == reason


def test_system_users_and_the_bot_are_refused_among_writers_too() -> None:
    """An act of theirs proves write access and is none the less no person's wish."""
    for who, reason in ((GHOST, "system_user"), (BOT, "bot")):
        history = by_writer(IMPLEMENT)
        history.add(who, GO)
        assert history.asked().refused[0].reason == reason
    allowed = replace(POLICY, allow=frozenset({GHOST.login, BOT.login}))
    ghost, bot = by_writer(IMPLEMENT), by_writer(IMPLEMENT)
    ghost.add(GHOST, GO)
    bot.add(BOT, GO)
    assert ghost.asked(policy=allowed).proper
    assert not bot.asked(policy=allowed).proper
    assert allowed.bot_fault() is not None
    assert POLICY.bot_fault() is None


def test_stricter_policies_ask_for_rights_even_of_adds_after_creation() -> None:
    """`code-writers` and `admins` go by the permission, a team by its members alone; what is not told is no yes."""
    history = by_writer(GO, IMPLEMENT)
    for who, rights in product(("code-writers", "admins"), ("read", "write", "admin")):
        asked = history.asked(policy=replace(POLICY, who_may_ask=who), facts=knows({"bob": rights}))
        assert asked.proper is (rights == "admin" or (rights == "write" and who == "code-writers"))
    team = replace(POLICY, who_may_ask="team:acme/core")
    assert team.team == ("acme", "core")
    assert history.asked(policy=team).needs == {Need(Fact.TEAM, "bob")}
    shown = Facts(asked=frozenset({Need(Fact.TEAM, "bob")}))
    assert history.asked(policy=team, facts=shown).cannot_tell is not None
    assert history.asked(policy=team, facts=replace(shown, members={"bob": True})).proper
    refused = history.asked(policy=team, facts=replace(shown, members={"bob": False}))
    assert (refused.proper, refused.refused[0].reason) == (False, "not_in_team")


# ------------------------------------------------------------------------------------------------ opt-in and modes


def test_combinations_of_opt_in_and_mode_have_their_codes() -> None:
    """Opt-in alone, a mode alone, none, both: each by a writer."""
    for names, code in {
        (GO,): "no_mode",
        (IMPLEMENT,): "no_opt_in",
        (GO, "tireless/implment"): "no_mode",
        (GO, IMPLEMENT): None,
        (GO, PLAN, DISCOVER): None,
    }.items():
        asked = by_writer(*names).asked()
        assert asked.code == code
        assert asked.proper is (code is None)
    assert by_writer(IMPLEMENT).asked(scheme=WITHOUT).proper


def test_all_labels_applied_in_one_call_make_one_request() -> None:
    """The entries share a second; the highest id is the request and nothing is left over."""
    history = History(MALLORY)
    for name in (IMPLEMENT, GO, PLAN):
        history.add(BOB, name, s=300)
    asked = history.asked()
    assert asked.request is not None
    assert asked.request.id == 12
    assert history.asked(answered=asked.marks).request is None


def test_an_opt_in_approves_the_modes_that_are_on_the_issue_then() -> None:
    """What a stranger put on before counts by the opt-in; what he puts on later is judged by itself."""
    history = History(MALLORY, labels=(PLAN, "tireless/agent:claude", "tireless/priority/high"))
    history.add(BOB, GO)
    asked = history.asked()
    assert asked.proper
    assert (asked.view.kinds, asked.view.agents, asked.view.priority) == ((Kind.PLAN,), ("claude",), 1)
    assert asked.needs == frozenset()

    history = History(ALICE)
    history.add(ALICE, GO)
    history.add(MALLORY, PLAN)
    history.add(MALLORY, "tireless/agent:claude")
    asked = history.asked(policy=LIST)
    assert (asked.proper, asked.code) == (False, "stranger")
    assert asked.view.agents == ()


def test_a_refused_newer_mode_leaves_the_proper_one_in_force() -> None:
    """A stranger's `plan` beside an allowed `implement` changes nothing but is named."""
    history = History(ALICE)
    history.add(ALICE, GO)
    history.add(ALICE, IMPLEMENT)
    history.add(MALLORY, PLAN)
    asked = history.asked(policy=LIST)
    assert asked.view.kinds == (Kind.IMPLEMENT,)
    assert asked.request is not None
    assert asked.request.actor == ALICE
    assert [refusal.label for refusal in asked.refused] == [PLAN]
    assert asked.marks.event == 12


def test_the_bots_labels_say_the_kind_and_never_ask() -> None:
    """A child with the bot's mode waits for a person's opt-in; without opt-in for a person's own mode label."""
    history = History(BOT, labels=(IMPLEMENT,))
    assert history.asked().code == "no_opt_in"
    assert history.asked().needs == frozenset()
    assert history.asked(scheme=WITHOUT).code == "no_opt_in"
    history.add(BOB, GO)
    asked = history.asked()
    assert asked.proper
    assert asked.view.kinds == (Kind.IMPLEMENT,)
    assert asked.request == history.entries[-1]


def test_remove_and_add_by_a_writer_heals() -> None:
    """The last entry of a label decides."""
    history = History(MALLORY, labels=(GO, IMPLEMENT))
    refused = history.asked(facts=knows({"mallory": "read"}))
    history.remove(BOB, GO)
    history.add(BOB, GO)
    asked = history.asked(answered=refused.marks)
    assert asked.proper
    assert asked.request == history.entries[-1]


def test_duplicate_label_names_count_by_id() -> None:
    """Taking the organisation's twin off does not undo the repository's label of the same name."""
    history = by_writer(GO, IMPLEMENT)
    twin = replace(history.label("twin"), name=GO)
    history.entries += [replace(history.add(BOB, "twin"), label=twin)]
    history.entries.pop(-2)
    history.on.pop()
    removed = replace(history.remove(BOB, "twin"), label=twin)
    history.entries[-1] = removed
    asked = history.asked()
    assert asked.disagreement is None
    assert asked.proper


# ------------------------------------------------------------------------------------------------ answered


def test_a_label_that_was_answered_asks_no_more() -> None:
    """A label still sitting on a delivered issue is no new request; toggling the opt-in is one."""
    history = by_writer(GO, IMPLEMENT)
    marks = history.asked().marks
    assert history.asked(answered=marks).request is None
    assert history.asked(answered=marks).proper
    history.remove(BOB, GO)
    history.add(BOB, GO)
    asked = history.asked(answered=marks)
    assert asked.request == history.entries[-1]


def test_a_forge_restored_from_a_backup_asks_by_time() -> None:
    """Ids go back there; a later time is newer all the same, and the two maxima move apart."""
    history = by_writer(GO, IMPLEMENT)
    marks = Marks(event=5000, time=at(200))
    asked = history.asked(answered=marks)
    assert asked.request is not None
    assert (asked.marks.event, asked.marks.time) == (5000, history.entries[-1].at)
    assert history.asked(answered=asked.marks).request is None


def test_without_opt_in_only_adds_after_the_moment_ask() -> None:
    """Labels older than the tracking say so; one put on after it asks."""
    history = by_writer(IMPLEMENT)
    asked = history.asked(scheme=WITHOUT, asks_after=at(10_000))
    assert (asked.proper, asked.code, asked.request) == (False, "too_early", None)
    history.add(BOB, PLAN, s=10_001)
    asked = history.asked(scheme=WITHOUT, asks_after=at(10_000))
    assert asked.request == history.entries[-1]


def test_a_stored_verdict_is_not_judged_again() -> None:
    """A changed allow-list judges no old event again; a verdict about another entry of that id is none."""
    history = History(MALLORY)
    entry = history.add(MALLORY, GO)
    history.add(ALICE, IMPLEMENT)
    stored = Verdict(entry.id, MALLORY, entry.at, True, "allow_listed")
    assert history.asked(policy=LIST, stored={entry.id: stored}).proper
    for other in (replace(stored, actor=BOB), replace(stored, at=at(1))):
        assert not history.asked(policy=LIST, stored={entry.id: other}).proper


# ------------------------------------------------------------------------------------------------ doubts


def test_a_label_without_entry_is_not_believed() -> None:
    """On the issue, but nobody put it there: both are to be read again, and then it cannot be told."""
    history = by_writer(GO, IMPLEMENT)
    history.entries = [entry for entry in history.entries if entry.label is None or entry.label.name != GO]
    asked = history.asked()
    assert asked.disagreement is not None
    assert asked.cannot_tell is not None
    assert not asked.proper


def test_an_entry_without_label_is_not_believed_either() -> None:
    """An empty label array beside a timeline full of adds ends nothing."""
    history = by_writer(GO, IMPLEMENT)
    counted = history.asked().counted
    history.on = []
    asked = history.asked(is_live=True, counted=counted)
    assert asked.disagreement is not None
    assert asked.cannot_tell is not None
    assert not asked.ended


def test_a_forged_comment_or_a_removed_entry_adds_nothing() -> None:
    """Words in a comment are no entry, and a label whose last entry is a removal is not counted for being there."""
    history = History(MALLORY)
    history.add(BOB, GO)
    history.add(BOB, IMPLEMENT)
    history.entries.append(replace(history.remove(BOB, IMPLEMENT), label=history.label(IMPLEMENT)))
    history.on.append(history.label(IMPLEMENT))
    history.comment(MALLORY)
    asked = history.asked()
    assert asked.cannot_tell is not None
    assert not asked.proper


def test_labels_whose_definition_is_gone_are_left_out() -> None:
    """An entry that names no label any more says nothing."""
    history = by_writer(GO, IMPLEMENT)
    history.entries.insert(0, replace(history.entries[0], id=1, label=None))
    assert history.asked().proper


def test_cannot_tell_stores_no_verdict() -> None:
    """Only yes and no are verdicts."""
    asked = History(MALLORY, labels=(GO, IMPLEMENT)).asked(facts=knows({"mallory": None}, owner_is_org=True))
    assert asked.verdicts == ()
    assert asked.cannot_tell is not None
    assert "mallory" in asked.cannot_tell


def test_a_mode_in_doubt_does_not_matter_without_opt_in() -> None:
    """Where nothing can come of it, no rights are asked for."""
    asked = History(MALLORY, labels=(IMPLEMENT,)).asked()
    assert (asked.needs, asked.cannot_tell, asked.code) == (frozenset(), None, "no_opt_in")


# ------------------------------------------------------------------------------------------------ hold


def test_anybody_may_hold_but_not_anybody_may_release() -> None:
    """A hold taken off by one who may not ask stays in force."""
    history = History(ALICE)
    history.add(ALICE, GO)
    history.add(ALICE, IMPLEMENT)
    history.add(MALLORY, HOLD)
    assert history.asked(policy=LIST).hold
    history.remove(MALLORY, HOLD)
    assert history.asked(policy=LIST).hold
    history.add(ALICE, HOLD)
    history.remove(ALICE, HOLD)
    assert not history.asked(policy=LIST).hold
    assert not by_writer(GO, IMPLEMENT).asked().hold


# ------------------------------------------------------------------------------------------------ what ends it


@pytest.mark.parametrize("name", [GO, IMPLEMENT])
def test_a_removal_of_opt_in_or_of_the_only_mode_ends_it(name: str) -> None:
    """Whoever took it off."""
    history = by_writer(GO, IMPLEMENT)
    first = history.asked()
    assert set(first.counted.values()) == {Role.OPT_IN, Role.KIND}
    history.remove(MALLORY, name)
    asked = history.asked(is_live=True, counted=first.counted, answered=first.marks)
    assert asked.ended
    assert asked.cannot_tell is None


def test_a_mode_that_went_while_another_counts_is_a_change_of_kind() -> None:
    """Exclusive labels evict each other with a removal entry; that ends nothing."""
    history = by_writer(GO, IMPLEMENT)
    first = history.asked()
    history.remove(BOB, IMPLEMENT)
    history.add(BOB, PLAN)
    asked = history.asked(is_live=True, counted=first.counted, answered=first.marks)
    assert not asked.ended
    assert asked.view.kinds == (Kind.PLAN,)


def test_a_deleted_definition_ends_it_once_the_forge_has_confirmed_it() -> None:
    """Its entries go with it; an answer that lost its labels looks the same and ends nothing."""
    history = by_writer(GO, IMPLEMENT)
    first = history.asked()
    [implement] = [label_id for label_id, role in first.counted.items() if role is Role.KIND]
    history.forget(IMPLEMENT)
    job = {"is_live": True, "counted": first.counted, "approved_hash": history.snapshot.content_hash}
    unasked = history.asked(**job)
    assert unasked.needs == {Need(Fact.DEFINITIONS)}
    there = history.asked(**job, facts=knows(defined=frozenset({implement})))
    assert (there.ended, there.cannot_tell is None) == (False, False)
    gone = history.asked(**job, facts=knows(defined=frozenset({1})))
    assert (gone.ended, gone.cannot_tell) == (True, None)


def test_a_refused_newer_request_ends_nothing() -> None:
    """An opt-in taken off and put on again by one who may not ask does not stop the job."""
    history = History(ALICE)
    history.add(ALICE, GO)
    history.add(ALICE, IMPLEMENT)
    first = history.asked(policy=LIST)
    history.remove(MALLORY, GO)
    history.add(MALLORY, GO)
    asked = history.asked(policy=LIST, is_live=True, counted=first.counted, answered=first.marks)
    assert not asked.ended
    assert asked.cannot_tell is None
    assert asked.request is None


def test_a_job_of_an_operator_is_not_ended_by_labels_long_gone() -> None:
    """Only what counted when last judged can be taken away."""
    history = by_writer(GO, IMPLEMENT)
    history.remove(BOB, GO)
    history.remove(BOB, IMPLEMENT)
    assert not history.asked(is_live=True, counted={}).ended


# ------------------------------------------------------------------------------------------------ approved text


def test_the_act_that_nothing_followed_approves_the_text() -> None:
    """A stranger's text is approved by a writer's label exactly while nothing has changed the issue since."""
    history = by_writer(GO, IMPLEMENT)
    asked = history.asked(facts=knows({"mallory": "read"}))
    assert (asked.approved, asked.approved_by) == (True, "bob")
    history.edit("Do something else.", s=9_000)
    edited = history.asked(facts=knows({"mallory": "read"}))
    assert edited.proper
    assert not edited.approved
    history.add(BOB, "tireless/priority/high", s=9_100)
    assert history.asked(facts=knows({"mallory": "read"})).approved_by == "bob"


def test_an_edit_by_an_author_who_may_ask_needs_no_approval() -> None:
    """By rights, by having asked for this job, or by having passed in this repository before."""
    history = by_writer(GO, IMPLEMENT, author=ALICE)
    history.edit("More of it.", s=9_000)
    assert history.asked().needs == {Need(Fact.PERMISSION, "alice")}
    assert history.asked(facts=knows({"alice": "write"})).approved
    assert history.asked(facts=knows(passed=frozenset({ALICE.id}))).approved
    assert history.asked(request_actor=ALICE.id, answered=history.all_seen, is_live=True).approved
    assert not history.asked(facts=knows({"alice": None}, owner_is_org=True)).approved


def test_the_text_that_was_approved_before_stays_approved() -> None:
    """Comments and the bot's own labels move the issue's stamp, not its text."""
    history = by_writer(GO, IMPLEMENT)
    history.comment(MALLORY)
    assert not history.asked(facts=knows({"mallory": "read"})).approved
    asked = history.asked(approved_hash=history.snapshot.content_hash)
    assert (asked.approved, asked.approved_by, asked.needs) == (True, None, frozenset())


def test_a_snapshot_older_than_the_timeline_is_approved_by_nothing() -> None:
    """The act may have approved another text: both are read again, and no text is taken for the approved one."""
    history = by_writer(GO, IMPLEMENT)
    old = replace(history.snapshot, body="The text before the last edit.", updated_at=at(60))
    asked = history.asked(snapshot=old, facts=knows({"mallory": "read"}))
    assert asked.disagreement == "the timeline is newer than the issue"
    assert not asked.approved


def test_what_the_bot_wrote_can_be_edited_by_those_who_may_ask() -> None:
    """Only writers can edit another's text; where writers may ask that is enough, elsewhere it is not."""
    history = History(BOT, labels=(IMPLEMENT,))
    history.add(ALICE, GO)
    history.edit("Better said.", s=9_000)
    assert history.asked().approved
    assert not history.asked(policy=LIST).approved


# ------------------------------------------------------------------------------------------------ answers, reopenings


def test_a_question_is_answered_by_a_person_who_counts_after_it() -> None:
    """Not by a stranger, not by the bot, not by what was said before."""
    history = by_writer(GO, IMPLEMENT)
    history.comment(BOB, s=500)
    history.comment(BOT, s=700)
    history.comment(MALLORY, s=800)
    about = {"is_live": True, "question_at": at(600), "approved_hash": history.snapshot.content_hash}
    facts = knows({"mallory": "read"}, passed=frozenset({BOB.id}))
    assert history.asked(**about, facts=facts).answered_by is None
    history.comment(BOB, s=900)
    assert history.asked(**about, facts=facts).answered_by == "bob"
    assert history.asked(**{**about, "question_at": None}, facts=facts).answered_by is None


def test_a_reopening_asks_again_only_after_an_end_by_closing() -> None:
    """And only by a person who counts."""
    history = by_writer(GO, IMPLEMENT)
    marks = history.asked().marks
    history.close(BOB)
    history.reopen(BOB)
    facts = knows({"mallory": "read"}, passed=frozenset({BOB.id}))
    assert history.asked(answered=marks, facts=facts).request is None
    asked = history.asked(answered=marks, was_closed=True, facts=facts)
    assert asked.request == history.entries[-1]
    assert history.asked(answered=asked.marks, was_closed=True, facts=facts).request is None
    history.close(MALLORY)
    history.reopen(MALLORY)
    assert history.asked(answered=asked.marks, was_closed=True, facts=facts).request is None
