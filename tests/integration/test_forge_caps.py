"""What is created on the forge within an hour is bounded: children of a plan's issue, and comments of any."""

from __future__ import annotations

from tests.support import rows
from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.telling import *  # noqa: F403  fixtures
from tests.support.telling import Both, drain
from tireless.domain.comments import PUBLISH_REASONS
from tireless.services.mirror import COMMENTS_PER_HOUR


async def hour(both: Both) -> None:
    """An hour goes by."""
    await both.conn.execute("UPDATE child SET sent_at = sent_at - interval '1 hour'")
    await both.conn.execute("UPDATE job SET publish_not_before = publish_not_before - interval '1 hour'")
    await both.conn.execute("UPDATE mirror SET creates_since = creates_since - interval '1 hour'")
    await both.conn.execute(
        "UPDATE mirror SET not_before = not_before - interval '1 hour' WHERE not_before > '-infinity'"
    )


async def test_a_plans_children_come_at_a_bounded_pace(both: Both) -> None:
    """At the bound the job stays in publishing and says why; when the hour is over the rest is made, each once."""
    made = await both.plan("a", "b", "c<a", "d", "e<b")
    await drain(both.publisher(children_per_hour=2).tick)
    job = await both.job(made)
    assert (job["state"], job["publish_reason"]) == ("publishing", "many_children")
    assert "many_children" in PUBLISH_REASONS
    assert len(await both.bot_issues()) == 2
    wait_s = await rows.value(
        both.conn, "SELECT extract(epoch FROM publish_not_before - clock_timestamp())::float8 FROM job"
    )
    assert isinstance(wait_s, float)
    assert 3500 < wait_s <= 3600
    for wanted in (4, 5):
        await hour(both)
        await drain(both.publisher(children_per_hour=2).tick)
        assert len(await both.bot_issues()) == wanted
    assert (await both.job(made))["state"] == "delivered"
    assert {child["number"] is not None for child in (await both.children(made)).values()} == {True}


async def test_a_plan_run_in_a_loop_does_not_flood(both: Both) -> None:
    """Each plan has new keys, each ends before the next begins: together they make no more than the bound."""
    first = await both.plan("a1", "a2")
    await drain(both.publisher(children_per_hour=3).tick)
    assert (await both.job(first))["state"] == "delivered"
    for number in range(3):
        again = await rows.job(both.conn, both.repo.path, issue_id=first.issue_id, state="publishing", kind="plan")
        nothing: dict[str, object] = {"commit_sha": None, "branch": None, "pr_title": None, "pr_body": None}
        await rows.change(both.conn, "attempt", again.attempt_id, **nothing)
        for key in ("x", "y"):
            given: dict[str, object] = {"job_id": again.job_id, "attempt_id": again.attempt_id}
            await rows.child(both.conn, first.issue_id, f"{key}{number}", **given)
        await drain(both.publisher(children_per_hour=3).tick)
        assert len(await both.bot_issues()) == 3
        assert (await both.job(again))["state"] == "publishing"
        # A person gives it up by force, and asks for the next plan.
        finished: dict[str, object] = {"state": "failed", "reason": "unpublishable", "finished_at": "now"}
        await rows.change(both.conn, "job", again.job_id, **finished)
    other = await both.plan("b1")
    await drain(both.publisher(children_per_hour=3).tick)
    assert (await both.job(other))["state"] == "delivered"  # another issue has its own bound


async def test_a_comment_that_is_deleted_again_and_again_is_let_be(both: Both) -> None:
    """Made anew so often within an hour, though each time it says something else; after the hour once more."""
    issue_id, number = await both.issue()
    made = await rows.job(both.conn, both.repo.path, issue_id=issue_id)
    before = both.loopback.last_request

    def creates() -> int:
        sent = both.loopback.requests(after=before)
        return sum(each.method == "POST" and each.path.endswith(f"/issues/{number}/comments") for each in sent)

    for times in range(COMMENTS_PER_HOUR + 3):
        await rows.change(both.conn, "job", made.job_id, state="waiting", hold=times % 2 == 0)
        await drain(both.mirror().tick)
        for comment in await both.status_comments(number):
            await both.stage.bot.api("DELETE", f"/repos/{both.repo.path}/issues/comments/{comment.id}", None)
    assert creates() == COMMENTS_PER_HOUR
    assert "deleted; let be" in str((await both.mirror_row(issue_id))["error"])
    await hour(both)
    await drain(both.mirror().tick)
    assert creates() == COMMENTS_PER_HOUR + 1
    assert len(await both.status_comments(number)) == 1
