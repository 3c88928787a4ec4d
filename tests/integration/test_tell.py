"""The mirror's and publisher's rows: takes are exclusive and expire, fenced writes of a lost take change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from tests.support import rows
from tireless.domain.issue import IssueState, Person, Snapshot
from tireless.domain.job import State
from tireless.domain.outcome import Outcome
from tireless.store import children, deliver, publish, tell
from tireless.store.db import Connection, Pool, transaction
from tireless.store.deliver import Ended
from tireless.store.publish import Delivery
from tireless.store.record import Answer
from tireless.store.settle import Ending, settle

FORGES = [rows.FORGE]


async def taken(conn: Connection, *, unanswered_s: float = 60.0) -> Delivery:
    """The next job to publish."""
    found = await publish.take_publishing(conn, FORGES, by="p", take_s=60, unanswered_s=unanswered_s)
    assert found is not None
    return found


async def due(conn: Connection) -> tell.Telling:
    """The next issue to mirror."""
    found = await tell.take_due(conn, FORGES, by="m", take_s=60, unanswered_s=60)
    assert found is not None
    return found


async def expired(conn: Connection) -> None:
    """Let every take be over."""
    await conn.execute(
        "UPDATE job SET publish_until = clock_timestamp() - interval '1 s' WHERE publish_until IS NOT NULL"
    )
    await conn.execute("UPDATE mirror SET take_until = clock_timestamp() - interval '1 s' WHERE take_until IS NOT NULL")


# ------------------------------------------------------------------------------------------------ takes


async def test_one_job_has_one_publisher(conn: Connection, pool: Pool) -> None:
    """Twenty takers at once over five jobs: each job is taken once, the others get none."""
    made = [await rows.job(conn, state="publishing") for _ in range(5)]

    async def take() -> int | None:
        async with pool.connection() as own:
            found = await publish.take_publishing(own, FORGES, by="p", take_s=60, unanswered_s=0)
            return found.job_id if found else None

    got = [found for found in await asyncio.gather(*(take() for _ in range(20))) if found is not None]
    # A taker that meets only locked rows gets none; whoever asks again gets what is left.
    while (found := await take()) is not None:
        got.append(found)
    assert sorted(got) == [each.job_id for each in made]


async def test_one_issue_has_one_mirror(conn: Connection, pool: Pool) -> None:
    """Twenty takers at once over five due issues: each is taken once."""
    made = [await rows.job(conn) for _ in range(5)]

    async def take() -> int | None:
        async with pool.connection() as own:
            found = await tell.take_due(own, FORGES, by="m", take_s=60, unanswered_s=0)
            return found.issue_id if found else None

    got = [found for found in await asyncio.gather(*(take() for _ in range(20))) if found is not None]
    while (found := await take()) is not None:
        got.append(found)
    assert sorted(got) == [each.issue_id for each in made]


async def test_a_take_expires_and_changes_no_state(conn: Connection) -> None:
    """A dead publisher's job is taken by the next one; it makes no attempt and no event."""
    made = await rows.job(conn, state="publishing")
    first = await taken(conn)
    assert await publish.take_publishing(conn, FORGES, by="q", take_s=60, unanswered_s=0) is None
    await expired(conn)
    second = await taken(conn)
    assert (first.job_id, first.token != second.token) == (second.job_id, True)
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["attempts"], job["claim_no"]) == ("publishing", 1, 1)
    assert await rows.events(conn, made.job_id) == []


WRITES: dict[str, Callable[[Connection, Delivery], Awaitable[bool]]] = {
    "renew": lambda conn, d: publish.renew_take(conn, d, take_s=60),
    "pull_sent": lambda conn, d: publish.pull_sent(conn, d, take_s=60),
    "pull_refused": publish.pull_refused,
    "pull_made": lambda conn, d: publish.pull_made(conn, d, 3),
    "child_sent": lambda conn, d: children.child_sent(conn, d, d.children[0].id, take_s=60),
    "child_refused": lambda conn, d: children.child_refused(conn, d, d.children[0].id),
    "child_linked": lambda conn, d: children.child_linked(conn, d, d.children[0].id),
    "postpone": lambda conn, d: publish.postpone(conn, d, wait_s=1, reason="x", failures=1),
}


