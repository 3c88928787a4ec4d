"""The database or the forge out of reach at each word of a runner: every word counts once, and nothing is made up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.agents import LIMIT_S, Step, commit, exits, result, say, stray, wait, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.forges import FaultPlan
from tests.support.ingest import RULES
from tests.support.proxies import DatabaseProxy, When
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench, gone
from tireless.agent.control import boottime
from tireless.domain.labels import LabelScheme
from tireless.errors import StoreUnavailable
from tireless.forge.gitea import GiteaForge
from tireless.services.poller import Poller
from tireless.services.work import Worked
from tireless.store import sweep
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import pool as open_pool
from tireless.store.explaining import explain

PAINT: list[Step] = [write("a.txt", "red\n"), commit("Paint it"), result("done", summary="Painted.")]
PUSH = r"widgets\.git/(info/refs\?service=git-receive-pack|git-receive-pack)"
SETTLE = b"FROM settle_claims("
EXPIRY = "SELECT claim_expires_at FROM job"


@pytest.fixture
async def door(dsn: str) -> AsyncIterator[DatabaseProxy]:
    """A door to the database that can be shut."""
    async with DatabaseProxy(dsn) as proxy:
        yield proxy


# ------------------------------------------------------------------------------------------------ the database


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "words",
    [
        b"JOIN request q ON",
        b"SET recorded_at = clock_timestamp()",
        b"COMMIT",
        b"UPDATE job j SET claim_expires_at",
        b"UPDATE attempt SET pushed_at",
        SETTLE,
    ],
    ids=["recall", "record", "commit", "check", "pushed", "settle"],
)
async def test_connection_cut_at_each_word(bench: Bench, door: DatabaseProxy, words: bytes, when: When) -> None:
    """Cut at any word, before it took place or in place of its answer, an attempt is delivered once, by one agent."""
    cut = door.cut_at(words, when)
    made = await bench.job(PAINT)
    await bench.work(dsn=door.dsn, leases_dsn=bench.dsn)
    assert cut.reached.is_set()
    assert await bench.state(made) == ("publishing", None)
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["pushed_at"] is None) == ("done", False)
    assert bench.branches() == {attempt["branch"]: attempt["commit_sha"]}
    assert [each[0] for each in await rows.events(bench.conn, made.job_id)] == ["claim", "settle"]
    assert len(bench.script.recorded("begin")) == 1


@pytest.mark.parametrize("steps", [[exits(44)], [exits(1)], [exits(41)]])
async def test_settled_once_though_the_answer_was_lost(bench: Bench, door: DatabaseProxy, steps: list[Step]) -> None:
    """A last word whose answer was lost is said again and counts once: one event, one failure of the breaker."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    door.cut_at(SETTLE, "after")
    made = await bench.job(steps)
    await bench.work(dsn=door.dsn)
    assert len(await bench.attempts(made)) == 1
    assert [each[0] for each in await rows.events(bench.conn, made.job_id)] == ["claim", "settle"]
    failures = await rows.value(bench.conn, "SELECT coalesce(sum(failures), 0)::int FROM lane_breaker")
    assert failures == (0 if steps == [exits(41)] else 1)


async def test_finished_work_settles_after_an_outage(bench: Bench, door: DatabaseProxy) -> None:
    """A database that is away when the work is done gets the last word when it is back, even after the lease's end."""
    cut = door.cut_at(SETTLE, shut=True)
    made = await bench.job([exits(44)])
    runner, task = await bench.begin(dsn=door.dsn)
    await asyncio.wait_for(cut.reached.wait(), LIMIT_S)
    assert await bench.state(made) == ("claimed", None)
    await rows.expire(bench.conn, made.job_id)
    door.mend()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("failed", "rejected")
    assert await bench.outcomes(made) == ["failed"]


async def test_last_word_after_the_sweep_is_not_heard(bench: Bench, door: DatabaseProxy) -> None:
    """Work that could not be settled before the sweep took the job changes nothing of what the sweep said."""
    cut = door.cut_at(SETTLE, shut=True)
    made = await bench.job([exits(44)])
    runner, task = await bench.begin(dsn=door.dsn)
    await asyncio.wait_for(cut.reached.wait(), LIMIT_S)
    await rows.expire(bench.conn, made.job_id)
    await rows.lane(bench.conn, configured=False)
    assert await sweep.expire_stale_claims(bench.conn) == 1
    before = await bench.row(made)
    door.mend()
    await bench.finish(runner, task)
    assert await bench.row(made) == before
    assert await bench.outcomes(made) == ["lease_lost"]


