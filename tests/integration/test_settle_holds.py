"""What a settled attempt says about its lane: quota holds, the breaker, a host that cannot start the command."""

from __future__ import annotations

from uuid import UUID

from tests.support import rows
from tireless.domain import retry
from tireless.domain.outcome import Outcome
from tireless.store.db import Connection
from tireless.store.settle import Answer, Ending, Policy, settle
from tireless.store.sweep import end_holds


async def ends(conn: Connection, outcome: Outcome, *, made: rows.Made | None = None, **more: object) -> rows.Made:
    """Let a running job end so; a new one of its own issue unless `made` names one."""
    made = made or await rows.job(conn, state="claimed")
    asked = more.get("asked_s")
    cannot_start = more.get("cannot_start")
    permanent = bool(more.get("permanent"))
    said = Ending(
        outcome=outcome,
        reason="mend the repository" if permanent else "what the provider said",
        wake_s=None if permanent else 1.0,
        permanent=permanent,
        asked_s=float(str(asked)) if asked is not None else None,
        cannot_start=str(cannot_start) if cannot_start is not None else None,
    )
    assert await settle(conn, *made.claim, said) is Answer.DONE
    return made


async def held_s(conn: Connection, source: str) -> float | None:
    """How long from its beginning the lane's hold of this source lasts; None when there is none."""
    query = """
    SELECT extract(epoch FROM until - began_at)::float8 AS secs FROM lane_hold WHERE source = %(source)s
    """
    found = await rows.rows(conn, query, source=source)
    return float(str(found[0]["secs"])) if found else None


async def pass_hold(conn: Connection) -> None:
    """Let every hold be due, and end it."""
    await conn.execute("UPDATE lane_hold SET until = clock_timestamp()")
    assert await end_holds(conn) == 1


async def claimed_again(conn: Connection, made: rows.Made) -> rows.Made:
    """The same job, claimed once more, now."""
    job = await rows.row(conn, "job", made.job_id)
    token = UUID(int=int(str(job["claim_no"])) + 1000 * made.job_id)
    now = await rows.value(conn, "SELECT clock_timestamp()")
    columns = {"claimed_by": "r1", "claimed_host": "h1", "claim_token": token, "claimed_at": now}
    query = "SELECT clock_timestamp() + interval '10 min'"
    columns |= {"claim_expires_at": await rows.value(conn, query), "state": "claimed"}
    columns |= {"not_before": None, "not_before_reason": None, "reason": None}
    attempts, claim_no = int(str(job["attempts"])) + 1, int(str(job["claim_no"])) + 1
    await rows.change(conn, "job", made.job_id, attempts=attempts, claim_no=claim_no, **columns)
    attempt = await rows.attempt(conn, made.job_id, token=token, claimed_at=now)
    assert isinstance(attempt["id"], int)
    return rows.Made(made.job_id, made.issue_id, made.repository_id, made.request_id, made.number, attempt["id"], token)


# ------------------------------------------------------------------------------------------------ quota


async def test_quota_holds_the_lane_and_gives_the_attempt_back(conn: Connection) -> None:
    """The lane is held for every host by that job, with the provider's words; the job is pending as before."""
    made = await ends(conn, Outcome.QUOTA)
    (hold,) = await rows.rows(conn, "SELECT * FROM lane_hold")
    assert (hold["source"], hold["host"], hold["job_id"], hold["held_by"]) == ("quota", "", made.job_id, "runner r1")
    assert hold["reason"] == "what the provider said"
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["attempts"], job["given_back"]) == ("pending", 0, 1)


async def test_an_agents_word_holds_an_hour_at_most(conn: Connection) -> None:
    """A named time is kept up to max_hold, and not less than a second."""
    for asked, wanted in ((120.0, 120.0), (9e9, retry.MAX_HOLD_S), (0.0, 1.0)):
        await conn.execute("DELETE FROM lane_hold")
        await ends(conn, Outcome.QUOTA, asked_s=asked)
        held = await held_s(conn, "quota")
        assert held is not None
        assert abs(held - wanted) < 0.5
        assert retry.quota_hold_s(1, jitter=0, asked_s=asked) == wanted


async def test_quota_without_a_time_doubles(conn: Connection) -> None:
    """Each hold in a row lasts twice as long, jittered, as domain.retry has it; a success begins again."""
    for times in (1, 2, 3, 4, 5, 6):
        await ends(conn, Outcome.QUOTA)
        held = await held_s(conn, "quota")
        assert held is not None
        assert retry.quota_hold_s(times, jitter=0) - 0.1 <= held <= retry.quota_hold_s(times, jitter=1) + 0.1
        await pass_hold(conn)
    await ends(conn, Outcome.NO_CHANGE)
    await ends(conn, Outcome.QUOTA)
    held = await held_s(conn, "quota")
    assert held is not None
    assert held <= retry.quota_hold_s(1, jitter=1) + 0.1


