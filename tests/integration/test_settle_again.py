"""The last word said again: at once, twice, three times, late, by one who lost, or after its answer was lost."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.job import Kind
from tireless.domain.outcome import Outcome
from tireless.store.claim import RunnerId, check_claim, claim_next, renew_claim
from tireless.store.db import Connection
from tireless.store.record import Answer, NewChild, RecordedResult, append_output, mark_pushed, record_result
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims

SAYABLE = [outcome for outcome in Outcome if outcome is not Outcome.LEASE_LOST]
CHILD = NewChild(key="late", title="Late", body="Too late.", kind=Kind.IMPLEMENT)
EVERYTHING = """
SELECT j.*, j.ctid AS j, a.*, a.ctid AS a, (SELECT count(*) FROM job_event) AS told,
       (SELECT count(*) FROM child) AS kids, (SELECT sum(children_done) FROM issue) AS done,
       (SELECT count(*) FROM output_chunk) AS chunks, (SELECT sum(failures) FROM lane_breaker) AS failures,
       (SELECT count(*) FROM lane_hold) AS holds
  FROM job j JOIN attempt a ON a.job_id = j.id ORDER BY a.id
"""


def said(outcome: Outcome) -> Ending:
    """An ending with the waits it may need."""
    return Ending(outcome=outcome, reason="said", wake_s=60.0, asked_s=60.0)


@pytest.mark.parametrize("times", [2, 3, 8])
async def test_the_same_word_from_several_sides_at_once_counts_once(dsn: str, times: int) -> None:
    """However many say it at the same moment: one `done`, all others `already`; one event, one end, one count."""
    async with rows.connections(dsn, times) as conns:
        for outcome in SAYABLE:
            plan = await rows.issue(conns[0])
            made = await rows.job(conns[0], state="claimed", recorded=True)
            await rows.child(conns[0], plan, f"k{made.number}", number=made.number, issue_id=made.issue_id)
            answers = await asyncio.gather(*(settle(conn, *made.claim, said(outcome)) for conn in conns))
            assert sorted(answers) == ["already"] * (times - 1) + ["done"]
            assert len(await rows.events(conns[0], made.job_id)) == 1
            delivered = (await rows.row(conns[0], "job", made.job_id))["state"] == "delivered"
            assert (await rows.row(conns[0], "issue", plan))["children_done"] == int(delivered)


async def test_different_words_at_once_one_counts(dsn: str) -> None:
    """Of several different last words one is `done` and all others `lost`, and the row says the one."""
    words = [Outcome.NO_CHANGE, Outcome.FAILED, Outcome.AGENT_ERROR, Outcome.SHUTDOWN, Outcome.DONE, Outcome.BLOCKED]
    async with rows.connections(dsn, len(words)) as conns:
        for _ in range(20):
            made = await rows.job(conns[0], state="claimed", recorded=True)
            pairs = zip(conns, words, strict=True)
            answers = await asyncio.gather(*(settle(conn, *made.claim, said(word)) for conn, word in pairs))
            assert sorted(answers) == ["done"] + ["lost"] * (len(words) - 1)
            attempt = await rows.row(conns[0], "attempt", made.attempt_id)
            assert attempt["outcome"] == words[answers.index(Answer.DONE)]


async def test_late_words(conn: Connection) -> None:
    """After the lease and before the sweep it counts; after the sweep it is lost, or already what that made of it."""
    for swept, recorded, outcome, answer in (
        (False, False, Outcome.NO_CHANGE, Answer.DONE),
        (False, True, Outcome.DONE, Answer.DONE),
        (True, False, Outcome.NO_CHANGE, Answer.LOST),
        (True, True, Outcome.NO_CHANGE, Answer.LOST),
        (True, True, Outcome.DONE, Answer.ALREADY),
    ):
        made = await rows.job(conn, state="claimed", recorded=recorded)
        await rows.expire(conn, made.job_id)
        assert await expire_stale_claims(conn) == swept if swept else True
        for again in (answer, Answer.ALREADY if answer is Answer.DONE else answer):
            assert await settle(conn, *made.claim, said(outcome)) is again


async def test_a_word_said_long_after_its_job_went_on(conn: Connection) -> None:
    """The first attempt's word stays `already` while later attempts come and go, and moves none of them."""
    made = await rows.job(conn, state="claimed", max_attempts=5)
    assert await settle(conn, *made.claim, said(Outcome.SHUTDOWN)) is Answer.DONE
    for _ in range(3):
        (newer,) = await claim_next(conn, [rows.LANE], runner=RunnerId("r1", "h1", uuid4()))
        before = await rows.rows(conn, EVERYTHING)
        assert await settle(conn, *made.claim, said(Outcome.SHUTDOWN)) is Answer.ALREADY
        assert await settle(conn, *made.claim, said(Outcome.FAILED)) is Answer.LOST
        assert await rows.rows(conn, EVERYTHING) == before
        assert await settle(conn, newer.job_id, newer.token, said(Outcome.SHUTDOWN)) is Answer.DONE


async def test_no_write_of_an_older_claim_of_the_same_name_counts(conn: Connection) -> None:
    """Renewal, check, output, record, push and last word: every one of them is refused, and no row is touched."""
    made = await rows.job(conn, state="claimed", runner="same", host="h1", kind="plan")
    await rows.expire(conn, made.job_id)
    await expire_stale_claims(conn)
    (newer,) = await claim_next(conn, [rows.LANE], runner=RunnerId("same", "h1", uuid4()))
    before = await rows.rows(conn, EVERYTHING)
    assert made.attempt_id is not None
    result = RecordedResult(result={}, commit_sha="c" * 40, branch="tireless/1-late.01234567", children=[CHILD])
    assert await renew_claim(conn, [made.claim]) == {}
    assert not await check_claim(conn, *made.claim)
    assert not await append_output(conn, made.attempt_id, made.claim[1], "late")
    assert not await append_output(conn, newer.attempt_id, made.claim[1], "late")
    assert await record_result(conn, *made.claim, result) is Answer.LOST
    assert await mark_pushed(conn, *made.claim) is Answer.LOST
    for outcome in SAYABLE:
        assert await settle(conn, *made.claim, said(outcome)) is Answer.LOST
    assert await rows.rows(conn, EVERYTHING) == before
    assert await check_claim(conn, newer.job_id, newer.token)
