"""Enqueue and refresh as statements: batches, repetition, races, turns, lanes nobody knows."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.job import Kind
from tireless.domain.routing import Route
from tireless.errors import StoreError
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, Pool, transaction
from tireless.store.intake import NewJob, enqueue, refresh_lane

ME = RunnerId("r1", "h1", uuid4())


async def new(conn: Connection, path: str = rows.REPO, **columns: Any) -> NewJob:
    """A request on a new issue, not answered by any job."""
    await rows.lane(conn)
    issue_id = await rows.issue(conn, path, **columns)
    issue = await rows.row(conn, "issue", issue_id)
    request_id = await rows.request(conn, issue_id)
    return NewJob(issue_id, int(str(issue["repository_id"])), request_id, Kind.IMPLEMENT, rows.LANE)


async def test_a_page_of_jobs_is_one_call_that_says_how_many_are_new(conn: Connection) -> None:
    """Repeating it makes none; an event and a state for each."""
    jobs = [await new(conn) for _ in range(50)]
    assert await enqueue(conn, jobs[:30]) == 30
    assert await enqueue(conn, jobs) == 20
    assert await enqueue(conn, jobs) == 0
    assert await enqueue(conn, []) == 0
    assert (
        await rows.value(conn, "SELECT count(*) FROM job_event WHERE what = 'enqueue' AND to_state = 'pending'") == 50
    )
    assert await rows.value(conn, "SELECT count(*) FROM job WHERE state = 'pending' AND max_attempts = 3") == 50


async def test_two_at_once_make_each_job_once(conn: Connection, pool: Pool) -> None:
    """The unique indexes decide, not who looked first; 20 rounds."""

    async def make(jobs: list[NewJob]) -> int:
        async with pool.connection() as one:
            return await enqueue(one, jobs)

    for _ in range(20):
        jobs = [await new(conn) for _ in range(4)]
        made = await asyncio.gather(make(jobs), make(jobs[::-1]), make(jobs))
        assert sum(made) == 4


async def test_an_issue_with_a_live_job_gets_no_second_one(conn: Connection) -> None:
    """Whatever its state; and one that has ended stands in nobody's way."""
    for state in ("pending", "claimed", "publishing", "delivered", "failed", "cancelled"):
        there = await rows.job(conn, state=state)
        request_id = await rows.request(conn, there.issue_id)
        job = NewJob(there.issue_id, there.repository_id, request_id, Kind.PLAN, rows.LANE)
        assert await enqueue(conn, [job]) == (0 if state in ("pending", "claimed", "publishing") else 1)


async def test_a_request_has_one_job_of_each_kind(conn: Connection) -> None:
    """Also after that job has ended."""
    there = await rows.job(conn, state="cancelled")
    again = NewJob(there.issue_id, there.repository_id, there.request_id, Kind.IMPLEMENT, rows.LANE)
    assert await enqueue(conn, [again]) == 0
    other = NewJob(there.issue_id, there.repository_id, there.request_id, Kind.PLAN, rows.LANE)
    assert await enqueue(conn, [other]) == 1


async def test_a_repository_with_many_jobs_delays_anothers_single_one_by_one(conn: Connection) -> None:
    """Turns are given within the batch too: the lone job comes second."""
    many = [await new(conn, "acme/many") for _ in range(10)]
    lone = await new(conn, "acme/lone")
    assert await enqueue(conn, [*many, lone]) == 11
    taken = [(await claim_next(conn, [rows.LANE], runner=ME))[0].repo.name for _ in range(3)]
    assert taken.index("lone") == 1


async def test_a_job_whose_text_is_not_approved_is_made_parked(conn: Connection) -> None:
    """It is made: the request is proper; it is not claimable."""
    job = await new(
        conn, approved_hash=None, approved_title=None, approved_body=None, approved_by=None, approved_at=None
    )
    assert await enqueue(conn, [job]) == 1
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    assert await rows.value(conn, "SELECT reason FROM job") == "needs_approval"


async def test_a_lane_the_database_does_not_know_is_an_error_by_name(conn: Connection) -> None:
    """Nothing of the batch is made."""
    good, bad = await new(conn), await new(conn)
    wrong = NewJob(bad.issue_id, bad.repository_id, bad.request_id, bad.kind, "nowhere")
    with pytest.raises(StoreError, match="job_lane_fkey"):
        await enqueue(conn, [good, wrong])
    assert await rows.value(conn, "SELECT count(*) FROM job") == 0


async def test_a_job_at_rest_is_re_routed_on_its_row_with_a_turn_of_the_new_lane(conn: Connection) -> None:
    """Its attempts stay, its limit becomes the lane's; a running or ended one is left alone."""
    await rows.lane(conn, "spare", max_attempts=5)
    made = await rows.job(conn, attempts=1, claim_no=1, turn=0)
    await rows.job(conn, lane_name="spare")
    async with transaction(conn, "refreshing"):
        assert await refresh_lane(conn, made.job_id, Route(Kind.PLAN, "spare", 1))
    job = await rows.row(conn, "job", made.job_id)
    assert (job["lane"], job["kind"], job["priority"], job["attempts"], job["max_attempts"]) == (
        "spare",
        "plan",
        1,
        1,
        5,
    )
    for state in ("claimed", "publishing", "delivered"):
        other = await rows.job(conn, state=state)
        before = await rows.row(conn, "job", other.job_id)
        async with transaction(conn, "refreshing"):
            assert not await refresh_lane(conn, other.job_id, Route(Kind.PLAN, "spare"))
        assert await rows.row(conn, "job", other.job_id) == before
