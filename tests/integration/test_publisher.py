"""The publisher against a real database and the loopback forge: what a delivery comes to, what stands in its way."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timedelta

import pytest

from tests.support import rows
from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import FaultPlan
from tests.support.telling import *  # noqa: F403  fixtures
from tests.support.telling import Both, drain
from tireless.domain.delivery import read_child_line
from tireless.domain.issue import IssueRef, IssueState
from tireless.domain.labels import LabelScheme
from tireless.errors import Refused
from tireless.store.db import clock
from tireless.store.explaining import explain
from tireless.store.steer import Cancelling, cancel

# ------------------------------------------------------------------------------------------------ pull requests


async def test_a_settled_commit_becomes_one_pull_request(both: Both) -> None:
    """The pull request comes from the settled branch into the default one and ends in our closing line."""
    made = await both.publishing()
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    job = await both.job(made)
    assert (job["state"], job["pull_request"]) == ("delivered", pull.number)
    assert (pull.base, pull.title, pull.draft) == ("main", "A title", False)
    assert pull.body.rstrip().splitlines()[-1] == f"Closes #{made.number}"
    assert (await rows.events(both.conn, made.job_id))[-1] == ("publish", "publishing", "delivered", None)


async def test_merging_it_closes_its_issue_and_no_other(both: Both) -> None:
    """Our closing line closes the job's issue; closing words the agent wrote close nothing."""
    _, other = await both.issue("Another")
    made = await both.publishing(
        attempt={"pr_body": f"Closes #{other}\n```\nfixes #{other}", "pr_title": f"Fix #{other}"}
    )
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    await both.stage.alice.merge(both.repo.path, pull.number)
    assert (await both.forge.issue(both.repo, made.number)).state is IssueState.CLOSED
    assert (await both.forge.issue(both.repo, other)).state is IssueState.OPEN


async def test_a_draft_stays_a_draft(both: Both) -> None:
    """What the agent called a draft is a draft on the forge."""
    await both.publishing(attempt={"pr_draft": True})
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    assert pull.draft


async def test_a_pull_request_somebody_else_made_from_our_branch_is_no_delivery(both: Both) -> None:
    """Another's words under our branch are not adopted: his is closed with a sentence, and the bot's own is made."""
    made = await both.publishing()
    attempt = await rows.row(both.conn, "attempt", made.attempt_id)
    body = {"title": "Mine", "body": "", "head": attempt["branch"], "base": "main"}
    theirs = (await both.stage.alice.api("POST", f"/repos/{both.repo.path}/pulls", body)).mapping()["number"]
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    assert pull.author.login == both.stage.bot.login
    assert (await both.job(made))["pull_request"] == pull.number != theirs
    assert len(await both.forge.comments(both.repo, int(str(theirs)))) == 1


async def test_of_twin_pull_requests_the_lowest_stays(both: Both) -> None:
    """Two creates at once are both answered 201: the lower number is recorded, the other closed with a sentence."""
    made = await both.publishing()
    attempt = await rows.row(both.conn, "attempt", made.attempt_id)
    twin = {"title": "A title", "body": f"Closes #{made.number}", "head": attempt["branch"], "base": "main"}
    fault = await both.loopback.fault(FaultPlan("POST", "/pulls$", "block", when="after"))
    task = asyncio.ensure_future(both.publisher().tick())
    await fault.reached()
    (first,) = await both.open_pulls()  # closed and opened again around the other: the forge lets both stand
    await both.stage.alice.close(both.repo.path, first.number)
    await both.stage.bot.api("POST", f"/repos/{both.repo.path}/pulls", twin)
    await both.stage.alice.edit_issue(both.repo.path, first.number, state="open")
    await fault.release()
    await task
    (pull,) = await both.open_pulls()
    assert (await both.job(made))["pull_request"] == pull.number == first.number
    assert len(await both.forge.comments(both.repo, pull.number + 1)) == 1


