"""Told to stop, by a cancel, a lost lease, a signal or SIGKILL: the agent is gone, and the rows are true."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.agents import LIMIT_S, Step, betray, commit, deaf, exits, result, say, stray, wait, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.forges import FaultPlan
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench, gone
from tireless.agent.places import Places
from tireless.services.leases import Held
from tireless.services.work import Worked, Worker
from tireless.store import steer, sweep

PAINT = [write("a.txt", "red\n"), commit("Paint it"), result("done", summary="Painted.")]
HOLDS_STILL: list[Step] = [stray(), wait(), *PAINT]
FETCH = r"widgets\.git/(info/refs\?service=git-upload-pack|git-upload-pack)"
PUSH = r"widgets\.git/(info/refs\?service=git-receive-pack|git-receive-pack)"


async def taken_away(bench: Bench, made: rows.Made, how: str) -> dict[str, object]:
    """Let the claim be lost, in one of several ways; the job's row as the loser must leave it."""
    match how:
        case "token":
            await rows.change(bench.conn, "job", made.job_id, claim_token=uuid4())
        case "expired":
            await rows.expire(bench.conn, made.job_id)
        case _:
            await rows.expire(bench.conn, made.job_id)
            assert await sweep.expire_stale_claims(bench.conn) == 1
            await rows.change(bench.conn, "job", made.job_id, hold=True)  # so that nobody claims it again
    return await bench.row(made)


# ------------------------------------------------------------------------------------------------ cancel


async def test_cancel_ends_a_running_agent_and_frees_its_slot(bench: Bench) -> None:
    """Cancelled while it runs, the agent is gone with everything it started, and the only slot takes the next job."""
    made = await bench.job(HOLDS_STILL)
    runner, task = await bench.begin()
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    await steer.cancel(bench.conn, made.job_id, "ada")
    runner.leases.wake.set()
    await gone(agent.pid, child.pid)
    after = await bench.job([wait(), exits(40)])
    runner.wake.set()
    assert (await bench.gate.line()).job == after.job_id
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("cancelled", "operator")
    assert await bench.outcomes(made) == ["cancelled"]
    assert await bench.state(after) == ("delivered", "no_change")
    assert bench.branches() == {}


async def test_cancel_before_the_agent_starts(bench: Bench) -> None:
    """Cancelled while its repository is being fetched, a job ends at once and no agent ever runs."""
    fetch = await bench.loopback.fault(FaultPlan("*", FETCH, "block"))
    made = await bench.job(HOLDS_STILL)
    runner, task = await bench.begin()
    await fetch.reached()
    await steer.cancel(bench.conn, made.job_id, "ada")
    runner.leases.wake.set()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("cancelled", "operator")
    assert bench.script.recorded() == []
    assert list((bench.directory / "root" / "runs").iterdir()) == []


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_cancel_while_pushing_delivers_nothing(bench: Bench, method: str) -> None:
    """Cancelled while its work is being pushed, a job ends cancelled; its work is kept on the host, not delivered."""
    push = await bench.loopback.fault(FaultPlan(method, PUSH, "block"))
    made = await bench.job(PAINT)
    runner, task = await bench.begin(limits=bench.limits(hurry_s=0.1))
    await push.reached()
    await steer.cancel(bench.conn, made.job_id, "ada")
    runner.leases.wake.set()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("cancelled", "operator")
    assert await bench.outcomes(made) == ["cancelled"]
    assert bench.branches() == {}
    assert len(list((bench.directory / "root" / "saved").glob("*.bundle"))) == 1


async def test_cancel_that_was_not_heard_stops_the_push(bench: Bench) -> None:
    """The check right before the push hears of a cancel that no renewal brought: nothing is pushed."""
    made = await bench.job([wait(), *PAINT])
    runner, task = await bench.begin()
    await bench.gate.line()
    await steer.cancel(bench.conn, made.job_id, "ada")
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("cancelled", "operator")
    assert [each for each in bench.loopback.requests() if "receive-pack" in each.target] == []


