"""Starts a real Gitea or Forgejo from a binary in a temporary directory, for the conformance suite. Knows no test."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def started(binary: Path, work: Path, *, static: Path | None = None) -> AsyncIterator[tuple[str, str]]:
    """A running server: its URL and the token of its admin. Gone, with its children, afterwards.

    `static`: the source tree a binary built without embedded assets reads its options and templates from.
    """
    work.mkdir(parents=True, exist_ok=True)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(work),
        "GITEA_WORK_DIR": str(work),
        "FORGEJO_WORK_DIR": str(work),
        "GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT": "true",
    }
    port = _free_port()
    ini = work / "app.ini"

    async def gitea(*args: str) -> str:
        process = await asyncio.create_subprocess_exec(
            str(binary), "--config", str(ini), *args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 120)
        if process.returncode:
            raise RuntimeError(f"{binary} {args[0]} failed: {err.decode()[-2000:]}{out.decode()[-2000:]}")
        return out.decode()

    internal, jwt = [(await gitea("generate", "secret", name)).strip() for name in ("INTERNAL_TOKEN", "JWT_SECRET")]
    ini.write_text(
        _INI.format(
            work=work,
            port=port,
            static=f"STATIC_ROOT_PATH = {static}\n" if static else "",
            secret=secrets.token_hex(16),
            internal=internal,
            jwt=jwt,
        ),
        encoding="utf-8",
    )
    await gitea("migrate")
    await gitea(
        *("admin", "user", "create", "--username", ADMIN, "--password", PASSWORD, "--email", "root1@localhost.local"),
        *("--admin", "--must-change-password=false"),
    )
    token = (
        await gitea(
            "admin",
            "user",
            "generate-access-token",
            "--username",
            ADMIN,
            "--token-name",
            "t",
            "--scopes",
            "all",
            "--raw",
        )
    ).split()[-1]
    url = f"http://127.0.0.1:{port}"
    log = (work / "log.txt").open("wb")
    server = await asyncio.create_subprocess_exec(
        str(binary), "--config", str(ini), "web", env=env, stdout=log, stderr=log, start_new_session=True
    )
    log.close()
    try:
        await _ready(url, server, work / "log.txt")
        yield url, token
    finally:
        if server.returncode is None:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(server.wait(), 20)
            except TimeoutError:
                os.killpg(server.pid, signal.SIGKILL)
                await server.wait()


async def _ready(url: str, server: asyncio.subprocess.Process, log: Path) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=2) as client, asyncio.timeout(60):
        while True:
            if server.returncode is not None:
                raise RuntimeError(f"the server stopped at once: {log.read_text()[-2000:]}")
            try:
                if (await client.get(f"{url}/api/v1/version")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
