"""`tireless init`: shows first, makes labels and one webhook, mends it, and has nothing to do the second time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.support.cli import Said, closed, inside
from tests.support.forges import FaultPlan, client
from tests.support.place import REPOSITORY, Place, a_place, config
from tireless.domain.issue import RepoRef
from tireless.domain.labels import LabelScheme, label_specs
from tireless.domain.routing import Lane
from tireless.loopback.state import Hook
from tireless.services.hooking import HookWish, put_hook
from tireless.store.db import Pool

BASE = "https://tireless.example.org"
LABELS = sorted(spec.name for spec in label_specs(LabelScheme(), [Lane("claude")]))
SHOWN = ["issue_comment", "issue_label", "issues"]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A forge with alice's project, which the bot may administer."""
    async with a_place() as found:
        await found.alice.add_collaborator(REPOSITORY, "bot", "admin")
        yield found


class Desk:
    """An operator with a whole configuration, webhooks included."""

    def __init__(self, home: Path, place: Place, dsn: str) -> None:
        self.home = home
        self.place = place
        closed(home / "secret", "first-secret-of-the-hook")
        self.path = config(home, place.url, token=place.bot.token, dsn=dsn)
        text = self.path.read_text().replace("[web]\n", f'[web]\nurl = "{BASE}"\n')
        closed(self.path, text.replace("[forges.main]\n", '[forges.main]\nwebhook_secret_file = "secret"\n'))

    async def __call__(self, *words: str) -> Said:
        """Run init."""
        return await inside("init", *words, "--config", self.path, home=self.home)

    async def hooks(self) -> list[tuple[str, list[str], bool]]:
        """The webhooks there are: address, events, whether they are active."""
        rows = (await self.place.alice.api("GET", f"/repos/{REPOSITORY}/hooks", page=1, limit=50)).sequence()
        found = []
        for row in rows:
            assert isinstance(row, dict)
            found.append((row["config"]["url"], sorted(row["events"]), row["active"]))
        return found

    def made(self) -> dict[int, Hook]:
        """The same with their secrets, by id."""
        repo = self.place.forge.world.repo("alice", "project")
        assert repo is not None
        return repo.hooks

    async def labels(self) -> list[str]:
        """The names of the labels there are."""
        rows = (await self.place.alice.api("GET", f"/repos/{REPOSITORY}/labels", page=1, limit=50)).sequence()
        return sorted(str(row["name"]) for row in rows if isinstance(row, dict))

    async def steps(self) -> list[str]:
        """What is left to do, by its code."""
        return [each["what"] for each in (await self("--json")).data["steps"]]


@pytest.fixture
def desk(tmp_path: Path, place: Place, dsn: str) -> Desk:
    """An operator of alice's project."""
    return Desk(tmp_path, place, dsn)


OURS = (f"{BASE}/webhook/main", SHOWN, True)


async def test_without_a_yes_nothing_is_changed(desk: Desk, place: Place) -> None:
    """Where nobody can be asked it shows what it found and would do, writes nothing anywhere, and ends well."""
    before = place.forge.last_request
    said = await desk()
    assert said.code == 0
    assert f"create {len(LABELS)} labels: " in said.out
    assert f"create the webhook to {BASE}/webhook/main: there is none" in said.out
    assert "token of bot" in said.out
    assert "the token reads users, repositories, issues" in said.out
    assert "nothing was changed" in said.err
    assert {each.method for each in place.forge.requests(after=before)} == {"GET"}
    said = await desk("--json")
    assert (said.data["applied"], said.data["done"], said.err) == (False, [], "")
    assert [each["what"] for each in said.data["steps"]] == ["create_labels", "create_hook"]
    assert said.data["steps"][0]["names"] == [spec.name for spec in label_specs(LabelScheme(), [Lane("claude")])]


async def test_done_once_it_has_nothing_left_to_do(desk: Desk, place: Place) -> None:
    """Labels and one webhook with the right events; the second time only reads; the secret signs what comes."""
    said = await desk("--yes")
    assert (said.code, await desk.labels(), await desk.hooks()) == (0, LABELS, [OURS])
    before = place.forge.last_request
    again = await desk("--yes", "--json")
    assert (again.code, again.data["steps"], again.data["applied"]) == (0, [], False)
    assert {each.method for each in place.forge.requests(after=before)} == {"GET"}
    [hook] = desk.made().values()
    assert hook.secret == "first-secret-of-the-hook"
    assert "Nothing is left to do." in (await desk()).out


