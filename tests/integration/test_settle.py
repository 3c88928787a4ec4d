"""Settling: what each outcome makes of its job, once, and only by the claim that holds it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.outcome import Outcome, burns
from tireless.errors import StoreError
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, constraint_of
from tireless.store.issues import end_child
from tireless.store.look import Wake
from tireless.store.record import Answer, append_output, mark_pushed
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims

ME = RunnerId("r1", "h1", uuid4())


def ending(outcome: Outcome) -> Ending:
    """An ending as a runner would say it, with a backoff for those that need one."""
    return Ending(outcome=outcome, reason=f"it was {outcome}", wake_s=60.0)


class Becomes(NamedTuple):
    """What a job is after an outcome, with attempts left and with none."""

    state: str
    reason: str | None
    exhausted: tuple[str, str | None]


AGAIN = Becomes("waiting", "backoff", ("failed", "exhausted"))
TABLE = {
    Outcome.DONE: Becomes("publishing", None, ("publishing", None)),
    Outcome.NO_CHANGE: Becomes("delivered", "no_change", ("delivered", "no_change")),
    Outcome.NEEDS_INPUT: Becomes("waiting", "needs_input", ("waiting", "needs_input")),
    Outcome.BLOCKED: Becomes("waiting", "blocked", ("waiting", "blocked")),
    Outcome.QUOTA: Becomes("pending", None, ("pending", None)),
    Outcome.RETRY: AGAIN,
    Outcome.FAILED: Becomes("failed", "rejected", ("failed", "rejected")),
    Outcome.AGENT_ERROR: AGAIN,
    Outcome.NO_EVIDENCE: AGAIN,
    Outcome.PROTOCOL_ERROR: AGAIN,
    Outcome.TIMEOUT: AGAIN,
    Outcome.STALLED: AGAIN,
    Outcome.OVER_BUDGET: Becomes("waiting", "budget_exhausted", ("waiting", "budget_exhausted")),
    Outcome.WORKSPACE_ERROR: Becomes("waiting", "backoff", ("waiting", "backoff")),
    Outcome.SHUTDOWN: Becomes("pending", None, ("pending", None)),
    Outcome.CANCELLED: Becomes("cancelled", "operator", ("cancelled", "operator")),
}


def test_the_table_is_complete() -> None:
    """Every outcome but a lost lease, which is not ours to say, has its row."""
    assert set(TABLE) == set(Outcome) - {Outcome.LEASE_LOST}


@pytest.mark.parametrize("left", [True, False], ids=["attempts-left", "last-attempt"])
async def test_each_outcome_moves_its_job(conn: Connection, left: bool) -> None:
    """State, reason, attempt, event and look follow the table; no claim is held afterwards."""
    for outcome in TABLE:
        await moves_its_job(conn, outcome, left)


async def moves_its_job(conn: Connection, outcome: Outcome, left: bool) -> None:
    """Settle one job so, and compare it with the table."""
    made = await rows.job(conn, state="claimed", recorded=True, max_attempts=3 if left else 1)
    assert await settle(conn, *made.claim, ending(outcome)) is Answer.DONE
    job, attempt = await rows.row(conn, "job", made.job_id), await rows.row(conn, "attempt", made.attempt_id)
    wanted = TABLE[outcome]
    assert (job["state"], job["reason"]) == ((wanted.state, wanted.reason) if left else wanted.exhausted)
    assert (job["attempts"], job["claim_no"]) == (1 if burns(outcome) else 0, 1)
    assert [job[c] for c in ("claimed_by", "claimed_host", "claim_token", "claimed_at", "claim_expires_at")] == [
        None
    ] * 5
    assert (attempt["outcome"], attempt["burned"]) == (outcome, burns(outcome))
    assert attempt["reason"] == f"it was {outcome}"
    assert await rows.events(conn, made.job_id) == [("settle", "claimed", job["state"], job["reason"])]
    looks = await rows.rows(conn, "SELECT number, why FROM look WHERE number = %(n)s", n=made.number)
    ended = job["state"] in ("delivered", "failed", "cancelled")
    assert looks == ([{"number": made.number, "why": "job ended"}] if ended else [])


async def test_the_same_outcome_twice_counts_once(conn: Connection) -> None:
    """A repeated settle answers "already" and changes nothing; another outcome for the same attempt is lost."""
    for outcome in TABLE:
        made = await rows.job(conn, state="claimed", recorded=True)
        await settle(conn, *made.claim, ending(outcome))
        everything = "SELECT j.*, j.ctid, a.*, a.ctid FROM job j JOIN attempt a ON a.job_id = j.id"
        before = await rows.rows(conn, everything), await rows.events(conn, made.job_id)
        for _ in range(3):
            assert await settle(conn, *made.claim, ending(outcome)) is Answer.ALREADY
        other = Outcome.FAILED if outcome is not Outcome.FAILED else Outcome.DONE
        assert await settle(conn, *made.claim, ending(other)) is Answer.LOST
        assert (await rows.rows(conn, everything), await rows.events(conn, made.job_id)) == before


async def test_a_lost_lease_is_not_settled(conn: Connection) -> None:
    """A runner that lost its lease has no word left; nothing is written."""
    made = await rows.job(conn, state="claimed")
    assert await settle(conn, *made.claim, ending(Outcome.LEASE_LOST)) is Answer.LOST
    assert await rows.states(conn, [made]) == ["claimed"]


async def test_finished_work_settles_after_its_lease(conn: Connection) -> None:
    """The token dies with the sweep, not with the clock: unswept, a late settle counts."""
    made = await rows.job(conn, state="claimed", recorded=True)
    await rows.expire(conn, made.job_id)
    assert await settle(conn, *made.claim, ending(Outcome.DONE)) is Answer.DONE
    assert await expire_stale_claims(conn) == 0


async def test_a_stale_token_of_the_same_runner_touches_nothing(conn: Connection) -> None:
    """Two claims by runners of one name: every write of the older one is lost, whatever it is."""
    made = await rows.job(conn, state="claimed", runner="same")
    await rows.expire(conn, made.job_id)
    await expire_stale_claims(conn)
    (newer,) = await claim_next(conn, [rows.LANE], runner=RunnerId("same", "h1", uuid4()))
    everything = "SELECT j.*, j.ctid, a.*, a.ctid FROM job j JOIN attempt a ON a.job_id = j.id ORDER BY a.id"
    before = await rows.rows(conn, everything)
    assert made.attempt_id is not None
    assert made.token is not None
    for outcome in TABLE:
        assert await settle(conn, *made.claim, ending(outcome)) is Answer.LOST
    assert await mark_pushed(conn, *made.claim) is Answer.LOST
    assert not await append_output(conn, made.attempt_id, made.token, "late")
    assert not await append_output(conn, newer.attempt_id, made.token, "late")
    assert await rows.rows(conn, everything) == before
    assert await settle(conn, newer.job_id, newer.token, ending(Outcome.NO_CHANGE)) is Answer.DONE


async def test_an_unknown_job_or_token_is_lost(conn: Connection) -> None:
    """Settling what never was is "lost", not an error."""
    made = await rows.job(conn, state="claimed")
    assert await settle(conn, 4711, uuid4(), ending(Outcome.DONE)) is Answer.LOST
    assert await settle(conn, made.job_id, uuid4(), ending(Outcome.DONE)) is Answer.LOST


async def test_a_rollback_undoes_all_of_it(conn: Connection) -> None:
    """Rolled back, the job is claimed, the attempt open, the counters as they were, and it can be settled again."""
    plan = await rows.issue(conn)
    made = await rows.job(conn, state="claimed")
    await rows.child(conn, plan, "one", number=made.number, issue_id=made.issue_id)
    await rows.insert(conn, "lane_breaker", lane=rows.LANE, failures=2)
    async with conn.transaction(force_rollback=True):
        assert await settle(conn, *made.claim, ending(Outcome.NO_CHANGE)) is Answer.DONE
        assert (await rows.row(conn, "issue", plan))["children_done"] == 1
    job, attempt = await rows.row(conn, "job", made.job_id), await rows.row(conn, "attempt", made.attempt_id)
    assert (job["state"], job["attempts"], job["claim_token"]) == ("claimed", 1, made.token)
    assert (attempt["ended_at"], attempt["outcome"]) == (None, None)
    assert (await rows.row(conn, "issue", plan))["children_done"] == 0
    assert await rows.value(conn, "SELECT failures FROM lane_breaker") == 2
    assert await rows.events(conn, made.job_id) == []
    assert await rows.rows(conn, "SELECT 1 FROM look") == []
    assert await settle(conn, *made.claim, ending(Outcome.NO_CHANGE)) is Answer.DONE


async def test_what_somebody_did_to_children_by_hand_is_counted_with_the_next_end(conn: Connection) -> None:
    """One that had ended was deleted, or lives again: the others end all the same, and the counter is right again."""
    plan = await rows.issue(conn)
    for key in ("one", "two", "three", "four"):
        made = await rows.job(conn, state="claimed")
        await rows.child(conn, plan, key, number=made.number, issue_id=made.issue_id)
        if key == "three":
            await conn.execute("DELETE FROM child WHERE key = 'one'")
        if key == "four":
            await conn.execute("UPDATE child SET ended_at = NULL, ended_reason = NULL WHERE key = 'two'")
        assert await settle(conn, *made.claim, ending(Outcome.NO_CHANGE)) is Answer.DONE
        ended = await rows.value(conn, "SELECT count(*) FROM child WHERE ended_at IS NOT NULL")
        assert (await rows.row(conn, "issue", plan))["children_done"] == ended
    assert ended == 2
    child = await rows.value(conn, "SELECT id FROM child WHERE key = 'two'")
    assert isinstance(child, int)
    await end_child(conn, child, "closed")
    assert (await rows.row(conn, "issue", plan))["children_done"] == 3


async def test_children_that_end_at_once_are_all_counted(dsn: str) -> None:
    """Who ends one waits for who ended another of the same plan, and counts that one too."""
    async with rows.connections(dsn, 3) as (first, second, watcher):
        plan = await rows.issue(watcher)
        made = [await rows.job(watcher, state="claimed") for _ in range(3)]
        for key, job in enumerate(made):
            await rows.child(watcher, plan, f"k{key}", number=job.number, issue_id=job.issue_id)
        async with first.transaction():
            await settle(first, *made[0].claim, ending(Outcome.NO_CHANGE))
            settling = asyncio.create_task(settle(second, *made[1].claim, ending(Outcome.NO_CHANGE)))
            await rows.until_blocked(watcher, second)
        assert await settling is Answer.DONE
        assert (await rows.row(watcher, "issue", plan))["children_done"] == 2


async def test_a_delivered_child_is_counted_once(conn: Connection) -> None:
    """The child row ends and its plan's counter moves in the ending transaction, and never again."""
    plan = await rows.issue(conn)
    made = await rows.job(conn, state="claimed")
    child = await rows.child(conn, plan, "one", number=made.number, issue_id=made.issue_id)
    await rows.child(conn, plan, "two", number=77)
    for _ in range(2):
        await settle(conn, *made.claim, ending(Outcome.NO_CHANGE))
    again = await rows.job(conn, issue_id=made.issue_id, state="claimed")
    await settle(conn, *again.claim, ending(Outcome.NO_CHANGE))
    assert (await rows.row(conn, "child", child))["ended_reason"] == "delivered"
    assert (await rows.row(conn, "issue", plan))["children_done"] == 1


