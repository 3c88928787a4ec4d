"""An operator's world for tests of whole commands: a forge with people and a repository, and a configuration for it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.cli import closed
from tireless.domain.labels import LabelScheme, label_specs
from tireless.embedded import EmbeddedPostgres
from tireless.forge.person import Person
from tireless.loopback import LoopbackForge

REPOSITORY = "alice/project"

AGENT = """\
import json, os, pathlib, subprocess, sys

sys.stdin.read()
number = os.environ["TIRELESS_ISSUE"]
pathlib.Path(f"work-{number}.md").write_text("done\\n")
who = ["-c", "user.name=Agent", "-c", "user.email=agent@localhost"]
subprocess.run(["git", "add", "."], check=True)
subprocess.run(["git", *who, "commit", "-q", "-m", f"Work on {number}"], check=True)
print("worked on", number, flush=True)
result = pathlib.Path(os.environ["TIRELESS_RESULT_FILE"])
result.with_suffix(".part").write_text(json.dumps({"protocol": 1, "outcome": "done", "summary": "It is done."}))
result.with_suffix(".part").rename(result)
"""
"""An agent that writes a file, commits it, and says so."""


@dataclass
class Place:
    """A running forge with two users: alice, who owns `alice/project`, and the bot, a writer there."""

    forge: LoopbackForge
    root: Person
    alice: Person
    bot: Person

    @property
    def url(self) -> str:
        """The forge's address."""
        return self.forge.url


@asynccontextmanager
async def a_place() -> AsyncIterator[Place]:
    """A running forge before tireless was ever there: no labels of ours, one repository with one commit."""
    async with LoopbackForge() as forge, AsyncExitStack() as stack:
        root = Person(url=forge.url, login=forge.admin_login, token=forge.admin_token, password=forge.admin_password)
        people = [root, await root.create_user("alice"), await root.create_user("bot")]
        for person in people:
            stack.push_async_callback(person.aclose)
        _, alice, bot = people
        await alice.create_repository("project")
        await alice.add_collaborator(REPOSITORY, "bot")
        yield Place(forge, root, alice, bot)


@asynccontextmanager
async def open_home() -> AsyncIterator[Path]:
    """A directory that others may pass through, as the user of a private PostgreSQL must; pytest's own are closed."""
    home = Path(tempfile.mkdtemp(prefix="tireless-home-"))
    home.chmod(0o755)
    try:
        yield home
    finally:
        if (home / "state" / "pg").exists():
            assert await EmbeddedPostgres(home / "state" / "pg").stopped(90)
        shutil.rmtree(home)


async def ask_for(place: Place, title: str, *names: str, body: str = "Please do it.") -> int:
    """Alice files an issue and, well after its creation, puts labels of ours on it; its number."""
    rows = (await place.alice.api("GET", f"/repos/{REPOSITORY}/labels", page=1, limit=50)).sequence()
    present = {str(row["name"]): int(str(row["id"])) for row in rows if isinstance(row, dict)}
    ids = [present[name] if name in present else await _label(place, name) for name in names]
    number = await place.alice.create_issue(REPOSITORY, title, body)
    await place.forge.advance(90)
    await place.alice.add_labels(REPOSITORY, number, *ids)
    return number


async def _label(place: Place, name: str) -> int:
    (spec,) = [spec for spec in label_specs(LabelScheme(), ()) if spec.name == name]
    return await place.alice.create_label(REPOSITORY, spec.name, exclusive=spec.exclusive)


def config(
    home: Path, forge_url: str, *, token: str, dsn: str = "", command: Sequence[str] = ("true",), more: str = ""
) -> Path:
    """A whole configuration in `home`, everything closed to others, in a hurry."""
    closed(home / "token", token)
    database = f"[database]\nurl = {json.dumps(dsn)}\n" if dsn else ""
    text = f"""
{database}
[forges.main]
url = "{forge_url}"
token_file = "token"
repositories = ["alice/project"]
timeout = "3s"
[lanes.claude]
kinds = ["discover", "plan", "implement"]
command = {json.dumps(list(command))}
[web]
port = 0
[poll]
interval = "1s"
[sweep]
interval = "1s"
{more}
"""
    return closed(home / "config.toml", text)
