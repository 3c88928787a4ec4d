"""What an operator does to jobs: cancel and rerun are defined for every state, and an approval means the text."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.job import TERMINAL, Cancelled, State
from tireless.errors import NotKnown, Refused
from tireless.store.claim import RunnerId, claim_next, renew_claim
from tireless.store.db import Connection
from tireless.store.deliver import Ended, deliver
from tireless.store.publish import take_publishing
from tireless.store.steer import Cancelling, approve, bump, cancel, reroute, rerun
from tireless.store.sweep import expire_stale_claims

ME = RunnerId("r1", "h1", uuid4())


async def job_in(conn: Connection, state: State) -> rows.Made:
    """A job in that state."""
    return await rows.job(conn, state=state, hold=state is State.WAITING)


async def refusal(conn: Connection, made: rows.Made) -> str:
    """The code with which cancelling this job is refused."""
    with pytest.raises(Refused) as caught:
        await cancel(conn, made.job_id, "ada")
    return caught.value.code


# ------------------------------------------------------------------------------------------------ cancel


async def test_cancel_in_every_state(conn: Connection) -> None:
    """Resting and publishing jobs end at once, a running one is asked, an ended one refuses."""
    for state in State:
        made = await job_in(conn, state)
        if state in TERMINAL:
            assert await refusal(conn, made) == "already_ended"
            assert await rows.states(conn, [made]) == [state]
            continue
        done = await cancel(conn, made.job_id, "ada")
        job = await rows.row(conn, "job", made.job_id)
        if state is State.CLAIMED:
            assert (done, job["state"], job["cancel_requested"]) == (Cancelling.REQUESTED, "claimed", "operator")
            assert await rows.events(conn, made.job_id) == [("cancel asked", "claimed", "claimed", "operator")]
        else:
            assert (done, job["state"], job["reason"]) == (Cancelling.CANCELLED, "cancelled", "operator")
            assert await rows.events(conn, made.job_id) == [("cancel", state, "cancelled", "operator")]
            assert await rows.rows(conn, "SELECT 1 FROM look WHERE number = %(n)s", n=made.number)


async def test_cancel_comes_too_late_for_what_is_on_the_forge(conn: Connection) -> None:
    """Once the first create was sent a job in publishing refuses, and goes on; before, its take is taken from it."""
    now = await rows.value(conn, "SELECT clock_timestamp()")
    take = {"publish_by": "p1", "publish_token": uuid4(), "publish_until": now}
    begun = await rows.job(conn, state="publishing", publish_began_at=now)
    taken = await rows.job(conn, state="publishing")
    for made in (begun, taken):
        await rows.change(conn, "job", made.job_id, **take)
    assert await refusal(conn, begun) == "too_late"
    assert await cancel(conn, taken.job_id, "ada") is Cancelling.CANCELLED
    assert await rows.states(conn, [begun, taken]) == ["publishing", "cancelled"]


async def test_a_delivery_that_has_begun_is_given_up_by_force(conn: Connection) -> None:
    """It ends failed and names what is on the forge; its publisher's words are lost; what was never sent is dropped."""
    now = await rows.value(conn, "SELECT clock_timestamp()")
    made = await rows.job(conn, state="publishing", kind="plan", publish_began_at=now, pull_request=12)
    await rows.change(conn, "attempt", made.attempt_id, commit_sha="c", branch="b")
    for key, sent in (("made", {"number": 31, "sent_at": now}), ("sent", {"sent_at": now}), ("planned", {})):
        await rows.child(conn, made.issue_id, key, job_id=made.job_id, attempt_id=made.attempt_id, **sent)
    taken = await take_publishing(conn, [rows.FORGE], by="p1", take_s=60, unanswered_s=60)
    assert taken is not None
    assert await refusal(conn, made) == "too_late"
    assert await cancel(conn, made.job_id, "ada", force=True) is Cancelling.ABANDONED
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["reason"], job["publish_token"]) == ("failed", "unpublishable", None)
    told = await rows.value(conn, "SELECT details FROM job_event WHERE what = 'cancel'")
    assert (job["publish_reason"], told) == ("given_up", {"branch": "b", "pull_request": 12, "children": [31]})
    assert await rows.events(conn, made.job_id) == [("cancel", "publishing", "failed", "unpublishable")]
    left = await rows.rows(conn, "SELECT key FROM child ORDER BY key")
    assert [row["key"] for row in left] == ["made", "sent"]
    async with conn.transaction():
        assert await deliver(conn, taken, by="p1") is Ended.LOST
    assert await refusal(conn, made) == "already_ended"


