"""What can happen in a history of asking: acts of people, polls, webhooks, runners, faults; chosen by chance."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.asklog import GO, MODES, STEERING
from tests.support.askplace import POLL_DUE, SEARCH_DUE, Scene
from tests.support.forges import FaultPlan
from tireless.domain.outcome import Outcome
from tireless.errors import ForgeError
from tireless.forge.person import Person

WHICH = tuple(range(6))
WRITER = ("alice", "bob")
ANYONE = ("alice", "bob", "mallory")
ASKING = (GO, GO, *MODES, MODES[2], MODES[2])
ANY_LABEL = (GO, GO, *MODES, *MODES, *STEERING)
SETS = ((), (GO,), (GO, MODES[2]), (GO, MODES[1]), (MODES[2],), (GO, MODES[1], MODES[2]))
EITHER = (False, True)
GARBAGE = (b"", b"null", b"<html>", b'[{"id":', b'{"id": 1}', b"[null]", b'"x"')
MOST_ISSUES = 7

Doing = Callable[..., Awaitable[None]]
One = tuple[str, dict[str, Any]]
Choices = Sequence[Any] | Callable[[random.Random], Any]
"""What an argument is chosen from, or how."""


@dataclass(frozen=True)
class Act:
    """How often an act is chosen, whether it is one of a person's, and its arguments."""

    do: Doing
    weight: int
    person: bool
    given: dict[str, Choices]


ACTS: dict[str, Act] = {}


def act(weight: int, *, person: bool = False, **given: Choices) -> Callable[[Doing], Doing]:
    """List a method among the acts."""

    def listed(do: Doing) -> Doing:
        ACTS[do.__name__] = Act(do, weight, person, given)
        return do

    return listed


def choose(chance: random.Random, names: Sequence[str], many: int) -> list[One]:
    """So many of these acts, by weight, with their arguments."""
    chosen = chance.choices(names, [ACTS[name].weight for name in names], k=many)
    return [(name, {key: _pick(chance, each) for key, each in ACTS[name].given.items()}) for name in chosen]


def _pick(chance: random.Random, choices: Choices) -> Any:
    return choices(chance) if callable(choices) else chance.choice(choices)


def of_people() -> list[str]:
    """The names of what people do."""
    return [name for name, each in ACTS.items() if each.person]


def meanwhile(chance: random.Random) -> list[One]:
    """What people do while a poll is held up."""
    return choose(chance, of_people(), chance.randint(0, 2))


