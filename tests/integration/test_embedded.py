"""The private PostgreSQL's life: one for all clients, gone with the last one, whoever was killed and how."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.clusters import Client, ask, parent_of, server_pid, started, until
from tests.support.processes import living, until_gone
from tireless.embedded import EmbeddedPostgres

USERS = ["", "nobody"] if os.geteuid() == 0 else [""]
"""As whom the clients run: as we do, and, where we may, as a user without rights."""


def is_gone(pid: int, state: Path) -> bool:
    """Nothing with this number works for this server any more."""
    return pid not in living(f"{state.parent}/")


@pytest.mark.parametrize("user", USERS)
async def test_it_comes_with_the_first_goes_with_the_last_and_keeps_the_data(
    state: Path, clients: list[Client], user: str
) -> None:
    """Two clients share one server; it stays for the second, goes after it, and a later one finds the rows."""
    first, url = await started(clients, state, user)
    server = server_pid(state)
    second, other_url = await started(clients, state, user)
    assert other_url == url
    assert server_pid(state) == server
    if not user:
        await ask(url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
    await first.stop()
    os.kill(server, 0)
    await second.stop()
    assert await until_gone(f"{state.parent}/") == {}
    assert not (state / "data" / "postmaster.pid").exists()
    third, url = await started(clients, state, user)
    if not user:
        assert await ask(url, "SELECT n FROM kept") == 7
    await third.stop()


@pytest.mark.parametrize("user", USERS)
async def test_six_cold_starts_at_once_give_one_server(state: Path, clients: list[Client], user: str) -> None:
    """None fails, all are given the same server, and it is gone after them."""
    clients += [await Client.start(state, user) for _ in range(6)]
    urls = {await client.url() for client in clients}
    assert len(urls) == 1
    server = server_pid(state)
    # A process that was just forked has its parent's words for a moment.
    await until(lambda: [pid for pid, words in living(f"{state.parent}/").items() if " -D " in words] == [server])
    await asyncio.gather(*(client.stop() for client in clients))
    assert await until_gone(f"{state.parent}/") == {}


@pytest.mark.parametrize("user", USERS)
async def test_a_killed_client_leaves_nothing(state: Path, clients: list[Client], user: str) -> None:
    """SIGKILL of the only client: server and keeper go by themselves."""
    client, _ = await started(clients, state, user)
    await client.kill()
    assert await until_gone(f"{state.parent}/") == {}


async def test_a_killed_keeper_takes_the_server_along_and_opening_again_brings_both(state: Path) -> None:
    """The kernel stops the server with its keeper; the same client object opens again and finds its rows."""
    server = EmbeddedPostgres(state)
    await server.open()
    try:
        await ask(server.url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
        pid = server_pid(state)
        os.kill(parent_of(pid), signal.SIGKILL)
        await until(functools.partial(is_gone, pid, state))
        await server.open()
        assert server_pid(state) != pid
        assert await ask(server.url, "SELECT n FROM kept") == 7
    finally:
        server.release()


@pytest.mark.parametrize("times", [1, 3])
async def test_a_killed_server_is_started_again_while_it_is_used(state: Path, times: int) -> None:
    """SIGKILL of the postmaster under a client: the keeper recovers it, and what was committed is there."""
    async with EmbeddedPostgres(state) as server:
        await ask(server.url, "CREATE TABLE kept (n int)")
        keeper = parent_of(server_pid(state))
        for _ in range(times):
            await ask(server.url, "INSERT INTO kept SELECT count(*) FROM kept")
            killed = server_pid(state)
            os.kill(killed, signal.SIGKILL)
            await until(functools.partial(is_gone, killed, state))
            await server.open()
            assert parent_of(server_pid(state)) == keeper
        assert await ask(server.url, "SELECT array_agg(n ORDER BY n) FROM kept") == list(range(times))


async def test_all_killed_together_and_started_again(state: Path, clients: list[Client]) -> None:
    """Client, keeper, postmaster and its children at once: nothing is left, and the rows are there afterwards."""
    client, url = await started(clients, state)
    await ask(url, "CREATE TABLE kept (n int)")
    for pid in [parent_of(server_pid(state)), *living(f"{state.parent}/")]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await client.process.wait()
    assert await until_gone(f"{state.parent}/") == {}
    _, url = await started(clients, state)
    assert await ask(url, "SELECT count(*) FROM kept") == 0


async def stopped_with_rows(state: Path) -> int:
    """A cluster that was used and stopped; the user it belongs to."""
    async with EmbeddedPostgres(state) as server:
        await ask(server.url, "CREATE TABLE kept (n int)")
    assert await server.stopped(90)
    return (state / "data").stat().st_uid


def leave_pid_file(state: Path, number: str) -> None:
    """What a server that was killed leaves behind, with this number in it."""
    pidfile = state / "data" / "postmaster.pid"
    pidfile.write_text(f"{number}\n{state}/data\n0\n5432\n\n\n  1 1\n")
    owner = (state / "data").stat()
    os.chown(pidfile, owner.st_uid, owner.st_gid)


@pytest.mark.parametrize("whose", ["a stranger's", "a zombie's", "nobody's", "garbage"])
async def test_a_stale_pid_file_does_not_stop_the_start(state: Path, whose: str) -> None:
    """The number in postmaster.pid is a live stranger's, a zombie's, free, or no number: the stranger is left alone."""
    owner = await stopped_with_rows(state)
    user = owner if os.geteuid() == 0 else None
    # Of the server's own user: others' processes PostgreSQL does not take for a server. The stranger even works in the
    # data directory, as a person who looks around there does.
    stranger = subprocess.Popen(["sleep", "600"], cwd=state / "data", user=user)
    zombie = subprocess.Popen(["true"], user=user)
    try:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        numbers = {"a stranger's": str(stranger.pid), "a zombie's": str(zombie.pid), "nobody's": "4000000"}
        leave_pid_file(state, numbers.get(whose, "x"))
        async with EmbeddedPostgres(state) as server:
            assert await ask(server.url, "SELECT count(*) FROM kept") == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        zombie.wait()


async def test_orphans_of_a_killed_server_are_waited_for(state: Path, tmp_path: Path) -> None:
    """A child of a killed postmaster still at work would corrupt the data: the next server starts after its end."""
    await stopped_with_rows(state)
    leave_pid_file(state, "4000000")
    shutil.copy(shutil.which("sleep") or "", tmp_path / "postgres")
    orphan = subprocess.Popen([tmp_path / "postgres", "2"], cwd=state / "data")
    try:
        async with EmbeddedPostgres(state) as server:
            assert orphan.poll() == 0
            assert await ask(server.url, "SELECT count(*) FROM kept") == 0
    finally:
        orphan.kill()
        orphan.wait()


async def test_neither_keeper_nor_server_get_our_secrets(state: Path, clients: list[Client]) -> None:
    """What is in the client's environment under TIRELESS_ is in nobody else's."""
    await started(clients, state)
    server = server_pid(state)
    for pid in (server, parent_of(server)):
        assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"s3cret" in Path(f"/proc/{clients[0].process.pid}/environ").read_bytes()


async def test_a_terminals_interrupt_does_not_reach_the_server(state: Path) -> None:
    """Ctrl-C goes to the client's process group: keeper and server are in sessions of their own."""
    async with EmbeddedPostgres(state, fast=True):
        server = server_pid(state)
        assert len({os.getsid(0), os.getsid(server), os.getsid(parent_of(server))}) == 3
