"""Claims where something is counted: never one more than the limit, not for a moment, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.outcome import Outcome
from tireless.store.claim import Claim, RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.settle import Answer, Ending, settle
from tireless.store.sweep import expire_stale_claims, wake_full

ME = RunnerId("r1", "h1", uuid4())
LANES = ["a", "b"]


async def end(conn: Connection, claim: Claim, outcome: Outcome = Outcome.FAILED) -> None:
    """End a claim so that its job neither runs nor comes back at once, or as `outcome` says."""
    assert await settle(conn, claim.job_id, claim.token, Ending(outcome=outcome)) is Answer.DONE


async def queued(conn: Connection, path: str = rows.REPO, lane: str = "a", *, count: int = 1) -> list[int]:
    """So many pending jobs of a repository in a lane; their ids in order."""
    return [(await rows.job(conn, path, lane_name=lane)).job_id for _ in range(count)]


async def places(conn: Connection) -> list[object]:
    """The places that are taken, in order."""
    return [
        row["claim_place"]
        for row in await rows.rows(conn, "SELECT claim_place FROM job WHERE state = 'claimed' ORDER BY 1")
    ]


async def waiting(conn: Connection) -> dict[object, int]:
    """How many jobs wait for which reason."""
    query = "SELECT reason, count(*)::int AS n FROM job WHERE state = 'waiting' GROUP BY 1"
    return {row["reason"]: int(str(row["n"])) for row in await rows.rows(conn, query)}


# ------------------------------------------------------------------------------------------------ lane limits


async def test_a_lane_limit_is_exact(dsn: str) -> None:
    """Sixteen claims at once over twenty jobs of a lane that may run three give three; an end makes room for one."""
    async with rows.connections(dsn, 8) as conns:
        await queued(conns[0], count=20)
        await rows.lane(conns[0], "a", max_running=3)
        for expected in (3, 1, 1):
            got = await asyncio.gather(*(claim_next(conns[n % 8], ["a"], runner=ME) for n in range(16)))
            claims = [claim for some in got for claim in some]
            assert len(claims) == expected
            await end(conns[0], claims[0])


async def test_a_claim_under_way_has_its_place(dsn: str) -> None:
    """While a claim's transaction is open others take the places beside it, and wait for nobody when there is none."""
    async with rows.connections(dsn, 3) as (watcher, one, two):
        await queued(watcher, count=4)
        await rows.lane(watcher, "a", max_running=2)
        async with one.transaction():
            first = await claim_next(one, ["a"], runner=ME)
            second = await claim_next(two, ["a"], runner=ME)
            assert await claim_next(two, ["a"], runner=ME) == []
        assert await places(watcher) == [1, 2]
        await end(two, first[0])
        assert len(await claim_next(two, ["a"], runner=ME, n=5)) == 1
        assert second[0].job_id != first[0].job_id


async def test_a_claim_that_came_to_nothing_leaves_its_place(dsn: str) -> None:
    """The place of a claim that was rolled back is taken by the next one."""
    async with rows.connections(dsn, 2) as (one, two):
        await queued(one, count=2)
        await rows.lane(one, "a", max_running=1)
        async with one.transaction(force_rollback=True):
            assert len(await claim_next(one, ["a"], runner=ME)) == 1
        assert len(await claim_next(two, ["a"], runner=ME)) == 1