async def test_a_rerun_closes_its_predecessors_pull_request_with_a_link(both: Both) -> None:
    """The newer job's pull request stays open; the older one is closed and says which replaced it, once."""
    first = await both.publishing()
    await drain(both.publisher().tick)
    second = await both.publishing(issue_id=first.issue_id)
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    older = (await both.job(first))["pull_request"]
    assert isinstance(older, int)
    assert pull.number == (await both.job(second))["pull_request"] != older
    (said,) = [each.body for each in await both.forge.comments(both.repo, older)]
    assert f"pulls/./{pull.number}" in said


async def test_what_is_somebody_elses_under_an_earlier_number_is_left_alone(both: Both) -> None:
    """A forge that was restored gives numbers away again: a stranger's pull request is no predecessor."""
    first = await both.publishing()
    await drain(both.publisher().tick)
    branch = f"feature-{first.number}"
    await both.stage.alice.commit(both.repo.path, "mine.txt", "x", new_branch=branch)
    theirs = await both.stage.alice.create_pull(both.repo.path, "Mine", head=branch)
    await both.conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    await rows.change(both.conn, "job", first.job_id, pull_request=theirs)
    await both.conn.execute("ALTER TABLE job ENABLE TRIGGER USER")
    await both.publishing(issue_id=first.issue_id)
    await drain(both.publisher().tick)
    assert theirs in {pull.number for pull in await both.open_pulls()}
    assert not await both.forge.comments(both.repo, theirs)


async def test_of_a_delivery_that_the_database_has_forgotten_nothing_stays_open(both: Both) -> None:
    """Restored to before an attempt's record: the next one delivers anew, and closes what that one had opened."""
    first = await both.publishing()
    await drain(both.publisher().tick)
    (forgotten,) = await both.open_pulls()
    stranger = await both.publishing()
    await drain(both.publisher().tick)
    await both.conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    lost = {"recorded_at": None, "result": None, "commit_sha": None, "branch": None, "pushed_at": None}
    await rows.change(both.conn, "job", first.job_id, state="failed", reason="exhausted", pull_request=None)
    await rows.change(both.conn, "job", first.job_id, result_attempt=None)
    await both.conn.execute("ALTER TABLE job ENABLE TRIGGER USER")
    await rows.change(both.conn, "attempt", first.attempt_id, outcome="lease_lost", **lost)
    second = await both.publishing(issue_id=first.issue_id)
    await drain(both.publisher().tick)
    numbers = {pull.number for pull in await both.open_pulls()}
    assert numbers == {(await both.job(made))["pull_request"] for made in (second, stranger)}
    (said,) = [each.body for each in await both.forge.comments(both.repo, forgotten.number)]
    assert f"pulls/./{(await both.job(second))['pull_request']}" in said


async def test_pull_requests_switched_off_are_told_and_waited_for(both: Both) -> None:
    """`explain` and the comment say so; switched on, the delivery goes on. Nothing was created meanwhile."""
    made = await both.publishing()
    await both.stage.alice.edit_repository(both.repo.path, has_pull_requests=False)
    await both.publisher().tick()
    assert (await both.job(made))["publish_reason"] == "pulls_off"
    told = await explain(both.conn, both.repo.path, made.number, scheme=LabelScheme())
    [said] = [gate.sentence for gate in told.gates if gate.gate.code == "publishing"]
    assert "pull requests are switched off in the repository. Switch them on" in said
    await both.stage.alice.edit_repository(both.repo.path, has_pull_requests=True)
    await rows.change(both.conn, "job", made.job_id, publish_not_before=None)
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    assert (await both.job(made))["pull_request"] == pull.number


@pytest.mark.parametrize("state", ["closed", "merged"])
async def test_a_predecessor_that_is_closed_is_left_alone(both: Both, state: str) -> None:
    """A merged or closed pull request of an earlier job gets no comment."""
    first = await both.publishing()
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    act = both.stage.alice.merge if state == "merged" else both.stage.alice.close
    await act(both.repo.path, pull.number)
    await both.publishing(issue_id=first.issue_id)
    await drain(both.publisher().tick)
    assert not await both.forge.comments(both.repo, pull.number)


