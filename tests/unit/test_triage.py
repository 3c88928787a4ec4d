"""What makes a job and what ends one: decisions over readings and standings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import chain, combinations
from typing import Any

import pytest

from tests.support.histories import (
    ALICE,
    BOB,
    BOT,
    DISCOVER,
    GO,
    HOLD,
    IMPLEMENT,
    MALLORY,
    PLAN,
    SCHEME,
    History,
    at,
    knows,
)
from tireless.domain.case import Asked
from tireless.domain.decision import (
    Absorb,
    Cancel,
    Decision,
    EndedJob,
    Enqueue,
    Ignore,
    LiveJob,
    Park,
    Refresh,
    Renew,
    RequestStop,
    Standing,
    Triage,
    Unpark,
)
from tireless.domain.issue import Person
from tireless.domain.job import Cancelled, Kind, Parked, State
from tireless.domain.labels import read
from tireless.domain.routing import Lane, Route, lane_for, route
from tireless.domain.triage import decide

LANES = (
    Lane("claude", (Kind.IMPLEMENT,), is_default=True),
    Lane("thinker", (Kind.PLAN,)),
    Lane("spare"),
)
READ = knows({"mallory": "read"})


def opted(*names: str, author: Person = ALICE) -> History:
    """An issue opted in by bob, with these modes."""
    history = History(MALLORY if author is MALLORY else ALICE)
    for name in (GO, *names):
        history.add(BOB, name)
    return history


def judged(history: History, standing: Standing, **case: Any) -> Triage:
    """The decision about this history as it is now."""
    case.setdefault("facts", READ)
    live = standing.live is not None
    asked = history.asked(is_live=live, by_plan=standing.child_request is not None, **case)
    return decide(history.snapshot, asked, standing, scheme=SCHEME, lanes=LANES)


def job(state: State = State.PENDING, **changes: Any) -> Standing:
    """An issue whose live job implements it in lane claude."""
    live = LiveJob(id=1, state=state, kind=Kind.IMPLEMENT, lane="claude")
    return Standing(live=replace(live, **changes))


def ended(state: State = State.DELIVERED, reason: str | None = None, **changes: Any) -> Standing:
    """An issue whose last job, to implement it, ended an hour after the issue's creation."""
    last = EndedJob(state, reason, Kind.IMPLEMENT, at(3600), request_id=5, kinds_taken=frozenset({Kind.IMPLEMENT}))
    return Standing(last=replace(last, **changes))


# ------------------------------------------------------------------------------------------------ what makes a job


def test_every_combination_of_labels_by_a_writer_makes_exactly_the_right_job() -> None:
    """Over all sets of our labels: a job if and only if opted in with a mode, by precedence, override and default."""
    names = (GO, DISCOVER, PLAN, IMPLEMENT, HOLD, "tireless/agent:spare", "tireless/agent:nobody", "tireless/x", "bug")
    seen = 0
    for chosen in chain.from_iterable(combinations(names, n) for n in range(len(names) + 1)):
        history = History(ALICE)
        for name in chosen:
            history.add(BOB, name)
        said = judged(history, Standing(), facts=knows(passed=frozenset({ALICE.id})))
        kind = next((mode for mode in (DISCOVER, PLAN, IMPLEMENT) if mode in chosen), None)
        if GO not in chosen or kind is None:
            assert said.decision == Ignore()
            continue
        seen += 1
        lane = {DISCOVER: "claude", PLAN: "thinker", IMPLEMENT: "claude"}[kind]
        if "tireless/agent:spare" in chosen:
            lane = "spare"
        assert isinstance(said.decision, Enqueue)
        assert said.decision.route == Route(Kind(kind.removeprefix("tireless/")), lane, 0, HOLD in chosen)
        assert said.asked
        assert said.answers
        assert said.code is None
    assert seen == 7 * 2**5


@pytest.mark.parametrize(
    ("names", "code"),
    [((GO,), "no_mode"), ((PLAN,), "no_opt_in"), ((), None), (("bug",), None), (("tireless/plam",), "unknown_label")],
)
def test_an_improper_issue_makes_no_job_and_has_its_own_reason(names: tuple[str, ...], code: str | None) -> None:
    """A plain issue has none."""
    history = History(ALICE)
    for name in names:
        history.add(BOB, name)
    said = judged(history, Standing())
    assert (said.decision, said.code, said.asked, said.answers) == (Ignore(), code, False, False)