# In the middle of take_places: what was seen is no longer so when the place is locked.
GATE = (
    "CONTINUE WHEN NOT pg_try_advisory_xact_lock",
    """IF current_setting('tireless.slow', true) = 'yes' THEN
          PERFORM set_config('tireless.slow', 'no', true), pg_advisory_xact_lock_shared(777, 778);
        END IF;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock""",
)


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_place_that_was_taken_since_it_was_seen(dsn: str, limit: int) -> None:
    """It is looked at again under its lock, and let go of: whoever claims when it is free again gets it."""
    async with rows.connections(dsn, 4) as (watcher, slow, fast, gate):
        await queued(watcher, count=4)
        await rows.lane(watcher, "a", max_running=limit)
        await rows.rewrite(watcher, "take_places", GATE)
        await gate.execute("SELECT pg_advisory_lock(777, 778)")
        async with slow.transaction():
            await slow.execute("SET LOCAL tireless.slow = 'yes'")
            late = asyncio.create_task(claim_next(slow, ["a"], runner=ME))
            await rows.until_blocked(watcher, slow)
            (first,) = await claim_next(fast, ["a"], runner=ME)
            await gate.execute("SELECT pg_advisory_unlock(777, 778)")
            assert len(await late) == limit - 1
            await end(fast, first)
            assert len(await claim_next(fast, ["a"], runner=ME)) == 1
        assert await places(watcher) == [*range(1, limit + 1)]


async def test_a_settle_under_way_keeps_its_place(dsn: str) -> None:
    """Until the end has committed its place is taken; then it is free."""
    async with rows.connections(dsn, 2) as (one, two):
        await queued(one, count=2)
        await rows.lane(one, "a", max_running=1)
        (claim,) = await claim_next(one, ["a"], runner=ME)
        async with one.transaction():
            await end(one, claim)
            assert await claim_next(two, ["a"], runner=ME) == []
        assert len(await claim_next(two, ["a"], runner=ME)) == 1


@pytest.mark.parametrize("before", [None, 6])
@pytest.mark.parametrize("ends", [[0, 1], [4, 5], [5, 0, 3, 2], [0, 1, 2, 3, 4, 5]])
async def test_a_limit_that_is_younger_than_what_runs(conn: Connection, before: int | None, ends: list[int]) -> None:
    """Six run without a limit, or under a wider one; then, with a limit of three, there is room as soon as two run."""
    await queued(conn, count=12)
    await rows.lane(conn, "a", max_running=before)
    claims = [*await claim_next(conn, ["a"], runner=ME, n=5), *await claim_next(conn, ["a"], runner=ME)]
    await rows.lane(conn, "a", max_running=3)
    running = len(claims)
    for number in ends:
        await end(conn, claims[number], Outcome.NO_CHANGE)
        running -= 1
        got = await claim_next(conn, ["a"], runner=ME, n=2)
        assert len(got) == max(0, 3 - running)
        running += len(got)
        assert await claim_next(conn, ["a"], runner=ME) == []


async def test_places_above_a_lowered_limit_keep_lower_ones_free(dsn: str) -> None:
    """Two that look at once, one of them before an end, do not both find room where there is room for one."""
    async with rows.connections(dsn, 3) as (watcher, one, two):
        await queued(watcher, count=9)
        await rows.lane(watcher, "a", max_running=6)
        claims = await claim_next(watcher, ["a"], runner=ME, n=6)
        await rows.lane(watcher, "a", max_running=3)
        for claim in claims[:4]:
            await end(watcher, claim)
        assert await places(watcher) == [5, 6]
        async with one.transaction(), two.transaction():
            got = [await claim_next(conn, ["a"], runner=ME) for conn in (one, two)]
            assert [len(claims) for claims in got] == [1, 0]
        assert await places(watcher) == [1, 5, 6]


async def test_a_batch_stops_at_the_limit(conn: Connection) -> None:
    """Asking for ten in a lane that has room for two gives two."""
    await queued(conn, count=5)
    await rows.lane(conn, "a", max_running=2)
    assert len(await claim_next(conn, ["a"], runner=ME, n=10)) == 2


async def test_the_sweep_makes_room_at_the_limit(conn: Connection) -> None:
    """A lane full of dead claims is freed by their leases, without any claim."""
    made = await rows.job(conn, lane_name="a", state="claimed", lease_s=-1.0)
    await rows.lane(conn, "a", max_running=1)
    await queued(conn)
    assert await claim_next(conn, ["a"], runner=ME) == []
    assert await expire_stale_claims(conn) == 1
    (got,) = await claim_next(conn, ["a"], runner=ME)
    assert got.job_id == made.job_id  # it kept its turn


