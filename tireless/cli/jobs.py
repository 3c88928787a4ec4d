"""`tireless jobs`: which there are, what became of one, what its agent printed; acts on one live in steering.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from tireless.cli import steering
from tireless.cli.frame import Frame, database, pass_frame, printing, run, table
from tireless.cli.words import issue, repository
from tireless.domain.issue import issue_name
from tireless.domain.job import TERMINAL, State
from tireless.errors import NotKnown
from tireless.store import inspect
from tireless.store.db import Connection
from tireless.store.inspect import AttemptRow, EventRow, JobDetail, JobRow
from tireless.store.lanes import lane_rows

_FOLLOW_S = 1.0
_CUT = "\n[… left out …]\n"

LIVE = [state.value for state in State if state not in TERMINAL]


@click.group("jobs")
def jobs() -> None:
    """See, cancel, rerun, approve, move jobs."""


for _command in (steering.cancel, steering.rerun, steering.approve, steering.reroute, steering.bump):
    jobs.add_command(_command)


# ------------------------------------------------------------------------------------------------ ls


@jobs.command("ls")
@click.option("--state", "states", multiple=True, type=click.Choice([state.value for state in State]))
@click.option("--all", "every", is_flag=True, help="Ended ones as well.")
@click.option("--lane", help="Of this lane.")
@click.option("--repository", "path", metavar="OWNER/REPO", help="Of this repository.")
@click.option("--issue", "ref", metavar="OWNER/REPO#N", help="Of this issue, ended ones as well.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@printing
@pass_frame
def ls(
    frame: Frame, states: Sequence[str], every: bool, lane: str | None, path: str | None, ref: str | None, limit: int
) -> None:
    """Jobs, newest first: those that live, unless states, an issue or --all say otherwise."""
    wanted = list(states) or ([] if every or ref else LIVE)
    found, several = run(_jobs(frame, wanted, lane, path, ref, limit))
    head = ("JOB", "ISSUE", "KIND", "LANE", "STATE", "REASON", "ATTEMPT", "TITLE")
    empty = "no such job" if ref or states or lane or path else "no job was made yet"
    if not (every or ref or states):
        empty = "no job lives; `--all` shows ended ones as well"
    frame.show({"jobs": found}, lambda: table(head, (_line(each, several) for each in found), empty=empty))


async def _jobs(
    frame: Frame, states: Sequence[str], lane: str | None, path: str | None, ref: str | None, limit: int
) -> tuple[list[JobRow], bool]:
    """What was asked for, and whether there are several forges."""
    forge, repo, number = None, None, None
    if path is not None:
        forge, owner, name = repository(path)
        repo = f"{owner}/{name}"
    if ref is not None:
        forge, owner, name, number = issue(ref)
        repo = f"{owner}/{name}"
    async with database(frame) as conn:
        found = await inspect.job_rows(
            conn, states=states, lane=lane, forge=forge, repo=repo, number=number, limit=limit
        )
        if not found:
            await _demand_known(conn, lane=lane, forge=forge, repo=repo)
        return found, await inspect.several_forges(conn)


async def _demand_known(conn: Connection, *, lane: str | None, forge: str | None, repo: str | None) -> None:
    """No job of what is not there is another answer than no job. NotKnown."""
    if lane is not None and lane not in {row.name for row in await lane_rows(conn)}:
        raise NotKnown(f"there is no lane {lane}: see `tireless lanes ls`")
    if repo is None:
        return
    known = await inspect.repository_rows(conn, all_known=True)
    if not any(row.repo.casefold() == repo.casefold() and forge in (None, row.forge) for row in known):
        named = repo if forge is None else f"{forge}:{repo}"
        raise NotKnown(f"{named} is not known here: see `tireless repos ls`")


def _line(job: JobRow, several: bool) -> tuple[object, ...]:
    name = issue_name(job.forge, job.repo, job.number, several=several)
    return job.id, name, job.kind, job.lane, job.state, job.reason, f"{job.attempts}/{job.max_attempts}", job.title


# ------------------------------------------------------------------------------------------------ show


@jobs.command("show")
@steering.JOB
@printing
@pass_frame
def show(frame: Frame, job: int) -> None:
    """One job: where it stands, its attempts, what happened to it, its children."""
    found, several = run(_detail(frame, job))
    frame.show(found, lambda: _told(found, several))


async def _detail(frame: Frame, job: int) -> tuple[JobDetail, bool]:
    async with database(frame) as conn:
        return await inspect.job_detail(conn, job), await inspect.several_forges(conn)


def _told(found: JobDetail, several: bool) -> str:
    facts = _facts(found.job, several)
    parts = ["\n".join(f"{name:12} {value}" for name, value in facts if value not in (None, "", []))]
    if found.attempts:
        head = ("CLAIM", "RUNNER", "CLAIMED", "ENDED", "OUTCOME", "COUNTS", "USD", "REASON")
        parts.append(table(head, map(_attempt, found.attempts), empty=""))
    if found.events:
        parts.append(table(("AT", "WHO", "WHAT", "TO", "REASON"), map(event, found.events), empty=""))
    if found.children:
        rows = [
            (each.key, each.number, each.kind, each.state, each.ended_reason, each.title) for each in found.children
        ]
        parts.append(table(("CHILD", "ISSUE", "KIND", "STATE", "ENDED", "TITLE"), rows, empty=""))
    return "\n\n".join(parts)


def _facts(job: JobRow, several: bool) -> list[tuple[str, object]]:
    return [
        ("job", f"{job.id}  {issue_name(job.forge, job.repo, job.number, several=several)}  {job.title}"),
        ("url", job.url),
        ("kind", job.kind),
        ("lane", job.lane),
        ("state", f"{job.state}{f' ({job.reason})' if job.reason else ''}"),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("cost", _cost(job)),
        ("asked by", f"{job.asked_by} ({job.source})"),
        ("made", job.created_at),
        ("claimed by", f"{job.claimed_by} on {job.claimed_host}" if job.claimed_by else None),
        ("lease until", job.claim_expires_at),
        ("not before", job.not_before),
        ("waits for", ", ".join(job.waits_for)),
        ("question", job.question),
        ("stopping", job.cancel_requested),
        ("delivery", job.publish_reason),
        ("pull request", f"#{job.pull_request}" if job.pull_request else None),
        ("summary", job.summary),
        ("rerun of", job.rerun_of),
        ("plan", f"#{job.parent}" if job.parent else None),
        ("ended", job.finished_at),
    ]


def _cost(job: JobRow) -> str | None:
    """What its agents said they used, and how far its cap is away; None where neither is known."""
    said = [f"{job.runs} run{'s' if job.runs != 1 else ''}"]
    if job.input_tokens is not None or job.output_tokens is not None:
        said.append(f"{job.input_tokens or 0} tokens in, {job.output_tokens or 0} out")
    if job.usd is not None:
        said.append(f"{job.usd:g} USD")
    if job.max_usd is not None:
        said.append(f"{job.spent_usd:g} of {job.max_usd:g} USD until a person acts")
    return ", ".join(said) if len(said) > 1 else None


def _attempt(row: AttemptRow) -> tuple[object, ...]:
    counts = row.burned if row.burned is not None else None
    usd = (row.usage or {}).get("usd")
    who = f"{row.runner}@{row.host}"
    return row.claim_no, who, row.claimed_at, row.ended_at, row.outcome, counts, usd, row.reason


def event(row: EventRow) -> tuple[object, ...]:
    """One event as a line of a table."""
    return row.at, row.who, row.what, row.to_state, row.reason


# ------------------------------------------------------------------------------------------------ logs


@jobs.command("logs")
@steering.JOB
@click.option("--attempt", "claim_no", type=click.IntRange(1, 10**18), help="The claim's number; by default the last.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the attempt has ended.")
@printing
@pass_frame
def logs(frame: Frame, job: int, claim_no: int | None, follow: bool) -> None:
    """What the agent of JOB printed: live while it runs, beginning and end once it has ended."""
    run(_logs(frame, job, claim_no, follow))


async def _logs(frame: Frame, job: int, claim_no: int | None, follow: bool) -> None:
    async with database(frame) as conn:
        await inspect.job_detail(conn, job)  # NotKnown for a job that does not exist
        told = await _piece(conn, frame, job, claim_no, -1)
        while follow and not told.ended:
            await asyncio.sleep(_FOLLOW_S)
            told = await _piece(conn, frame, job, told.claim_no, told.seq)


async def _piece(conn: Connection, frame: Frame, job: int, claim_no: int | None, after: int) -> inspect.Output:
    """Print what is new of one attempt. Whoever followed it live has seen all but what came last."""
    found = await inspect.attempt_output(conn, job, claim_no=claim_no, after=after)
    if found is None:
        which = f"no attempt {claim_no}" if claim_no is not None else "not been started yet"
        raise NotKnown(f"job {job} has {which}: see `tireless jobs show {job}`")
    live = "".join(found.chunks)
    kept = (found.head or "") + (_CUT + found.tail if found.tail else "")
    text = kept if found.ended and after < 0 else live
    data = {"job": job, "attempt": found.claim_no, "ended": found.ended, "text": text}
    if text or frame.json:
        frame.show(data, text.rstrip("\n"))
    return found