async def test_running_attempts_do_not_lengthen_a_hold(conn: Connection) -> None:
    """Ten attempts that were running when the lane became held change nothing, however much longer they ask for."""
    running = [await rows.job(conn, state="claimed") for _ in range(10)]
    await ends(conn, Outcome.QUOTA, made=running[0])
    before = await rows.rows(conn, "SELECT * FROM lane_hold"), await rows.rows(conn, "SELECT quotas FROM lane_breaker")
    for made in running[1:]:
        await ends(conn, Outcome.QUOTA, made=made, asked_s=3000.0)
    after = await rows.rows(conn, "SELECT * FROM lane_hold"), await rows.rows(conn, "SELECT quotas FROM lane_breaker")
    assert after == before


async def test_an_old_attempt_holds_anew_but_not_longer(conn: Connection) -> None:
    """One that ran since before a hold and meets the limit after it: held again, as long as the first time."""
    old = await rows.job(conn, state="claimed")
    await ends(conn, Outcome.QUOTA)
    await pass_hold(conn)
    await ends(conn, Outcome.QUOTA, made=old)
    assert await rows.value(conn, "SELECT quotas FROM lane_breaker") == 1
    assert await held_s(conn, "quota") is not None


async def test_a_job_that_holds_its_lane_twice_in_a_row_is_suspect(conn: Connection) -> None:
    """The same job causing two holds in a row is parked; another job's hold between them clears it."""
    made = await ends(conn, Outcome.QUOTA)
    await pass_hold(conn)
    await ends(conn, Outcome.QUOTA)
    await pass_hold(conn)
    made = await ends(conn, Outcome.QUOTA, made=await claimed_again(conn, made))
    assert await rows.states(conn, [made]) == ["pending"]
    await pass_hold(conn)
    await ends(conn, Outcome.QUOTA, made=await claimed_again(conn, made))
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["reason"], job["attempts"]) == ("waiting", "suspect", 0)
    assert "twice in a row" in str(job["question"])


async def test_the_sixth_time_given_back_is_suspect(conn: Connection) -> None:
    """By quota or blocked, in a row; an attempt that burns begins the count anew."""
    made = await rows.job(conn, state="claimed", given_back=4)
    await ends(conn, Outcome.BLOCKED, made=made)
    job = await rows.row(conn, "job", made.job_id)
    assert (job["reason"], job["given_back"]) == ("blocked", 5)
    await ends(conn, Outcome.QUOTA, made=await claimed_again(conn, made))
    job = await rows.row(conn, "job", made.job_id)
    assert (job["reason"], job["given_back"]) == ("suspect", 6)
    burnt = await rows.job(conn, state="claimed", given_back=5)
    await ends(conn, Outcome.AGENT_ERROR, made=burnt)
    assert (await rows.row(conn, "job", burnt.job_id))["given_back"] == 0


async def test_blocked_waits_longer_each_time(conn: Connection) -> None:
    """An hour, doubling to a day, as domain.retry has it; a time that was asked for is kept."""
    for before in range(5):
        made = await rows.job(conn, state="claimed", given_back=before)
        await ends(conn, Outcome.BLOCKED, made=made)
        assert abs(await wait_s(conn, made) - retry.blocked_s(before + 1)) < 1
    made = await ends(conn, Outcome.BLOCKED, asked_s=77.0)
    assert abs(await wait_s(conn, made) - 77) < 1
    made = await ends(conn, Outcome.BLOCKED, asked_s=1e12)
    assert abs(await wait_s(conn, made) - retry.PROMISE_CAP_S) < 1


GONE = Outcome.WORKSPACE_ERROR
"""With `permanent`: a repository that nobody can work on."""


async def test_what_gives_back_is_counted_by_its_kind(conn: Connection) -> None:
    """A provider's limits and a repository nobody can work on: each begins to count anew after the other."""
    made = await ends(conn, Outcome.BLOCKED)
    for _ in range(2):
        await ends(conn, Outcome.BLOCKED, made=await claimed_again(conn, made))
    for times in (1, 2, 3):
        await ends(conn, GONE, made=await claimed_again(conn, made), permanent=True)
        job = await rows.row(conn, "job", made.job_id)
        assert (job["parked"], job["given_back"]) == (None, times)
        assert abs(await wait_s(conn, made) - 60 * 2 ** (times - 1)) < 1
    for times in (1, 2, 3, 4, 5):
        await ends(conn, Outcome.BLOCKED, made=await claimed_again(conn, made))
        job = await rows.row(conn, "job", made.job_id)
        assert (job["parked"], job["given_back"]) == (None, times)
        assert abs(await wait_s(conn, made) - retry.blocked_s(times)) < 1
    await ends(conn, Outcome.BLOCKED, made=await claimed_again(conn, made))
    job = await rows.row(conn, "job", made.job_id)
    assert job["parked"] == "suspect"
    assert "given back 6 times in a row, by a provider's limit or because it was blocked" in str(job["question"])


