"""Retention: what goes, and what must stay."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from tests.support import rows
from tireless.domain.outcome import Outcome
from tireless.store.claim import RunnerId, show_runner
from tireless.store.db import Connection, clock
from tireless.store.deliver import branch_done, branches_left
from tireless.store.record import Answer, append_output
from tireless.store.settle import Ending, settle
from tireless.store.sweep import Retention, prune


async def age(conn: Connection, made: rows.Made, days: int) -> None:
    """Let a job have ended so many days ago, its branch be looked after then, and its request be as old."""
    then = await rows.value(conn, "SELECT clock_timestamp() - make_interval(days => %(d)s)", d=days)
    await conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    await rows.change(conn, "job", made.job_id, finished_at=then)
    await conn.execute("ALTER TABLE job ENABLE TRIGGER USER")
    await rows.change(conn, "request", made.request_id, created_at=then)
    await conn.execute("UPDATE attempt SET branch_done_at = %(t)s WHERE job_id = %(j)s", {"t": then, "j": made.job_id})


async def test_old_jobs_go_with_all_that_is_theirs(conn: Connection) -> None:
    """Jobs beyond the retention go in steps, with attempts, events and output; younger ones stay whole."""
    old = [await rows.job(conn, state="delivered") for _ in range(7)]
    young = await rows.job(conn, state="failed")
    for made in old:
        await age(conn, made, 91)
    await age(conn, young, 89)
    assert await prune(conn, retention=Retention(), limit=3) == 14  # each with its request
    assert [row["id"] for row in await rows.rows(conn, "SELECT id FROM job")] == [young.job_id]
    assert await rows.rows(conn, "SELECT 1 FROM attempt") == []
    assert await prune(conn, retention=Retention(), limit=3) == 0


async def test_each_end_is_kept_as_long_as_it_should_be(conn: Connection) -> None:
    """Failed jobs a year, the others a month; the kept ones that lie before them in time hide nothing, however small
    the steps are.
    """
    made = [await rows.job(conn, state=state) for state in ("failed", "delivered", "cancelled") * 4]
    for number, job in enumerate(made):
        await age(conn, job, 300 - number if number < 6 else 20)
    retention = Retention(delivered=30, failed=365, cancelled=30)
    assert await prune(conn, retention=retention, limit=1) == 8  # four jobs with their requests
    left = await rows.rows(conn, "SELECT state, count(*) AS n FROM job GROUP BY 1 ORDER BY 1")
    assert [(row["state"], row["n"]) for row in left] == [("cancelled", 2), ("delivered", 2), ("failed", 4)]


async def test_what_outlives_its_job(conn: Connection) -> None:
    """Issues with their answered marks, children, verdicts, and a rerun of the pruned job."""
    made = await rows.job(conn, state="delivered", kind="plan")
    now = await rows.value(conn, "SELECT clock_timestamp()")
    await rows.child(conn, made.issue_id, "z", ended_at=now, ended_reason="closed")
    await rows.change(conn, "issue", made.issue_id, answered_event=77, children_done=1)
    child = await rows.child(conn, made.issue_id, "a", job_id=made.job_id, attempt_id=made.attempt_id, number=3)
    verdict = {"event_id": 77, "allowed": True, "reason": "writer", "actor_id": 7, "actor_login": "ada"}
    await rows.insert(conn, "verdict", issue_id=made.issue_id, entry_at=now, **verdict)
    rerun = await rows.job(conn, issue_id=made.issue_id, rerun_of=made.job_id)
    await age(conn, made, 365)
    assert await prune(conn, retention=Retention()) == 2
    issue = await rows.row(conn, "issue", made.issue_id)
    assert (issue["answered_event"], issue["children_done"]) == (77, 1)
    assert (await rows.row(conn, "child", child))["job_id"] is None
    assert (await rows.row(conn, "job", rerun.job_id))["rerun_of"] is None
    assert len(await rows.rows(conn, "SELECT 1 FROM verdict")) == 1


async def test_pruning_moves_no_job_that_ran_the_pruned_one_again(conn: Connection) -> None:
    """A rerun that is due, even an exhausted one, rests as it did: that a row before it went is no transition."""
    made = await rows.job(conn, state="failed")
    later = await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'")
    rerun = await rows.job(
        conn,
        issue_id=made.issue_id,
        rerun_of=made.job_id,
        state="waiting",
        not_before=later,
        not_before_reason="backoff",
        attempts=3,
        claim_no=3,
    )
    await conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    await conn.execute("UPDATE job SET not_before = clock_timestamp() - interval '1 s' WHERE not_before IS NOT NULL")
    await conn.execute("ALTER TABLE job ENABLE TRIGGER USER")
    await age(conn, made, 365)
    assert await prune(conn, retention=Retention()) == 2
    job = await rows.row(conn, "job", rerun.job_id)
    assert (job["state"], job["reason"], job["rerun_of"]) == ("waiting", "backoff", None)


async def test_live_jobs_and_their_requests_stay(conn: Connection) -> None:
    """However old a request is, while a job answers it both stay."""
    live = [
        await rows.job(conn, state=state, hold=state == "waiting")
        for state in ("pending", "waiting", "claimed", "publishing")
    ]
    await conn.execute("UPDATE request SET created_at = clock_timestamp() - interval '9 years'")
    await conn.execute("UPDATE job SET created_at = clock_timestamp() - interval '9 years'")
    assert await prune(conn, retention=Retention()) == 0
    assert len(await rows.states(conn, live)) == 4


async def test_what_is_not_looked_after_yet_keeps_all_jobs_of_its_issue(conn: Connection) -> None:
    """A branch is found by the job that left it, and kept by the one that delivered it: both stay till it is done with,
    or till nobody watches the repository.
    """
    left = await rows.job(conn, state="failed", attempts=1, claim_no=1)
    ended = {"ended_at": await clock(conn), "outcome": "lease_lost", "burned": True}
    attempt = await rows.attempt(conn, left.job_id, True, **ended)
    delivered = await rows.job(conn, issue_id=left.issue_id, state="delivered")
    other = await rows.job(conn, "acme/other", state="delivered")
    for made in (left, delivered, other):
        await age(conn, made, 365)
    for undone in (attempt["id"], other.attempt_id):
        await rows.change(conn, "attempt", undone, branch_done_at=None)
    await rows.change(conn, "repository", other.repository_id, tracked=False)
    assert await prune(conn, retention=Retention()) == 2  # the other's, with its request
    [branch] = await branches_left(conn, [rows.FORGE], limit=10)
    await branch_done(conn, branch.attempt_id)
    assert await prune(conn, retention=Retention()) == 4


async def test_a_childs_request_stays_until_it_is_answered_or_its_child_ends(conn: Connection) -> None:
    """No label is on a child that would ask again: pruned, it would never run."""
    plan = await rows.job(conn, state="delivered", kind="plan")
    issue = await rows.issue(conn)
    child = await rows.child(conn, plan.issue_id, "a", job_id=plan.job_id, number=9, issue_id=issue)
    request = await rows.request(conn, issue, source="child", event_id=None)
    await conn.execute("UPDATE request SET created_at = clock_timestamp() - interval '9 years'")
    assert await prune(conn, retention=Retention()) == 0
    await rows.change(conn, "request", request, answered_at=await clock(conn))
    async with conn.transaction(force_rollback=True):
        assert await prune(conn, retention=Retention()) == 1
    await rows.change(conn, "request", request, answered_at=None)
    await rows.change(conn, "child", child, ended_at=await clock(conn), ended_reason="closed")
    assert await prune(conn, retention=Retention()) == 1


async def test_pruning_waits_for_nobody_who_has_what_points_at_the_old(dsn: str) -> None:
    """A rerun is settled which is a pruned plan's child: neither is sent back by a deadlock. What it points at goes
    the next time.
    """
    async with rows.connections(dsn, 4) as (runner, sweeper, holder, watcher):
        plan = await rows.job(watcher, kind="plan", state="delivered")
        old = await rows.job(watcher, state="failed")
        born = {"job_id": plan.job_id, "attempt_id": plan.attempt_id, "number": old.number, "issue_id": old.issue_id}
        await rows.child(watcher, plan.issue_id, "a", **born)
        again = await rows.job(watcher, issue_id=old.issue_id, state="claimed", rerun_of=old.job_id)
        await age(watcher, plan, 365)
        await age(watcher, old, 364)
        async with holder.transaction():
            await holder.execute("SELECT FROM attempt WHERE id = %(id)s FOR UPDATE", {"id": again.attempt_id})
            settling = asyncio.create_task(settle(runner, *again.claim, Ending(outcome=Outcome.NO_CHANGE)))
            await rows.until_blocked(watcher, runner)
            pruning = asyncio.create_task(prune(sweeper, retention=Retention()))
            await rows.until_blocked(watcher, sweeper, work=pruning)  # as far as it gets
        assert await settling is Answer.DONE
        assert await pruning == 2  # the plan's, with its request
        assert await prune(watcher, retention=Retention()) == 2


async def test_a_locked_child_keeps_the_job_it_came_from(dsn: str) -> None:
    """Whoever ends it has its row, and may want more: pruning passes that job by, and ends, however small its steps."""
    async with rows.connections(dsn, 2) as (holder, sweeper):
        plan = await rows.job(sweeper, kind="plan", state="delivered")
        await age(sweeper, plan, 365)
        for key, of in (("a", {"job_id": plan.job_id}), ("b", {"attempt_id": plan.attempt_id})):
            child = await rows.child(sweeper, plan.issue_id, key, **of)
            async with holder.transaction():
                await holder.execute("SELECT FROM child WHERE id = %(id)s FOR NO KEY UPDATE", {"id": child})
                assert await prune(sweeper, retention=Retention(), limit=1) == 0
            await sweeper.execute("DELETE FROM child WHERE id = %(id)s", {"id": child})
        assert await prune(sweeper, retention=Retention(), limit=1) == 2


async def test_pruning_has_locked_nothing_while_claims_are_shut_out(dsn: str) -> None:
    """It takes attempts away, so it waits for the table before any row, as everybody does."""
    async with rows.connections(dsn, 3) as (holder, sweeper, watcher):
        made = await rows.job(watcher, state="delivered")
        await age(watcher, made, 365)
        async with holder.transaction():
            await holder.execute("LOCK TABLE attempt IN SHARE MODE")
            pruning = asyncio.create_task(prune(sweeper, retention=Retention()))
            await rows.until_blocked(watcher, sweeper)
            query = "SELECT id FROM job WHERE id = %(id)s FOR UPDATE SKIP LOCKED"
            assert len(await rows.rows(watcher, query, id=made.job_id)) == 1
        assert await pruning == 2


async def test_live_output_goes_a_day_after_its_attempt(conn: Connection) -> None:
    """The stream of a running or a just ended attempt stays; the ends kept with the attempt stay for good."""
    made = [await rows.job(conn, state="claimed") for _ in range(3)]
    for job in made:
        assert job.attempt_id is not None
        await append_output(conn, job.attempt_id, job.claim[1], "text")
    for job, hours in ((made[1], 1), (made[2], 25)):
        then = await rows.value(conn, "SELECT clock_timestamp() - make_interval(hours => %(h)s)", h=hours)
        await rows.change(
            conn, "attempt", job.attempt_id, ended_at=then, outcome="failed", burned=True, output_tail="text"
        )
    await prune(conn, retention=Retention())
    left = await rows.rows(conn, "SELECT attempt_id FROM output_chunk ORDER BY 1")
    assert [row["attempt_id"] for row in left] == [made[0].attempt_id, made[1].attempt_id]


async def test_runners_unseen_for_a_day_are_forgotten(conn: Connection) -> None:
    """A runner that ended without a word leaves the list by itself."""
    for name in ("alive", "dead"):
        await show_runner(conn, RunnerId(name, "h", uuid4()), lanes=["a"], slots=1, version="1")
    await conn.execute("UPDATE runner SET seen_at = seen_at - interval '25 h' WHERE name = 'dead'")
    await prune(conn, retention=Retention())
    assert [row["name"] for row in await rows.rows(conn, "SELECT name FROM runner")] == ["alive"]


async def test_pruning_reads_no_table_through(conn: Connection) -> None:
    """Every key that points at a pruned row has an index that leads with it: one deleted row costs no walk."""
    query = """
    SELECT c.conrelid::regclass || '.' || a.attname AS key
      FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
     WHERE c.contype = 'f' AND c.confrelid IN ('job'::regclass, 'attempt'::regclass, 'request'::regclass)
       AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.conrelid AND i.indkey[0] = c.conkey[1])
    """
    assert await rows.rows(conn, query) == []
