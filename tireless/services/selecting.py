"""Which repositories an owner's selection comes to, as the forge shows them now; part of tracker and of `init`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tireless.domain.issue import RepoRef, Repository
from tireless.errors import NotFound
from tireless.forge.base import Forge


@dataclass(frozen=True, slots=True)
class Owned:
    """All repositories of a user or an organisation; with `topics`, those that have one of them."""

    forge: str
    owner: str
    topics: tuple[str, ...] = ()

    @property
    def ref(self) -> RepoRef:
        """How it is written where a repository is: `owner/*`."""
        return RepoRef(self.forge, self.owner, "*")


async def select(forge: Forge, owned: Owned) -> dict[int, Repository]:
    """What the forge shows of it, by the forge's ids. Raises the ForgeError tree."""
    topics: Iterable[str | None] = owned.topics or (None,)
    try:
        found = [each for topic in topics for each in await forge.repositories(owned.owner, topic=topic)]
    except NotFound as error:
        who = f"there is no user or organisation {owned.owner} on forge {forge.name}, or the bot may not see it"
        raise NotFound(f"{who} ({error})", status=error.status) from error
    return {each.id: each for each in found}
