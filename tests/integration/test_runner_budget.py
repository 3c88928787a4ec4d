"""Money while an agent runs: the runner reads what it says, stops it at the cap, and the row knows what it has cost."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.agents import LIMIT_S, Step, commit, dump, exits, progress, result, wait, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench, gone
from tireless.store.claim import RunnerId, claim_next
from tireless.store.sweep import expire_stale_claims, wake_due


def costs(usd: float, **more: object) -> Step:
    """Say so, as a line of progress."""
    return progress(json.dumps({"usage": {"usd": usd, **more}}) + "\n")


async def test_an_agent_is_stopped_at_the_cap(bench: Bench) -> None:
    """The running total is met, not the end: the agent dies while it works, its work is kept, a person is asked."""
    await rows.lane(bench.conn, max_usd="2")
    made = await bench.job(
        [write("a.txt", "red\n"), commit("Paint it"), costs(0.5), progress("garbage\n{torn"), progress("}\n"),
         costs(1.5, input_tokens=10), wait(), result("done")],
        spent_usd="0.5",
    )  # fmt: skip
    await bench.work()
    assert await bench.state(made) == ("waiting", "budget_exhausted")
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["burned"]) == ("over_budget", True)
    assert "its work is kept" in str(attempt["reason"])
    usage = attempt["usage"]
    assert isinstance(usage, dict)
    assert (usage["usd"], usage["input_tokens"]) == (1.5, 10)
    job = await bench.row(made)
    assert (
        job["question"]
        == "Its attempts have cost 2 USD; a job of lane claude may cost 2 USD until a person acts on it."
    )
    assert bench.script.recorded("end") == []


async def test_below_the_cap_an_agent_goes_on(bench: Bench) -> None:
    """A total under the cap stops nobody; it is told what is left, and the greater of its words is what it cost."""
    await rows.lane(bench.conn, max_usd="2")
    seen = bench.directory / "seen.json"
    steps = [costs(1.25), dump(seen), write("a.txt", "red\n"), result("done", summary="s", usage={"usd": 0.25})]
    made = await bench.job(steps, spent_usd="0.5")
    await bench.work()
    assert await bench.state(made) == ("publishing", None)
    assert json.loads(seen.read_text())["environ"]["TIRELESS_USD_LEFT"] == "1.500000"
    assert str((await bench.row(made))["spent_usd"]) == "1.75"


async def noted(bench: Bench, made: rows.Made) -> None:
    """Returns once the row has what the agent said."""
    async with asyncio.timeout(LIMIT_S):
        while (await bench.attempts(made))[0]["usage"] is None:
            await bench.conn.execute("SELECT pg_sleep(0.05)")


async def test_what_is_said_is_noted_while_it_runs(bench: Bench) -> None:
    """The row has it before the agent ends."""
    made = await bench.job([costs(0.75), wait(), result("no_change", reason="r")])
    rig, task = await bench.begin()
    await bench.gate.line()
    await noted(bench, made)
    bench.gate.release()
    await bench.finish(rig, task)
    assert str((await bench.row(made))["spent_usd"]) == "0.75"


async def test_a_killed_runner_takes_no_sum_with_it(bench: Bench) -> None:
    """SIGKILL while the agent works: the sweep counts what was said until then, the next claim has what is left."""
    await rows.lane(bench.conn, max_usd="1")
    made = await bench.job([costs(0.75), wait()])
    process = await bench.process()
    agent = await bench.gate.line()
    await noted(bench, made)
    process.kill()
    await process.wait()
    await gone(agent.pid)
    await rows.expire(bench.conn, made.job_id)
    assert await expire_stale_claims(bench.conn) == 1
    (claim,) = await claim_next(bench.conn, [rows.LANE], runner=RunnerId("r2", "h2", uuid4()))
    assert claim.usd_left == 0.25


async def test_nothing_left_runs_nobody(bench: Bench) -> None:
    """A cap that fell while the claim was being made: no agent is run, and a person is asked."""
    made = await bench.job([exits(0)])
    await rows.change(bench.conn, "job", made.job_id, spent_usd="3")
    await rows.lane(bench.conn, max_usd="2")  # by hand: `serve` parks what is pending
    await bench.work()
    assert await bench.outcomes(made) == ["over_budget"]
    assert await bench.state(made) == ("waiting", "budget_exhausted")
    assert bench.script.recorded() == []


@pytest.mark.parametrize(("steps", "outcome"), [([exits(1)], "agent_error"), ([exits(42)], "blocked")])
async def test_the_same_thrice_is_no_progress(bench: Bench, steps: list[Step], outcome: str) -> None:
    """Ended alike and left the same behind three times in a row: parked, not tried again."""
    await rows.lane(bench.conn, max_attempts=9, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    made = await bench.job([write("a.txt", "red\n"), commit("Again"), *steps], max_attempts=9)
    for times in range(1, 4):
        assert (await bench.row(made))["parked"] is None
        await bench.conn.execute("UPDATE job SET not_before = '-infinity' WHERE not_before IS NOT NULL")
        await wake_due(bench.conn)
        await bench.work()
        assert await bench.outcomes(made) == [outcome] * times
    assert (await bench.row(made))["parked"] == "no_progress"
    # The commits differ, by their times at least; what they hold does not.
    assert len({attempt["head"] for attempt in await bench.attempts(made)}) == 1
