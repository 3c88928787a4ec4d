"""What a run becomes for people: docs/benchmarks.md with its plot. What people wrote below the marker stays theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import GROUPS, Figure, Figures, Ratio, ratios
from bench.plot import Panel, number, svg

MARKER = "<!-- Written by hand from here on: ./run bench keeps it. -->"
PLOT = "benchmarks.svg"

HEAD = """# Benchmarks

Made by `./run bench{words}`: everything above the last marker is written by it, in one run, on one private PostgreSQL
in safe mode.

{load}

![Jobs a second with 16 workers, batches, and the time from commit to claim](benchmarks.svg)
"""

APART = """## What is not comparable

- **Workers** have a connection each: a job takes minutes, so a worker holds one, and costs two round trips and two
  commits. **A runner of 16 slots** is its process, as services/runner.py and services/settling.py have it, with its
  pool: whoever is free is claimed for in one statement, and ends that are due at the same moment go in one, for which
  nobody is waited. Work in between is nothing, so that they are always due at once; agents that take minutes seldom
  are. Either way a job is written twice, an attempt twice, two events, a look and the mirror's mark; one job in ten
  ends as rejected, which writes the breaker.
- **The bare limit** is pgbench, a program in C on the same cores: two prepared statements on a table of seven columns
  with one partial index, no attempt, no event, no check of a limit. A server on another machine changes every ratio.
- **procrastinate** writes an event row at each of three transitions and sends two notifications an insert. A worker of
  it fetches one job at a time, so several workers in one process are faster than one with many slots. Its pool opens a
  transaction around each statement, and that is what promises are held against; *autocommit* is the same pool with a
  hook of ours, of which its documents do not speak, that turns this off.
- **pgqueuer** deletes a finished job and keeps rows in a log, writes ends in batches (up to 100 ms late), and runs on
  uvloop and asyncpg. A crash runs up to a batch again, and its ends are not fenced. *batches of 1* is the nearest to
  a job each. Its enqueue by page is published beside ours and promised nothing.
- **A limited lane** gives each claim a place of its own, so that the limit holds at every moment; procrastinate has no
  limit over several workers, it is compared by its ordinary drain.
- **Enqueue** of tireless is the store's `enqueue`: the job with its event, turn and mirror, in one statement. That its
  issue and request are stored before is not in it, nor is the forge.
- **Latency**: who enqueues and who claims live in one process and one event loop, in turn, everything else idle.
- **A held snapshot**: claims and settles one after another (their number stands at the figure; a full run makes as many
  as 20 a second are in ten minutes), while another session's snapshot keeps every dead row and index entry of theirs
  from being cleared away; then the median of the last twenty-fifth of the claims less that of the first.
- **History** is made by SQL as it would lie there, vacuumed and analyzed: for tireless jobs, requests, attempts and
  three events each; for procrastinate jobs and three events; for pgqueuer three rows of its log.
"""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where and how a run was made."""

    words: str
    machine: Mapping[str, object]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    sizes: Mapping[str, object]
    load_before: float
    load_after: float
    took_s: float
    missing: Sequence[str]

    @property
    def disturbed(self) -> bool:
        """Others used the machine when the run began."""
        return self.load_before >= 1.5


def as_json(figures: Figures, around: Circumstances) -> dict[str, object]:
    """One object with everything; `ratios` by name, with history as `name (1000000 finished)`."""
    return {
        "machine": dict(around.machine),
        "versions": dict(around.versions),
        "settings": dict(around.settings),
        "sizes": dict(around.sizes),
        "load": [around.load_before, around.load_after],
        "disturbed": around.disturbed,
        "took_s": round(around.took_s, 1),
        "missing": list(around.missing),
        "figures": [figure.as_json() for figure in figures.all()],
        "ratios": {_name(ratio): ratio.as_json() for ratio in ratios(figures)},
    }


