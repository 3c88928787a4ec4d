"""The rule of leases: a claim is renewed while it is ours, called off when it is not, and no late answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.agents import LIMIT_S
from tests.support.proxies import DatabaseProxy
from tireless.agent.control import boottime
from tireless.domain.outcome import Stop
from tireless.errors import StoreUnavailable
from tireless.services.leases import RENEW_MAX_S, Held, Leases
from tireless.store import steer
from tireless.store.claim import Claim, Renewal, RunnerId, claim_next
from tireless.store.db import Connection, Pool, clock
from tireless.store.db import pool as open_pool

ME = RunnerId("r1", "h1", uuid4())
MARGIN_S = 30.0


@pytest.fixture
async def leases(pool: Pool) -> AsyncIterator[Leases]:
    """Leases that are renewed in the background."""
    made = Leases(pool, margin_s=MARGIN_S)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def claimed(conn: Connection, jobs: int = 1) -> list[Claim]:
    """So many jobs claimed by us."""
    for _ in range(jobs):
        await rows.job(conn)
    return await claim_next(conn, [rows.LANE], runner=ME, n=jobs)


async def news(held: Held) -> Stop | None:
    """Why it was called off, once it is."""
    await asyncio.wait_for(held.news.wait(), LIMIT_S)
    return held.called_off


async def lease_of(conn: Connection, claim: Claim, began: datetime) -> float:
    """How long after `began` the claim ends, in seconds."""
    query = "SELECT extract(epoch FROM claim_expires_at - %(began)s)::float8 FROM job WHERE id = %(id)s"
    left = await rows.value(conn, query, id=claim.job_id, began=began)
    assert isinstance(left, float)
    return left


async def soon_over(conn: Connection, claim: Claim) -> None:
    """Let a claim have a minute left."""
    await conn.execute(
        "UPDATE job SET claim_expires_at = clock_timestamp() + interval '1 min' WHERE id = %(id)s", {"id": claim.job_id}
    )


async def test_one_statement_renews_everything_that_is_held(conn: Connection, pool: Pool) -> None:
    """Three claims of a minute have their whole lease again after one renewal, and their agents a later deadline."""
    leases = Leases(pool, margin_s=MARGIN_S)
    claims = await claimed(conn, 3)
    held = [leases.hold(claim, sent=boottime() - 500) for claim in claims]
    before = [each.control.deadline for each in held]
    for claim in claims:
        await soon_over(conn, claim)
    began = await clock(conn)
    await leases.renew()
    for each, was in zip(held, before, strict=True):
        assert await lease_of(conn, each.claim, began) >= claim.lease_s
        assert each.control.deadline == pytest.approx(was + 500, abs=20)
        assert each.called_off is None


async def test_long_leases_are_renewed_often_enough_to_hear_of_a_cancel(conn: Connection, pool: Pool) -> None:
    """However long a lease is, seconds pass between renewals; a short one is renewed each third of it."""
    (claim,) = await claimed(conn)
    held = Leases(pool, margin_s=MARGIN_S).hold(claim, sent=100.0)
    assert held.claim.lease_s == 600
    assert held.renew_at == 100.0 + RENEW_MAX_S
    await rows.lane(conn, lease_s=9.0)
    (short,) = await claimed(conn)
    assert Leases(pool, margin_s=1.0).hold(short, sent=100.0).renew_at == 103.0


async def test_cancel_is_notified_and_comes_with_the_renewal_that_this_wakes(conn: Connection, leases: Leases) -> None:
    """A cancel notifies by the runner's name; the renewal it wakes tells the agent to stop, and keeps the lease."""
    (claim,) = await claimed(conn)
    held = leases.hold(claim, sent=boottime())
    await conn.execute("LISTEN tireless_cancel")
    assert await steer.cancel(conn, claim.job_id, "ada") is steer.Cancelling.REQUESTED
    heard = [each async for each in conn.notifies(timeout=LIMIT_S, stop_after=1)]
    assert [(each.channel, each.payload) for each in heard] == [("tireless_cancel", "r1")]
    leases.wake.set()
    assert await news(held) is Stop.CANCELLED
    assert held.control.stopped is Stop.CANCELLED
    assert not held.over