# ------------------------------------------------------------------------------------------------ lost leases


@pytest.mark.parametrize("how", ["token", "expired", "swept"])
async def test_lost_lease_ends_the_agent_and_writes_nothing(bench: Bench, how: str) -> None:
    """A runner that hears its claim is gone ends the agent and all it started, and leaves every row as it is."""
    made = await bench.job([say("half"), *HOLDS_STILL])
    runner, task = await bench.begin()
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    before = await taken_away(bench, made, how)
    (attempt,) = await bench.attempts(made)
    runner.leases.wake.set()
    await gone(agent.pid, child.pid)
    await bench.finish(runner, task)
    assert await bench.row(made) == before
    assert await bench.attempts(made) == [attempt]
    assert attempt["recorded_at"] is None
    assert bench.branches() == {}
    assert bench.script.recorded("end") == []


async def test_lease_lost_before_the_agent_starts(bench: Bench) -> None:
    """A claim lost while the repository is being fetched runs no agent and leaves nothing on disk."""
    fetch = await bench.loopback.fault(FaultPlan("*", FETCH, "block"))
    made = await bench.job(HOLDS_STILL)
    runner, task = await bench.begin()
    await fetch.reached()
    before = await taken_away(bench, made, "token")
    runner.leases.wake.set()
    await bench.finish(runner, task)
    assert await bench.row(made) == before
    assert await bench.outcomes(made) == [None]
    assert bench.script.recorded() == []
    assert list((bench.directory / "root" / "runs").iterdir()) == []


@pytest.mark.parametrize("how", ["token", "swept"])
async def test_work_of_a_lost_claim_is_not_recorded(bench: Bench, how: str) -> None:
    """An agent that ends well after its claim was lost unheard: no result is recorded, nothing is pushed."""
    made = await bench.job([wait(), *PAINT])
    runner, task = await bench.begin()
    await bench.gate.line()
    before = await taken_away(bench, made, how)
    (attempt,) = await bench.attempts(made)
    bench.gate.release()
    await bench.finish(runner, task)
    assert bench.script.recorded("end") != []
    assert await bench.row(made) == before
    assert await bench.attempts(made) == [attempt]
    assert bench.branches() == {}


async def test_lease_that_ended_unswept_records_but_never_pushes(bench: Bench) -> None:
    """The token lives until the sweep, the right to push only until the lease's end; the sweep then publishes."""
    made = await bench.job([wait(), *PAINT])
    runner, task = await bench.begin()
    await bench.gate.line()
    await rows.expire(bench.conn, made.job_id)
    bench.gate.release()
    await bench.finish(runner, task)
    (attempt,) = await bench.attempts(made)
    assert (attempt["recorded_at"] is None, attempt["pushed_at"], attempt["outcome"]) == (False, None, None)
    assert bench.branches() == {}
    await sweep.expire_stale_claims(bench.conn)
    assert await bench.state(made) == ("publishing", None)


async def test_lease_lost_while_pushing(bench: Bench) -> None:
    """A claim lost while its work is being pushed: the push is cut, the job's row stays as its next owner has it."""
    push = await bench.loopback.fault(FaultPlan("GET", PUSH, "block"))
    made = await bench.job(PAINT)
    runner, task = await bench.begin(limits=bench.limits(hurry_s=0.1))
    await push.reached()
    before = await taken_away(bench, made, "token")
    runner.leases.wake.set()
    await bench.finish(runner, task)
    assert await bench.row(made) == before
    assert await bench.outcomes(made) == [None]
    assert bench.branches() == {}