async def test_both_ways_of_claiming_hand_out_the_same(conn: Connection) -> None:
    """A claim of a counted lane has the same columns, event and attempt as one of an open lane."""
    made = [await rows.job(conn, lane_name=lane) for lane in LANES]
    await rows.lane(conn, "b", max_running=1)
    claims = [(await claim_next(conn, [lane], runner=ME))[0] for lane in LANES]
    for job, claim in zip(made, claims, strict=True):
        attempt = await rows.row(conn, "attempt", claim.attempt_id)
        row = await rows.row(conn, "job", job.job_id)
        assert (attempt["uid"], attempt["token"], attempt["claim_no"]) == (claim.attempt_uid, claim.token, 1)
        assert (attempt["repository_id"], attempt["runner"], attempt["host"]) == (job.repository_id, "r1", "h1")
        assert (row["claim_token"], row["claimed_by"], row["claimed_host"]) == (claim.token, "r1", "h1")
        assert (claim.title, claim.number, claim.lease_s) == (f"Issue {job.number}", job.number, 600.0)
        assert await rows.events(conn, job.job_id) == [("claim", "pending", "claimed", None)]


async def test_order_holds_where_something_is_counted(conn: Connection) -> None:
    """Priority, turn and age decide in a counted lane as well, and a locked row is passed over."""
    await rows.lane(conn, "a", max_running=10)
    low = await rows.job(conn, lane_name="a", priority=-1)
    first, second = await queued(conn, count=2)
    high = await rows.job(conn, lane_name="a", priority=1)
    got = [c.job_id for c in await claim_next(conn, ["a"], runner=ME, n=4)]
    assert got == [high.job_id, first, second, low.job_id]


async def test_a_locked_row_is_passed_over_where_something_is_counted(dsn: str) -> None:
    """A job that somebody else works on is not waited for."""
    async with rows.connections(dsn, 2) as (one, two):
        first, second = await queued(one, count=2)
        await rows.lane(one, "a", max_running=5)
        async with one.transaction():
            await one.execute("SELECT 1 FROM job WHERE id = %(id)s FOR NO KEY UPDATE", {"id": first})
            assert [c.job_id for c in await claim_next(two, ["a"], runner=ME, n=5)] == [second]


# ------------------------------------------------------------------------------------------------ repository limits


async def test_a_repository_limit_counts_all_lanes(dsn: str) -> None:
    """Two lanes claiming one repository's jobs at the same time never exceed its limit together."""
    async with rows.connections(dsn, 3) as (watcher, one, two):
        await rows.repository(watcher, max_running=1)
        await queued(watcher, lane="a")
        await queued(watcher, lane="b")
        async with one.transaction():
            assert len(await claim_next(one, ["a"], runner=ME)) == 1
            late = asyncio.create_task(claim_next(two, ["b"], runner=ME))
            await rows.until_blocked(watcher, two)
        assert await late == []
        assert await waiting(watcher) == {"repository_full": 1}


async def test_a_full_repository_steps_aside(conn: Connection) -> None:
    """The jobs of a repository at its limit, however many, make way for another's in the same claim."""
    await rows.repository(conn, "acme/full", max_running=1)
    running = await rows.job(conn, "acme/full", lane_name="a", state="claimed")
    await queued(conn, "acme/full", count=230)
    (other,) = await queued(conn, "acme/other")
    (got,) = await claim_next(conn, ["a"], runner=ME)
    assert got.job_id == other
    assert await claim_next(conn, ["a"], runner=ME) == []
    assert await waiting(conn) == {"repository_full": 230}
    query = (
        "SELECT DISTINCT who, what, from_state, to_state, reason FROM job_event WHERE job_id > %(id)s AND what = 'wait'"
    )
    (told,) = await rows.rows(conn, query, id=running.job_id)
    assert tuple(told.values()) == ("claim", "wait", "pending", "waiting", "repository_full")


