"""Two runners of one name at one job, word by word: what a stale one may still say, and how all rows of its job looked.

A runner here is its words to the database and its push, without agent and lease clock: those are shown elsewhere.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

from tests.support import rows
from tireless.agent.places import Hold, Home
from tireless.agent.workspace import TRAILER, Workspace, Workspaces
from tireless.domain.outcome import Outcome
from tireless.domain.text import branch_name
from tireless.store import claim as claiming
from tireless.store import record, settle
from tireless.store.adopt import Adopted, Offer, adopt
from tireless.store.claim import Claim, RunnerId
from tireless.store.db import Connection
from tireless.store.history import recall
from tireless.store.record import Answer, RecordedResult

Word = Callable[[], Awaitable[bool]]
"""Says something; whether it was taken."""

DONE = settle.Ending(outcome=Outcome.DONE, reason="done", summary="Painted.")

# Everything that hangs on a job, and what a runner may touch beside it.
_LOOKS = """
SELECT md5(concat(
  (SELECT string_agg(j::text, '') FROM job j WHERE j.id = %(id)s),
  (SELECT string_agg(a::text, '' ORDER BY a.id) FROM attempt a WHERE a.job_id = %(id)s),
  (SELECT string_agg(e::text, '' ORDER BY e.id) FROM job_event e WHERE e.job_id = %(id)s),
  (SELECT string_agg(c::text, '' ORDER BY c.id) FROM child c WHERE c.job_id = %(id)s),
  (SELECT string_agg(o::text, '' ORDER BY o.attempt_id, o.seq) FROM output_chunk o
     JOIN attempt a ON a.id = o.attempt_id WHERE a.job_id = %(id)s),
  (SELECT string_agg(i::text, '') FROM issue i JOIN job j ON j.issue_id = i.id WHERE j.id = %(id)s),
  (SELECT string_agg(l::text, '' ORDER BY l.name) FROM lane l), (SELECT string_agg(h::text, '') FROM lane_hold h),
  (SELECT string_agg(b::text, '') FROM lane_breaker b), (SELECT string_agg(k::text, '') FROM look k)))
"""


async def looks(conn: Connection, job_id: int) -> object:
    """How all rows of a job look; the same only if nothing was written."""
    return await rows.value(conn, _LOOKS, id=job_id)


T = TypeVar("T")


@dataclass
class Forge:
    """The git side of a forge: one bare repository."""

    path: Path
    spaces: Workspaces
    base: str = ""

    def git(self, *words: str) -> str:
        """Git on it."""
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "--git-dir", str(self.path), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def begin(self) -> None:
        """Its first commit."""
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self.path)], check=True)
        tree = self.git("hash-object", "-t", "tree", "-w", "--stdin")
        self.base = self.git("commit-tree", tree, "-m", "Begin")
        self.git("update-ref", "refs/heads/main", self.base)

    def work(self, text: str, request: str) -> str:
        """A commit beyond base that names its request."""
        return self.git(
            "commit-tree", f"{self.base}^{{tree}}", "-p", self.base, "-m", f"{text}\n\n{TRAILER}: {request}"
        )

    def head(self, branch: str) -> str | None:
        """What a branch is on."""
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
        except subprocess.CalledProcessError:
            return None

    async def found(self, number: int, request: str) -> list[Offer]:
        """What a runner's look for earlier work comes to; here the forge's repository is the cache."""
        home = Home("1.1", self.path, Hold(0), (0, 0))
        space = Workspace(home=home, cache=self.path, base_branch="main", base_sha=self.base)
        found = await self.spaces.find_work(space, number)
        return [Offer(each.branch, each.commit) for each in found if each.request == request]


@dataclass
class Twin:
    """One claim of a runner named r1, and the words it says from there on, in order."""

    conn: Connection
    forge: Forge
    claim: Claim
    request: str
    commit: str
    """What its agent made."""
    adopted: Adopted | None = None

    @classmethod
    async def claims(cls, conn: Connection, forge: Forge, job_id: int) -> Twin:
        """Take the job, which is the only one pending."""
        runner = RunnerId("r1", "h1", uuid4())
        (claim,) = await claiming.claim_next(conn, ["claude"], runner=runner)
        assert claim.job_id == job_id
        request = (await recall(conn, job_id)).request
        return cls(conn, forge, claim, request, forge.work(f"Work of claim {claim.claim_no}", request))

    @property
    def branch(self) -> str:
        """The one ref it may create."""
        return branch_name(self.claim.number, self.claim.title, self.claim.attempt_uid.hex)

    async def looks_for_work(self) -> bool:
        """Adopt what counts, before an agent is started; whether something did."""
        offers = await self.forge.found(self.claim.number, self.request)
        answer = await adopt(self.conn, self.claim.job_id, self.claim.token, offers)
        assert answer is not Answer.LOST
        self.adopted = answer
        return answer is not None

    async def renews(self) -> bool:
        """Keep the lease."""
        return self.claim.token in await claiming.renew_claim(self.conn, [(self.claim.job_id, self.claim.token)])

    async def prints(self) -> bool:
        """Pass on what the agent printed."""
        return await record.append_output(self.conn, self.claim.attempt_id, self.claim.token, "painting\n")

    async def records(self) -> bool:
        """Store what is to be delivered."""
        recorded = RecordedResult(
            result={"claim": self.claim.claim_no}, commit_sha=self.commit, branch=self.branch, summary="Painted."
        )
        return await record.record_result(self.conn, *self._mine, recorded) is Answer.DONE

    async def pushes(self) -> bool:
        """No lease fences a push: it arrives whatever became of the claim."""
        self.forge.git("update-ref", f"refs/heads/{self.branch}", self.commit)
        return True

    async def notes_the_push(self) -> bool:
        """Say that the recorded commit is on the forge."""
        return await record.mark_pushed(self.conn, *self._mine) is Answer.DONE

    async def settles(self) -> bool:
        """The last word."""
        return await settle.settle(self.conn, *self._mine, DONE) is Answer.DONE

    @property
    def _mine(self) -> tuple[int, UUID]:
        return self.claim.job_id, self.claim.token

    def words(self) -> list[Word]:
        """From an agent's first line to the last word."""
        return [self.prints, self.renews, self.records, self.pushes, self.notes_the_push, self.settles]


def interleaved(chance: random.Random, *lists: Sequence[T]) -> list[T]:
    """Everything of all lists, each in its own order."""
    turns = [number for number, each in enumerate(lists) for _ in each]
    chance.shuffle(turns)
    left = [iter(each) for each in lists]
    return [next(left[turn]) for turn in turns]
