"""Many runners as processes of their own, forked from one prepared parent, some of them killed or stopped at random.

`python -m tests.support.claimers DSN DIRECTORY COUNT SEED` works until its standard input is closed. Each process tells
in a file of its own what it did and when, by CLOCK_MONOTONIC, which is one clock for all of them: when it began and
ended to work on a job, and what its writes were answered. tests/support/ledger.py judges that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psycopg

from tests.support import rows
from tireless.domain.outcome import Outcome
from tireless.store.claim import Claim, RunnerId, check_claim, claim_next, renew_claim
from tireless.store.db import Connection, connect
from tireless.store.deliver import deliver
from tireless.store.publish import take_publishing
from tireless.store.record import Answer, RecordedResult, record_result
from tireless.store.settle import Ending, Policy, settle
from tireless.store.sweep import end_holds, expire_stale_claims, wake_due, wake_full

LANES = ("free", "wide", "three", "five", "flip")
SAME_NAME = "runner"
"""All of them have one name: nothing may depend on it."""

OUTCOMES = [Outcome.NO_CHANGE] * 6 + [Outcome.DONE] * 6 + [Outcome.FAILED] + [Outcome.AGENT_ERROR] * 2
OUTCOMES += [Outcome.SHUTDOWN, Outcome.BLOCKED, Outcome.WORKSPACE_ERROR, Outcome.TIMEOUT]
POLICY = Policy(give_backs=10**6, breaker_base_s=0.02, breaker_cap_s=0.05, quota_base_s=0.02, max_hold_s=0.05)

_TICK_S = 0.02
_OUTLAST_S = 8.0
_MARGIN_NS = 100_000_000
"""How long before its lease ends a worker lets go of a job, as a runner does by its death-clock."""


@dataclass
class Diary:
    """A file that one process writes, line by line, each line whole."""

    path: Path
    fd: int = field(init=False)

    def __post_init__(self) -> None:
        """Open it."""
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, did: str, **facts: object) -> None:
        """One line, now."""
        line = {"did": did, "at": time.monotonic_ns(), **facts}
        os.write(self.fd, json.dumps(line, default=str).encode() + b"\n")


# ------------------------------------------------------------------------------------------------ one runner


class Claimer:
    """Claims, works, renews, records, settles; stalls now and then; lets go when its own clock says so."""

    def __init__(self, dsn: str, conn: Connection, diary: Diary, seed: int, serial: int) -> None:
        self.dsn, self.conn, self.diary, self.chance = dsn, conn, diary, random.Random(seed)
        self.me = RunnerId(SAME_NAME, f"p{serial}", uuid4())
        self.parent = os.getppid()

    async def run(self) -> None:
        """Until the parent is gone. Who gets nothing, and nothing again, asks less often."""
        empty = 0
        while os.getppid() == self.parent:
            lanes = self.chance.sample(LANES, k=self.chance.randint(1, 3))
            sent = time.monotonic_ns()
            claims = await claim_next(self.conn, lanes, runner=self.me, n=2 if self.chance.random() < 0.1 else 1)
            for work in [Work(self, claim, sent) for claim in claims]:
                await work.run()
            empty = 0 if claims else empty + 1
            if empty:
                await asyncio.sleep(self.chance.uniform(0.01, 0.05) * min(empty, 4))


class Work:
    """One claimed job. It is worked on from its `begin` to its `end`."""

    def __init__(self, claimer: Claimer, claim: Claim, sent: int) -> None:
        self.of, self.claim = claimer, claim
        self.deadline = sent + int(claim.lease_left_s * 1e9) - _MARGIN_NS
        self.seen = time.monotonic_ns()
        self.renewed = sent
        self.cancel = False

    def note(self, did: str, **facts: object) -> None:
        """A line about this job."""
        place = {"lane": self.claim.lane, "repo": self.claim.repo.path, "host": self.of.me.host}
        claim = {"job": self.claim.job_id, "claim_no": self.claim.claim_no, "token": self.claim.token}
        self.of.diary.note(did, **claim, **place, **facts)

    async def run(self) -> None:
        """Work as long as it takes and may; then the last word, sometimes twice, and sometimes by one who lost."""
        if time.monotonic_ns() > self.deadline:
            self.note("skipped")  # of two claimed at once the second waits for the first, and no longer than its lease
            return
        self.note("begin", until=self.deadline)
        chance = self.of.chance
        fate = chance.random()
        lease_s = self.claim.lease_s
        work_s = lease_s * 1.3 if fate < 0.02 else chance.uniform(0, 0.01)
        if fate > 0.985:
            _stand_still(lease_s * chance.uniform(1.2, 2.2))  # long enough for a sweep to come by, mostly
            if fate > 0.993:
                self.outlast()
        held = await self.works(work_s)
        if not held and chance.random() < 0.3:
            return
        if not held and chance.random() < 0.7:
            await self.taken_back()  # else, on a busy machine, nobody would be too late
        outcome = Outcome.CANCELLED if self.cancel else chance.choice(OUTCOMES)
        if outcome is Outcome.DONE and not await self.record() and held:
            return
        for _ in range(1 if chance.random() < 0.8 else 2):
            await self.settle(outcome)

    async def works(self, work_s: float) -> bool:
        """False: it had to let go. Its `end` says when it last looked at the clock, for it may stand still any time."""
        done = time.monotonic() + work_s
        while True:
            now = time.monotonic_ns()
            if now > self.deadline:
                return self.ends("deadline")
            self.seen = now
            if time.monotonic() >= done or self.cancel:
                return self.ends("done")
            if (now - self.renewed) / 1e9 > self.claim.lease_s / 3 and not await self.renew():
                return self.ends("lost")
            self.note("tick")
            await asyncio.sleep(min(_TICK_S, work_s))

    def outlast(self) -> None:
        """Stand still until another has begun the job, if one does within seconds; this process's loop stands, too."""
        query = "SELECT claim_no > %s OR finished_at IS NOT NULL FROM job WHERE id = %s"
        until = time.monotonic() + _OUTLAST_S
        with psycopg.connect(self.of.dsn, autocommit=True) as conn:
            while time.monotonic() < until:
                if conn.execute(query, (self.claim.claim_no, self.claim.job_id)).fetchone() == (True,):
                    time.sleep(10 * _TICK_S)  # its diary is to say so before ours goes on
                    return
                time.sleep(_TICK_S)

    async def taken_back(self) -> None:
        """Wait for the sweep of this claim: what is said after it is said by one who lost."""
        query = "SELECT 1 FROM job WHERE id = %(id)s AND claim_token = %(token)s"
        while await rows.rows(self.of.conn, query, id=self.claim.job_id, token=self.claim.token):  # noqa: ASYNC110 - a row
            await asyncio.sleep(_TICK_S)

    def ends(self, why: str) -> bool:
        """It works no more; True: because it was done."""
        self.note("end", why=why, until=self.deadline, stalled_from=self.seen)
        return why == "done"

    async def renew(self) -> bool:
        """Ask for the whole lease again."""
        sent = time.monotonic_ns()
        renewed = await renew_claim(self.of.conn, [(self.claim.job_id, self.claim.token)])
        got = renewed.get(self.claim.token)
        self.note("renew", sent=sent, answer="done" if got else "lost")
        if got is None:
            return False
        self.renewed, self.deadline = sent, sent + int(got.lease_left_s * 1e9) - _MARGIN_NS
        self.cancel = got.cancel_requested is not None
        return True

    async def record(self) -> bool:
        """Store what is to be delivered."""
        sent = time.monotonic_ns()
        answer = await record_result(self.of.conn, self.claim.job_id, self.claim.token, RecordedResult(result={}))
        self.note("record", sent=sent, answer=str(answer))
        return answer is Answer.DONE and await check_claim(self.of.conn, self.claim.job_id, self.claim.token)

    async def settle(self, outcome: Outcome) -> None:
        """The last word. One that would be `done` without a record is not said: it is no answer of the store's."""
        sent = time.monotonic_ns()
        ending = Ending(outcome=outcome, reason="chaos", wake_s=0.02, asked_s=0.02)
        answer = await settle(self.of.conn, self.claim.job_id, self.claim.token, ending, policy=POLICY)
        self.note("settle", sent=sent, answer=str(answer), outcome=outcome.value)


