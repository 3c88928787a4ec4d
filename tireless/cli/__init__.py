"""The commands a person types: print and exit codes; decide nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from tireless import __version__
from tireless.cli.frame import common, run_main

# In the order of --help. Loaded when asked for: `jobs ls` need not load what `serve` is made of.
COMMANDS = {
    "demo": "demo:demo",
    "up": "services:up",
    "serve": "services:serve",
    "run": "runner:run_command",
    "poll": "services:poll",
    "sweep": "services:sweep",
    "init": "init:init",
    "migrate": "setup:migrate",
    "generate-config": "setup:generate_config",
    "check-config": "setup:check_config",
    "doctor": "doctor:doctor",
    "explain": "explain:explain",
    "jobs": "jobs:jobs",
    "lanes": "lanes:lanes",
    "runners": "overview:runners",
    "repos": "repos:repos",
    "labels": "labels:labels",
    "stats": "overview:stats",
    "events": "overview:events",
    "workspaces": "workspaces:workspaces",
    "exec": "trying:exec_command",
}


class _Commands(click.Group):
    """A group whose commands are found by the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(f"tireless.cli.{module}"), attribute)
        if not isinstance(found, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name]} is no command")
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tireless", message="%(prog)s %(version)s")
@common
def tireless() -> None:
    """Let agents work on the issues of a Gitea or Forgejo instance.

    Exit codes: 0 fine, 1 failed, 2 usage, 3 configuration, 4 not found, 5 database or forge unreachable,
    6 doctor found faults, 7 refused by policy.
    """


def main(args: Sequence[str] | None = None) -> None:
    """The entry point: run the command line, leave with its exit code."""
    raise SystemExit(run_main(tireless, args))
