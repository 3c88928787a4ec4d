"""`python -m bench.scale`: what polling 2,000 repositories with 100,000 issues takes, and whether memory stays flat.

A loopback forge, a private PostgreSQL and a polling process, each a process of its own; written to
docs/benchmarks-forge.md.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.place import load, machine, place, session, settings
from bench.scale_forge import OWNER, Size
from bench.scale_poller import FORGE, LANE
from tireless.domain.issue import Repository
from tireless.store.db import transaction
from tireless.store.forges import forge_known
from tireless.store.lanes import sync_lanes
from tireless.store.migrate import migrate
from tireless.store.repos import sync_repositories

DOCS = Path(__file__).resolve().parents[1] / "docs"
SMALL = Size(200, 10_000, 100)
LARGE = Size(2_000, 100_000, 1_000)
FLAT = 1.2
"""The most that ten times the repositories may cost in memory."""

WORDS = """# Benchmarks: polling a large forge

Made by `python -m bench.scale`: a loopback forge, a private PostgreSQL in safe mode and one polling process with the
three loops `serve` has, each a process of its own on one machine. One issue in a hundred asks for work, by a label that
a person put on. The forge's request budget (3,000 a minute by default) is lifted here: with it a round of 2,000
requests fits into its burst, and a first scan takes as long as its requests beyond 3,000 at 50 a second.

| repositories | issues | phase | requests | each repository | seconds | CPU of the poller, s | issues stored | jobs |
|---:|---:|---|---:|---:|---:|---:|---:|---:|"""

Phase = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """One size, and what each phase of it took."""

    size: Size
    phases: list[Phase]

    @property
    def peak_mib(self) -> float:
        """The most memory the polling process held."""
        return float(self.phases[-1]["peak_mib"])


@contextmanager
def forge(size: Size) -> Iterator[dict[str, str]]:
    """The forge's process while it runs: its URL and the bot's token."""
    words = [
        sys.executable,
        "-m",
        "bench.scale_forge",
        *(str(n) for n in (size.repositories, size.issues, size.asking)),
    ]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018  asked for
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


async def know(url: str, about: dict[str, str], size: Size) -> None:
    """A migrated database that watches every repository, by the ids the forge gave them."""
    await migrate(url)
    base = about["url"]
    found = [
        Repository(
            id=n + 1,
            owner=OWNER,
            name=f"r{n:05}",
            owner_is_org=True,
            default_branch="main",
            clone_url=f"{base}/{OWNER}/r{n:05}.git",
            html_url=f"{base}/{OWNER}/r{n:05}",
            private=False,
            archived=False,
            empty=False,
            has_issues=True,
            has_pulls=True,
        )
        for n in range(size.repositories)
    ]
    async with session(url) as conn:
        await sync_lanes(conn, [LANE])
        await forge_known(conn, FORGE, base)
        async with transaction(conn, "watching"):
            await sync_repositories(conn, FORGE, found, "operator")


def measure(url: str, size: Size, *, search: bool = True) -> Measured:
    """One size, in a database that is empty as yet. `search`: also by one search for all of the owner's repositories.

    The loopback forge looks at every issue for each search: with 100,000 it is what would be measured.
    """
    with forge(size) as about:
        asyncio.run(know(url, about, size))
        return Measured(size, poll({**about, "database": url, "search": "yes" if search else ""}))


def poll(about: dict[str, str]) -> list[Phase]:
    """The polling process from its start to its end: what it said of each phase."""
    words = [sys.executable, "-m", "bench.scale_poller"]
    done = subprocess.run(  # noqa: S603 - ours
        words, input=json.dumps(about) + "\n", stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def document(found: list[Measured], around: dict[str, str]) -> str:
    """The page."""
    lines = [WORDS]
    for one in found:
        lines += [
            f"| {one.size.repositories:,} | {one.size.issues:,} | {each['phase']} | {each['requests']:,} "
            f"| {each['requests'] / one.size.repositories:.2f} | {each['seconds']:,.1f} | {each['cpu_seconds']:,.1f} "
            f"| {each['issues']:,} | {each['jobs']:,} |"
            for each in one.phases
        ]
    lines += ["", "| repositories | issues | peak memory of the polling process, MiB |", "|---:|---:|---:|"]
    lines += [f"| {one.size.repositories:,} | {one.size.issues:,} | {one.peak_mib:.1f} |" for one in found]
    if len(found) > 1:
        ratio = found[-1].peak_mib / found[0].peak_mib
        met = "met" if ratio <= FLAT else "missed"
        lines += [
            "",
            f"Ten times the repositories take **{ratio:.2f}** times the memory (promised: at most {FLAT}; {met}).",
        ]
    lines += ["", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in around.items()), ""]
    return "\n".join(lines)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=DOCS, help="Where benchmarks-forge.md goes (docs).")
@click.option("--check", is_flag=True, help="Exit with 1 where memory is not flat.")
def main(*, out: Path, check: bool) -> None:
    """Poll 200 repositories, then 2,000, and write what it took."""
    began, before = time.monotonic(), load()
    with place() as at:
        server = asyncio.run(settings(at))
        found = []
        for size in (SMALL, LARGE):
            url = asyncio.run(at.database(f"scale_{size.repositories}"))
            found.append(measure(url, size, search=size is SMALL))
            click.echo(json.dumps(found[-1].phases), err=True)
        where = {
            "machine": ", ".join(f"{key} {value}" for key, value in machine(at).items()),
            "server": ", ".join(f"{key} {value}" for key, value in server.items()),
            "load average": f"{before} before, {load()} after",
            "took": f"{time.monotonic() - began:.0f} s",
        }
    path = out / "benchmarks-forge.md"
    path.write_text(document(found, where))
    click.echo(f"wrote {path}", err=True)
    if check and found[1].peak_mib > FLAT * found[0].peak_mib:
        sys.exit(1)


if __name__ == "__main__":
    main()