def test_a_strangers_labels_make_no_job_and_are_answered_by_the_refusal() -> None:
    """He is named, and only a new act asks again."""
    history = History(MALLORY, labels=(GO, IMPLEMENT))
    said = judged(history, Standing())
    assert (said.decision, said.code, said.answers) == (Ignore(), "stranger", True)
    assert said.details == {"label": GO, "login": "mallory", "why": "no_write_access"}


def test_a_closed_issue_makes_no_job_however_it_is_labelled() -> None:
    """Not even its timeline is wanted."""
    history = opted(IMPLEMENT)
    history.close(BOB)
    said = decide(history.snapshot, None, Standing(), scheme=SCHEME, lanes=LANES)
    assert (said.decision, said.code) == (Ignore(), "closed")
    history.remove(BOB, GO)
    history.remove(BOB, IMPLEMENT)
    assert decide(history.snapshot, None, Standing(), scheme=SCHEME, lanes=LANES).code is None


def test_a_kind_no_lane_takes_is_not_answered() -> None:
    """The lane may be configured tomorrow."""
    history = opted(DISCOVER)
    asked = history.asked(facts=READ)
    said = decide(history.snapshot, asked, Standing(), scheme=SCHEME, lanes=LANES[1:])
    assert (said.decision, said.code, said.answers) == (Ignore(), "no_lane", False)


def test_doubt_moves_nothing() -> None:
    """Not the job, not the marks, not whether it was asked."""
    history = opted(IMPLEMENT)
    history.on = []
    for standing in (Standing(), job(), job(State.CLAIMED), ended()):
        said = judged(history, standing)
        assert (said.decision, said.code, said.asked, said.answers) == (Ignore(), "cannot_tell", None, False)


def test_a_text_nobody_approved_makes_a_parked_job() -> None:
    """The request is proper; what an agent would work from is not."""
    history = opted(IMPLEMENT, author=MALLORY)
    history.edit("Something else.", s=9_000)
    said = judged(history, Standing())
    assert isinstance(said.decision, Enqueue)
    assert said.code == "needs_approval"


# ------------------------------------------------------------------------------------------------ children


def test_a_child_waits_for_a_person_and_a_proposal_has_no_opt_in() -> None:
    """The bot's mode label says the kind."""
    history = History(BOT, labels=(IMPLEMENT,))
    assert judged(history, Standing(is_child=True)).code == "is_child_waiting"
    assert judged(history, Standing(is_child=True, is_proposal=True)).code == "no_opt_in"
    picture = History(BOT, labels=(GO, IMPLEMENT))
    assert judged(picture, Standing(is_child=True)).code == "is_child_waiting"


def test_a_plans_own_request_makes_one_job_without_opt_in() -> None:
    """`children_run`: the request is there already and moves no mark."""
    history = History(BOT, labels=(IMPLEMENT,))
    said = judged(history, Standing(is_child=True, child_request=8))
    assert isinstance(said.decision, Enqueue)
    assert (said.decision.request_id, said.decision.entry, said.answers) == (8, None, False)


# ------------------------------------------------------------------------------------------------ a job at rest


@pytest.mark.parametrize("state", [State.PENDING, State.WAITING])
def test_relabelling_refreshes_in_place(state: State) -> None:
    """Lane, priority, hold and kind change on the row; nothing is cancelled."""
    base = opted(IMPLEMENT)
    marks = base.asked(facts=READ).marks
    for name, wanted in {
        "tireless/agent:spare": Route(Kind.IMPLEMENT, "spare"),
        "tireless/priority/high": Route(Kind.IMPLEMENT, "claude", 1),
        "tireless/priority/low": Route(Kind.IMPLEMENT, "claude", -1),
        HOLD: Route(Kind.IMPLEMENT, "claude", 0, hold=True),
    }.items():
        history = opted(IMPLEMENT)
        history.add(BOB, name)
        said = judged(history, job(state), answered=marks)
        assert said.decision == Refresh(wanted)
        assert not said.answers


def test_a_removed_mode_beside_another_changes_the_kind_in_place() -> None:
    """No newer request, the same job."""
    history = opted(PLAN, IMPLEMENT)
    marks = history.asked(facts=READ).marks
    history.remove(BOB, PLAN)
    said = judged(history, job(kind=Kind.PLAN, lane="thinker"), answered=marks)
    assert said.decision == Refresh(Route(Kind.IMPLEMENT, "claude"))


