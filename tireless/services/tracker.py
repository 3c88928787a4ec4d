"""Turns the repositories the configuration names into watched rows, once each forge has said which they are.

One that cannot be found is told and asked for again; it holds up no other, and drops nothing that was watched before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tireless import log
from tireless.domain.issue import RepoRef, Repository
from tireless.errors import ForgeError, ForgeUnavailable, Moved, NotFound
from tireless.forge.base import Forge
from tireless.services.patience import Patience
from tireless.store.db import Pool, transaction
from tireless.store.repos import forge_failed, forge_known, sync_repositories, tracked_repos

_log = log.get(__name__)

AGAIN_S = 900.0
"""Between two looks for a repository that the forge does not show: a person has to mend it."""


class Tracker:
    """`tick` resolves what is not resolved yet. Any number may run."""

    name = "tracker"

    def __init__(
        self,
        pool: Pool,
        forges: Mapping[str, Forge],
        repositories: Sequence[RepoRef],
        *,
        require_opt_in: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._forges = forges
        self._wanted = {name: [repo for repo in repositories if repo.forge == name] for name in forges}
        self._require_opt_in = require_opt_in
        self._patience = Patience(forges, base_s=1.0, cap_s=60.0)
        self._clock = clock
        self._due = dict.fromkeys(forges, float("-inf"))
        self.errors: dict[RepoRef, ForgeError] = {}
        """What could not be resolved in the last try, by repository."""

    async def tick(self) -> bool:
        """Resolve the repositories of each forge that is due; False, since nothing is left to do at once."""
        for name in self._patience.ready():
            if self._clock() >= self._due[name]:
                await self._resolve(name)
        return False

    async def _resolve(self, name: str) -> None:
        forge = self._forges[name]
        async with self._pool.connection() as conn:
            await forge_known(conn, name, forge.url)
        found: list[Repository] = []
        for repo in self._wanted[name]:
            try:
                found.append(await self._find(forge, repo))
                self.errors.pop(repo, None)
            except ForgeError as error:
                self.errors[repo] = error
                if isinstance(error, ForgeUnavailable):
                    # The others would wait for the same silence; what was watched before stays watched.
                    await self._silent(name, error)
                    return
                _log.warning("repository not found", repository=str(repo), forge=name, error=str(error))
        self._patience.answered(name)
        missing = [repo for repo in self._wanted[name] if repo in self.errors]
        async with self._pool.connection() as conn, transaction(conn, f"watching the repositories of {name}"):
            synced = await sync_repositories(
                conn, name, found, "config", require_opt_in=self._require_opt_in, unresolved=missing
            )
        self._due[name] = self._clock() + AGAIN_S if missing else float("inf")
        if synced.added or synced.dropped:
            _log.info("repositories watched", forge=name, added=len(synced.added), dropped=len(synced.dropped))

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
            _log.warning("repository renamed, write its new name", repository=str(repo), now=f"{owner}/{name}")
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


async def watch(pool: Pool, forge: Forge, repo: RepoRef, *, require_opt_in: bool) -> Repository:
    """Watch one repository an operator named; what the forge says it is. Raises the ForgeError tree."""
    found = await _look_up(forge, repo)
    async with pool.connection() as conn, transaction(conn, f"watching {repo}"):
        await forge_known(conn, forge.name, forge.url)
        await sync_repositories(conn, forge.name, [found], "operator", require_opt_in=require_opt_in)
    return found