async def test_lease_lost_right_after_the_push(bench: Bench) -> None:
    """A claim lost when the branch had just arrived: nothing more is written, and no row says that it was pushed."""
    arrived = await bench.loopback.fault(FaultPlan("POST", r"git-receive-pack$", "block", when="after"))
    made = await bench.job(PAINT)
    runner, task = await bench.begin()
    await arrived.reached()
    before = await taken_away(bench, made, "token")
    await arrived.release()
    await bench.finish(runner, task)
    assert await bench.row(made) == before
    (attempt,) = await bench.attempts(made)
    assert (attempt["pushed_at"], attempt["outcome"]) == (None, None)
    assert len(bench.branches()) == 1


# ------------------------------------------------------------------------------------------------ draining


async def test_drain_waits_for_the_agent_and_claims_no_more(bench: Bench) -> None:
    """Told to stop, a runner lets its agent finish, delivers, claims nothing new, and takes itself off the list."""
    made, other = await bench.job([wait(), *PAINT]), await bench.job([exits(40)])
    runner, task = await bench.begin()
    await bench.gate.line()
    assert await rows.value(bench.conn, "SELECT count(*) FROM runner") == 1
    runner.stop.set()
    runner.wake.set()
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("publishing", None)
    assert await bench.state(other) == ("pending", None)
    assert await rows.value(bench.conn, "SELECT count(*) FROM runner") == 0


async def test_claim_that_answers_after_the_stop_is_given_back(bench: Bench) -> None:
    """A claim under way when the runner was told to stop is given back at once: a drain never begins an agent."""
    made = await bench.job(HOLDS_STILL)
    runner = await bench.rig()
    async with bench.conn.transaction():
        # What a claim writes is locked for a moment, so that it answers after the stop.
        await bench.conn.execute("LOCK TABLE attempt IN SHARE MODE")
        task = asyncio.create_task(runner.run())
        waiting = (
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'attempt'::regclass"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        await bench.until(lambda: rows.value(bench.conn, waiting), 1)
        runner.stop.set()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("pending", None)
    assert (await bench.row(made))["attempts"] == 0
    assert await bench.outcomes(made) == ["shutdown"]
    assert bench.script.recorded() == []


async def test_hurry_gives_the_attempt_back_and_keeps_the_work(bench: Bench) -> None:
    """In a hurry the agent is stopped, even one that will not listen; its work is saved, its attempt not counted."""
    made = await bench.job([write("a.txt", "half\n"), deaf(), *HOLDS_STILL])
    runner, task = await bench.begin()
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    runner.stop.set()
    runner.hurry.set()
    await gone(agent.pid, child.pid)
    await bench.finish(runner, task)
    assert await bench.state(made) == ("pending", None)
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["burned"], (await bench.row(made))["attempts"]) == ("shutdown", False, 0)
    (bundle,) = (bench.directory / "root" / "saved").glob("*.bundle")
    assert bundle.name in str(attempt["reason"])
    assert bench.branches() == {}


async def test_hurry_before_the_agent_starts(bench: Bench) -> None:
    """In a hurry a repository that is being fetched is not waited for."""
    fetch = await bench.loopback.fault(FaultPlan("*", FETCH, "block"))
    made = await bench.job(HOLDS_STILL)
    runner, task = await bench.begin()
    await fetch.reached()
    runner.stop.set()
    runner.hurry.set()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("pending", None)
    assert await bench.outcomes(made) == ["shutdown"]
    assert bench.script.recorded() == []


async def test_hurry_while_pushing_leaves_it_to_the_publisher(bench: Bench) -> None:
    """In a hurry a push that may have arrived is not said to have failed: the publisher is to look."""
    push = await bench.loopback.fault(FaultPlan("GET", PUSH, "block"))
    made = await bench.job(PAINT)
    runner, task = await bench.begin(limits=bench.limits(hurry_s=0.1))
    await push.reached()
    runner.stop.set()
    runner.hurry.set()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("publishing", None)
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["pushed_at"]) == ("done", None)
    assert bench.branches() == {}
    assert len(list((bench.directory / "root" / "saved").glob("*.bundle"))) == 1


