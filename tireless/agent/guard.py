"""The small process between a runner and its agent: it outlives neither the lease nor the runner, and leaves nothing.

Run as a file (`python -I -S guard.py …`), so that it starts in milliseconds and stays small, one beside every agent: it
must import nothing of ours and nothing that is large. process.py starts it and imports `now` and `sweep`.

The runner writes lines to the control pipe: `deadline SECONDS` (CLOCK_BOOTTIME, by when everything must be dead),
`stop`, `kill` (stop without the rest of the grace). The pipe's end means that the runner is dead. The guard writes
JSON lines to the report pipe: started or not_started, then ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from types import TracebackType
else:
    # What `signal` puts into enums, which take 0.8 MB of every guard.
    import _signal as signal

LINUX = sys.platform == "linux"
MARK_NAME = "TIRELESS_RUN_MARK"
KILL_LIMIT_S = 20.0
"""How long SIGKILL may take to empty the run before the survivors are reported instead."""
_TICK_S = 1.0
"""Longest sleep: poll(2) does not count a suspended machine's time, CLOCK_BOOTTIME does."""
_SWEEP_TICK_S = 0.01
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOT_STARTED = 127


def now() -> float:
    """Seconds on the clock of deadlines: it goes on while the machine is suspended (not on macOS) and never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC)


class _passing:
    """`contextlib.suppress`, without what that module loads into every guard."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return kind is not None and issubclass(kind, self._errors)


# ---------------------------------------------------------------- who belongs to a run


class Process:
    """One line of the process table. `born` tells a reused pid from the one that was meant."""

    __slots__ = ("born", "dead", "group", "parent", "pid", "session", "stopped")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The command's name may hold blanks and parentheses: fields are counted from the last ')'.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.dead = fields[0] in (b"Z", b"X")
        self.stopped = fields[0] in (b"T", b"t")
        self.parent, self.group, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        self.born = int(fields[19])


