"""Several runners and one queue: no job is worked on twice at a time, and a stale runner's work is never used."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from tests.support import rows
from tests.support.agents import Step, commit, exits, result, wait, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.forges import FaultPlan
from tests.support.proxies import DatabaseProxy
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench, gone
from tireless.store import sweep

PAINT: list[Step] = [write("a.txt", "red\n"), commit("Paint it"), result("done", summary="Painted.")]


async def test_two_runners_share_a_queue(bench: Bench) -> None:
    """Two runner processes over six jobs, some failing once: every run is alone, and every job is delivered."""
    for n in range(6):
        await bench.job(*([[wait(), exits(1)], [wait(), *PAINT]] if n % 2 else [[wait(), *PAINT]]))
    processes = [await bench.process(name=name, host=name, slots=2) for name in ("r1", "r2")]
    for _ in range(4):  # neither has slots for more than two: both are at work
        await bench.gate.line()
    bench.gate.release(9)
    left = "SELECT count(*) FROM job WHERE state <> 'publishing'"
    await bench.until(lambda: rows.value(bench.conn, left), 0)
    for process in processes:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 90) == 0
    begun = bench.script.recorded("begin")
    assert [each["alone"] for each in begun] == [True] * 9
    assert len(bench.script.recorded("end")) == 9
    assert len(bench.branches()) == 6
    by_job = {job: [each for each in bench.script.recorded() if each["job"] == job] for job in range(1, 7)}
    for records in by_job.values():
        assert [each["what"] for each in records] == ["begin", "end"] * (len(records) // 2)
    assert await rows.value(bench.conn, "SELECT count(DISTINCT host) FROM attempt") == 2


async def test_runner_that_cannot_renew_is_gone_before_the_next_begins(bench: Bench, dsn: str) -> None:
    """Cut off from the database a runner's agent dies before its lease; only then does another runner's agent begin."""
    await rows.lane(bench.conn, lease_s=12.0)
    made = await bench.job([wait()], PAINT)
    async with DatabaseProxy(dsn) as door:
        first, task = await bench.begin(dsn=door.dsn, margin_s=4.0)
        agent = await bench.gate.line()
        door.stall()
        # Whoever sweeps, as often as he likes: it is the lease that counts.
        await bench.until(lambda: sweep.expire_stale_claims(bench.conn), 1)
        await bench.work(name="r2", host="h2")
        await gone(agent.pid)
        assert [each["alone"] for each in bench.script.recorded("begin")] == [True, True]
        door.break_all()
        door.mend()
        await bench.finish(first, task)
    assert await bench.state(made) == ("publishing", None)
    assert await bench.outcomes(made) == ["lease_lost", "done"]
    assert len(bench.branches()) == 1


@pytest.mark.parametrize("first_to_end", [0, 1])
async def test_stale_runner_of_the_same_name_changes_nothing(bench: Bench, first_to_end: int) -> None:
    """Two runners of one name: whose claim was taken back records, pushes and settles nothing, whoever ends first."""
    made = await bench.job([write("a.txt", "stale\n"), wait()], [write("a.txt", "fresh\n"), wait()])
    stale, stale_task = await bench.begin()
    await bench.gate.line()
    await rows.expire(bench.conn, made.job_id)
    assert await sweep.expire_stale_claims(bench.conn) == 1
    # The clock was moved, not waited for: only so can the two agents live at once.
    fresh, fresh_task = await bench.begin()
    await bench.gate.line()
    pairs = [(stale, stale_task), (fresh, fresh_task)]
    bench.gate.release(2)
    for runner, task in pairs if first_to_end == 0 else reversed(pairs):
        await bench.finish(runner, task)
    assert await bench.state(made) == ("publishing", None)
    old, new = await bench.attempts(made)
    assert (old["outcome"], old["recorded_at"], old["commit_sha"]) == ("lease_lost", None, None)
    assert (new["outcome"], (await bench.row(made))["result_attempt"]) == ("done", new["id"])
    assert bench.branches() == {new["branch"]: new["commit_sha"]}
    assert bench.git("show", f"{new['commit_sha']}:a.txt") == "fresh"


async def test_stale_run_of_a_crashed_runner_is_removed_and_a_living_one_is_not(bench: Bench) -> None:
    """A runner that starts removes what dead runners of its host left, and nothing of a runner that lives."""
    await bench.job([wait(), exits(40)])
    living, task = await bench.begin()
    await bench.gate.line()
    runs = bench.directory / "root" / "runs"
    (mine,) = runs.iterdir()
    dead = runs / "77.deadbeef"
    (dead / "own").mkdir(parents=True)
    (dead / "own" / "lock").touch()
    (dead / "tree").mkdir()
    await bench.work(name="r2")
    assert list(runs.iterdir()) == [mine]
    bench.gate.release()
    await bench.finish(living, task)
    assert list(runs.iterdir()) == []


@pytest.mark.long
async def test_a_stopped_runner_keeps_the_repository_from_no_other_of_its_host(bench: Bench) -> None:
    """Stopped while it fetches it holds the cache: the next runner takes a cache of its own, and says whom to end."""
    await bench.job(PAINT)
    fault = await bench.loopback.fault(FaultPlan("POST", "git-upload-pack", "block"))
    stopped = await bench.process()
    await fault.reached()
    stopped.send_signal(signal.SIGSTOP)
    await fault.release()
    made = await bench.job(PAINT)
    other = await bench.process(name="r2")
    await bench.until(lambda: bench.state(made), ("publishing", None))
    said = [line for line in bench.log_of("r2").splitlines() if "cache passed over" in line]
    assert [json.loads(line)["pid"] for line in said] == [stopped.pid]
    caches = sorted(path.name for path in (bench.directory / "root" / "cache").glob("*.git"))
    assert [name.removesuffix(".git").partition("--")[2] for name in caches] == ["2", ""]
    other.terminate()
    assert await asyncio.wait_for(other.wait(), 90) == 0
