"""Whole jobs by a real runner: rows, git over HTTP, agents as processes; what each way of ending comes to."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support import rows
from tests.support.agents import Step, commit, dies, dump, exits, result, say, wait, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench
from tireless.services.work import Worker

PAINT = [say("at work"), write("a.txt", "red\n"), commit("Paint it"), result("done", summary="Painted.")]
NEVER_BY_ITSELF: dict[str, Any] = {"backoff_base_s": 3600.0, "backoff_cap_s": 3600.0}


async def test_implement_becomes_a_pushed_branch_to_publish(bench: Bench) -> None:
    """A commit arrives on the attempt's own branch, its head names the request, and it is what publishing delivers."""
    pr = {"title": "Paint the widget", "body": "Red now.", "draft": True}
    made = await bench.job([*PAINT[:-1], result("done", summary="Painted.", pr=pr, usage={"usd": 0.5}, session="s1")])
    await bench.work()
    assert await bench.state(made) == ("publishing", None)
    (attempt,) = await bench.attempts(made)
    assert (await bench.row(made))["result_attempt"] == attempt["id"]
    assert bench.branches() == {attempt["branch"]: attempt["commit_sha"]}
    assert str(attempt["branch"]).startswith(f"tireless/{made.number}-paint-it.")
    trailer = bench.git("log", "-1", "--format=%(trailers:key=Tireless-Request,valueonly)", str(attempt["commit_sha"]))
    request = await rows.row(bench.conn, "request", made.request_id)
    assert trailer.startswith(f"repository=1 issue={made.number} label={request['event_id']} at=")
    assert (attempt["outcome"], attempt["burned"], attempt["exit_code"]) == ("done", True, 0)
    assert (attempt["pr_title"], attempt["pr_body"], attempt["pr_draft"]) == ("Paint the widget", "Red now.", True)
    assert (attempt["summary"], attempt["output_head"]) == ("Painted.", "at work\n")
    assert attempt["pushed_at"] is not None
    assert attempt["usage"] == {
        "model": None,
        "input_tokens": None,
        "output_tokens": None,
        "usd": 0.5,
        "session": "s1",
    }
    assert [each[0] for each in await rows.events(bench.conn, made.job_id)] == ["claim", "settle"]
    assert list((bench.directory / "root" / "runs").iterdir()) == []


async def test_plain_script_needs_no_result(bench: Bench) -> None:
    """Exit 0 and a changed tree are a delivery: what was left uncommitted is committed, and pushed."""
    made = await bench.job([write("b.txt", "blue\n")])
    await bench.work()
    assert await bench.state(made) == ("publishing", None)
    assert bench.git("show", f"{next(iter(bench.branches()))}:b.txt") == "blue"


async def test_plan_becomes_child_rows(bench: Bench) -> None:
    """A plan's children are recorded as rows with their order and dependencies; nothing is pushed."""
    children = [
        {"key": "schema", "title": "Schema", "body": "First.", "kind": "implement", "lane": None, "depends_on": []},
        {"key": "import", "title": "Import", "body": "Then.", "kind": "plan", "lane": "x", "depends_on": ["schema"]},
    ]
    made = await bench.job([result("done", summary="Split.", children=children)], kind="plan")
    await bench.work()
    assert await bench.state(made) == ("publishing", None)
    query = "SELECT key, title, kind, lane, depends_on, proposal FROM child WHERE job_id = %(id)s ORDER BY position"
    assert [tuple(each.values()) for each in await rows.rows(bench.conn, query, id=made.job_id)] == [
        ("schema", "Schema", "implement", None, [], False),
        ("import", "Import", "plan", "x", ["schema"], False),
    ]
    assert bench.branches() == {}


async def test_discovery_proposes(bench: Bench) -> None:
    """A discovery's children are proposals, its summary is the report."""
    child = {"key": "leak", "title": "A leak", "body": "There."}
    made = await bench.job([result("done", summary="Found one.", children=[child])], kind="discover")
    await bench.work()
    assert await bench.state(made) == ("publishing", None)
    assert await rows.value(bench.conn, "SELECT proposal FROM child WHERE job_id = %(id)s", id=made.job_id) is True
    assert (await bench.row(made))["summary"] == "Found one."


