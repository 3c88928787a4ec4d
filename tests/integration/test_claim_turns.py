"""Fair turns: a repository with a thousand jobs delays another's single job by at most one job for each runner."""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.bulk import asks
from tireless.domain.outcome import Outcome
from tireless.store.claim import Claim, RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.settle import Answer, Ending, settle
from tireless.store.sweep import expire_stale_claims

ME = RunnerId("r1", "h1", uuid4())


async def settled(conn: Connection, claims: Sequence[Claim], outcome: Outcome = Outcome.FAILED) -> None:
    """End these claims."""
    for claim in claims:
        assert await settle(conn, claim.job_id, claim.token, Ending(outcome=outcome)) is Answer.DONE
        await conn.execute("DELETE FROM lane_hold")  # what the breaker makes of it is not asked here


async def taken_before(conn: Connection, path: str) -> list[int]:
    """The jobs of others that are claimed, each ended before the next one is, until one of `path` is."""
    taken: list[int] = []
    while len(taken) < 2000:
        (claim,) = await claim_next(conn, [rows.LANE], runner=ME)
        if claim.repo.path == path:
            return taken
        taken.append(claim.job_id)
        await settled(conn, [claim])
    raise AssertionError(f"no claim ever came to {path}")


@pytest.mark.parametrize("runners", [1, 4])
async def test_a_thousand_jobs_delay_another_by_one_for_each_runner(conn: Connection, runners: int) -> None:
    """Beside what was running when the single job came, given back or expired meanwhile, only one goes before it."""
    await asks(conn, "acme/busy", 1000)
    chance = random.Random(runners)
    for turn in range(12):
        running = [(await claim_next(conn, [rows.LANE], runner=ME))[0] for _ in range(runners)]
        await asks(conn, "acme/quiet", 1)
        back = [claim for claim in running if chance.random() < 0.7]
        if turn % 2:
            await settled(conn, back, Outcome.SHUTDOWN)
        else:
            for claim in back:
                await rows.expire(conn, claim.job_id)
            await expire_stale_claims(conn)
        await settled(conn, [claim for claim in running if claim not in back])
        before = await taken_before(conn, "acme/quiet")
        assert len(set(before) - {claim.job_id for claim in running}) <= 1


async def test_what_comes_back_to_a_queue_that_began_anew_stands_in_front(conn: Connection) -> None:
    """The lane ran empty while jobs with late turns were running: they do not wait for all that came since."""
    await asks(conn, "acme/old", 60)
    claims = await claim_next(conn, [rows.LANE], runner=ME, n=60)
    await settled(conn, claims[:58])
    await asks(conn, "acme/new", 60)
    await settled(conn, claims[58:59], Outcome.SHUTDOWN)
    await rows.expire(conn, claims[59].job_id)
    assert await expire_stale_claims(conn) == 1
    got = [(await claim_next(conn, [rows.LANE], runner=ME))[0] for _ in range(4)]
    assert [claim.repo.path for claim in got].count("acme/old") == 2


async def test_what_comes_back_keeps_its_place_in_a_queue_that_went_on(conn: Connection) -> None:
    """Given back before the others of its repository it is the first of them again."""
    await asks(conn, "acme/one", 10)
    first = (await claim_next(conn, [rows.LANE], runner=ME))[0]
    await claim_next(conn, [rows.LANE], runner=ME, n=3)
    await settled(conn, [first], Outcome.SHUTDOWN)
    assert (await claim_next(conn, [rows.LANE], runner=ME))[0].job_id == first.job_id