async def test_cancelled_runner_leaves_no_agent_behind(bench: Bench) -> None:
    """A runner whose task is cancelled stops its agents first, gives their attempts back, and is cancelled then."""
    made = await bench.job(HOLDS_STILL)
    _, task = await bench.begin()
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), LIMIT_S)
    await gone(agent.pid, child.pid)
    assert await bench.state(made) == ("pending", None)
    assert await bench.outcomes(made) == ["shutdown"]


async def test_cancelled_twice_grants_no_grace(bench: Bench) -> None:
    """Cancelled again, the runner kills an agent that would use a long grace, and still says its last word."""
    made = await bench.job([stray(), deaf(), wait()])
    await rows.lane(bench.conn, lease_s=36000.0)
    _, task = await bench.begin(grace_s=3600.0)
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    task.cancel()
    await gone(child.pid)
    assert not task.done()
    task.cancel()
    await gone(agent.pid)
    await asyncio.wait({task}, timeout=LIMIT_S)
    assert task.cancelled()
    assert await bench.outcomes(made) == ["shutdown"]


# ------------------------------------------------------------------------------------------------ processes


async def test_sigterm_drains_a_runner(bench: Bench) -> None:
    """The first SIGTERM lets the agent finish; the process ends by itself with 0, and the next job stays."""
    made, other = await bench.job([wait(), *PAINT]), await bench.job([exits(40)])
    process = await bench.process()
    await bench.gate.line()
    process.send_signal(signal.SIGTERM)
    await bench.hear(process, "stopping")
    bench.gate.release()
    assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
    assert await bench.state(made) == ("publishing", None)
    assert await bench.state(other) == ("pending", None)


async def test_second_sigterm_gives_back(bench: Bench) -> None:
    """The second SIGTERM ends the agent and all it started; the attempt is given back, the process ends with 0."""
    made = await bench.job(HOLDS_STILL)
    process = await bench.process()
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    for word in ("stopping", "hurrying"):
        process.send_signal(signal.SIGTERM)
        await bench.hear(process, word)
    assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
    await gone(agent.pid, child.pid)
    assert await bench.state(made) == ("pending", None)
    assert (await bench.row(made))["attempts"] == 0
    assert await bench.outcomes(made) == ["shutdown"]


async def test_agent_does_not_outlive_a_killed_runner(bench: Bench) -> None:
    """A runner ended by SIGKILL takes its agent with it; the sweep frees the job, and the next runner delivers it."""
    made = await bench.job(HOLDS_STILL, PAINT)
    process = await bench.process()
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    process.kill()
    await process.wait()
    await gone(agent.pid, child.pid)
    assert await bench.state(made) == ("claimed", None)
    (left,) = (bench.directory / "root" / "runs").iterdir()

    async def held_by_nobody() -> list[str]:
        return Places(bench.directory / "root").stale()

    await bench.until(held_by_nobody, [left.name])  # the guard ends a moment after its agent
    await rows.expire(bench.conn, made.job_id)
    assert await sweep.expire_stale_claims(bench.conn) == 1
    assert await bench.state(made) == ("pending", None)
    await bench.work()
    assert await bench.state(made) == ("publishing", None)
    assert await bench.outcomes(made) == ["lease_lost", "done"]
    assert [each["alone"] for each in bench.script.recorded("begin")] == [True, True]
    assert not left.exists()