async def test_a_repository_nobody_can_work_on_parks_with_its_own_sentence(conn: Connection) -> None:
    """Four in a row, whatever was before them; what neither counts nor forgives may lie between."""
    made = await ends(conn, Outcome.BLOCKED)
    for outcome in (GONE, GONE, Outcome.SHUTDOWN, GONE):
        await ends(conn, outcome, made=await claimed_again(conn, made), permanent=outcome is GONE)
    assert (await rows.row(conn, "job", made.job_id))["parked"] is None
    await ends(conn, GONE, made=await claimed_again(conn, made), permanent=True)
    job = await rows.row(conn, "job", made.job_id)
    assert (job["parked"], job["question"]) == ("suspect", "mend the repository")


async def test_a_fault_of_the_repository_between_two_holds_makes_nobody_suspect(conn: Connection) -> None:
    """Only limits that a job meets one after the other make it suspect of them."""
    made = await ends(conn, Outcome.QUOTA)
    await pass_hold(conn)
    await ends(conn, GONE, made=await claimed_again(conn, made), permanent=True)
    await ends(conn, Outcome.QUOTA, made=await claimed_again(conn, made))
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["given_back"]) == ("pending", 1)


async def wait_s(conn: Connection, made: rows.Made) -> float:
    """How long after the end of its last attempt the job is due, in seconds."""
    query = """
    SELECT extract(epoch FROM j.not_before - max(a.ended_at))::float8 FROM job j JOIN attempt a ON a.job_id = j.id
     WHERE j.id = %(id)s GROUP BY j.id
    """
    wait = await rows.value(conn, query, id=made.job_id)
    assert isinstance(wait, float)
    return wait


# ------------------------------------------------------------------------------------------------ breaker


async def test_five_failures_over_three_issues_hold_the_lane(conn: Connection) -> None:
    """Not four, not five over two issues, not with a success between them: five in a row over three."""
    two = [await rows.issue(conn), await rows.issue(conn)]
    for n in range(6):
        made = await rows.job(conn, state="claimed", issue_id=two[n % 2])
        await ends(conn, Outcome.FAILED, made=made)
    assert await held_s(conn, "breaker") is None
    await ends(conn, Outcome.NO_CHANGE)
    for outcome in (Outcome.AGENT_ERROR, Outcome.NO_EVIDENCE, Outcome.TIMEOUT, Outcome.PROTOCOL_ERROR):
        await ends(conn, outcome)
    assert await held_s(conn, "breaker") is None
    last = await ends(conn, Outcome.STALLED)
    (hold,) = await rows.rows(conn, "SELECT * FROM lane_hold")
    assert (hold["source"], hold["job_id"]) == ("breaker", last.job_id)
    assert "5 failures in a row over 5 issues" in str(hold["reason"])


async def test_the_breaker_holds_longer_each_time(conn: Connection) -> None:
    """15 min doubling to 4 h while failures go on, as domain.retry has it; a success begins again."""
    for _ in range(4):
        await ends(conn, Outcome.AGENT_ERROR)
    for times in range(1, 7):
        await ends(conn, Outcome.AGENT_ERROR)
        held = await held_s(conn, "breaker")
        assert held is not None
        assert abs(held - retry.breaker_hold_s(times)) < 1
        await pass_hold(conn)
    await ends(conn, Outcome.NO_CHANGE)
    assert await rows.rows(conn, "SELECT failures, issues, opened FROM lane_breaker") == [
        {"failures": 0, "issues": [], "opened": 0}
    ]


async def test_attempts_older_than_a_breaker_hold_do_not_grow_it(conn: Connection) -> None:
    """What was running when the breaker opened fails later without opening it again or longer."""
    old = [await rows.job(conn, state="claimed") for _ in range(6)]
    for _ in range(5):
        await ends(conn, Outcome.AGENT_ERROR)
    await ends(conn, Outcome.AGENT_ERROR, made=old[0])
    assert await rows.value(conn, "SELECT opened FROM lane_breaker") == 1
    await pass_hold(conn)
    for made in old[1:]:
        await ends(conn, Outcome.AGENT_ERROR, made=made)
    assert await held_s(conn, "breaker") is None
    await ends(conn, Outcome.AGENT_ERROR)  # a new one, and it fails as well
    assert await held_s(conn, "breaker") is not None


