"""A story in which processes die after effects of theirs, each replaced, and what must be true when it is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from tests.support import pair_agent
from tests.support.effects import Effect, Watch, watching
from tests.support.killing import LIMIT_S, SCENES, Installation, installation
from tireless.demo.story import Scene
from tireless.store.db import pool as open_pool

PAIR = (SCENES[0], replace(SCENES[1], children=2))
"""A job that implements, and a plan with two children."""
CROWD = (*(replace(PAIR[0], title=f"Sort widgets by {size}") for size in ("height", "width", "weight", "age")), PAIR[1])
"""After its result was pushed a runner's death ends an attempt for good: a job for each effect from there on."""

_CLAIMED = """
SELECT a.id, i.number, j.kind, a.recorded_at IS NOT NULL, a.branch, a.commit_sha
  FROM job j JOIN issue i ON i.id = j.issue_id JOIN attempt a ON a.job_id = j.id AND a.claim_no = j.claim_no
 WHERE j.state = 'claimed'
"""
_BUSY = """
SELECT (SELECT count(*) FROM job WHERE finished_at IS NULL), (SELECT count(*) FROM mirror WHERE changed > told),
       (SELECT count(*) FROM attempt WHERE branch IS NOT NULL AND branch_done_at IS NULL),
       %(asked)s - (SELECT count(*) FROM job)
"""
_DELIVERED = "SELECT a.branch FROM job j JOIN attempt a ON a.id = j.result_attempt WHERE a.branch IS NOT NULL"


@dataclass
class Story:
    """An installation with its watch. `burned` and `again`: attempts lost and agents run again by deaths, by issue."""

    place: Installation
    watch: Watch
    deaths: list[Effect] = field(default_factory=list)
    burned: Counter[int] = field(default_factory=Counter)
    again: Counter[int] = field(default_factory=Counter)
    counted: set[int] = field(default_factory=set)
    """Attempts whose runner died: one of them is still claimed when the next runner dies before the sweep."""

    async def runs(self, aim: Callable[[Effect], bool]) -> None:
        """To its end, each process that dies replaced; then everything is as if nobody had died."""
        self.watch.aim = aim
        await self.place.start("serve")
        await self.place.start("run")
        wrong = ["nothing was compared"]
        try:
            async with asyncio.timeout(LIMIT_S) as limit:
                while wrong or self.watch.struck:
                    if self.watch.struck is not None:
                        await self._replace(self.watch.struck)
                        limit.reschedule(asyncio.get_running_loop().time() + LIMIT_S)
                    wrong = await self._wrong()
                    if wrong:
                        await self._pause()
        except TimeoutError:
            deaths = [f"died after {death}" for death in self.deaths]
            raise AssertionError(self.place.told([*deaths, *wrong])) from None
        self._nobody_worked_in_vain()

    async def _pause(self) -> None:
        for who, process in self.place.running.items():
            ended = process.process.returncode is not None and self.watch.struck is None
            assert not ended, f"{who} ended:\n" + "\n".join(process.lines)
        try:
            async with asyncio.timeout(0.2):
                await self.watch.death.wait()
        except TimeoutError:
            return

    async def _replace(self, effect: Effect) -> None:
        """Somebody died after this: his takes or claims run out, and another one begins."""
        self.deaths.append(effect)
        await self.place.kill(effect.who)
        if effect.who == "run":
            await self.place.agents_gone()
            await self._count()
        await self.place.time_passes(effect.who)
        self.watch.mend()
        await self.place.start(effect.who)

    async def _count(self) -> None:
        """What the death of a runner cost: an attempt before its result was recorded, a run before it was pushed."""
        claimed = await (await self.place.conn.execute(_CLAIMED)).fetchall()
        for attempt, number, kind, recorded, branch, commit in claimed:
            if attempt in self.counted:
                continue
            self.counted.add(attempt)
            there = kind == "plan" or self.place.branches().get(branch) == commit
            self.burned[number] += not recorded
            self.again[number] += not (recorded and there)

    async def _wrong(self) -> list[str]:
        """What is not as it must be in the end. Whoever is busy is not compared: that asks the forge a lot."""
        asked = sum(scene.asks for scene in self.place.cast.values())
        busy = await (await self.place.conn.execute(_BUSY, {"asked": asked})).fetchone()
        if busy != (0, 0, 0, 0):
            return [f"jobs that live, issues to be told, branches to be looked after, jobs to come: {busy}"]
        expected = self.place.with_attempts({number: 1 + self.burned[number] for number in self.place.cast})
        wrong, _, _ = await self.place.compared(expected)
        delivered = {row[0] for row in await (await self.place.conn.execute(_DELIVERED)).fetchall()}
        if set(self.place.branches()) != delivered:
            wrong.append(f"the branches are {sorted(self.place.branches())}, delivered was {sorted(delivered)}")
        pulls = await self.place.town.owner.pulls(self.place.town.repository)
        if len(pulls) > sum(scene.kind == "implement" for scene in self.place.cast.values()):
            wrong.append(f"{len(pulls)} pull requests were opened")
        return wrong

    def _nobody_worked_in_vain(self) -> None:
        """By the agents' own records: none beside another of its job, none again once its result was on the forge."""
        assert all(each["alone"] for each in self.place.recorded("begin"))
        for number, ran in self.place.runs().items():
            assert ran <= 1 + self.again[number], f"#{number} ran {ran} times after {list(map(str, self.deaths))}"
        assert self.place.agents() == []


@asynccontextmanager
async def story(dsn: str, scenes: Sequence[Scene] = PAIR) -> AsyncIterator[Story]:
    """Everything set up, on a fresh database; nothing of ours runs yet."""
    async with (
        open_pool(dsn, min_size=1, max_size=4, application_name="tireless test pool") as pool,
        installation(dsn, pool, scenes=scenes, attempts=100, agent_file=pair_agent.__file__) as place,
        watching(place) as watch,
    ):
        yield Story(place, watch)


async def recorded(dsn: str) -> list[Effect]:
    """Every effect of a story in which nobody dies, in order."""
    async with story(dsn) as undisturbed:
        await undisturbed.runs(lambda _: False)
        return undisturbed.watch.seen
