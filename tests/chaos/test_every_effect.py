"""SIGKILL right after every external effect and every COMMIT of a job's life, of who made it: the story ends the same.

The effects are those that an undisturbed run is seen to make. In short: stories in which processes die after each kind
of effect once, until none is missing; with TIRELESS_TEST_CRASHES=all (or words of what is wanted) a fresh story for
every single effect.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.support.crashes import CROWD, PAIR, recorded, story
from tests.support.effects import Effect, Kind
from tests.support.killing import Who

Databases = Callable[[], AbstractContextManager[str]]

WANTED = os.environ.get("TIRELESS_TEST_CRASHES", "")

LEAST: dict[tuple[Who, Kind], int] = {
    ("run", "commit"): 7,
    ("run", "git"): 30,
    ("run", "forge"): 1,
    ("serve", "commit"): 30,
    ("serve", "forge"): 15,
}
"""How many effects a plan and an implementation have at least: a list that is shorter was not seen whole."""

GIT = {
    "init": "lays out", "config": "lays out", "checkout": "lays out",
    "add": "makes objects", "read-tree": "makes objects", "write-tree": "makes objects", "hash-object": "makes objects",
}  # fmt: skip
WITH_THE_POLLS = {
    "look made",
    "look deleted",
    "issue counted",
    "mirror changed",
    "mirror repairs_since",
    "output_chunk made",
}
"""Kinds that come and go with the order of polls: not missed when they were not met before the end."""
STORIES = 6
"""At most so many for all kinds; one is enough most of the time, and from the second on little is left to die of."""


def kind(effect: Effect) -> tuple[str, str]:
    """What it has in common with others, however they differ in columns: enough for a death each in a short run."""
    if effect.kind == "git":
        command = effect.what.removeprefix("git ")
        return effect.who, GIT.get(command, command)
    if effect.kind == "forge":
        return effect.who, effect.what
    moved = re.search(r"\w+ to \w+", effect.what)
    table, *_, word = effect.what.split(" + ")[0].split(" ")
    return effect.who, moved[0] if moved else f"{table} {word.split(',')[0]}"


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_death_after_every_kind_of_effect(databases: Databases) -> None:
    """Stories in which `run` and `serve` die, again and again, each time after a kind of effect that is new."""
    with databases() as dsn:
        undisturbed = await recorded(dsn)
    _is_whole(undisturbed)
    met: set[tuple[str, str]] = set()

    def is_new(effect: Effect) -> bool:
        new = kind(effect) not in met
        met.add(kind(effect))
        return new

    # Two may make something new at once, and one of them lives on: what is missing after a story is met in the next.
    wanted = {each for each in map(kind, undisturbed) if each[1] not in WITH_THE_POLLS}
    died: set[tuple[str, str]] = set()
    for scenes in (CROWD, *[PAIR] * (STORIES - 1)):
        with databases() as dsn:
            async with story(dsn, scenes) as place:
                await place.runs(is_new)
        died |= {kind(death) for death in place.deaths}
        if wanted <= died:
            break
        met = died.copy()
    assert wanted - died == set()


@pytest.mark.skipif(not WANTED, reason="TIRELESS_TEST_CRASHES=all: a story for every single effect, about 20 minutes")
@pytest.mark.timeout(7200)
async def test_death_after_every_effect(databases: Databases) -> None:
    """A fresh story for every effect of the recorded one, in which its maker dies right after it."""
    with databases() as dsn:
        undisturbed = await recorded(dsn)
    _is_whole(undisturbed)
    wanted = [effect for effect in undisturbed if WANTED in ("all", str(effect)) or WANTED in str(effect)]
    failed, unmet = [], []
    for number, effect in enumerate(wanted, 1):
        with databases() as dsn:
            try:
                async with story(dsn) as place:
                    await place.runs(effect.__eq__)
            except AssertionError as error:
                failed.append(f"{effect}: {error}")
        if not place.deaths:
            unmet.append(str(effect))
        sys.stderr.write(f"{number}/{len(wanted)} {effect}: {'ok' if place.deaths else 'not met'}\n")
    assert failed == []
    assert wanted
    # How often the mirror tells, and what a poll finds, is a matter of moments: the last of their kind may not come.
    assert len(unmet) <= len(wanted) // 5, unmet


def _is_whole(effects: list[Effect]) -> None:
    counts = Counter((effect.who, effect.kind) for effect in effects)
    assert {key: counts[key] for key in LEAST if counts[key] < LEAST[key]} == {}, counts
