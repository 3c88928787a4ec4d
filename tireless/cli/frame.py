"""What every command shares: options, settings, the database, printing, exit codes. It knows no noun."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import ParamSpec, TypeVar
from uuid import UUID

import click

from tireless import config, log
from tireless.app.database import existing_database
from tireless.app.told import Told
from tireless.errors import Refused, TirelessError
from tireless.redact import Redactor
from tireless.store.db import Connection, Pool, connect, pool

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPTED = 130


@dataclass
class Frame:
    """One invocation: its options, and the settings once they were asked for."""

    config_file: Path | None = None
    debug: bool = False
    json: bool = False
    redactor: Redactor = field(default_factory=Redactor)
    _settings: config.Settings | None = None

    @property
    def settings(self) -> config.Settings:
        """The configuration, read at the first use; from then on secrets are kept out of what is printed."""
        if self._settings is None:
            self._settings = config.load(self.config_file)
            self.redactor = Redactor(self._settings.secrets())
            self.configure_log("warning")  # else libraries would write to standard output, among the data
        return self._settings

    @property
    def told(self) -> Told:
        """What a process that stays is handed of us."""
        return Told(self.redactor, self.say)

    def configure_log(self, level: str | None = None) -> None:
        """Set up the log of a process that stays: level and format from the configuration."""
        chosen = self.settings.installation
        as_json = {"json": True, "text": False, "auto": None}[chosen.log_format]
        log.configure("debug" if self.debug else level or chosen.log_level, json=as_json, redactor=self.redactor)

    def show(self, data: object, text: str | Callable[[], str]) -> None:
        """Print one object with --json, else the text; without secrets and control characters either way."""
        if self.json:
            out = json.dumps(plain(data), ensure_ascii=False, indent=2)
        else:
            out = printable(text if isinstance(text, str) else text())
        if out:
            click.echo(self.redactor.text(out))

    def say(self, sentence: str) -> None:
        """A remark for the person at the terminal, on standard error: never part of the data."""
        click.echo(self.redactor.text(printable(sentence)), err=True)


pass_frame = click.make_pass_decorator(Frame, ensure=True)


# ------------------------------------------------------------------------------------------------ options


def _set_config(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(Frame).config_file = value


def _set_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Frame).debug = True


def _set_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Frame).json = True


def common(function: Callable[P, T]) -> Callable[P, T]:
    """--config and --debug: on the group and on every command, so that they may stand in either place."""
    function = click.option(
        "--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show tracebacks and log everything."
    )(function)
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=_set_config,
        help=f"Configuration file. [default: ${config.ENV_FILE}, else {config.DEFAULT_FILE}]",
    )(function)


def printing(function: Callable[P, T]) -> Callable[P, T]:
    """`common`, and --json: for commands that print data."""
    option = click.option("--json", is_flag=True, expose_value=False, callback=_set_json, help="Print one JSON object.")
    return common(option(function))


# ------------------------------------------------------------------------------------------------ running


def run_main(group: click.Group, args: Sequence[str] | None) -> int:
    """Run the command line and return its exit code; errors of our tree are a sentence, never a traceback."""
    frame = Frame()
    try:
        code = group.main(args=args, prog_name="tireless", standalone_mode=False, obj=frame)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("tireless: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left (`| head`): nothing more to say, and the flush at exit would fail again.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return 1
    except TirelessError as error:
        if frame.debug:
            click.echo(frame.redactor.text(traceback.format_exc()), err=True)
        code_word = f"refused ({error.code}): " if isinstance(error, Refused) else ""
        frame.say(f"tireless: {code_word}{error}")
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last door: a fault of ours, told as one, with the way to see it
        if frame.debug:
            click.echo(frame.redactor.text(traceback.format_exc()), err=True)
        frame.say(
            f"tireless: a fault in tireless itself: {type(error).__name__}: {error}; "
            "run it again with --debug and report what it shows"
        )
        return 1


def run(work: Coroutine[None, None, T]) -> T:
    """Run one command's coroutine to its end."""
    return asyncio.run(work)


# ------------------------------------------------------------------------------------------------ database


@contextlib.asynccontextmanager
async def database(frame: Frame) -> AsyncIterator[Connection]:
    """A connection to a database whose schema is this code's; SchemaMismatch says `tireless migrate` otherwise."""
    async with existing_database(frame.settings) as url:
        conn = await connect(url, application_name="tireless cli")
        try:
            yield conn
        finally:
            await conn.close()


@contextlib.asynccontextmanager
async def database_pool(frame: Frame) -> AsyncIterator[Pool]:
    """The same as a small pool, for what the services do with one."""
    async with (
        existing_database(frame.settings) as url,
        pool(url, min_size=1, max_size=4, application_name="tireless cli") as opened,
    ):
        yield opened


# ------------------------------------------------------------------------------------------------ printing


def plain(data: object) -> object:
    """What json.dumps takes: dataclasses as objects, times as ISO 8601, durations as seconds, the rest by name."""
    match data:
        case None | bool() | int() | float() | str():
            return data
        case Enum():
            return plain(data.value)
        case datetime():
            return data.isoformat()
        case timedelta():
            return data.total_seconds()
        case UUID() | Path():
            return str(data)
        case Mapping():
            return {str(key): plain(value) for key, value in data.items()}
        case set() | frozenset():
            return sorted(str(each) for each in data)
        case Sequence():
            return [plain(each) for each in data]
        case _ if is_dataclass(data) and not isinstance(data, type):
            return plain(asdict(data))
        case _:
            raise TypeError(f"{type(data).__name__} has no place in JSON output")


def printable(text: str) -> str:
    """`text` without what a terminal would obey: titles and agents' output are written by strangers."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> str:
    """Aligned columns, cut to the width of a terminal; `empty` stands for no rows, `head` may be empty."""
    lines = [[_cell(value) for value in row] for row in rows]
    if not lines:
        return empty
    if head:
        lines.insert(0, list(head))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    if sys.stdout.isatty():
        limit = max(shutil.get_terminal_size().columns, 40)
        text = [line if len(line) <= limit else line[: limit - 1] + "…" for line in text]
    return "\n".join(text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return printable(str(value)).replace("\n", " ").replace("\t", " ")
