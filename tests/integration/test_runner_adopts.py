"""Work that is on the forge already is delivered, not paid for again: pushes seen late, records lost with the rows."""

from __future__ import annotations

import pytest

from tests.support import rows
from tests.support.agents import Step, commit, result, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.forges import FaultPlan
from tests.support.ingest import RULES
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench
from tireless.domain.comments import Voice
from tireless.forge.gitea import GiteaForge
from tireless.services.poller import Poller
from tireless.services.publisher import Publisher
from tireless.store import inspect
from tireless.store.db import Pool
from tireless.store.history import recall

PAINT: list[Step] = [
    write("a.txt", "red\n"),
    commit("Paint it"),
    result("done", summary="Painted.", pr={"title": "Paint it red", "body": "All of it."}),
]
PUSH = r"\.git/git-receive-pack"


async def publish(pool: Pool, forge: GiteaForge) -> None:
    """Deliver what there is, then look after the branches."""
    publisher = Publisher(pool, {forge.name: forge}, voice=Voice(), request_timeout_s=0.0, backoff_base_s=0.0)
    for _ in range(20):
        if not await publisher.tick():
            return
    raise AssertionError("the publisher does not come to rest")


async def delivered(bench: Bench, pool: Pool, forge: GiteaForge, made: rows.Made, *, claims: int) -> None:
    """The job is delivered by one open pull request from the one branch there is, and by one run of one agent."""
    await publish(pool, forge)
    assert await bench.state(made) == ("delivered", None)
    assert len(bench.script.recorded("begin")) == 1
    last = (await bench.attempts(made))[-1]
    assert last["claim_no"] == claims
    assert bench.branches() == {last["branch"]: last["commit_sha"]}
    (pull,) = await forge.pulls(bench.stage.repo)
    assert (pull.head, pull.number) == (last["branch"], (await bench.row(made))["pull_request"])


