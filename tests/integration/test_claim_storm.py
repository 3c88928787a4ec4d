"""Everything at once: runners, sweepers, operators over limited lanes and repositories; then the rows must add up.

Bounded by steps, not by time. Whatever deadlocks, exceeds a limit, counts twice or strands a job fails here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from uuid import uuid4

from tests.support import rows
from tireless.domain.job import TRANSITIONS
from tireless.domain.outcome import Outcome
from tireless.errors import Refused
from tireless.store import steer
from tireless.store.claim import Claim, RunnerId, claim_next, renew_claim
from tireless.store.db import Connection
from tireless.store.record import Answer, RecordedResult, record_result
from tireless.store.settle import Ending, Policy, settle
from tireless.store.sweep import end_holds, expire_stale_claims, wake_due, wake_full

LANES = ["free", "three", "one"]
REPOSITORIES = {"acme/open": None, "acme/two": 2, "acme/five": 5}
JOBS = 150
STEPS = 80
WANTED = ("done", "already", "lost", "renewed", "observed")
RUNNERS = 6
OUTCOMES = [o for o in Outcome if o is not Outcome.LEASE_LOST]
POLICY = Policy(give_backs=50, breaker_base_s=0.01, breaker_cap_s=0.02, quota_base_s=0.01, max_hold_s=0.02)


class Storm:
    """What the actors share: the answers they got, and whether it is over."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.answers: Counter[str] = Counter()
        self.over = asyncio.Event()

    @property
    def seen_enough(self) -> bool:
        """Each kind of answer came often enough, however slow the machine is."""
        return min(self.answers[what] for what in WANTED) > 5

    async def runner(self, conn: Connection, number: int) -> None:
        """Claim, perhaps renew, record or stall, and settle, sometimes twice."""
        me, after = RunnerId("same name", f"h{number}", uuid4()), None
        for step in range(STEPS * 20):
            if step >= STEPS and self.seen_enough:
                break
            lanes = self.random.sample(LANES, k=self.random.randint(1, 3))
            for claim in await claim_next(conn, lanes, runner=me, n=self.random.randint(1, 3), after=after):
                self.answers["claimed"] += 1
                after = claim.lane
                await self.work(conn, claim)

    async def work(self, conn: Connection, claim: Claim) -> None:
        """One attempt; a dead one leaves its claim to the sweep."""
        fate = self.random.random()
        if fate < 0.15:
            await rows.expire(conn, claim.job_id)  # dead
            return
        if fate < 0.3:
            renewed = await renew_claim(conn, [(claim.job_id, claim.token)])
            self.answers["renewed" if renewed else "renewal lost"] += 1
        if fate > 0.85:
            await rows.expire(conn, claim.job_id)  # stalled beyond its lease, and then it goes on
        outcome = self.random.choice(OUTCOMES)
        if outcome is Outcome.DONE:
            recorded = await record_result(conn, claim.job_id, claim.token, RecordedResult(result={}))
            self.answers[f"record {recorded}"] += 1
            if recorded is Answer.LOST:
                return
        ending = Ending(outcome=outcome, reason="storm", wake_s=0.001, asked_s=0.001)
        for _ in range(self.random.randint(1, 2)):
            self.answers[str(await settle(conn, claim.job_id, claim.token, ending, policy=POLICY))] += 1

    async def sweeper(self, conn: Connection) -> None:
        """Sweep as fast as it goes."""
        while not self.over.is_set():
            await sweep_all(conn)

    async def operator(self, conn: Connection) -> None:
        """Cancel, run again, move, hold and release."""
        while not self.over.is_set():
            job_id = self.random.randint(1, JOBS)
            try:
                match self.random.randint(0, 9):
                    case 0:
                        await steer.cancel(conn, job_id, "ada")
                    case 1 | 2 | 3 | 4:
                        await steer.rerun(conn, job_id, "ada")
                    case 5 | 6:
                        await steer.reroute(conn, job_id, self.random.choice(LANES), "ada")
                    case 7 | 8:
                        await steer.bump(conn, job_id, "ada", priority=self.random.choice([-1, 0, 1]))
                    case _:
                        lane = self.random.choice(LANES)
                        await steer.hold(conn, lane, "ada", reason="storm")
                        await steer.release(conn, lane, "ada")
            except Refused as refused:
                self.answers[refused.code] += 1

    async def observer(self, conn: Connection) -> None:
        """No limit is exceeded at any moment anybody can see."""
        query = """
        SELECT lane || ' ' || n FROM (SELECT lane, count(*) AS n FROM job WHERE state = 'claimed' GROUP BY 1) AS c
          JOIN lane l ON l.name = c.lane WHERE n > l.max_running
        UNION ALL
        SELECT r.name || ' ' || n
          FROM (SELECT repository_id AS id, count(*) AS n FROM job WHERE state = 'claimed' GROUP BY 1) AS c
          JOIN repository r USING (id) WHERE n > r.max_running
        """
        while not self.over.is_set():
            assert await rows.rows(conn, query) == []
            self.answers["observed"] += 1