async def test_a_success_touches_no_row_of_the_breaker(conn: Connection) -> None:
    """While the count is nought a success writes nothing to it, so that settles of a lane do not queue there."""
    await ends(conn, Outcome.NO_CHANGE)
    assert await rows.rows(conn, "SELECT 1 FROM lane_breaker") == []
    await rows.insert(conn, "lane_breaker", lane=rows.LANE)
    before = await rows.rows(conn, "SELECT ctid, xmin::text FROM lane_breaker")
    await ends(conn, Outcome.NO_CHANGE)
    assert await rows.rows(conn, "SELECT ctid, xmin::text FROM lane_breaker") == before


async def test_a_success_waits_for_no_failure_and_still_breaks_the_row(dsn: str, conn: Connection) -> None:
    """While a failing attempt settles a success passes by; the next failure is the first in a row all the same."""
    for _ in range(4):
        await ends(conn, Outcome.AGENT_ERROR)
    async with rows.connections(dsn, 1) as (other,), other.transaction():
        await ends(other, Outcome.AGENT_ERROR, made=await rows.job(conn, state="claimed"))
        await conn.execute("SET lock_timeout = '1s'")
        await ends(conn, Outcome.NO_CHANGE)
    assert await rows.value(conn, "SELECT count(*) FROM lane_success") == 1
    assert await held_s(conn, "breaker") is not None  # the fifth in a row was counted before the success committed
    await pass_hold(conn)
    await ends(conn, Outcome.AGENT_ERROR)
    counted = await rows.rows(conn, "SELECT failures, cardinality(issues) AS issues, opened FROM lane_breaker")
    assert counted == [{"failures": 1, "issues": 1, "opened": 0}]
    assert await rows.value(conn, "SELECT count(*) FROM lane_success") == 0


async def test_a_success_met_while_locked_ends_a_row_of_quotas_too(dsn: str, conn: Connection) -> None:
    """Holds by a provider's limit double only while nothing succeeds between them, whoever had the row locked."""
    await ends(conn, Outcome.QUOTA)
    await pass_hold(conn)
    async with rows.connections(dsn, 1) as (other,), other.transaction():
        await other.execute("SELECT FROM lane_breaker FOR NO KEY UPDATE")
        await ends(conn, Outcome.NO_CHANGE)
    await ends(conn, Outcome.QUOTA)
    assert await rows.value(conn, "SELECT quotas FROM lane_breaker") == 1


async def test_what_says_nothing_of_the_agent_does_not_count(conn: Connection) -> None:
    """Our own stops, a provider's limit and a host's fault neither count as failures nor heal the count."""
    await rows.insert(conn, "lane_breaker", lane=await rows.lane(conn), failures=3)
    for outcome in (Outcome.SHUTDOWN, Outcome.CANCELLED, Outcome.WORKSPACE_ERROR, Outcome.BLOCKED, Outcome.QUOTA):
        await ends(conn, outcome)
    assert await rows.value(conn, "SELECT failures FROM lane_breaker") == 3


async def test_the_policy_is_the_callers(conn: Connection) -> None:
    """Other counts and times than the defaults are obeyed."""
    policy = Policy(breaker_failures=1, breaker_issues=1, breaker_base_s=7.0, breaker_cap_s=7.0)
    made = await rows.job(conn, state="claimed")
    await settle(conn, *made.claim, Ending(outcome=Outcome.FAILED), policy=policy)
    held = await held_s(conn, "breaker")
    assert held is not None
    assert abs(held - 7) < 1


# ------------------------------------------------------------------------------------------------ setup


async def test_a_command_that_cannot_start_holds_this_host(conn: Connection) -> None:
    """The lane is held on that host alone; the job is pending at once, its attempt given back, for another host."""
    made = await ends(conn, Outcome.WORKSPACE_ERROR, cannot_start="claude: not found")
    (hold,) = await rows.rows(conn, "SELECT * FROM lane_hold")
    assert (hold["source"], hold["host"], hold["reason"]) == ("setup", "h1", "claude: not found")
    assert hold["until"] is not None
    job = await rows.row(conn, "job", made.job_id)
    assert (job["state"], job["attempts"]) == ("pending", 0)
    lane = await rows.row(conn, "lane", rows.LANE)
    await ends(conn, Outcome.WORKSPACE_ERROR, cannot_start="claude: still not found")
    assert await rows.value(conn, "SELECT grown FROM lane_hold") == 1
    await pass_hold(conn)
    assert (lane["probing"], (await rows.row(conn, "lane", rows.LANE))["probing"]) == (False, False)
