"""Configuration, migration and doctor as an operator meets them: real processes, a real Postgres, a real HTTP forge."""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from psycopg import sql

from tests.support.cli import COMMAND, closed, environment, inside, tireless
from tests.support.place import Place, a_place, config
from tireless.forge.person import make_token
from tireless.store.db import connect, ensure_database, shown, with_database


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A forge as an operator finds it before tireless was ever there."""
    async with a_place() as found:
        yield found


@pytest.fixture
async def empty_database(server_url: str) -> AsyncIterator[str]:
    """A database without any table."""
    name = f"empty_{secrets.token_hex(6)}"
    conn = await connect(server_url, application_name="tireless tests")
    try:
        await ensure_database(conn, name)
        yield with_database(server_url, name)
        await conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    finally:
        await conn.close()


async def test_every_bad_key_is_told_at_once(tmp_path: Path) -> None:
    """check-config ends with 3 and one line per fault, the nearest right key named."""
    path = closed(tmp_path / "c.toml", "[pol]\ninterval='1m'\n[lanes.a]\ncomand=['x']\nlease=3\n")
    said = await tireless("check-config", "--config", path, home=tmp_path)
    assert said.code == 3
    assert said.out == ""
    assert said.err.splitlines()[0] == f"tireless: {path}: 3 faults"
    assert "did you mean poll?" in said.err
    assert "did you mean command?" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(("mode", "says"), [(0o644, "chmod 600"), (None, "does not exist")])
async def test_a_bad_secret_file_is_a_sentence(tmp_path: Path, mode: int | None, says: str) -> None:
    """A missing or world-readable token file: exit 3, the file named, the command to run, and never the secret."""
    path = config(tmp_path, "http://127.0.0.1:1", token="a-secret-token")
    if mode is None:
        (tmp_path / "token").unlink()
    else:
        (tmp_path / "token").chmod(mode)
    for command in ("check-config", "doctor", "serve", "up", "poll"):
        start = tireless if command == "serve" else inside
        said = await start(command, "--config", path, home=tmp_path)
        assert said.code == 3, command
        assert says in said.err
        assert str(tmp_path / "token") in said.err
        assert "a-secret-token" not in said.err + said.out


async def test_an_unreachable_forge_is_told(tmp_path: Path) -> None:
    """check-config says which address does not answer and ends with 5; --offline does not ask."""
    path = config(tmp_path, "http://127.0.0.1:1", token="a-secret-token")
    said = await tireless("check-config", "--config", path, home=tmp_path)
    assert said.code == 5
    assert "http://127.0.0.1:1" in said.err
    assert (await tireless("check-config", "--offline", "--config", path, home=tmp_path)).code == 0


async def test_a_wrong_token_is_told(tmp_path: Path, place: Place) -> None:
    """A token the forge does not know: exit 3, with what to make instead."""
    path = config(tmp_path, place.url, token="not-a-token-of-anyone")
    said = await tireless("check-config", "--config", path, home=tmp_path)
    assert said.code == 3
    assert "token_refused" in said.err
    assert "write:issue" in said.err


async def test_a_token_whose_user_may_ask_is_refused(tmp_path: Path, place: Place) -> None:
    """The bot must not be on the list of those who may ask: check-config ends with 3, doctor with 6."""
    path = config(tmp_path, place.url, token=place.alice.token, more='[asking]\nallow = ["alice"]')
    said = await tireless("check-config", "--config", path, home=tmp_path)
    assert (said.code, "bot_may_ask" in said.err) == (3, True)
    assert "give the bot a user of its own" in said.err
    said = await tireless("doctor", "--json", "--config", path, home=tmp_path)
    assert said.code == 6
    assert "bot_may_ask" in {each["code"] for each in said.data["findings"]}


async def test_a_token_without_rights_is_told(tmp_path: Path, place: Place) -> None:
    """A token without scopes cannot even say whose it is."""
    narrow = {"login": "bot", "password": place.bot.password}
    token = await make_token(place.url, **narrow, name="narrow", scopes=["read:issue"])
    said = await tireless("check-config", "--config", config(tmp_path, place.url, token=token), home=tmp_path)
    assert said.code == 3
    assert "read:user" in said.err


async def test_a_right_configuration_says_so(tmp_path: Path, place: Place) -> None:
    """Exit 0, the remarks one can live with, and the same as one JSON object."""
    path = config(tmp_path, place.url, token=place.bot.token)
    said = await tireless("check-config", "--config", path, home=tmp_path)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("The configuration is right.")
    assert "no run_as" in said.out
    data = (await tireless("check-config", "--json", "--config", path, home=tmp_path)).data
    assert data["ok"] is True
    assert data["forges"]["main"]["repositories"] == ["alice/project"]


async def test_a_generated_configuration_is_read_again(tmp_path: Path) -> None:
    """What generate-config prints loads once its token file is there."""
    text = (await tireless("generate-config", home=tmp_path)).out
    closed(tmp_path / "token", "a-secret-token")
    path = closed(tmp_path / "c.toml", text.replace("/etc/tireless/forge-token", "token"))
    said = await tireless("check-config", "--offline", "--config", path, home=tmp_path)
    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize("command", ["serve", "run", "migrate", "poll"])
async def test_without_a_database_what_to_set_is_told(tmp_path: Path, command: str) -> None:
    """Commands that need a database of one's own end with 3 and name both ways to set it; none makes an empty one."""
    path = config(tmp_path, "http://127.0.0.1:1", token="a-secret-token")
    words = [command, "--lane", "claude"] if command == "run" else [command]
    said = await inside(*words, "--config", path, home=tmp_path)
    assert said.code == 3
    assert "url_file" in said.err
    assert "TIRELESS_DATABASE__URL" in said.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", ["serve", "migrate", "poll"])