@pytest.mark.parametrize("how", ["token", "expired", "swept", "settled"])
async def test_claim_that_is_not_ours_is_called_off(conn: Connection, leases: Leases, how: str) -> None:
    """A renewal that finds another token, an ended lease or another state stops the agent and renews nothing more."""
    (claim,) = await claimed(conn)
    held = leases.hold(claim, sent=boottime())
    match how:
        case "token":
            await rows.change(conn, "job", claim.job_id, claim_token=uuid4())
        case "expired":
            await rows.expire(conn, claim.job_id)
        case "swept":
            await rows.expire(conn, claim.job_id)
            await conn.execute("SELECT expire_claims(10, true)")
        case _:
            await conn.execute(
                "UPDATE job SET state = 'cancelled', reason = 'operator', finished_at = now(), claimed_by = NULL,"
                " claimed_host = NULL, claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL"
            )
    before = await rows.row(conn, "job", claim.job_id)
    leases.wake.set()
    assert await news(held) is Stop.LEASE_LOST
    assert held.over
    await leases.renew()
    assert await rows.row(conn, "job", claim.job_id) == before


async def test_others_go_on_when_one_is_lost(conn: Connection, leases: Leases) -> None:
    """The loss of one claim stops no other agent."""
    first, second = (leases.hold(claim, sent=boottime()) for claim in await claimed(conn, 2))
    await rows.change(conn, "job", first.claim.job_id, claim_token=uuid4())
    leases.wake.set()
    assert await news(first) is Stop.LEASE_LOST
    assert second.called_off is None
    assert not second.news.is_set()


async def test_late_answer_is_no_answer(conn: Connection, pool: Pool) -> None:
    """An answer that comes after the deadline it grants, or after the agent's last one, is a lost claim."""
    leases = Leases(pool, margin_s=MARGIN_S)
    first, second = (leases.hold(claim, sent=boottime()) for claim in await claimed(conn, 2))
    first.renewed(Renewal(600.0, None), sent=boottime() - 600.0 + MARGIN_S)
    assert first.called_off is Stop.LEASE_LOST
    second.control.set_deadline(boottime() - 0.001)
    second.renewed(Renewal(600.0, None), sent=boottime())
    assert second.called_off is Stop.LEASE_LOST


async def test_dead_agents_claim_is_not_renewed(conn: Connection, leases: Leases) -> None:
    """Once an agent had to be dead its claim is let go: a fresh lease would only keep the job from others."""
    (claim,) = await claimed(conn)
    await soon_over(conn, claim)
    held = leases.hold(claim, sent=boottime() - claim.lease_s + MARGIN_S)
    assert await news(held) is Stop.LEASE_LOST
    assert await lease_of(conn, claim, await clock(conn)) < 60


async def test_renewal_beside_the_last_word_takes_nothing_for_lost(conn: Connection, pool: Pool) -> None:
    """A renewal that finds a job settled a moment ago, by its own runner, calls nothing off."""
    leases = Leases(pool, margin_s=MARGIN_S)
    (claim,) = await claimed(conn)
    held = leases.hold(claim, sent=boottime())
    held.settling = True
    await rows.change(conn, "job", claim.job_id, claim_token=uuid4())
    await leases.renew()
    assert held.called_off is None


@pytest.mark.parametrize(
    ("told", "stands"),
    [
        ((Stop.SHUTDOWN, Stop.CANCELLED), Stop.CANCELLED),
        ((Stop.CANCELLED, Stop.SHUTDOWN), Stop.CANCELLED),
        ((Stop.CANCELLED, Stop.LEASE_LOST, Stop.SHUTDOWN), Stop.LEASE_LOST),
    ],
)
async def test_graver_reason_stands(conn: Connection, pool: Pool, told: tuple[Stop, ...], stands: Stop) -> None:
    """Called off for several reasons, a lost lease outranks a cancel, and a cancel a shutdown."""
    (claim,) = await claimed(conn)
    held = Leases(pool, margin_s=MARGIN_S).hold(claim, sent=boottime())
    for why in told:
        held.call_off(why)
    assert held.called_off is stands


async def test_renewals_go_on_after_an_outage(conn: Connection, dsn: str) -> None:
    """A database that was out of reach is asked again, and the claim lives on."""
    (claim,) = await claimed(conn)
    async with DatabaseProxy(dsn) as proxy, open_pool(proxy.dsn, min_size=0, application_name="leases") as pool:
        leases = Leases(pool, margin_s=MARGIN_S)
        held = leases.hold(claim, sent=boottime())
        cut = proxy.cut_at(b"UPDATE job j SET claim_expires_at")
        with pytest.raises(StoreUnavailable):
            await leases.renew()
        assert cut.reached.is_set()
        assert held.called_off is None
        await soon_over(conn, claim)
        began = await clock(conn)
        await leases.renew()
        assert await lease_of(conn, claim, began) >= claim.lease_s
