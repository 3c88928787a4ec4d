"""The money cap of a job: summed over its attempts, never claimed past, a fresh allowance when a person acts."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import ANY
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.job import Kind, State
from tireless.domain.outcome import Outcome
from tireless.domain.routing import Lane, Route
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.deliver import return_to_pending
from tireless.store.jobs import change_resting
from tireless.store.lanes import sync_lanes
from tireless.store.publish import take_publishing
from tireless.store.record import Answer, note_usage
from tireless.store.settle import Ending, settle
from tireless.store.steer import approve, reroute, rerun
from tireless.store.sweep import expire_stale_claims, wake_due

ME = RunnerId("r1", "h1", uuid4())
ASKS = "Its attempts have cost 2.5 USD; a job of lane claude may cost 2.5 USD until a person acts on it."


def ends(outcome: Outcome, usd: float | None = None, wake_s: float = 60.0) -> Ending:
    """An ending that cost something."""
    return Ending(outcome=outcome, reason="so", wake_s=wake_s, usage=None if usd is None else {"usd": usd})


async def claimed(conn: Connection) -> tuple[int, object, float | None]:
    """Claim one: job, token, what is left."""
    (got,) = await claim_next(conn, [rows.LANE], runner=ME)
    return got.job_id, got.token, got.usd_left


async def parked(conn: Connection, made: rows.Made) -> tuple[object, object]:
    """Why it is parked, and what a person is told; nothing may claim it."""
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    job = await rows.row(conn, "job", made.job_id)
    return job["parked"], job["question"]


@pytest.mark.parametrize("counted", [False, True])
async def test_a_claim_hands_out_what_is_left(conn: Connection, counted: bool) -> None:
    """The lane's cap less what the job has cost, to the cent; nothing without a cap, however the lane is claimed."""
    await rows.lane(conn, max_running=9 if counted else None)
    await rows.job(conn, spent_usd="0.7")
    assert (await claimed(conn))[2] is None
    await rows.lane(conn, max_usd="1")
    await rows.job(conn, spent_usd="0.7")
    await rows.job(conn)
    assert [(await claimed(conn))[2] for _ in range(2)] == [0.3, 1.0]


async def test_a_probe_is_told_too(conn: Connection) -> None:
    """The claim that goes first after a hold, and one in a repository with a limit, have the same allowance."""
    await rows.lane(conn, max_usd="1", probing=True)
    await rows.repository(conn, max_running=5)
    await rows.job(conn, spent_usd="0.25")
    assert (await claimed(conn))[2] == 0.75


async def test_attempts_are_summed_exactly(conn: Connection) -> None:
    """Ten times a tenth is one: then the cap is met, and not before."""
    await rows.lane(conn, max_usd="1")
    made = await rows.job(conn, max_attempts=100)
    for number in range(10):
        (got,) = await claim_next(conn, [rows.LANE], runner=ME)
        assert got.usd_left == pytest.approx(1 - number / 10)
        assert await settle(conn, got.job_id, got.token, ends(Outcome.SHUTDOWN, 0.1)) is Answer.DONE
    assert (await parked(conn, made))[0] == "budget_exhausted"
    assert str((await rows.row(conn, "job", made.job_id))["spent_usd"]) == "1.0"


@pytest.mark.parametrize(
    "outcome", [Outcome.RETRY, Outcome.AGENT_ERROR, Outcome.TIMEOUT, Outcome.BLOCKED, Outcome.QUOTA, Outcome.SHUTDOWN]
)
async def test_no_attempt_comes_back_past_the_cap(conn: Connection, outcome: Outcome) -> None:
    """Backed off or given back: with the cap used up a person is asked, and told both numbers; also once it is due."""
    await rows.lane(conn, max_usd="2.5")
    made = await rows.job(conn, state="claimed", spent_usd="1.25", max_attempts=9)
    await settle(conn, *made.claim, ends(outcome, 1.25))
    assert await parked(conn, made) == ("budget_exhausted", ASKS)
    await conn.execute("UPDATE job SET not_before = clock_timestamp() - interval '1 s' WHERE not_before IS NOT NULL")
    await wake_due(conn)
    await conn.execute("DELETE FROM lane_hold")
    assert await parked(conn, made) == ("budget_exhausted", ASKS)


async def test_below_the_cap_nothing_changes(conn: Connection) -> None:
    """A job that has cost less goes on as ever, and one of a lane without a cap whatever it has cost."""
    await rows.lane(conn, max_usd="2.5")
    made = await rows.job(conn, state="claimed", spent_usd="1.25")
    await settle(conn, *made.claim, ends(Outcome.SHUTDOWN, 1.2499))
    assert (await rows.row(conn, "job", made.job_id))["state"] == "pending"
    free = await rows.job(conn, state="claimed", lane_name="free")
    await settle(conn, *free.claim, ends(Outcome.SHUTDOWN, 1e9))
    assert (await rows.row(conn, "job", free.job_id))["state"] == "pending"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Outcome.DONE, "publishing"), (Outcome.NO_CHANGE, "delivered"), (Outcome.FAILED, "failed")],
)
async def test_what_has_ended_stands(conn: Connection, outcome: Outcome, state: str) -> None:
    """Work that was done is delivered, whatever it has cost."""
    await rows.lane(conn, max_usd="1")
    made = await rows.job(conn, state="claimed", recorded=True)
    await settle(conn, *made.claim, ends(outcome, 20.0))
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["parked"]) == (state, None)


