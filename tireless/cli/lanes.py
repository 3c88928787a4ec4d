"""`tireless lanes`: what the lanes hold, and an operator's hold on one."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import click

from tireless.cli.frame import Frame, database, pass_frame, printing, run, table
from tireless.cli.words import duration, held, how_to_end, operator
from tireless.store import steer
from tireless.store.db import Connection, clock
from tireless.store.lanes import HoldRow, LaneRow, hold_rows, lane_rows

_DRAIN_LOOK_S = 1.0


@click.group("lanes")
def lanes() -> None:
    """See, hold, drain and release lanes."""


@lanes.command("ls")
@printing
@pass_frame
def ls(frame: Frame) -> None:
    """Every lane with its live jobs by state, and why it is held."""
    found = run(_rows(frame))
    head = ("LANE", "KINDS", "PENDING", "WAITING", "PARKED", "RUNNING", "PUBLISHING", "STATE")
    rows = [
        (each.name, each.kinds, each.pending, each.waiting, each.parked, each.claimed, each.publishing, _state(each))
        for each in found
    ]
    frame.show({"lanes": found}, lambda: table(head, rows, empty="no lane is known: `tireless serve` writes them"))


async def _rows(frame: Frame) -> list[LaneRow]:
    async with database(frame) as conn:
        return await lane_rows(conn)


def _state(row: LaneRow) -> str:
    if not row.configured:
        return "closed: gone from the configuration"
    if row.holds:
        return "; ".join(held(hold) for hold in row.holds)
    return "probing" if row.probing else "open"


@lanes.command("hold")
@click.argument("lane")
@click.option("--reason", required=True, help="Why, for those who wonder.")
@click.option("--for", "how_long", callback=duration, metavar="DURATION", help='Until released, or so long: "2h".')
@printing
@pass_frame
def hold(frame: Frame, lane: str, reason: str, how_long: timedelta | None) -> None:
    """Start nothing more on LANE, on any host. What runs goes on. When this returns no claim is made any more."""
    until = run(_hold(frame, lane, reason, how_long))
    said = f"until {until:%Y-%m-%d %H:%M:%S} UTC" if until else f"until `tireless lanes release {lane}`"
    frame.show({"lane": lane, "held": True, "until": until}, f"lane {lane} is held {said}")


async def _hold(frame: Frame, lane: str, reason: str, how_long: timedelta | None) -> datetime | None:
    async with database(frame) as conn:
        return await _hold_for(conn, lane, reason, how_long)


async def _hold_for(conn: Connection, lane: str, reason: str, how_long: timedelta | None) -> datetime | None:
    # By the database's clock: it is the one that will end the hold.
    until = await clock(conn) + how_long if how_long is not None else None
    await steer.hold(conn, lane, operator(), reason=reason, until=until)
    return until


@lanes.command("drain")
@click.argument("lane")
@click.option("--reason", default="draining", show_default=True, help="Why, for those who wonder.")
@printing
@pass_frame
def drain(frame: Frame, lane: str, reason: str) -> None:
    """Hold LANE and return when nothing of it runs any more. It stays held; interrupting only stops the waiting."""
    run(_drain(frame, lane, reason))
    frame.show({"lane": lane, "held": True, "running": 0}, f"lane {lane} is held and nothing of it runs")


async def _drain(frame: Frame, lane: str, reason: str) -> None:
    async with database(frame) as conn:
        await _hold_for(conn, lane, reason, None)
        while not await steer.drain_done(conn, lane):  # noqa: ASYNC110 - only the rows know, and they tell nobody
            await asyncio.sleep(_DRAIN_LOOK_S)


@lanes.command("release")
@click.argument("lane")
@click.option(
    "--source",
    type=click.Choice(["operator", "quota", "breaker", "setup"]),
    default="operator",
    show_default=True,
    help="Whose hold; after a quota or breaker hold one job goes first, as a probe.",
)
@click.option("--host", default="", help="The host of a setup hold. [default: all of them]")
@printing
@pass_frame
def release(frame: Frame, lane: str, source: str, host: str) -> None:
    """Take one hold off LANE, or the setup holds of all hosts. Others on it stay, and are named."""
    if host and source != "setup":
        raise click.UsageError("--host is for setup holds, the only ones of one host: write --source setup as well")
    hosts, left = run(_release(frame, lane, source, host))
    named = f" on {', '.join(hosts)}" if any(hosts) else ""
    text = f"lane {lane}: the {source} hold{named} is gone"
    if not hosts:
        text = f"lane {lane} had no {source} hold{f' on {host}' if host else ''}"
    if left:
        text = "\n".join([f"{text}; it stays held:", *(f"  {held(hold)}; {how_to_end(hold)}" for hold in left)])
    data = {"lane": lane, "source": source, "released": bool(hosts), "hosts": list(filter(None, hosts)), "holds": left}
    frame.show(data, text)


async def _release(frame: Frame, lane: str, source: str, host: str) -> tuple[list[str], list[HoldRow]]:
    """The hosts ('': all alike) whose hold ended, and the holds that stay."""
    async with database(frame) as conn:
        hosts = [host]
        if source == "setup" and not host:
            found = await hold_rows(conn, lane)
            # Where there is none, the lane may not be known either: `release` says so.
            hosts = [hold.host for hold in found if hold.source == "setup"] or [""]
        ended = [each for each in hosts if await steer.release(conn, lane, operator(), source=source, host=each)]
        return ended, await hold_rows(conn, lane)
