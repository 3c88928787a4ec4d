"""The store against a model, act by act: whatever is done in whatever order, no rule of design §6 is broken.

`TIRELESS_TEST_STEPS=1000000 ./run test -k no_rule_is_broken` goes on for so many steps, differently each time.
Mutants of the store, in the test's own database, show that the model has teeth.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from tests.support.rows import rewrite
from tests.support.storemachine import StoreMachine, World, close_world, open_world
from tireless.errors import StoreError
from tireless.store import claim

ENDLESS = os.environ.get("TIRELESS_TEST_STEPS")
HALF = 10_000
AT_LEAST = {"claims": 500, "expiries": 150, "lost renewals": 150, "cancels of claimed jobs": 50, "probes": 50}
"""Of each half; what else must have happened, so that none of the machine's acts goes to sleep unseen."""
AND_SOME = {"settled: done": 100, "settled: already": 50, "settled: lost": 100, "renewals": 30, "reruns": 20}
AND_SOME |= {"settled together": 40, "failed together": 10}
AND_SOME |= {"blocked": 30, "passed over": 5, "stepped aside": 10}
AND_SOME |= {"published: deliver": 1, "published: return": 1, "published: fail": 1}

BATCH = settings(
    max_examples=20,
    stateful_step_count=100,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)


@pytest.fixture
def world(dsn: str) -> Iterator[World]:
    """Connections to a database of this test's own, in a loop of its own."""
    with asyncio.Runner() as runner:
        opened = runner.run(open_world(runner, dsn))
        yield opened
        runner.run(close_world(opened))


def play(world: World, number: int) -> None:
    """Some twenty examples of up to a hundred acts each, chosen by a number."""
    machine = type("Machine", (StoreMachine,), {"world": world})
    try:
        run_state_machine_as_test(seed(number)(machine), settings=BATCH)
    except BaseException as error:
        error.add_note(f"batch {number}, after {world.count['steps']} steps: {dict(world.count)}")
        raise


def missed(world: World) -> dict[str, int]:
    """What has not happened often enough by now."""
    return {what: world.count[what] for what, least in (AT_LEAST | AND_SOME).items() if world.count[what] < least}


def play_on(world: World, *, batches: int) -> None:
    """So many batches, one after another."""
    for number in range(1, batches + 1):
        play(world, number)


@pytest.mark.long
@pytest.mark.timeout(max(600, int(ENDLESS or 0) // 10))
@pytest.mark.parametrize("half", [1, 2])
def test_no_rule_is_broken(world: World, half: int) -> None:
    """Twenty thousand acts on three connections leave the rows as the model has them, after every single one.

    Some more, where what happens seldom has not happened often enough.
    """
    steps = int(ENDLESS) // 2 if ENDLESS else HALF
    number = random.SystemRandom().randrange(2**32) if ENDLESS else half * 1000
    while world.count["steps"] < steps or (not ENDLESS and missed(world) and world.count["steps"] < 3 * HALF):
        play(world, number)
        number += 1
    assert ENDLESS or missed(world) == {}, dict(world.count)


# ------------------------------------------------------------------------------------------------ mutants


UNFENCED = ("AND j.claim_token = s.token\n       WHERE j.id = ANY (held)", "WHERE j.id = ANY (held)")
"""What is written goes by the job alone, too."""


def fence_removed(world: World, _monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle goes by the job alone: a stale token speaks for whoever holds it now."""
    alone = ("b.claim_token = e.token AND b.state = 'claimed'", "b.state = 'claimed'")
    world.run(rewrite(world.watch, "settle_claims", alone, UNFENCED))


def fence_removed_from_company(world: World, _monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where several are settled at once."""
    among = (
        "JOIN job j ON j.id = s.job_id AND j.claim_token = s.token\n          JOIN repository",
        "JOIN job j ON j.id = s.job_id\n          JOIN repository",
    )
    world.run(rewrite(world.watch, "settle_claims", among, UNFENCED))


def sweep_without_recheck(world: World, _monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep moves whatever it found expired when it looked, locked or not, settled meanwhile or not."""
    world.run(rewrite(world.watch, "expire_claims", ("LIMIT up_to FOR NO KEY UPDATE SKIP LOCKED", "LIMIT up_to")))


def limit_counted_in_the_claim(_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane's limit is counted by the claiming statement, with the snapshot it began with."""
    counted = """(l.max_running IS NULL OR l.max_running > (
      SELECT count(*) FROM job b WHERE b.state = 'claimed' AND b.lane = l.name))
      AND NOT (l.repository_limits OR l.probing)"""
    mutant = claim.CLAIM.replace("NOT l.counted", counted).replace(
        "l.configured AND l.counted", "l.configured AND false"
    )
    assert mutant != claim.CLAIM
    monkeypatch.setattr(claim, "CLAIM", mutant)


def limit_counted_beside_others(world: World, _monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane's limit is counted before the claim, but beside others that count as well, and no place is taken."""
    counts = "array_fill(NULL::int, ARRAY[greatest(least(room, l.max_running - running_in_lane(in_lane)), 0)])"
    world.run(rewrite(world.watch, "claim_counted", ("take_places(in_lane, l.max_running, room)", counts)))


def cap_forgotten_by_who_comes_back(world: World, _monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's money is looked at only while it waits for its turn, not when it comes back from a claim."""
    world.run(
        rewrite(world.watch, "job_rest", ("NEW.spent_usd >= cap", "OLD.state <> 'claimed' AND NEW.spent_usd >= cap"))
    )


MUTANTS = [fence_removed, sweep_without_recheck, limit_counted_in_the_claim, limit_counted_beside_others]
MUTANTS += [cap_forgotten_by_who_comes_back, fence_removed_from_company]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutate", MUTANTS)
def test_the_machine_catches_mutants(
    world: World, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[World, pytest.MonkeyPatch], None]
) -> None:
    """Each of the faults that were put into the store is found within some thousand acts."""
    mutate(world, monkeypatch)
    # Wrong rows, a wrong answer, a lock that should not be met; perhaps not the same when it is tried again.
    with pytest.raises((AssertionError, StoreError, Flaky)):
        play_on(world, batches=12)  # the worst was seen to need three: how soon is luck, another with each change
