"""The claim of an open lane: one winner, the caller's lanes, the approved text, and errors that are never "nothing"."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.support import rows
from tireless.domain.job import Kind
from tireless.errors import StoreError, StoreUnavailable
from tireless.store import claim
from tireless.store.claim import RunnerId, check_claim, claim_next, renew_claim
from tireless.store.db import Connection, clock, connect

ME = RunnerId("r1", "h1", uuid4())
OTHER = RunnerId("r2", "h2", uuid4())


async def test_one_job_has_one_winner(dsn: str) -> None:
    """Two concurrent claims of one pending job: one wins, the other gets nothing, in each of 200 rounds."""
    async with rows.connections(dsn, 3) as (watcher, one, two):
        for _ in range(200):
            made = await rows.job(watcher)
            got = await asyncio.gather(
                claim_next(one, [rows.LANE], runner=ME), claim_next(two, [rows.LANE], runner=OTHER)
            )
            assert sorted(len(claims) for claims in got) == [0, 1]
            assert [c.job_id for claims in got for c in claims] == [made.job_id]
            attempts = await rows.rows(watcher, "SELECT runner FROM attempt WHERE job_id = %(id)s", id=made.job_id)
            assert len(attempts) == 1


async def test_the_loser_does_not_wait(dsn: str) -> None:
    """While the winner's transaction is still open the loser is answered at once, with nothing."""
    async with rows.connections(dsn, 2) as (winner, loser):
        made = await rows.job(loser)
        await loser.execute("SET lock_timeout = '1ms'")  # any wait for a lock would be an error
        async with winner.transaction():
            (won,) = await claim_next(winner, [rows.LANE], runner=ME)
            assert await claim_next(loser, [rows.LANE], runner=OTHER) == []
        assert won.job_id == made.job_id


async def test_fifty_claimers_one_row(dsn: str) -> None:
    """Of fifty claims begun together exactly one has the job."""
    async with rows.connections(dsn, 20) as conns:
        await rows.job(conns[0])
        each = [claim_next(conns[n % 20], [rows.LANE], runner=RunnerId(f"r{n}", "h", uuid4())) for n in range(50)]
        # One connection serves its claims one after another; the twenty run side by side.
        got = await asyncio.gather(*each)
    assert sum(len(claims) for claims in got) == 1


async def test_a_locked_row_is_passed_over(dsn: str) -> None:
    """A claim that finds the first row locked takes the next one at once; the first is there for a later claim."""
    async with rows.connections(dsn, 3) as (watcher, one, two):
        first, second = await rows.job(watcher), await rows.job(watcher)
        async with watcher.transaction():
            await watcher.execute("SELECT 1 FROM job WHERE id = %(id)s FOR NO KEY UPDATE", {"id": first.job_id})
            (got,) = await claim_next(one, [rows.LANE], runner=ME)
        (late,) = await claim_next(two, [rows.LANE], runner=OTHER)
    assert (got.job_id, late.job_id) == (second.job_id, first.job_id)


async def test_three_claims_over_two_jobs(conn: Connection) -> None:
    """The third claim over two jobs gets nothing, which is an empty list."""
    made = {(await rows.job(conn)).job_id, (await rows.job(conn)).job_id}
    got = [await claim_next(conn, [rows.LANE], runner=ME) for _ in range(3)]
    assert {c.job_id for c in got[0] + got[1]} == made
    assert got[2] == []


async def test_what_a_claim_hands_out(conn: Connection) -> None:
    """A claim carries the approved text, the repository, the lane's times and an attempt of its own."""
    await rows.lane(conn, lease_s=77.0, run_timeout_s=5.0, stall_timeout_s=4.0, backoff_base_s=2.0, backoff_cap_s=3.0)
    issue_id = await rows.issue(conn, title="As approved", body="The approved body.")
    made = await rows.job(conn, issue_id=issue_id, kind="plan", max_attempts=5)
    before = await clock(conn)
    (got,) = await claim_next(conn, [rows.LANE], runner=ME)
    passed_s = (await clock(conn) - before).total_seconds()
    attempt = await rows.row(conn, "attempt", got.attempt_id)
    repository = await rows.row(conn, "repository", made.repository_id)
    assert (got.job_id, got.request_id, got.number, got.rerun_of) == (made.job_id, made.request_id, made.number, None)
    assert (got.title, got.body, got.kind, got.lane) == ("As approved", "The approved body.", Kind.PLAN, rows.LANE)
    assert (got.attempts, got.max_attempts, got.claim_no) == (1, 5, 1)
    assert (got.lease_s, got.run_timeout_s, got.stall_timeout_s) == (77.0, 5.0, 4.0)
    assert (got.backoff_base_s, got.backoff_cap_s) == (2.0, 3.0)
    assert 77.0 - passed_s <= got.lease_left_s <= 77.0
    assert (str(got.repo), got.repo.forge, got.default_branch) == (rows.REPO, rows.FORGE, "main")
    assert (got.forge_repo_id, got.clone_url) == (repository["forge_repo_id"], repository["clone_url"])
    assert (attempt["uid"], attempt["token"], attempt["number"]) == (got.attempt_uid, got.token, 1)