class History(Scene):
    """One history: what is done, and by whom. An act that the forge refuses is no act."""

    async def do(self, one: One) -> None:
        """One act; how everything stands afterwards is written down."""
        name, given = one
        self.place.count[f"act {name}"] += 1
        await ACTS[name].do(self, **given)
        await self.note()

    def who(self, login: str) -> Person:
        """A person by his role."""
        found = getattr(self.stage, login)
        assert isinstance(found, Person)
        return found

    def number(self, which: int) -> int | None:
        """One of the issues there are."""
        there = sorted(number for number, issue in self.log.issues.items() if not issue.gone)
        return there[which % len(there)] if there else None

    # ------------------------------------------------------------------ people

    @act(4, person=True, by=ANYONE, names=SETS, form=EITHER)
    async def create(self, by: str, names: tuple[str, ...], *, form: bool) -> None:
        """A new issue, perhaps with labels: by the form they are taken from anyone."""
        if len(self.log.issues) >= MOST_ISSUES:
            await self.toggle(len(names), GO, "bob")
            return
        labels = [await self.label(name) for name in names]
        person = self.who(by)
        if form and by == "mallory":
            await person.create_issue_by_form(self.path, "Paint it", "Blue.", label_ids=labels)
        else:
            await person.create_issue(self.path, "Paint it", "Blue.", label_ids=labels)

    @act(10, person=True, which=WHICH, name=ASKING, by=WRITER)
    async def put_on(self, which: int, name: str, by: str) -> None:
        """A label."""
        if (number := self.number(which)) is not None:
            await self.who(by).add_labels(self.path, number, await self.label(name))

    @act(3, person=True, which=WHICH, name=ANY_LABEL, by=WRITER)
    async def steer(self, which: int, name: str, by: str) -> None:
        """A label of any kind, on or off."""
        await self.toggle(which, name, by)

    @act(2, person=True, which=WHICH, names=SETS, by=WRITER)
    async def put_several(self, which: int, names: tuple[str, ...], by: str) -> None:
        """Several labels in one call."""
        if (number := self.number(which)) is not None and names:
            await self.who(by).add_labels(self.path, number, *[await self.label(name) for name in names])

    @act(6, person=True, which=WHICH, name=ASKING, by=WRITER)
    async def take_off(self, which: int, name: str, by: str) -> None:
        """A label that may be on it."""
        if (number := self.number(which)) is not None:
            await self.who(by).remove_label(self.path, number, await self.label(name))

    @act(5, person=True, which=WHICH, name=ASKING, by=WRITER)
    async def off_and_on(self, which: int, name: str, by: str) -> None:
        """Off and on again, in one second as a rule."""
        await self.take_off(which, name, by)
        await self.note()
        await self.put_on(which, name, by)

    @act(1, person=True, which=WHICH, name=MODES)
    async def bot_labels(self, which: int, name: str) -> None:
        """The bot puts a mode on: it says the kind, and never asks."""
        if (number := self.number(which)) is not None:
            await self.stage.bot.add_labels(self.path, number, await self.label(name))

    @act(2, person=True, which=WHICH, name=ASKING)
    async def mallory_tries(self, which: int, name: str) -> None:
        """A stranger's label is refused by the forge."""
        if (number := self.number(which)) is not None:
            with contextlib.suppress(ForgeError):
                await self.stage.mallory.add_labels(self.path, number, await self.label(name))

    @act(4, person=True, which=WHICH, by=ANYONE, closed=EITHER)
    async def turn(self, which: int, by: str, *, closed: bool) -> None:
        """Close or reopen; a stranger only what is his."""
        if (number := self.number(which)) is not None:
            with contextlib.suppress(ForgeError):
                await self.who(by).edit_issue(self.path, number, state="closed" if closed else "open")

    @act(2, person=True, which=WHICH, by=ANYONE, title=EITHER, n=range(3))
    async def edit(self, which: int, by: str, n: int, *, title: bool) -> None:
        """Another title or body; a stranger only where it is his."""
        if (number := self.number(which)) is not None:
            with contextlib.suppress(ForgeError):
                await self.who(by).edit_issue(self.path, number, **{"title" if title else "body": f"Text {n}"})

    @act(2, person=True, which=WHICH, by=ANYONE)
    async def comment(self, which: int, by: str) -> None:
        """Words."""
        if (number := self.number(which)) is not None:
            await self.who(by).comment(self.path, number, "Soon?")

    @act(1, person=True, n=range(100))
    async def rename(self, n: int) -> None:
        """The repository gets another name."""
        owner = self.path.partition("/")[0]
        name = f"r{self.place.made}-{n}"
        if f"{owner}/{name}" != self.path:
            await self.stage.alice.edit_repository(self.path, name=name)
            self.path = f"{owner}/{name}"

    @act(1, person=True, which=WHICH)
    async def delete(self, which: int) -> None:
        """An issue is deleted."""
        if (number := self.number(which)) is not None:
            await self.stage.alice.api("DELETE", f"/repos/{self.path}/issues/{number}")
            self.unstamped = True

    @act(1, person=True, name=ASKING, renamed=EITHER)
    async def undefine(self, name: str, *, renamed: bool) -> None:
        """A label's definition is deleted, or gets another name; whoever wants it defines it anew."""
        if name not in self.labels:
            return
        self.unstamped = True
        label_id = self.labels.pop(name)
        if renamed:
            await self.stage.alice.rename_label(self.path, label_id, f"was {name}")
        else:
            await self.stage.alice.delete_label_definition(self.path, label_id)

    async def toggle(self, which: int, name: str, by: str) -> None:
        """On if it is off, off if it is on."""
        number = self.number(which)
        if number is None:
            return
        label_id = await self.label(name)
        if label_id in self.log.issues[number].now.labels:
            await self.who(by).remove_label(self.path, number, label_id)
        else:
            await self.who(by).add_labels(self.path, number, label_id)

    # ------------------------------------------------------------------ time, and how the forge behaves

    @act(8, seconds=(1, 3, 30, 130, 300, 700))
    async def wait(self, seconds: int) -> None:
        """Time goes by."""
        await self.let_pass(seconds)

    @act(2)
    async def stand_still(self) -> None:
        """Until time is let pass, everything happens in one second."""
        await self.place.loopback.call(self.place.loopback.world.clock.freeze)

    @act(1, date=("true", "absent", "+600", "-600", "Thu, 01 Jan 2026 00:00:00 GMT", "soon"))
    async def another_date(self, date: str) -> None:
        """What the Date header says from now on."""
        self.place.loopback.world.rules.date = date

    @act(1, limit=(1, 2, 50))
    async def clamp(self, limit: int) -> None:
        """How many rows a page has from now on."""
        self.place.loopback.world.rules.page_limit = limit

    # ------------------------------------------------------------------ pollers

    @act(10, poller=(0, 1))
    async def polled(self, poller: int) -> None:
        """A poll; it may fail."""
        await self.poll(self.pollers[poller])

    @act(2)
    async def both(self) -> None:
        """Both pollers at once, looks and all."""
        await self.conn.execute(POLL_DUE)
        await self.conn.execute(SEARCH_DUE)
        await asyncio.gather(*(poller.tick() for poller in self.pollers for _ in range(2)))

    @act(
        6,
        poller=(0, 1),
        what=("/issues(/search)?\\?", "/timeline", "/issues/\\d+$", "/api"),
        status=(500, 502, 429, 403, 404, 401, 0, 200, 200, 200),
        body=GARBAGE,
        nth=(1, 1, 1, 2, 3),
        before=lambda chance: choose(chance, of_people(), 1),
    )
    async def poll_ill(self, poller: int, what: str, status: int, body: bytes, nth: int, before: list[One]) -> None:
        """Something happens, and at the poll that should see it the forge fails: an error, a cut line, or garbage."""
        for one in before:
            await self.do(one)
        headers = {"Content-Type": "application/json", "X-Total-Count": "9"}
        login = self.stage.bot.login
        plan = FaultPlan("GET", what, "cut", nth=nth, login=login)
        if status:
            plan = FaultPlan("GET", what, "answer", nth=nth, login=login, status=status, body=body, headers=headers)
        handle = await self.place.loopback.fault(plan)
        await self.poll(self.pollers[poller])
        self.place.count[f"fault {status}"] += handle.fault.applied
        await handle.drop()

    @act(
        8,
        poller=(0, 1),
        nth=(1, 2, 3, 4),
        after=EITHER,
        meanwhile=meanwhile,
        then=("goes on", "goes on", "dies"),
    )
    async def poll_slowly(self, poller: int, nth: int, meanwhile: list[One], then: str, *, after: bool) -> None:
        """A poll held up at one of its requests, during which people act; then it goes on, or its process dies."""
        plan = FaultPlan(
            "GET", "/api", "block", nth=nth, login=self.stage.bot.login, when="after" if after else "before"
        )
        handle = await self.place.loopback.fault(plan)
        task = asyncio.create_task(self.poll(self.pollers[poller]))
        reached = asyncio.create_task(handle.reached())
        await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
        if reached.done():
            self.place.count[f"held up, {then}"] += 1
            for one in meanwhile:
                await self.do(one)
            if then == "dies":
                task.cancel()
                self.pollers[poller] = self.another()
        await handle.drop()
        reached.cancel()
        await asyncio.wait([task, reached])
        if not task.cancelled():
            task.result()

    @act(3, which=WHICH, status=(500, 502, 403))
    async def fall_ill(self, which: int, status: int) -> None:
        """From now on, until everything is well, the forge fails over one issue's timeline."""
        if (number := self.number(which)) is not None:
            path = f"/issues/{number}/timeline"
            plan = FaultPlan("GET", path, "answer", status=status, times=0, login=self.stage.bot.login)
            await self.place.loopback.fault(plan)
            self.is_ill = True

    @act(1)
    async def get_well(self) -> None:
        """No issue is ill any more."""
        await self.place.loopback.call(self.place.loopback.forge.faults.clear)
        self.is_ill = False

    @act(2, poller=(0, 1))
    async def restart(self, poller: int) -> None:
        """A poller ends and another begins."""
        self.pollers[poller] = self.another()

    @act(6, poller=(0, 1), order=lambda chance: [chance.randrange(10) for _ in range(chance.randint(0, 4))])
    async def webhooks(self, poller: int, order: list[int]) -> None:
        """Some deliveries arrive, in any order, some twice, the others never; the looks they leave are answered."""
        await self.place.loopback.run(self.place.loopback.forge.deliverer.settle)
        pending = list(self.deliveries)
        self.deliveries.clear()
        for n in order if pending else ():
            delivery = pending[-1 - n % len(pending)]
            answer = await self.place.hooks.post("/webhook/forge", content=delivery.body, headers=delivery.headers)
            assert answer.status_code in (200, 202), answer.text
            self.place.count["webhooks"] += 1
        await self.due()
        await self.pollers[poller].tick()

    # ------------------------------------------------------------------ the runner

    @act(4)
    async def take(self) -> None:
        """A runner claims a job."""
        await self.claim()

    @act(5, outcome=(Outcome.NO_CHANGE, Outcome.NO_CHANGE, Outcome.FAILED, Outcome.SHUTDOWN))
    async def end(self, outcome: Outcome) -> None:
        """The runner's last word."""
        await self.jobs()
        await self.settle(outcome)
        await self.jobs()

    @act(1)
    async def prune(self) -> None:
        """Ended jobs are forgotten, as after ninety days; what was asked for stays answered."""
        await self.jobs()
        await self.conn.execute(
            "DELETE FROM job WHERE repository_id = %s AND finished_at < clock_timestamp() - interval '5 s'"
            " AND state <> 'cancelled'",
            [self.repository],
        )
