"""Sweeps: what time moves, in bounded steps, and never what is alive."""

from __future__ import annotations

import asyncio

from tests.support import rows
from tireless.store.claim import renew_claim
from tireless.store.db import Connection
from tireless.store.record import append_output
from tireless.store.sweep import end_holds, expire_stale_claims, wake_due


async def backing_off(conn: Connection, path: str = rows.REPO, **columns: object) -> rows.Made:
    """A job in backoff that is due."""
    later = await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'")
    made = await rows.job(conn, path, state="waiting", not_before=later, not_before_reason="backoff")
    if columns:
        await rows.change(conn, "job", made.job_id, **columns)
    await rows.due(conn, made)
    return made


# ------------------------------------------------------------------------------------------------ leases


async def test_an_expired_lease_returns_the_job(conn: Connection) -> None:
    """The claim is cleared, the turn kept, the attempt counted and ended; it can be claimed again."""
    made = await rows.job(conn, state="claimed", turn=9, given_back=2)
    assert made.attempt_id is not None
    await append_output(conn, made.attempt_id, made.claim[1], "last words")
    await rows.expire(conn, made.job_id)
    assert await expire_stale_claims(conn) == 1
    job, attempt = await rows.row(conn, "job", made.job_id), await rows.row(conn, "attempt", made.attempt_id)
    assert (job["state"], job["attempts"], job["turn"], job["given_back"]) == ("pending", 1, 9, 0)
    assert [job[c] for c in ("claimed_by", "claimed_host", "claim_token", "claimed_at", "claim_expires_at")] == [
        None
    ] * 5
    assert (attempt["outcome"], attempt["burned"], attempt["output_tail"]) == ("lease_lost", True, "last words")
    assert await rows.events(conn, made.job_id) == [("expire", "claimed", "pending", None)]


async def test_a_claim_whose_attempt_is_gone_is_taken_back(conn: Connection) -> None:
    """Somebody deleted it by hand: no end of it can be recorded, and the job must not stay claimed for ever."""
    made = await rows.job(conn, state="claimed")
    await conn.execute("DELETE FROM attempt")
    await rows.expire(conn, made.job_id)
    assert await expire_stale_claims(conn) == 1
    assert (await rows.row(conn, "job", made.job_id))["state"] == "pending"
    assert await rows.events(conn, made.job_id) == [("expire", "claimed", "pending", None)]


async def test_a_live_lease_is_not_touched(conn: Connection) -> None:
    """A claim made or renewed this second is safe, however often the sweep runs."""
    made = await rows.job(conn, state="claimed", lease_s=60.0)
    renewed = await rows.job(conn, state="claimed", lease_s=5.0)
    await renew_claim(conn, [renewed.claim])
    before = await rows.rows(conn, "SELECT *, ctid FROM job ORDER BY id")
    assert [await expire_stale_claims(conn) for _ in range(3)] == [0, 0, 0]
    assert await rows.rows(conn, "SELECT *, ctid FROM job ORDER BY id") == before
    assert len(await renew_claim(conn, [made.claim, renewed.claim])) == 2


async def test_where_an_expired_claim_goes(conn: Connection) -> None:
    """Asked to cancel before a recorded result before exhaustion before another try; each with its attempt and look."""
    cases: dict[tuple[str, str | None, str, bool], dict[str, object]] = {
        ("cancelled", "closed", "lease_lost", True): {"cancel_requested": "closed", "max_attempts": 1},
        ("publishing", None, "done", True): {"max_attempts": 1},
        ("failed", "exhausted", "lease_lost", False): {"max_attempts": 1},
        ("pending", None, "lease_lost", False): {"max_attempts": 2},
        ("waiting", "on_hold", "lease_lost", False): {"hold": True},
    }
    for (state, reason, outcome, recorded), columns in cases.items():
        made = await rows.job(conn, state="claimed", lease_s=-1.0, recorded=recorded)
        await rows.change(conn, "job", made.job_id, **columns)
        assert await expire_stale_claims(conn) == 1
        job, attempt = await rows.row(conn, "job", made.job_id), await rows.row(conn, "attempt", made.attempt_id)
        assert (job["state"], job["reason"], attempt["outcome"]) == (state, reason, outcome)
        assert (job["result_attempt"] == made.attempt_id) == (state == "publishing")
        assert await rows.events(conn, made.job_id) == [("expire", "claimed", state, reason)]
        looked = await rows.rows(conn, "SELECT 1 FROM look WHERE number = %(n)s", n=made.number)
        assert len(looked) == (state in ("cancelled", "failed"))


