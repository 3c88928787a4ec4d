"""`tireless runners`, `stats`, `events`: what goes on over all."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import click

from tireless.cli.frame import Frame, database, pass_frame, plain, printing, run, table
from tireless.cli.jobs import event
from tireless.cli.words import job_number
from tireless.domain.issue import issue_name
from tireless.store import inspect
from tireless.store.inspect import Cost, EventRow, RunnerRow, Stats, UsageSums

_FOLLOW_S = 1.0
_HEAD = ("AT", "JOB", "ISSUE", "WHO", "WHAT", "TO", "REASON")


@click.group("runners")
def runners() -> None:
    """See runners."""


@runners.command("ls")
@printing
@pass_frame
def ls(frame: Frame) -> None:
    """Runners that showed themselves, the last seen first; for people, no claim depends on it."""
    found = run(_runners(frame))
    head = ("RUNNER", "HOST", "LANES", "RUNNING", "SLOTS", "SEEN", "ALIVE", "VERSION")
    rows = [
        (each.name, each.host, each.lanes, each.running, each.slots, each.seen_at, each.alive, each.version)
        for each in found
    ]
    frame.show({"runners": found}, lambda: table(head, rows, empty="no runner was seen: `tireless run --lane LANE`"))


async def _runners(frame: Frame) -> list[RunnerRow]:
    async with database(frame) as conn:
        return await inspect.runner_rows(conn)


@click.command("stats")
@click.option("--days", type=click.IntRange(1, 3660), default=7, show_default=True, help="Usage of so many days.")
@printing
@pass_frame
def stats(frame: Frame, days: int) -> None:
    """Counts and ages over everything, in seconds; what agents used, by day, lane and repository."""
    found, used = run(_stats(frame, days))
    frame.show(asdict(found) | {"usage": used}, lambda: _counted(found, used))


async def _stats(frame: Frame, days: int) -> tuple[Stats, UsageSums]:
    async with database(frame) as conn:
        return await inspect.stats(conn), await inspect.usage_sums(conn, days=days)


def _counted(found: Stats, used: UsageSums) -> str:
    lines = [f"{name.replace('_', ' '):24} {_number(value)}" for name, value in asdict(found).items()]
    parts = ["\n".join(lines)]
    for what, sums in (("DAY", used.by_day), ("LANE", used.by_lane), ("REPOSITORY", used.by_repository)):
        rows = [(name, *_sums(cost)) for name, cost in sums.items()] + [("all", *_sums(used.total))]
        head = (what, "RUNS", "GIVEN BACK", "TOKENS IN", "TOKENS OUT", "USD")
        parts.append(table(head, rows if sums else [], empty=""))
    return "\n\n".join(part for part in parts if part)


def _sums(cost: Cost) -> tuple[object, ...]:
    return cost.runs, cost.given_back, cost.input_tokens, cost.output_tokens, f"{cost.usd:.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


@click.command("events")
@click.option("--job", callback=job_number, metavar="JOB", help="Of this job only.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The last so many.")
@click.option("-f", "--follow", is_flag=True, help="Go on; with --json one object a line.")
@printing
@pass_frame
def events(frame: Frame, job: int | None, limit: int, follow: bool) -> None:
    """What happened to jobs, the newest last."""
    run(_events(frame, job, limit, follow))


async def _events(frame: Frame, job: int | None, limit: int, follow: bool) -> None:
    async with database(frame) as conn:
        if job is not None:
            await inspect.job_detail(conn, job)  # NotKnown for a job that does not exist
        found = await inspect.event_rows(conn, job_id=job, limit=limit)
        several = await inspect.several_forges(conn)
        if not follow:
            lines = [_line(row, several) for row in found]
            frame.show({"events": found}, table(_HEAD, lines, empty="nothing has happened yet"))
            return
        last = 0
        while True:
            for row in found:
                _print(frame, row, several)
                last = row.id
            if len(found) < limit:
                await asyncio.sleep(_FOLLOW_S)
            found = await inspect.event_rows(conn, job_id=job, after_id=last, limit=limit)


def _print(frame: Frame, row: EventRow, several: bool) -> None:
    line = json.dumps(plain(row), ensure_ascii=False)
    text = line if frame.json else table((), [_line(row, several)], empty="")
    click.echo(frame.redactor.text(text))


def _line(row: EventRow, several: bool) -> tuple[object, ...]:
    at, *rest = event(row)
    return at, row.job_id, issue_name(row.forge, row.repo, row.issue, several=several), *rest