@pytest.mark.parametrize(
    ("steps", "outcome", "state", "reason", "attempts"),
    [
        ([result("no_change", reason="It is red.")], "no_change", "delivered", "no_change", 1),
        ([result("done", summary="Nothing to do.")], "no_change", "delivered", "no_change", 1),
        ([result("needs_input", question="Which red?")], "needs_input", "waiting", "needs_input", 1),
        ([result("blocked", reason="No paint.", retry_after=60)], "blocked", "waiting", "blocked", 0),
        ([result("failed", reason="No.")], "failed", "failed", "rejected", 1),
        ([result("retry", reason="Wet.")], "retry", "waiting", "backoff", 1),
        ([exits(0)], "no_evidence", "waiting", "backoff", 1),
        ([exits(40)], "no_change", "delivered", "no_change", 1),
        ([exits(41)], "needs_input", "waiting", "needs_input", 1),
        ([exits(42)], "blocked", "waiting", "blocked", 0),
        ([exits(44)], "failed", "failed", "rejected", 1),
        ([exits(75)], "retry", "waiting", "backoff", 1),
        ([exits(1)], "agent_error", "waiting", "backoff", 1),
        ([exits(127)], "agent_error", "waiting", "backoff", 1),
        ([dies(signal.SIGSEGV)], "agent_error", "waiting", "backoff", 1),
        ([result("well")], "protocol_error", "waiting", "backoff", 1),
        ([write("c.txt", "c"), result("done", children="many")], "protocol_error", "waiting", "backoff", 1),
    ],
)
async def test_each_end_of_an_agent(
    bench: Bench, steps: list[Step], outcome: str, state: str, reason: str, attempts: int
) -> None:
    """What an agent says, by result or by exit code, is what becomes of its job; only what burns counts an attempt."""
    await rows.lane(bench.conn, **NEVER_BY_ITSELF)
    made = await bench.job(steps)
    await bench.work()
    assert await bench.outcomes(made) == [outcome]
    assert await bench.state(made) == (state, reason)
    row = await bench.row(made)
    assert (row["attempts"], row["claim_token"]) == (attempts, None)
    assert bench.branches() == {}


async def test_question_is_quoted(bench: Bench) -> None:
    """What an agent asks stands on the parked job."""
    made = await bench.job([result("needs_input", question="Which red?")])
    await bench.work()
    row = await bench.row(made)
    assert (row["parked"], row["question"]) == ("needs_input", "Which red?")


@pytest.mark.parametrize("steps", [[exits(43)], [result("quota", reason="Limit reached.", retry_after=120)]])
async def test_quota_holds_the_lane_for_every_host(bench: Bench, steps: list[Step]) -> None:
    """A provider's limit gives the attempt back and closes the lane: no other job of it is claimed by any host."""
    made = await bench.job(steps)
    other = await bench.job([exits(40)])
    await bench.work()
    await bench.work(name="r2", host="h2")
    assert await bench.state(made) == ("pending", None)
    assert (await bench.row(made))["attempts"] == 0
    assert await bench.state(other) == ("pending", None)
    (hold,) = await rows.rows(bench.conn, "SELECT source, host, job_id FROM lane_hold")
    assert (hold["source"], hold["host"], hold["job_id"]) == ("quota", "", made.job_id)
    assert len(bench.script.recorded("begin")) == 1


async def test_three_agent_errors_exhaust_a_job(bench: Bench) -> None:
    """Each failure burns an attempt; after the last the job has failed, and every attempt says why."""
    made = await bench.job([say("oops"), exits(3)])
    await bench.work()
    assert await bench.state(made) == ("failed", "exhausted")
    attempts = await bench.attempts(made)
    assert [(each["number"], each["outcome"], each["exit_code"]) for each in attempts] == [
        (1, "agent_error", 3),
        (2, "agent_error", 3),
        (3, "agent_error", 3),
    ]
    assert {each["reason"] for each in attempts} == {"the agent exited with 3"}
    assert [each["attempt"] for each in bench.script.recorded("begin")] == [1, 2, 3]


