"""A poller on the loopback forge's stage: one watched repository, two lanes, and questions to the rows."""

from __future__ import annotations

from uuid import uuid4

from tests.support import rows
from tests.support.forges import LoopbackForge, Stage
from tireless.domain.job import Kind
from tireless.domain.labels import LabelScheme
from tireless.domain.outcome import Outcome
from tireless.domain.people import Policy
from tireless.domain.routing import Lane
from tireless.forge.gitea import GiteaForge
from tireless.services.poller import Poller, Round
from tireless.store.claim import Claim, RunnerId, claim_next
from tireless.store.db import Connection, Pool, transaction
from tireless.store.forges import forge_known
from tireless.store.intake import Rules, sync_repositories
from tireless.store.lanes import sync_lanes
from tireless.store.look import Ring
from tireless.store.record import Answer
from tireless.store.settle import Ending, settle

GO = "tireless/go"
PLAN = "tireless/plan"
IMPLEMENT = "tireless/implement"
DISCOVER = "tireless/discover"

LANES = (
    Lane("claude", (Kind.IMPLEMENT,), is_default=True),
    Lane("thinker", (Kind.PLAN,)),
    Lane("spare"),
)
RULES = Rules(LabelScheme(), Policy(), LANES)


class Ingest:
    """The parts of a test of intake. `poll` polls at once, due or not."""

    def __init__(self, pool: Pool, conn: Connection, forge: GiteaForge, stage: Stage, loopback: LoopbackForge) -> None:
        self.pool = pool
        self.conn = conn
        self.forge = forge
        self.stage = stage
        self.loopback = loopback
        self.repository_id = 0
        self.poller = self.another()

    def another(self, rules: Rules = RULES, *, pool: Pool | None = None, ring: Ring | None = None) -> Poller:
        """Another poller, as a second process would have it."""
        return Poller(pool or self.pool, {self.forge.name: self.forge}, rules=rules, jitter=lambda: 0.5, ring=ring)

    async def watch(self, *, require_opt_in: bool = True) -> None:
        """Watch the stage's repository, and no other, with the lanes."""
        await sync_lanes(self.conn, LANES)
        await forge_known(self.conn, self.forge.name, self.forge.url)
        found = await self.forge.repository(self.stage.repo)
        async with transaction(self.conn, "watching"):
            synced = await sync_repositories(
                self.conn, self.forge.name, [found], "config", require_opt_in=require_opt_in
            )
        if synced.added:
            [self.repository_id] = synced.added

    async def judge_strangers(self) -> None:
        """Give the bot the right to ask for everybody's rights."""
        await self.stage.alice.add_collaborator(self.stage.path, self.stage.bot.login, "admin")

    async def poll(self, *, full: bool = False) -> Round:
        """One round, without errors."""
        done = await self.poller.poll_once(full=full)
        assert done.failed == {}
        return done

    async def ask(self, *names: str, number: int | None = None) -> int:
        """An issue of alice's (or the one given) on which bob puts labels, one call each."""
        if number is None:
            number = await self.stage.alice.create_issue(self.stage.path, "Paint it", "Blue, please.")
        for name in names:
            await self.stage.bob.add_labels(self.stage.path, number, await self.label(name))
        return number

    async def label(self, name: str) -> int:
        """The label's id, made exclusive as the bot would make it."""
        exclusive = name in (DISCOVER, PLAN, IMPLEMENT) or "/priority/" in name or "/status/" in name
        return await self.stage.label(name, exclusive=exclusive)

    async def unlabel(self, number: int, name: str) -> None:
        """bob takes a label off."""
        await self.stage.bob.remove_label(self.stage.path, number, await self.label(name))

    async def jobs(self, number: int | None = None) -> list[dict[str, object]]:
        """All jobs (of one issue), oldest first."""
        return await rows.rows(
            self.conn,
            "SELECT j.*, i.number FROM job j JOIN issue i ON i.id = j.issue_id "
            "WHERE %(number)s::int IS NULL OR i.number = %(number)s ORDER BY j.id",
            number=number,
        )

    async def job(self, number: int) -> dict[str, object]:
        """The only job of an issue."""
        [job] = await self.jobs(number)
        return job

    async def issue(self, number: int) -> dict[str, object]:
        """The issue's row."""
        [issue] = await rows.rows(
            self.conn,
            "SELECT * FROM issue WHERE repository_id = %(repository_id)s AND number = %(number)s",
            repository_id=self.repository_id,
            number=number,
        )
        return issue

    async def code(self, number: int) -> object:
        """Why the issue made no job."""
        return (await self.issue(number))["triage_code"]

    async def looks(self) -> list[dict[str, object]]:
        """All looks there are."""
        return await rows.rows(self.conn, "SELECT * FROM look ORDER BY number")

    async def repository(self) -> dict[str, object]:
        """The repository's row."""
        return await rows.row(self.conn, "repository", self.repository_id)

    async def claim(self) -> Claim:
        """The next job of any lane, claimed as a runner would."""
        runner = RunnerId("r1", "h1", uuid4())
        [claim] = await claim_next(self.conn, [lane.name for lane in LANES], runner=runner)
        return claim

    async def deliver(self) -> Claim:
        """Claim the next job and end it delivered, without a change."""
        claim = await self.claim()
        await self.settle(claim, Outcome.NO_CHANGE)
        return claim

    async def settle(self, claim: Claim, outcome: Outcome, question: str | None = None) -> None:
        """The runner's last word."""
        ending = Ending(outcome=outcome, question=question, wake_s=0.0)
        assert await settle(self.conn, claim.job_id, claim.token, ending) is Answer.DONE

    async def let_pass(self, seconds: float) -> None:
        """Move ends and questions of all jobs back, as if so much time had passed since; triggers would refuse it."""
        async with transaction(self.conn, "letting time pass"):
            await self.conn.execute("SET LOCAL session_replication_role = replica")
            await self.conn.execute(
                "UPDATE job SET finished_at = finished_at - i, parked_at = parked_at - i"
                "  FROM (VALUES (%s * interval '1 s')) AS t (i)",
                [seconds],
            )

    async def due(self) -> None:
        """Make every look due now."""
        await rows.value(self.conn, "WITH u AS (UPDATE look SET not_before = '-infinity' RETURNING 1) SELECT 1")

    async def events(self, job_id: object) -> list[object]:
        """What happened to a job, in order."""
        found = await rows.rows(self.conn, "SELECT what FROM job_event WHERE job_id = %(id)s ORDER BY id", id=job_id)
        return [row["what"] for row in found]
