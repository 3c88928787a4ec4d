"""Each way into each transition of TRANSITIONS: what is there before, and the act that brings it about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from tests.support import rows
from tireless.domain.job import Kind, State, Transition
from tireless.domain.outcome import Outcome
from tireless.domain.routing import Route
from tireless.store import deliver, steer, sweep
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, transaction
from tireless.store.jobs import NewJob, enqueue, refresh_lane
from tireless.store.publish import Delivery, load_delivery
from tireless.store.record import Answer, NewChild, RecordedResult, record_result
from tireless.store.settle import Ending, Word, settle, settle_together

ME = RunnerId("r1", "h1", uuid4())

Prepare = Callable[[Connection], Awaitable[rows.Made]]
Do = Callable[[Connection, rows.Made], Awaitable[object]]


@dataclass(frozen=True)
class Case:
    """One way to bring a transition about: what is there before, and the act. `tells`: the event it writes."""

    prepare: Prepare
    do: Do
    tells: Transition | None = None


CASES: dict[tuple[str, State | None, State], list[Case]] = {}
"""By the name, source and target of a transition."""


def case(name: str, source: State | None, target: State, prepare: Prepare, do: Do) -> None:
    """List a case."""
    tells = Transition(name, source, target)
    CASES.setdefault((name, source, target), []).append(Case(prepare, do, tells))


# ------------------------------------------------------------------------------------------------ what is there before


def there(state: str = "pending", **columns: Any) -> Prepare:
    """A job in a state, on an issue that is a plan's child."""

    async def prepare(conn: Connection) -> rows.Made:
        plan = await rows.issue(conn)
        made = await rows.job(conn, state=state, **columns)
        await rows.child(conn, plan, "part", number=made.number, issue_id=made.issue_id)
        return made

    return prepare


def due(**columns: Any) -> Prepare:
    """A job whose backoff is over."""

    async def prepare(conn: Connection) -> rows.Made:
        later = await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'")
        made = await there("waiting", not_before=later, not_before_reason="backoff", **columns)(conn)
        await rows.due(conn, made)
        return made

    return prepare


async def asked(conn: Connection) -> rows.Made:
    """An issue that asks, and has no job."""
    await rows.lane(conn)
    issue = await rows.issue(conn)
    of = await rows.row(conn, "issue", issue)
    repository, number = of["repository_id"], of["number"]
    assert isinstance(repository, int)
    assert isinstance(number, int)
    return rows.Made(0, issue, repository, await rows.request(conn, issue), number)


COMPANY = uuid4()
"""The claim of the job that was made right after the one in question."""


def in_company(**columns: Any) -> Prepare:
    """A claimed job that is nobody's child, and another one beside it."""

    async def prepare(conn: Connection) -> rows.Made:
        made = await rows.job(conn, state="claimed", **columns)
        assert (await rows.job(conn, state="claimed", recorded=True, claim_token=COMPANY)).job_id == made.job_id + 1
        return made

    return prepare


async def at_its_limit(conn: Connection) -> rows.Made:
    """A pending job of a repository that runs as much as it may."""
    await rows.job(conn, "acme/full", state="claimed")
    await rows.repository(conn, "acme/full", max_running=1)
    return await rows.job(conn, "acme/full")


async def counted(conn: Connection) -> rows.Made:
    """A pending job in a lane that counts."""
    await rows.lane(conn, max_running=1000)
    return await there()(conn)


async def edited(conn: Connection) -> rows.Made:
    """A job that waits for its text to be approved."""
    made = await there()(conn)
    await rows.change(conn, "issue", made.issue_id, content_hash="edited")
    await conn.execute("UPDATE job SET state = 'waiting' WHERE id = %(id)s", {"id": made.job_id})
    return made


async def taken(conn: Connection) -> rows.Made:
    """A job that a publisher has."""
    made = await there("publishing")(conn)
    until = await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'")
    await rows.change(conn, "job", made.job_id, publish_token=made.token, publish_by="p", publish_until=until)
    return made


