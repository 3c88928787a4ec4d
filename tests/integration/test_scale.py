"""What polling many repositories costs: requests, counted exactly, and memory, which must not grow with them.

The whole of it, with 2,000 repositories and 100,000 issues, is `python -m bench.scale`.
"""

from __future__ import annotations

import pytest

from bench.scale import FLAT, Measured, document, measure
from bench.scale_forge import BOT_TOKEN, Size, seed
from tests.support.forges import *  # noqa: F403 - the fixtures
from tests.support.forges import LoopbackForge, Stage, client
from tireless.app.serving import POLLERS
from tireless.domain.issue import EntryKind, RepoRef
from tireless.forge.gitea import GiteaForge

FEW, MANY = Size(20, 200, 10), Size(200, 2_000, 10)
ABOUT = 4
"""Requests that ask a forge what it is: once, or once a loop when all begin together."""


@pytest.fixture
def measured(dsn: str, empty_dsn: str) -> dict[Size, Measured]:
    """Both sizes, each with a forge, a database and a polling process of its own."""
    return {FEW: measure(dsn, FEW), MANY: measure(empty_dsn, MANY)}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ten_times_the_repositories_cost_ten_times_the_requests_and_no_memory(measured: dict[Size, Measured]) -> None:
    """First scan: three requests a repository and one an asking issue; idle: one a repository, or one for all.

    Trying the search costs a poll and a trial each, once, and joining nothing; a full scan tries it again.
    """
    for size, found in measured.items():
        each, requests = size.repositories, {phase["phase"]: phase["requests"] for phase in found.phases}
        first = requests.pop("first scan") - 3 * each - size.asking
        assert first in {ABOUT * loops for loops in range(1, POLLERS + 1)}
        trying = requests.pop("round that tries the owner's search") - 2 * each
        assert trying in {ABOUT * loops for loops in range(1, POLLERS + 1)}
        assert requests == {
            "round after it": each,
            "idle round": each,
            "search after it": 1,
            "search once it is quiet": 1,
            "idle round by the search": 1,
            "full scan": 4 * each + size.asking,
        }
        for phase in found.phases:
            assert (phase["issues"], phase["jobs"], phase["looks"]) == (size.issues, size.asking, 0)
    assert measured[MANY].peak_mib <= FLAT * measured[FEW].peak_mib
    page = document([measured[FEW], measured[MANY]], {})
    assert f"| 200 | 2,000 | idle round | {MANY.repositories} | 1.00 |" in page


async def test_a_seeded_forge_answers_like_any(stage: Stage, loopback: LoopbackForge, forge: GiteaForge) -> None:
    """Its issues, labels and timelines through the same client; made without a request."""
    before = loopback.last_request
    world = loopback.world
    await loopback.call(lambda: seed(world, Size(2, 20, 5), owner="many"))
    assert loopback.last_request == before
    bot = client(loopback.url, BOT_TOKEN)
    page = await bot.issues(RepoRef("forge", "many", "r00001"), page=1)
    assert (len(page.issues), page.total) == (10, 10)
    asking = [one for one in page.issues if {label.name for label in one.labels} >= {"tireless/go"}]
    assert [one.number for one in asking] == [10, 6, 2]
    for one in asking:
        entries = await bot.timeline(RepoRef("forge", "many", "r00001"), one.number)
        assert [(entry.kind, entry.actor.login) for entry in entries] == [(EntryKind.LABEL_ADDED, "writer")] * 2
    await bot.aclose()
