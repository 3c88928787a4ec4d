"""Hold, drain, release against claims in flight: under a hold that has returned none becomes visible, 500 times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.outcome import Outcome
from tireless.store import steer
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.settle import Answer, Ending, settle

ROUNDS = 500
LANES = ("open", "counted")
CLAIMS = "SELECT sum(claim_no)::int FROM job WHERE lane = %(lane)s"


class Claimers:
    """They claim and give back as fast as it goes; each claim is in flight for a moment, written and not committed."""

    def __init__(self, conns: Sequence[Connection]) -> None:
        self.conns = conns
        self.asked = [0] * len(conns)
        self.moved = asyncio.Condition()
        self.over = False

    async def work(self, number: int) -> None:
        """One of them."""
        conn, me = self.conns[number], RunnerId("runner", f"h{number}", uuid4())
        while not self.over:
            async with conn.transaction():
                claims = await claim_next(conn, LANES, runner=me, after=LANES[self.asked[number] % 2])
                await conn.execute("SELECT 1")
            for claim in claims:  # given back, so that there is always something to claim
                said = await settle(conn, claim.job_id, claim.token, Ending(outcome=Outcome.SHUTDOWN))
                assert said is Answer.DONE
            async with self.moved:
                self.asked[number] += 1
                self.moved.notify_all()

    async def have_asked(self, times: int = 2) -> None:
        """Every one of them has gone round, from a claim that began after this call to its end."""
        until = [asked + times for asked in self.asked]
        async with self.moved, asyncio.timeout(rows.LIMIT_S):
            await self.moved.wait_for(lambda: all(a >= b for a, b in zip(self.asked, until, strict=True)))


async def play(conns: Sequence[Connection], rounds: int) -> None:
    """Hold a lane, see that nobody claims of it and that it drains, release it, see that somebody does."""
    operator, watcher, *claiming = conns
    for lane in LANES:
        await rows.lane(watcher, lane, max_running=3 if lane == "counted" else None)
        for _ in range(8):
            await rows.job(watcher, lane_name=lane)
    claimers = Claimers(claiming)
    async with asyncio.TaskGroup() as group:
        working = [group.create_task(claimers.work(number)) for number in range(len(claiming))]
        try:
            for number in range(rounds):
                await one_round(operator, watcher, claimers, LANES[number % 2])
        finally:
            claimers.over = True
            await asyncio.wait(working)


async def one_round(operator: Connection, watcher: Connection, claimers: Claimers, lane: str) -> None:
    """The whole of a hold."""
    await steer.hold(operator, lane, "ada", reason="a look")
    before = await rows.value(watcher, CLAIMS, lane=lane)
    await claimers.have_asked()
    assert await rows.value(watcher, CLAIMS, lane=lane) == before, f"lane {lane} was claimed of under a hold"
    assert await steer.drain_done(watcher, lane)
    await steer.release(operator, lane, "ada")
    await claimers.have_asked()
    after = await rows.value(watcher, CLAIMS, lane=lane)
    assert isinstance(after, int)
    assert isinstance(before, int)
    assert after > before, f"nobody claimed of lane {lane} after its release"


@pytest.mark.long
async def test_no_claim_under_a_hold_that_has_returned(dsn: str) -> None:
    """Five hundred rounds over an open and a counted lane, four claimers, claims in flight when the hold begins."""
    async with rows.connections(dsn, 6) as conns:
        await play(conns, ROUNDS)


async def _nothing(*_: object) -> None:
    pass


async def test_a_hold_without_its_barrier_is_caught(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds have teeth: where a hold does not wait for the claims under way, some of them become visible."""
    monkeypatch.setattr(steer, "barrier", _nothing)
    async with rows.connections(dsn, 6) as conns:
        with pytest.raises(ExceptionGroup) as caught:
            await play(conns, ROUNDS)
    assert "was claimed of under a hold" in repr(caught.value.exceptions)