@pytest.mark.parametrize("where", ["nowhere", "elsewhere"])
async def test_work_that_is_not_on_its_branch_goes_back_to_the_runners(both: Both, where: str) -> None:
    """A missing branch, or one on another commit: pending again, the attempt given back, nothing created."""
    made = await both.publishing(attempt={"commit_sha": "a" * 40} if where == "elsewhere" else None)
    if where == "nowhere":
        branch = (await rows.row(both.conn, "attempt", made.attempt_id))["branch"]
        await both.forge.delete_branch(both.repo, str(branch))
    await drain(both.publisher().tick)
    job = await both.job(made)
    assert (job["state"], job["attempts"], job["result_attempt"]) == ("pending", 0, None)
    assert (await rows.events(both.conn, made.job_id))[-1] == ("return", "publishing", "pending", "work_not_pushed")
    assert not await both.open_pulls()


async def test_a_branch_deleted_after_the_pull_request_was_merged_is_no_missing_work(both: Both) -> None:
    """An unanswered create whose pull request was merged and cleaned up meanwhile is found, not done again."""
    made = await both.publishing()
    publisher = both.publisher()
    assert await both.killed_at(publisher.tick, FaultPlan("POST", "/pulls$", "block", when="after"))
    (pull,) = await both.open_pulls()
    await both.stage.alice.merge(both.repo.path, pull.number)
    await both.forge.delete_branch(both.repo, pull.head)
    await both.later()
    await drain(both.publisher().tick)
    job = await both.job(made)
    assert (job["state"], job["pull_request"]) == ("delivered", pull.number)


# ------------------------------------------------------------------------------------------------ children


async def test_a_plan_becomes_its_child_issues(both: Both) -> None:
    """Each child has the kind label, its parent, its hidden line, its dependency, no opt-in; the plan is delivered."""
    made = await both.plan("paint<schema", "schema")
    await drain(both.publisher().tick)
    children = await both.children(made)
    issues = {line.key: each for each in await both.bot_issues() if (line := read_child_line(each.body))}
    assert {key: child["number"] for key, child in children.items()} == {k: i.number for k, i in issues.items()}
    paint, schema = issues["paint"], issues["schema"]
    assert [label.name for label in schema.labels] == ["tireless/implement"]
    assert f"issues/./{made.number}" in paint.body
    assert f"`{both.repo}#{schema.number}`" in paint.body
    assert await both.forge.dependencies(IssueRef(both.repo, paint.number)) == (
        (IssueRef(both.repo, schema.number), False),
    )
    assert (await both.job(made))["state"] == "delivered"
    query = "SELECT i.number FROM child c JOIN issue i ON i.id = c.issue_id ORDER BY 1"
    assert [each["number"] for each in await rows.rows(both.conn, query)] == [schema.number, paint.number]


async def test_a_childs_lane_becomes_its_label(both: Both) -> None:
    """A configured lane is put on in the create call as `agent:LANE`; an unknown one is only named in the body."""
    await rows.lane(both.conn, "fast")
    made = await both.plan("a", lane="fast")
    other = await both.plan("b", lane="nowhere")
    await drain(both.publisher().tick)
    a, b = (await both.children(made))["a"]["number"], (await both.children(other))["b"]["number"]
    assert isinstance(a, int)
    assert isinstance(b, int)
    assert await both.label_names(a) == ["tireless/agent:fast", "tireless/implement"]
    assert await both.label_names(b) == ["tireless/implement"]
    assert "the lane `nowhere`" in (await both.forge.issue(both.repo, b)).body
    creates = [each for each in both.loopback.requests() if each.method == "POST" and each.path.endswith("/issues")]
    assert all('"labels": [' in each.body and '"labels": []' not in each.body for each in creates[-2:])


async def test_children_run_only_where_that_is_configured(both: Both) -> None:
    """With children_run a child gets its request, its approved text and the opt-in's picture; without, none of them."""
    made = await both.plan("a")
    await drain(both.publisher(children_run=True).tick)
    child = (await both.children(made))["a"]
    issue = await rows.row(both.conn, "issue", child["issue_id"])
    assert issue["approved_hash"] == issue["content_hash"]
    query = "SELECT source, content_hash FROM request WHERE issue_id = %(id)s"
    assert await rows.rows(both.conn, query, id=child["issue_id"]) == [
        {"source": "child", "content_hash": issue["content_hash"]}
    ]
    assert await both.label_names(int(str(child["number"]))) == ["tireless/go", "tireless/implement"]
    other = await both.plan("b")
    await drain(both.publisher().tick)
    child = (await both.children(other))["b"]
    assert await rows.rows(both.conn, query, id=child["issue_id"]) == []
    assert await both.label_names(int(str(child["number"]))) == ["tireless/implement"]