async def test_word_is_given_up_when_the_database_stays_away(bench: Bench, door: DatabaseProxy) -> None:
    """After so long a runner gives a last word up, keeps none of its slots for it, and the lease frees the job."""
    cut = door.cut_at(SETTLE, shut=True)
    made = await bench.job(PAINT)
    runner, task = await bench.begin(dsn=door.dsn, limits=bench.limits(store_limit_s=-3600.0))
    await asyncio.wait_for(cut.reached.wait(), LIMIT_S)
    await bench.finish(runner, task)
    assert await bench.state(made) == ("claimed", None)
    await rows.expire(bench.conn, made.job_id)
    await sweep.expire_stale_claims(bench.conn)
    assert await bench.state(made) == ("publishing", None)
    assert len(bench.branches()) == 1


async def test_hurry_does_not_wait_for_a_database(bench: Bench, door: DatabaseProxy) -> None:
    """In a hurry a runner whose database is away ends all the same; the lease frees its job."""
    made = await bench.job([stray(), wait()])
    runner, task = await bench.begin(dsn=door.dsn, limits=bench.limits(hurry_s=0.3))
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    door.shut()
    runner.stop.set()
    runner.hurry.set()
    await gone(agent.pid, child.pid)
    await bench.finish(runner, task)
    assert await bench.state(made) == ("claimed", None)


async def test_claim_that_fails_is_made_again(bench: Bench, door: DatabaseProxy) -> None:
    """A connection cut before a claim took place is an error, and the claim is made again: one attempt."""
    cut = door.cut_at(b"WITH open_lane AS")
    made = await bench.job([exits(40)])
    runner, task = await bench.begin(dsn=door.dsn)
    await asyncio.wait_for(cut.reached.wait(), LIMIT_S)
    await bench.until(lambda: bench.state(made), ("delivered", "no_change"))
    await bench.finish(runner, task)
    assert len(await bench.attempts(made)) == 1


async def test_run_once_reports_a_claim_that_fails(bench: Bench, door: DatabaseProxy) -> None:
    """`once` never takes a database out of reach for nothing to do."""
    door.cut_at(b"WITH open_lane AS")
    made = await bench.job([exits(40)])
    with pytest.raises(StoreUnavailable, match="claiming a job of lane claude"):
        await bench.work(dsn=door.dsn)
    assert await bench.state(made) == ("pending", None)


async def test_claim_whose_answer_was_lost_is_freed_by_its_lease(bench: Bench, door: DatabaseProxy) -> None:
    """A claim that took place unheard runs no agent; its lease ends, and the next attempt is the first to run."""
    door.cut_at(b"WITH open_lane AS", "after")
    made = await bench.job(PAINT)
    with pytest.raises(StoreUnavailable):
        await bench.work(dsn=door.dsn)
    assert await bench.state(made) == ("claimed", None)
    await rows.expire(bench.conn, made.job_id)
    await sweep.expire_stale_claims(bench.conn)
    await bench.work(dsn=door.dsn)
    assert await bench.outcomes(made) == ["lease_lost", "done"]
    assert len(bench.script.recorded("begin")) == 1


async def test_claim_answered_after_its_deadline_is_lost(bench: Bench) -> None:
    """A claim whose answer came after the agent would have had to be dead starts nothing and writes nothing."""
    made = await bench.job(PAINT)
    runner = await bench.rig()
    (claim,) = await claim_next(bench.conn, ["claude"], runner=RunnerId("r1", "h1", uuid4()))
    before = await bench.row(made)
    held = runner.leases.hold(claim, sent=boottime() - claim.lease_s)
    asked = bench.loopback.last_request
    assert await runner.worker.work(held) == Worked()
    assert bench.loopback.requests(after=asked) == []
    assert await bench.row(made) == before
    assert await bench.outcomes(made) == [None]
    assert bench.script.recorded() == []


