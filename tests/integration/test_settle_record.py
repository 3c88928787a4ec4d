"""What a runner writes while it works: live output, the recorded result with its children, the push."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.job import Kind
from tireless.domain.outcome import Outcome
from tireless.errors import StoreError
from tireless.store import record
from tireless.store.db import Connection, constraint_of
from tireless.store.record import Answer, NewChild, RecordedResult, append_output, mark_pushed, record_result
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims


def result(*children: NewChild, commit: str | None = "c" * 40) -> RecordedResult:
    """A result with or without a commit."""
    return RecordedResult(
        result={"protocol": 1, "outcome": "done", "summary": "nul \0"},
        summary="It is done.",
        base_sha="b" * 40,
        commit_sha=commit,
        branch="tireless/1-issue.01234567" if commit else None,
        pr_title="Title \0",
        pr_body="Body",
        children=children,
    )


def part(key: str, title: str = "A part", **more: str) -> NewChild:
    """A child to create."""
    return NewChild(key=key, title=title, body="To do.", kind=Kind.IMPLEMENT, lane=more.get("lane"))


async def children(conn: Connection) -> list[tuple[object, ...]]:
    """Live children in their plan's order: key, title, job, number."""
    query = "SELECT key, title, job_id, number FROM child WHERE ended_at IS NULL ORDER BY position, id"
    return [tuple(row.values()) for row in await rows.rows(conn, query)]


async def test_a_recorded_result_is_all_there(conn: Connection) -> None:
    """Commit, branch, text and children are stored with the attempt; the job stays claimed."""
    made = await rows.job(conn, state="claimed", kind="plan")
    first = NewChild(key="schema", title="Schema", body="First.", kind=Kind.PLAN, lane="codex")
    second = NewChild(key="api", title="API", body="Then.", kind=Kind.IMPLEMENT, depends_on=("schema",), proposal=True)
    assert await record_result(conn, *made.claim, result(first, second)) is Answer.DONE
    attempt = await rows.row(conn, "attempt", made.attempt_id)
    assert (attempt["commit_sha"], attempt["branch"]) == ("c" * 40, "tireless/1-issue.01234567")
    assert (attempt["pr_title"], attempt["pr_body"], attempt["pr_draft"]) == ("Title \ufffd", "Body", False)
    assert attempt["result"] == {"protocol": 1, "outcome": "done", "summary": "nul \ufffd"}
    assert (attempt["base_sha"], attempt["summary"]) == ("b" * 40, "It is done.")
    stored = await rows.rows(conn, "SELECT * FROM child ORDER BY position")
    assert [(c["key"], c["kind"], c["lane"], c["depends_on"], c["proposal"]) for c in stored] == [
        ("schema", "plan", "codex", [], False),
        ("api", "implement", None, ["schema"], True),
    ]
    assert {(c["plan_issue_id"], c["job_id"], c["attempt_id"]) for c in stored} == {
        (made.issue_id, made.job_id, made.attempt_id)
    }
    assert await rows.states(conn, [made]) == ["claimed"]


async def test_a_later_record_replaces_an_earlier_one_whole(conn: Connection) -> None:
    """Also one without a commit, and with other children; a push of another commit is forgotten."""
    made = await rows.job(conn, state="claimed", kind="plan")
    await record_result(conn, *made.claim, result(part("a"), part("b")))
    assert await mark_pushed(conn, *made.claim) is Answer.DONE
    await record_result(conn, *made.claim, result(part("b", "reworded"), part("c"), commit=None))
    attempt = await rows.row(conn, "attempt", made.attempt_id)
    assert (attempt["commit_sha"], attempt["branch"], attempt["pushed_at"]) == (None, None, None)
    assert await children(conn) == [("b", "reworded", made.job_id, None), ("c", "A part", made.job_id, None)]


async def test_recording_the_same_again_keeps_the_push(conn: Connection) -> None:
    """After a lost reply the same record may be sent again; that its commit was pushed stays known."""
    made = await rows.job(conn, state="claimed")
    await record_result(conn, *made.claim, result())
    await mark_pushed(conn, *made.claim)
    assert await record_result(conn, *made.claim, result()) is Answer.DONE
    assert await mark_pushed(conn, *made.claim) is Answer.ALREADY


async def test_a_living_key_is_adopted(conn: Connection) -> None:
    """A later plan's same key takes over what was created, or perhaps created, as it is; ended rows do not count."""
    made = await rows.job(conn, state="claimed", kind="plan")
    old = await rows.job(conn, state="delivered")
    now = await rows.value(conn, "SELECT clock_timestamp()")
    plan = made.issue_id
    created = await rows.child(conn, plan, "a", title="as created", number=7, job_id=old.job_id)
    sent = await rows.child(conn, plan, "b", title="as sent", sent_at=now, job_id=old.job_id)
    await rows.child(conn, plan, "c", title="unsent", job_id=old.job_id)
    await rows.child(conn, plan, "d", title="ended", number=8, ended_at=now, ended_reason="closed")
    await rows.child(conn, plan, "e", title="of old alone", number=9, job_id=old.job_id)
    await record_result(conn, *made.claim, result(*(part(key, f"new {key}") for key in "abcd")))
    assert sorted(await children(conn), key=str) == [
        ("a", "as created", made.job_id, 7),
        ("b", "as sent", made.job_id, None),
        ("c", "new c", made.job_id, None),
        ("d", "new d", made.job_id, None),
        ("e", "of old alone", old.job_id, 9),
    ]
    assert {await rows.value(conn, "SELECT id FROM child WHERE key = 'a'"), sent} == {created, sent}


