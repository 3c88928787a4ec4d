"""The command `run`: a runner on this host. Alone here: its process loads nothing that only `serve` needs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tireless.app import runs
from tireless.cli.frame import Frame, common, pass_frame, run


@click.command("run")
@click.option("--lane", "lanes", multiple=True, required=True, help="A lane to work for; may be given several times.")
@click.option("--concurrency", type=click.IntRange(1, 100), help="Agents at once, instead of the configuration's.")
@click.option("--name", help="What this runner is called, instead of the configuration's.")
@click.option("--once", is_flag=True, help="End when there is nothing left to claim.")
@common
@pass_frame
def run_command(frame: Frame, lanes: Sequence[str], concurrency: int | None, name: str | None, once: bool) -> None:
    """A runner: claim jobs of its lanes and have their agents work, on this host.

    The first SIGTERM or Ctrl-C drains, the second stops the agents and gives their attempts back.
    """
    overrides = {"concurrency": concurrency, "name": name}
    settings = frame.settings.with_runner({key: value for key, value in overrides.items() if value is not None})
    frame.configure_log()
    run(runs.run(settings, frame.told, lanes=tuple(dict.fromkeys(lanes)), once=once))