async def test_agent_that_stops_its_guard_pays_for_it(bench: Bench) -> None:
    """An agent that signals its own guard burns its attempt: it is not run again for nothing as often as it likes."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    made = await bench.job([betray(), wait()])
    await bench.work()
    assert await bench.state(made) == ("waiting", "backoff")
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["burned"]) == ("agent_error", True)
    assert "told to stop, but not by its runner" in str(attempt["reason"])


async def test_stopped_runner_loses_its_agent_in_time(bench: Bench) -> None:
    """Stopped by SIGSTOP a runner renews nothing, its guard ends the agent in time; continued, it writes nothing."""
    await rows.lane(bench.conn, lease_s=30.0)
    made = await bench.job(HOLDS_STILL)
    process = await bench.process(margin_s=14.0)
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    process.send_signal(signal.SIGSTOP)
    await gone(agent.pid, child.pid)
    assert await rows.value(bench.conn, "SELECT claim_expires_at > clock_timestamp() FROM job") is True
    before = await bench.row(made)
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    await bench.hear(process, "stopping")
    assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
    assert await bench.row(made) == before
    assert await bench.outcomes(made) == [None]


# ------------------------------------------------------------------------------------------------ slots


async def test_slots_bound_the_agents(bench: Bench) -> None:
    """Two slots run two agents; the third job waits until one of them has ended."""
    for _ in range(3):
        await bench.job([wait(), exits(40)])
    runner, task = await bench.begin(slots=2)
    first, second = await bench.gate.line(), await bench.gate.line()
    assert {first.job, second.job} == {1, 2}
    assert await rows.value(bench.conn, "SELECT count(*) FROM job WHERE state = 'claimed'") == 2
    bench.gate.release()
    assert (await bench.gate.line()).job == 3
    bench.gate.release(2)
    await bench.finish(runner, task)
    assert await rows.value(bench.conn, "SELECT count(*) FROM job WHERE state = 'delivered'") == 3


class _Unkillable(Worker):
    """After each job, says that a process of the run could not be killed."""

    pid = 0
    worked = asyncio.Event()

    async def work(self, held: Held) -> Worked:
        worked = await super().work(held)
        self.worked.set()
        return replace(worked, survivors=(self.pid,))


async def test_survivors_keep_their_slot(bench: Bench) -> None:
    """While a process of a run that nobody could kill is alive, its slot takes no job."""
    made, other = await bench.job([exits(40)]), await bench.job([wait(), exits(40)])
    survivor = await asyncio.create_subprocess_exec("/bin/cat", stdin=asyncio.subprocess.PIPE)
    _Unkillable.pid, _Unkillable.worked = survivor.pid, asyncio.Event()
    runner = await bench.rig(worker_type=_Unkillable)
    task = asyncio.create_task(runner.run())
    await asyncio.wait_for(_Unkillable.worked.wait(), LIMIT_S)
    assert await bench.state(made) == ("delivered", "no_change")
    runner.wake.set()
    for _ in range(50):  # round trips, in which a free slot would have been filled
        assert await bench.state(other) == ("pending", None)
    await survivor.communicate(b"")
    await bench.gate.line()
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(other) == ("delivered", "no_change")


async def test_drain_does_not_wait_for_survivors(bench: Bench) -> None:
    """A runner that is told to stop leaves what it could not kill: no job needs the slot any more."""
    await bench.job([exits(40)])
    survivor = await asyncio.create_subprocess_exec("/bin/cat", stdin=asyncio.subprocess.PIPE)
    _Unkillable.pid, _Unkillable.worked = survivor.pid, asyncio.Event()
    runner = await bench.rig(worker_type=_Unkillable)
    task = asyncio.create_task(runner.run())
    await asyncio.wait_for(_Unkillable.worked.wait(), LIMIT_S)
    await bench.finish(runner, task)
    assert survivor.returncode is None
    await survivor.communicate(b"")


async def test_work_begins_when_a_lane_is_notified(bench: Bench) -> None:
    """An idle runner claims as soon as it is woken, long before it would ask by itself."""
    runner, task = await bench.begin(idle_poll_s=3600.0)
    await bench.until(lambda: rows.value(bench.conn, "SELECT count(*) FROM runner"), 1)
    made = await bench.job([wait(), exits(40)])
    runner.wake.set()
    await bench.gate.line()
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("delivered", "no_change")


async def test_only_named_lanes_are_served(bench: Bench) -> None:
    """A job of another lane is left alone."""
    made = await bench.job([exits(40)], lane_name="other")
    await bench.work()
    assert await bench.state(made) == ("pending", None)