async def test_force_is_for_deliveries_alone(conn: Connection) -> None:
    """Everywhere else it changes nothing of what a cancel does."""
    resting, running = await rows.job(conn), await rows.job(conn, state="claimed")
    ready = await rows.job(conn, state="publishing")
    came = [await cancel(conn, made.job_id, "ada", force=True) for made in (resting, running, ready)]
    assert came == [Cancelling.CANCELLED, Cancelling.REQUESTED, Cancelling.CANCELLED]


async def test_a_runner_learns_of_a_cancel_by_renewing(conn: Connection) -> None:
    """The renewal brings the reason; the first reason stands."""
    made = await rows.job(conn, state="claimed")
    await cancel(conn, made.job_id, "ada", reason=Cancelled.CLOSED)
    await cancel(conn, made.job_id, "bob")
    assert (await renew_claim(conn, [made.claim]))[made.claim[1]].cancel_requested == "closed"
    assert len(await rows.events(conn, made.job_id)) == 1


async def test_a_cancelled_job_of_a_dead_runner_ends_with_its_lease(conn: Connection) -> None:
    """Nobody renews: one sweep after the lease's end the job is cancelled."""
    made = await rows.job(conn, state="claimed", lease_s=-1.0)
    await cancel(conn, made.job_id, "ada")
    assert await expire_stale_claims(conn) == 1
    assert await rows.states(conn, [made]) == ["cancelled"]


async def test_a_claim_and_a_cancel_at_once(dsn: str) -> None:
    """The cancel that waits for a claim finds it running and asks; a claim beside a cancel passes the job over."""
    async with rows.connections(dsn, 3) as (one, two, watcher):
        made = await rows.job(watcher)
        async with one.transaction():
            await claim_next(one, [rows.LANE], runner=ME)
            cancelling = asyncio.create_task(cancel(two, made.job_id, "ada"))
            await rows.until_blocked(watcher, two)
        assert await cancelling is Cancelling.REQUESTED
        other = await rows.job(watcher)
        async with one.transaction():
            await cancel(one, other.job_id, "ada")
            assert await claim_next(two, [rows.LANE], runner=ME) == []
        assert await rows.states(watcher, [made, other]) == ["claimed", "cancelled"]


async def test_a_cancelled_plan_leaves_no_unsent_children(conn: Connection) -> None:
    """Children that were recorded but not sent go, those on the forge stay."""
    made = await rows.job(conn, state="publishing", kind="plan")
    for key, number in (("a", None), ("b", 5)):
        await rows.child(conn, made.issue_id, key, job_id=made.job_id, number=number)
    await cancel(conn, made.job_id, "ada")
    assert [row["key"] for row in await rows.rows(conn, "SELECT key FROM child")] == ["b"]


# ------------------------------------------------------------------------------------------------ rerun


async def test_a_rerun_is_a_new_row(conn: Connection) -> None:
    """An ended job is run again as a new job with a request of its own; the old row stays to the letter."""
    for state in TERMINAL:
        made = await job_in(conn, state)
        before = await rows.row(conn, "job", made.job_id)
        again = await rerun(conn, made.job_id, "ada")
        assert await rows.row(conn, "job", made.job_id) == before
        job = await rows.row(conn, "job", again)
        request = await rows.row(conn, "request", job["request_id"])
        assert (job["state"], job["rerun_of"], job["attempts"], job["claim_no"]) == ("pending", made.job_id, 0, 0)
        assert (job["issue_id"], job["lane"], job["kind"]) == (made.issue_id, rows.LANE, "implement")
        assert (request["source"], request["actor_login"], request["event_id"]) == ("operator", "ada", None)
        assert await rows.events(conn, again) == [("enqueue", None, "pending", None)]
        (got,) = await claim_next(conn, [rows.LANE], runner=ME)
        assert (got.job_id, got.rerun_of) == (again, made.job_id)