async def test_what_a_claim_writes(conn: Connection) -> None:
    """The row records runner, host and lease; the attempt and its event are there with it, and the mirror is due."""
    made = await rows.job(conn)
    await conn.execute("UPDATE mirror SET told = changed")
    before = await clock(conn)
    (got,) = await claim_next(conn, [rows.LANE], runner=ME)
    after = await clock(conn)
    job = await rows.row(conn, "job", made.job_id)
    attempt = await rows.row(conn, "attempt", got.attempt_id)
    assert (job["state"], job["claimed_by"], job["claimed_host"], job["claim_token"]) == (
        "claimed",
        "r1",
        "h1",
        got.token,
    )
    assert isinstance(job["claim_expires_at"], datetime)
    assert before <= job["claim_expires_at"] - timedelta(seconds=600) <= after
    assert isinstance(job["claimed_at"], datetime)
    assert before <= job["claimed_at"] <= after
    assert (attempt["runner"], attempt["host"], attempt["repository_id"]) == ("r1", "h1", made.repository_id)
    assert await rows.events(conn, made.job_id) == [("claim", "pending", "claimed", None)]
    due = "SELECT changed > told FROM mirror WHERE issue_id = %(id)s"
    assert await rows.value(conn, due, id=made.issue_id)


async def test_order_within_a_lane(conn: Connection) -> None:
    """Priority first, then turn, then age."""
    low = await rows.job(conn, priority=-1)
    old = await rows.job(conn)
    young = await rows.job(conn)
    early = await rows.job(conn)
    await conn.execute("UPDATE job SET turn = -1 WHERE id = %(id)s", {"id": early.job_id})
    high = await rows.job(conn, priority=1)
    got = [(await claim_next(conn, [rows.LANE], runner=ME))[0].job_id for _ in range(5)]
    assert got == [high.job_id, early.job_id, old.job_id, young.job_id, low.job_id]


async def test_a_busy_repository_delays_another_by_one_job(conn: Connection) -> None:
    """Fifty queued jobs of one repository keep another's single job waiting for one of them, not for fifty."""
    for _ in range(50):
        await rows.job(conn, "acme/busy")
    single = await rows.job(conn, "acme/quiet")
    got = [(await claim_next(conn, [rows.LANE], runner=ME))[0].job_id for _ in range(2)]
    assert single.job_id in got


async def test_a_claim_honours_the_callers_lanes(conn: Connection) -> None:
    """A runner gets jobs of the lanes it names and of no other, whatever the labels in the issue row say."""
    labels = [{"id": 1, "name": "tireless/agent:claude"}]
    issue_id = await rows.issue(conn, labels=labels)
    codex = await rows.job(conn, issue_id=issue_id, lane_name="codex")  # an override routed it here
    assert await claim_next(conn, ["claude"], runner=ME) == []
    assert await claim_next(conn, ["unheard-of"], runner=ME) == []
    (got,) = await claim_next(conn, ["claude", "codex"], runner=ME)
    assert (got.job_id, got.lane) == (codex.job_id, "codex")


async def test_lanes_are_walked_in_order_and_rotated(conn: Connection) -> None:
    """The first lane that has work is served, beginning behind the lane that was served last; a batch spans lanes."""
    for _ in range(3):
        await rows.job(conn, lane_name="a")
        await rows.job(conn, lane_name="b")
    assert [c.lane for c in await claim_next(conn, ["a", "b"], runner=ME)] == ["a"]
    assert [c.lane for c in await claim_next(conn, ["a", "b"], runner=ME, after="a")] == ["b"]
    assert [c.lane for c in await claim_next(conn, ["a", "b"], runner=ME, after="b")] == ["a"]
    assert [c.lane for c in await claim_next(conn, ["a", "b"], runner=ME, n=100)] == ["a", "b", "b"]


