"""What an operator does to one job: cancel, run again, approve, move to another lane, change its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from tireless.cli.frame import Frame, database, pass_frame, printing, run
from tireless.cli.words import job_number, operator
from tireless.store import steer
from tireless.store.db import Connection
from tireless.store.steer import Cancelling

T = TypeVar("T")

JOB = click.argument("job", callback=job_number)
PRIORITIES = {"high": 1, "normal": 0, "low": -1}


async def _act(frame: Frame, act: Callable[[Connection], Awaitable[T]]) -> T:
    async with database(frame) as conn:
        return await act(conn)


@click.command("cancel")
@JOB
@click.option("--force", is_flag=True, help="Also when its delivery has begun: what there is of it stays on the forge.")
@printing
@pass_frame
def cancel(frame: Frame, job: int, force: bool) -> None:
    """End JOB. One that runs is asked to stop; its runner hears of it with its next renewal."""
    came = run(_act(frame, lambda conn: steer.cancel(conn, job, operator(), force=force)))
    match came:
        case Cancelling.CANCELLED:
            text = f"job {job} is cancelled"
        case Cancelling.REQUESTED:
            text = f"job {job} was asked to stop; see `tireless jobs show {job}`"
        case Cancelling.ABANDONED:
            text = f"job {job} has failed; what there is of it on the forge is yours to end: `tireless jobs show {job}`"
    frame.show({"job": job, "result": came}, text)


@click.command("rerun")
@JOB
@printing
@pass_frame
def rerun(frame: Frame, job: int) -> None:
    """Ask for the work of JOB, which has ended, once more: a new job. JOB itself stays as it is."""
    made = run(_act(frame, lambda conn: steer.rerun(conn, job, operator())))
    frame.show({"job": made, "rerun_of": job}, f"job {made} does again what job {job} was asked")


@click.command("approve")
@JOB
@printing
@pass_frame
def approve(frame: Frame, job: int) -> None:
    """Let JOB, which waits for a person, go on: on the issue's text as it stands now, with all its attempts."""
    state = run(_act(frame, lambda conn: steer.approve(conn, job, operator())))
    frame.show({"job": job, "state": state}, f"job {job} is {state}")


@click.command("reroute")
@JOB
@click.argument("lane")
@printing
@pass_frame
def reroute(frame: Frame, job: int, lane: str) -> None:
    """Give JOB, which has not been started, to LANE. It stays so until its agent label is changed."""
    state = run(_act(frame, lambda conn: steer.reroute(conn, job, lane, operator())))
    frame.show({"job": job, "lane": lane, "state": state}, f"job {job} belongs to lane {lane} and is {state}")


@click.command("bump")
@JOB
@click.option("--to", "place", type=click.Choice(list(PRIORITIES)), default="high", show_default=True)
@printing
@pass_frame
def bump(frame: Frame, job: int, place: str) -> None:
    """Set the priority of JOB, which has not been started, within its lane, until its priority label is changed."""
    state = run(_act(frame, lambda conn: steer.bump(conn, job, operator(), priority=PRIORITIES[place])))
    frame.show({"job": job, "priority": place, "state": state}, f"job {job} has {place} priority and is {state}")
