"""The comment is edited seldom, except for what ends a job; it waits for the next label; it tells what holds a lane."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import FaultPlan
from tests.support.telling import *  # noqa: F403  fixtures
from tests.support.telling import Both, drain
from tireless.domain.labels import LabelScheme
from tireless.services.mirror import Mirror
from tireless.store import inspect
from tireless.store.lanes import lane_marks, mark_lane
from tireless.store.steer import hold, release


def edits(both: Both, after: int) -> int:
    """How often a comment was edited since."""
    return sum(each.method == "PATCH" and "/comments/" in each.path for each in both.loopback.requests(after=after))


async def passes(both: Both, seconds: float) -> None:
    """Let so much time have passed since the comment was sent, and for what was put off."""
    await both.conn.execute(
        "UPDATE mirror SET comment_at = comment_at - make_interval(secs => %(s)s),"
        " paced_until = paced_until - make_interval(secs => %(s)s)",
        {"s": seconds},
    )
    await both.conn.execute("UPDATE issue SET triaged_at = triaged_at - make_interval(secs => %(s)s)", {"s": seconds})


async def said(both: Both, number: int) -> str:
    """The one status comment."""
    [comment] = await both.status_comments(number)
    return comment.body


def pacing(both: Both) -> Mirror:
    """A mirror with the real times."""
    return both.mirror(edit_every_s=30.0, first_comment_after_s=10.0)


async def pending(both: Both) -> tuple[rows.Made, int]:
    """An issue whose job waits for its turn, told, with a runner there."""
    await served(both)
    issue_id, number = await both.issue()
    made = await rows.job(both.conn, both.repo.path, issue_id=issue_id)
    await drain(pacing(both).tick)
    return made, number


async def served(both: Both) -> None:
    """A runner of the lane shows itself."""
    columns = {"name": "r1", "host": "h1", "pid": 1, "lanes": [rows.LANE], "slots": 1, "version": "1"}
    await rows.insert(both.conn, "runner", uid=uuid4(), **columns)


async def hold_back(both: Both, made: rows.Made, *, on: bool) -> None:
    """Put the job on hold or take it off: a change that the comment tells."""
    await rows.change(both.conn, "job", made.job_id, state="waiting", hold=on)


# ------------------------------------------------------------------------------------------------ how often


async def test_the_comment_is_edited_once_in_thirty_seconds(both: Both) -> None:
    """Changes in between are told as one, of the last of them; nothing is asked of the forge while it waits."""
    made, number = await pending(both)
    await passes(both, 31)
    mirror, before = pacing(both), both.loopback.last_request
    for on in (True, False, True, False, True):
        await hold_back(both, made, on=on)
        await drain(mirror.tick)
    assert edits(both, before) == 1
    assert "on hold" in await said(both, number)
    await hold_back(both, made, on=False)
    await drain(mirror.tick)
    quiet = both.loopback.last_request
    for _ in range(3):
        assert not await mirror.tick()
    assert both.loopback.last_request == quiet
    await passes(both, 31)
    await drain(mirror.tick)
    assert edits(both, before) == 2
    assert "waits for its turn" in await said(both, number)
    row = await both.mirror_row(made.issue_id)
    assert row["told"] == row["changed"]


async def test_labels_do_not_wait(both: Both) -> None:
    """The status label follows at once; only the comment is put off."""
    made, number = await pending(both)
    claim = {"claimed_by": "r1", "claimed_host": "h1", "claim_token": uuid4(), "claimed_at": datetime.now(UTC)}
    await rows.change(
        both.conn, "job", made.job_id, state="claimed", claim_no=1, claim_expires_at=datetime.now(UTC), **claim
    )
    await drain(pacing(both).tick)
    assert await both.label_names(number) == ["tireless/status/running"]
    assert "waits for its turn" in await said(both, number)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "failed", "reason": "rejected", "finished_at": datetime(2026, 1, 1, tzinfo=UTC)}, "cannot be done"),
        ({"state": "cancelled", "reason": "closed", "finished_at": datetime(2026, 1, 1, tzinfo=UTC)}, "Called off"),
        ({"state": "waiting", "parked": "needs_input", "question": "Which blue?"}, "Which blue?"),
    ],
)
async def test_what_ends_it_or_asks_a_person_is_told_at_once(both: Both, change: dict[str, object], words: str) -> None:
    """Also when an edit was put off a moment ago."""
    made, number = await pending(both)
    await hold_back(both, made, on=True)
    mirror = pacing(both)
    await drain(mirror.tick)
    assert "on hold" not in await said(both, number)
    await rows.change(both.conn, "job", made.job_id, **change)
    await drain(mirror.tick)
    assert words in await said(both, number)


async def test_an_edit_that_nobody_recorded_counts_too(both: Both) -> None:
    """A mirror killed right after its edit: the next one edits no sooner for that."""
    made, number = await pending(both)
    await passes(both, 31)
    await hold_back(both, made, on=True)
    plan = FaultPlan("PATCH", "/comments/", "block", when="after")
    assert await both.killed_at(pacing(both).tick, plan)
    assert "on hold" in await said(both, number)
    await hold_back(both, made, on=False)
    await both.later()
    before = both.loopback.last_request
    await drain(pacing(both).tick)
    assert edits(both, before) == 0
    await passes(both, 31)
    await drain(pacing(both).tick)
    assert edits(both, before) == 1


async def test_after_an_outage_the_last_state_is_told_once(both: Both) -> None:
    """However long it was and whatever changed meanwhile: one edit when the forge is back."""
    made, number = await pending(both)
    fault = await both.loopback.fault(FaultPlan("*", "/issues", "answer", status=502, times=0))
    mirror = pacing(both)
    for on in (True, False, True):
        await hold_back(both, made, on=on)
        assert await mirror.tick()
    await both.conn.execute("UPDATE mirror SET failures = 1000")
    await passes(both, 86_400)
    await fault.drop()
    before = both.loopback.last_request
    await both.later()
    await drain(mirror.tick)
    assert edits(both, before) == 1
    assert "on hold" in await said(both, number)
    row = await both.mirror_row(made.issue_id)
    assert (row["told"], row["failures"], row["error"]) == (row["changed"], 0, None)


# ------------------------------------------------------------------------------------------------ the first comment


async def test_a_label_that_comes_seconds_later_is_waited_for(both: Both) -> None:
    """A mode first and the opt-in a moment later: no refusal is posted, only what came of both."""
    issue_id, number = await both.issue(labels=["tireless/plan"], triage_code="no_opt_in")
    mirror, before = pacing(both), both.loopback.last_request
    await drain(mirror.tick)
    await passes(both, 9)
    await drain(mirror.tick)
    assert await both.status_comments(number) == []
    await rows.change(both.conn, "issue", issue_id, triage_code=None)
    await rows.job(both.conn, both.repo.path, issue_id=issue_id)
    await drain(mirror.tick)
    assert "waits for its turn" in await said(both, number)
    assert edits(both, before) == 0


async def test_a_refusal_that_stays_is_told_after_ten_seconds(both: Both) -> None:
    """Counted from when triage first said so; meanwhile nothing is asked of the forge."""
    _, number = await both.issue(labels=["tireless/plan"], triage_code="no_opt_in")
    mirror = pacing(both)
    await drain(mirror.tick)
    quiet = both.loopback.last_request
    assert not await mirror.tick()
    assert both.loopback.last_request == quiet
    await passes(both, 11)
    await drain(mirror.tick)
    assert "no person has opted in" in await said(both, number)


# ------------------------------------------------------------------------------------------------ lanes


async def test_a_held_lane_is_told_and_untold(both: Both) -> None:
    """Who holds it and why, in the words of explain; released, it waits for its turn again."""
    made, number = await pending(both)
    mirror = both.mirror()
    await hold(both.conn, rows.LANE, "olga", reason="upgrade, see @team #5")
    await drain(mirror.tick)
    body = await said(both, number)
    told = await inspect.explain(both.conn, both.repo.path, number, scheme=LabelScheme())
    assert told.first is not None
    assert told.first.gate.code == "lane_held"
    for words in (f"The lane `{rows.LANE}` is held (operator) by `olga`", f"`tireless lanes release {rows.LANE}`"):
        assert words in body
        assert words in told.first.sentence + told.first.next_step
    assert "@team" not in body
    await release(both.conn, rows.LANE, "olga")
    await drain(both.mirror().tick)
    assert "held" not in await said(both, number)
    assert made.job_id


async def test_a_lane_without_runner_or_gone_is_told(both: Both) -> None:
    """Nobody to start it; then somebody; then the lane is gone from the configuration."""
    issue_id, number = await both.issue()
    await rows.job(both.conn, both.repo.path, issue_id=issue_id)
    await drain(both.mirror().tick)
    assert f"No runner of lane `{rows.LANE}` is alive" in await said(both, number)
    await served(both)
    await drain(both.mirror().tick)
    assert "No runner" not in await said(both, number)
    await both.conn.execute("UPDATE lane SET configured = false")
    await drain(both.mirror().tick)
    assert "not configured any more" in await said(both, number)


async def test_a_lane_with_many_pending_is_told_in_steps(both: Both) -> None:
    """A hold makes a bounded number of issues due at a time; held and released again, nobody is told anything."""
    await served(both)
    for _ in range(5):
        issue_id = await rows.issue(both.conn, both.repo.path)
        await rows.job(both.conn, both.repo.path, issue_id=issue_id)
    before = (await lane_marks(both.conn))[rows.LANE]
    await both.conn.execute("UPDATE mirror SET told = changed, told_gate = %(mark)s", {"mark": before})
    assert await mark_lane(both.conn, rows.LANE, before) == (0, False)
    await hold(both.conn, rows.LANE, "olga", reason="upgrade")
    held = (await lane_marks(both.conn))[rows.LANE]
    assert held != before
    assert await mark_lane(both.conn, rows.LANE, held, limit=3) == (3, True)
    assert await mark_lane(both.conn, rows.LANE, held, limit=3) == (2, True)
    assert await mark_lane(both.conn, rows.LANE, held, limit=3) == (0, True)
    await release(both.conn, rows.LANE, "olga")
    assert (await lane_marks(both.conn))[rows.LANE] == before
    assert await mark_lane(both.conn, rows.LANE, before) == (0, False)