async def test_a_live_job_is_not_run_again(conn: Connection) -> None:
    """In every state that is not an end, and while a younger job of the issue lives: already_live."""
    for state in set(State) - TERMINAL:
        made = await job_in(conn, state)
        with pytest.raises(Refused) as caught:
            await rerun(conn, made.job_id, "ada")
        assert caught.value.code == "already_live"
        old = await rows.job(conn, issue_id=(await rows.job(conn, state="failed")).issue_id, state="cancelled")
        await rerun(conn, old.job_id, "ada")
        with pytest.raises(Refused, match="is pending: wait for it"):
            await rerun(conn, old.job_id, "ada")


async def test_two_reruns_at_once_make_one_job(dsn: str) -> None:
    """Of two operators who run the same job again at the same moment one is refused."""
    async with rows.connections(dsn, 2) as (one, two):
        made = await rows.job(one, state="failed")
        got = await asyncio.gather(
            rerun(one, made.job_id, "ada"), rerun(two, made.job_id, "bob"), return_exceptions=True
        )
        assert [type(answer) for answer in sorted(got, key=lambda answer: isinstance(answer, int))] == [Refused, int]


async def test_a_closed_issue_is_not_run_again(conn: Connection) -> None:
    """The refusal names the next step."""
    made = await rows.job(conn, state="failed")
    await rows.change(conn, "issue", made.issue_id, open=False)
    with pytest.raises(Refused, match="reopen it") as caught:
        await rerun(conn, made.job_id, "ada")
    assert caught.value.code == "closed"


async def test_a_rerun_approves_nothing(conn: Connection) -> None:
    """Text that was edited since its approval stays unapproved: the new job waits for that."""
    made = await rows.job(conn, state="failed")
    await rows.change(conn, "issue", made.issue_id, content_hash="edited")
    again = await rows.row(conn, "job", await rerun(conn, made.job_id, "ada"))
    assert (again["state"], again["reason"]) == ("waiting", "needs_approval")


# ------------------------------------------------------------------------------------------------ approve


async def test_approving_means_the_text_as_it_is_now(conn: Connection) -> None:
    """The stored text becomes the approved one, the job starts anew and hands out exactly that."""
    made = await rows.job(conn, attempts=2, claim_no=4)
    await rows.change(conn, "issue", made.issue_id, title="New", body="New body", content_hash="new hash")
    await rows.change(conn, "job", made.job_id, state="pending")  # what intake does after an edit
    assert (await rows.row(conn, "job", made.job_id))["reason"] == "needs_approval"
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    assert await approve(conn, made.job_id, "ada") is State.PENDING
    (got,) = await claim_next(conn, [rows.LANE], runner=ME)
    assert (got.title, got.body, got.attempts, got.claim_no) == ("New", "New body", 1, 5)
    issue = await rows.row(conn, "issue", made.issue_id)
    assert (issue["approved_by"], issue["approved_hash"]) == ("ada", "new hash")
    assert (await rows.events(conn, made.job_id))[0] == ("wake", "waiting", "pending", None)


async def test_approving_answers_every_parked_reason(conn: Connection) -> None:
    """Asked for input without attempts left, suspect, without progress or budget: all go on, with all attempts."""
    for parked in ("needs_input", "suspect", "no_progress", "budget_exhausted", "asked_too_often"):
        made = await rows.job(conn, state="waiting", parked=parked, attempts=3, claim_no=9, given_back=6, question="?")
        assert await approve(conn, made.job_id, "ada") is State.PENDING
        job = await rows.row(conn, "job", made.job_id)
        assert (job["attempts"], job["claim_no"], job["given_back"], job["question"]) == (0, 9, 0, None)