async def test_a_job_that_ends_otherwise_leaves_no_unsent_children(conn: Connection) -> None:
    """What was recorded but never created goes with the job; what is on the forge stays."""
    made = await rows.job(conn, state="claimed", kind="plan")
    await record_result(conn, *made.claim, result(part("a"), part("b")))
    await conn.execute("UPDATE child SET number = 5, sent_at = now() WHERE key = 'a'")
    await settle(conn, *made.claim, Ending(outcome=Outcome.FAILED))
    assert [key for key, *_ in await children(conn)] == ["a"]


async def test_nothing_is_recorded_for_a_lost_claim(conn: Connection) -> None:
    """A wrong token, a swept claim, an ended job: lost, and nothing is written."""
    made = await rows.job(conn, state="claimed")
    ended = await rows.job(conn, state="delivered")
    for job_id, token in ((made.job_id, uuid4()), ended.claim, (4711, uuid4())):
        assert await record_result(conn, job_id, token, result(part("a"))) is Answer.LOST
        assert await mark_pushed(conn, job_id, token) is Answer.LOST
    assert await children(conn) == []
    assert (await rows.row(conn, "attempt", made.attempt_id))["recorded_at"] is None


async def test_a_refused_record_leaves_nothing(conn: Connection) -> None:
    """A child with a key the schema refuses undoes the whole record, by the constraint's name."""
    made = await rows.job(conn, state="claimed")
    with pytest.raises(StoreError) as caught:
        await record_result(conn, *made.claim, result(part("good"), part("No Good")))
    assert constraint_of(caught.value) == "child_key_plain"
    assert await children(conn) == []
    assert (await rows.row(conn, "attempt", made.attempt_id))["recorded_at"] is None


async def test_a_sweep_behind_a_record_sees_it(dsn: str) -> None:
    """A sweep passes over a claim whose result is just being recorded, and the next one sends it to publishing."""
    async with rows.connections(dsn, 2) as (runner, sweeper):
        made = await rows.job(sweeper, state="claimed")
        await rows.expire(sweeper, made.job_id)
        async with runner.transaction():
            await record_result(runner, *made.claim, result())
            assert await expire_stale_claims(sweeper) == 0
        assert await expire_stale_claims(sweeper) == 1
        assert await rows.states(sweeper, [made]) == ["publishing"]
        assert await settle(runner, *made.claim, Ending(outcome=Outcome.DONE)) is Answer.ALREADY


async def test_a_record_behind_a_sweep_is_lost(dsn: str) -> None:
    """A record that waits for the sweep of its claim writes nothing once that commits."""
    async with rows.connections(dsn, 3) as (runner, sweeper, watcher):
        made = await rows.job(watcher, state="claimed")
        await rows.expire(watcher, made.job_id)
        async with sweeper.transaction():
            assert await expire_stale_claims(sweeper) == 1
            recording = asyncio.create_task(record_result(runner, *made.claim, result(part("a"))))
            await rows.until_blocked(watcher, runner)
        assert await recording is Answer.LOST
        assert await children(watcher) == []


# ------------------------------------------------------------------------------------------------ output


async def output(conn: Connection, made: rows.Made) -> str:
    """The live output as it is stored."""
    query = "SELECT coalesce(string_agg(text, '' ORDER BY seq), '') FROM output_chunk WHERE attempt_id = %(id)s"
    return str(await rows.value(conn, query, id=made.attempt_id))


async def test_output_is_kept_in_order(conn: Connection) -> None:
    """Chunks follow each other, NUL is cleaned, nothing is written for nothing."""
    made = await rows.job(conn, state="claimed")
    assert made.attempt_id is not None
    for text in ("one ", "", "two\0", "three" * 10_000):
        assert await append_output(conn, made.attempt_id, made.claim[1], text)
    assert await output(conn, made) == "one two\ufffd" + "three" * 10_000


async def test_output_is_bounded(conn: Connection) -> None:
    """Of output without end the last MiB is kept, in bytes, whatever the characters."""
    made = await rows.job(conn, state="claimed")
    assert made.attempt_id is not None
    for n in range(40):
        assert await append_output(conn, made.attempt_id, made.claim[1], f"{n:05}" + "ä" * 30_000)
    kept = await output(conn, made)
    assert record.OUTPUT_KEPT - 70_000 < len(kept.encode()) <= record.OUTPUT_KEPT
    assert kept.endswith("00039" + "ä" * 30_000)
    assert await append_output(conn, made.attempt_id, made.claim[1], "x" * 5_000_000)
    assert len(await output(conn, made)) <= record.OUTPUT_KEPT


async def test_two_writers_of_one_attempt_do_not_collide(dsn: str) -> None:
    """Appending waits for the append before it; both are kept."""
    async with rows.connections(dsn, 3) as (one, two, watcher):
        made = await rows.job(watcher, state="claimed")
        assert made.attempt_id is not None
        async with one.transaction():
            await append_output(one, made.attempt_id, made.claim[1], "first ")
            second = asyncio.create_task(append_output(two, made.attempt_id, made.claim[1], "second"))
            await rows.until_blocked(watcher, two)
        assert await second
        assert await output(watcher, made) == "first second"
