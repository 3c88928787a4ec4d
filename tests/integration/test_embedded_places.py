"""Where the private PostgreSQL lies and whom it runs as: odd places, other users, other binaries, clear refusals."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
from pathlib import Path

import pytest

from tests.support.clusters import Client, ask, server_pid, started
from tests.support.processes import until_gone
from tireless.embedded import EmbeddedPostgres, default_state_dir
from tireless.embedded.install import find_install
from tireless.errors import EmbeddedError

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root can run the server as somebody else")


async def test_a_long_path_gets_its_socket_elsewhere(state: Path) -> None:
    """A socket's path is limited to some hundred bytes; the directory used instead is private, and goes afterwards."""
    long = state.parent / ("x" * 120) / "pg"
    async with EmbeddedPostgres(long, fast=True) as server:
        assert await ask(server.url, "SELECT 1") == 1
        sockets = Path(str(await ask(server.url, "SHOW unix_socket_directories")))
        assert sockets.parent == Path("/tmp")
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert await server.stopped(90)
    assert not sockets.exists()


async def test_a_socket_directory_somebody_else_made_is_refused(state: Path) -> None:
    """In /tmp anybody can be faster than we are: a link in its place is not followed."""
    long = state.parent / ("y" * 120) / "pg"
    probe = EmbeddedPostgres(long)
    sockets = Path(probe.url.partition("host=")[2].partition("&")[0])
    sockets.symlink_to(state.parent)
    try:
        with pytest.raises(EmbeddedError, match="remove it"):
            await probe.open()
    finally:
        sockets.unlink()


async def test_a_half_made_cluster_is_made_again(state: Path) -> None:
    """A data directory without PG_VERSION is no cluster; nor is one that a killed initdb left aside."""
    (state / "data").mkdir(parents=True)
    (state / "data" / "base").mkdir()
    (state / "data-new-abc").mkdir()
    async with EmbeddedPostgres(state, fast=True) as server:
        assert await ask(server.url, "SELECT 1") == 1
    assert not (state / "data-new-abc").exists()


