"""A forge, a database and pollers for histories of asking: how time goes by, how everything comes to rest."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import httpx

from tests.support import rows
from tests.support.asklog import GO, Log
from tests.support.askmodel import ABSORBED, ISSUES, AtRest, Job, jobs_of
from tests.support.forges import LoopbackForge, Stage, admin, build_stage, hire
from tests.support.ingest import LANES, RULES
from tireless.domain.outcome import Outcome
from tireless.forge.gitea import GiteaForge
from tireless.loopback.webhooks import Delivery
from tireless.redact import Redactor
from tireless.services.poller import Poller
from tireless.store.claim import Claim, RunnerId, claim_next
from tireless.store.db import Connection, Pool, connect, transaction
from tireless.store.db import pool as open_pool
from tireless.store.forges import forge_known
from tireless.store.lanes import sync_lanes
from tireless.store.repos import sync_repositories
from tireless.store.settle import Ending, settle
from tireless.web.app import Site, build

T = TypeVar("T")

FORGE = "forge"
SECRET = "the-hooks-secret"
BEHIND_S = -86_400
"""Where the forge's clock stands beside ours, so that it can be moved on and still is not ahead."""
RUNNER = RunnerId("r1", "h1", uuid4())

POLL_DUE = "UPDATE repository SET poll_not_before = '-infinity' WHERE NOT searched RETURNING id"
SEARCH_DUE = "UPDATE owner_poll SET poll_not_before = '-infinity'"
LOOKS_DUE = """
BEGIN;
UPDATE look SET not_before = '-infinity';
UPDATE repository SET poll_not_before = clock_timestamp() + interval '1 day';
UPDATE owner_poll SET poll_not_before = clock_timestamp() + interval '1 day';
COMMIT
"""
FAILED = """
SELECT poll_error FROM repository WHERE poll_error IS NOT NULL
UNION ALL SELECT o.poll_error FROM owner_poll o
 WHERE o.poll_error IS NOT NULL AND EXISTS (SELECT FROM repository r WHERE lower(r.owner) = o.owner AND r.searched)
"""

# Time: what is noted in the rows happened so much earlier. Without triggers, since it is no act on the rows.
AGE = """
BEGIN;
SET LOCAL session_replication_role = replica;
UPDATE job SET finished_at = finished_at - i, parked_at = parked_at - i, created_at = created_at - i
  FROM (VALUES (interval '{s} s')) AS t (i);
UPDATE issue SET asked_at = asked_at - i, seen_at = seen_at - i, gone_since = gone_since - i
  FROM (VALUES (interval '{s} s')) AS t (i);
UPDATE look SET written_at = written_at - i, not_before = not_before - i, take_until = take_until - i
  FROM (VALUES (interval '{s} s')) AS t (i);
UPDATE repository SET newest_first_seen_at = newest_first_seen_at - i, poll_not_before = poll_not_before - i,
                      take_until = take_until - i FROM (VALUES (interval '{s} s')) AS t (i);
UPDATE owner_poll SET newest_first_seen_at = newest_first_seen_at - i, poll_not_before = poll_not_before - i,
                      take_until = take_until - i, asked_at = asked_at - i
  FROM (VALUES (interval '{s} s')) AS t (i);
COMMIT
"""

BEGIN_AGAIN = """
BEGIN;
SET LOCAL session_replication_role = replica;
DELETE FROM job_event; DELETE FROM attempt; DELETE FROM job; DELETE FROM request; DELETE FROM look; DELETE FROM mirror;
DELETE FROM verdict; DELETE FROM issue; DELETE FROM repository; DELETE FROM owner_poll;
DELETE FROM lane_hold; DELETE FROM lane_breaker;
COMMIT
"""


