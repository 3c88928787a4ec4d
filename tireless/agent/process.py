"""Runs one agent under its guard: feeds it, reads it, times it, stops it. Knows nothing of jobs, git or results."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
import struct
import sys
from collections.abc import Callable
from importlib.util import MAGIC_NUMBER

from tireless.agent import guard
from tireless.agent.control import Control, RunAs, RunSpec, boottime
from tireless.agent.meter import Meter
from tireless.agent.output import Capture
from tireless.domain.outcome import Ended, Stop
from tireless.domain.result import Usage
from tireless.errors import WorkspaceError
from tireless.redact import Redactor

_PIECE = 65_536
_PIECES_AT_ONCE = 4
"""Reads per turn of the event loop, so that a flood from one agent does not keep the renewal of another waiting."""
_TICK_S = 1.0
_REST_MAX = 16 * 1024 * 1024
"""What is still read from the pipe once everything is dead; a pipe holds less."""


async def run_agent(
    spec: RunSpec,
    control: Control,
    *,
    on_output: Callable[[str], None],
    redactor: Redactor,
    on_usage: Callable[[Usage], None] = lambda _usage: None,
) -> Ended:
    """Run to the end: when this returns, nothing of the run is alive (or `survivors` names it).

    `on_output` gets redacted text as it comes, `on_usage` what was used so far when it says something new: both must
    return at once and must not raise. Cancelling the task stops the
    agent first. Raises WorkspaceError when not even the guard could be started.
    """
    capture = Capture(redactor, on_output, kept=spec.kept)
    run = _Run(spec, control, capture, Meter(spec.progress_file, redactor), on_usage)
    if control.stopped is not None:
        return run.ended()
    try:
        end = asyncio.ensure_future(run.whole())
        try:
            return await asyncio.shield(end)
        except asyncio.CancelledError:
            # Never leave before the agent is gone: its slot would be given away under it.
            control.stop(Stop.SHUTDOWN)
            await _until(end, control)
            raise
    finally:
        run.close()


async def _until(end: asyncio.Future[Ended], control: Control) -> None:
    """Wait out a run that was told to stop; to be cancelled again means at once."""
    while not end.done():
        try:
            await asyncio.wait([end])
        except asyncio.CancelledError:
            control.stop(Stop.SHUTDOWN, hurry=True)
    end.exception()  # fetched: the cancellation is what the caller gets to see


def guard_file(who: RunAs | None) -> str:
    """What python runs as the guard: what our own import compiled, which takes a fifth less memory than its source.

    The source where there is no such thing, or where the guard's user or python could not use it.
    """
    source, spec = guard.__file__, guard.__spec__
    compiled = spec.cached if spec is not None else None
    if compiled is None or (who is not None and who.python != sys.executable):
        return source
    try:
        with open(compiled, "rb") as file:
            header, mode = file.read(16), os.fstat(file.fileno()).st_mode
        directory = os.stat(os.path.dirname(compiled)).st_mode
        of = os.stat(source)
    except OSError:
        return source
    # An import checks this too, but may not be able to replace what is stale.
    current = MAGIC_NUMBER + struct.pack("<III", 0, int(of.st_mtime) & 0xFFFFFFFF, of.st_size & 0xFFFFFFFF)
    readable = who is None or (mode & stat.S_IROTH and directory & stat.S_IXOTH)
    return compiled if header == current and readable else source


class _Run:
    """The state of one run: three pipes to the guard and its agent, the clocks, and what was reported."""

    def __init__(
        self, spec: RunSpec, control: Control, capture: Capture, meter: Meter, on_usage: Callable[[Usage], None]
    ) -> None:
        self.spec = spec
        self.control = control
        self.capture = capture
        self.meter = meter
        self._on_usage = on_usage
        self.loop = asyncio.get_running_loop()
        self.reports: dict[str, dict[str, object]] = {}
        self.survivors: tuple[int, ...] = ()
        self.began = self.last_life = self.over = self.loop.time()
        self.progress = 0
        self.ordered: float | None = None
        self._fds: set[int] = set()
        self._reported = asyncio.Event()
        self._report = b""
        self._prompt = memoryview(spec.stdin)
        self._failure: Exception | None = None

    async def whole(self) -> Ended:
        """From the guard's start to its end."""
        await self._start()
        await self._finish()
        return self.ended()

    async def _start(self) -> None:
        """Start the guard, which starts the agent."""
        theirs_in, self._in = self._pipe()
        self._out, theirs_out = self._pipe()
        theirs_control, self._control = self._pipe()
        self._report_fd, theirs_report = self._pipe()
        spec = self.spec
        who = spec.run_as
        command = (
            who.python if who else sys.executable,
            "-I",
            "-S",
            guard_file(who),
            str(theirs_control),
            str(theirs_report),
        )
        orders = (repr(self.control.deadline), repr(spec.grace_s), spec.env[guard.MARK_NAME])
        try:
            self._guard = await asyncio.create_subprocess_exec(
                *command,
                *orders,
                *spec.argv,
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=theirs_out,
                pass_fds=(theirs_control, theirs_report, *spec.hold),
                cwd=spec.cwd,
                env=dict(spec.env),
                start_new_session=True,  # a Ctrl-C in the runner's terminal is for the runner alone
                user=who.uid if who else None,
                group=who.gid if who else None,
                extra_groups=who.groups if who else None,
            )
        except (OSError, ValueError) as error:
            said = f"could not start the guard of an agent in {spec.cwd}: {error}"
            if who is not None and isinstance(error, PermissionError):
                said += f"; its user ({who.uid}) must be able to run {who.python} and to enter that tree"
            raise WorkspaceError(said) from error
        for fd in (theirs_in, theirs_out, theirs_control, theirs_report):
            self._close(fd)
        for fd in (self._in, self._out, self._control, self._report_fd):
            os.set_blocking(fd, False)
        self.loop.add_writer(self._in, self._feed)
        self.loop.add_reader(self._out, self._read)
        self.loop.add_reader(self._report_fd, self._hear)
        self.control.attach(self._tell)

    async def _finish(self) -> None:
        """Until the guard is gone; sweep in its place if it was killed."""
        clocks = asyncio.create_task(self._watch_clocks())
        try:
            await self._reported.wait()
            await self._guard.wait()
        finally:
            clocks.cancel()
            self.control.attach(None)
        self.over = self.loop.time()
        if "ended" not in self.reports and "not_started" not in self.reports:
            # The agent itself died with its guard; what it started is found by group, session and mark.
            agent = self.reports.get("started", {}).get("pid")
            group, mark = agent if isinstance(agent, int) else -1, self.spec.env[guard.MARK_NAME]
            self.survivors = tuple(await asyncio.to_thread(guard.sweep, root=None, group=group, mark=mark))
        self._read_rest()
        self.meter.read()
        self.capture.close()
        if self._failure is not None:
            raise self._failure

    def ended(self) -> Ended:
        """What came of it."""
        report = self.reports.get("ended", {})
        failed = self.reports.get("not_started")
        code, sign, left = report.get("exit"), report.get("signal"), report.get("left")
        number = failed.get("errno") if failed else None
        return Ended(
            stopped=self._who_stopped(str(report.get("cause", ""))),
            exit_code=code if isinstance(code, int) else None,
            signal=sign if isinstance(sign, int) else None,
            not_started=f"{self.spec.argv[0]}: {os.strerror(number)}" if isinstance(number, int) else None,
            guard_lost=not report and not failed and self.control.stopped is None,
            seconds=self.over - self.began,
            survivors=tuple(pid for pid in left if isinstance(pid, int)) if isinstance(left, list) else self.survivors,
            head=self.capture.head,
            tail=self.capture.tail,
            output_bytes=self.capture.total,
            usage=self.meter.usage,
        )

    def _who_stopped(self, cause: str) -> Stop | None:
        """The runner's reason, or what the guard did by itself.

        An agent that ended before the order reached it has ended by itself, unless its work may not be used anyway.
        """
        said = self.control.stopped
        match cause:
            case "deadline":
                return said or Stop.LEASE_LOST
            case "pipe" | "signal":
                return said or Stop.SHUTDOWN
            case "exit" if said not in (Stop.CANCELLED, Stop.LEASE_LOST):
                return None
            case _:
                return said

    def close(self) -> None:
        """Our ends of the pipes; the end of the control pipe stops whatever still runs."""
        for fd in tuple(self._fds):
            self._close(fd)

    async def _watch_clocks(self) -> None:
        """Order the stop that is due; kill a guard that does not obey, since the agent dies with it."""
        spec = self.spec
        run_end = self.began + spec.run_timeout_s
        while True:
            quiet_end = self.last_life + spec.stall_timeout_s
            now = self.loop.time()
            spent = self._spent()
            if self.control.stopped is None:
                if spent:
                    self.control.stop(Stop.OVER_BUDGET)
                elif now >= run_end:
                    self.control.stop(Stop.TIMEOUT)
                elif now >= quiet_end and not self._progressed():
                    self.control.stop(Stop.STALLED)
            self._check_guard(now)
            due = min(run_end, max(quiet_end, now)) if self.control.stopped is None else now + _TICK_S
            await asyncio.sleep(min(max(due - now, 0.001), _TICK_S))

    def _check_guard(self, now: float) -> None:
        """A guard may be stopped (SIGSTOP), or its run may not die: past all limits it is killed, and we sweep."""
        if self.control.stopped is not None and self.ordered is None:
            self.ordered = now
        overdue = boottime() > self.control.deadline + _TICK_S
        if overdue:
            self.control.stop(Stop.LEASE_LOST)
        late = self.ordered is not None and now > self.ordered + self.spec.grace_s + guard.KILL_LIMIT_S + _TICK_S
        if late or overdue:
            with contextlib.suppress(ProcessLookupError):
                self._guard.kill()

    def _spent(self) -> bool:
        """Has it used up what it may cost, by its own word?"""
        if self.meter.read():
            self._on_usage(self.meter.usage)
        left, usd = self.spec.usd_left, self.meter.usage.usd
        return left is not None and usd is not None and usd >= left

    def _progressed(self) -> bool:
        """Did the progress file grow since the last look? That counts as a sign of life now."""
        size = 0
        if self.spec.progress_file is not None:
            with contextlib.suppress(OSError):
                size = self.spec.progress_file.lstat().st_size
        grown, self.progress = size != self.progress, size
        if grown:
            self.last_life = self.loop.time()
        return grown

    def _tell(self, line: str) -> None:
        # A guard that is gone or stopped hears nothing; its own deadline, or its death, ends the run.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._control, line.encode() + b"\n")

    def _feed(self) -> None:
        """Give the agent the next of its prompt; close when it has all, or wants no more."""
        try:
            while self._prompt:
                self._prompt = self._prompt[os.write(self._in, self._prompt[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass
        self._close(self._in)

    def _read(self) -> None:
        for _ in range(_PIECES_AT_ONCE):
            if not self._read_piece():
                return

    def _read_piece(self) -> bool:
        """Read once; False when there is nothing now, or never again."""
        try:
            piece = os.read(self._out, _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._close(self._out)
            return False
        self.last_life = self.loop.time()
        try:
            self.capture.feed(piece)
        except Exception as error:  # noqa: BLE001 - a callback's fault must end the run and then be raised, not be logged by the loop
            self._failure = self._failure or error
            self.control.stop(Stop.SHUTDOWN)
        return True

    def _read_rest(self) -> None:
        """What is in the pipe already. Never until its end: somebody who survived may hold it."""
        for _ in range(_REST_MAX // _PIECE):
            if self._out not in self._fds or not self._read_piece():
                return

    def _hear(self) -> None:
        try:
            data = os.read(self._report_fd, _PIECE)
        except BlockingIOError:
            return
        self._report = (self._report + data)[:_PIECE]
        if data:
            return
        self._close(self._report_fd)
        for line in self._report.splitlines():
            # The agent can write here too if it tries (/proc/…/fd, same user): what is no report is no report.
            with contextlib.suppress(ValueError, AttributeError):
                report: dict[str, object] = json.loads(line)
                self.reports[str(report.get("event"))] = report
        self._reported.set()

    def _pipe(self) -> tuple[int, int]:
        try:
            ends = os.pipe()
        except OSError as error:
            hint = "; raise the limit of open files" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
            raise WorkspaceError(f"could not make the pipes of an agent: {error}{hint}") from error
        self._fds |= set(ends)
        return ends

    def _close(self, fd: int) -> None:
        if fd in self._fds:
            self._fds.discard(fd)
            self.loop.remove_reader(fd)
            self.loop.remove_writer(fd)
            os.close(fd)