async def test_a_batch_takes_no_more_than_asked(dsn: str) -> None:
    """n jobs are claimed and no other row is locked meanwhile, though the walk could go on."""
    async with rows.connections(dsn, 2) as (one, two):
        for _ in range(10):
            await rows.job(one)
        async with one.transaction():
            assert len(await claim_next(one, [rows.LANE], runner=ME, n=3)) == 3
            free = "SELECT count(*) FROM (SELECT 1 FROM job FOR NO KEY UPDATE SKIP LOCKED) AS free"
            assert await rows.value(two, free) == 7


@pytest.mark.parametrize("n", [0, -1, claim.MAX_BATCH + 1])
async def test_a_senseless_batch_is_refused(conn: Connection, n: int) -> None:
    """A batch below one or above the most is a programmer's error."""
    with pytest.raises(ValueError, match="want 1 to"):
        await claim_next(conn, [rows.LANE], runner=ME, n=n)


@pytest.mark.parametrize(
    ("source", "host"), [("operator", ""), ("quota", ""), ("breaker", ""), ("setup", "h1")], ids=str
)
async def test_a_held_lane_gives_nothing(conn: Connection, source: str, host: str) -> None:
    """Every lane held by whichever source: nothing; without the hold the job is there."""
    await rows.job(conn)
    await rows.insert(conn, "lane_hold", lane=rows.LANE, source=source, host=host, reason="why", held_by="somebody")
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    await conn.execute("DELETE FROM lane_hold")
    assert len(await claim_next(conn, [rows.LANE], runner=ME)) == 1


async def test_another_hosts_hold_is_not_ours(conn: Connection) -> None:
    """A setup hold closes the lane for its host alone."""
    await rows.job(conn)
    await rows.insert(conn, "lane_hold", lane=rows.LANE, source="setup", host="h1", reason="exec 127", held_by="r1")
    assert await claim_next(conn, [rows.LANE], runner=ME) == []
    assert len(await claim_next(conn, [rows.LANE], runner=OTHER)) == 1


async def test_a_lane_gone_from_the_configuration_is_closed(conn: Connection) -> None:
    """The jobs of a lane that is not configured any more stay where they are."""
    await rows.job(conn)
    await rows.lane(conn, configured=False)
    assert await claim_next(conn, [rows.LANE], runner=ME) == []


LABELS = [
    [],
    [{"id": 1, "name": "tireless/status/running"}],
    [{"id": 1, "name": "tireless/status/delivered"}, {"id": 2, "name": "tireless/hold"}],
    [{"id": 1, "name": "tireless/agent:codex"}, {"id": 2, "name": "tireless/plan"}],
]


@pytest.mark.parametrize("labels", LABELS)
async def test_labels_decide_no_claim(conn: Connection, labels: list[object]) -> None:
    """Whatever labels are stored with the issue, a pending job is claimed and a claimed one is not."""
    issue_id = await rows.issue(conn, labels=labels)
    made = await rows.job(conn, issue_id=issue_id)
    (got,) = await claim_next(conn, [rows.LANE, "codex"], runner=ME)
    assert (got.job_id, got.kind, got.lane) == (made.job_id, Kind.IMPLEMENT, rows.LANE)
    for contradicting in LABELS:
        query = "UPDATE issue SET labels = %(labels)s WHERE id = %(id)s"
        await conn.execute(query, {"labels": Jsonb(contradicting), "id": issue_id})
        assert await claim_next(conn, [rows.LANE, "codex"], runner=OTHER) == []


def test_the_claims_sql_names_no_label() -> None:
    """Neither the statement nor the function it calls reads a label column."""
    sql = claim.CLAIM + (rows.ROOT / "migrations" / "0003_claim.sql").read_text()
    assert not re.search(r"\blabels?\b", re.sub(r"--.*", "", sql))


async def test_a_connection_cut_during_a_claim_is_an_error(dsn: str) -> None:
    """A backend that ends in the middle of a claim raises StoreUnavailable, and the job can be claimed again."""
    async with rows.connections(dsn, 3) as (watcher, holder, victim):
        await rows.job(watcher)
        async with holder.transaction():
            await holder.execute("LOCK TABLE attempt IN SHARE MODE")  # the claim waits here, midway
            claiming = asyncio.create_task(claim_next(victim, [rows.LANE], runner=ME))
            await rows.until_blocked(watcher, victim)
            await watcher.execute("SELECT pg_terminate_backend(%(pid)s)", {"pid": victim.info.backend_pid})
            with pytest.raises(StoreUnavailable, match="claiming a job of lane claude"):
                await claiming
        assert len(await claim_next(watcher, [rows.LANE], runner=OTHER)) == 1


