"""The command, `./run bench`: measures in rounds, prints what came of it, and writes docs/benchmarks.md."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import click

from bench.bare import Bare
from bench.document import Circumstances, as_json, figure_table, ratio_table, write
from bench.figures import GROUPS, Figures, Measure, ratios
from bench.ours import Ours
from bench.place import Place, load, machine, place, settings, versions
from bench.sizes import FULL, QUICK, Sizes

DOCS = Path(__file__).resolve().parents[1] / "docs"

Say = Callable[[str], None]


class Subject(Protocol):
    """What is measured: a database of its own, and things to do in it."""

    name: str

    async def prepare(self) -> None:
        """Its database and schema."""

    async def fabricate(self, finished: int) -> None:
        """So many finished jobs, as they would lie there."""

    def measures(self) -> list[Measure]:
        """What can be measured of it."""


def subjects(at: Place, sizes: Sizes) -> tuple[list[Subject], list[str]]:
    """Those that take part, and the rivals that are not installed."""
    found: list[Subject] = [Bare(at, sizes), Ours(at, sizes)]
    missing = []
    if importlib.util.find_spec("procrastinate"):
        from bench.by_procrastinate import Procrastinate

        found.append(Procrastinate(at, sizes))
    else:
        missing.append("procrastinate")
    if importlib.util.find_spec("pgqueuer") and importlib.util.find_spec("asyncpg"):
        from bench.by_pgqueuer import PgQueuer

        found.append(PgQueuer(at, sizes))
    else:
        missing.append("pgqueuer")
    return found, missing


def measure(at: Place, taking_part: Sequence[Subject], sizes: Sizes, *, only: str = "", say: Say) -> Figures:
    """Everything, in rounds: first with empty tables, then beside a history."""
    figures, begun = Figures(), time.monotonic()
    for subject in taking_part:
        asyncio.run(subject.prepare())
    wanted = (each for subject in taking_part for each in subject.measures() if _wanted(each, only))
    chosen = sorted(wanted, key=lambda each: GROUPS.index(each.group))
    for history, rounds, until in (
        (0, sizes.rounds, begun + sizes.patience_s / 2),
        (sizes.history, sizes.history_rounds, begun + sizes.patience_s),
    ):
        if history:
            for subject in taking_part:
                say(f"{subject.name}: {history:,} finished jobs")
                asyncio.run(subject.fabricate(history))
        asyncio.run(at.settle_down())
        for turn in range(rounds):
            if turn and time.monotonic() > until:
                break
            for each in chosen:
                samples = each.round()
                figures.add(each, history, samples)
                say(f"{turn + 1}/{rounds} {each.subject}, {each.label}: {samples[len(samples) // 2]:,.1f} {each.unit}")
    return figures


def _wanted(measure: Measure, only: str) -> bool:
    return only in f"{measure.subject} {measure.key} {measure.group}"


def run(sizes: Sizes, *, words: str = "", only: str = "", say: Say) -> tuple[Figures, Circumstances]:
    """A whole run on a server of its own."""
    begun, load_before = time.monotonic(), load()
    with place() as at:
        where, server = machine(at), asyncio.run(settings(at))
        say(f"PostgreSQL {server['server_version']}, load average {load_before}")
        taking_part, missing = subjects(at, sizes)
        figures = measure(at, taking_part, sizes, only=only, say=say)
    took_s = time.monotonic() - begun
    around = Circumstances(words, where, versions(), server, asdict(sizes), load_before, load(), took_s, missing)
    return figures, around


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds and jobs: less than three minutes.")
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object with the figures and their ratios.")
@click.option(
    "--only",
    default="",
    metavar="WORDS",
    help="Only measures whose subject, name or group has these words; writes nothing.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=DOCS, help="Where benchmarks.md and its plot go (docs)."
)
@click.option("--check", is_flag=True, help="Exit with 1 where a promised ratio is missed.")
def main(*, quick: bool, as_object: bool, only: str, out: Path, check: bool) -> None:
    """Measure tireless beside the bare limit, procrastinate and pgqueuer, on a private PostgreSQL in safe mode."""
    logging.basicConfig(level=logging.ERROR)

    def say(line: str) -> None:
        click.echo(line, err=True)

    figures, around = run(QUICK if quick else FULL, words="--quick" if quick else "", only=only, say=say)
    if not only:
        say(f"wrote {write(out, figures, around)}")
    if around.missing:
        say(f"not installed, so not measured: {', '.join(around.missing)}; pip install -e '.[dev,bench]' brings them")
    if as_object:
        click.echo(json.dumps(as_json(figures, around), indent=2, ensure_ascii=False))
    else:
        click.echo(f"{figure_table(figures)}\n\n{ratio_table(ratios(figures))}\n\n{around.took_s:.0f} s")
    if check and any(ratio.met is False for ratio in ratios(figures)):
        sys.exit(1)


if __name__ == "__main__":
    main()