async def taken_and_on_hold(conn: Connection) -> rows.Made:
    """The same with a label that keeps it from running again."""
    made = await taken(conn)
    await rows.change(conn, "job", made.job_id, hold=True)
    return made


# ------------------------------------------------------------------------------------------------ acts


def enqueues(*, hold: bool) -> Do:
    """Intake makes the job."""

    async def do(conn: Connection, made: rows.Made) -> object:
        job = NewJob(made.issue_id, made.repository_id, made.request_id, Kind.IMPLEMENT, rows.LANE, hold=hold)
        async with transaction(conn, "enqueueing"):
            return await enqueue(conn, [job])

    return do


def refreshes(*, hold: bool) -> Do:
    """Intake finds another label."""

    async def do(conn: Connection, made: rows.Made) -> object:
        async with transaction(conn, "refreshing"):
            return await refresh_lane(conn, made.job_id, Route(Kind.IMPLEMENT, rows.LANE, 0, hold))

    return do


def settles(outcome: Outcome) -> Do:
    """The runner's last word."""

    async def do(conn: Connection, made: rows.Made) -> object:
        ending = Ending(outcome=outcome, reason="why", wake_s=60.0, question="What?")
        return await settle(conn, *made.claim, ending)

    return do


def settles_in_company(outcome: Outcome) -> Do:
    """The same together with another one's. Only who did it before goes alone, and is told so."""

    async def do(conn: Connection, made: rows.Made) -> object:
        ending = Ending(outcome=outcome, reason="why", wake_s=60.0, question="What?")
        words = [Word(*made.claim, ending), Word(made.job_id + 1, COMPANY, ending)]
        answers = await settle_together(conn, words, ring=lambda _wakes: None)
        if made.claim[1] in answers:
            return answers[made.claim[1]]
        answer = await settle(conn, *made.claim, ending)
        assert answer is Answer.ALREADY
        return answer

    return do


def ends(how: Callable[[Connection, Delivery], Awaitable[object]]) -> Do:
    """The publisher is done with it."""

    async def do(conn: Connection, made: rows.Made) -> object:
        taken_ = await load_delivery(conn, *made.claim, unanswered_s=60)
        if taken_ is None:
            return None
        async with transaction(conn, "ending"):
            return await how(conn, taken_)

    return do


async def claims(conn: Connection, made: rows.Made) -> object:
    """A runner claims."""
    return await claim_next(conn, [rows.LANE], runner=ME)


async def expires(conn: Connection, made: rows.Made) -> object:
    """The sweep takes claims back."""
    return await sweep.expire_stale_claims(conn)


async def wakes(conn: Connection, made: rows.Made) -> object:
    """The sweep wakes."""
    return await sweep.wake_due(conn)


async def cancels(conn: Connection, made: rows.Made) -> object:
    """An operator cancels."""
    return await steer.cancel(conn, made.job_id, "ada")


async def gives_up(conn: Connection, made: rows.Made) -> object:
    """An operator ends a delivery that has begun."""
    return await steer.cancel(conn, made.job_id, "ada", force=True)


async def approves(conn: Connection, made: rows.Made) -> object:
    """An operator approves."""
    return await steer.approve(conn, made.job_id, "ada")


async def reruns(conn: Connection, made: rows.Made) -> object:
    """An operator asks again."""
    return await steer.rerun(conn, made.job_id, "ada")


async def records(conn: Connection, made: rows.Made) -> object:
    """A runner records a plan with two children."""
    children = [NewChild(key=key, title=key, body="To do.", kind=Kind.IMPLEMENT) for key in ("a", "b")]
    return await record_result(conn, *made.claim, RecordedResult(result={"outcome": "done"}, children=children))


async def delivers(conn: Connection, delivery: Delivery) -> object:
    """All of it is on the forge."""
    return await deliver.deliver(conn, delivery, by="publisher")


async def fails(conn: Connection, delivery: Delivery) -> object:
    """The forge will not have it."""
    return await deliver.fail_unpublishable(conn, delivery, by="publisher", reason="refused", error="422")


