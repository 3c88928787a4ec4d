"""Each transition with its connection cut: before, during and after every statement, the COMMIT among them.

The rows are then as they were or as they are to be, whole; and repeating the act leads there. The cases are those of
TRANSITIONS, all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.cutting import Cutter, When
from tireless.domain.job import TRANSITIONS, Kind, State, Transition
from tireless.domain.outcome import Outcome
from tireless.domain.routing import Route
from tireless.errors import Refused, StoreError, StoreUnavailable
from tireless.store import deliver, steer, sweep
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, connect, transaction
from tireless.store.jobs import NewJob, enqueue, refresh_lane
from tireless.store.publish import Delivery, load_delivery
from tireless.store.record import Answer, NewChild, RecordedResult, record_result
from tireless.store.settle import Ending, Word, settle, settle_together

ME = RunnerId("r1", "h1", uuid4())
NAME = "tireless cut"

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
        await conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
        await conn.execute("UPDATE job SET not_before = now() - interval '1 s' WHERE not_before IS NOT NULL")
        await conn.execute("ALTER TABLE job ENABLE TRIGGER USER")
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


def test_every_transition_has_its_cases() -> None:
    """The list is not empty, and none of it is left out or made up."""
    assert TRANSITIONS
    assert set(CASES) == {(t.name, t.source, t.target) for t in TRANSITIONS}


# ------------------------------------------------------------------------------------------------ what is there after

DIFFERENT = {"id", "at", "uid", "token", "claim_token", "publish_token", "number", "position", "url", "branch"}
DIFFERENT |= {"not_before", "publish_until", "publish_not_before"}
"""What is another each time, beside ids and times."""
PICTURES = {
    "job": "SELECT * FROM job WHERE issue_id = %(issue)s ORDER BY id",
    "attempt": "SELECT a.* FROM attempt a JOIN job j ON j.id = a.job_id WHERE j.issue_id = %(issue)s ORDER BY a.id",
    "request": "SELECT * FROM request WHERE issue_id = %(issue)s ORDER BY id",
    "child": "SELECT * FROM child WHERE %(issue)s IN (issue_id, plan_issue_id) ORDER BY id",
    "issue": "SELECT * FROM issue WHERE id = %(issue)s",
    "plan": "SELECT p.children_done FROM child c JOIN issue p ON p.id = c.plan_issue_id WHERE c.issue_id = %(issue)s",
    "look": """SELECT l.* FROM look l JOIN issue i ON (i.repository_id, i.number) = (l.repository_id, l.number)
                WHERE i.id = %(issue)s""",
    "hold": "SELECT source, held_by, reason FROM lane_hold ORDER BY 1",
    "breaker": "SELECT failures, cardinality(issues) AS issues, opened, quotas FROM lane_breaker",
    "event": """SELECT e.* FROM job_event e JOIN job j ON j.id = e.job_id WHERE j.issue_id = %(issue)s ORDER BY e.id""",
}

Picture = dict[str, list[dict[str, object]]]


async def picture(conn: Connection, made: rows.Made, *, events: bool = True) -> Picture:
    """All that is stored about the job; of what is different each time only whether it is there."""
    found: Picture = {}
    for name, query in PICTURES.items():
        if events or name != "event":
            found[name] = [_plain(row) for row in await rows.rows(conn, query, issue=made.issue_id)]
    return found


def _plain(row: dict[str, object]) -> dict[str, object]:
    plain = {key: value is not None if _differs(key) else value for key, value in row.items()}
    if isinstance(details := plain.get("details"), dict):
        plain["details"] = sorted(details)  # it may name another job
    return plain


def _differs(key: str) -> bool:
    return key in DIFFERENT or key.endswith(("_id", "_at", "_time", "_attempt", "_of"))


TABLES = ("job_event", "attempt", "child", "job", "request", "look", "mirror", "issue", "lane_hold", "lane_breaker")
EMPTY = ";".join(
    ["BEGIN; SET LOCAL session_replication_role = replica"]
    + [f"DELETE FROM {table}" for table in (*TABLES, "repository", "lane")]  # noqa: S608 - names from above
    + ["COMMIT"]
)


async def alone(conn: Connection) -> None:
    """Take away what earlier cases left, or it would be met by a claim, a sweep or a limit. Superusers only."""
    await conn.execute(EMPTY.encode(), prepare=False)


async def gone(conn: Connection) -> None:
    """Return when the backend of the cut connection has ended, whatever it was doing."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %(name)s"
    async with asyncio.timeout(rows.LIMIT_S):
        while await rows.value(conn, query, name=NAME):
            pass