async def test_children_run_one_level_deep(both: Both) -> None:
    """The children of a plan that is itself a child wait for a person."""
    top = await both.plan("sub", kind="plan")
    publisher = both.publisher(children_run=True)
    await drain(publisher.tick)
    sub = (await both.children(top))["sub"]
    made = await rows.job(
        both.conn, both.repo.path, issue_id=int(str(sub["issue_id"])), state="publishing", kind="plan"
    )
    await rows.change(both.conn, "attempt", made.attempt_id, commit_sha=None, branch=None)
    await rows.child(both.conn, made.issue_id, "leaf", job_id=made.job_id, attempt_id=made.attempt_id)
    await drain(publisher.tick)
    leaf = (await both.children(made))["leaf"]
    query = "SELECT count(*) FROM request WHERE issue_id = %(id)s AND source = 'child'"
    assert await rows.value(both.conn, query, id=leaf["issue_id"]) == 0
    assert "tireless/go" not in await both.label_names(int(str(leaf["number"])))


async def test_a_discoverys_proposals_are_never_opted_in(both: Both) -> None:
    """Proposals become issues with their kind and without opt-in or request, also where children run."""
    made = await both.plan("idea", kind="discover")
    await drain(both.publisher(children_run=True).tick)
    child = (await both.children(made))["idea"]
    assert await both.label_names(int(str(child["number"]))) == ["tireless/implement"]
    assert await rows.value(both.conn, "SELECT count(*) FROM request WHERE source = 'child'") == 0


async def test_a_report_needs_nothing_on_the_forge_but_its_comment(both: Both) -> None:
    """A discovery that only reports is delivered without a single create."""
    made = await both.publishing(commit=False, kind="discover", summary="Found nothing.")
    before = both.loopback.last_request
    await drain(both.publisher().tick)
    assert (await both.job(made))["state"] == "delivered"
    assert not [each for each in both.loopback.requests(after=before) if each.method == "POST"]


async def test_of_nine_children_the_missing_seven_are_created(both: Both) -> None:
    """Two of nine exist with their numbers recorded: seven are created, the two are left as they are."""
    keys = [f"k{n}" for n in range(9)]
    made = await both.plan(*keys)
    publisher = both.publisher()
    plan = FaultPlan("POST", "/issues$", "block", nth=3)
    assert await both.killed_at(publisher.tick, plan)
    assert len(await both.bot_issues()) == 2
    await both.later()
    await drain(both.publisher().tick)
    lines = [read_child_line(each.body) for each in await both.bot_issues()]
    assert [line.key for line in lines if line] == keys
    assert (await both.job(made))["state"] == "delivered"


async def test_a_later_plan_adopts_an_open_issue_of_the_same_key(both: Both) -> None:
    """Other words under the same key: the open issue is taken over, also where the database has forgotten it."""
    first = await both.plan("schema")
    await drain(both.publisher().tick)
    (issue,) = await both.bot_issues()
    await both.conn.execute("UPDATE child SET ended_at = clock_timestamp(), ended_reason = 'delivered'")
    again = await both.publishing(issue_id=first.issue_id, commit=False, kind="plan")
    await rows.child(
        both.conn, first.issue_id, "schema", job_id=again.job_id, attempt_id=again.attempt_id, title="Other words"
    )
    await drain(both.publisher().tick)
    assert [each.number for each in await both.bot_issues()] == [issue.number]
    assert (await both.children(first))["schema"]["number"] == issue.number
    assert (await both.job(again))["state"] == "delivered"


