"""The commands that stay or do one round: up, serve, poll, sweep. They start what app composes."""

from __future__ import annotations

import click

from tireless.app import processes
from tireless.cli.frame import Frame, common, pass_frame, printing, run
from tireless.services.poller import Round

FAILED = 1


@click.command("up")
@common
@pass_frame
def up(frame: Frame) -> None:
    """Everything in one process: poller, publisher, mirror, sweeper, page, and a runner of every lane with a command.

    Without a database configured it uses a private PostgreSQL. It migrates the database by itself.
    Ctrl-C drains: running agents go on to their end. A second one stops them and gives their attempts back.
    """
    settings = frame.settings
    frame.configure_log()
    run(processes.up(settings, frame.told))


@click.command("serve")
@common
@pass_frame
def serve(frame: Frame) -> None:
    """Poller, sweeper, publisher, mirror and page. Needs a database, migrated before: `tireless migrate`."""
    settings = frame.settings
    frame.configure_log()
    run(processes.serve(settings, frame.told))


@click.command("poll")
@click.option("--full", is_flag=True, help="Read every issue, not only what changed.")
@click.option("--once", is_flag=True, help="One round; there is no other kind, `serve` polls for ever.")
@printing
@pass_frame
def poll(frame: Frame, full: bool, once: bool) -> int:
    """Poll every watched repository now, due or not. Exit code 1 when one of them failed."""
    del once
    frame.configure_log("warning")
    done = run(processes.poll_once(frame.settings, full=full))
    frame.show(done, lambda: _told(done))
    return FAILED if done.failed else 0


def _told(done: Round) -> str:
    lines = [f"{done.polled} repositories polled, {done.looked} looks answered, {done.made} new jobs"]
    lines += [f"  {repository}: {error}" for repository, error in done.failed.items()]
    return "\n".join(lines)


@click.command("sweep")
@click.option("--once", is_flag=True, help="One pass; there is no other kind, `serve` sweeps for ever.")
@printing
@pass_frame
def sweep(frame: Frame, once: bool) -> None:
    """Take back expired leases, wake what is due, end holds, prune: once, now."""
    del once
    frame.configure_log()
    run(processes.sweep_once(frame.settings))
    frame.show({"swept": True}, "swept")