def test_a_kind_this_request_has_had_is_called_off_not_repeated() -> None:
    """A job is unique on request and kind; running the old kind would be wrong."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    standing = replace(job(kind=Kind.PLAN, lane="thinker"), kinds_taken=frozenset({Kind.IMPLEMENT}))
    assert judged(history, standing, answered=marks).decision == Cancel(Cancelled.KIND_CHANGED)


def test_a_newer_request_is_taken_over_by_a_job_at_rest() -> None:
    """Re-ask: also of one that is parked."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    history.remove(BOB, GO)
    entry = history.add(BOB, GO)
    for standing in (job(), job(State.WAITING), job(State.WAITING, parked="suspect")):
        said = judged(history, standing, answered=marks)
        assert said.decision == Renew(Route(Kind.IMPLEMENT, "claude"), entry)
        assert said.answers


def test_an_unchanged_issue_changes_nothing() -> None:
    """Whatever state its job is in."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    for standing in (job(), job(State.WAITING), job(State.CLAIMED), job(State.PUBLISHING), ended()):
        said = judged(history, standing, answered=marks, approved_hash=history.snapshot.content_hash)
        assert (said.decision, said.code, said.answers) == (Ignore(), None, False)


def test_an_edit_by_one_who_may_not_ask_parks_and_an_act_unparks() -> None:
    """The new add of an allowed person heals; so does the old text."""
    history = opted(IMPLEMENT, author=MALLORY)
    first = history.asked(facts=READ)
    old = history.snapshot.content_hash
    history.edit("Something else.", s=9_000)
    known = {"answered": first.marks, "approved_hash": old}
    wanted = Route(Kind.IMPLEMENT, "claude")
    said = judged(history, job(), **known)
    assert (said.decision, said.code) == (Park(wanted), "needs_approval")
    parked = job(State.WAITING, parked="needs_approval")
    assert judged(history, parked, **known).decision == Ignore()
    history.add(BOB, "tireless/priority/low")
    assert judged(history, parked, **known).decision == Unpark(replace(wanted, priority=-1), "bob")
    history.body = "Please."
    assert judged(history, parked, **known).decision == Unpark(replace(wanted, priority=-1), None)


def test_a_claimed_job_works_on_through_an_edit() -> None:
    """It has the approved text; it parks when it comes back."""
    history = opted(IMPLEMENT, author=MALLORY)
    first = history.asked(facts=READ)
    old = history.snapshot.content_hash
    history.edit("Something else.", s=9_000)
    said = judged(history, job(State.CLAIMED), answered=first.marks, approved_hash=old)
    assert (said.decision, said.code) == (Ignore(), None)


def test_an_answer_unparks_only_a_job_that_asked() -> None:
    """A comment is no answer to an approval that is wanted."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    history.comment(BOB)
    known = {
        "answered": marks,
        "question_at": at(300),
        "approved_hash": history.snapshot.content_hash,
        "facts": knows(passed=frozenset({BOB.id})),
    }
    asking = job(State.WAITING, parked=Parked.NEEDS_INPUT.value)
    assert judged(history, asking, **known).decision == Unpark(Route(Kind.IMPLEMENT, "claude"), "bob")
    suspect = job(State.WAITING, parked=Parked.SUSPECT.value)
    assert judged(history, suspect, **known).decision == Ignore()


def test_an_operators_choice_stands_until_the_matching_label_changes() -> None:
    """`reroute` and `bump` are not undone by the next poll."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    view = read(history.snapshot.labels, SCHEME)
    steered = replace(job(lane="spare", priority=1, steered=frozenset({"lane", "priority"})), view=view)
    assert judged(history, steered, answered=marks).decision == Ignore()
    history.add(BOB, "tireless/agent:thinker")
    assert judged(history, steered, answered=marks).decision == Refresh(Route(Kind.IMPLEMENT, "thinker", 1))


# ------------------------------------------------------------------------------------------------ running, delivering


def test_a_running_job_absorbs_a_newer_request_of_its_kind() -> None:
    """So does one that is being delivered."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    history.remove(BOB, GO)
    entry = history.add(BOB, GO)
    for state in (State.CLAIMED, State.PUBLISHING):
        said = judged(history, job(state), answered=marks)
        assert (said.decision, said.answers) == (Absorb(entry), True)