async def with_child(conn: Connection) -> Delivery:
    """A job with one child, taken."""
    made = await rows.job(conn, state="publishing", kind="plan")
    await rows.child(conn, made.issue_id, "a", job_id=made.job_id)
    return await taken(conn)


async def everything(conn: Connection) -> list[list[dict[str, object]]]:
    """Every row a publisher writes."""
    return [
        await rows.rows(conn, "SELECT * FROM job"),
        await rows.rows(conn, "SELECT * FROM attempt"),
        await rows.rows(conn, "SELECT * FROM child"),
        await rows.rows(conn, "SELECT * FROM job_event"),
        await rows.rows(conn, "SELECT number, why FROM look"),
        await rows.rows(conn, "SELECT id FROM issue"),
        await rows.rows(conn, "SELECT id FROM request"),
    ]


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_counts_only_under_its_take(conn: Connection, name: str) -> None:
    """Every step answers True while the take is held; once another has the job it answers False and changes nothing."""
    first = await with_child(conn)
    await expired(conn)
    second = await taken(conn)
    before = await everything(conn)
    assert not await WRITES[name](conn, first)
    assert await everything(conn) == before
    assert await WRITES[name](conn, second)


async def test_the_ends_are_fenced_too(conn: Connection) -> None:
    """A lost take neither delivers nor fails nor returns a job, and records no child; the holder's end is done once."""
    first = await with_child(conn)
    await expired(conn)
    second = await taken(conn)
    before = await everything(conn)
    async with transaction(conn, "test"):
        assert await deliver.deliver(conn, first, by="p") is Ended.LOST
        assert await deliver.fail_unpublishable(conn, first, by="p", reason="r", error="e") is Ended.LOST
        assert await deliver.return_to_pending(conn, first, by="p", found=None) is Ended.LOST
    assert await everything(conn) == before
    async with transaction(conn, "test"):
        assert await deliver.deliver(conn, second, by="p") is Ended.DONE
    async with transaction(conn, "test"):
        assert await deliver.deliver(conn, second, by="p") is Ended.ALREADY
    assert [each[2] for each in await rows.events(conn, second.job_id)] == ["delivered"]


def snapshot(number: int) -> Snapshot:
    """An issue of the bot as the forge answers it."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Snapshot(
        number, 9000 + number, "t", "b", Person(9, "bot"), IssueState.OPEN, (), now, now, "http://f/issues/1"
    )


async def test_a_childs_number_is_recorded_once(conn: Connection) -> None:
    """The same number again is no error, another number for the same child is refused."""
    mine = await with_child(conn)
    (child,) = mine.children
    asked = datetime(2026, 1, 1, tzinfo=UTC)
    for number, answer in ((50, True), (50, True), (51, False)):
        async with transaction(conn, "test"):
            done = await children.child_made(conn, mine, child, snapshot(number), asked_at=asked, runs=True)
        assert done is answer
    assert await rows.value(conn, "SELECT number FROM child") == 50
    assert await rows.value(conn, "SELECT count(*) FROM request WHERE source = 'child'") == 1


async def test_a_child_the_poller_saw_first_keeps_its_row(conn: Connection) -> None:
    """The issue may be stored before its number is recorded: that row, with what it says, becomes the child's."""
    mine = await with_child(conn)
    issue_id = await rows.issue(conn, number=77, title="As polled", approved=False)
    async with transaction(conn, "test"):
        await children.child_made(
            conn, mine, mine.children[0], snapshot(77), asked_at=datetime(2026, 1, 1, tzinfo=UTC), runs=False
        )
    assert (await rows.row(conn, "issue", issue_id))["title"] == "As polled"
    assert await rows.value(conn, "SELECT issue_id FROM child") == issue_id


async def test_a_cancel_comes_too_late_after_the_first_create(conn: Connection) -> None:
    """Before the first create is recorded as sent a cancel ends the job; after it, it is refused."""
    for began in (False, True):
        made = await rows.job(conn, state="publishing")
        mine = await taken(conn)
        if began:
            assert await publish.pull_sent(conn, mine, take_s=60)
        answer = await rows.value(conn, "SELECT cancel_job(%(id)s, 'operator x', 'operator')", id=made.job_id)
        assert answer == ("too_late" if began else "cancelled")
        assert await publish.renew_take(conn, mine, take_s=60) is began