async def test_a_closed_issue_of_the_same_key_is_not_adopted(both: Both) -> None:
    """What was closed is done with: a later plan's child gets an issue of its own."""
    first = await both.plan("schema")
    await drain(both.publisher().tick)
    (issue,) = await both.bot_issues()
    await both.stage.alice.close(both.repo.path, issue.number)
    await both.conn.execute("UPDATE child SET ended_at = clock_timestamp(), ended_reason = 'closed'")
    again = await both.publishing(issue_id=first.issue_id, commit=False, kind="plan")
    await rows.child(both.conn, first.issue_id, "schema", job_id=again.job_id, attempt_id=again.attempt_id)
    await drain(both.publisher().tick)
    assert len(await both.bot_issues()) == 2


async def test_a_hidden_line_counts_only_where_the_bot_wrote_it(both: Both) -> None:
    """A stranger's issue that carries the very line of a child is not taken for it."""
    made = await both.plan("schema")
    uid = (await both.children(made))["schema"]["uid"]
    line = f"<!-- tireless:child installation=tireless/ plan={made.number} key=schema uid={uid} -->"
    forged = await both.stage.mallory.create_issue(both.repo.path, "Forged", line)
    await both.conn.execute("UPDATE child SET sent_at = clock_timestamp() - interval '1 hour'")
    await drain(both.publisher().tick)
    number = (await both.children(made))["schema"]["number"]
    assert number != forged
    assert [each.number for each in await both.bot_issues()] == [number]


async def test_of_twins_the_lowest_number_stays_open(both: Both) -> None:
    """Two issues of one child: the lower one is the child, the other is closed and says why, once."""
    made = await both.plan("schema")
    assert await both.killed_at(both.publisher().tick, FaultPlan("POST", "/issues$", "block", when="after"))
    (first,) = await both.bot_issues()
    twin = await both.stage.bot.create_issue(both.repo.path, first.title, first.body)
    await both.later()
    await drain(both.publisher().tick)
    assert (await both.children(made))["schema"]["number"] == first.number
    assert (await both.forge.issue(both.repo, first.number)).state is IssueState.OPEN
    assert (await both.forge.issue(both.repo, twin)).state is IssueState.CLOSED
    (said,) = await both.forge.comments(both.repo, twin)
    assert f"issues/./{first.number}" in said.body


async def test_disabled_dependencies_are_said_in_the_body(both: Both) -> None:
    """Where the forge has no dependencies the plan is delivered all the same, and the body names what it waits for."""
    for method in ("GET", "POST"):
        await both.loopback.fault(FaultPlan(method, "/dependencies", "answer", status=404, times=0))
    made = await both.plan("schema", "paint<schema")
    await drain(both.publisher().tick)
    assert (await both.job(made))["state"] == "delivered"
    schema, paint = await both.bot_issues()
    assert f"Waits until these are closed: `{both.repo}#{schema.number}`" in paint.body


async def test_labels_the_create_call_dropped_are_put_on(both: Both) -> None:
    """A label definition that was deleted and made again under another id still ends up on the child."""
    publisher = both.publisher()
    await both.plan("a")
    await drain(publisher.tick)
    await both.stage.alice.delete_label_definition(both.repo.path, both.labels["tireless/implement"])
    made = await both.plan("b")
    await drain(publisher.tick)
    number = (await both.children(made))["b"]["number"]
    assert await both.label_names(int(str(number))) == ["tireless/implement"]


# ------------------------------------------------------------------------------------------------ the end of a job


async def test_delivering_a_child_counts_once_and_leaves_looks(both: Both) -> None:
    """A delivered child ends its row, moves its plan's counter by one, and both are told to be looked at again."""
    plan = await both.plan("a")
    await drain(both.publisher().tick)
    child = (await both.children(plan))["a"]
    made = await both.publishing(issue_id=int(str(child["issue_id"])))
    await both.conn.execute("DELETE FROM look")
    before = await both.mirror_row(plan.issue_id)
    await drain(both.publisher().tick)
    assert (await rows.row(both.conn, "issue", plan.issue_id))["children_done"] == 1
    assert (await rows.row(both.conn, "child", child["id"]))["ended_reason"] == "delivered"
    looks = await rows.rows(both.conn, "SELECT number, why FROM look ORDER BY number")
    assert looks == [{"number": made.number, "why": "job ended"}]
    assert (await both.mirror_row(plan.issue_id))["changed"] != before["changed"]


