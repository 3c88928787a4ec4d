"""Runs a program as the agent of one attempt: prompt in, lines out within bounds, signals passed on, progress written.

Knows no program's events: those are read by whom it is given. Dies by the signal it got, with everything it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tireless.adapters.seen import Result, Seen, conclude, hand_back, written

LINE_MAX = 8 * 1024 * 1024
"""Bytes of a line that are read; a longer one is passed over, not held."""
PROGRESS_MAX = 1024 * 1024
_SHOWN_MAX = 2_000
_GRACE_S = 5.0
_AFTER_LAST_S = 30.0
"""How long a program may take to exit once its last event has come."""
_TICK_S = 0.5
_USAGE = 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

AFTERWORD = """

If you are not able to write that file, end your last message with the same object in a ```json block instead.
"""

Reader = Callable[[Mapping[str, object], Seen], str | None]
"""Takes one event into Seen; gives what is to be shown of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where protocol 1 wants things."""

    prompt: Path
    result: Path
    progress: Path
    run_dir: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Place:
        """From the environment a runner makes. SystemExit when this is no run of tireless."""
        names = ("TIRELESS_PROMPT_FILE", "TIRELESS_RESULT_FILE", "TIRELESS_PROGRESS_FILE", "TIRELESS_RUN_DIR")
        if missing := [name for name in names if not environ.get(name)]:
            sys.stderr.write(
                f"{', '.join(missing)} not set: this command is started by `tireless run`, see docs/agents.md\n"
            )
            raise SystemExit(_USAGE)
        return cls(*(Path(environ[name]) for name in names))


class Lines:
    """Bytes to lines, bounded: a line of any length costs at most LINE_MAX."""

    def __init__(self, limit: int = LINE_MAX) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._skipping = False
        self.skipped = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that are whole now."""
        whole = []
        *ended, rest = piece.split(b"\n")
        for part in ended:
            self._add(part)
            if not self._skipping:
                whole.append(bytes(self._kept))
            self._kept.clear()
            self._skipping = False
        self._add(rest)
        return whole

    @property
    def held(self) -> int:
        """Bytes of the line that is not whole yet."""
        return len(self._kept)

    def close(self) -> list[bytes]:
        """What came without a line's end."""
        return [bytes(self._kept)] if self._kept and not self._skipping else []

    def _add(self, part: bytes) -> None:
        if self._skipping:
            return
        if len(self._kept) + len(part) > self._limit:
            self._skipping = True
            self.skipped += 1
            self._kept.clear()
            return
        self._kept += part


class Run:
    """One run of a program."""

    def __init__(self, argv: Sequence[str], place: Place, seen: Seen, read: Reader) -> None:
        self._argv = argv
        self._place = place
        self._seen = seen
        self._read = read
        self._lines = Lines()
        self._stopped: int | None = None
        self._progress = 0
        self._noted: Result = {}

    def whole(self) -> int:
        """To the end: the exit code for this process, which dies by itself where it was told to."""
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._told)
        with self._prompt() as prompt:
            try:
                child = subprocess.Popen(  # noqa: S603 - the words are the operator's own, and no shell reads them
                    self._argv, stdin=prompt, stdout=subprocess.PIPE, start_new_session=True
                )
            except OSError as error:
                sys.stderr.write(
                    f"could not start {self._argv[0]}: {error.strerror}; install it or name it by --program\n"
                )
                return 127
        try:
            self._follow(child, wake_read)
        finally:
            _end(child)
        return self._conclude(child)

    def _told(self, number: int, _frame: FrameType | None) -> None:
        self._stopped = self._stopped or number

    def _prompt(self) -> _Prompt:
        return _Prompt(self._place.prompt)

    def _follow(self, child: subprocess.Popen[bytes], wake: int) -> None:
        """Read until the program has ended, it was long enough silent after its last event, or we were told to stop."""
        if child.stdout is None:
            raise RuntimeError("the program was started without its output")
        out = child.stdout.fileno()
        os.set_blocking(out, False)
        over: float | None = None
        with selectors.DefaultSelector() as waiting:
            waiting.register(out, selectors.EVENT_READ)
            waiting.register(wake, selectors.EVENT_READ)
            while self._stopped is None:
                # Asked before the read: what it wrote last is in the pipe by then.
                ended = child.poll() is not None
                if not self._drain(out) or ended:
                    break
                if self._seen.finished:
                    over = over or time.monotonic() + _AFTER_LAST_S
                    if time.monotonic() >= over:
                        break
                else:
                    over = None  # it went on after all
                waiting.select(_TICK_S)
        self._drain(out)
        if self._stopped is not None:
            # What it has cost may not have been read yet. One read takes all that a pipe holds, and no more of a flood.
            self._read_piece(out)
        for line in self._lines.close():
            self._take(line)
        self._seen.broken += self._lines.skipped

    def _drain(self, out: int) -> bool:
        """Read what there is; False at the end of the output. A grandchild may hold it open: never waited for."""
        while self._stopped is None:
            if (size := self._read_piece(out)) <= 0:
                return size < 0
        return True

    def _read_piece(self, out: int) -> int:
        """Take in one read: how many bytes it gave, 0 at the end of the output, -1 when there is nothing now."""
        try:
            piece = os.read(out, 1 << 20)
        except BlockingIOError:
            return -1
        for line in self._lines.feed(piece):
            self._take(line)
        return len(piece)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self._seen.broken += 1
            self._show(line.decode("utf-8", "replace"))
            return
        shown = self._read(event, self._seen)
        if shown:
            self._show(shown)
        if shown or self._seen.usage != self._noted:
            self._note(shown)

    def _show(self, text: str) -> None:
        """For `tireless jobs logs`."""
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(text[:_SHOWN_MAX].rstrip("\n") + "\n")
            sys.stdout.flush()

    def _note(self, text: str | None) -> None:
        """A line of progress. What cannot be written is only a sign of life less; sums are written beyond the bound."""
        said: Result = {"message": text[:_SHOWN_MAX]} if text else {}
        if self._seen.usage != self._noted:
            said["usage"] = self._noted = self._seen.usage
        line = json.dumps(said) + "\n"
        if self._progress + len(line) > PROGRESS_MAX and "usage" not in said:
            return
        self._progress += len(line)
        with contextlib.suppress(OSError), self._place.progress.open("a") as file:
            file.write(line)

    def _conclude(self, child: subprocess.Popen[bytes]) -> int:
        if self._seen.broken:
            sys.stderr.write(
                f"{self._seen.broken} lines of {self._seen.program} were no JSON objects and passed over\n"
            )
        if self._stopped is not None:
            # The runner knows why; what the run has cost so far is ours to say.
            stopped: Result = {"protocol": 1, "outcome": "retry", "reason": "it was stopped"}
            if self._seen.usage:
                self._hand_back(stopped | {"usage": self._seen.usage, "session": self._seen.session})
            signal.signal(self._stopped, signal.SIG_DFL)
            os.kill(os.getpid(), self._stopped)
        code = child.returncode
        own = written(self._place.result)
        # After its last event the program was ended by us, if it did not go by itself: its exit says nothing then.
        exit_code, number = (code, None) if code >= 0 else (None, -code)
        if self._seen.finished and number is not None:
            exit_code, number = 0, None
        result = conclude(self._seen, exit_code=exit_code, signal=number, own=own)
        if result is None:
            how = f"exited with {exit_code}" if number is None else f"was ended by signal {number}"
            sys.stderr.write(f"{self._seen.program} {how} and said nothing: no answer, no tool, no error\n")
            return 1
        self._hand_back(result)
        return 0

    def _hand_back(self, result: Result) -> None:
        try:
            hand_back(self._place.result, result)
        except OSError as error:
            sys.stderr.write(f"could not write {self._place.result}: {error}\n")
            raise SystemExit(1) from error


class _Prompt:
    """The prompt and our afterword as a file, for a program's standard input: no pipe to feed."""

    def __init__(self, path: Path) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        with path.open("rb") as prompt:
            while piece := prompt.read(1 << 20):
                self._file.write(piece)
        self._file.write(AFTERWORD.encode())
        self._file.seek(0)

    def __enter__(self) -> int:
        return self._file.fileno()

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _end(child: subprocess.Popen[bytes]) -> None:
    """TERM, grace, KILL to the program's whole group; what left it is the guard's to find."""
    if child.stdout is not None:
        child.stdout.close()
    for number, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)
            break
    # The leader is gone; who stayed in its group goes as well.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def chosen(words: Sequence[str], default: str) -> tuple[str, list[str]]:
    """`--program PATH` before the program's own words; the program and those."""
    if len(words) >= 2 and words[0] == "--program":
        return words[1], list(words[2:])
    return default, list(words)
