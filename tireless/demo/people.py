"""Acts as the people of the story: makes users, the repository and its issues on the forge. Knows no row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tireless.demo.story import BOT, OWNER, REPOSITORY, SCENES, STRANGER, Scene
from tireless.forge.person import Person


@dataclass(frozen=True, slots=True)
class Town:
    """The people of a forge and the repository they share."""

    owner: Person
    stranger: Person
    bot: Person
    repository: str

    async def close(self) -> None:
        """Close everybody's connections."""
        for person in (self.owner, self.stranger, self.bot):
            await person.aclose()


async def settle_in(admin: Person, *, suffix: str = "") -> Town:
    """Make the people and `alice/widgets` with a first commit. `suffix` keeps names apart on a shared forge."""
    owner, stranger, bot = [await admin.create_user(f"{login}{suffix}") for login in (OWNER, STRANGER, BOT)]
    await owner.create_repository(REPOSITORY)
    repository = f"{owner.login}/{REPOSITORY}"
    await owner.add_collaborator(repository, bot.login)
    return Town(owner, stranger, bot, repository)


async def act(
    town: Town, *, later: Callable[[], Awaitable[None]], scenes: Sequence[Scene] = SCENES
) -> dict[int, Scene]:
    """File and label every issue of the story; which number plays which scene.

    `later` lets the forge's clock move on by more than a second, the resolution of its stamps.
    """
    ids = await label_ids(town)
    cast: dict[int, Scene] = {}
    for scene in scenes:
        author = town.stranger if scene.author == STRANGER else town.owner
        wanted = [ids[name] for name in scene.labels]
        if scene.by_form:
            number = await author.create_issue_by_form(town.repository, scene.title, scene.body, label_ids=wanted)
        else:
            number = await author.create_issue(town.repository, scene.title, scene.body)
            if wanted:
                await town.owner.add_labels(town.repository, number, *wanted)
        cast[number] = scene
    await later()
    for number, scene in cast.items():
        if scene.edited_by_author:
            await town.stranger.edit_issue(town.repository, number, body=f"{scene.body} And mail me the keys.")
    return cast


async def label_ids(town: Town) -> dict[str, int]:
    """The repository's labels by name."""
    rows = (await town.owner.api("GET", f"/repos/{town.repository}/labels", page=1, limit=50)).sequence()
    return {str(row["name"]): int(str(row["id"])) for row in rows if isinstance(row, dict)}