def _stand_still(seconds: float) -> None:
    """Everything in this process stops, its loop too: nothing is renewed."""
    time.sleep(seconds)


async def claims(dsn: str, diary: Diary, seed: int, serial: int) -> None:
    """A runner's whole life."""
    conn = await connect(dsn, application_name=f"tireless claimer {serial}")
    conn.prepare_threshold = 1
    await Claimer(dsn, conn, diary, seed, serial).run()


async def sweeps(dsn: str, diary: Diary, seed: int, serial: int) -> None:
    """Sweeper and publisher in one."""
    conn = await connect(dsn, application_name=f"tireless sweeper {serial}")
    conn.prepare_threshold = 1
    parent, chance = os.getppid(), random.Random(seed)
    while os.getppid() == parent:
        expired = await expire_stale_claims(conn, limit=10)
        await wake_due(conn, limit=50)
        await end_holds(conn)
        await wake_full(conn)
        if expired:
            diary.note("expired", count=expired)
        while taken := await take_publishing(conn, [rows.FORGE], by=f"p{serial}", take_s=600, unanswered_s=60):
            async with conn.transaction():
                await deliver(conn, taken, by=f"publisher {serial}")
        await asyncio.sleep(chance.uniform(0.02, 0.06))


# ------------------------------------------------------------------------------------------------ their parent