async def test_a_delivered_plan_leaves_looks_at_its_children(both: Both) -> None:
    """Children wait for their plan: when it is delivered each of them is looked at again."""
    plan = await both.plan("a", "b")
    await drain(both.publisher().tick)
    numbers = {child["number"] for child in (await both.children(plan)).values()}
    looks = await rows.rows(both.conn, "SELECT number FROM look WHERE why = 'plan ended'")
    assert {each["number"] for each in looks} == numbers


CANCEL = """
UPDATE job SET state = 'cancelled', reason = 'operator', finished_at = clock_timestamp(),
               publish_by = NULL, publish_token = NULL, publish_until = NULL
 WHERE id = %s AND state = 'publishing' AND publish_began_at IS NULL
"""


async def test_a_cancel_before_the_first_create_stops_it(both: Both) -> None:
    """A job cancelled while its publisher was about to create: nothing is created, nothing more is written."""
    made = await both.publishing()
    plan = FaultPlan("GET", re.escape("/branches/"), "block")
    fault = await both.loopback.fault(plan)
    task = asyncio.ensure_future(both.publisher().tick())
    await fault.reached()
    assert (await both.conn.execute(CANCEL, [made.job_id])).rowcount == 1
    await fault.release()
    await task
    assert not await both.open_pulls()
    assert (await both.job(made))["state"] == "cancelled"


async def test_stale_branches_are_deleted_when_no_job_is_left(both: Both) -> None:
    """Branches of attempts that were not settled go, the delivered one and one somebody works on stay."""
    made = await both.publishing()
    for claim_no, name in enumerate(("stale", "worked-on"), start=2):
        sha = await both.stage.bot.commit(both.repo.path, f"{name}.txt", "x", new_branch=f"tireless/x-{name}.1")
        if name == "worked-on":
            await both.stage.alice.commit(both.repo.path, "more.txt", "x", branch=f"tireless/x-{name}.1")
        await rows.change(both.conn, "job", made.job_id, claim_no=claim_no)
        await rows.attempt(
            both.conn, made.job_id, recorded=True, commit_sha=sha, branch=f"tireless/x-{name}.1",
            ended_at=await rows.value(both.conn, "SELECT now()"), outcome="retry", burned=True,
        )  # fmt: skip
    await drain(both.publisher().tick)
    branch = (await rows.row(both.conn, "attempt", made.attempt_id))["branch"]
    assert await both.forge.branch_head(both.repo, str(branch))
    assert await both.forge.branch_head(both.repo, "tireless/x-stale.1") is None
    assert await both.forge.branch_head(both.repo, "tireless/x-worked-on.1")
    before = both.loopback.last_request
    await drain(both.publisher().tick)
    assert not both.loopback.requests(after=before)


# ------------------------------------------------------------------------------------------------ what is in the way


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "token_refused"), (403, "denied"), (404, "not_found"), (409, "conflict"), (423, "archived"), (413, "quota")],
)
async def test_what_a_person_must_mend_stays_in_publishing(both: Both, status: int, reason: str) -> None:
    """A refusal that is not about our text is kept with its reason and tried again after a quarter of an hour.

    Where it says that the repository may not be what it was, that is asked at once.
    """
    made = await both.publishing()
    await rows.not_due(both.conn)
    before = await clock(both.conn)
    fault = await both.loopback.fault(FaultPlan("POST", "/pulls$", "answer", status=status, times=0))
    await both.publisher().tick()
    job = await both.job(made)
    assert (job["state"], job["publish_reason"], job["publish_token"]) == ("publishing", reason, None)
    assert isinstance(job["publish_not_before"], datetime)
    assert before <= job["publish_not_before"] - timedelta(minutes=15) <= await clock(both.conn)
    assert await rows.doubted(both.conn) == (["widgets"] if status in (403, 404, 423) else [])
    assert (await rows.row(both.conn, "attempt", made.attempt_id))["pr_sent_at"] is None
    await fault.drop()
    await both.later()
    await drain(both.publisher().tick)
    assert (await both.job(made))["state"] == "delivered"