async def returns(conn: Connection, delivery: Delivery) -> object:
    """Its branch is not where it should be."""
    return await deliver.return_to_pending(conn, delivery, by="publisher", found=None)


PENDING, WAITING, CLAIMED, PUBLISHING = State.PENDING, State.WAITING, State.CLAIMED, State.PUBLISHING
DELIVERED, FAILED, CANCELLED = State.DELIVERED, State.FAILED, State.CANCELLED

case("enqueue", None, PENDING, asked, enqueues(hold=False))
case("enqueue", None, PENDING, there("failed"), reruns)
case("enqueue", None, WAITING, asked, enqueues(hold=True))
case("wait", PENDING, WAITING, there(), refreshes(hold=True))
case("wait", PENDING, WAITING, at_its_limit, claims)
case("wake", WAITING, PENDING, due(), wakes)
case("wake", WAITING, PENDING, there("waiting", hold=True), refreshes(hold=False))
case("wake", WAITING, PENDING, edited, approves)
case("exhaust", WAITING, FAILED, due(attempts=3, claim_no=3), wakes)
case("claim", PENDING, CLAIMED, there(), claims)
case("claim", PENDING, CLAIMED, counted, claims)
case("settle", CLAIMED, PUBLISHING, there("claimed", recorded=True), settles(Outcome.DONE))
case("settle", CLAIMED, DELIVERED, there("claimed"), settles(Outcome.NO_CHANGE))
case("settle", CLAIMED, WAITING, there("claimed"), settles(Outcome.NEEDS_INPUT))
case("settle", CLAIMED, WAITING, there("claimed"), settles(Outcome.AGENT_ERROR))
case("settle", CLAIMED, PENDING, there("claimed"), settles(Outcome.QUOTA))
case("settle", CLAIMED, FAILED, there("claimed"), settles(Outcome.FAILED))
case("settle", CLAIMED, CANCELLED, there("claimed", cancel_requested="closed"), settles(Outcome.NO_CHANGE))
case("settle", CLAIMED, PUBLISHING, in_company(recorded=True), settles_in_company(Outcome.DONE))
case("settle", CLAIMED, DELIVERED, in_company(), settles_in_company(Outcome.NO_CHANGE))
case("settle", CLAIMED, WAITING, in_company(), settles_in_company(Outcome.NEEDS_INPUT))
case("settle", CLAIMED, PENDING, in_company(), settles_in_company(Outcome.SHUTDOWN))
case("settle", CLAIMED, CANCELLED, in_company(cancel_requested="closed"), settles_in_company(Outcome.NO_CHANGE))
case("expire", CLAIMED, PENDING, there("claimed", lease_s=-1.0), expires)
case("expire", CLAIMED, WAITING, there("claimed", lease_s=-1.0, hold=True), expires)
case("expire", CLAIMED, PUBLISHING, there("claimed", lease_s=-1.0, recorded=True), expires)
case("expire", CLAIMED, FAILED, there("claimed", lease_s=-1.0, max_attempts=1), expires)
case("expire", CLAIMED, CANCELLED, there("claimed", lease_s=-1.0, cancel_requested="closed"), expires)
case("publish", PUBLISHING, DELIVERED, taken, ends(delivers))
case("publish", PUBLISHING, FAILED, taken, ends(fails))
case("return", PUBLISHING, PENDING, taken, ends(returns))
case("return", PUBLISHING, WAITING, taken_and_on_hold, ends(returns))
case("cancel", PENDING, CANCELLED, there(), cancels)
case("cancel", WAITING, CANCELLED, there("waiting", hold=True), cancels)
case("cancel", PUBLISHING, CANCELLED, there("publishing"), cancels)
case("cancel", PUBLISHING, FAILED, there("publishing", publish_began_at=datetime.now(UTC)), gives_up)

BESIDE = [Case(there("claimed", kind="plan"), records)]
"""Not transitions, but of several statements as well."""
