"""Turns what the configuration names (repositories, owners) into watched rows, as each forge says which they are.

What cannot be found is told and asked for again; it holds up no other, and drops nothing that was watched before.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from tireless import log
from tireless.domain.issue import RepoRef, Repository
from tireless.errors import ForgeDenied, ForgeError, ForgeUnavailable, Moved, NotFound
from tireless.forge.base import Forge
from tireless.services.patience import Patience
from tireless.services.selecting import Owned, select
from tireless.store.db import Pool, transaction
from tireless.store.forges import forge_failed, forge_known, forge_unfound
from tireless.store.limits import Limits, limit_all
from tireless.store.repos import sync_repositories, tracked_repos

_log = log.get(__name__)

_T = TypeVar("_T")

AGAIN_S = 900.0
"""Between two looks for a repository that the forge does not show: a person has to mend it."""

OWNERS_S = 3300.0
"""Between two looks for what owners have made since: within the hour."""


class Tracker:
    """`tick` resolves what is not resolved yet. Any number may run."""

    name = "tracker"

    def __init__(
        self,
        pool: Pool,
        forges: Mapping[str, Forge],
        repositories: Sequence[RepoRef],
        *,
        owners: Sequence[Owned] = (),
        require_opt_in: bool,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._forges = forges
        self._wanted = {name: [repo for repo in repositories if repo.forge == name] for name in forges}
        self._owners = {name: [owned for owned in owners if owned.forge == name] for name in forges}
        self._require_opt_in = require_opt_in
        self._limits = limits or Limits()
        self._patience = Patience(forges, base_s=1.0, cap_s=60.0)
        self._clock = clock
        self._due = dict.fromkeys(forges, float("-inf"))
        self.errors: dict[RepoRef, ForgeError] = {}
        """What could not be resolved in the last try, by repository (`owner/*` for an owner)."""

    async def tick(self) -> bool:
        """Resolve the repositories of each forge that is due; False, since nothing is left to do at once."""
        async with self._pool.connection() as conn:
            # Before any forge is asked, which may take its time. Every time: another configuration may have added one.
            if changed := await limit_all(conn, self._limits):
                _log.info("repositories limited", count=changed)
        for name in self._patience.ready():
            if self._clock() >= self._due[name]:
                await self._resolve(name)
        return False

    async def _resolve(self, name: str) -> None:
        forge = self._forges[name]
        async with self._pool.connection() as conn:
            await forge_known(conn, name, forge.url)
        found: dict[int, Repository] = {}
        unseen: list[RepoRef] = []
        try:
            for repo in self._wanted[name]:
                if (one := await self._try(repo, self._find(forge, repo))) is not None:
                    found[one.id] = one
            for owned in self._owners[name]:
                found |= await self._try(owned.ref, select(forge, owned)) or {}
            if self._owners[name]:
                unseen = await self._look_for_unseen(forge, found)
        except ForgeUnavailable as error:
            # The others would wait for the same silence; what was watched before stays watched.
            await self._silent(name, error)
            return
        self._patience.answered(name)
        missing = {repo: error for repo, error in self.errors.items() if repo.forge == name}
        async with self._pool.connection() as conn, transaction(conn, f"watching the repositories of {name}"):
            synced = await sync_repositories(
                conn,
                name,
                list(found.values()),
                "config",
                require_opt_in=self._require_opt_in,
                limits=self._limits,
                unresolved=[*missing, *unseen],
            )
            await forge_unfound(conn, name, {repo.path: str(error) for repo, error in missing.items()})
        again_s = AGAIN_S if missing else OWNERS_S if self._owners[name] else float("inf")
        self._due[name] = self._clock() + again_s
        if synced.added or synced.dropped:
            _log.info("repositories watched", forge=name, added=len(synced.added), dropped=len(synced.dropped))

    async def _try(self, repo: RepoRef, asking: Awaitable[_T]) -> _T | None:
        """What the forge says of it; None, and noted, when it does not show it. ForgeUnavailable is raised."""
        try:
            answer = await asking
        except ForgeUnavailable as error:
            self.errors[repo] = error
            raise
        except ForgeError as error:
            self.errors[repo] = error
            _log.warning("repository not found", repository=str(repo), forge=repo.forge, error=str(error))
            return None
        self.errors.pop(repo, None)
        return answer

    async def _look_for_unseen(self, forge: Forge, found: dict[int, Repository]) -> list[RepoRef]:
        """What was watched of these owners and is not in their lists: a torn page, or gone from the selection?

        Each is asked for by its id; one that is still theirs is added to `found`. Those the forge does not show stay
        watched, and their next poll says why they cannot be read.
        """
        owners = {owned.owner.casefold(): owned for owned in self._owners[forge.name]}
        async with self._pool.connection() as conn:
            rows = [row for row in await tracked_repos(conn, forge.name) if row.source == "config"]
        unseen = []
        for row in rows:
            if row.forge_repo_id in found or row.owner.casefold() not in owners:
                continue
            try:
                now = await forge.repository(row.forge_repo_id)
            except (ForgeDenied, NotFound):
                unseen.append(row.ref)
                continue
            owned = owners.get(now.owner.casefold())
            if owned is not None and not owned.topics:
                found[now.id] = now
        return unseen

    async def _find(self, forge: Forge, repo: RepoRef) -> Repository:
        """By its name; by the name it has now, if it was watched before: a rename must not end at the next start."""
        try:
            return await _look_up(forge, repo)
        except Moved as error:
            if error.to is None:
                raise
            owner, name = error.to
            found = await forge.repository(RepoRef(repo.forge, owner, name))
            async with self._pool.connection() as conn:
                watched = {row.forge_repo_id for row in await tracked_repos(conn, forge.name)}
            if found.id not in watched:
                raise
            about = {"forge": repo.forge, "repository": str(repo)}
            _log.warning("repository renamed, write its new name", **about, now=f"{owner}/{name}")
            return found

    async def _silent(self, name: str, error: ForgeUnavailable) -> None:
        self._patience.failed(name, error)
        async with self._pool.connection() as conn:
            await forge_failed(conn, name, str(error))
        _log.warning("forge not reached", forge=name, error=str(error))


async def _look_up(forge: Forge, repo: RepoRef) -> Repository:
    try:
        return await forge.repository(repo)
    except NotFound as error:
        raise NotFound(
            f"{repo} is not on forge {forge.name}, or the bot may not see it: check the name, "
            f"give the bot's user access ({error})",
            status=error.status,
        ) from error
    except Moved as error:
        said = f"{repo} has another name on forge {forge.name} now: write the new one ({error})"
        raise Moved(said, status=error.status, to=error.to) from error


async def watch(pool: Pool, forge: Forge, repo: RepoRef, *, require_opt_in: bool, limits: Limits) -> Repository:
    """Watch one repository an operator named; what the forge says it is. Raises the ForgeError tree."""
    found = await _look_up(forge, repo)
    async with pool.connection() as conn, transaction(conn, f"watching {repo}"):
        await forge_known(conn, forge.name, forge.url)
        await sync_repositories(conn, forge.name, [found], "operator", require_opt_in=require_opt_in, limits=limits)
    return found
