"""Read-only questions: lists, one job whole, explain's gates and place in line, counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.gates import ORDER
from tireless.domain.labels import LabelScheme
from tireless.errors import NotKnown, UsageError
from tireless.store import inspect
from tireless.store.claim import RunnerId, claim_next, show_runner
from tireless.store.db import Connection, jsonb
from tireless.store.inspect import Explanation

SCHEME = LabelScheme()
ME = RunnerId("r1", "h1", uuid4())


async def explained(conn: Connection, number: int, repo: str = rows.REPO) -> Explanation:
    """Why this issue is or is not worked on."""
    return await inspect.explain(conn, repo, number, scheme=SCHEME)


def failed(found: Explanation) -> list[str]:
    """The codes of the gates that block, in order."""
    return [one.gate.code for one in found.gates if one.passed is False and one.gate.blocking]


# ------------------------------------------------------------------------------------------------ lists


async def test_jobs_are_listed_newest_first_by_state_lane_and_repository(conn: Connection) -> None:
    """Filters narrow; a page goes on after the last id."""
    states = ("pending", "waiting", "claimed", "publishing", "delivered", "failed", "cancelled")
    made = [await rows.job(conn, state=state, hold=state == "waiting") for state in states]
    other = await rows.job(conn, "acme/other", lane_name="spare")
    ids = [one.job_id for one in (*made, other)]
    assert [row.id for row in await inspect.job_rows(conn)] == ids[::-1]
    assert [row.state for row in await inspect.job_rows(conn, states=["pending", "claimed"])] == [
        "pending",
        "claimed",
        "pending",
    ]
    assert [row.id for row in await inspect.job_rows(conn, states=["failed", "pending"], repo="ACME/Widget")] == [
        ids[5],
        ids[0],
    ]
    assert [row.id for row in await inspect.job_rows(conn, lane="spare")] == [other.job_id]
    assert [row.id for row in await inspect.job_rows(conn, before_id=ids[2])] == ids[:2][::-1]
    assert [row.id for row in await inspect.job_rows(conn, number=made[3].number)] == [ids[3]]
    [row] = await inspect.job_rows(conn, states=["claimed"])
    assert (row.repo, row.claimed_by, row.source, row.asked_by, row.parent) == (
        "acme/widget",
        "r1",
        "label",
        "ada",
        None,
    )


async def test_a_job_is_shown_with_attempts_events_children_and_parent(conn: Connection) -> None:
    """All of it, oldest first; an unknown one is said to be unknown."""
    plan = await rows.job(conn, state="delivered", kind="plan")
    child_issue = await rows.issue(conn)
    number = (await rows.row(conn, "issue", child_issue))["number"]
    await rows.child(conn, plan.issue_id, "schema", job_id=plan.job_id, number=number, issue_id=child_issue)
    await rows.child(conn, plan.issue_id, "page", job_id=plan.job_id, depends_on=["schema"], position=1)
    child = await rows.job(conn, issue_id=child_issue)
    [claim] = await claim_next(conn, [rows.LANE], runner=ME)
    assert claim.job_id == child.job_id

    detail = await inspect.job_detail(conn, plan.job_id)
    assert [attempt.outcome for attempt in detail.attempts] == ["done"]
    assert [(one.key, one.number, one.job_id, one.depends_on) for one in detail.children] == [
        ("schema", number, child.job_id, []),
        ("page", None, None, ["schema"]),
    ]
    assert await inspect.children_of(conn, rows.REPO, plan.number) == detail.children
    of_child = await inspect.job_detail(conn, child.job_id)
    assert of_child.job.parent == plan.number
    assert [event.what for event in of_child.events] == ["claim"]
    assert [event.what for event in await inspect.event_rows(conn)] == ["claim"]
    assert await inspect.event_rows(conn, after_id=of_child.events[0].id) == []
    with pytest.raises(NotKnown, match="job 4711"):
        await inspect.job_detail(conn, 4711)


async def test_output_is_read_live_and_after_the_end(conn: Connection) -> None:
    """Chunks after a number while it runs; nothing of a job that never ran."""
    made = await rows.job(conn, state="claimed")
    for seq, text in enumerate(("one", "two", "three")):
        await rows.insert(conn, "output_chunk", attempt_id=made.attempt_id, seq=seq, text=text)
    live = await inspect.attempt_output(conn, made.job_id, after=0)
    assert live is not None
    assert (live.chunks, live.seq, live.ended) == (["two", "three"], 2, False)
    again = await inspect.attempt_output(conn, made.job_id, after=live.seq)
    assert again is not None
    assert (again.chunks, again.seq) == ([], 2)
    never = await rows.job(conn)
    assert await inspect.attempt_output(conn, never.job_id) is None


async def test_issues_repositories_runners_looks_and_counts_are_listed(conn: Connection) -> None:
    """An issue about which there is nothing to say is left out unless asked for."""
    await rows.issue(conn)
    told = await rows.issue(conn, triage_code="no_mode", triage_details=jsonb({"unknown": ["x"]}))
    running = await rows.job(conn, state="claimed")
    await rows.job(conn, parked="suspect", state="waiting")
    await show_runner(conn, ME, lanes=[rows.LANE], slots=2, version="1")
    await rows.insert(conn, "look", repository_id=running.repository_id, number=5, why="bad", failures=3, error="no")
    issues = await inspect.issue_rows(conn)
    assert [issue.code for issue in issues] == [None, None, "no_mode"]
    assert issues[2].details == {"unknown": ["x"]}
    assert len(await inspect.issue_rows(conn, told=False)) == 4
    [repository] = await inspect.repository_rows(conn)
    assert (repository.repo, repository.claimed, repository.waiting, repository.pending) == ("acme/widget", 1, 1, 0)
    [runner] = await inspect.runner_rows(conn)
    assert (runner.name, runner.alive, runner.running) == ("r1", True, 1)
    [look] = await inspect.look_rows(conn)
    assert (look.number, look.failures, look.not_before) == (5, 3, None)
    counts = await inspect.stats(conn)
    assert (counts.claimed, counts.waiting, counts.parked, counts.looks_failing, counts.runners_alive) == (
        1,
        1,
        1,
        1,
        1,
    )
    assert counts.oldest_pending_s is None
    assert counts.oldest_claim_s is not None
    assert told
    await rows.change(conn, "repository", repository.id, tracked=False)
    assert await inspect.repository_rows(conn) == []
    assert len(await inspect.repository_rows(conn, all_known=True)) == 1
    assert (await inspect.stats(conn)).looks_failing == 0


async def test_a_claim_is_counted_for_the_process_that_made_it(conn: Connection) -> None:
    """Of those that were started one after the other under one name on one host; and for none of another host."""
    lives = [RunnerId("r1", host, uuid4()) for host in ("h1", "h1", "h1", "h2")]
    for runner in lives[:2]:
        await show_runner(conn, runner, lanes=[rows.LANE], slots=4, version="1")
    await rows.job(conn, state="claimed")
    await rows.job(conn, state="claimed")
    for runner in lives[2:]:
        await show_runner(conn, runner, lanes=[rows.LANE], slots=4, version="1")
    await rows.job(conn, state="claimed", host="h2")
    assert [row.running for row in await inspect.runner_rows(conn)] == [1, 0, 2, 0]


async def test_an_approval_by_an_operator_shows_at_once(conn: Connection) -> None:
    """Triage has not looked again, but its reason holds no more."""
    issue_id = await rows.issue(conn, triage_code="needs_approval")
    [issue] = await inspect.issue_rows(conn)
    assert issue.code is None
    await rows.change(conn, "issue", issue_id, content_hash="other")
    [issue] = await inspect.issue_rows(conn)
    assert issue.code == "needs_approval"


# ------------------------------------------------------------------------------------------------ explain


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({}, "not_asked"),
        ({"open": False}, "closed"),
        *(
            ({"triage_code": code}, code)
            for code in (
                "gone",
                "closed",
                "unknown_label",
                "cannot_tell",
                "stranger",
                "no_opt_in",
                "is_child_waiting",
                "no_mode",
                "too_early",
                "no_lane",
            )
        ),
    ],
)
async def test_an_issue_without_job_names_the_gate_it_fails(
    conn: Connection, columns: dict[str, Any], code: str
) -> None:
    """With a sentence and a next step; those before it passed, those after it were not reached."""
    issue_id = await rows.issue(conn, **columns)
    number = (await rows.row(conn, "issue", issue_id))["number"]
    found = await explained(conn, int(str(number)))
    assert failed(found) == [code]
    assert found.first is not None
    assert found.first.sentence
    assert found.first.next_step
    assert (found.job_id, found.place) == (None, None)
    before = [one.passed for one in found.gates if ORDER[one.gate.code] < ORDER[code]]
    after = [one.passed for one in found.gates if ORDER[one.gate.code] > ORDER[code]]
    assert set(before) == {True}
    assert set(after) == {None}


NOW = datetime(2020, 1, 1, 12, 0, tzinfo=UTC)
LATER = datetime(2222, 1, 1, tzinfo=UTC)


def ago(minutes: float) -> datetime:
    """A moment before NOW."""
    return NOW - timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("repository", "owner", "look", "as_of", "due", "words"),
    [
        ({}, None, None, ago(9), None, "the next poll, due at "),
        ({"polled_at": ago(5), "poll_not_before": LATER}, None, None, ago(5), LATER, "due at 2222-01-01 00:00:00 UTC"),
        (
            {"searched": True, "polled_at": ago(5), "poll_not_before": NOW},
            {"asked_at": ago(2), "poll_not_before": LATER},
            None,
            ago(2),
            LATER,
            "due at 2222-01-01 00:00:00 UTC",
        ),
        (
            {"polled_at": ago(5), "poll_not_before": LATER + timedelta(days=1)},
            None,
            {"not_before": LATER},
            ago(5),
            LATER,
            "due at 2222-01-01 00:00:00 UTC",
        ),
        (
            {"polled_at": ago(70), "poll_not_before": ago(60)},
            None,
            None,
            ago(9),
            ago(60),
            "which was due at 2020-01-01 11:00:00 UTC (is `tireless serve` running?)",
        ),
        (
            {"take_token": uuid4(), "take_by": "p", "take_until": LATER, "poll_not_before": ago(9)},
            None,
            None,
            ago(9),
            ago(9),
            "the poll that is under way",
        ),
        (
            {"poll_failures": 2, "poll_error": "502 Bad Gateway.", "poll_not_before": LATER},
            None,
            None,
            ago(9),
            LATER,
            "due at 2222-01-01 00:00:00 UTC (the last one failed: 502 Bad Gateway)",
        ),
    ],
    ids=["never polled", "polled", "searched", "looked at", "late", "under way", "failed"],
)
async def test_what_is_not_asked_for_says_when_it_was_seen_and_when_it_is_next(
    conn: Connection,
    repository: dict[str, Any],
    owner: dict[str, Any] | None,
    look: dict[str, Any] | None,
    as_of: datetime,
    due: datetime | None,
    words: str,
) -> None:
    """A label put on a moment ago is not there yet: the answer holds as of a moment, and a poll is to come."""
    issue_id = await rows.issue(conn, asked_at=ago(9))
    place = await rows.repository(conn, **repository)
    if owner is not None:
        await rows.insert(conn, "owner_poll", forge=rows.FORGE, owner="acme", **owner)
    if look is not None:
        number = (await rows.row(conn, "issue", issue_id))["number"]
        await rows.insert(conn, "look", repository_id=place, number=number, why="later", **look)
    found = await explained(conn, 1)
    assert failed(found) == ["not_asked"]
    assert found.first is not None
    assert found.fresh is not None
    assert found.fresh.as_of == as_of
    assert found.fresh.next_at is not None
    assert due in (None, found.fresh.next_at)
    assert f"as of {as_of:%Y-%m-%d %H:%M:%S} UTC" in found.first.sentence
    assert words in found.first.next_step


async def test_what_nobody_watches_is_not_read_again(conn: Connection) -> None:
    """Then no poll is promised."""
    await rows.issue(conn)
    await rows.repository(conn, tracked=False)
    found = await explained(conn, 1)
    assert found.fresh is not None
    assert (found.fresh.next_at, found.fresh.late) == (None, False)


async def test_what_is_not_known_is_said(conn: Connection) -> None:
    """The repository, then the issue."""
    assert failed(await explained(conn, 1)) == ["unknown_repository"]
    await rows.repository(conn)
    assert failed(await explained(conn, 1)) == ["unseen"]
    await rows.repository(conn, "acme/dark", tracked=False, readable=False, unreadable_reason="404")
    assert failed(await explained(conn, 1, "acme/dark")) == ["untracked", "unreadable", "unseen"]


async def test_the_same_name_on_two_forges_has_to_be_told_apart(conn: Connection) -> None:
    """Guessing would explain the wrong issue."""
    await rows.repository(conn)
    await rows.forge(conn, "second")
    await rows.repository(conn, "acme/elsewhere", forge="second", forge_repo_id=99)
    await rows.value(conn, "UPDATE repository SET name = 'widget' WHERE forge = 'second' RETURNING 1")
    with pytest.raises(UsageError, match="loop, second"):
        await explained(conn, 1)
    found = await inspect.explain(conn, rows.REPO, 1, scheme=SCHEME, forge="second")
    assert failed(found) == ["unseen"]


@pytest.mark.parametrize(
    ("columns", "codes"),
    [
        ({"parked": "needs_input"}, ["needs_input"]),
        ({"parked": "suspect", "hold": True}, ["suspect", "on_hold"]),
        ({"hold": True, "waits_for": ["acme/widget#9"]}, ["on_hold", "waits_for"]),
        ({"day_limit": True}, ["day_limit"]),
        ({"repository_full": True}, ["repository_full"]),
    ],
)
async def test_a_waiting_job_shows_every_gate_that_holds(
    conn: Connection, columns: dict[str, Any], codes: list[str]
) -> None:
    """Several can hold at once; the first is the reason shown."""
    made = await rows.job(conn, state="waiting", **columns)
    found = await explained(conn, made.number)
    assert failed(found) == codes
    assert found.reason == codes[0]
    assert (found.place, found.job_id) == (None, made.job_id)


async def test_a_pending_job_that_nothing_blocks_has_a_place_in_line(conn: Connection) -> None:
    """By priority, turn and id within its lane; and a claim takes exactly the first."""
    made = [await rows.job(conn, priority=priority) for priority in (0, 1, 0, -1)]
    await rows.job(conn, lane_name="spare")
    places = [(await explained(conn, one.number)).place for one in made]
    assert places == [2, 1, 3, 4]
    found = await explained(conn, made[1].number)
    assert (found.first, failed(found), found.runners) == (None, [], 0)
    assert [one.gate.code for one in found.gates if one.passed is False] == ["no_runner"]
    await show_runner(conn, ME, lanes=[rows.LANE], slots=1, version="1")
    assert (await explained(conn, made[1].number)).runners == 1
    [claim] = await claim_next(conn, [rows.LANE], runner=ME)
    assert claim.job_id == made[1].job_id
    assert failed(await explained(conn, made[1].number)) == ["running"]
    assert (await explained(conn, made[0].number)).place == 1


async def test_a_held_lane_says_by_whom_why_and_until_when(conn: Connection) -> None:
    """And how to release it."""
    made = await rows.job(conn)
    await rows.insert(conn, "lane_hold", lane=rows.LANE, source="operator", reason="maintenance", held_by="carol")
    await rows.insert(conn, "lane_hold", lane=rows.LANE, source="setup", host="h9", reason="no git", held_by="r1")
    found = await explained(conn, made.number)
    assert failed(found) == ["lane_held"]
    assert found.first is not None
    assert "`carol`: maintenance" in found.first.sentence
    assert f"tireless lanes release {rows.LANE}" in found.first.next_step
    assert found.held_hosts == ("h9",)


async def test_a_lane_out_of_the_configuration_and_limits_are_named(conn: Connection) -> None:
    """By the same view that the claim obeys."""
    made = await rows.job(conn)
    await rows.change(conn, "lane", rows.LANE, max_running=1)
    await rows.job(conn, state="claimed")
    assert failed(await explained(conn, made.number)) == ["lane_full"]
    await rows.change(conn, "lane", rows.LANE, configured=False)
    assert failed(await explained(conn, made.number)) == ["lane_not_configured"]
    assert await claim_next(conn, [rows.LANE], runner=ME) == []


async def test_a_job_that_ended_says_how_to_ask_again(conn: Connection) -> None:
    """What was asked was answered; the label still there asks no more."""
    made = await rows.job(conn, state="delivered")
    await rows.change(conn, "issue", made.issue_id, asked=True)
    found = await explained(conn, made.number)
    assert failed(found) == ["answered", "ended"]
    assert "by a job that ended" in found.gates[[gate.gate.code for gate in found.gates].index("answered")].sentence
    assert found.first is not None
    assert "tireless/go" in found.first.next_step
    assert found.state == "delivered"


async def test_warnings_are_told_beside_the_gates(conn: Connection) -> None:
    """Two modes: which one won."""
    details = {"warnings": {"several_modes": {"kinds": ["plan", "implement"], "kind": "plan"}}}
    made = await rows.job(conn)
    await rows.change(conn, "issue", made.issue_id, triage_details=jsonb(details))
    found = await explained(conn, made.number)
    assert len(found.warnings) == 1
    assert "`tireless/plan` goes first" in found.warnings[0]
