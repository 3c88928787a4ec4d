"""The sweep beside claim, renewal and settle of the same job at the same moment: one of them wins, whole."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from typing import TypeVar
from uuid import UUID, uuid4

import pytest

from tests.support import rows
from tireless.domain.outcome import Outcome
from tireless.errors import Refused
from tireless.store import steer
from tireless.store.claim import RunnerId, claim_next, renew_claim
from tireless.store.db import Connection
from tireless.store.record import Answer, RecordedResult, record_result
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims

T = TypeVar("T")

ROUNDS, ROUNDS_MAX = 250, 5000
WINNERS = ("settled", "swept", "renewed", "claimed anew")
OTHER = RunnerId("r1", "h2", uuid4())
"""The next runner has the first one's name."""


async def test_one_of_them_wins(dsn: str) -> None:
    """Leases that end in the middle: sweep, renewal, settle and claim at once agree, 250 times, on who has the job.

    Where a machine is slow the leases are longer, so that each of them wins at times; there are rounds until it has.
    """
    chance, won, pace_s = random.Random(20261), Counter[str](), 0.008
    clock = asyncio.get_running_loop().time
    async with rows.connections(dsn, 6) as (watcher, *conns):
        for number in range(ROUNDS_MAX):
            if number >= ROUNDS and min(won[who] for who in WINNERS) >= 5:
                break
            # Every eighth lease outlasts the round, mostly: else the renewal hardly ever came in time.
            lease_s = (3.0 if number % 8 == 0 else chance.uniform(-0.25, 0.75)) * pace_s
            made = await rows.job(watcher, state="claimed", lease_s=lease_s, max_attempts=9)
            began = clock()
            won[await one_round(watcher, conns, made, chance)] += 1
            pace_s = 0.9 * pace_s + 0.1 * (clock() - began)
            await watcher.execute("DELETE FROM job")
    assert min(won[who] for who in WINNERS) >= 5, won


async def later(turns: int, work: Awaitable[T]) -> T:
    """The same, after giving way so often."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return await work


async def one_round(watcher: Connection, conns: list[Connection], made: rows.Made, chance: random.Random) -> str:
    """All of them at once, each a moment sooner or later; who won."""
    one, two, three, four, five = conns
    turns = [chance.randint(0, 12) for _ in conns]
    word = Outcome.NO_CHANGE if chance.random() < 0.5 else Outcome.LEASE_LOST  # that one is never written
    swept, also, renewed, settled, claims = await asyncio.gather(
        later(turns[0], expire_stale_claims(one)),
        later(turns[1], expire_stale_claims(two)),
        later(turns[2], renew_claim(three, [made.claim])),
        later(turns[3], settle(four, *made.claim, Ending(outcome=word))),
        later(turns[4], claim_next(five, [rows.LANE], runner=OTHER)),
    )
    job = await rows.row(watcher, "job", made.job_id)
    query = "SELECT claim_no::int, outcome FROM attempt WHERE job_id = %(id)s ORDER BY claim_no"
    attempts = [(row["claim_no"], row["outcome"]) for row in await rows.rows(watcher, query, id=made.job_id)]
    if settled is Answer.DONE:
        assert (swept + also, claims, job["state"], attempts) == (0, [], "delivered", [(1, "no_change")])
        return "settled"
    if swept + also == 0:
        assert (claims, job["claim_token"], attempts) == ([], made.token, [(1, None)])
        return "renewed" if renewed else "nobody"
    assert (swept + also, renewed) == (1, {})
    if not claims:
        assert (job["state"], attempts) == ("pending", [(1, "lease_lost")])
        return "swept"
    assert (job["claim_token"], job["claim_no"], attempts) == (claims[0].token, 2, [(1, "lease_lost"), (2, None)])
    return "claimed anew"


async def test_a_renewal_under_way_is_passed_over(dsn: str) -> None:
    """A lease that is being renewed at this moment is not swept, whatever the row said when the sweep looked."""
    async with rows.connections(dsn, 2) as (runner, sweeper):
        made, lease_s = await rows.job(sweeper, state="claimed"), 0.1
        short = "UPDATE job SET claim_expires_at = clock_timestamp() + make_interval(secs => %(s)s)"
        async with runner.transaction():
            renewed: list[UUID] = []
            while not renewed and lease_s < rows.LIMIT_S:  # longer, until it lasts to its renewal on this machine
                lease_s *= 2
                await sweeper.execute(short, {"s": lease_s})
                renewed = list(await renew_claim(runner, [made.claim]))
            assert renewed == [made.token]
            async with asyncio.timeout(rows.LIMIT_S):
                while await rows.value(sweeper, "SELECT claim_expires_at > clock_timestamp() FROM job"):
                    pass  # to the sweeper the lease ends while the renewal is not committed
            assert await expire_stale_claims(sweeper) == 0
        assert await expire_stale_claims(sweeper) == 0
        assert await rows.states(sweeper, [made]) == ["claimed"]


async def test_a_renewal_behind_a_sweep_is_lost(dsn: str) -> None:
    """A renewal that waits for a cancel to commit is given; after the sweep none is, nor is a cancel."""
    async with rows.connections(dsn, 3) as (runner, other, watcher):
        made = await rows.job(watcher, state="claimed")
        async with other.transaction():
            await steer.cancel(other, made.job_id, "ada")
            renewing = asyncio.create_task(renew_claim(runner, [made.claim]))
            await rows.until_blocked(watcher, runner)
        assert (await renewing)[made.claim[1]].cancel_requested == "operator"
        await rows.expire(watcher, made.job_id)
        async with other.transaction():
            assert await expire_stale_claims(other) == 1
            assert await renew_claim(runner, [made.claim]) == {}  # its lease is over: it does not even wait
        assert await rows.states(watcher, [made]) == ["cancelled"]
        with pytest.raises(Refused, match="has ended"):
            await steer.cancel(runner, made.job_id, "ada")


async def test_a_record_behind_a_sweep_is_lost_and_a_sweep_behind_a_record_publishes(dsn: str) -> None:
    """What is recorded while the sweep passes the job over is delivered by the next one; recorded after, it is lost."""
    async with rows.connections(dsn, 3) as (runner, sweeper, watcher):
        late = await rows.job(watcher, state="claimed", lease_s=-1.0)
        async with sweeper.transaction():
            assert await expire_stale_claims(sweeper) == 1
            recording = asyncio.create_task(record_result(runner, *late.claim, RecordedResult(result={})))
            await rows.until_blocked(watcher, runner)
        assert await recording is Answer.LOST
        made = await rows.job(watcher, state="claimed", lease_s=-1.0)
        async with runner.transaction():
            assert await record_result(runner, *made.claim, RecordedResult(result={})) is Answer.DONE
            assert await expire_stale_claims(sweeper) == 0
        assert await expire_stale_claims(sweeper) == 1
        assert await rows.states(watcher, [late, made]) == ["pending", "publishing"]