def look_up(pid: int) -> Process | None:
    """The process with this pid, None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Process(pid, file.read())
    except (OSError, ValueError):
        return None


def strays(*, root: int | None, group: int, mark: str, by_mark: bool = True) -> list[Process]:
    """Living processes of a run: of the agent's group or session, below `root`, or carrying the run mark.

    `root` is the subreaper (None when it is dead). Itself and the caller are never among them.
    """
    table = {found.pid: found for name in os.listdir("/proc") if name.isdigit() and (found := look_up(int(name)))}
    ours = {pid for pid, found in table.items() if group in (found.group, found.session)}
    if root is not None:
        ours |= _below(root, table)
    if by_mark:
        ours |= {pid for pid in table if pid not in ours and has_mark(pid, mark)}
    ours -= {root, os.getpid()}
    return [table[pid] for pid in sorted(ours) if not table[pid].dead]


def _below(root: int, table: dict[int, Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, found in table.items():
        children.setdefault(found.parent, []).append(pid)
    reached: set[int] = set()
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in reached:
                reached.add(pid)
                queue.append(pid)
    return reached


def has_mark(pid: int, mark: str) -> bool:
    """Did this process begin with the run mark in its environment? Unreadable (another user's, gone) is no."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK_NAME}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def send(target: Process, sign: int) -> None:
    """Signal exactly this process: a pid that was reused since the table was read is left alone."""
    with _passing(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(target.pid)
        try:
            again = look_up(target.pid)
            if again is not None and again.born == target.born:
                signal.pidfd_send_signal(handle, sign)
        finally:
            os.close(handle)


def sweep(*, root: int | None, group: int, mark: str, limit_s: float = KILL_LIMIT_S) -> list[int]:
    """SIGKILL everything of a run until nothing is left; the pids that would not die within `limit_s`.

    Again and again, since what is forked between a look and a kill is only seen by the next look.
    """
    if not LINUX:
        return _sweep_group(group)
    end = now() + limit_s
    while left := strays(root=root, group=group, mark=mark):
        for one in left:
            send(one, signal.SIGKILL)
        if now() >= end:
            return [one.pid for one in left]
        time.sleep(_SWEEP_TICK_S)
    return []


def _sweep_group(group: int) -> list[int]:
    """Without /proc the group is all that can be found; what left it stays (doctor says so)."""
    with _passing(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    return []


# ---------------------------------------------------------------- the guard itself


class Guard:
    """One run: start the agent, watch it, the pipe and the clock, then stop it and sweep."""

    def __init__(self, *, control: int, report: int, deadline: float, grace: float, mark: str) -> None:
        self.control = control
        self.report = report
        self.deadline = deadline
        self.grace = grace
        self.mark = mark
        self.agent = 0
        self.cause = ""
        self.hurry = False
        self._line = b""
        self._wake_read, self._wake_write = os.pipe()
        self._poll = select.poll()

    def run(self, argv: list[str]) -> None:
        """From start to report. Returns when nothing of the run is left, or what is left was reported."""
        self._take_signals()
        _keep_from_agent()
        if LINUX:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        failed = self._start(argv)
        if failed:
            self._say(f'{{"event": "not_started", "errno": {failed}}}')
            return
        self._say(f'{{"event": "started", "pid": {self.agent}}}')
        self._watch()
        left = self._stop()
        code, sign = self._status()
        how = f'"exit": {_json(code)}, "signal": {_json(sign)}'
        self._say(f'{{"event": "ended", "cause": "{self.cause}", {how}, "left": {left}}}')

    def _take_signals(self) -> None:
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_SIGNALS):
            signal.signal(number, lambda _number, _frame: None)
        os.set_blocking(self.control, False)
        self._poll.register(self.control, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)

    def _start(self, argv: list[str]) -> int:
        """Fork and exec the agent; 0, or the errno of our own exec."""
        guard = os.getpid()
        said_read, said_write = os.pipe()
        self.agent = os.fork()
        if self.agent == 0:
            _become_agent(argv, guard, said_write)
        os.close(said_write)
        answer = os.read(said_read, 16)  # end of file: exec closed the pipe
        os.close(said_read)
        # Our copies of the agent's pipes go: their ends must come when the agent's are closed.
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        return int(answer) if answer else 0

    def _watch(self) -> None:
        """Until the agent has ended (left as a zombie, so that its pid stays ours) or there is a cause to stop it."""
        while not self._agent_ended():
            left = self._time_left()
            if self.cause:
                return
            self._wait(min(left, _TICK_S))
        self.cause = self.cause or "exit"

    def _time_left(self) -> float:
        """Seconds until the stop must begin; none left is a cause, for good."""
        left = self.deadline - self.grace - now()
        if left <= 0:
            self.cause = self.cause or "deadline"
        return left

    def _wait(self, seconds: float) -> None:
        for fd, _event in self._poll.poll(max(0.0, seconds) * 1000):
            if fd == self._wake_read:
                with _passing(BlockingIOError):
                    if any(number in _SIGNALS for number in os.read(fd, 512)):
                        self.cause = self.cause or "signal"
            else:
                self._hear()

    def _hear(self) -> None:
        try:
            data = os.read(self.control, 4096)
        except BlockingIOError:
            return
        if not data:
            self.cause = self.cause or "pipe"
            self._poll.unregister(self.control)
            return
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            if word == b"deadline":
                # The clock before the pipe: a deadline that passed while we were stopped is not renewed afterwards.
                if self._time_left() > 0:
                    self.deadline = float(value)
            elif word in (b"stop", b"kill"):
                self.cause = self.cause or "stop"
                self.hurry = self.hurry or word == b"kill"

    def _agent_ended(self) -> bool:
        """Reap what was orphaned to us; True once the agent itself is dead."""
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return False
            if found.si_pid == self.agent:
                return True
            os.waitpid(found.si_pid, 0)

    def _stop(self) -> list[int]:
        """TERM, grace, KILL, everything below, everything marked; the same after a clean exit. Pids still alive."""
        if not LINUX:
            return self._stop_group()
        end = min(now() + self.grace, self.deadline)
        told: set[tuple[int, int]] = set()
        while left := strays(root=os.getpid(), group=self.agent, mark=self.mark, by_mark=False):
            for one in left:
                if (one.pid, one.born) not in told:
                    told.add((one.pid, one.born))
                    send(one, signal.SIGTERM)
            if self.hurry or now() >= end:
                break
            self._wait(min(0.05, max(end - now(), 0.001)))
        return sweep(root=os.getpid(), group=self.agent, mark=self.mark)

    def _stop_group(self) -> list[int]:
        end = min(now() + self.grace, self.deadline)
        with _passing(ProcessLookupError, PermissionError):
            os.killpg(self.agent, signal.SIGTERM)
        while not self.hurry and now() < end and not self._agent_ended():
            self._wait(0.05)
        return _sweep_group(self.agent)

    def _status(self) -> tuple[int | None, int | None]:
        """The agent's exit code and signal, one of them None; both when it would not die."""
        code: int | None = None
        sign: int | None = None
        with _passing(ChildProcessError):
            while True:
                # Only an agent that survived SIGKILL (uninterruptible sleep) is not waited for.
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.agent:
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
                    sign = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return code, sign

    def _say(self, line: str) -> None:
        # A runner that died no longer listens; the run is swept all the same.
        with _passing(BrokenPipeError):
            os.write(self.report, line.encode() + b"\n")


def _become_agent(argv: list[str], guard: int, said: int) -> None:
    """In the forked child: a session of its own, dead when the guard dies, default signals, then exec."""
    try:
        os.setsid()
        if LINUX:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:  # it died before the line above
                os._exit(_NOT_STARTED)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - no shell: that is the point
    except OSError as error:
        os.write(said, str(error.errno or 1).encode())
    finally:
        os._exit(_NOT_STARTED)


def _keep_from_agent() -> None:
    """What the runner handed to us, pipes and locks, is not the agent's."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with _passing(OSError):  # the listing's own
                os.set_inheritable(int(name), False)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _json(value: int | None) -> str:
    return "null" if value is None else str(value)


def main(arguments: list[str]) -> None:
    """`CONTROL_FD REPORT_FD DEADLINE GRACE MARK ARGV…`; cwd, environment and standard streams are the agent's."""
    control, report, deadline, grace, mark, *argv = arguments
    guard = Guard(control=int(control), report=int(report), deadline=float(deadline), grace=float(grace), mark=mark)
    guard.run(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