@dataclass
class Place:
    """What all histories share."""

    runner: asyncio.Runner
    pool: Pool
    conn: Connection
    loopback: LoopbackForge
    stage: Stage
    forge: GiteaForge
    hooks: httpx.AsyncClient
    count: Counter[str] = field(default_factory=Counter)
    made: int = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end."""
        return self.runner.run(work)


async def open_place(runner: asyncio.Runner, dsn: str) -> Place:
    """A loopback forge with its people, a pool, and the page that takes webhooks."""
    pool = open_pool(dsn, min_size=1, max_size=8, application_name="tireless histories")
    await pool.open()
    conn = await connect(dsn, application_name="tireless histories")
    loopback = await LoopbackForge().__aenter__()
    await loopback.advance(BEHIND_S)
    async with admin(loopback) as site_admin:
        stage = await build_stage(await hire(site_admin), name="first", forge=FORGE)
    await stage.alice.create_issue(stage.path, "Beside", "By which the search for its owner's issues is tried.")
    # one try a call: what fails shall fail
    forge = GiteaForge(
        name=FORGE, url=loopback.url, token=stage.bot.token, attempts=1, retry_wait_s=0.0, requests_per_minute=10**6
    )
    await sync_lanes(conn, LANES)
    await forge_known(conn, FORGE, forge.url)
    app = build(pool, Site("histories", {FORGE: SECRET}, Redactor([])), list)
    hooks = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")
    return Place(runner, pool, conn, loopback, stage, forge, hooks)


async def close_place(place: Place) -> None:
    """Close it all."""
    await place.hooks.aclose()
    await place.forge.aclose()
    await place.stage.close()
    await place.loopback.__aexit__(None, None, None)
    await place.conn.close()
    await place.pool.close()


class Scene:
    """One history's own repository, its log, its two pollers and its runner."""

    def __init__(self, place: Place, *, by_search: bool = False) -> None:
        """`by_search`: another repository of its owner is watched, so that one search stands in for both lists."""
        self.place = place
        self.by_search = by_search
        self.stage = place.stage
        self.conn = place.conn
        self.pollers = [self.another(), self.another()]
        self.claims: dict[int, Claim] = {}
        self.ever: dict[int, Job] = {}
        self.absorbed: dict[int, tuple[int, int]] = {}
        self.labels: dict[str, int] = {}
        self.unstamped = False
        """Something was done that moves no stamp: only a full scan shows it."""
        self.is_ill = False
        """The forge goes on failing over some issue."""
        self.deliveries: deque[Delivery] = place.loopback.forge.deliverer.deliveries

    def another(self) -> Poller:
        """A poller, as a process newly started would have it."""
        forges = {FORGE: self.place.forge}
        return Poller(self.place.pool, forges, rules=RULES, full_scan_s=1e9, backoff_base_s=0.0, jitter=lambda: 0.5)

    async def begin(self) -> None:
        """A repository of its own, watched, with a hook; nothing is left of earlier histories."""
        place, stage = self.place, self.stage
        place.made += 1
        await place.loopback.call(place.loopback.forge.faults.clear)
        await place.loopback.call(lambda: self.settings(date="true", limit=50))
        name = f"r{place.made}"
        await stage.alice.create_repository(name, org=stage.repo.owner)
        self.path = f"{stage.repo.owner}/{name}"
        await stage.alice.add_collaborator(self.path, stage.bob.login)
        await stage.alice.add_collaborator(self.path, stage.bot.login, "admin")
        hook = {"url": "http://127.0.0.1:9/", "content_type": "json", "secret": SECRET}
        wanted = {"type": "gitea", "active": True, "events": ["issues", "issue_comment"], "config": hook}
        await stage.alice.api("POST", f"/repos/{self.path}/hooks", wanted)
        found = next(each for each in place.loopback.world.repos.values() if each.name == name)
        self.log = Log(found.id)
        await self.conn.execute(BEGIN_AGAIN.encode(), prepare=False)
        shown = [await place.forge.repository(found.id)]
        if self.by_search:
            shown.append(await place.forge.repository(stage.repo))
        async with transaction(self.conn, "watching"):
            await sync_repositories(self.conn, FORGE, shown, "operator")
        query = "SELECT id FROM repository WHERE forge_repo_id = %(id)s"
        self.repository = int(str(await rows.value(self.conn, query, id=found.id)))
        for person in (stage.alice, stage.mallory, stage.bob):
            await person.create_issue(self.path, "Paint it", "Blue.")
        wanted_labels = [await self.label(name) for name in (GO, "tireless/implement")]
        await stage.mallory.create_issue_by_form(self.path, "Pay me", "Now.", label_ids=wanted_labels)
        await self.note()
        self.deliveries.clear()

    def settings(self, *, date: str | None = None, limit: int | None = None) -> None:
        """How the forge answers from now on; its clock runs. On its loop."""
        rules = self.place.loopback.world.rules
        rules.date = rules.date if date is None else date
        rules.page_limit = rules.page_limit if limit is None else limit
        self.place.loopback.world.clock.run()

    async def note(self) -> None:
        """Write down how everything stands on the forge, and which jobs there are."""
        world = self.place.loopback.world
        await self.place.loopback.call(lambda: self.log.note(world))

    async def label(self, name: str) -> int:
        """The label's id, defined when it is not."""
        if name not in self.labels:
            exclusive = name.removeprefix("tireless/") in ("plan", "implement", "discover")
            self.labels[name] = await self.stage.alice.create_label(self.path, name, exclusive=exclusive)
        return self.labels[name]

    async def let_pass(self, seconds: int) -> None:
        """Time goes by, on the forge and here."""
        world = self.place.loopback.world

        def on() -> None:
            world.clock.run()
            world.clock.advance(seconds)

        await self.place.loopback.call(on)
        await self.conn.execute(AGE.format(s=seconds).encode(), prepare=False)

    # ------------------------------------------------------------------ the runner

    async def jobs(self) -> list[Job]:
        """All jobs there are; those ever seen are remembered."""
        found = await jobs_of(self.conn, self.repository)
        self.ever |= {job.id: job for job in found}
        for row in await rows.rows(self.conn, ABSORBED, repository=self.repository):
            self.absorbed[int(str(row["id"]))] = (int(str(row["number"])), int(str(row["event"])))
        return found

    async def claim(self) -> None:
        """A runner takes the next job."""
        for claim in await claim_next(self.conn, [lane.name for lane in LANES], runner=RUNNER):
            self.claims[claim.job_id] = claim

    async def settle(self, outcome: Outcome, *, job_id: int | None = None) -> None:
        """The runner's last word on the oldest of its jobs, or on this one."""
        if not self.claims:
            return
        claim = self.claims.pop(min(self.claims) if job_id is None else job_id)
        await settle(self.conn, claim.job_id, claim.token, Ending(outcome=outcome, wake_s=0.0))

    # ------------------------------------------------------------------ coming to rest

    async def poll(self, poller: Poller) -> None:
        """One round of what is due after a minute: the search, and the lists of what it does not serve.

        Rest is come to by this, too. Lists read beside the search (by `poll_once`) would hide what a search has lost:
        their cursors stand where they stood when it took over, and they show all that has changed since.
        """
        if not self.by_search:
            await poller.poll_once()
            return
        alone = await rows.rows(self.conn, POLL_DUE)
        await self.conn.execute(SEARCH_DUE)
        searched = self.place.loopback.last_request
        for _ in range(len(alone) + 1):
            if not await poller.tick():
                break
        made = self.place.loopback.requests(after=searched)
        self.place.count["searches"] += sum("search" in each.path and "before=" not in each.target for each in made)

    async def due(self) -> None:
        """Every look is due, and nothing else: a tick answers looks only."""
        await self.conn.execute(LOOKS_DUE.encode(), prepare=False)

    async def drain(self, *, full: bool = False) -> None:
        """Poll, and answer looks until none is due."""
        poller = self.pollers[0]
        if full:
            done = await poller.poll_once(full=True)
            assert done.failed == {}, done
        else:
            await self.poll(poller)
            for _ in range(10):
                if not (self.by_search and await poller.tick()):
                    break  # nobody is renamed, left to its own list, or backing off any more
            failed = await rows.rows(self.conn, FAILED)
            assert failed == [], failed
        await self.due()
        for _ in range(20):
            if not await poller.tick():
                return
        left = await rows.rows(self.conn, "SELECT * FROM look")
        raise AssertionError(f"looks without end: {left}")

    async def rest(self) -> None:
        """No fault any more; polls until all was seen; what is asked to stop stops."""
        loopback = self.place.loopback
        await self.note()
        for _ in range(3 if self.is_ill else 0):
            # until no cursor shows it any more: then only what was left to be looked at brings it back
            await self.let_pass(300)
            await self.poll(self.pollers[0])
        await loopback.call(loopback.forge.faults.clear)
        await loopback.call(lambda: self.settings(date="true"))
        await self.note()
        await self.let_pass(130)  # takes of pollers that died run out
        for _ in range(3):
            await self.until_nothing_stops()
            await self.let_pass(130)
        if not self.unstamped:
            await self.check()
        for _ in range(3):
            await self.until_nothing_stops(full=True)
            await self.let_pass(700)
        await self.until_nothing_stops(full=True)
        await self.check()

    async def until_nothing_stops(self, *, full: bool = False) -> None:
        """Poll; runners that were asked to stop say that they have, and it is polled again."""
        for _ in range(5):
            await self.drain(full=full)
            stopping = [job for job in await self.jobs() if job.cancel_requested is not None]
            for job in stopping:
                await self.settle(Outcome.CANCELLED, job_id=job.id)
            if not stopping:
                return
        raise AssertionError("jobs are stopped without end")

    async def check(self) -> None:
        """Everything is as it must be, and nothing is left to be looked at."""
        left = await rows.rows(self.conn, "SELECT l.*, clock_timestamp() AS now FROM look l")
        assert left == [], left
        stored = await rows.rows(self.conn, ISSUES, repository=self.repository)
        jobs = await self.jobs()
        AtRest(
            log=self.log,
            jobs=jobs,
            absorbed=list(self.absorbed.values()),
            stored={int(str(row["number"])): row for row in stored},
            ever=self.ever,
            count=self.place.count,
        ).check()