async def test_what_is_wrong_of_the_webhook_is_mended(desk: Desk, place: Place) -> None:
    """Another secret, events, address or a hook switched off: made anew; a copy goes; other people's hooks stay."""
    other = {"url": "https://other.example.org/webhook/main", "content_type": "json", "secret": "x"}
    body = {"type": "gitea", "active": True, "events": ["push"], "config": other}
    await place.alice.api("POST", f"/repos/{REPOSITORY}/hooks", body)
    theirs = (other["url"], ["push"], True)
    assert (await desk("--yes")).code == 0
    assert await desk.hooks() == [theirs, OURS]

    def ours() -> int:
        return max(desk.made())

    first = ours()
    for change in ({"active": False, "events": SHOWN}, {"events": ["push"]}):
        await place.alice.api("PATCH", f"/repos/{REPOSITORY}/hooks/{ours()}", change)
        assert await desk.steps() == ["replace_hook"]
        await desk("--yes")
        assert await desk.hooks() == [theirs, OURS]
    closed(desk.home / "secret", "second-secret-of-the-hook")
    assert await desk.steps() == ["replace_hook"]
    await desk("--yes")
    assert desk.made()[ours()].secret == "second-secret-of-the-hook"
    assert ours() > first
    mine = {"url": f"{BASE}/webhook/main", "content_type": "json", "secret": "guessed"}
    await place.alice.api("POST", f"/repos/{REPOSITORY}/hooks", {**body, "events": SHOWN, "config": mine})
    assert await desk.steps() == ["delete_hooks"]
    kept = sorted(desk.made())[-2]
    await desk("--yes")
    assert (await desk.hooks(), ours()) == ([theirs, OURS], kept)
    text = desk.path.read_text().replace(BASE, "https://moved.example.org")
    closed(desk.path, text)
    assert await desk.steps() == ["replace_hook"]
    await desk("--yes")
    assert await desk.hooks() == [theirs, ("https://moved.example.org/webhook/main", SHOWN, True)]


async def test_a_bot_that_is_no_administrator(desk: Desk, place: Place) -> None:
    """The labels are made all the same; how to add the webhook by hand is said, without its secret."""
    await place.alice.add_collaborator(REPOSITORY, "bot", "write")
    said = await desk("--yes", "--json")
    assert (said.code, await desk.labels(), await desk.hooks()) == (0, LABELS, [])
    [text] = [each["text"] for each in said.data["findings"] if each["code"] == "hook_by_hand"]
    assert f"{BASE}/webhook/main" in text
    assert "first-secret" not in said.out


async def test_without_address_or_secret_no_webhook_is_made(desk: Desk) -> None:
    """That is said, with the key to set; an address nobody else may call is remarked on."""
    closed(desk.path, desk.path.read_text().replace(BASE, "http://10.1.2.3"))
    assert "ALLOWED_HOST_LIST" in (await desk()).out
    closed(desk.path, desk.path.read_text().replace('url = "http://10.1.2.3"\n', ""))
    assert "web.url" in (await desk("--yes")).out
    assert (await desk.labels(), await desk.hooks()) == (LABELS, [])


async def test_a_lost_answer_is_made_good_the_next_time(desk: Desk, place: Place) -> None:
    """The create took effect, nobody heard: exit code 1, and the next time one right hook is left of it."""
    await place.forge.fault(FaultPlan("POST", "/hooks$", "cut", when="after"))
    assert (await desk("--yes")).code == 1
    assert len(await desk.hooks()) == 1
    assert await desk.steps() == ["replace_hook"]
    assert (await desk("--yes")).code == 0
    assert await desk.hooks() == [OURS]
    assert await desk.steps() == []


async def test_a_repository_that_fails_holds_up_no_other(desk: Desk, place: Place) -> None:
    """One that is not there is a fault in the list; one whose webhook fails is told; the others are done."""
    await place.alice.create_repository("second")
    await place.alice.add_collaborator("alice/second", "bot", "admin")
    await place.forge.fault(FaultPlan("POST", "project/hooks$", "answer", status=500, times=0))
    said = await desk("--yes", "--json", "alice/nowhere", REPOSITORY, "alice/second")
    assert said.code == 1
    assert [each["subject"] for each in said.data["findings"] if each["level"] == "fault"] == ["main:alice/nowhere"]
    assert [(each["repository"], each["what"]) for each in said.data["done"]] == [
        (REPOSITORY, "create_labels"),
        (REPOSITORY, "failed"),
        ("alice/second", "create_labels"),
        ("alice/second", "create_hook"),
    ]


async def test_two_at_once_make_one_webhook(desk: Desk, place: Place, pool: Pool) -> None:
    """The lock of the repository keeps five processes apart, as with labels."""
    forge = client(place.url, place.bot.token, name="main")
    repo, wish = RepoRef("main", *REPOSITORY.split("/")), HookWish(f"{BASE}/webhook/main", "s")
    repo_id = (await forge.repository(repo)).id
    done = await asyncio.gather(*(put_hook(pool, forge, repo, repo_id, wish) for _ in range(5)))
    await forge.aclose()
    assert [each.step for each in done if each is not None] == ["create_hook"]
    assert await desk.hooks() == [OURS]


async def test_an_empty_database_gets_its_schema(tmp_path: Path, place: Place, server_url: str) -> None:
    """The migrations are the first step shown, and applied first."""
    name = f"init_{secrets.token_hex(6)}"
    async with await psycopg.AsyncConnection.connect(server_url, autocommit=True) as conn:
        await conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            empty = psycopg.conninfo.make_conninfo(server_url, dbname=name)
            desk = Desk(tmp_path, place, empty)
            said = await desk("--json")
            assert said.data["migrations"][0].startswith("0001")
            assert (await desk("--yes")).code == 0
            assert (await desk.hooks(), await desk.steps()) == ([OURS], [])
        finally:
            await conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
