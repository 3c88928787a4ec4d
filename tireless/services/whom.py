"""Whom the token of each forge speaks for, asked once: only what he wrote is ours."""

from __future__ import annotations

from tireless.domain.issue import Person
from tireless.errors import ForgeError
from tireless.forge.base import Forge


class NamelessError(ForgeError):
    """The token may not say whose it is, so nothing on the forge can be told to be ours."""


class Whom:
    """The bot's user by forge. A forge keeps its user for the life of the process."""

    def __init__(self) -> None:
        self._bots: dict[str, Person] = {}

    async def bot(self, forge: Forge) -> Person:
        """The bot's user; NamelessError where the token lacks read:user."""
        if forge.name not in self._bots:
            login = (await forge.about()).login
            if login is None:
                raise NamelessError(
                    f"telling what on forge {forge.name} is ours: its token may not say whose it is; "
                    "give it the scope read:user",
                    status=403,
                )
            self._bots[forge.name] = login
        return self._bots[forge.name]