async def test_a_cancel_asked_for_meanwhile_stands(conn: Connection) -> None:
    """Whatever the run came to, also a recorded result: the job ends cancelled, for the reason that was asked for."""
    for outcome in TABLE:
        await ends_cancelled(conn, outcome)


async def ends_cancelled(conn: Connection, outcome: Outcome) -> None:
    """Settle one job so that somebody wants cancelled."""
    made = await rows.job(conn, state="claimed", recorded=True, cancel_requested="unlabelled", kind="plan")
    await rows.child(conn, made.issue_id, "unsent", job_id=made.job_id, attempt_id=made.attempt_id)
    assert await settle(conn, *made.claim, ending(outcome)) is Answer.DONE
    job, attempt = await rows.row(conn, "job", made.job_id), await rows.row(conn, "attempt", made.attempt_id)
    assert (job["state"], job["reason"], job["cancel_requested"]) == ("cancelled", "unlabelled", None)
    assert (attempt["outcome"], attempt["burned"]) == (outcome, burns(outcome))
    assert job["attempts"] == (1 if burns(outcome) else 0)
    assert await rows.rows(conn, "SELECT 1 FROM child") == []


async def test_done_needs_a_recorded_result(conn: Connection) -> None:
    """Settling `done` without record_result is refused by name, and the job stays claimed."""
    made = await rows.job(conn, state="claimed")
    with pytest.raises(StoreError, match="done_has_a_record") as caught:
        await settle(conn, *made.claim, ending(Outcome.DONE))
    assert constraint_of(caught.value) == "done_has_a_record"
    assert await rows.states(conn, [made]) == ["claimed"]


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.TIMEOUT, Outcome.WORKSPACE_ERROR])
async def test_a_backoff_must_be_chosen(conn: Connection, outcome: Outcome) -> None:
    """An outcome that comes back by itself is refused without its wait, so that nothing retries in a tight loop."""
    with pytest.raises(ValueError, match="want wake_s"):
        await settle(conn, 1, uuid4(), Ending(outcome=outcome))


