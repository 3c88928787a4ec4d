"""`tireless doctor`: prints what the checks found; a fault makes it leave with 6. It mends nothing."""

from __future__ import annotations

from collections import Counter

import click

from tireless.app.database import existing_url
from tireless.app.forges import configured_repositories, open_forges
from tireless.cli.frame import Frame, pass_frame, printing, run
from tireless.cli.setup import remarks
from tireless.config import Settings
from tireless.errors import ConfigError, TirelessError
from tireless.services.setup import Expected, Finding, Level, check_forge
from tireless.store import migrate as migrations
from tireless.store.db import shown

FAULTY = 6

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
    findings += await _database(settings)
    findings += await _forges(settings)
    return findings


async def _database(settings: Settings) -> list[Finding]:
    try:
        async with existing_url(settings) as url:
            subject = shown(url)
            status = await migrations.check(url)
    except ConfigError as error:
        return [Finding(Level.FAULT, "no_database", "database", str(error))]
    except TirelessError as error:
        return [Finding(Level.FAULT, "database_unreachable", "database", str(error))]
    try:
        status.demand()
    except TirelessError as error:
        return [Finding(Level.FAULT, "schema", subject, str(error))]
    return [Finding(Level.FINE, "database_ready", subject, f"reachable, schema {status.applied[-1]}")]


async def _forges(settings: Settings) -> list[Finding]:
    expected = Expected(settings.labels.scheme, settings.lane_values, settings.asking.allow)
    findings: list[Finding] = []
    try:
        async with open_forges(settings) as forges:
            for name, forge in forges.items():
                repositories = [repo for repo in configured_repositories(settings) if repo.forge == name]
                findings += await check_forge(forge, repositories, expected)
    except ConfigError as error:
        findings.append(Finding(Level.FAULT, "no_token", "configuration", str(error)))
    return findings