async def test_failure_waits_its_backoff_then_goes_on(bench: Bench) -> None:
    """A failed attempt waits at most its doubled base; woken, the next one succeeds and the job is delivered."""
    await rows.lane(bench.conn, backoff_base_s=100.0, backoff_cap_s=1000.0)
    made = await bench.job([exits(1)], PAINT)
    await bench.work()
    query = "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM job WHERE id = %(id)s"
    left = await rows.value(bench.conn, query, id=made.job_id)
    assert isinstance(left, float)
    assert left <= 100.0
    await bench.wake(made)
    await bench.work()
    assert await bench.outcomes(made) == ["agent_error", "done"]
    assert await bench.state(made) == ("publishing", None)


async def test_next_agent_is_told_how_the_last_one_ended(bench: Bench) -> None:
    """The prompt of a second attempt quotes the first one's reason; the first attempt's has nothing to quote."""
    seen = [bench.directory / f"seen{n}" for n in (1, 2)]
    made = await bench.job(
        [dump(seen[0]), result("retry", reason="The paint was wet.", summary="Half done.")], [dump(seen[1]), exits(40)]
    )
    await bench.work()
    assert await bench.state(made) == ("delivered", "no_change")
    first, second = (json.loads(path.read_text())["prompt"] for path in seen)
    assert "LAST ATTEMPT" not in first
    assert "retry: The paint was wet." in second
    assert "Half done." in second
    assert "attempt 2 of 3" in second


async def test_rerun_is_told_how_the_job_before_ended(bench: Bench) -> None:
    """A job that runs another one again hears of that one's last attempt."""
    before = await bench.job([result("failed", reason="Not without a ladder.")])
    await bench.work()
    seen = bench.directory / "seen"
    again = await rows.job(
        bench.conn, bench.stage.path, issue_id=before.issue_id, kind="implement", rerun_of=before.job_id
    )
    bench.script.runs(again.number, [dump(seen), exits(40)])
    await bench.work()
    assert "failed: Not without a ladder." in json.loads(seen.read_text())["prompt"]


async def test_what_the_runner_did_teaches_nothing(bench: Bench) -> None:
    """An attempt that the runner gave back or lost is not quoted to the next agent."""
    seen = bench.directory / "seen"
    made = await bench.job([dump(seen), exits(40)], claim_no=1)
    await rows.attempt(
        bench.conn,
        made.job_id,
        ended_at=(await rows.value(bench.conn, "SELECT now()")),
        outcome="shutdown",
        burned=False,
    )
    await bench.work()
    assert "LAST ATTEMPT" not in json.loads(seen.read_text())["prompt"]


async def test_live_output_reaches_the_database_while_the_agent_runs(bench: Bench) -> None:
    """What an agent prints is stored in pieces before it ends, without what no database takes."""
    made = await bench.job([say("half\0way"), wait(), exits(40)])
    made_rig, task = await bench.begin()
    await bench.gate.line()
    query = "SELECT coalesce(string_agg(o.text, '' ORDER BY seq), '') FROM output_chunk o"
    await bench.until(lambda: rows.value(bench.conn, query), "half�way\n")
    assert await bench.state(made) == ("claimed", None)
    bench.gate.release()
    await bench.finish(made_rig, task)
    assert await bench.state(made) == ("delivered", "no_change")


# ------------------------------------------------------------------------------------------------ this host cannot


async def test_missing_command_holds_the_lane_for_this_host(bench: Bench) -> None:
    """A command that does not exist gives the attempt back and closes the lane here; another host serves it."""
    made = await bench.job([exits(40)])
    await bench.work(argv=["/no/such/agent"])
    assert await bench.state(made) == ("pending", None)
    assert (await bench.row(made))["attempts"] == 0
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["burned"]) == ("workspace_error", False)
    assert "No such file or directory" in str(attempt["reason"])
    (hold,) = await rows.rows(bench.conn, "SELECT source, host, reason FROM lane_hold")
    assert (hold["source"], hold["host"]) == ("setup", "h1")
    await bench.work(name="r2", host="h2")
    assert await bench.state(made) == ("delivered", "no_change")


