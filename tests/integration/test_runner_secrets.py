"""Neither token nor database URL, title or body where they must not be: process table, files, logs, on every path."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg.conninfo

from tests.support import rows
from tests.support.agents import commit, dump, exits, result, wait, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.forges import FaultPlan
from tests.support.proxies import DatabaseProxy
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench

TITLE, BODY = "Titlemark4711", "bodymark-4711"
PASSWORD = f"dbmark-{secrets.token_hex(6)}"
"""Looked for on the whole machine, where other tests may run beside these."""
PAINT = [write("a.txt", "red\n"), commit("Paint it"), result("done", summary="Painted.", pr={"title": "Paint"})]


def process_table() -> Iterator[tuple[int, bytes]]:
    """Words and environment of every process but ours."""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            except OSError:
                continue


def below(pid: int) -> list[int]:
    """A process and everything it started."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):  # a thread or a process that ends at this moment has started nobody any more
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                found += [int(child) for child in task.read_text().split()]
    return found


def files_with(root: Path, marker: bytes) -> list[Path]:
    """Files below `root` that contain it, links not followed."""
    found = []
    for path in (Path(directory, name) for directory, _, names in os.walk(root) for name in names):
        with contextlib.suppress(FileNotFoundError):  # what is gone meanwhile shows nothing to anybody
            if marker in path.read_bytes():
                found.append(path)
    return found


async def secretive(bench: Bench, door: DatabaseProxy, **changes: object) -> dict[str, object]:
    """Changes to a runner whose database URL carries a password; its log goes to a file."""
    dsn = psycopg.conninfo.make_conninfo(door.dsn, password=PASSWORD)
    return {"dsn": dsn, "leases_dsn": dsn, **changes}


async def test_nothing_secret_while_an_agent_waits(bench: Bench, dsn: str) -> None:
    """While an agent runs no token, password, title or body is in its words, its guard's, their environment or .git."""
    seen = bench.directory / "seen"
    await bench.job([dump(seen), wait(), *PAINT], title=TITLE, body=BODY)
    token = bench.stage.bot.token.encode()
    async with DatabaseProxy(dsn) as door:
        process = await bench.process(**await secretive(bench, door))
        agent = await bench.gate.line()
        ours = below(process.pid)
        assert agent.pid in ours
        assert len(ours) >= 3  # runner, guard, agent
        table = dict(process_table())
        for marker in (token, PASSWORD.encode(), TITLE.encode(), BODY.encode()):
            assert [pid for pid in ours if marker.lower() in table[pid].lower()] == []
        root = bench.directory / "root"
        for marker in (token, PASSWORD.encode()):
            assert files_with(root, marker) == []
        (tree,) = (root / "runs").glob("*/tree")
        config = (tree / ".git" / "config").read_text()
        assert f"url = {bench.stage.url}/acme/widgets.git" in config
        assert "@" not in config.replace("tireless@localhost", "")
        assert [path.relative_to(tree.parent).parts[0] for path in files_with(tree.parent, BODY.encode())] == [
            "exchange",
            "exchange",
        ]
        bench.gate.release()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    handed = json.loads(seen.read_text())
    assert BODY in handed["prompt"]
    assert {name for name in handed["environ"] if not name.startswith("TIRELESS_")} <= {
        "PATH",
        "HOME",
        "LANG",
        "TMPDIR",
        "LC_CTYPE",
    }
    await nothing_logged(bench, TITLE, BODY)


async def nothing_logged(bench: Bench, *more: str) -> None:
    """Neither log nor rows hold the token or the password; the log holds none of `more` either."""
    for marker in (bench.stage.bot.token, PASSWORD, *more):
        assert marker.lower() not in bench.log_of().lower()
    for table in ("attempt", "job", "job_event", "output_chunk", "lane_hold", "runner"):
        text = await rows.value(bench.conn, f"SELECT coalesce(string_agg(t::text, ''), '') FROM {table} t")  # noqa: S608 - names of our own tables
        for marker in (bench.stage.bot.token, PASSWORD):
            assert marker not in str(text), table


async def test_nothing_secret_while_git_talks_to_the_forge(bench: Bench, dsn: str) -> None:
    """While git fetches and pushes with the token, no process of the machine shows it in words or environment."""
    token = bench.stage.bot.token.encode()
    made = await bench.job(PAINT, title=TITLE, body=BODY)
    talks = [  # a public repository is fetched by nobody, but with the token at hand
        await bench.loopback.fault(FaultPlan("*", service, "block", login=login))
        for service, login in (("git-upload-pack", ""), ("git-receive-pack", bench.stage.bot.login))
    ]
    async with DatabaseProxy(dsn) as door:
        process = await bench.process(**await secretive(bench, door))
        for talk in talks:
            await talk.reached()
            assert [pid for pid, text in process_table() if token in text or PASSWORD.encode() in text] == []
            assert files_with(bench.directory / "root", token) == []
            await talk.release()
        await bench.until(lambda: bench.state(made), ("publishing", None))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    await nothing_logged(bench, BODY)


async def test_nothing_secret_on_failure_paths(bench: Bench, dsn: str) -> None:
    """A clone URL that holds the token, a clone and a push refused, a database gone: no secret is told."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)
    bot, path = bench.stage.bot, bench.stage.path
    await rows.repository(
        bench.conn, "acme/other", forge=bench.stage.repo.forge, clone_url=f"{bench.stage.url}/acme/x.git"
    )
    leaky = f"{bench.stage.url}/acme/leaky.git".replace("://", f"://{bot.login}:{bot.token}@")
    await rows.repository(bench.conn, "acme/leaky", forge=bench.stage.repo.forge, clone_url=leaky)
    for other in ("acme/other", "acme/leaky"):
        issue_id = await rows.issue(bench.conn, other, title=TITLE, body=BODY)
        await rows.job(bench.conn, other, issue_id=issue_id, kind="implement", priority=1)
    made = await bench.job([wait(), *PAINT], title=TITLE, body=BODY)
    ended = "SELECT count(*) FROM attempt WHERE ended_at IS NOT NULL"
    async with DatabaseProxy(dsn) as door:
        process = await bench.process(**await secretive(bench, door))
        await bench.gate.line()
        await bench.until(lambda: rows.value(bench.conn, ended), 2)
        await bench.stage.alice.add_collaborator(path, bot.login, "read")
        door.cut_at(b"FROM settle_claims(")
        bench.gate.release()
        await bench.until(lambda: bench.state(made), ("waiting", "cannot_tell"))
        door.shut()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert {each["outcome"] for each in await rows.rows(bench.conn, "SELECT outcome FROM attempt")} == {
        "workspace_error",
        "retry",
    }
    await nothing_logged(bench, BODY)


async def test_agent_cannot_print_the_token_into_a_row(bench: Bench) -> None:
    """Output and result that hold the token, however the agent came by it, are stored without it."""
    token = bench.stage.bot.token
    made = await bench.job(
        [["say", f"found {token} lying around"], result("failed", reason=f"{token} is expired", summary=token)]
    )
    await bench.work()
    assert await bench.state(made) == ("failed", "rejected")
    (attempt,) = await bench.attempts(made)
    assert token not in json.dumps(attempt, default=str)
    assert "found [redacted] lying around" in str(attempt["output_head"])


async def test_exit_without_result_names_no_text_of_the_issue(bench: Bench) -> None:
    """The reason of a plain failure is ours alone."""
    made = await bench.job([exits(44)], title=TITLE, body=BODY)
    await bench.work()
    (attempt,) = await bench.attempts(made)
    assert attempt["reason"] == "the agent exited with 44 (failed)"