async def test_several_full_repositories_step_aside(conn: Connection) -> None:
    """Repositories at their limits, in any order of their ids, all make way within one call."""
    for name in ("c", "a", "b"):
        await rows.repository(conn, f"acme/{name}", max_running=1)
    for name in ("b", "c", "a"):
        await rows.job(conn, f"acme/{name}", lane_name="a", state="claimed")
        await queued(conn, f"acme/{name}", count=2)
    (other,) = await queued(conn, "acme/other")
    (got,) = await claim_next(conn, ["a"], runner=ME)
    assert got.job_id == other
    assert await waiting(conn) == {"repository_full": 6}


async def test_an_end_wakes_the_first(conn: Connection) -> None:
    """When a job of a full repository ends, the first waiting one of each lane becomes pending, in one transaction."""
    await rows.repository(conn, max_running=1)
    a = await queued(conn, lane="a", count=3)
    b = await queued(conn, lane="b", count=2)
    (running,) = await claim_next(conn, ["a"], runner=ME)
    assert await claim_next(conn, LANES, runner=ME) == []
    assert await waiting(conn) == {"repository_full": 4}
    async with conn.transaction(force_rollback=True):
        await end(conn, running)
        assert await waiting(conn) == {"repository_full": 2}
    assert await waiting(conn) == {"repository_full": 4}  # undone with it
    await end(conn, running)
    pending = await rows.rows(conn, "SELECT id FROM job WHERE state = 'pending' ORDER BY id")
    assert [row["id"] for row in pending] == [a[1], b[0]]
    assert (await rows.events(conn, a[1]))[-1] == ("wake", "waiting", "pending", None)


async def test_giving_back_wakes_nobody_in_its_own_place(conn: Connection) -> None:
    """A job given back is itself the first: nobody else of its lane is woken for the one free place."""
    await rows.repository(conn, max_running=1)
    first, second = await queued(conn, count=2)
    (running,) = await claim_next(conn, ["a"], runner=ME)
    assert await claim_next(conn, ["a"], runner=ME) == []
    await end(conn, running, Outcome.SHUTDOWN)
    states = {row["id"]: row["state"] for row in await rows.rows(conn, "SELECT id, state FROM job")}
    assert states == {first: "pending", second: "waiting"}


async def test_the_sweep_wakes_whom_nobody_woke(conn: Connection) -> None:
    """A place left free because the woken job was cancelled, or a limit lifted, is found by the sweep."""
    repository_id = await rows.repository(conn, max_running=1)
    jobs = await queued(conn, count=5)
    (running,) = await claim_next(conn, ["a"], runner=ME)
    assert await claim_next(conn, ["a"], runner=ME) == []
    await end(conn, running)
    await rows.value(conn, "SELECT cancel_job(%(id)s, 'operator ada', 'operator')", id=jobs[1])
    assert await wake_full(conn) == 1
    assert await wake_full(conn) == 0  # there is one candidate for the one place
    await rows.change(conn, "repository", repository_id, max_running=None)
    assert await wake_full(conn) == 2
    assert await waiting(conn) == {}


async def test_a_job_that_also_waits_for_something_else_is_not_woken(conn: Connection) -> None:
    """Of the jobs at the limit the first that could run is woken, not one that is on hold besides."""
    await rows.repository(conn, max_running=1)
    jobs = await queued(conn, count=3)
    (running,) = await claim_next(conn, ["a"], runner=ME)
    assert await claim_next(conn, ["a"], runner=ME) == []
    await rows.change(conn, "job", jobs[1], hold=True)
    await end(conn, running)
    states = {row["id"]: row["state"] for row in await rows.rows(conn, "SELECT id, state FROM job")}
    assert (states[jobs[1]], states[jobs[2]]) == ("waiting", "pending")