async def test_recovery_spends_the_same_attempts(conn: Connection) -> None:
    """A job whose runners die each time is tried max_attempts times, then it has failed."""
    made = await rows.job(conn, state="claimed", lease_s=-1.0)
    for attempts in (1, 2, 3):
        job = await rows.row(conn, "job", made.job_id)
        assert job["attempts"] == attempts
        assert await expire_stale_claims(conn) == 1
        if attempts < 3:
            query = """
            WITH again AS (
              UPDATE job SET state = 'claimed', attempts = attempts + 1, claim_no = claim_no + 1, claimed_by = 'r',
                     claimed_host = 'h', claim_token = gen_random_uuid(), claimed_at = now(), claim_expires_at = now()
               WHERE id = %(id)s RETURNING *)
            INSERT INTO attempt (job_id, repository_id, claim_no, token, number, lane, runner, host)
            SELECT id, repository_id, claim_no, claim_token, attempts, lane, 'r', 'h' FROM again
            """
            await conn.execute(query, {"id": made.job_id})
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["reason"], job["claim_no"]) == ("failed", "exhausted", 3)


async def test_the_sweep_goes_on_past_what_is_locked(dsn: str) -> None:
    """More claims than a step takes, the first ones locked by their settles: all others are taken back."""
    async with rows.connections(dsn, 2) as (one, two):
        made = [await rows.job(one, state="claimed", lease_s=-1.0) for _ in range(12)]
        async with one.transaction():
            for job in made[:5]:
                await one.execute("SELECT 1 FROM job WHERE id = %(id)s FOR NO KEY UPDATE", {"id": job.job_id})
            assert await expire_stale_claims(two, limit=3) == 7
        assert await expire_stale_claims(two, limit=3) == 5


async def test_two_sweeps_at_once_move_each_claim_once(dsn: str) -> None:
    """However many sweep, each claim moves once."""
    async with rows.connections(dsn, 3) as conns:
        for _ in range(30):
            await rows.job(conns[0], state="claimed", lease_s=-1.0)
        moved = await asyncio.gather(*(expire_stale_claims(conn, limit=4) for conn in conns))
        assert sum(moved) <= 30
        assert sum(moved) + await expire_stale_claims(conns[0]) == 30
        query = "SELECT count(*) FROM job_event WHERE what = 'expire'"
        assert await rows.value(conns[0], query) == 30


async def test_the_sweep_knows_no_kind(conn: Connection) -> None:
    """It takes back claims of a lane that is closed, and of one that is held, all the same."""
    await rows.job(conn, state="claimed", lease_s=-1.0, kind="discover")
    await rows.lane(conn, configured=False)
    await rows.insert(conn, "lane_hold", lane=rows.LANE, source="operator", reason="why", held_by="ada")
    assert await expire_stale_claims(conn) == 1


# ------------------------------------------------------------------------------------------------ waits


async def test_what_is_due_wakes(conn: Connection) -> None:
    """A job whose backoff is over becomes pending behind those of its repository that wait already; others sleep on."""
    asleep = await rows.job(
        conn,
        state="waiting",
        not_before=await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'"),
        not_before_reason="blocked",
    )
    for _ in range(3):
        await rows.job(conn)
    other = await rows.job(conn, "acme/other")
    made = await backing_off(conn)
    assert await wake_due(conn) == 1
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["reason"], job["not_before"]) == ("pending", None, None)
    assert int(str(job["turn"])) > int(str((await rows.row(conn, "job", other.job_id))["turn"]))
    assert await rows.states(conn, [asleep]) == ["waiting"]
    assert await rows.events(conn, made.job_id) == [("wake", "waiting", "pending", None)]


async def test_jobs_woken_together_take_turns(conn: Connection) -> None:
    """Ten jobs of one repository and one of another, due at once: the single one is among the first two."""
    for _ in range(10):
        await backing_off(conn, "acme/busy")
    single = await backing_off(conn, "acme/quiet")
    assert await wake_due(conn) == 11
    first = await rows.rows(conn, "SELECT id FROM job WHERE state = 'pending' ORDER BY turn, id LIMIT 2")
    assert single.job_id in [row["id"] for row in first]