async def test_how_long_an_unanswered_create_is_waited_for(conn: Connection) -> None:
    """The wait is counted from the row's own time of sending; a recorded create is waited for no more."""
    made = await rows.job(conn, state="publishing")
    mine = await taken(conn)
    assert (mine.pr_unanswered, mine.pr_wait_s) == (False, 0)
    await publish.pull_sent(conn, mine, take_s=60)
    again = await publish.load_delivery(conn, made.job_id, mine.token, unanswered_s=60)
    assert again is not None
    assert again.pr_unanswered
    assert 50 < again.pr_wait_s <= 60
    await conn.execute("UPDATE attempt SET pr_sent_at = pr_sent_at - interval '61 s'")
    again = await publish.load_delivery(conn, made.job_id, mine.token, unanswered_s=60)
    assert again is not None
    assert again.pr_wait_s <= 0
    await publish.pull_made(conn, mine, 3)
    again = await publish.load_delivery(conn, made.job_id, mine.token, unanswered_s=60)
    assert again is not None
    assert not again.pr_unanswered


# ------------------------------------------------------------------------------------------------ the mirror's rows

TELLS: dict[str, Callable[[Connection, tell.Telling], Awaitable[bool]]] = {
    "renew": lambda conn, t: tell.renew_telling(conn, t, take_s=60),
    "sent": lambda conn, t: tell.comment_sent(conn, t, take_s=60),
    "refused": tell.comment_refused,
    "made": lambda conn, t: tell.comment_made(conn, t, 5),
    "told": lambda conn, t: tell.told(conn, t, status="queued", comment="x"),
    "put off": lambda conn, t: tell.put_off(conn, t, wait_s=1, failures=1, error="e"),
}


@pytest.mark.parametrize("name", TELLS)
async def test_a_mirror_writes_only_under_its_take(conn: Connection, name: str) -> None:
    """Every record answers True while the take is held; once another has the issue it answers False, to no effect."""
    await rows.job(conn)
    first = await due(conn)
    await expired(conn)
    second = await due(conn)
    before = await rows.rows(conn, "SELECT * FROM mirror")
    assert not await TELLS[name](conn, first)
    assert await rows.rows(conn, "SELECT * FROM mirror") == before
    assert await TELLS[name](conn, second)


async def test_told_is_what_was_read_not_what_is(conn: Connection) -> None:
    """A change after the take leaves the issue due; an older telling never moves `told` back."""
    made = await rows.job(conn)
    mine = await due(conn)
    await conn.execute("SELECT mirror_changed(%s)", [made.issue_id])
    assert await tell.told(conn, mine, status="queued", comment="x")
    again = await due(conn)
    assert again.changed == mine.changed + 1


async def test_what_is_not_committed_is_not_told(conn: Connection, pool: Pool) -> None:
    """An end that is still under way makes nothing due, and who looks meanwhile sees the state before it."""
    made = await rows.job(conn, state="claimed")
    assert await tell.told(conn, await due(conn), status="running", comment="x")
    async with pool.connection() as own, transaction(own, "ending a job"):
        assert await settle(own, *made.claim, Ending(outcome=Outcome.NO_CHANGE, reason="none")) is Answer.DONE
        assert await tell.take_due(conn, FORGES, by="m", take_s=60, unanswered_s=60) is None
        before = (await tell.picture(conn, made.issue_id)).job
    after = (await due(conn)).picture.job
    assert before is not None
    assert after is not None
    assert (before.state, after.state) == (State.CLAIMED, State.DELIVERED)


async def test_marks_of_an_issue_that_was_never_asked_for_are_none(conn: Connection) -> None:
    """The database's -infinity is no time: it is read as none, and so is a marker without one."""
    made = await rows.job(conn)
    shown = await tell.picture(conn, made.issue_id)
    assert (shown.answered_event, shown.answered_time) == (0, None)


async def test_a_moved_mark_makes_the_comment_due(conn: Connection) -> None:
    """The comment carries the answered marks for a database that starts afresh: when they move it is told again."""
    made = await rows.job(conn)
    assert await tell.told(conn, await due(conn), status="queued", comment="x")
    assert await tell.take_due(conn, FORGES, by="m", take_s=60, unanswered_s=60) is None
    await rows.change(conn, "issue", made.issue_id, answered_event=9)
    assert (await due(conn)).issue_id == made.issue_id