async def test_agent_is_dead_before_its_lease_ends_when_renewals_hang(bench: Bench, door: DatabaseProxy) -> None:
    """A database that swallows the renewal without an answer: the agent and all it started are gone in time."""
    await rows.lane(bench.conn, lease_s=30.0)
    made = await bench.job([stray(), wait()])
    runner, task = await bench.begin(leases_dsn=door.dsn, margin_s=14.0)
    child, agent = await bench.gate.line("stray"), await bench.gate.line()
    door.stall()
    await gone(agent.pid, child.pid)
    assert await rows.value(bench.conn, "SELECT claim_expires_at > clock_timestamp() FROM job") is True
    before = await bench.row(made)
    door.break_all()  # a renewal still on its way would lengthen the lease when it arrives, for nobody
    door.mend()
    await bench.finish(runner, task)
    assert await bench.row(made) == before


async def test_renewals_need_no_connection_of_the_others(bench: Bench) -> None:
    """With every connection of the runner's pool taken, its leases are renewed all the same."""
    made = await bench.job([wait(), exits(40)])
    runner, task = await bench.begin()
    await bench.gate.line()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(runner.pool.max_size):
            await stack.enter_async_context(runner.pool.connection())
        before = await rows.value(bench.conn, EXPIRY)
        runner.leases.wake.set()

        async def renewed() -> bool:
            return await rows.value(bench.conn, EXPIRY) != before

        await bench.until(renewed, True)
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("delivered", "no_change")


async def test_backend_ended_by_the_operator(bench: Bench) -> None:
    """Every connection ended by pg_terminate_backend while the agent runs: the attempt is delivered once."""
    made = await bench.job([wait(), *PAINT])
    runner, task = await bench.begin()
    await bench.gate.line()
    ended = await rows.value(
        bench.conn,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'tireless runner%'",
    )
    assert ended != 0
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("publishing", None)
    assert await bench.outcomes(made) == ["done"]


async def test_output_that_cannot_be_stored_stops_nobody(bench: Bench, door: DatabaseProxy) -> None:
    """Live output that meets a cut connection is lost for the log's followers; head and tail come with the end."""
    cut = door.cut_at(b"SELECT a.id FROM attempt a JOIN job j")
    made = await bench.job([say("at work"), exits(40)])
    await bench.work(dsn=door.dsn)
    assert cut.reached.is_set()
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["output_head"]) == ("no_change", "at work\n")


# ------------------------------------------------------------------------------------------------ the forge


async def test_forge_that_is_down_for_a_while_is_waited_for(bench: Bench) -> None:
    """A forge that answers 503 to a push for a while gets the branch once it is back; the agent ran once."""
    await bench.loopback.fault(FaultPlan("*", PUSH, "answer", status=503, times=6))
    made = await bench.job(PAINT)
    await bench.work()
    assert await bench.state(made) == ("publishing", None)
    assert len(bench.branches()) == 1
    assert len(bench.script.recorded("begin")) == 1


async def test_answer_to_a_push_that_was_lost_is_looked_up(bench: Bench) -> None:
    """A push that took place though its answer was cut off is found, not repeated under another name."""
    await bench.loopback.fault(FaultPlan("POST", r"git-receive-pack$", "cut", when="after"))
    made = await bench.job(PAINT)
    await bench.work()
    assert await bench.state(made) == ("publishing", None)
    (attempt,) = await bench.attempts(made)
    assert bench.branches() == {attempt["branch"]: attempt["commit_sha"]}