async def test_a_due_job_that_waits_for_more_goes_on_waiting(conn: Connection) -> None:
    """Time takes away its own reason only; the sweep does not come back to it."""
    made = await backing_off(conn, hold=True)
    assert await wake_due(conn) == 1
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["reason"], job["not_before"]) == ("waiting", "on_hold", None)
    assert await rows.events(conn, made.job_id) == []
    assert await wake_due(conn) == 0


async def test_a_due_job_without_attempts_ends(conn: Connection) -> None:
    """It would wake by itself with none left: failed, exhausted; parked for a person it stays."""
    spent = await backing_off(conn, attempts=3, claim_no=3)
    parked = await backing_off(conn, attempts=3, claim_no=3, parked="needs_input")
    assert await wake_due(conn) == 2
    job = await rows.row(conn, "job", spent.job_id)
    assert (job["state"], job["reason"]) == ("failed", "exhausted")
    assert await rows.events(conn, spent.job_id) == [("exhaust", "waiting", "failed", "exhausted")]
    assert await rows.states(conn, [parked]) == ["waiting"]


async def test_waking_goes_on_past_what_is_locked(dsn: str) -> None:
    """In steps of three with two locked, all others wake."""
    async with rows.connections(dsn, 2) as (one, two):
        made = [await backing_off(one) for _ in range(9)]
        async with one.transaction():
            for job in made[:2]:
                await one.execute("SELECT 1 FROM job WHERE id = %(id)s FOR NO KEY UPDATE", {"id": job.job_id})
            assert await wake_due(two, limit=3) == 7
        assert await wake_due(two, limit=3) == 2


async def test_waking_waits_for_the_repository(dsn: str) -> None:
    """Turns are given under the repository's lock, so that no two jobs get the same one."""
    async with rows.connections(dsn, 3) as (one, two, watcher):
        made = await backing_off(watcher)
        async with one.transaction():
            await one.execute("SELECT 1 FROM repository FOR NO KEY UPDATE")
            new = await rows.job(one)
            waking = asyncio.create_task(wake_due(two))
            await rows.until_blocked(watcher, two)
        assert await waking == 1
        turns = [(await rows.row(watcher, "job", job.job_id))["turn"] for job in (new, made)]
        assert turns[0] != turns[1]


# ------------------------------------------------------------------------------------------------ holds


async def test_due_holds_end(conn: Connection) -> None:
    """Only what is due: the rest, and what has no end, stays. After quota and breaker the lane probes."""
    minute = await rows.value(conn, "SELECT clock_timestamp() + interval '1 min'")
    past = await rows.value(conn, "SELECT clock_timestamp() - interval '1 s'")
    for lane in ("a", "b", "c", "d", "e"):
        await rows.lane(conn, lane)
    held: list[tuple[str, str, str, object]] = [
        ("a", "quota", "", past),
        ("b", "breaker", "", past),
        ("c", "operator", "", past),
        ("c", "setup", "h1", past),
        ("d", "operator", "", None),
        ("e", "quota", "", minute),
    ]
    for lane, source, host, until in held:
        values = {"source": source, "host": host, "until": until, "reason": "why", "held_by": "x", "job_id": 5}
        await rows.insert(conn, "lane_hold", lane=lane, **values)
    assert await end_holds(conn) == 4
    left = await rows.rows(conn, "SELECT lane FROM lane_hold ORDER BY lane")
    assert [row["lane"] for row in left] == ["d", "e"]
    query = "SELECT name, probe_avoid_job FROM lane WHERE probing ORDER BY name"
    assert [tuple(row.values()) for row in await rows.rows(conn, query)] == [("a", 5), ("b", 5)]


async def test_an_ended_hold_wakes_its_lane(dsn: str, conn: Connection) -> None:
    """Idle runners hear of a lane that is open again."""
    async with rows.connections(dsn, 1) as (listener,):
        await listener.execute("LISTEN tireless_lane")
        past = await rows.value(conn, "SELECT clock_timestamp() - interval '1 s'")
        values = {"source": "operator", "until": past, "reason": "why", "held_by": "x"}
        await rows.insert(conn, "lane_hold", lane=await rows.lane(conn), **values)
        assert await end_holds(conn) == 1
        heard = [(n.channel, n.payload) async for n in listener.notifies(timeout=90, stop_after=1)]
    assert heard == [("tireless_lane", rows.LANE)]
