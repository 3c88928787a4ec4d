"""The process that owns the private server: starts it, restarts it, stops it when the last client is gone.

Run by the client as `python -m tireless.embedded.keeper STATE …`; it opens no connection.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tireless.embedded.install import Ids, as_user, reachable_install, server_ids
from tireless.embedded.layout import EXCLUSIVE, PORT, Lock, private_dir, socket_dir, tail
from tireless.errors import EmbeddedError

_POLL_S = 0.2
_LOG_MAX_BYTES = 10_000_000
_DEATHS_MAX = 5
_DEATHS_WITHIN_S = 60.0
"""A server that dies more often is not started again."""

_PR_SET_PDEATHSIG = 1

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "timezone": "UTC",
    "log_timezone": "UTC",
    "max_connections": "200",
    "max_parallel_workers_per_gather": "0",
}
_FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
"""For data nobody keeps: a power cut may destroy them, killing processes does not."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is needed to start the server. `version` is the binaries' major one; `fast`: data may be lost."""

    state: Path
    install: Path
    version: int
    ids: Ids | None
    fast: bool

    @property
    def data(self) -> Path:
        """The cluster's files."""
        return self.state / "data"

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.state / "postgres.log"

    @property
    def env(self) -> dict[str, str]:
        """Nothing of the client's environment: no secret, no PGOPTIONS."""
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "PGTZ": "UTC"}


def keep(state: Path, *, fast: bool, bindir: Path | None, server_user: str) -> None:
    """Run the server until the last client is gone. Returns at once when another keeper is there."""
    mine = Lock(state / "keeper.lock")
    if not mine.take(EXCLUSIVE):
        return
    ids = server_ids(state, server_user)
    install, version = reachable_install(state, ids, bindir)
    cluster = Cluster(state, install, version, ids, fast)
    private_dir(socket_dir(state), ids)
    _ensure_data(cluster)
    asked_to_stop = _listen_for_term()
    clients = Lock(state / "clients.lock")

    def wanted() -> bool:
        # The exclusive lock is kept while the server stops: a new client waits for the end of the old server.
        return not asked_to_stop() and not clients.take(EXCLUSIVE)

    deaths: list[float] = []
    try:
        while _run_server(cluster, wanted):
            deaths = [at for at in deaths if at > time.monotonic() - _DEATHS_WITHIN_S] + [time.monotonic()]
            if len(deaths) > _DEATHS_MAX:
                raise EmbeddedError(f"PostgreSQL dies again and again; its log:\n{tail(cluster.log)}")
            sys.stderr.write("the server died while it was in use: starting it again\n")
    finally:
        if socket_dir(state).parent != state:
            with contextlib.suppress(OSError):
                socket_dir(state).rmdir()


def _run_server(cluster: Cluster, wanted: Callable[[], bool]) -> bool:
    """One life of the server; True when it had been up and died though it was wanted."""
    server = _start(cluster)
    while server.poll() is None and wanted():
        time.sleep(_POLL_S)
    if server.poll() is None:
        _stop(server)
        return False
    if not _was_up(server.pid, cluster.data):
        raise EmbeddedError(f"PostgreSQL ended with {server.returncode}; its log:\n{tail(cluster.log)}")
    return wanted()


def _was_up(pid: int, data: Path) -> bool:
    """Whether this server, now dead, had accepted connections: its last line in postmaster.pid said so."""
    with contextlib.suppress(FileNotFoundError):
        lines = (data / "postmaster.pid").read_text().splitlines()
        return lines[0] == str(pid) and lines[-1].strip() == "ready"
    return False


