"""`tireless doctor`: prints what the checks found; a fault makes it leave with 6. It mends nothing."""

from __future__ import annotations

import os
import pwd
from collections import Counter

import click

from tireless.app.database import existing_url
from tireless.app.forges import configured_repositories, open_forges
from tireless.app.users import agents_user
from tireless.cli.frame import Frame, pass_frame, printing, run
from tireless.cli.setup import remarks
from tireless.cli.words import held, how_to_end
from tireless.config import Settings
from tireless.domain.issue import RepoRef
from tireless.errors import ConfigError, TirelessError
from tireless.services.setup import Expected, Finding, Level, check_forge
from tireless.store import migrate as migrations
from tireless.store.db import connect, shown
from tireless.store.lanes import lane_rows
from tireless.store.repos import tracked_repos
from tireless.store.snapshots import HeldSnapshot, held_snapshots

FAULTY = 6

OLD_S = 600.0
"""A snapshot older than this is worth a remark, in seconds: beside 20 claims a second it costs each of them a ms."""
OLD_TRANSACTIONS = 100_000
"""The same for slots, whose age is known in transactions only."""

_MARKS = {Level.FINE: "ok    ", Level.REMARK: "remark", Level.FAULT: "FAULT "}


@click.command("doctor")
@printing
@pass_frame
def doctor(frame: Frame) -> int:
    """Look at configuration, database, forges, tokens, repositories and labels. Exit code 6 when a fault is found."""
    findings = run(_findings(frame.settings))
    counts = Counter(finding.level for finding in findings)
    faults, noted = counts[Level.FAULT], counts[Level.REMARK]
    lines = [f"{_MARKS[each.level]}  {each.subject}: {each.text} ({each.code})" for each in findings]
    lines.append(f"{faults} fault{'s' if faults != 1 else ''}, {noted} remark{'s' if noted != 1 else ''}")
    frame.show({"ok": not faults, "findings": findings}, "\n".join(lines))
    return FAULTY if faults else 0


async def _findings(settings: Settings) -> list[Finding]:
    findings = [Finding(Level.REMARK, "configuration", "configuration", text) for text in remarks(settings)]
    findings += _agents_users(settings)
    watched: list[RepoRef] = []
    findings += await _database(settings, watched)
    findings += await _forges(settings, list(dict.fromkeys([*configured_repositories(settings), *watched])))
    return findings


def _agents_users(settings: Settings) -> list[Finding]:
    """Whether agents can be started as other users. This may be another host than the runner's, which wants root."""
    found = []
    for name, lane in settings.lanes.items():
        if not lane.command or lane.run_as is None:
            continue
        subject, user = f"lane {name}", lane.run_as
        try:
            his = pwd.getpwnam(user).pw_uid
        except KeyError:
            text = f"there is no user {user} on this host: `run` would not serve this lane here"
            found.append(Finding(Level.REMARK, "run_as_unknown", subject, text))
            continue
        if os.geteuid() not in (0, his):
            text = f"only root can try whether its agent can run as {user}: run doctor as root on the runner's host"
            found.append(Finding(Level.REMARK, "run_as_untried", subject, text))
            continue
        try:
            agents_user(user)
        except ConfigError as error:
            found.append(Finding(Level.FAULT, "run_as_shut_out", subject, str(error)))
    return found


async def _database(settings: Settings, watched: list[RepoRef]) -> list[Finding]:
    """The database and what only its rows know; adds the repositories that are watched to `watched`."""
    try:
        async with existing_url(settings) as url:
            subject = shown(url)
            status = await migrations.check(url)
            try:
                status.demand()
            except TirelessError as error:
                return [Finding(Level.FAULT, "schema", subject, str(error))]
            lanes = await _rows(url, watched)
    except ConfigError as error:
        return [Finding(Level.FAULT, "no_database", "database", str(error))]
    except TirelessError as error:
        return [Finding(Level.FAULT, "database_unreachable", "database", str(error))]
    return [Finding(Level.FINE, "database_ready", subject, f"reachable, schema {status.applied[-1]}"), *lanes]


async def _rows(url: str, watched: list[RepoRef]) -> list[Finding]:
    conn = await connect(url, application_name="tireless doctor")
    try:
        watched += [row.ref for row in await tracked_repos(conn)]
        lanes = await lane_rows(conn)
        snapshots = await held_snapshots(conn)
    finally:
        await conn.close()
    found = [_old(each) for each in snapshots if (each.age_s or 0) > OLD_S or each.transactions > OLD_TRANSACTIONS]
    for lane in lanes:
        if not lane.configured and (jobs := lane.pending + lane.waiting):
            wait = "1 job waits" if jobs == 1 else f"{jobs} jobs wait"
            text = (
                f"it is gone from the configuration of `serve`, and {wait} in it (`tireless jobs ls --lane "
                f"{lane.name}`): configure it again, or `tireless jobs reroute JOB LANE`"
            )
            found.append(Finding(Level.FAULT, "lane_closed", f"lane {lane.name}", text))
        for hold in lane.holds if lane.configured else ():
            text = f"{held(hold)}; {how_to_end(hold)}"
            found.append(Finding(Level.REMARK, "lane_held", f"lane {lane.name}", text))
    return found


def _old(snapshot: HeldSnapshot) -> Finding:
    """Nothing is wrong yet, and claims get slower with every one that is made meanwhile."""
    since = f"for {snapshot.age_s / 60:.0f} min" if snapshot.age_s is not None else "for"
    text = (
        f"it ({snapshot.doing}) has kept dead rows from being cleared away {since}, {snapshot.transactions:,} "
        f"transactions; claims get slower with each: end it ({snapshot.ending}), or find out what it waits for"
    )
    return Finding(Level.REMARK, "old_snapshot", f"{snapshot.kind} {snapshot.name}", text)


async def _forges(settings: Settings, wanted: list[RepoRef]) -> list[Finding]:
    expected = Expected(
        settings.labels.scheme, settings.lane_values, settings.asking.allow, settings.asking.who_may_ask
    )
    findings: list[Finding] = []
    try:
        async with open_forges(settings) as forges:
            for name, forge in forges.items():
                repositories = [repo for repo in wanted if repo.forge == name]
                findings += await check_forge(forge, repositories, expected)
    except ConfigError as error:
        findings.append(Finding(Level.FAULT, "no_token", "configuration", str(error)))
    return findings