async def test_what_the_attempt_keeps(conn: Connection) -> None:
    """Exit code, usage, summary and both ends of the output are kept; NUL is cleaned, long output cut to its ends."""
    made = await rows.job(conn, state="claimed")
    said = replace(
        ending(Outcome.FAILED),
        summary="nul \0 here",
        exit_code=44,
        usage={"model": "m\0", "usd": 0.5},
        output_head="ä" * 40_000,
        output_tail="b" + "ä" * 40_000,
    )
    await settle(conn, *made.claim, said)
    attempt = await rows.row(conn, "attempt", made.attempt_id)
    assert (attempt["summary"], attempt["exit_code"]) == ("nul \ufffd here", 44)
    assert attempt["usage"] == {"model": "m\ufffd", "usd": 0.5}
    assert (attempt["output_head"], attempt["output_tail"]) == ("ä" * 32_768, "ä" * 32_768)


async def test_a_question_is_kept_with_the_parked_job(conn: Connection) -> None:
    """needs_input parks with the agent's question, also on the last attempt: a person's answer makes it start anew."""
    made = await rows.job(conn, state="claimed", max_attempts=1)
    await settle(conn, *made.claim, replace(ending(Outcome.NEEDS_INPUT), question="Which colour?"))
    job = await rows.row(conn, "job", made.job_id)
    assert (job["parked"], job["question"], job["attempts"]) == ("needs_input", "Which colour?", 1)
    assert job["parked_at"] is not None


