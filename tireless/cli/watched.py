"""Which repositories a command goes through where it is given none: what is watched, and what is configured to be.

Asks the forge, writes nothing: to watch them is the tracker's part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tireless.app.forges import configured_owners, configured_repositories
from tireless.config import Settings
from tireless.domain.issue import RepoRef
from tireless.errors import ForgeError, ForgeUnavailable, Moved
from tireless.forge.base import Forge
from tireless.services.selecting import select
from tireless.store.db import Pool
from tireless.store.repos import tracked_repos


@dataclass
class Wanted:
    """Of one forge, by path without regard to case."""

    refs: dict[str, RepoRef] = field(default_factory=dict)
    missing: dict[RepoRef, ForgeError] = field(default_factory=dict)
    """What is configured and cannot be found, and why; an owner stands as `owner/*`."""

    def add(self, ref: RepoRef) -> None:
        """The first name it was written with stays."""
        self.refs.setdefault(ref.path.casefold(), ref)


async def all_wanted(settings: Settings, pool: Pool | None, forge: Forge) -> Wanted:
    """Everything of this forge that is watched or configured. `pool` None: the database has no schema yet."""
    found = Wanted()
    if pool is not None:
        async with pool.connection() as conn:
            for row in await tracked_repos(conn, forge.name):
                found.add(row.ref)
    named = [repo for repo in configured_repositories(settings) if repo.forge == forge.name]
    owners = {owned.ref: owned for owned in configured_owners(settings) if owned.forge == forge.name}
    silent: ForgeError | None = None
    for ref in (*named, *owners):
        if ref.path.casefold() in found.refs:
            continue
        if silent is not None:
            found.missing[ref] = silent  # it would be waited for just as long
            continue
        try:
            if ref in owners:
                shown = [each for each in (await select(forge, owners[ref])).values() if not each.set_aside]
            else:
                shown = [await forge.repository(ref)]
        except ForgeError as error:
            silent = error if isinstance(error, ForgeUnavailable) else None
            # One that was watched before it was renamed is there under its new name.
            if not (isinstance(error, Moved) and error.to and "/".join(error.to).casefold() in found.refs):
                found.missing[ref] = error
        else:
            for each in shown:
                found.add(RepoRef(forge.name, each.owner, each.name))
    return found