def write(folder: Path, figures: Figures, around: Circumstances) -> Path:
    """Write document and plot into `folder`; the document's path. The part by hand is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "benchmarks.md"
    kept = path.read_text(encoding="utf-8").partition(MARKER)[2] if path.exists() else "\n"
    path.write_text(f"{markdown(figures, around)}\n\n{MARKER}{kept}", encoding="utf-8")
    (folder / PLOT).write_text(svg(panels(figures)), encoding="utf-8")
    return path


def markdown(figures: Figures, around: Circumstances) -> str:
    """The document above the marker."""
    parts = [HEAD.format(words=f" {around.words}" if around.words else "", load=_load(around))]
    parts += ["## Promised ratios\n", ratio_table(ratios(figures)), "", "## Figures\n"]
    rounds = f"Medians of {_rounds(figures)} rounds (fewer where time ran out)"
    parts.append(f"{rounds}; in brackets the lowest and the highest one. p99 is by rank.\n")
    parts += [figure_table(figures), ""]
    if around.missing:
        parts.append(f"Not installed, so not measured: {', '.join(around.missing)}.\n")
    parts += [APART, "## Where\n", _facts(around)]
    return "\n".join(parts)


def ratio_table(found: Sequence[Ratio]) -> str:
    """Promises and what came of them."""
    lines = ["| ratio | finished jobs beside | promised | measured | |", "|---|---:|---:|---:|---|"]
    for ratio in found:
        measured = f"**{ratio.value:.2f}** ({ratio.low:.2f} to {ratio.high:.2f})"
        sign, promised = "≤" if ratio.promise.at_most else "≥", ratio.promise.bound
        bound = "-" if promised is None else f"{sign} {promised:.2f}"
        verdict = {True: "met", False: "missed", None: ""}[ratio.met]
        lines.append(f"| {ratio.promise.name} | {ratio.history:,} | {bound} | {measured} | {verdict} |")
    return "\n".join(lines)


def figure_table(figures: Figures) -> str:
    """All figures by group; one column for each size of history."""
    histories = figures.histories()
    columns = ["an empty table" if history == 0 else f"{history:,} finished" for history in histories]
    lines = [f"| | | unit | {' | '.join(columns)} |", f"|---|---|---|{'---:|' * len(columns)}"]
    for group in GROUPS:
        of_group = {(figure.subject, figure.key): figure for figure in figures.all() if figure.group == group}
        if of_group:
            lines.append(f"| **{group}** | | |{' |' * len(columns)}")
        for (subject, key), figure in of_group.items():
            cells = [_cell(figures.get(subject, key, history)) for history in histories]
            lines.append(f"| {subject} | {figure.label} | {figure.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def panels(figures: Figures) -> list[Panel]:
    """The plot: who is how fast, with an empty table."""
    chosen = [
        ("Claim + finish, a job each: jobs/s", (GROUPS[0],), "jobs/s"),
        ("Batches: jobs/s", ("batches",), "jobs/s"),
        ("Committed enqueue → claimed by an idle runner: ms", ("latency",), "ms"),
    ]
    found = []
    for title, groups, unit in chosen:
        bars = [
            (f"{figure.subject}: {figure.label}" if unit == "jobs/s" else figure.subject, figure)
            for figure in figures.all()
            if figure.group in groups and figure.history == 0
        ]
        if bars:
            found.append(Panel(title, bars))
    return found


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    low, high = figure.spread
    slowest = f", p99 {number(figure.slowest)}" if figure.unit == "ms" else ""
    return f"{number(figure.median)} ({number(low)} to {number(high)}{slowest})"


def _name(ratio: Ratio) -> str:
    return f"{ratio.promise.name} ({ratio.history} finished)" if ratio.history else ratio.promise.name


def _rounds(figures: Figures) -> str:
    counts = [max(len(f.rounds) for f in figures.all() if f.history == history) for history in figures.histories()]
    return " and ".join(map(str, counts)) or "no"


def _load(around: Circumstances) -> str:
    said = f"The load average was {around.load_before} before it and {around.load_after} after it."
    if around.disturbed:
        said += "\n**Others used the machine meanwhile: take these figures as noise, and the ratios as hints.**"
    return said


def _facts(around: Circumstances) -> str:
    def row(name: str, values: Mapping[str, object]) -> str:
        return f"| {name} | {', '.join(f'{key} {value}' for key, value in values.items())} |"

    return "\n".join(
        [
            "| | |",
            "|---|---|",
            row("machine", around.machine),
            row("versions", dict(around.versions)),
            row("server", dict(around.settings)),
            row("sizes", around.sizes),
            f"| took | {around.took_s:.0f} s |",
        ]
    )