async def test_a_question_goes_first(conn: Connection) -> None:
    """An agent that asks is answered; the answer is a person's act."""
    await rows.lane(conn, max_usd="1")
    made = await rows.job(conn, state="claimed")
    await settle(conn, *made.claim, replace(ends(Outcome.NEEDS_INPUT, 20.0), question="Which?"))
    assert await parked(conn, made) == ("needs_input", "Which?")


async def test_stopped_at_the_cap(conn: Connection) -> None:
    """`over_budget` parks, also with the last attempt: the runner's word counts, though its sum may be a hair short."""
    await rows.lane(conn, max_usd="2.5")
    made = await rows.job(conn, state="claimed", max_attempts=1, spent_usd="1")
    await settle(conn, *made.claim, ends(Outcome.OVER_BUDGET, 1.5))
    assert await parked(conn, made) == ("budget_exhausted", ASKS)
    attempt = await rows.row(conn, "attempt", made.attempt_id)
    assert (attempt["outcome"], attempt["burned"]) == ("over_budget", True)


async def test_a_runner_that_died_has_spent_what_it_noted(conn: Connection) -> None:
    """What an agent said on its way counts when the lease ends, once; a claim that is lost notes nothing."""
    await rows.lane(conn, max_usd="2.5")
    made = await rows.job(conn, state="claimed", max_attempts=9)
    assert made.attempt_id is not None
    assert made.token is not None
    assert await note_usage(conn, made.attempt_id, made.token, {"usd": 1.0})
    assert await note_usage(conn, made.attempt_id, made.token, {"usd": 2.5})
    await rows.expire(conn, made.job_id)
    assert await expire_stale_claims(conn) == 1
    assert await parked(conn, made) == ("budget_exhausted", ASKS)
    assert ("expire", "claimed", "waiting", "budget_exhausted") in await rows.events(conn, made.job_id)
    assert not await note_usage(conn, made.attempt_id, made.token, {"usd": 9.0})
    assert (await rows.row(conn, "attempt", made.attempt_id))["usage"] == {"usd": 2.5}


async def test_an_ending_without_usage_leaves_what_was_noted(conn: Connection) -> None:
    """A runner that was called off before it could ask says nothing of money: the note stands, and is summed."""
    made = await rows.job(conn, state="claimed")
    assert made.attempt_id is not None
    assert made.token is not None
    await note_usage(conn, made.attempt_id, made.token, {"usd": 1.5})
    await settle(conn, *made.claim, ends(Outcome.SHUTDOWN))
    assert str((await rows.row(conn, "job", made.job_id))["spent_usd"]) == "1.5"


async def test_returned_by_the_publisher(conn: Connection) -> None:
    """Work that was not where it should be comes back only as far as money goes."""
    await rows.lane(conn, max_usd="1")
    made = await rows.job(conn, state="publishing", spent_usd="1.5")
    delivery = await take_publishing(conn, [rows.FORGE], by="p", take_s=60.0, unanswered_s=0.0)
    assert delivery is not None
    assert await return_to_pending(conn, delivery, by="p", found=None)
    assert (await parked(conn, made))[0] == "budget_exhausted"


async def test_a_cap_that_falls_parks_what_waits_for_its_turn(conn: Connection) -> None:
    """With `serve`'s new configuration pending jobs that have cost more are parked; a cap that rises wakes none."""
    made, cheap = await rows.job(conn, spent_usd="3"), await rows.job(conn, spent_usd="1")
    held = await rows.job(conn, state="waiting", hold=True, spent_usd="3")
    asks = await rows.job(conn, state="waiting", parked="needs_input", question="?", spent_usd="3")
    await sync_lanes(conn, [Lane(rows.LANE, max_usd=2.5)])
    assert await rows.states(conn, [made, cheap]) == ["waiting", "pending"]
    assert await rows.events(conn, made.job_id) == [("wait", "pending", "waiting", "budget_exhausted")]
    assert await rows.events(conn, held.job_id) == [("refresh", "waiting", "waiting", "budget_exhausted")]
    assert (await rows.row(conn, "job", asks.job_id))["question"] == "?"
    await sync_lanes(conn, [Lane(rows.LANE, max_usd=10.0)])
    assert await rows.states(conn, [made, cheap]) == ["waiting", "pending"]
    (got,) = await claim_next(conn, [rows.LANE], runner=ME)
    assert (got.job_id, got.usd_left) == (cheap.job_id, 9.0)


SHORT = (
    "Its attempts have cost 2 USD; a job of lane claude may cost 2.5 USD until a person acts on it, and 0.5 USD are "
    "left: less than the 0.75 USD without which this lane starts no attempt."
)


