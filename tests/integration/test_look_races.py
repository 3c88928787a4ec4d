"""A look that somebody writes anew while a read answers it: the read has not seen what he did, so the look stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import uuid4

import pytest

from tests.support import rows, shown
from tests.support.ingest import GO, IMPLEMENT, PLAN, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.outcome import Outcome
from tireless.store import look as looks
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection, clock, transaction
from tireless.store.look import Look
from tireless.store.plain import Plain, store_plain
from tireless.store.record import Answer
from tireless.store.settle import Ending, settle

WAITS_FOR = """
SELECT EXISTS (SELECT FROM pg_stat_activity a
                WHERE a.datname = current_database() AND %(pid)s::int = ANY (pg_blocking_pids(a.pid)))
"""


async def until_one_waits_for(holder: Connection, *, watcher: Connection) -> None:
    """Return when somebody waits for a lock of `holder`'s."""
    async with asyncio.timeout(rows.LIMIT_S):
        while not await rows.value(watcher, WAITS_FOR, pid=holder.info.backend_pid):
            pass


async def answered(conn: Connection, look: Look, _: datetime) -> None:
    """By the read that was sent for its sake."""
    assert not await looks.answer_look(conn, look)


async def put_off(conn: Connection, look: Look, _: datetime) -> None:
    """That read failed."""
    await looks.put_off(conn, look, error="no answer", delay_s=3600)


async def dropped(conn: Connection, look: Look, asked_at: datetime) -> None:
    """By a read that was sent for all issues; `written_look` was asked before anybody wrote it anew."""
    assert look.written_at < asked_at
    await looks.drop_look(conn, look.repository_id, look.number, written_at=look.written_at)
    await conn.execute("UPDATE look SET take_token = NULL, take_until = NULL")


async def stored_plain(conn: Connection, look: Look, asked_at: datetime) -> None:
    """By a page of issues that no row knows."""
    async with transaction(conn, "storing a page"):
        page = [Plain(shown.issue(look.number, 77), settled=True)]
        assert await store_plain(conn, look.repository_id, page, asked_at=asked_at) == {look.number}
    await conn.execute("UPDATE look SET take_token = NULL, take_until = NULL")


@pytest.mark.parametrize("ends", [answered, put_off, dropped, stored_plain])
async def test_a_look_written_anew_by_who_commits_after_the_read_was_sent_stays_due(
    dsn: str, ends: Callable[[Connection, Look, datetime], Awaitable[None]]
) -> None:
    """Its stamp is older than the read, yet what its writer did was not there to be seen."""
    async with rows.connections(dsn, 3) as (writer, reader, watcher):
        place = await rows.repository(watcher)
        await looks.write_look(watcher, place, 7, why="webhook")
        [look] = await looks.take_looks(reader, [rows.FORGE], limit=1)
        async with writer.transaction():
            await looks.write_look(writer, place, 7, why="job ended")
            ending = asyncio.ensure_future(ends(reader, look, await clock(watcher)))
            await rows.until_blocked(watcher, reader)
        await ending
        [again] = await looks.take_looks(reader, [rows.FORGE], limit=2)
        assert again.why == "job ended"


async def test_a_read_for_all_issues_answers_only_a_look_older_than_it(conn: Connection) -> None:
    """One written after it was sent is not even named; without a look there is none."""
    place = await rows.repository(conn)
    assert await looks.written_look(conn, place, 7, asked_at=await clock(conn)) is None
    asked_at = await clock(conn)
    await looks.write_look(conn, place, 7, why="webhook")
    assert await looks.written_look(conn, place, 7, asked_at=asked_at) is None
    [look] = await looks.take_looks(conn, [rows.FORGE], limit=1)
    assert await looks.written_look(conn, place, 7, asked_at=await clock(conn)) == look.written_at


async def test_a_child_that_is_read_while_its_plan_ends_does_not_wait_for_it_for_ever(ingest: Ingest, dsn: str) -> None:
    """The read that judged it before the end was committed leaves the look that the end wrote."""
    child = await ingest.ask(GO, IMPLEMENT)
    plan = await ingest.ask(GO, PLAN)
    await ingest.poll()
    [claim] = await claim_next(ingest.conn, ["thinker"], runner=RunnerId("r1", "h1", uuid4()))
    made = await ingest.issue(child), await ingest.issue(plan)
    child_id, plan_id = (int(str(row["id"])) for row in made)
    birth = {"number": child, "issue_id": child_id, "job_id": claim.job_id, "attempt_id": claim.attempt_id}
    await rows.child(ingest.conn, plan_id, "part", **birth)
    await looks.write_look(ingest.conn, ingest.repository_id, child, why="webhook")
    await ingest.poll()
    assert (await ingest.job(child))["state"] == "waiting"
    await rows.not_due(ingest.conn)
    await looks.write_look(ingest.conn, ingest.repository_id, child, why="webhook")
    async with rows.connections(dsn, 2) as (runner, holder), runner.transaction():
        async with holder.transaction():
            await holder.execute("SELECT FROM repository FOR NO KEY UPDATE")
            answering = asyncio.create_task(ingest.poller.tick())
            await until_one_waits_for(holder, watcher=ingest.conn)  # it has read, and nothing is judged yet
            assert await settle(runner, claim.job_id, claim.token, Ending(outcome=Outcome.FAILED)) is Answer.DONE
        await until_one_waits_for(runner, watcher=ingest.conn)
    assert await answering
    assert (child, "plan ended") in [(look["number"], look["why"]) for look in await ingest.looks()]
    assert await ingest.poller.tick()
    assert (await ingest.job(child))["state"] == "pending"