async def test_runs_of_a_day_are_limited(conn: Connection) -> None:
    """So many runs by UTC day and repository; what was given back was no run, yesterday's do not count."""
    repository_id = await rows.repository(conn, max_runs_per_day=2)
    await queued(conn, count=4)
    (first,) = await claim_next(conn, ["a"], runner=ME)
    await end(conn, first, Outcome.SHUTDOWN)  # no run
    again, second = await claim_next(conn, ["a"], runner=ME, n=10)
    await end(conn, again)
    await end(conn, second)
    assert await claim_next(conn, ["a"], runner=ME) == []
    assert await waiting(conn) == {"day_limit": 2}
    assert await wake_full(conn) == 0
    await conn.execute("UPDATE attempt SET claimed_at = claimed_at - interval '1 day'")  # a day passes
    assert await wake_full(conn) == 2
    assert len(await claim_next(conn, ["a"], runner=ME, n=10)) == 2
    assert await rows.value(conn, "SELECT runs_today(%(id)s)", id=repository_id) == 2


async def test_two_lanes_and_two_limited_repositories_never_deadlock(dsn: str) -> None:
    """Batches over several limited repositories from two lanes at once: no error, no limit exceeded."""
    async with rows.connections(dsn, 5) as (watcher, *conns):
        for path in ("acme/x", "acme/y"):
            await rows.repository(watcher, path, max_running=2)
            for lane in LANES:
                await queued(watcher, path, lane, count=10)
        for _ in range(25):
            orders = (LANES, LANES[::-1], LANES, LANES[::-1])
            got = await asyncio.gather(
                *(claim_next(conn, lanes, runner=ME, n=3) for conn, lanes in zip(conns, orders, strict=True))
            )
            query = "SELECT repository_id, count(*)::int AS n FROM job WHERE state = 'claimed' GROUP BY 1"
            running = {row["repository_id"]: row["n"] for row in await rows.rows(watcher, query)}
            assert all(count == 2 for count in running.values())
            claims = [claim for some in got for claim in some]
            assert len(claims) <= 4
            running_now = await watcher.execute("SELECT id, claim_token FROM job WHERE state = 'claimed'")
            endings = [
                settle(conn, job_id, token, Ending(outcome=Outcome.SHUTDOWN))
                for conn, (job_id, token) in zip(conns, await running_now.fetchall(), strict=True)
            ]
            assert set(await asyncio.gather(*endings)) == {Answer.DONE}


async def test_lanes_count_as_soon_as_some_repository_has_a_limit(conn: Connection) -> None:
    """Whoever sets or lifts a repository's limit, from its commit on the lanes are counted or open."""
    await rows.lane(conn, "a")
    counted = "SELECT counted FROM lane"
    one, two = await rows.repository(conn, "acme/x"), await rows.repository(conn, "acme/y", max_running=1)
    assert await rows.value(conn, counted) is True
    await rows.change(conn, "repository", one, max_runs_per_day=5)
    await rows.change(conn, "repository", two, max_running=None)
    assert await rows.value(conn, counted) is True
    await rows.change(conn, "repository", one, tracked=False)
    assert await rows.value(conn, counted) is False


async def test_two_limits_changed_at_once_see_each_other(dsn: str) -> None:
    """One session lifts the last limit while another sets a new one: the lanes stay counted."""
    async with rows.connections(dsn, 3) as (watcher, one, two):
        await rows.lane(watcher, "a")
        x, y = await rows.repository(watcher, "acme/x", max_running=1), await rows.repository(watcher, "acme/y")
        async with one.transaction():
            await rows.change(one, "repository", y, max_running=1)
            await one.execute("SET CONSTRAINTS ALL IMMEDIATE")
            lifting = asyncio.create_task(rows.change(two, "repository", x, max_running=None))
            await rows.until_blocked(watcher, two)
        await lifting
        assert await rows.value(watcher, "SELECT counted FROM lane") is True


# ------------------------------------------------------------------------------------------------ probes


async def probing(conn: Connection, avoid: int | None = None) -> None:
    """The lane is open again after a quota hold that job `avoid` caused."""
    await rows.lane(conn, "a", probing=True, probe_avoid_job=avoid)


async def probe(conn: Connection) -> tuple[object, object]:
    """Whether the lane is probing, and whether a probe is out."""
    lane = await rows.row(conn, "lane", "a")
    return lane["probing"], lane["probe_token"] is not None


