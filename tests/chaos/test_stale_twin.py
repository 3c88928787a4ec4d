"""Two runners of one name, one stopped and continued past its lease: it changes no row, and its push is never used
unless its result was recorded under its lease. TIRELESS_TEST_STALE_ROUNDS: how many rounds.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.support import rows
from tests.support.agents import Step, commit, result, wait, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.forges import FaultPlan
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench, gone
from tests.support.twins import Forge, Twin, Word, interleaved, looks
from tireless.agent.gitcli import Git
from tireless.agent.places import Places
from tireless.agent.workspace import Workspaces
from tireless.redact import Redactor
from tireless.store import deliver, publish, sweep
from tireless.store.db import Connection

ROUNDS = int(os.environ.get("TIRELESS_TEST_STALE_ROUNDS", "40"))
RECORDED = 3
"""So many words in, the result is recorded."""


@pytest.mark.parametrize("seed", range(2))
async def test_stale_twin(conn: Connection, tmp_path: Path, seed: int) -> None:
    """Stopped after any word, swept, continued between any words of the twin that took over: see `_round`."""
    chance = random.Random(seed)
    forge = Forge(tmp_path / "forge.git", Workspaces(Places(tmp_path), Git(redactor=Redactor([]), environ=os.environ)))
    forge.begin()
    ends = [await _round(conn, forge, chance) for _ in range(ROUNDS // 2)]
    assert set(ends) == {
        "the other's work",
        "the other's work, beside a push without a record",
        "its own recorded work",
        "adopted",
    }


async def _round(conn: Connection, forge: Forge, chance: random.Random) -> str:
    """One job; whose work was delivered in the end."""
    made = await rows.job(conn)
    stale = await Twin.claims(conn, forge, made.job_id)
    words = stale.words()
    spoken = chance.randrange(len(words))
    for word in words[:spoken]:
        assert await word()
    await rows.expire(conn, made.job_id)
    assert await sweep.expire_stale_claims(conn) == 1
    if spoken >= RECORDED:
        return await _recorded(conn, forge, chance, stale, words[spoken:])
    fresh = await Twin.claims(conn, forge, made.job_id)
    late = words[spoken : chance.choice([spoken, words.index(stale.pushes) + 1])]
    for word in late:
        await _in_vain(stale, word)
    assert not await fresh.looks_for_work()
    there = forge.head(stale.branch) is not None
    told = [(stale, word) for word in words[spoken + len(late) :]]
    for twin, word in interleaved(chance, told, [(fresh, word) for word in fresh.words()]):
        if twin is stale:
            await _in_vain(stale, word)
        else:
            assert await word()
    assert await _delivered(conn, forge, made.job_id) == fresh.branch
    return "the other's work, beside a push without a record" if there else "the other's work"


async def _recorded(conn: Connection, forge: Forge, chance: random.Random, stale: Twin, words: list[Word]) -> str:
    """The result was recorded under the lease: its push counts, if it is there when somebody looks."""
    pushed = stale.pushes not in words
    if pushed or chance.random() < 0.3:
        for word in words:
            await _in_vain(stale, word)
        assert await _delivered(conn, forge, stale.claim.job_id) == stale.branch
        return "its own recorded work"
    assert await _delivered(conn, forge, stale.claim.job_id) is None
    fresh = await Twin.claims(conn, forge, stale.claim.job_id)
    late = chance.randrange(len(words) + 1)
    for word in words[:late]:
        await _in_vain(stale, word)
    assert await fresh.looks_for_work() is (forge.head(stale.branch) == stale.commit)
    hers = [fresh.settles] if fresh.adopted else fresh.words()
    for twin, word in interleaved(chance, [(stale, word) for word in words[late:]], [(fresh, word) for word in hers]):
        if twin is stale:
            await _in_vain(stale, word)
        else:
            assert await word()
    assert await _delivered(conn, forge, stale.claim.job_id) == (stale if fresh.adopted else fresh).branch
    return "adopted" if fresh.adopted else "the other's work"


async def _in_vain(stale: Twin, word: Word) -> None:
    """What a stale runner says is not taken, and changes no row; only a push cannot be refused."""
    before = await looks(stale.conn, stale.claim.job_id)
    assert await word() is (word == stale.pushes)
    assert await looks(stale.conn, stale.claim.job_id) == before


async def _delivered(conn: Connection, forge: Forge, job_id: int) -> str | None:
    """The branch that is delivered; None: it was not there, and the job went back."""
    taken = await publish.take_publishing(conn, [rows.FORGE], by="p", take_s=60, unanswered_s=0)
    assert taken is not None
    assert taken.job_id == job_id
    if forge.head(taken.branch or "") != taken.commit_sha:
        assert await deliver.return_to_pending(conn, taken, by="p", found=None) is deliver.Ended.DONE
        return None
    async with conn.transaction():
        assert await deliver.deliver(conn, taken, by="p") is deliver.Ended.DONE
    return taken.branch


# ------------------------------------------------------------------------------------------------ in real time

LEASE_S = 8.0
"""Of who is to lose it; long enough for renewals to come in time while he runs. Who takes over has a usual one."""
STALE: list[Step] = [write("a.txt", "stale\n"), wait(), commit("Paint it"), result("done", summary="Stale.")]
FRESH: list[Step] = [write("a.txt", "fresh\n"), commit("Paint it"), result("done", summary="Fresh.")]


async def _continued(bench: Bench, made: rows.Made, stale: asyncio.subprocess.Process) -> None:
    """Let the stopped runner go on until it has said all it wants to say; no row of the job is another after that."""
    before = await looks(bench.conn, made.job_id)
    stale.send_signal(signal.SIGCONT)
    stale.terminate()
    assert await asyncio.wait_for(stale.wait(), 90) == 0, bench.log_of()
    assert await looks(bench.conn, made.job_id) == before


async def _swept(bench: Bench) -> None:
    """The lease is over, by the database's clock and nobody's hand."""
    await rows.lane(bench.conn, lease_s=600.0)
    await bench.until(lambda: sweep.expire_stale_claims(bench.conn), 1)


@pytest.mark.parametrize("stopped", ["while its agent works", "before its agent"])
async def test_runner_stopped_past_its_lease_in_real_time(bench: Bench, stopped: str) -> None:
    """SIGSTOP, a lease that runs out, another runner of the same name, SIGCONT: only the other one's work is there."""
    await rows.lane(bench.conn, lease_s=LEASE_S)
    made = await bench.job(STALE, FRESH) if stopped == "while its agent works" else await bench.job(FRESH)
    fetch = await bench.loopback.fault(FaultPlan("GET", "git-upload-pack", "block"))
    stale = await bench.process()
    await fetch.reached()
    if stopped == "while its agent works":
        await fetch.drop()
        agent = await bench.gate.line()
        stale.send_signal(signal.SIGSTOP)
        await gone(agent.pid)
    else:
        stale.send_signal(signal.SIGSTOP)
        await fetch.drop()
    await _swept(bench)
    await bench.work(host="h2", root=str(bench.directory / "other root"))  # who is stopped may hold locks on his host
    assert all(each["alone"] for each in bench.script.recorded("begin"))
    await _continued(bench, made, stale)
    old, new = await bench.attempts(made)
    assert (old["outcome"], old["recorded_at"]) == ("lease_lost", None)
    assert (await bench.row(made))["result_attempt"] == new["id"]
    assert bench.branches() == {new["branch"]: new["commit_sha"]}
    assert bench.git("show", f"{new['commit_sha']}:a.txt") == "fresh"


async def test_runner_stopped_in_its_push_in_real_time(bench: Bench) -> None:
    """Stopped after the record, its push on the way: the job is for the publisher, and the push it recorded counts."""
    await rows.lane(bench.conn, lease_s=LEASE_S)
    made = await bench.job(FRESH)
    push = await bench.loopback.fault(FaultPlan("POST", "git-receive-pack", "block"))
    stale = await bench.process()
    await push.reached()
    stale.send_signal(signal.SIGSTOP)
    await _swept(bench)
    await push.drop()
    await _continued(bench, made, stale)
    (old,) = await bench.attempts(made)
    assert await bench.state(made) == ("publishing", None)
    assert (await bench.row(made))["result_attempt"] == old["id"]
    assert bench.branches() == {old["branch"]: old["commit_sha"]}
    assert len(bench.script.recorded("begin")) == 1