async def test_a_closed_connection_is_an_error(dsn: str) -> None:
    """A claim through a connection that is gone raises; it never says "nothing to do"."""
    conn = await connect(dsn, application_name="tireless test")
    await conn.close()
    with pytest.raises(StoreUnavailable):
        await claim_next(conn, [rows.LANE], runner=ME)


async def test_a_broken_schema_is_an_error(conn: Connection) -> None:
    """A statement the database refuses raises StoreError."""
    await conn.execute("ALTER TABLE lane_hold RENAME TO gone")
    with pytest.raises(StoreError, match="claiming a job of lane claude"):
        await claim_next(conn, [rows.LANE], runner=ME)


# ------------------------------------------------------------------------------------------------ leases


async def test_renewing_extends_the_lease(conn: Connection) -> None:
    """A renewal grants the lane's whole lease again, by the database's clock, and brings a wish to cancel."""
    made = await rows.job(conn, state="claimed", lease_s=120.0)
    assert made.token
    before = await clock(conn)
    renewal = (await renew_claim(conn, [made.claim]))[made.token]
    assert 600 - (await clock(conn) - before).total_seconds() <= renewal.lease_left_s <= 600
    assert renewal.cancel_requested is None
    await rows.change(conn, "job", made.job_id, cancel_requested="closed")
    assert (await renew_claim(conn, [made.claim]))[made.token].cancel_requested == "closed"


async def test_renewing_a_lost_claim_touches_nothing(conn: Connection) -> None:
    """Wrong token, expired lease, ended job, no job: absent from the answer, and no row changes."""
    mine = await rows.job(conn, state="claimed")
    late = await rows.job(conn, state="claimed", lease_s=-1.0)
    ended = await rows.job(conn, state="delivered")
    pending = await rows.job(conn)
    before = await rows.rows(conn, "SELECT *, ctid FROM job WHERE id <> %(id)s ORDER BY id", id=mine.job_id)
    stale: list[tuple[int, UUID]] = [
        (late.job_id, late.claim[1]),
        (ended.job_id, ended.claim[1]),
        (pending.job_id, uuid4()),
        (mine.job_id, uuid4()),
        (4711, uuid4()),
    ]
    assert list(await renew_claim(conn, [*stale, mine.claim])) == [mine.token]
    assert await rows.rows(conn, "SELECT *, ctid FROM job WHERE id <> %(id)s ORDER BY id", id=mine.job_id) == before


async def test_nothing_to_renew(conn: Connection) -> None:
    """A runner without claims may renew all the same."""
    assert await renew_claim(conn, []) == {}


async def test_renewals_are_hot(conn: Connection) -> None:
    """Renewing rewrites no index entry, for the lease is in no index; only a full page makes an exception."""
    query = (
        "SELECT indexrelid::regclass::text FROM pg_index WHERE pg_get_indexdef(indexrelid) LIKE '%claim_expires_at%'"
    )
    assert await rows.rows(conn, query) == []
    claims = [(await rows.job(conn, state="claimed")).claim for _ in range(5)]
    for _ in range(10):
        assert len(await renew_claim(conn, claims)) == 5
    await conn.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'job'"
    (counted,) = await rows.rows(conn, query)
    assert counted["n_tup_upd"] == 50
    assert int(str(counted["n_tup_hot_upd"])) >= 40


async def test_checking_a_claim(conn: Connection) -> None:
    """Before a push a claim counts only with its own token and a live lease."""
    mine = await rows.job(conn, state="claimed")
    assert await check_claim(conn, *mine.claim)
    assert not await check_claim(conn, mine.job_id, uuid4())
    await rows.expire(conn, mine.job_id)
    assert not await check_claim(conn, *mine.claim)


# ------------------------------------------------------------------------------------------------ runners


async def test_a_runner_shows_itself(conn: Connection) -> None:
    """Showing twice is one row, renewed; forgetting removes it and frees no claim."""
    made = await rows.job(conn, state="claimed", runner=ME.name)
    await claim.show_runner(conn, ME, lanes=["a"], slots=1, version="1.0")
    await conn.execute("UPDATE runner SET seen_at = seen_at - interval '1 h'")
    await claim.show_runner(conn, ME, lanes=["a", "b"], slots=2, version="1.0")
    (shown,) = await rows.rows(conn, "SELECT *, seen_at >= started_at AS fresh FROM runner")
    assert (shown["name"], shown["host"], shown["lanes"], shown["slots"], shown["fresh"]) == (
        "r1",
        "h1",
        ["a", "b"],
        2,
        True,
    )
    await claim.forget_runner(conn, ME)
    assert await rows.rows(conn, "SELECT 1 FROM runner") == []
    assert await rows.states(conn, [made]) == ["claimed"]