async def test_a_job_given_back_keeps_its_turn_and_its_hold(conn: Connection) -> None:
    """Given back it stands where it stood; a label `hold` that came meanwhile keeps it waiting."""
    made = await rows.job(conn, state="claimed", turn=7)
    held = await rows.job(conn, state="claimed", turn=7, hold=True)
    for job in (made, held):
        await settle(conn, *job.claim, ending(Outcome.SHUTDOWN))
    assert [(await rows.row(conn, "job", job.job_id))["turn"] for job in (made, held)] == [7, 7]
    assert await rows.states(conn, [made, held]) == ["pending", "waiting"]


async def test_a_job_comes_back_only_on_the_approved_text(conn: Connection) -> None:
    """Edited while it ran, the job is parked for approval instead of being offered again."""
    made = await rows.job(conn, state="claimed")
    await rows.change(conn, "issue", made.issue_id, content_hash="edited")
    await settle(conn, *made.claim, ending(Outcome.SHUTDOWN))
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["reason"]) == ("waiting", "needs_approval")


async def test_who_is_told(dsn: str, conn: Connection) -> None:
    """The lane hears of a job that is pending again, the publisher of a result, the poller of an end."""
    async with rows.connections(dsn, 1) as (listener,):
        for channel in ("tireless_lane", "tireless_publish", "tireless_look", "tireless_mirror"):
            await listener.execute(f"LISTEN {channel}".encode())
        for outcome in (Outcome.SHUTDOWN, Outcome.DONE, Outcome.FAILED):
            made = await rows.job(conn, state="claimed", recorded=True)
            await settle(conn, *made.claim, ending(outcome))
        heard = [(n.channel, n.payload) async for n in listener.notifies(timeout=90, stop_after=6)]
    mirror = ("tireless_mirror", "")
    assert heard == [
        mirror,
        ("tireless_lane", rows.LANE),
        mirror,
        ("tireless_publish", ""),
        mirror,
        ("tireless_look", ""),
    ]