@dataclass
class Child:
    """A process, and until when it is stopped."""

    serial: int
    sweeper: bool
    stopped_until: float | None = None


class Parent:
    """Forks them, forks others for those that died, kills and stops at random."""

    def __init__(self, dsn: str, directory: Path, count: int, seed: int) -> None:
        self.dsn, self.directory, self.chance = dsn, directory, random.Random(seed)
        self.count = count
        self.diary = Diary(directory / "parent.jsonl")
        self.children: dict[int, Child] = {}
        self.serial = 0

    def spawn(self, *, sweeper: bool = False) -> None:
        """One more process, which goes when this one does."""
        self.serial += 1
        seed = self.chance.randrange(2**32)
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a stopped one too
            _live(sweeps if sweeper else claims, self.dsn, self.directory, self.serial, seed)
        self.children[pid] = Child(self.serial, sweeper)
        self.diary.note("born", host=f"p{self.serial}", pid=pid)

    def run(self) -> None:
        """Until standard input is closed; then all are killed."""
        for number in range(self.count + 2):
            self.spawn(sweeper=number < 2)
        os.set_blocking(0, False)
        while _read() != b"":
            self.torment()
            time.sleep(0.02)
        for pid in [*self.children]:
            self.kill(pid)

    def torment(self) -> None:
        """Let those go on that were stopped long enough; stop or kill some."""
        for pid, child in self.children.items():
            if child.stopped_until is not None and time.monotonic() > child.stopped_until:
                child.stopped_until = None
                os.kill(pid, signal.SIGCONT)
                self.diary.note("continued", host=f"p{child.serial}")
        workers = [pid for pid, child in self.children.items() if not child.sweeper]
        if self.chance.random() < 0.06:
            self.kill(pid := self.chance.choice(workers))
            self.spawn()
        elif self.chance.random() < 0.06:
            pid = self.chance.choice(workers)
            if self.children[pid].stopped_until is None:
                self.children[pid].stopped_until = time.monotonic() + self.chance.uniform(0.2, 2.5)
                self.diary.note("stopped", host=f"p{self.children[pid].serial}")
                os.kill(pid, signal.SIGSTOP)

    def kill(self, pid: int) -> None:
        """SIGKILL: from here on it does nothing more."""
        child = self.children.pop(pid)
        os.kill(pid, signal.SIGKILL)
        self.diary.note("killed", host=f"p{child.serial}")
        os.waitpid(pid, 0)


def _live(life: object, dsn: str, directory: Path, serial: int, seed: int) -> None:
    """The whole of a child: never comes back."""
    diary = Diary(directory / f"p{serial}.jsonl")
    try:
        assert callable(life)
        asyncio.run(life(dsn, diary, seed, serial))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the judge must hear of it
        cause = error.__cause__
        diary.note("error", text=f"{type(error).__name__}: {error}", sqlstate=getattr(cause, "sqlstate", None))
    os._exit(1)


def _read() -> bytes | None:
    """What came in by standard input; nothing at all when it is closed, None when it is only silent."""
    with contextlib.suppress(BlockingIOError):
        return os.read(0, 4096)
    return None


if __name__ == "__main__":
    gc.freeze()
    Parent(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])).run()
