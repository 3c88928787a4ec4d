"""`tireless workspaces`: what runners of this host keep on disk, and a round of the tidying they do by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from tireless.agent.upkeep import Act
from tireless.app import workspaces as app
from tireless.cli.frame import Frame, pass_frame, printing, run, table
from tireless.cli.words import duration
from tireless.config import format_duration, format_size

FAILED = 1


@click.group("workspaces")
def workspaces() -> None:
    """See and tidy up the trees, bundles and caches of this host's runners. Asks no database."""


@workspaces.command("ls")
@printing
@pass_frame
def ls(frame: Frame) -> None:
    """Trees of runs, bundles of undelivered work, caches: age, size, whether in use, what a prune would do."""
    found = run(app.kept(frame.settings, frame.redactor))
    data = {
        "root": found.root,
        "workspaces": [
            {
                "kind": item.what,
                "key": item.key,
                "path": item.path,
                "job": item.job,
                "issue": item.issue or None,
                "age_s": round(item.age_s),
                "bytes": item.size,
                "in_use": item.in_use,
                "prune": found.goes.get(item.path),
            }
            for item in found.items
        ],
    }
    rows = [
        (
            *(item.what, item.key, item.job, item.issue or None, _age(item.age_s), format_size(item.size)),
            *(item.in_use, found.goes.get(item.path)),
        )
        for item in found.items
    ]
    head = ("KIND", "KEY", "JOB", "ISSUE", "AGE", "SIZE", "IN USE", "PRUNE")
    frame.show(data, table(head, rows, empty=f"nothing is kept in {found.root}"))


@workspaces.command("prune")
@click.option("--older-than", callback=duration, metavar="DURATION", help="What is not in use goes from this age on.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@printing
@pass_frame
def prune(frame: Frame, older_than: timedelta | None, dry_run: bool) -> int:
    """Do now what runners do by themselves: save the work of dead runs, remove what is beyond the bounds.

    What a living process uses stays. Exit code 1 when something was to go and could not.
    """
    age = older_than.total_seconds() if older_than is not None else None
    acts = run(app.prune(frame.settings, frame.redactor, older_than_s=age, dry=dry_run))
    data = {
        "root": frame.settings.runner_root,
        "dry_run": dry_run,
        "acts": [
            {
                "kind": act.item.what,
                "key": act.item.key,
                "job": act.item.job,
                "issue": act.item.issue or None,
                "bytes": act.item.size,
                "reason": act.reason,
                "saved": act.saved,
                "error": act.error,
            }
            for act in acts
        ],
    }
    frame.show(data, _told(acts, dry_run))
    return FAILED if any(act.error is not None for act in acts) else 0


def _told(acts: Sequence[Act], dry_run: bool) -> str:
    lines = []
    for act in acts:
        done = "would go" if dry_run else "gone" if act.error is None else "NOT removed"
        saved = f"; its work is in saved/{act.saved}" if act.saved else ""
        why = f": {act.error}" if act.error is not None else ""
        lines.append(f"{act.item.what} {act.item.key} {done} ({act.reason}){saved}{why}")
    return "\n".join(lines) or "nothing to remove"


def _age(seconds: float) -> str:
    """The two largest units: nobody wants the seconds of a week."""
    rounded = next((size for size in (86_400, 3600, 60) if seconds >= 10 * size), 1)
    return format_duration(timedelta(seconds=max(0, int(seconds // rounded) * rounded)))
