"""The commands a person types: print and exit codes; decide nothing."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tireless import __version__
from tireless.cli import demo, doctor, explain, jobs, labels, lanes, overview, repos, services, setup
from tireless.cli.frame import common, run_main


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tireless", message="%(prog)s %(version)s")
@common
def tireless() -> None:
    """Let agents work on the issues of a Gitea or Forgejo instance.

    Exit codes: 0 fine, 1 failed, 2 usage, 3 configuration, 4 not found, 5 database or forge unreachable,
    6 doctor found faults, 7 refused by policy.
    """


for _command in (
    demo.demo,
    services.up,
    services.serve,
    services.run_command,
    services.poll,
    services.sweep,
    setup.migrate,
    setup.generate_config,
    setup.check_config,
    doctor.doctor,
    explain.explain,
    jobs.jobs,
    lanes.lanes,
    overview.runners,
    repos.repos,
    labels.labels,
    overview.stats,
    overview.events,
):
    tireless.add_command(_command)


def main(args: Sequence[str] | None = None) -> None:
    """The entry point: run the command line, leave with its exit code."""
    raise SystemExit(run_main(tireless, args))