@pytest.mark.parametrize("limits", [{"push_refusals": 2}, {"push_limit_s": 0.0}])
async def test_push_that_never_works_burns_the_attempt_and_keeps_the_work(
    bench: Bench, limits: dict[str, float]
) -> None:
    """Refused, or out of reach for too long, a push ends the attempt: it counts, and says where the work is."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    made = await bench.job([wait(), *PAINT])
    runner, task = await bench.begin(limits=bench.limits(**limits))
    await bench.gate.line()
    if "push_refusals" in limits:
        await bench.stage.alice.add_collaborator(bench.stage.path, bench.stage.bot.login, "read")
    else:
        await bench.loopback.fault(FaultPlan("*", PUSH, "answer", status=503, times=0))
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("waiting", "cannot_tell")  # till the forge was asked
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["burned"], attempt["pushed_at"]) == ("retry", True, None)
    (bundle,) = (bench.directory / "root" / "saved").glob("*.bundle")
    assert f"the work could not be pushed; it is kept on the runner's host in {bundle.name}" in str(attempt["reason"])
    assert bench.stage.bot.token not in str(attempt["reason"])
    assert bench.branches() == {}


@pytest.mark.parametrize("change", ["archived", "not to be written to"])
async def test_after_a_refused_push_the_repository_is_asked_what_it_is(
    bench: Bench, forge: GiteaForge, change: str
) -> None:
    """Though no poll was due; from then on all its jobs wait for a person, and no other one is paid for."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    made = await bench.job([wait(), *PAINT])
    other = await bench.job(PAINT)
    await rows.not_due(bench.conn)
    runner, task = await bench.begin(slots=1, limits=bench.limits(push_refusals=1))
    await bench.gate.line()
    if change == "archived":
        await bench.stage.alice.edit_repository(bench.stage.path, archived=True)
    else:
        await bench.stage.alice.add_collaborator(bench.stage.path, bench.stage.bot.login, "read")
    bench.gate.release()
    await bench.finish(runner, task)
    async with open_pool(bench.dsn, application_name="tireless test") as pool:
        assert await Poller(pool, {forge.name: forge}, rules=RULES).tick()
    [repository] = await rows.rows(bench.conn, "SELECT * FROM repository")
    assert (repository["readable"], repository["doubted_at"]) == (False, None)
    assert change in str(repository["unreadable_reason"]).replace("may not write to it", "not to be written to")
    assert [await bench.state(each) for each in (made, other)] == [("waiting", "cannot_tell")] * 2
    await bench.work()
    assert len(bench.script.recorded("begin")) == 1


async def test_after_a_refused_push_no_other_job_is_begun_before_the_repository_was_asked(
    bench: Bench, forge: GiteaForge
) -> None:
    """The runner has a slot free, and goes on with what is of other repositories; found to be fine, it goes on."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    await bench.job([wait(), *PAINT])
    other = await bench.job(PAINT)
    await bench.stage.alice.add_collaborator(bench.stage.path, bench.stage.bot.login, "read")
    runner, task = await bench.begin(slots=1, limits=bench.limits(push_refusals=1))
    await bench.gate.line()
    bench.gate.release()
    await bench.until(lambda: bench.state(other), ("waiting", "cannot_tell"))
    assert await rows.events(bench.conn, other.job_id) == [("wait", "pending", "waiting", "cannot_tell")]
    told = await explain(bench.conn, bench.stage.path, other.number, scheme=LabelScheme())
    assert told.first is not None
    assert told.first.sentence.endswith("as it is: it refused what an agent had made for it.")
    await bench.stage.alice.add_collaborator(bench.stage.path, bench.stage.bot.login, "write")
    async with open_pool(bench.dsn, application_name="tireless test") as pool:
        assert await Poller(pool, {forge.name: forge}, rules=RULES).tick()
    runner.wake.set()  # as the poller's notification does where there is a listener
    await bench.until(lambda: bench.state(other), ("publishing", None))
    await bench.finish(runner, task)


async def test_push_meets_a_repository_that_is_gone(bench: Bench) -> None:
    """A repository deleted while the agent ran: the attempt ends, the work is kept, no claim is left."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    made = await bench.job([wait(), *PAINT])
    runner, task = await bench.begin()
    await bench.gate.line()
    await bench.stage.alice.api("DELETE", f"/repos/{bench.stage.path}")
    bench.gate.release()
    await bench.finish(runner, task)
    assert await bench.state(made) == ("waiting", "cannot_tell")
    assert await bench.outcomes(made) == ["retry"]
    assert len(list((bench.directory / "root" / "saved").glob("*.bundle"))) == 1


async def test_repository_renamed_while_the_agent_ran(bench: Bench) -> None:
    """A push that meets the old name of a repository goes on under the new one, once the poller has found it."""
    made = await bench.job([wait(), *PAINT])
    runner, task = await bench.begin()
    await bench.gate.line()
    await bench.stage.alice.edit_repository(bench.stage.path, name="gadgets")
    pushed = await bench.loopback.fault(FaultPlan("GET", r"widgets\.git/info/refs", "call"))
    bench.gate.release()
    await pushed.reached()
    url = f"{bench.stage.url}/acme/gadgets.git"
    await rows.change(bench.conn, "repository", bench.repository_id, name="gadgets", clone_url=url)
    await bench.finish(runner, task)
    assert await bench.state(made) == ("publishing", None)
    (attempt,) = await bench.attempts(made)
    assert bench.branches("gadgets") == {attempt["branch"]: attempt["commit_sha"]}
    assert len(bench.script.recorded("begin")) == 1
