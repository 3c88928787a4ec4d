"""What the forge refuses to close, since a person made it depend on something open: delivered, and told."""

from __future__ import annotations

from tests.support import rows
from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import FaultPlan
from tests.support.telling import *  # noqa: F403  fixtures
from tests.support.telling import Both, drain
from tireless.domain.issue import IssueRef, IssueState
from tireless.domain.labels import LabelScheme
from tireless.store.explaining import explain


async def depend(both: Both, number: int) -> int:
    """A person makes an issue or pull request depend on an open issue; that one's number."""
    blocker = await both.stage.alice.create_issue(both.repo.path, "Decide first", "")
    on = {"owner": both.repo.owner, "repo": both.repo.name, "index": blocker}
    await both.stage.alice.api("POST", f"/repos/{both.repo.path}/issues/{number}/dependencies", on)
    return blocker


async def told(both: Both, made: rows.Made, number: int) -> None:
    """It is open, and named for a person by the status comment, `explain` and an event, once each."""
    issues = [each.number for each in await both.bot_issues() if each.state is IssueState.OPEN]
    assert number in [*issues, *[each.number for each in await both.open_pulls()]]
    await drain(both.mirror().tick)
    (comment,) = await both.status_comments(made.number)
    assert comment.body.count(f"/./{number})") == 1
    assert "Close it by hand" in comment.body
    found = await explain(both.conn, both.repo.path, made.number, scheme=LabelScheme())
    (warning,) = found.warnings
    assert f" {number} " in warning
    query = "SELECT count(*) FROM job_event WHERE job_id = %(id)s AND what = 'left_open'"
    assert await rows.value(both.conn, query, id=made.job_id) == 1


async def twins(both: Both) -> tuple[rows.Made, int]:
    """A plan whose child was made twice; the twin's number."""
    made = await both.plan("schema", "paint<schema")
    assert await both.killed_at(both.publisher().tick, FaultPlan("POST", "/issues$", "block", when="after"))
    (first,) = await both.bot_issues()
    twin = await both.stage.bot.create_issue(both.repo.path, first.title, first.body)
    await both.later()
    return made, twin


async def test_a_twin_that_may_not_be_closed_holds_up_no_family(both: Both) -> None:
    """The whole family is made, the plan delivered; the twin is left to a person, and not touched again."""
    made, twin = await twins(both)
    await depend(both, twin)
    await drain(both.publisher().tick)
    assert (await both.job(made))["state"] == "delivered"
    children = await both.children(made)
    assert all(child["number"] not in (None, twin) for child in children.values())
    assert len(children) == 2
    await told(both, made, twin)
    (said,) = await both.forge.comments(both.repo, twin)
    assert "closed" not in said.body


async def test_what_was_left_open_is_told_once_however_often_it_is_met(both: Both) -> None:
    """A publisher killed after it was refused meets it again: one event, one sentence, and the plan is delivered."""
    made, twin = await twins(both)
    blocker = await depend(both, twin)
    fault = FaultPlan("POST", "/issues$", "block")
    assert await both.killed_at(both.publisher().tick, fault)
    await both.conn.execute("UPDATE child SET number = NULL, issue_id = NULL WHERE key = 'schema'")
    await both.later()
    await drain(both.publisher().tick)
    assert (await both.job(made))["state"] == "delivered"
    await told(both, made, twin)
    assert len(await both.forge.comments(both.repo, twin)) == 1
    await both.stage.alice.close(both.repo.path, blocker)
    await both.forge.close(IssueRef(both.repo, twin))


async def test_a_predecessor_that_may_not_be_closed_holds_up_no_rerun(both: Both) -> None:
    """The newer pull request is delivered; the older one, which depends on something open, is left to a person."""
    first = await both.publishing()
    await drain(both.publisher().tick)
    (older,) = await both.open_pulls()
    await depend(both, older.number)
    second = await both.publishing(issue_id=first.issue_id)
    await drain(both.publisher().tick)
    job = await both.job(second)
    assert job["state"] == "delivered"
    assert job["pull_request"] != older.number
    await told(both, second, older.number)


async def test_a_twin_pull_request_that_may_not_be_closed_holds_up_no_delivery(both: Both) -> None:
    """Of two pull requests of one create the lower is delivered; the other is left to a person."""
    made = await both.publishing()
    branch = (await rows.row(both.conn, "attempt", made.attempt_id))["branch"]
    assert await both.killed_at(both.publisher().tick, FaultPlan("POST", "/pulls$", "block", when="after"))
    (first,) = await both.open_pulls()
    await both.stage.alice.close(both.repo.path, first.number)
    twin = {"title": "A title", "body": f"Closes #{made.number}", "head": branch, "base": "main"}
    number = int(str((await both.stage.bot.api("POST", f"/repos/{both.repo.path}/pulls", twin)).mapping()["number"]))
    await both.stage.alice.edit_issue(both.repo.path, first.number, state="open")
    await depend(both, number)
    await both.later()
    await drain(both.publisher().tick)
    job = await both.job(made)
    assert (job["state"], job["pull_request"]) == ("delivered", first.number)
    await told(both, made, number)


async def test_a_strangers_pull_request_that_may_not_be_closed_is_named_as_the_reason(both: Both) -> None:
    """It keeps ours from being made: the comment says so, and once it can be closed the job is delivered."""
    made = await both.publishing()
    branch = (await rows.row(both.conn, "attempt", made.attempt_id))["branch"]
    body = {"title": "Mine", "body": "", "head": branch, "base": "main"}
    number = int(str((await both.stage.alice.api("POST", f"/repos/{both.repo.path}/pulls", body)).mapping()["number"]))
    blocker = await depend(both, number)
    await both.publisher().tick()
    job = await both.job(made)
    assert (job["state"], job["publish_reason"]) == ("publishing", "pull_in_the_way")
    await drain(both.mirror().tick)
    (comment,) = await both.status_comments(made.number)
    assert "somebody else's pull request from its branch" in comment.body
    first = (await explain(both.conn, both.repo.path, made.number, scheme=LabelScheme())).first
    assert first is not None
    assert "It does not go on: somebody else's pull request from its branch" in first.sentence
    await both.stage.alice.close(both.repo.path, blocker)
    await both.later()
    await drain(both.publisher().tick)
    job = await both.job(made)
    assert job["state"] == "delivered"
    (said,) = await both.forge.comments(both.repo, number)
    assert "tireless's own" in said.body
