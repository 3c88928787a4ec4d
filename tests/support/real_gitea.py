"""Starts a real Gitea or Forgejo from a binary in a temporary directory, for the conformance suite. Knows no test."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ADMIN = "root1"
PASSWORD = "Conform-1234"

_INI = """\
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
RUN_MODE = prod
WORK_PATH = {work}
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = http://127.0.0.1:{port}/
DISABLE_SSH = true
LFS_START_SERVER = false
OFFLINE_MODE = true
{static}[database]
DB_TYPE = sqlite3
PATH = {work}/gitea.db
[repository]
ROOT = {work}/repositories
[security]
INSTALL_LOCK = true
SECRET_KEY = {secret}
INTERNAL_TOKEN = {internal}
PASSWORD_HASH_ALGO = pbkdf2_v1
[oauth2]
JWT_SECRET = {jwt}
[service]
DISABLE_REGISTRATION = true
[webhook]
ALLOWED_HOST_LIST = loopback
[indexer]
ISSUE_INDEXER_TYPE = db
[queue]
TYPE = channel
[mailer]
ENABLED = false
[actions]
ENABLED = false
[packages]
ENABLED = false
[log]
MODE = console
LEVEL = Warn
"""


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


class _Binary:
    """The binary, its environment and its configuration file."""

    def __init__(self, binary: Path, work: Path) -> None:
        self.ini = work / "app.ini"
        self.argv = [str(binary), "--config", str(self.ini)]
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(work),
            "GITEA_WORK_DIR": str(work),
            "FORGEJO_WORK_DIR": str(work),
            "GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT": "true",
        }

    def run(self, *args: str) -> str:
        """One command; the last line of its output (as root a warning stands before it)."""
        done = subprocess.run([*self.argv, *args], env=self.env, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(args[:3])} failed: {done.stderr[-2000:]}{done.stdout[-2000:]}")
        return (done.stdout.strip().splitlines() or [""])[-1]


@contextmanager
def started(binary: Path, work: Path, *, static: Path | None = None) -> Iterator[tuple[str, str]]:
    """A running server: its URL and the token of its admin. Gone, with its children, afterwards.

    `static`: the source tree a binary built without embedded assets reads its options and templates from.
    """
    work.mkdir(parents=True, exist_ok=True)
    gitea = _Binary(binary, work)
    port = _free_port()
    gitea.ini.write_text(
        _INI.format(
            work=work,
            port=port,
            static=f"STATIC_ROOT_PATH = {static}\n" if static else "",
            secret=secrets.token_hex(16),
            internal=gitea.run("generate", "secret", "INTERNAL_TOKEN"),
            jwt=gitea.run("generate", "secret", "JWT_SECRET"),
        ),
        encoding="utf-8",
    )
    gitea.run("migrate")
    who = ("--username", ADMIN)
    create = ("admin", "user", "create", *who, "--password", PASSWORD, "--email", "root1@localhost.local")
    gitea.run(*create, "--admin", "--must-change-password=false")
    token = gitea.run("admin", "user", "generate-access-token", *who, "--token-name", "t", "--scopes", "all", "--raw")
    url = f"http://127.0.0.1:{port}"
    with (work / "log.txt").open("wb") as log:
        server = subprocess.Popen([*gitea.argv, "web"], env=gitea.env, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_ready(url, server, work / "log.txt")
        yield url, token.split()[-1]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    with httpx.Client(trust_env=False, timeout=2) as client:
        while time.monotonic() < until:
            if server.poll() is not None:
                raise RuntimeError(f"the server stopped at once: {log.read_text()[-2000:]}")
            try:
                if client.get(f"{url}/api/v1/version").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    raise RuntimeError(f"the server did not answer within 60 s: {log.read_text()[-2000:]}")