async def cut(conn: Connection, door: Cutter, one: Case, at: int | None, when: When) -> tuple[rows.Made, int]:
    """Prepare the case and do it through the door, which cuts there; what was made, and how many statements it took."""
    await alone(conn)
    made = await one.prepare(conn)
    door.arm(None)
    client = await connect(door.dsn, application_name=NAME)
    try:
        door.arm(at, when)
        if at is None:
            await one.do(client, made)
        else:
            with pytest.raises(StoreUnavailable):
                await one.do(client, made)
    finally:
        await client.close()
    await gone(conn)
    return made, door.count


@pytest.fixture
async def door(dsn: str) -> AsyncIterator[Cutter]:
    """The way to the database that can be cut."""
    async with Cutter(dsn) as opened:
        yield opened


async def holds(conn: Connection, door: Cutter, one: Case) -> int:
    """The case, cut at every place; how many places there were."""
    await alone(conn)
    before = await picture(conn, await one.prepare(conn))
    made, statements = await cut(conn, door, one, None, "before")
    after = await picture(conn, made)
    assert after != before
    if one.tells is not None:
        arrow = (one.tells.name, one.tells.source, one.tells.target)
        assert arrow in [(what, source, target) for what, source, target, _ in await told(conn, made)]
    places: list[tuple[int, When]] = [(at, when) for at in range(1, statements + 1) for when in ("before", "during")]
    for at, when in [*places, (statements, "after")]:
        made, _ = await cut(conn, door, one, at, when)
        found = await picture(conn, made)
        legal = ([before], [after], [before, after])[_legal(at, when, statements)]
        assert found in legal, f"cut {when} {at}: {[differences(found, one) for one in legal]}"
        await again(conn, one, made, after)
    return len(places) + 1


def differences(found: Picture, wanted: Picture) -> dict[str, object]:
    """Where two pictures differ."""
    return {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]}


def _legal(at: int, when: When, statements: int) -> int:
    """0: as before; 1: as after; 2: either of them."""
    if at < statements or when == "before":
        return 0
    return 1 if when == "after" else 2


async def again(conn: Connection, one: Case, made: rows.Made, after: Picture) -> None:
    """Whoever got no answer does it again, and all is as it is to be: nothing twice, nothing half."""
    with contextlib.suppress(Refused):  # it has ended, it is live, it is parked no more
        await one.do(conn, made)
    assert await picture(conn, made, events=False) == {name: after[name] for name in after if name != "event"}


async def told(conn: Connection, made: rows.Made) -> list[tuple[object, ...]]:
    """The events of the issue's jobs."""
    query = """
    SELECT e.what, e.from_state, e.to_state, e.reason FROM job_event e JOIN job j ON j.id = e.job_id
     WHERE j.issue_id = %(issue)s ORDER BY e.id
    """
    return [tuple(row.values()) for row in await rows.rows(conn, query, issue=made.issue_id)]


@pytest.mark.parametrize("name", sorted({t.name for t in TRANSITIONS}))
async def test_a_cut_leaves_one_of_two_states(conn: Connection, door: Cutter, name: str) -> None:
    """Before or after, never between; and doing it again after the cut leads to the one after."""
    places = 0
    for key, some in CASES.items():
        for one in some if key[0] == name else ():
            places += await holds(conn, door, one)
    assert places >= 3


async def test_a_cut_leaves_no_half_of_what_is_no_transition(conn: Connection, door: Cutter) -> None:
    """A recorded result and its children are there, all of them, or none."""
    for one in BESIDE:
        assert await holds(conn, door, one) >= 9


async def test_the_door_really_cuts(conn: Connection, door: Cutter) -> None:
    """A settle that is cut after it took place is an error to the runner, and `already` when it is repeated."""
    one = Case(there("claimed"), settles(Outcome.NO_CHANGE))
    made, _ = await cut(conn, door, one, 1, "after")
    assert await one.do(conn, made) == "already"
    made, _ = await cut(conn, door, one, 1, "before")
    assert await one.do(conn, made) == "done"
    assert issubclass(StoreUnavailable, StoreError)