async def reserved(conn: Connection, made: rows.Made) -> None:
    """It was not started again, and says with what sum; a person gives it a fresh allowance."""
    assert await parked(conn, made) == ("budget_exhausted", SHORT)
    assert await approve(conn, made.job_id, "ada") is State.PENDING
    assert await claimed(conn) == (made.job_id, ANY, 2.5)


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.SHUTDOWN, Outcome.BLOCKED])
async def test_no_attempt_is_started_on_less_than_the_reserve(conn: Connection, outcome: Outcome) -> None:
    """Backed off or given back with less left than the lane reserves: a person is asked, also once it is due."""
    await rows.lane(conn, max_usd="2.5", reserve_usd="0.75")
    made = await rows.job(conn, state="claimed", spent_usd="1", max_attempts=9)
    await settle(conn, *made.claim, ends(outcome, 1.0))
    await conn.execute("UPDATE job SET not_before = clock_timestamp() - interval '1 s' WHERE not_before IS NOT NULL")
    await wake_due(conn)
    await reserved(conn, made)


async def test_a_lease_that_ended_leaves_the_reserve_alone(conn: Connection) -> None:
    """What the agent of a dead runner noted counts: with less left than the lane reserves nobody claims it again."""
    await rows.lane(conn, max_usd="2.5", reserve_usd="0.75")
    made = await rows.job(conn, state="claimed", max_attempts=9)
    assert made.attempt_id is not None
    assert made.token is not None
    assert await note_usage(conn, made.attempt_id, made.token, {"usd": 2.0})
    await rows.expire(conn, made.job_id)
    assert await expire_stale_claims(conn) == 1
    await reserved(conn, made)


async def test_the_reserve_is_enough_and_says_nothing_of_a_first_attempt(conn: Connection) -> None:
    """With just the reserve left an attempt is started; a job that has cost nothing always is."""
    await rows.lane(conn, max_usd="2.5", reserve_usd="0.75")
    made = await rows.job(conn, state="claimed", max_attempts=9)
    await settle(conn, *made.claim, ends(Outcome.SHUTDOWN, 1.75))
    assert await claimed(conn) == (made.job_id, ANY, 0.75)
    await rows.lane(conn, max_usd="0.5")
    fresh = await rows.job(conn)
    assert await claimed(conn) == (fresh.job_id, ANY, 0.5)


async def test_a_reserve_that_rises_parks_what_waits_for_its_turn(conn: Connection) -> None:
    """With `serve`'s new configuration pending jobs that have less left are parked; one that falls wakes none."""
    made, cheap = await rows.job(conn, spent_usd="2"), await rows.job(conn, spent_usd="1")
    await sync_lanes(conn, [Lane(rows.LANE, max_usd=2.5)])
    assert await rows.states(conn, [made, cheap]) == ["pending", "pending"]
    await sync_lanes(conn, [Lane(rows.LANE, max_usd=2.5, reserve_usd=0.75)])
    assert await rows.states(conn, [made, cheap]) == ["waiting", "pending"]
    assert (await rows.row(conn, "job", made.job_id))["question"] == SHORT
    await sync_lanes(conn, [Lane(rows.LANE, max_usd=2.5)])
    assert await rows.states(conn, [made, cheap]) == ["waiting", "pending"]


async def test_another_lane_has_its_own_cap(conn: Connection) -> None:
    """A job that is moved to a lane where it has cost enough is parked there."""
    await rows.lane(conn, "cheap", max_usd="1")
    made = await rows.job(conn, spent_usd="1.5")
    assert await reroute(conn, made.job_id, "cheap", "ada") is State.WAITING
    assert (await rows.row(conn, "job", made.job_id))["parked"] == "budget_exhausted"


async def test_a_person_gives_a_fresh_allowance(conn: Connection) -> None:
    """`jobs approve`, asking again and answering begin to count anew; a refresh by labels does not; a rerun is new."""
    await rows.lane(conn, max_usd="1")
    made = await rows.job(conn, spent_usd="1.5", claim_no=4)
    route = Route(Kind.IMPLEMENT, rows.LANE)

    async def spent() -> tuple[object, ...]:
        job = await rows.row(conn, "job", made.job_id)
        return job["state"], str(job["spent_usd"]), job["fresh_from"]

    assert await change_resting(conn, made.job_id, route, what="refresh") == "waiting"
    assert await change_resting(conn, made.job_id, route, what="unpark", unpark=True) == "waiting"
    assert await spent() == ("waiting", "1.5", 0)
    assert await approve(conn, made.job_id, "ada") is State.PENDING
    assert await spent() == ("pending", "0", 4)
    await rows.change(conn, "job", made.job_id, spent_usd="1", claim_no=6)
    assert await change_resting(conn, made.job_id, route, what="re-ask", unpark=True, by_person=True) == "pending"
    assert await spent() == ("pending", "0", 6)
    ended = await rows.job(conn, state="failed", spent_usd="7")
    again = await rows.row(conn, "job", await rerun(conn, ended.job_id, "ada"))
    assert (again["state"], str(again["spent_usd"])) == ("pending", "0")