async def test_command_that_may_not_be_executed_holds_the_lane_for_this_host(bench: Bench, tmp_path: Path) -> None:
    """126 of our own exec is the host's fault, as 127 is."""
    (tmp_path / "agent").write_text("#!/bin/sh\nexit 0\n")
    made = await bench.job([exits(40)])
    await bench.work(argv=[str(tmp_path / "agent")])
    assert await bench.outcomes(made) == ["workspace_error"]
    assert await rows.value(bench.conn, "SELECT source || ' ' || host FROM lane_hold") == "setup h1"


async def test_lane_without_a_command_is_given_back(bench: Bench) -> None:
    """A runner that claims for a lane it has no command for gives the job back at once, and is kept off the lane."""
    made = await bench.job([exits(40)])
    await bench.work(silent_lanes=["claude"])
    assert await bench.state(made) == ("pending", None)
    assert await rows.value(bench.conn, "SELECT reason FROM lane_hold") == (
        "this runner has no command for lane claude: correct its configuration"
    )
    assert bench.script.recorded() == []


async def test_lease_too_short_for_this_runner_is_refused(bench: Bench) -> None:
    """A lease in which an agent could not be stopped in time runs no agent here; the hold says what to change."""
    await rows.lane(bench.conn, lease_s=45.0)
    made = await bench.job([exits(40)])
    await bench.work(margin_s=30.0, grace_s=10.0)
    assert await bench.state(made) == ("pending", None)
    assert "a lease of 45 s is too short" in str(await rows.value(bench.conn, "SELECT reason FROM lane_hold"))
    assert bench.script.recorded() == []


async def test_repository_out_of_reach_is_given_back_with_backoff(bench: Bench) -> None:
    """A clone that fails counts no attempt and waits, however often: the agent never ran."""
    await rows.lane(bench.conn, **NEVER_BY_ITSELF)
    await rows.repository(bench.conn, bench.stage.path, clone_url="http://127.0.0.1:1/acme/nothing.git")
    made = await bench.job([exits(40)])
    for claims in (1, 2):
        await bench.work()
        assert await bench.state(made) == ("waiting", "backoff")
        assert await bench.outcomes(made) == ["workspace_error"] * claims
        assert (await bench.row(made))["attempts"] == 0
        await bench.wake(made)
    assert bench.script.recorded() == []


async def test_host_that_can_run_nothing_claims_slowly(bench: Bench) -> None:
    """A runner that reaches no forge pauses before it claims again: it must not churn the queue."""
    await rows.lane(bench.conn, **NEVER_BY_ITSELF)
    await rows.repository(bench.conn, bench.stage.path, clone_url="http://127.0.0.1:1/acme/nothing.git")
    for _ in range(2):
        await bench.job([exits(40)])
    await bench.work()
    query = "SELECT extract(epoch FROM max(claimed_at) - min(ended_at))::float8 FROM attempt"
    pause = await rows.value(bench.conn, query)
    assert isinstance(pause, float)
    assert pause >= 1.0


class _Punctual(Worker):
    """Waits the whole of every backoff."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, jitter=lambda: 1.0)


@pytest.mark.parametrize(("claims_before", "waits_s"), [(0, 100.0), (3, 800.0)])
async def test_fault_of_ours_is_tried_again_less_often_each_time(
    bench: Bench, claims_before: int, waits_s: float
) -> None:
    """An attempt that no agent ran in counts nothing, and still each claim in vain doubles the wait."""
    await rows.lane(bench.conn, backoff_base_s=100.0, backoff_cap_s=10_000.0)
    await rows.repository(bench.conn, bench.stage.path, clone_url="http://127.0.0.1:1/acme/nothing.git")
    made = await bench.job([exits(40)], claim_no=claims_before)
    await bench.work(worker_type=_Punctual)
    query = "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM job WHERE id = %(id)s"
    assert await rows.value(bench.conn, query, id=made.job_id) == pytest.approx(waits_s, abs=20)