async def test_a_sweep_does_not_wait_for_a_settle(dsn: str) -> None:
    """A settle under way is passed over by the sweep, and wins."""
    async with rows.connections(dsn, 2) as (runner, sweeper):
        made = await rows.job(sweeper, state="claimed", recorded=True)
        await rows.expire(sweeper, made.job_id)
        async with runner.transaction():
            assert await settle(runner, *made.claim, ending(Outcome.DONE)) is Answer.DONE
            assert await expire_stale_claims(sweeper) == 0
        assert await rows.states(sweeper, [made]) == ["publishing"]


async def test_a_settle_behind_a_sweep_is_lost(dsn: str) -> None:
    """A settle that waits for the sweep of its claim is lost once that commits, and settles if it does not."""
    async with rows.connections(dsn, 3) as (runner, sweeper, watcher):
        for swept, answer in ((False, Answer.DONE), (True, Answer.LOST)):
            made = await rows.job(watcher, state="claimed")
            await rows.expire(watcher, made.job_id)
            async with sweeper.transaction(force_rollback=not swept):
                assert await expire_stale_claims(sweeper) == 1
                settling = asyncio.create_task(settle(runner, *made.claim, ending(Outcome.NO_CHANGE)))
                await rows.until_blocked(watcher, runner)
            assert await settling is answer


async def test_a_caller_with_a_bell_wakes_them_himself(dsn: str, conn: Connection) -> None:
    """The transaction notifies nobody then: the caller is told whom to wake, once it has committed, if it was done."""
    told: list[Wake] = []
    async with rows.connections(dsn, 1) as (listener,):
        await listener.execute(b"LISTEN tireless_lane; LISTEN tireless_look; LISTEN tireless_mirror")
        made = await rows.job(conn, state="claimed")
        assert await settle(conn, *made.claim, ending(Outcome.FAILED), ring=told.extend) is Answer.DONE
        assert await settle(conn, *made.claim, ending(Outcome.FAILED), ring=told.extend) is Answer.ALREADY
        again = await rows.job(conn, state="claimed")
        assert await settle(conn, *again.claim, ending(Outcome.SHUTDOWN), ring=told.extend) is Answer.DONE
        await conn.execute("NOTIFY tireless_look, 'by the test'")
        heard = [(n.channel, n.payload) async for n in listener.notifies(timeout=90, stop_after=1)]
    assert heard == [("tireless_look", "by the test")]
    mirror = Wake("tireless_mirror")
    assert told == [mirror, Wake("tireless_look"), mirror, Wake("tireless_lane", rows.LANE)]
