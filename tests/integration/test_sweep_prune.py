"""Retention: what goes, and what must stay."""

from __future__ import annotations

from uuid import uuid4

from tests.support import rows
from tireless.store.claim import RunnerId, show_runner
from tireless.store.db import Connection
from tireless.store.record import append_output
from tireless.store.sweep import Retention, prune


async def age(conn: Connection, made: rows.Made, days: int) -> None:
    """Let a job have ended so many days ago, and its request be as old."""
    then = await rows.value(conn, "SELECT clock_timestamp() - make_interval(days => %(d)s)", d=days)
    await conn.execute("ALTER TABLE job DISABLE TRIGGER USER")
    await rows.change(conn, "job", made.job_id, finished_at=then)
    await conn.execute("ALTER TABLE job ENABLE TRIGGER USER")
    await rows.change(conn, "request", made.request_id, created_at=then)


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
    await rows.change(conn, "issue", made.issue_id, answered_event=77, children_done=1)
    child = await rows.child(conn, made.issue_id, "a", job_id=made.job_id, attempt_id=made.attempt_id, number=3)
    verdict = {"event_id": 77, "allowed": True, "reason": "writer", "actor_id": 7, "actor_login": "ada"}
    now = await rows.value(conn, "SELECT clock_timestamp()")
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