async def sweep_all(conn: Connection) -> int:
    """All sweeps once; how much moved."""
    moved = await expire_stale_claims(conn, limit=5) + await wake_due(conn, limit=5)
    return moved + await end_holds(conn) + await wake_full(conn)


async def test_a_storm_adds_up(dsn: str) -> None:
    """No error, no limit exceeded, each attempt counted once, each event follows the last, no job left behind."""
    storm = Storm(20261)
    async with rows.connections(dsn, RUNNERS + 5) as (watcher, *conns):
        await arrange(watcher)
        sweepers = [storm.sweeper(conns.pop()) for _ in range(2)]
        others = [storm.operator(conns.pop()), storm.observer(conns.pop())]
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(storm.runner(conn, n)) for n, conn in enumerate(conns)]
            for actor in (*sweepers, *others):
                group.create_task(actor)
            await asyncio.wait(working)
            storm.over.set()
        await adds_up(watcher)
        await finishes(watcher)
        await adds_up(watcher)
    assert storm.answers["claimed"] > 100
    assert storm.seen_enough, storm.answers


async def arrange(conn: Connection) -> None:
    """Lanes and repositories with and without limits, and jobs over all of them."""
    for name, limit in (("free", None), ("three", 3), ("one", 1)):
        await rows.lane(conn, name, max_running=limit)
    for path, limit in REPOSITORIES.items():
        await rows.repository(conn, path, max_running=limit)
    for number in range(JOBS):
        path = list(REPOSITORIES)[number % len(REPOSITORIES)]
        await rows.job(conn, path, lane_name=LANES[number // 3 % 3], max_attempts=6)


async def adds_up(conn: Connection) -> None:
    """What must be true of the rows at any time."""
    wrong = {
        "claims are attempts": """
            SELECT j.id FROM job j WHERE j.claim_no <> (SELECT count(*) FROM attempt a WHERE a.job_id = j.id)""",
        "attempts are those that burn": """
            SELECT j.id FROM job j WHERE j.attempts <>
              (SELECT count(*) FROM attempt a WHERE a.job_id = j.id AND a.burned IS NOT FALSE)""",
        "only a claimed job's last attempt is open": """
            SELECT a.id FROM attempt a JOIN job j ON j.id = a.job_id
             WHERE (a.ended_at IS NULL) <> (j.state = 'claimed' AND a.claim_no = j.claim_no)""",
        "an end is told once": """
            SELECT j.id FROM job j JOIN job_event e ON e.job_id = j.id
             WHERE e.to_state IN ('delivered', 'failed', 'cancelled') AND e.from_state IS DISTINCT FROM e.to_state
             GROUP BY 1 HAVING count(*) <> 1""",
        "events follow each other": """
            SELECT job_id FROM (SELECT e.job_id, e.from_state,
              lag(e.to_state) OVER (PARTITION BY e.job_id ORDER BY e.id) AS before FROM job_event e) AS f
             WHERE before IS NOT NULL AND from_state <> before""",
        "the last event is the state": """
            SELECT j.id FROM job j WHERE j.state <>
              (SELECT e.to_state FROM job_event e WHERE e.job_id = j.id ORDER BY e.id DESC LIMIT 1)""",
        "a probe is a claim": """
            SELECT l.name FROM lane l WHERE l.probe_token IS NOT NULL
               AND NOT EXISTS (SELECT FROM job j WHERE j.claim_token = l.probe_token)""",
        "an ended job was looked at again": """
            SELECT j.id FROM job j JOIN issue i ON i.id = j.issue_id WHERE j.finished_at IS NOT NULL
               AND NOT EXISTS (SELECT FROM look l WHERE (l.repository_id, l.number) = (i.repository_id, i.number))""",
    }
    found = {rule: await rows.rows(conn, query) for rule, query in wrong.items()}
    assert {rule: bad for rule, bad in found.items() if bad} == {}
    drawn = {(t.name, t.source and t.source.value, t.target.value) for t in TRANSITIONS}
    query = "SELECT DISTINCT what, from_state, to_state FROM job_event WHERE from_state IS DISTINCT FROM to_state"
    assert {tuple(row.values()) for row in await rows.rows(conn, query)} <= drawn


async def finishes(conn: Connection) -> None:
    """Nothing is stranded: with every lane open, what is left is claimed and ends, or waits for a person."""
    me = RunnerId("last", "h", uuid4())
    await conn.execute("UPDATE job SET claim_expires_at = now() WHERE state = 'claimed'")
    async with asyncio.timeout(rows.LIMIT_S):
        while await rows.value(
            conn,
            "SELECT count(*) FROM job WHERE state IN ('pending', 'claimed') OR (state = 'waiting' AND parked IS NULL)",
        ):
            await sweep_all(conn)
            for claim in await claim_next(conn, LANES, runner=me, n=10):
                await settle(conn, claim.job_id, claim.token, Ending(outcome=Outcome.NO_CHANGE), policy=POLICY)
