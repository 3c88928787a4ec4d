"""`tireless demo`: tell the story, print it as it happens, and say how it came out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable

import click
from rich.console import Console
from rich.text import Text

from tireless.cli.frame import Frame, pass_frame, printable, printing, run
from tireless.demo import report
from tireless.demo.tell import Told, tell

WRONG = 1


@click.command("demo")
@click.option(
    "--keep", is_flag=True, help="Leave everything up afterwards, until Ctrl-C, and say how to look and play."
)
@printing
@pass_frame
def demo(frame: Frame, keep: bool) -> int:
    """The main job on parts of its own: a private PostgreSQL, a small forge, two lanes with scripted agents.

    Tells the story as it happens, checks the forge's side against the rows' side, ends within a minute and leaves
    nothing behind. Exit code 1 when anything came out otherwise than the labels asked.
    With --json the story goes to standard error, and one object, on one line, to standard output.
    """
    console = Console(stderr=frame.json, highlight=False, soft_wrap=True)
    told = run(_tell(_teller(console), keep=keep))
    if frame.json:
        for wrong in told.wrong:
            console.print(Text(printable(f"WRONG: {wrong}")))
        click.echo(json.dumps(report.as_json(told), ensure_ascii=False))
    else:
        console.print()
        for line in report.as_lines(told):
            console.print(Text(printable(line), style="bold red" if line.startswith("WRONG") else ""))
    return 0 if told.ok else WRONG


async def _tell(say: Callable[[str], None], *, keep: bool) -> Told:
    """The story under our own signals. click.Abort when one came in the middle: everything was ended then, too."""
    telling = _Telling(say)
    task = asyncio.ensure_future(tell(say, keep=telling.keep if keep else None))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, telling.told, task)
    try:
        return await task
    except asyncio.CancelledError:
        raise click.Abort from None


class _Telling:
    """What Ctrl-C means: while everything is kept up, enough; before that it calls the story off; again, nothing."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._kept = False
        self._over = asyncio.Event()

    async def keep(self) -> None:
        """Keep everything up until we are told."""
        self._kept = True
        await self._over.wait()

    def told(self, task: asyncio.Future[Told]) -> None:
        """A signal came. What was started is ended in any case, so that a second one changes nothing."""
        if self._over.is_set():
            self._say("Still ending everything …")
        elif not self._kept:
            self._say("Ending everything …")
            task.cancel()
        self._over.set()


def _teller(console: Console) -> Callable[[str], None]:
    """Lines with the seconds since the beginning; plain where nobody watches a terminal."""
    began = time.monotonic()

    def say(line: str) -> None:
        stamp = Text(f"{time.monotonic() - began:6.1f}s  ", style="dim")
        with contextlib.suppress(BrokenPipeError):
            console.print(stamp + Text(printable(line)))

    return say
