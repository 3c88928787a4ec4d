"""A job comes back while its repository is unwatched, cannot be read, or again: it rests by what is true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import uuid4

import pytest

from tests.support import rows, shown
from tireless.domain.issue import RepoRef
from tireless.domain.outcome import Outcome
from tireless.store import deliver, repos
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.publish import take_publishing
from tireless.store.settle import Ending, Word, settle, settle_together
from tireless.store.sweep import expire_stale_claims

ME = RunnerId("r1", "h1", uuid4())
REPO = shown.repository(101)

# ------------------------------------------------------------------------------------------------ how it comes back


async def given_back(conn: Connection, made: rows.Made) -> None:
    """By its runner, alone."""
    await settle(conn, *made.claim, Ending(outcome=Outcome.SHUTDOWN))


async def given_back_in_a_group(conn: Connection, made: rows.Made) -> None:
    """By its runner, with others."""
    words = [Word(*made.claim, Ending(outcome=Outcome.SHUTDOWN))]
    assert len(await settle_together(conn, words, ring=lambda _: None)) == 1


async def expired(conn: Connection, _made: rows.Made) -> None:
    """By the sweep."""
    assert await expire_stale_claims(conn) == 1


async def returned(conn: Connection, _made: rows.Made) -> None:
    """By the publisher, who did not find its work."""
    delivery = await take_publishing(conn, [rows.FORGE], by="p", take_s=60.0, unanswered_s=0.0)
    assert delivery is not None
    assert await deliver.return_to_pending(conn, delivery, by="p", found=None) is deliver.Ended.DONE


BACK: dict[str, Callable[[Connection, rows.Made], Awaitable[None]]] = {
    "given back": given_back,
    "given back in a group": given_back_in_a_group,
    "expired": expired,
    "returned": returned,
}

# ------------------------------------------------------------------------------------------------ what changes


@dataclass(frozen=True, slots=True)
class Change:
    """Of what stands to what is written, and how the job rests after it."""

    write: Callable[[Connection, int], Awaitable[object]]
    before: Callable[[Connection, int], Awaitable[object]] | None
    rest: tuple[str, str | None]


async def unwatch(conn: Connection, _repository: int) -> None:
    """An operator takes it off."""
    await repos.untrack(conn, RepoRef(rows.FORGE, REPO.owner, REPO.name))


async def unreadable(conn: Connection, repository: int) -> None:
    """The forge refuses the bot."""
    await repos.mark_unreadable(conn, repository, "403")


async def readable(conn: Connection, repository: int) -> None:
    """It answers again."""
    await repos.mark_readable(conn, repository)


async def watch(conn: Connection, _repository: int) -> None:
    """An operator adds it."""
    await repos.sync_repositories(conn, rows.FORGE, [REPO], "operator")


async def unnamed(conn: Connection, _repository: int) -> None:
    """The configuration names it no more."""
    await repos.sync_repositories(conn, rows.FORGE, [], "config")


async def named(conn: Connection, _repository: int) -> None:
    """The configuration names it."""
    await repos.sync_repositories(conn, rows.FORGE, [REPO], "config")


CHANGES = {
    "unwatched": Change(unwatch, watch, ("waiting", "untracked")),
    "watched": Change(watch, unwatch, ("pending", None)),
    "out of the configuration": Change(unnamed, named, ("waiting", "untracked")),
    "into the configuration": Change(named, unwatch, ("pending", None)),
    "unreadable": Change(unreadable, None, ("waiting", "cannot_tell")),
    "readable": Change(readable, unreadable, ("pending", None)),
}


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("back", list(BACK))
async def test_it_rests_by_what_is_true(dsn: str, back: str, change: str) -> None:
    """Whichever commits first: no job waits for ever, and none is claimed where nobody may work."""
    changed = CHANGES[change]
    async with rows.connections(dsn, 3) as (watcher, runner, other):
        await rows.repository(watcher, rows.REPO, source="operator", forge_repo_id=REPO.id)
        state, lease_s = (
            ("publishing", 600.0) if back == "returned" else ("claimed", -1.0 if back == "expired" else 600.0)
        )
        made = await rows.job(watcher, rows.REPO, state=state, lease_s=lease_s)
        if changed.before is not None:
            async with watcher.transaction():
                await changed.before(watcher, made.repository_id)

        async def write() -> None:
            async with other.transaction():
                await changed.write(other, made.repository_id)

        async with runner.transaction():
            await BACK[back](runner, made)
            writing = asyncio.create_task(write())
            await rows.until_blocked(watcher, other, work=writing)  # as far as it gets before the other's commit
        await writing
        job = await rows.row(watcher, "job", made.job_id)
        assert (job["state"], job["reason"]) == changed.rest
        claims = await claim_next(watcher, [rows.LANE], runner=ME)
        assert [claim.job_id for claim in claims] == ([made.job_id] if changed.rest[0] == "pending" else [])


async def test_nobody_is_shut_out_where_nothing_changes(dsn: str) -> None:
    """A poll of what cannot be read, as before, and the configuration as it stands, wait for no claim under way."""
    async with rows.connections(dsn, 2) as (runner, other):
        repository = await rows.repository(other, rows.REPO, source="config", forge_repo_id=REPO.id)
        async with other.transaction():
            await repos.mark_unreadable(other, repository, "403")
        async with runner.transaction():
            await runner.execute("LOCK TABLE attempt IN ROW EXCLUSIVE MODE")
            async with other.transaction():
                await repos.mark_unreadable(other, repository, "403")
                await repos.sync_repositories(other, rows.FORGE, [REPO], "config")