def _ensure_data(cluster: Cluster) -> None:
    """A whole cluster in `data`: made aside and renamed, so that a killed initdb leaves no half one."""
    marker = cluster.data / "PG_VERSION"
    if marker.exists():
        if (made_by := marker.read_text().strip()) != str(cluster.version):
            raise EmbeddedError(
                f"{cluster.data} was made by PostgreSQL {made_by}, and {cluster.install} is {cluster.version}: "
                "install the former and dump the data with it, or move the directory away to start empty"
            )
        return
    for left in (cluster.data, *cluster.state.glob("data-new-*")):
        shutil.rmtree(left, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix="data-new-", dir=cluster.state))
    try:
        if cluster.ids:
            os.chown(new, *cluster.ids)
        _initdb(cluster, new)
        new.rename(cluster.data)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _initdb(cluster: Cluster, new: Path) -> None:
    command = [str(cluster.install / "bin" / "initdb"), "-D", str(new), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
    builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    command += ["--no-instructions", *(builtin if cluster.version >= 17 else ["--no-locale"])]
    if cluster.fast:
        command.append("--no-sync")
    done = subprocess.run(  # noqa: S603 - a path we found, no shell
        command, env=cluster.env, cwd="/", capture_output=True, text=True, **as_user(cluster.ids)
    )
    if done.returncode:
        raise EmbeddedError(f"initdb in {new} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _start(cluster: Cluster) -> subprocess.Popen[bytes]:
    """Start the server, past whatever an earlier one left behind."""
    env = cluster.env
    if (stale := _clear_leftover(cluster.data)) is not None:
        env["PG_GRANDPARENT_PID"] = str(stale)
    sockets = socket_dir(cluster.state)
    for left in sockets.glob(".s.PGSQL.*"):  # ours alone; a lock file that names a zombie would stop the start, too
        left.unlink(missing_ok=True)
    if cluster.log.exists() and cluster.log.stat().st_size > _LOG_MAX_BYTES:
        cluster.log.rename(cluster.log.with_suffix(".log.1"))
    settings = {**_SETTINGS, "unix_socket_directories": str(sockets), **(_FAST if cluster.fast else {})}
    with cluster.log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - a path we found, no shell
            [
                str(cluster.install / "bin" / "postgres"),
                "-D",
                str(cluster.data),
                *(f"--{name}={value}" for name, value in settings.items()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd="/",
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,
            **as_user(cluster.ids),
        )


def _die_with(keeper: int) -> Callable[[], None]:
    """For the child, after it changed its user: if the keeper is killed, the kernel asks the server to stop (Linux)."""
    libc = ctypes.CDLL(None)

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != keeper:  # it died before we asked
            os._exit(1)

    return arrange


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Fast shutdown, then immediate, then kill."""
    for sign, wait_s in ((signal.SIGINT, 20), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
        server.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(wait_s)
            return
    raise EmbeddedError(f"PostgreSQL (process {server.pid}) does not stop, not even when killed")


# ------------------------------------------------------------------------------------------------ leftovers


def _clear_leftover(data: Path) -> int | None:
    """We hold keeper.lock, so that a postmaster.pid is a leftover: stop its server, wait for its children to leave.

    Returns a number that PostgreSQL would take for a live server though it is none: a zombie (an init that does not
    reap), or a stranger that got the number after a restart of the machine. The way past that check is
    PG_GRANDPARENT_PID: the file stays, and so does the check for shared memory that is still in use.
    """
    pidfile = data / "postmaster.pid"
    try:
        pid = int(pidfile.read_text().splitlines()[0])
    except FileNotFoundError:
        return None
    except (ValueError, IndexError):  # cut short by a full disk or a power cut; PostgreSQL would not start
        pidfile.unlink()
        return None
    if _kind(pid, data) == "server":
        os.kill(pid, signal.SIGINT)
        _wait(
            lambda: _kind(pid, data) != "server", 30, f"an old server (process {pid}) of {data} does not stop: end it"
        )
    _wait(lambda: not _users_of(data), 15, f"processes of an old server still use {data}: end them")
    return None if _kind(pid, data) == "gone" else pid


def _wait(over: Callable[[], bool], wait_s: float, message: str) -> None:
    deadline = time.monotonic() + wait_s
    while not over():
        if time.monotonic() > deadline:
            raise EmbeddedError(message)
        time.sleep(0.05)


def _kind(pid: int, data: Path) -> str:
    """What has this number now: `gone`, `zombie`, `server` (of this data directory) or `other`."""
    if Path("/proc/self/stat").exists():
        try:
            told = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return "gone"
        state = told[told.rindex(")") + 2]  # the name before it may hold anything
        ours = pid in _users_of(data)
    else:
        ps = ["ps", "-o", "stat=,args=", "-p", str(pid)]
        told = subprocess.run(ps, capture_output=True, text=True).stdout.strip()  # noqa: S603 - fixed words and a number
        if not told:
            return "gone"
        state, ours = told[0], f"-D {data}" in told
    if state == "Z":
        return "zombie"
    return "server" if ours else "other"


def _users_of(data: Path) -> set[int]:
    """PostgreSQL's processes of this data directory: they all work in it (Linux; elsewhere none is seen)."""
    found = set()
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to read
            if os.readlink(proc / "cwd") == str(data.resolve()) and (proc / "comm").read_text().strip() == "postgres":
                found.add(int(proc.name))
    return found


def _listen_for_term() -> Callable[[], bool]:
    told = []

    def note(*_: object) -> None:
        told.append(True)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the clients
    return lambda: bool(told)


def main() -> None:
    """Arguments as the client passes them; the client reads what is said here from keeper.log."""
    parser = argparse.ArgumentParser(prog="tireless.embedded.keeper")
    parser.add_argument("state", type=Path)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--bindir", type=Path)
    parser.add_argument("--server-user", required=True)
    words = parser.parse_args()
    os.chdir("/")
    os.umask(0o077)
    try:
        keep(words.state, fast=words.fast, bindir=words.bindir, server_user=words.server_user)
    except (EmbeddedError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
