"""`tireless serve` and `tireless run` as processes of their own: what they refuse, do together, and survive."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import rows
from tests.support.cli import Running, closed, tireless
from tests.support.place import AGENT, REPOSITORY, Place, a_place, ask_for, config
from tireless.store.db import Connection

NO_FORGE = "http://127.0.0.1:1"
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A forge with alice's project and the bot as a writer there."""
    async with a_place() as found:
        yield found


async def test_a_lane_without_a_command_is_refused(tmp_path: Path, dsn: str) -> None:
    """run of such a lane ends with 3 and says which key to set; up without any such lane, too."""
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn, command=[])
    said = await tireless("run", "--lane", "claude", "--config", path, home=tmp_path)
    assert said.code == 3
    assert 'lanes.claude has no command: set command = ["PROGRAM", "WORD", …] under [lanes.claude]' in said.err
    said = await tireless("up", "--config", path, home=tmp_path)
    assert said.code == 3
    assert "no lane has a command" in said.err


async def test_a_lane_that_is_not_configured_is_refused(tmp_path: Path, dsn: str) -> None:
    """run of an unknown lane ends with 2 and names the lanes there are."""
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn)
    said = await tireless("run", "--lane", "clade", "--config", path, home=tmp_path)
    assert said.code == 2
    assert "configured here are claude" in said.err


async def test_a_runner_that_could_not_push_is_refused(tmp_path: Path, dsn: str) -> None:
    """Without a git credential, or without any forge, run ends with 3 before an agent has worked for nothing."""
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn)
    whole = path.read_text()
    for text, says in (
        (whole.replace('token_file = "token"\n', ""), "no git credential for forges.main"),
        (whole.partition("[forges.main]")[0] + '[lanes.claude]\ncommand = ["true"]\n', "no forge is configured"),
    ):
        closed(path, text)
        said = await tireless("run", "--lane", "claude", "--config", path, home=tmp_path)
        assert said.code == 3, said
        assert says in said.err


async def test_an_agents_user_must_exist(tmp_path: Path, dsn: str) -> None:
    """run_as of nobody on this host ends with 3 and says how to create him."""
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn)
    closed(path, path.read_text().replace('command = ["true"]', 'command = ["true"]\nrun_as = "no-such-user"'))
    said = await tireless("run", "--lane", "claude", "--config", path, home=tmp_path)
    assert said.code == 3
    assert "lanes.claude.run_as: there is no user no-such-user on this host" in said.err


async def test_a_lease_too_short_for_this_runner_is_refused(tmp_path: Path, dsn: str, conn: Connection) -> None:
    """The lease serve configured is compared with this runner's own times before anything is claimed."""
    await rows.lane(conn, "claude", lease_s=45.0)
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn)
    said = await tireless("run", "--lane", "claude", "--config", path, home=tmp_path)
    assert said.code == 3
    assert "the lease of lane claude is 45 s, too short" in said.err


async def test_an_unmigrated_database_is_refused(tmp_path: Path, server_url: str) -> None:
    """serve and run do not touch a database that is behind: exit 3, and which command to run."""
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=server_url)
    for words in (["serve"], ["run", "--lane", "claude"]):
        said = await tireless(*words, "--config", path, home=tmp_path)
        assert said.code == 3
        assert "run `tireless migrate`" in said.err


async def test_a_runner_waits_for_a_lane_the_database_does_not_know(tmp_path: Path, dsn: str) -> None:
    """It says so, claims nothing, and drains at once when told."""
    path = config(tmp_path, NO_FORGE, token="a-token", dsn=dsn)
    async with Running("run", "--lane", "claude", "--config", path, home=tmp_path) as runner:
        assert (await runner.logged("lane not configured by serve yet, waiting for it"))["lane"] == "claude"
        await runner.logged("runner began")
        assert await runner.stop(signal.SIGTERM) == 0


async def test_serve_and_run_deliver_together(tmp_path: Path, place: Place, dsn: str, conn: Connection) -> None:
    """Two processes on one database: serve takes the issue in and delivers, a runner does the work and ends."""
    (tmp_path / "agent.py").write_text(AGENT)
    path = config(
        tmp_path, place.url, token=place.bot.token, dsn=dsn, command=[sys.executable, str(tmp_path / "agent.py")]
    )
    async with Running("serve", "--config", path, home=tmp_path) as serve:
        await serve.logged("page opened")
        number = await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        await serve.logged("job enqueued")
        said = await tireless(
            "run", "--lane", "claude", "--once", "--name", "once", "--config", path, home=tmp_path, timeout_s=120
        )
        assert said.code == 0, said.err
        delivered = await serve.logged("job delivered")
        assert await serve.stop(signal.SIGTERM) == 0
    (pull,) = await place.alice.pulls(REPOSITORY)
    assert pull["number"] == delivered["pull_request"]
    assert delivered["issue"] == f"{REPOSITORY}#{number}"
    (attempt,) = await rows.rows(conn, "SELECT runner, outcome FROM attempt")
    assert (attempt["runner"], attempt["outcome"]) == ("once", "done")
    text = (await tireless("jobs", "logs", "1", home=tmp_path, env={"TIRELESS_DATABASE__URL": dsn})).out
    assert text == f"worked on {number}\n"


async def test_serve_outlives_its_forge_and_its_database(
    tmp_path: Path, place: Place, dsn: str, conn: Connection
) -> None:
    """A forge that is away at the start and connections cut later are survived; work goes on when both are back."""
    path = config(tmp_path, NO_FORGE, token=place.bot.token, dsn=dsn)
    async with Running("serve", "--config", path, home=tmp_path) as serve:
        assert "127.0.0.1:1" in (await serve.logged("forge not reached"))["error"]
        await conn.execute(CUT)
        await serve.logged("forge not reached", nth=2)
        assert await serve.stop(signal.SIGTERM) == 0
    closed(path, path.read_text().replace(NO_FORGE, place.url))
    async with Running("serve", "--config", path, home=tmp_path) as serve:
        await serve.logged("repositories watched")
        await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
        await serve.logged("job enqueued")
        await conn.execute(CUT)
        # A poll that was cut off leaves its take behind, for two minutes: they pass.
        await conn.execute("UPDATE repository SET take_until = clock_timestamp() WHERE take_until IS NOT NULL")
        await ask_for(place, "Sort gadgets", "tireless/go", "tireless/implement")
        await serve.logged("job enqueued", nth=2)
        assert await serve.stop(signal.SIGTERM) == 0