async def test_no_wait_of_the_clocks_outlasts_an_approval(conn: Connection) -> None:
    """A job that was parked as suspect has an hour or a day to wait besides: a person has said that it may go on."""
    later = await rows.value(conn, "SELECT clock_timestamp() + interval '1 day'")
    for reason in ("backoff", "blocked"):
        made = await rows.job(
            conn, state="waiting", parked="suspect", given_back=6, not_before=later, not_before_reason=reason
        )
        assert await approve(conn, made.job_id, "ada") is State.PENDING
        job = await rows.row(conn, "job", made.job_id)
        assert (job["not_before"], job["not_before_reason"]) == (None, None)


async def test_an_approved_job_may_wait_for_more(conn: Connection) -> None:
    """Approval takes away what a person decides, and nothing else."""
    made = await rows.job(conn, state="waiting", parked="needs_input", hold=True)
    assert await approve(conn, made.job_id, "ada") is State.WAITING
    assert (await rows.row(conn, "job", made.job_id))["reason"] == "on_hold"
    assert await rows.events(conn, made.job_id) == [("approve", "waiting", "waiting", "on_hold")]


async def test_only_parked_jobs_are_approved(conn: Connection) -> None:
    """In every other state approval is refused and approves no text."""
    for state in State:
        made = await job_in(conn, state)
        await rows.change(conn, "issue", made.issue_id, title="New")
        with pytest.raises(Refused) as caught:
            await approve(conn, made.job_id, "ada")
        assert caught.value.code == "not_parked"
        assert (await rows.row(conn, "issue", made.issue_id))["approved_title"] != "New"


# ------------------------------------------------------------------------------------------------ lane, priority


async def test_an_operator_moves_a_queued_job(conn: Connection) -> None:
    """Lane and priority change, a new turn is given, and the row remembers that a person chose."""
    made = await rows.job(conn)
    await rows.lane(conn, "codex")
    assert await reroute(conn, made.job_id, "codex", "ada") is State.PENDING
    assert await bump(conn, made.job_id, "ada") is State.PENDING
    assert await bump(conn, made.job_id, "ada", priority=-1) is State.PENDING
    job = await rows.row(conn, "job", made.job_id)
    assert (job["lane"], job["priority"], job["steered"]) == ("codex", -1, ["lane", "priority"])
    assert [what for what, *_ in await rows.events(conn, made.job_id)] == ["reroute", "bump", "bump"]
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    assert len(await claim_next(conn, ["codex"], runner=ME)) == 1


async def test_only_queued_jobs_are_moved(conn: Connection) -> None:
    """A waiting job may be moved too; what runs, is delivered or has ended refuses."""
    await rows.lane(conn, "codex")
    for state in State:
        made = await job_in(conn, state)
        if state in (State.PENDING, State.WAITING):
            assert await reroute(conn, made.job_id, "codex", "ada") is state
            continue
        with pytest.raises(Refused) as caught:
            await reroute(conn, made.job_id, "codex", "ada")
        assert caught.value.code == "not_queued"


async def test_a_job_is_not_moved_to_a_lane_that_is_none(conn: Connection) -> None:
    """An unknown lane is not known, one that is gone from the configuration is refused."""
    made = await rows.job(conn)
    await rows.lane(conn, "gone", configured=False)
    with pytest.raises(NotKnown, match="no lane nowhere"):
        await reroute(conn, made.job_id, "nowhere", "ada")
    with pytest.raises(Refused, match="gone from the configuration"):
        await reroute(conn, made.job_id, "gone", "ada")


async def test_an_unknown_job_is_said_to_be_unknown(conn: Connection) -> None:
    """Every act on a job that is not there says so."""
    await rows.lane(conn)
    for act in (cancel, rerun, approve, bump):
        with pytest.raises(NotKnown, match="no job 4711"):
            await act(conn, 4711, "ada")
    with pytest.raises(NotKnown, match="no job 4711"):
        await reroute(conn, 4711, rows.LANE, "ada")
