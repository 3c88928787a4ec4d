"""Creating labels: each name once, whoever else creates at the same moment, and left as it is where it exists."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import FaultPlan, LoopbackForge, Stage
from tireless.domain.labels import LabelScheme, label_specs
from tireless.domain.routing import Lane
from tireless.errors import ForgeUnavailable, StoreUnavailable
from tireless.forge.gitea import GiteaForge
from tireless.services.labelling import LabelBook, ensure_labels
from tireless.store.db import Pool
from tireless.store.tell import labels_locked

SPECS = label_specs(LabelScheme(), [Lane("claude"), Lane("fast")])


async def names(forge: GiteaForge, stage: Stage) -> list[str]:
    """The names of all labels there are."""
    return sorted(label.name for label in await forge.labels(stage.repo))


async def test_every_label_is_created_as_specified(pool: Pool, stage: Stage, forge: GiteaForge) -> None:
    """All names exist with their colour, and exclusive exactly where the protocol says so: agent labels are not."""
    ensured = await ensure_labels(pool, forge, stage.repo, SPECS)
    assert sorted(ensured.created) == await names(forge, stage) == sorted(spec.name for spec in SPECS)
    made = {label.name: label for label in await forge.labels(stage.repo)}
    assert {spec.name: (spec.exclusive, spec.color) for spec in SPECS} == {
        name: (label.exclusive, label.color) for name, label in made.items()
    }
    assert ensured.ids == {name: label.id for name, label in made.items()}
    assert not made["tireless/agent:claude"].exclusive


async def test_ensuring_again_only_reads(pool: Pool, loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """Where everything is there nothing is sent, and what somebody recoloured stays as he likes it."""
    await ensure_labels(pool, forge, stage.repo, SPECS)
    before = loopback.last_request
    ensured = await ensure_labels(pool, forge, stage.repo, SPECS)
    assert ensured.created == ()
    assert {each.method for each in loopback.requests(after=before)} == {"GET"}


async def test_two_at_once_create_each_label_once(pool: Pool, stage: Stage, forge: GiteaForge) -> None:
    """The forge takes a name twice without a word: the lock keeps five processes from doing so."""
    await asyncio.gather(*(ensure_labels(pool, forge, stage.repo, SPECS) for _ in range(5)))
    assert await names(forge, stage) == sorted(spec.name for spec in SPECS)


async def test_names_are_found_however_they_are_written(pool: Pool, stage: Stage, forge: GiteaForge) -> None:
    """A label of the organisation, and one in other letters, are the label; of duplicates the oldest is used."""
    org = await stage.alice.create_label("acme", "tireless/go", org=True)
    shout = await stage.alice.create_label(stage.path, "Tireless/PLAN")
    await stage.alice.create_label(stage.path, "tireless/plan")
    ensured = await ensure_labels(pool, forge, stage.repo, SPECS)
    assert "tireless/go" not in ensured.created
    assert "tireless/plan" not in ensured.created
    assert (ensured.ids["tireless/go"], ensured.ids["tireless/plan"]) == (org, shout)


async def test_the_lock_is_free_after_a_failure(
    pool: Pool, loopback: LoopbackForge, stage: Stage, forge: GiteaForge
) -> None:
    """A create that fails, or a process that is stopped in it, keeps nobody else from creating."""
    await loopback.fault(FaultPlan("POST", "/labels$", "answer", status=502))
    with pytest.raises(ForgeUnavailable):
        await ensure_labels(pool, forge, stage.repo, SPECS)
    fault = await loopback.fault(FaultPlan("POST", "/labels$", "block"))
    task = asyncio.ensure_future(ensure_labels(pool, forge, stage.repo, SPECS))
    await fault.reached()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(90):
        await ensure_labels(pool, forge, stage.repo, SPECS)
    assert await names(forge, stage) == sorted(spec.name for spec in SPECS)


async def test_a_lock_that_stays_taken_is_an_error(pool: Pool, stage: Stage) -> None:
    """Who waits too long for another process's creating is told so, and repositories do not wait for each other."""
    other = type(stage.repo)("forge", "acme", "other")
    async with pool.connection() as mine, labels_locked(mine, stage.repo), pool.connection() as theirs:
        with pytest.raises(StoreUnavailable, match="creating labels of acme/widgets"):
            async with labels_locked(theirs, stage.repo, wait_s=0.0):
                pass
        async with labels_locked(theirs, other, wait_s=0.0):
            pass


async def test_a_book_reads_labels_once(pool: Pool, loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """Ids are remembered per repository until somebody says that they are stale."""
    book = LabelBook(pool)
    first = await book.ids(forge, stage.repo, SPECS[:2])
    before = loopback.last_request
    assert await book.ids(forge, stage.repo, SPECS[:2]) == first
    assert not loopback.requests(after=before)
    book.forget(stage.repo)
    assert await book.ids(forge, stage.repo, SPECS[:2]) == first
    assert loopback.requests(after=before)