def test_a_job_that_is_being_stopped_absorbs_nothing() -> None:
    """Who asks again after taking it away is answered by the next job."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    history.remove(BOB, GO)
    history.add(BOB, GO)
    said = judged(history, job(State.CLAIMED, cancel_requested="unlabelled"), answered=marks)
    assert (said.decision, said.answers) == (Ignore(), False)


def test_an_add_that_changes_the_kind_of_a_running_job_stops_it_and_makes_the_next() -> None:
    """It is not absorbed: the marks stay, and the look of the ended job finds the newer request."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    entry = history.add(BOB, PLAN)
    said = judged(history, job(State.CLAIMED), answered=marks)
    assert (said.decision, said.answers) == (RequestStop(Cancelled.KIND_CHANGED), False)
    after = ended(State.CANCELLED, "kind_changed", finished_at=at(999_999))
    made = judged(history, after, answered=marks).decision
    assert made == Enqueue(Route(Kind.PLAN, "thinker"), entry)
    assert judged(history, job(State.PUBLISHING), answered=marks).decision == Absorb(entry)


def test_a_removal_that_changed_the_kind_asks_with_the_same_request() -> None:
    """The only job not newer than what was answered; and only for a kind it has not had."""
    history = opted(PLAN, IMPLEMENT)
    marks = history.asked(facts=READ).marks
    history.remove(BOB, PLAN)
    running = job(State.CLAIMED, kind=Kind.PLAN, lane="thinker")
    assert judged(history, running, answered=marks).decision == RequestStop(Cancelled.KIND_CHANGED)
    after = ended(State.CANCELLED, "kind_changed", kind=Kind.PLAN, kinds_taken=frozenset({Kind.PLAN}))
    made = judged(history, after, answered=marks).decision
    assert made == Enqueue(Route(Kind.IMPLEMENT, "claude"), None, 5)
    both = ended(State.CANCELLED, "kind_changed", kinds_taken=frozenset({Kind.PLAN, Kind.IMPLEMENT}))
    assert judged(history, both, answered=marks).decision == Ignore()


def test_a_running_job_is_held_and_bumped_but_not_moved() -> None:
    """It comes back on hold; its lane is looked at again."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    for name in (HOLD, "tireless/agent:spare", "tireless/priority/high"):
        history.add(BOB, name)
    said = judged(history, job(State.CLAIMED), answered=marks)
    assert said.decision == Refresh(Route(Kind.IMPLEMENT, "claude", 1, hold=True))
    assert said.again_s is not None


# ------------------------------------------------------------------------------------------------ what ends one


@pytest.mark.parametrize(
    ("state", "changes", "decision"),
    [
        (State.PENDING, {}, Cancel),
        (State.WAITING, {"parked": "needs_input"}, Cancel),
        (State.CLAIMED, {}, RequestStop),
        (State.CLAIMED, {"cancel_requested": "operator"}, Ignore),
        (State.PUBLISHING, {}, Cancel),
        (State.PUBLISHING, {"creating": True}, Ignore),
    ],
)
def test_closing_and_unlabelling_end_a_job_as_far_as_it_can_be(
    state: State, changes: dict[str, object], decision: type[Decision]
) -> None:
    """At rest at once, running by asking, delivering only before the first create."""
    closed = opted(IMPLEMENT)
    closed.close(MALLORY)
    standing = job(state, **changes)
    ends = decide(closed.snapshot, None, standing, scheme=SCHEME, lanes=LANES).decision
    assert type(ends) is decision
    assert not isinstance(ends, Cancel | RequestStop) or ends.reason is Cancelled.CLOSED

    history = opted(IMPLEMENT)
    first = history.asked(facts=READ)
    history.remove(BOB, GO)
    taken = judged(history, standing, counted=first.counted, answered=first.marks)
    assert type(taken.decision) is decision
    assert not isinstance(taken.decision, Cancel | RequestStop) or taken.decision.reason is Cancelled.UNLABELLED
    assert taken.code == "no_opt_in"


# ------------------------------------------------------------------------------------------------ after the end


@pytest.mark.parametrize(("seconds", "makes"), [(-60, False), (0, False), (2, False), (3, True), (600, True)])
def test_only_a_request_made_after_the_end_makes_a_new_job(seconds: int, makes: bool) -> None:
    """Not later than two seconds after the end it was meant for the job that ended, and the comment says so."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    history.remove(BOB, GO)
    entry = history.add(BOB, GO, s=3600 + seconds)
    for state, reason in ((State.DELIVERED, None), (State.FAILED, "exhausted"), (State.CANCELLED, "operator")):
        said = judged(history, ended(state, reason), answered=marks)
        assert said.answers
        if makes:
            assert said.decision == Enqueue(Route(Kind.IMPLEMENT, "claude"), entry)
        else:
            assert (said.decision, said.code) == (Absorb(entry), "absorbed")


