"""A loopback forge with many repositories and issues, made in memory without one request, served as a process.

`python -m bench.scale_forge REPOSITORIES ISSUES ASKING`: its first line of output is JSON with url and token; it ends
with its input. Of all issues every (ISSUES / ASKING)-th was opted in and given a mode by a person.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tireless.loopback.server import build, listen, server_for
from tireless.loopback.state import Label, Level, Repo, User
from tireless.loopback.world import World

OWNER = "acme"
BOT_TOKEN = "scale-bot-token"  # noqa: S105  reachable on a loopback port of this machine only
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is: so many repositories, issues in all of them, and issues that ask for work."""

    repositories: int
    issues: int
    asking: int

    @property
    def each(self) -> int:
        """Issues of one repository."""
        return self.issues // self.repositories


def seed(world: World, size: Size, *, owner: str = OWNER) -> None:
    """Fill an instance, an issue a second. The last was made yesterday, so that each stamp is settled."""
    world.clock.freeze(float(int(world.clock.now()) - DAY_S - size.issues))
    org = world.add_user(owner, is_org=True)
    bot, ada, bob = (world.add_user(name) for name in (f"{owner}-bot", "author", "writer"))
    world.add_token(bot, "bot", secret=BOT_TOKEN, scopes=frozenset({"all"}))
    step = size.issues // size.asking if size.asking else 0
    made = 0
    for n in range(size.repositories):
        repo = world.add_repo(org, f"r{n:05}")
        repo.branches["main"] = "0" * 40
        repo.collaborators |= {bot.id: Level.WRITE, bob.id: Level.WRITE}
        labels = [_label(world, repo, name) for name in ("tireless/go", "tireless/implement", "bug")]
        for _ in range(size.each):
            made += 1
            world.clock.advance(1)
            _issue(world, repo, labels, ada, bob, asks=bool(step) and made % step == 0)
    world.clock.run()
    world.clock.offset_s = 0.0


def _label(world: World, repo: Repo, name: str) -> Label:
    label = Label(world.next_id("label"), name, "#00aabb", exclusive=name == "tireless/implement")
    repo.labels[label.id] = label
    return label


def _issue(world: World, repo: Repo, labels: list[Label], author: User, writer: User, *, asks: bool) -> None:
    go, mode, bug = labels
    issue = world.add_issue(repo, author, title="Paint the shed", body="Blue, please, and before it rains.")
    on = [go, mode] if asks else [bug] if issue.number % 3 == 0 else []
    for label in on:
        issue.label_ids.append(label.id)
        world.add_entry(issue, writer, "label", body="1", label_id=label.id)


async def serve(fill: Callable[[World], None]) -> None:
    """Until standard input is closed."""
    sock = listen()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="tireless-scale-") as directory:
        forge = build(Path(directory), url=url)
        fill(forge.world)
        server = server_for(forge)
        loop = asyncio.get_running_loop()

        def readable() -> None:
            if not os.read(sys.stdin.fileno(), 65536):
                loop.remove_reader(sys.stdin.fileno())
                server.should_exit = True

        loop.add_reader(sys.stdin.fileno(), readable)
        sys.stdout.write(json.dumps({"url": url, "token": BOT_TOKEN}) + "\n")
        sys.stdout.flush()
        await server.serve(sockets=[sock])


def main() -> None:
    """Make it, say where it is, serve it."""
    size = Size(*(int(word) for word in sys.argv[1:4]))
    asyncio.run(serve(lambda world: seed(world, size)))


if __name__ == "__main__":
    main()
