"""Many watched repositories of a few owners, and a poller whose time the test moves."""

from __future__ import annotations

from tests.support.ingest import GO, IMPLEMENT, RULES, Ingest
from tireless.domain.issue import RepoRef
from tireless.services.poller import Poller
from tireless.store import inspect
from tireless.store.db import transaction
from tireless.store.intake import Rules, sync_repositories


class Herd:
    """Many watched repositories, each with an issue, and a poller whose time the test moves."""

    def __init__(self, ingest: Ingest) -> None:
        self.ingest = ingest
        self.paths: list[str] = []
        self.labels: dict[str, list[int]] = {}
        self.poller = self.another()

    def another(self, rules: Rules = RULES) -> Poller:
        """A poller that looks back no further than it must."""
        forges = {self.ingest.forge.name: self.ingest.forge}
        return Poller(self.ingest.pool, forges, rules=rules, jitter=lambda: 0.5, overlap_s=0.0, backoff_base_s=1.0)

    async def watch(self, *paths: str) -> None:
        """These repositories, made where they are not there, and the stage's."""
        stage = self.ingest.stage
        for path in paths:
            owner, name = path.split("/")
            person = stage.bob if owner == stage.bob.login else stage.alice
            await person.create_repository(name, org=None if owner == person.login else owner)
            await person.add_collaborator(path, stage.bot.login)
            await person.create_issue(path, "First")
        self.paths = [*self.paths, *paths]
        if stage.path not in self.paths:
            self.paths.append(stage.path)
            await stage.alice.create_issue(stage.path, "First")
        refs = [RepoRef(self.ingest.forge.name, *path.split("/")) for path in self.paths]
        found = [await self.ingest.forge.repository(ref) for ref in refs]
        async with transaction(self.ingest.conn, "watching"):
            await sync_repositories(self.ingest.conn, self.ingest.forge.name, found, "config")

    async def minute(self, poller: Poller | None = None, *, minutes: int = 1) -> int:
        """Let minutes pass and do all that is due then; how many requests that took."""
        for table in ("repository", "owner_poll"):
            await self.ingest.conn.execute(
                f"UPDATE {table} SET poll_not_before = poll_not_before - %(s)s * interval '1 s'"  # noqa: S608  one of two names
                " WHERE isfinite(poll_not_before)",
                {"s": 66 * minutes},
            )
        before = self.ingest.loopback.last_request
        for _ in range(200):
            if not await (poller or self.poller).tick():
                return len(self.ingest.loopback.requests(after=before))
        raise AssertionError("there is always more to do")

    async def due(self, *names: str, owner: str = "") -> None:
        """These repositories, or the search for this owner, are due, and nothing else for a day."""
        for table, column, which in (("repository", "name", list(names)), ("owner_poll", "owner", [owner])):
            await self.ingest.conn.execute(
                f"UPDATE {table} SET poll_not_before = CASE WHEN {column} = ANY (%(which)s) THEN '-infinity'"  # noqa: S608  one of two names
                " ELSE clock_timestamp() + interval '1 day' END",
                {"which": which},
            )

    async def settle(self) -> None:
        """Read everything, often enough for the searches to take over."""
        for _ in range(4):
            await self.minute()
            await self.ingest.conn.execute("UPDATE issue SET settled = true")

    async def searched(self) -> list[str]:
        """The repositories that a search serves."""
        return sorted(row.repo for row in await inspect.repository_rows(self.ingest.conn) if row.searched)

    async def fault(self, path: str) -> str | None:
        """Why a search does not serve a repository."""
        [row] = [row for row in await inspect.repository_rows(self.ingest.conn) if row.repo == path]
        return row.search_fault

    async def ask(self, path: str) -> int:
        """An issue with an opt-in and a mode, put on after its creation; its number."""
        stage = self.ingest.stage
        person = stage.bob if path.startswith(f"{stage.bob.login}/") else stage.alice
        number = await person.create_issue(path, "Paint it")
        await self.ingest.loopback.advance(90)
        for name, exclusive in ((GO, False), (IMPLEMENT, True)):
            label = await person.create_label(path, name, exclusive=exclusive)
            await person.add_labels(path, number, label)
        return number


async def herd(ingest: Ingest) -> Herd:
    """Four repositories of acme, two of bob."""
    made = Herd(ingest)
    await made.watch("acme/gears", "acme/cogs", "acme/pins", "bob/own", "bob/more")
    await made.settle()
    return made