async def test_push_that_seemed_to_fail_is_adopted(bench: Bench, pool: Pool, forge: GiteaForge) -> None:
    """The forge took the push, and then nobody could ask: the next attempt delivers it, and says whose work it is."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    made = await bench.job(PAINT)
    faults = [
        await bench.loopback.fault(FaultPlan("POST", PUSH, "cut", when="after", times=0)),
        await bench.loopback.fault(FaultPlan("GET", "info/refs.*git-upload-pack", "answer", nth=3)),
    ]
    runner = await bench.work(limits=bench.limits(push_limit_s=0.0))
    assert await bench.outcomes(made) == ["retry"]
    for fault in faults:
        await fault.drop()
    pushes = len([each for each in bench.loopback.requests() if each.path.endswith("git-receive-pack")])
    assert await Poller(pool, {forge.name: forge}, rules=RULES).tick()  # the repository is what it was
    await bench.wake(made, runner)
    await bench.work(name="r2")
    assert await bench.outcomes(made) == ["retry", "done"]
    (old, new) = await bench.attempts(made)
    assert new["reason"] == f"no agent was run: claim 1 had pushed {old['branch']} already"
    assert len([each for each in bench.loopback.requests() if each.path.endswith("git-receive-pack")]) == pushes
    shown = await inspect.job_detail(bench.conn, made.job_id)
    (told,) = [each for each in shown.events if each.what == "adopt"]
    assert told.details == {"branch": old["branch"], "commit": old["commit_sha"], "of_claim": 1}
    await delivered(bench, pool, forge, made, claims=2)
    (pull,) = await forge.pulls(bench.stage.repo)
    assert pull.title == "Paint it red"
    assert await inspect.job_detail(bench.conn, made.job_id)  # and it can be shown
    assert (await bench.row(made))["summary"] == "Painted."


async def test_push_that_arrives_after_the_publisher_looked_is_adopted(
    bench: Bench, pool: Pool, forge: GiteaForge
) -> None:
    """The recorded commit was not there, so the job went back; when the push turned up it is what is delivered."""
    made = await bench.job(PAINT)
    await bench.work()
    (branch, sha) = next(iter(bench.branches().items()))
    await forge.delete_branch(bench.stage.repo, branch)
    await publish(pool, forge)
    assert await bench.state(made) == ("pending", None)
    bot = bench.stage.bot
    url = f"{bench.stage.url}/{bench.stage.path}.git".replace("://", f"://{bot.login}:{bot.token}@")
    bench.git("push", "--quiet", url, f"{sha}:refs/heads/{branch}")
    await bench.work(name="r2")
    await delivered(bench, pool, forge, made, claims=2)


async def test_work_that_is_not_there_is_done_again(bench: Bench, pool: Pool, forge: GiteaForge) -> None:
    """A branch that somebody deleted is not adopted: an agent works once more, and its branch is delivered."""
    made = await bench.job(PAINT)
    await bench.work()
    (branch,) = bench.branches()
    await forge.delete_branch(bench.stage.repo, branch)
    await publish(pool, forge)
    await bench.work(name="r2")
    assert len(bench.script.recorded("begin")) == 2
    await publish(pool, forge)
    assert await bench.state(made) == ("delivered", None)
    assert list(bench.branches()) == [(await bench.attempts(made))[1]["branch"]]


@pytest.mark.parametrize("restored", ["before the job", "before the attempt"])
async def test_work_whose_record_went_with_the_database_is_adopted(
    bench: Bench, pool: Pool, forge: GiteaForge, restored: str
) -> None:
    """A database restored from before the record: the request is made a job again, and its pushed work is delivered."""
    made = await bench.job(PAINT)
    await bench.work()
    if restored == "before the job":
        await bench.conn.execute("DELETE FROM job")
        made = await rows.job(bench.conn, bench.stage.path, issue_id=made.issue_id, request_id=made.request_id)
    else:
        gone = {"result_attempt": None, "attempts": 0, "claim_no": 0}
        await rows.change(bench.conn, "job", made.job_id, state="pending", **gone)
        await bench.conn.execute("DELETE FROM attempt")
    await bench.work(name="r2")
    (mine,) = await bench.attempts(made)
    assert mine["reason"] == f"no agent was run: an attempt whose record was lost had pushed {mine['branch']} already"
    await delivered(bench, pool, forge, made, claims=1)


async def test_pull_request_made_before_the_restore_is_found(bench: Bench, pool: Pool, forge: GiteaForge) -> None:
    """The lost record had come to a pull request that was closed since: it is found, not opened a second time."""
    made = await bench.job(PAINT)
    await bench.work()
    await publish(pool, forge)
    (pull,) = await forge.pulls(bench.stage.repo)
    await bench.stage.alice.close(bench.stage.path, pull.number)
    await bench.conn.execute("DELETE FROM job")
    made = await rows.job(bench.conn, bench.stage.path, issue_id=made.issue_id, request_id=made.request_id)
    await bench.work(name="r2")
    await publish(pool, forge)
    assert await bench.state(made) == ("delivered", None)
    assert (await bench.row(made))["pull_request"] == pull.number
    assert await forge.pulls(bench.stage.repo) == ()
    assert len(bench.script.recorded("begin")) == 1


async def test_another_request_is_worked_on(bench: Bench, pool: Pool, forge: GiteaForge) -> None:
    """Asked again, also by a rerun, an agent works again: what answered the earlier request is left alone."""
    first = await bench.job(PAINT)
    await bench.work()
    await publish(pool, forge)
    request = await rows.request(bench.conn, first.issue_id, source="operator", event_id=None)
    again = await rows.job(
        bench.conn, bench.stage.path, issue_id=first.issue_id, request_id=request, rerun_of=first.job_id
    )
    await bench.work(name="r2")
    assert len(bench.script.recorded("begin")) == 2
    await publish(pool, forge)
    assert await bench.state(again) == ("delivered", None)
    assert len(bench.branches()) == 2


def forged(bench: Bench, branch: str, request: str, *, parent: str = "main") -> str:
    """A commit with a trailer, pushed by a person as `branch`; its sha."""
    tree = bench.git("rev-parse", f"{parent}^{{tree}}")
    who = ("-c", "user.name=Mallory", "-c", "user.email=m@example.org")
    sha = bench.git(*who, "commit-tree", tree, "-p", parent, "-m", f"Mine\n\nTireless-Request: {request}")
    bench.git("update-ref", f"refs/heads/{branch}", sha)
    return sha


async def test_what_a_person_pushed_is_not_adopted(bench: Bench) -> None:
    """Another issue's number, another request, two trailers, a name that is not ours, work in the base: none counts."""
    made = await bench.job(PAINT)
    request = (await recall(bench.conn, made.job_id)).request
    n = made.number
    forged(bench, f"tireless/{n}0-paint.deadbeef", request)
    forged(bench, f"tireless/{n}-paint.deadbee1", request.replace("label=", "label=9"))
    forged(bench, f"tireless/{n}-paint.deadbee2", f"{request}\nTireless-Request: {request}")
    forged(bench, f"tireless/{n}-paint.deadbee", request)
    bench.git("update-ref", "refs/heads/main", forged(bench, f"tireless/{n}-paint.deadbee3", request))
    await bench.work()
    assert len(bench.script.recorded("begin")) == 1
    assert (await bench.attempts(made))[0]["outcome"] == "done"


async def test_person_with_push_rights_can_stand_in_for_a_lost_attempt(bench: Bench) -> None:
    """What docs/security.md says: the right trailer under a name of ours that no attempt has is taken for our own."""
    made = await bench.job(PAINT)
    branch = f"tireless/{made.number}-paint.deadbeef"
    sha = forged(bench, branch, (await recall(bench.conn, made.job_id)).request)
    await bench.work()
    assert bench.script.recorded("begin") == []
    (mine,) = await bench.attempts(made)
    assert (mine["branch"], mine["commit_sha"]) == (branch, sha)


async def test_plan_looks_for_no_branch(bench: Bench) -> None:
    """A plan pushes nothing, so whatever lies there is not its."""
    plan = [result("done", children=[{"key": "a", "title": "A"}])]
    made = await bench.job(plan, kind="plan")
    forged(bench, f"tireless/{made.number}-paint.deadbeef", (await recall(bench.conn, made.job_id)).request)
    await bench.work()
    assert len(bench.script.recorded("begin")) == 1
    assert await bench.state(made) == ("publishing", None)