async def test_one_claim_goes_first(dsn: str) -> None:
    """After a quota or breaker hold one claim is the probe, however many ask at once; the others get nothing."""
    async with rows.connections(dsn, 6) as conns:
        await queued(conns[0], count=6)
        await probing(conns[0])
        got = await asyncio.gather(*(claim_next(conn, ["a"], runner=ME, n=3) for conn in conns))
        (claim,) = [claim for some in got for claim in some]
        assert await probe(conns[0]) == (True, True)
        assert await rows.value(conns[0], "SELECT probe_token FROM lane") == claim.token


async def test_the_probe_is_another_job_than_the_cause(conn: Connection) -> None:
    """The job that caused the hold does not go first, unless there is no other."""
    cause, other = await queued(conn, count=2)
    await probing(conn, avoid=cause)
    (got,) = await claim_next(conn, ["a"], runner=ME)
    assert got.job_id == other
    await end(conn, got, Outcome.QUOTA)
    await conn.execute("DELETE FROM lane_hold")
    await rows.value(conn, "SELECT cancel_job(%(id)s, 'operator ada', 'operator')", id=other)
    await probing(conn, avoid=cause)
    assert [c.job_id for c in await claim_next(conn, ["a"], runner=ME)] == [cause]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.NO_CHANGE, Outcome.NEEDS_INPUT, Outcome.BLOCKED])
async def test_a_probe_passes_by_ending_in_anything_but_quota(conn: Connection, outcome: Outcome) -> None:
    """The agent worked: the lane is open to all again."""
    await queued(conn, count=3)
    await probing(conn)
    (got,) = await claim_next(conn, ["a"], runner=ME)
    await end(conn, got, outcome)
    assert await probe(conn) == (False, False)
    assert len(await claim_next(conn, ["a"], runner=ME, n=2)) == 2


@pytest.mark.parametrize("outcome", [Outcome.SHUTDOWN, Outcome.CANCELLED])
async def test_a_probe_that_was_stopped_tells_nothing(conn: Connection, outcome: Outcome) -> None:
    """A probe ended by us before it lived long enough is void: the next claim is the probe."""
    await queued(conn, count=3)
    await probing(conn)
    (got,) = await claim_next(conn, ["a"], runner=ME)
    await end(conn, got, outcome)
    assert await probe(conn) == (True, False)
    assert len(await claim_next(conn, ["a"], runner=ME, n=2)) == 1


async def test_a_probe_that_meets_the_limit_again_holds_the_lane_again(conn: Connection) -> None:
    """Quota ends the probe; the lane is held and will probe again after that."""
    await queued(conn, count=3)
    await probing(conn)
    (got,) = await claim_next(conn, ["a"], runner=ME)
    await end(conn, got, Outcome.QUOTA)
    assert await probe(conn) == (True, False)
    assert await claim_next(conn, ["a"], runner=ME) == []
    assert await rows.value(conn, "SELECT source FROM lane_hold") == "quota"


async def test_a_probe_whose_lease_ends_is_void(conn: Connection) -> None:
    """The probe of a dead runner is taken back, and the next claim is the probe."""
    await queued(conn, count=3)
    await probing(conn)
    (got,) = await claim_next(conn, ["a"], runner=ME)
    await rows.expire(conn, got.job_id)
    assert await expire_stale_claims(conn) == 1
    assert await probe(conn) == (True, False)
    assert len(await claim_next(conn, ["a"], runner=ME, n=2)) == 1


async def test_a_probe_passes_by_living(conn: Connection) -> None:
    """After two minutes of a probe's life the lane serves everybody, and the sweep says so in the row."""
    await queued(conn, count=3)
    await probing(conn)
    await claim_next(conn, ["a"], runner=ME)
    assert await claim_next(conn, ["a"], runner=ME) == []
    await conn.execute("UPDATE lane SET probe_since = clock_timestamp() - interval '2 min'")
    assert len(await claim_next(conn, ["a"], runner=ME)) == 1
    assert await rows.value(conn, "SELECT end_due_holds()") == 0
    assert await probe(conn) == (False, False)
