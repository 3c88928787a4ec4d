"""Random histories of people, polls, webhooks, restarts and faults, on real rows and over HTTP, held against a model.

At rest each issue's newest proper request has been answered by exactly one job or absorbed, every job has a proper
request, and no job was cancelled that nobody ended. Where each act is seen before the next, the jobs are the model's.
`TIRELESS_TEST_HISTORIES=1000 ./run test -k histories` plays so many, others each time.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from tests.support.askacts import ACTS, History, One, choose, of_people
from tests.support.askmodel import SeenModel, Wrong
from tests.support.askplace import Place, close_place, open_place
from tireless.domain import asking
from tireless.domain.case import Marks
from tireless.domain.people import Judgement
from tireless.store import look as looks

ENDLESS = os.environ.get("TIRELESS_TEST_HISTORIES")
HISTORIES = 8
HAPPENED = ["jobs", "live", "answered", "webhooks", "held up, goes on", "held up, dies", "cancelled: unlabelled"]
HAPPENED += ["searches"]
"""Must be counted, so that none of it goes to sleep unseen."""
SEEN = [name for name in of_people() if name != "delete"] + ["take", "end", "wait"]


@pytest.fixture
def place(dsn: str) -> Iterator[Place]:
    """A forge and a database of this test's own, in a loop of its own."""
    with asyncio.Runner() as runner:
        opened = runner.run(open_place(runner, dsn))
        yield opened
        runner.run(close_place(opened))


class Playing(Protocol):
    """How a history is played."""

    def __call__(self, place: Place, chosen: list[One], *, by_search: bool) -> None:
        """All of it, to its end."""


def play(place: Place, history: Playing, names: list[str], first: int, *, many: int, by: str = "either") -> None:
    """So many histories, each chosen by its number; one that fails is shortened, and told with what is left of it.

    `by`: whether they are polled by their `list`s, by one `search` for all of an owner's, or `either` in turn.
    """
    for number in range(first, first + many):
        chance = random.Random(number)
        by_search = by == "search" or (by == "either" and number % 2 == 0)
        chosen = choose(chance, names, chance.randint(15, 45))
        place.count["histories"] += 1
        try:
            history(place, chosen, by_search=by_search)
        except AssertionError as error:
            less = shortened(place, history, chosen, by_search=by_search) if ENDLESS else chosen
            how = "by search" if by_search else "by lists"
            error.add_note(f"history {number}, {how}, after {dict(place.count)}:\n" + "\n".join(map(str, less)))
            raise


def shortened(place: Place, history: Playing, chosen: list[One], *, by_search: bool) -> list[One]:
    """Leave out what is not needed for the failure; races may make it fail by chance."""
    part = len(chosen) // 2
    while part:
        for start in range(len(chosen) - part, -1, -part):
            less = chosen[:start] + chosen[start + part :]
            try:
                history(place, less, by_search=by_search)
            except AssertionError:
                chosen = less
        part //= 2
    return chosen


def at_rest(place: Place, chosen: list[One], *, by_search: bool) -> None:
    """Whatever happens, then rest."""

    async def whole() -> None:
        history = History(place, by_search=by_search)
        await history.begin()
        for one in chosen:
            await history.do(one)
        await history.rest()

    place.run(whole())


def each_seen(place: Place, chosen: list[One], *, by_search: bool) -> None:
    """Act by act, each of them polled."""

    async def whole() -> None:
        history, model = History(place, by_search=by_search), SeenModel()
        await history.begin()
        for one in chosen:
            await history.do(one)
            jobs = {job.id: job for job in await history.jobs()}
            held = [jobs[job_id].number for job_id in history.claims]
            for number in held:
                model.claimed(number)
            if one[0] == "end":
                model.settled(held, one[1]["outcome"])
                await history.let_pass(10)
            await history.drain(full=history.unstamped)
            for issue in history.log.issues.values():
                model.see(issue, history.log)
            try:
                model.compare(await history.jobs())
            except Wrong as wrong:
                wrong.add_note(f"after {one}")
                raise
        place.count["jobs expected"] += sum(len(each.jobs) for each in model.places.values())

    place.run(whole())


def numbers() -> int:
    """Where to begin."""
    return random.SystemRandom().randrange(2**32) if ENDLESS else 1


@pytest.mark.long
@pytest.mark.timeout(max(600, int(ENDLESS or 0) * 10))
def test_histories_come_to_rest_as_they_must(place: Place) -> None:
    """Nothing is missed, nothing done twice, nothing done because a stranger asked.

    Some more are played, where something of what is to be seen has not happened yet.
    """
    first, many = numbers(), int(ENDLESS or HISTORIES)
    play(place, at_rest, list(ACTS), first, many=many)
    for number in range(first + many, first + 4 * HISTORIES):
        if all(place.count[what] for what in HAPPENED):
            break
        play(place, at_rest, list(ACTS), number, many=1)
    assert [what for what in HAPPENED if not place.count[what]] == [], dict(place.count)


@pytest.mark.long
@pytest.mark.timeout(max(600, int(ENDLESS or 0) * 10))
def test_histories_seen_act_by_act_make_exactly_these_jobs(place: Place) -> None:
    """The sets are equal after every single act: which request, which kind, which state."""
    play(place, each_seen, SEEN, numbers(), many=int(ENDLESS or HISTORIES))
    assert place.count["jobs expected"] >= HISTORIES


# ------------------------------------------------------------------------------------------------ mutants


def verdict_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever put a label on, it counts."""
    monkeypatch.setattr(asking, "judge_act", lambda *_: Judgement(True, "mutant"))


def mark_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far asking was answered is forgotten at once."""
    monkeypatch.setattr(Marks, "over", lambda self, _: self)


def look_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An issue that could not be taken in is not remembered: its page is done, and the cursor moves on."""

    async def nothing(*_: object, **__: object) -> None:
        """Leave none."""

    monkeypatch.setattr(looks, "fail_look", nothing)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mutate", "by", "first"),
    [
        (verdict_ignored, "either", 1),
        (mark_not_moved, "either", 1),
        (look_not_left, "list", 1),
        (look_not_left, "search", 101),  # from where it is found soon
    ],
)
def test_the_histories_catch_mutants(
    place: Place, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None], by: str, first: int
) -> None:
    """Each of three faults put into the poller is found within some histories, one of them whichever way it polls."""
    mutate(monkeypatch)
    with pytest.raises(Wrong):
        play(place, at_rest, list(ACTS), first, many=40, by=by)