@pytest.mark.parametrize("reason", ["closed", "unlabelled", "gone"])
def test_who_asks_after_taking_it_away_gets_a_new_job_however_soon(reason: str) -> None:
    """The job took its time to stop; the request came after what stopped it."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    history.remove(BOB, GO)
    entry = history.add(BOB, GO)
    after = ended(State.CANCELLED, reason, finished_at=entry.at + timedelta(hours=1))
    assert isinstance(judged(history, after, answered=marks).decision, Enqueue)


def test_labels_still_on_a_delivered_issue_run_nothing_again() -> None:
    """Nor when its jobs were pruned: the marks decide, not the rows."""
    history = opted(IMPLEMENT)
    marks = history.asked(facts=READ).marks
    for standing in (ended(), Standing()):
        said = judged(history, standing, answered=marks)
        assert (said.decision, said.code, said.asked) == (Ignore(), None, True)


def test_a_planned_issue_is_not_implemented_as_well() -> None:
    """Both modes were on and the plan ran: neither the label beside it nor taking `plan` off asks for the other."""
    history = opted(PLAN, IMPLEMENT)
    asked = history.asked(facts=READ)
    said = judged(history, Standing()).decision
    assert isinstance(said, Enqueue)
    assert said.route == Route(Kind.PLAN, "thinker")
    after = ended(kind=Kind.PLAN, kinds_taken=frozenset({Kind.PLAN}))
    assert judged(history, after, answered=asked.marks).decision == Ignore()
    history.remove(BOB, PLAN)
    assert judged(history, after, answered=asked.marks).decision == Ignore()


# ------------------------------------------------------------------------------------------------ routes, warnings


def test_one_route_for_every_caller_over_all_combinations() -> None:
    """Enqueue, refresh and the pure rule give the same lane and kind for every set of labels, child or not."""
    lanes = (replace(LANES[0], children_of_plan="spare"), *LANES[1:])
    names = (DISCOVER, PLAN, IMPLEMENT, "tireless/agent:spare", "tireless/agent:thinker", "tireless/agent:none")
    for chosen in chain.from_iterable(combinations(names, n) for n in range(1, len(names) + 1)):
        for is_child in (False, True):
            history = opted(*chosen)
            asked = history.asked(facts=READ)
            plain = route(asked.view, hold=False, is_child=is_child, lanes=lanes)
            fresh = decide(history.snapshot, asked, Standing(is_child=is_child), scheme=SCHEME, lanes=lanes).decision
            if plain is None:
                assert isinstance(fresh, Ignore)
                continue
            assert isinstance(fresh, Enqueue)
            assert fresh.route == plain
            assert plain.lane == lane_for(plain.kind, is_child=is_child, overrides=asked.view.agents, lanes=lanes)
            other = LiveJob(1, State.PENDING, plain.kind, "elsewhere")
            again = decide(
                history.snapshot,
                replace(asked, request=None),
                Standing(live=other, is_child=is_child),
                scheme=SCHEME,
                lanes=lanes,
            ).decision
            assert again == Refresh(plain)


def test_contradictions_are_told_with_what_won() -> None:
    """Several modes, several lanes, an unknown lane, an unknown label."""
    history = opted(IMPLEMENT, PLAN, "tireless/agent:spare", "tireless/agent:claude", "tireless/agent:x", "tireless/y")
    warnings = judged(history, Standing()).details["warnings"]
    assert warnings == {
        "several_modes": {"kinds": ["plan", "implement"], "kind": "plan"},
        "several_lanes": {"lanes": ["spare", "claude", "x"], "lane": "claude"},
        "unknown_lane": {"lanes": ["x"], "lane": "claude"},
        "unknown_label": {"unknown": ["y"]},
    }


def test_a_case_that_was_not_judged_says_only_what_the_labels_say() -> None:
    """Without timeline there is nothing to decide."""
    said = decide(History().snapshot, None, Standing(), scheme=SCHEME, lanes=LANES)
    assert said == Triage(Ignore())
    assert Asked().proper is False


def test_a_mode_label_that_was_renamed_keeps_nothing_else_from_counting() -> None:
    """The kind stands as it was asked for; lane, priority and hold go on following their labels."""
    history = opted()
    assert judged(history, job()).decision == Ignore()
    history.add(BOB, "tireless/agent:spare")
    history.add(BOB, "tireless/priority/high")
    assert judged(history, job()).decision == Refresh(Route(Kind.IMPLEMENT, "spare", 1, False))