async def test_data_of_another_major_version_are_refused_and_kept(state: Path) -> None:
    """The sentence names both versions and says what to do."""
    (state / "data").mkdir(parents=True)
    (state / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 9, and .* is 1\d"):
        await EmbeddedPostgres(state).open()
    assert (state / "data" / "PG_VERSION").read_text() == "9\n"


async def test_a_server_that_does_not_start_is_reported_with_its_log(state: Path) -> None:
    """A configuration the server refuses: the error carries the server's own words."""
    async with EmbeddedPostgres(state, fast=True) as server:
        pass
    assert await server.stopped(90)
    with (state / "data" / "postgresql.conf").open("a") as conf:
        conf.write("nonsense = 1\n")
    with pytest.raises(EmbeddedError, match="nonsense"):
        await server.open()


async def test_directories_that_name_no_postgres_are_refused(state: Path, tmp_path: Path) -> None:
    """The seam to another PostgreSQL takes a directory with initdb, and says so."""
    with pytest.raises(EmbeddedError, match="has no initdb"):
        await EmbeddedPostgres(state, bindir=tmp_path).open()


async def test_named_binaries_are_used(state: Path) -> None:
    """`bindir` picks the PostgreSQL: here the newest that is neither the wheel's nor missing, else the wheel's own."""
    wheel = find_install(None)
    others = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    bindir = others[-1].parent if others else wheel / "bin"
    async with EmbeddedPostgres(state, bindir=bindir, fast=True):
        assert os.readlink(f"/proc/{server_pid(state)}/exe") == str((bindir / "postgres").resolve())


@as_root
async def test_root_hands_the_server_to_nobody_and_touches_no_parent(state: Path) -> None:
    """The server runs as nobody; directories that were there keep their modes, also under a umask of 077."""
    before = state.parent.stat()
    old = os.umask(0o077)
    try:
        async with EmbeddedPostgres(state.parent / "made" / "deep" / "pg", fast=True) as server:
            uid = Path(f"/proc/{server_pid(server.state)}").stat().st_uid
            assert uid == pwd.getpwnam("nobody").pw_uid
            assert (server.state / "run").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(old)
    after = state.parent.stat()
    assert (before.st_mode, before.st_uid) == (after.st_mode, after.st_uid)


@as_root
async def test_root_keeps_a_users_data_the_users(state: Path, clients: list[Client]) -> None:
    """Root on a state directory that a user made: the server runs as that user, who can use it again."""
    client, _ = await started(clients, state, "nobody")
    await client.stop()
    assert await until_gone(f"{state.parent}/") == {}
    async with EmbeddedPostgres(state, fast=True):
        assert Path(f"/proc/{server_pid(state)}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert await until_gone(f"{state.parent}/") == {}
    client, _ = await started(clients, state, "nobody")
    await client.stop()


@as_root
async def test_a_place_the_servers_user_cannot_reach_is_refused(tmp_path: Path) -> None:
    """Below a directory closed to others: a sentence says where to go, and the directory stays closed."""
    tmp_path.chmod(0o700)
    with pytest.raises(EmbeddedError, match="/var/lib/tireless"):
        await EmbeddedPostgres(tmp_path / "pg").open()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@as_root
async def test_binaries_below_a_closed_home_are_copied(state: Path, tmp_path: Path) -> None:
    """A virtual environment below /root: the server runs from a copy, made once, and older copies go."""
    wheel = find_install(None)
    tmp_path.chmod(0o700)
    closed = tmp_path / "site-packages"
    shutil.copytree(wheel, closed / wheel.parent.name / wheel.name, symlinks=True)
    if (libs := wheel.parents[1] / f"{wheel.parent.name}.libs").is_dir():
        shutil.copytree(libs, closed / libs.name)
    bindir = closed / wheel.parent.name / wheel.name / "bin"
    (state / "server-older").mkdir(parents=True)
    for _ in range(2):
        async with EmbeddedPostgres(state, fast=True, bindir=bindir) as server:
            exe = Path(os.readlink(f"/proc/{server_pid(state)}/exe"))
            assert exe.is_relative_to(state)
            (copy,) = state.glob("server-*")
            assert exe.is_relative_to(copy)
        assert await server.stopped(90)


@as_root
async def test_an_unknown_or_mighty_server_user_is_refused(state: Path) -> None:
    """No such user, or root by another name: said before anything is made."""
    with pytest.raises(EmbeddedError, match="no user nosuchuser"):
        await EmbeddedPostgres(state, server_user="nosuchuser").open()
    with pytest.raises(EmbeddedError, match="refuses to run as root"):
        await EmbeddedPostgres(state, server_user="root").open()


@as_root
async def test_a_user_is_refused_roots_state_directory(state: Path, clients: list[Client]) -> None:
    """Two installations of different users do not meet by accident."""
    async with EmbeddedPostgres(state, fast=True):
        clients.append(await Client.start(state, "nobody"))
        _, said = await clients[0].process.communicate()
        assert clients[0].process.returncode == 1
        assert b"choose a state directory of your own" in said


def test_the_default_place_follows_the_user() -> None:
    """Root's data go to /var/lib, since its home is closed to the server's user; others' to XDG's state directory."""
    place = default_state_dir({"XDG_STATE_HOME": "/data/state"})
    assert place == (Path("/var/lib/tireless/pg") if ROOT else Path("/data/state/tireless/pg"))


async def test_names_that_need_quoting_work(state: Path) -> None:
    """A blank, a percent sign and an umlaut in the path, and a database with a hyphen."""
    odd = state.parent / f"a b%20ü{secrets.token_hex(2)}"
    async with EmbeddedPostgres(odd, dbname="tire-less", fast=True) as server:
        assert await ask(server.url, "SELECT current_database()::text") == "tire-less"