async def test_an_unreachable_database_is_told(tmp_path: Path, command: str) -> None:
    """Nobody listens at the database's address: exit 5, the address without its password."""
    dsn = "postgresql://tireless:pass-word@127.0.0.1:1/d"
    path = config(tmp_path, "http://127.0.0.1:1", token="a-secret-token", dsn=dsn)
    said = await inside(command, "--config", path, home=tmp_path)
    assert said.code == 5
    assert "postgresql://tireless@127.0.0.1:1/d" in said.err
    assert "pass-word" not in said.err


async def test_migrate_check_tells_what_is_missing(tmp_path: Path, empty_database: str) -> None:
    """--check writes nothing and ends with 3 until `migrate` has run, which any number may do at once."""
    env = {"TIRELESS_DATABASE__URL": empty_database}
    said = await tireless("migrate", "--check", home=tmp_path, env=env)
    assert said.code == 3
    assert "run `tireless migrate`" in said.err
    both = await asyncio.gather(*(tireless("migrate", "--json", home=tmp_path, env=env) for _ in range(2)))
    assert [each.code for each in both] == [0, 0]
    applied = [each.data["applied"] for each in both]
    assert sorted(map(bool, applied)) == [False, True]
    said = await tireless("migrate", "--check", home=tmp_path, env=env)
    assert (said.code, said.out) == (0, f"{shown(empty_database)}: current\n")


async def test_doctor_names_every_fault(tmp_path: Path, place: Place, dsn: str) -> None:
    """Two repositories with four faults between them: each has its code and its next step, none hides another."""
    await place.alice.edit_repository("alice/project", has_pull_requests=False)
    await place.alice.remove_collaborator("alice/project", "bot")
    path = config(tmp_path, place.url, token=place.bot.token, dsn=dsn)
    path.write_text(path.read_text().replace('["alice/project"]', '["alice/project", "alice/none"]'))
    said = await tireless("doctor", "--json", "--config", path, home=tmp_path)
    assert said.code == 6
    found = {(each["subject"], each["code"]) for each in said.data["findings"] if each["level"] == "fault"}
    assert found == {
        ("main:alice/project", "pulls_off"),
        ("main:alice/project", "bot_cannot_write"),
        ("main:alice/project", "labels_missing"),
        ("main:alice/none", "repository_not_found"),
    }
    said = await tireless("doctor", "--config", path, home=tmp_path)
    assert said.code == 6
    assert "FAULT   main:alice/none: there is no such repository, or the bot may not see it" in said.out
    assert "`tireless labels sync` creates them" in said.out
    assert said.out.rstrip().splitlines()[-1].startswith("4 faults")


async def test_doctor_looks_at_everything_though_the_database_is_away(tmp_path: Path, place: Place) -> None:
    """An unreachable database is one finding among the others, not the end."""
    path = config(tmp_path, place.url, token=place.bot.token, dsn="postgresql://t@127.0.0.1:1/d")
    said = await tireless("doctor", "--json", "--config", path, home=tmp_path)
    assert said.code == 6
    codes = {each["code"] for each in said.data["findings"]}
    assert {"database_unreachable", "forge_answers", "labels_missing"} <= codes


async def test_an_exclusive_agent_label_is_a_fault(tmp_path: Path, place: Place, dsn: str) -> None:
    """Made exclusive by hand it would take the mode label off an issue: doctor says so."""
    await place.alice.create_label("alice/project", "tireless/agent:claude", exclusive=True)
    path = config(tmp_path, place.url, token=place.bot.token, dsn=dsn)
    said = await tireless("doctor", "--config", path, home=tmp_path)
    assert "labels whose exclusiveness was changed: tireless/agent:claude" in said.out


async def test_the_port_of_the_page_in_use_is_told(tmp_path: Path, place: Place, dsn: str) -> None:
    """serve does not start half: exit 3 and which keys to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = config(tmp_path, place.url, token=place.bot.token, dsn=dsn)
        closed(path, path.read_text().replace("port = 0", f"port = {port}"))
        said = await tireless("serve", "--config", path, home=tmp_path)
    assert said.code == 3
    assert f"127.0.0.1:{port}" in said.err
    assert "[web]" in said.err


async def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
    """`tireless generate-config | head -1` says nothing on standard error."""
    said = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", '"$@" | head -c 1', "bash", *COMMAND, "generate-config"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (said.stdout, said.stderr) == ("#", "")