@pytest.mark.parametrize("what", ["pull", "child"])
async def test_what_was_refused_before_anything_was_made_can_be_cancelled(both: Both, what: str) -> None:
    """Nothing of it is on the forge: an operator, or closing the issue, ends what would be tried again for ever."""
    made = await both.publishing() if what == "pull" else await both.plan("a", "b")
    await both.loopback.fault(FaultPlan("POST", "/(pulls|issues)$", "answer", status=403, times=0))
    await both.publisher().tick()
    assert (await both.job(made))["publish_reason"] == "denied"
    assert await cancel(both.conn, made.job_id, "ann") is Cancelling.CANCELLED


async def test_what_was_made_in_part_is_not_cancelled_by_a_refusal(both: Both) -> None:
    """A plan one of whose children exists goes on: its cancel comes too late."""
    made = await both.plan("a", "b")
    await both.loopback.fault(FaultPlan("POST", "/issues$", "answer", status=403, times=0, nth=2))
    await both.publisher().tick()
    assert (await both.job(made))["publish_reason"] == "denied"
    with pytest.raises(Refused, match="on the forge already"):
        await cancel(both.conn, made.job_id, "ann")


async def test_an_outage_backs_off_and_is_got_over(both: Both) -> None:
    """A forge that answers 502 changes nothing but the time of the next try."""
    made = await both.publishing()
    await both.loopback.fault(FaultPlan("*", "/repos/", "answer", status=502, times=6))
    publisher = both.publisher()
    await publisher.tick()
    job = await both.job(made)
    assert (job["state"], job["publish_reason"], job["publish_failures"]) == ("publishing", "forge_unavailable", 1)
    await drain(publisher.tick)
    assert (await both.job(made))["state"] == "delivered"


@pytest.mark.parametrize("what", ["pull", "child"])
async def test_text_the_forge_refuses_is_sent_once_more_as_plain_text(both: Both, what: str) -> None:
    """After a 422 the agent's words go out as plain text, our own lines unchanged, and the job is delivered."""
    hostile = "Ünlikely **markup** ‮"
    if what == "pull":
        made = await both.publishing(attempt={"pr_body": hostile})
    else:
        made = await both.plan("a", body=hostile)
    await both.loopback.fault(FaultPlan("POST", "/(pulls|issues)$", "answer", status=422))
    await drain(both.publisher().tick)
    assert (await both.job(made))["state"] == "delivered"
    body = (await both.open_pulls())[0].body if what == "pull" else (await both.bot_issues())[0].body
    assert "```text\n?nlikely **markup**" in body
    last = body.rstrip().splitlines()[-1]
    assert last == f"Closes #{made.number}" or read_child_line(body) is not None


async def test_text_refused_twice_is_unpublishable(both: Both) -> None:
    """Refused as plain text too: failed: unpublishable, unmade children dropped, those made told to be looked at."""
    made = await both.plan("a", "b")
    await both.loopback.fault(FaultPlan("POST", "/issues$", "answer", status=422, times=0, nth=2))
    await drain(both.publisher().tick)
    job = await both.job(made)
    assert (job["state"], job["reason"]) == ("failed", "unpublishable")
    assert list(await both.children(made)) == ["a"]
    looks = await rows.rows(both.conn, "SELECT why FROM look ORDER BY why")
    assert {each["why"] for each in looks} >= {"job ended", "plan ended"}


async def test_a_token_that_may_not_say_whose_it_is_waits(both: Both) -> None:
    """Without knowing its own user the publisher adopts and creates no children: it says what is missing."""
    made = await both.plan("a")
    await both.loopback.fault(FaultPlan("GET", "/api/v1/user$", "answer", status=403, times=0))
    await both.publisher().tick()
    assert (await both.job(made))["publish_reason"] == "bot_unknown"
    assert not await both.bot_issues()


async def test_one_forges_outage_does_not_hold_up_another(both: Both) -> None:
    """A job of a forge this process does not know is left to others; those it knows go on."""
    made = await both.publishing()
    elsewhere = await rows.repository(both.conn, "far/away")
    await rows.change(both.conn, "repository", elsewhere, forge=await rows.forge(both.conn, "far"))
    other = await rows.job(both.conn, "far/away", state="publishing")
    await drain(both.publisher().tick)
    assert await rows.states(both.conn, [made, other]) == ["delivered", "publishing"]
