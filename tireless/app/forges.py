"""Makes the configured forges: one arm per kind. The only place that knows adapters by name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from tireless.config import ForgeSection, Settings
from tireless.domain.issue import RepoRef
from tireless.errors import ConfigError
from tireless.forge.base import Forge, HookForge
from tireless.forge.gitea import GiteaForge
from tireless.services.selecting import Owned


class OpenForge(Forge, HookForge, Protocol):
    """A forge whose connections are closed by who made it."""

    async def aclose(self) -> None:
        """Close the connections."""


def build_forge(name: str, section: ForgeSection) -> OpenForge:
    """The adapter for a configured forge, not yet connected."""
    match section.kind:
        case "gitea" | "forgejo":
            return GiteaForge(
                name=name,
                url=section.url,
                token=section.token,
                timeout_s=section.timeout.total_seconds(),
                concurrency=section.concurrency,
                requests_per_minute=section.requests_per_minute,
                ca_file=section.ca_file,
            )


@contextlib.asynccontextmanager
async def open_forges(settings: Settings, *, only_with_token: bool = False) -> AsyncIterator[dict[str, OpenForge]]:
    """All configured forges by name; closed at the end. ConfigError names every forge without a token."""
    chosen = {name: section for name, section in settings.forges.items() if section.token or not only_with_token}
    if nameless := [name for name, section in chosen.items() if section.token is None]:
        raise ConfigError(
            f"no token for {', '.join(f'forges.{name}' for name in nameless)}: write the token of the bot's own user "
            "into a file, `chmod 600` it, and name it as token_file (token_env names an environment variable)"
        )
    async with contextlib.AsyncExitStack() as stack:
        forges: dict[str, OpenForge] = {}
        for name, section in chosen.items():
            forge = build_forge(name, section)
            stack.push_async_callback(forge.aclose)
            forges[name] = forge
        yield forges


def configured_owners(settings: Settings) -> Sequence[Owned]:
    """The owners all of whose repositories are watched."""
    return [
        Owned(forge, owner, section.topics) for forge, section in settings.forges.items() for owner in section.owners
    ]


def configured_repositories(settings: Settings) -> Sequence[RepoRef]:
    """The repositories the configuration names, in its order."""
    return [
        RepoRef(forge, *path.split("/", 1))
        for forge, section in settings.forges.items()
        for path in section.repositories
    ]
