"""`tireless demo` as people run it: a process that starts everything, tells, checks, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import tireless
from tests.support.clusters import interpreter_for
from tests.support.processes import LIMIT_S, Process, empty_place, living, until_gone
from tireless.demo.tell import LIMIT_S as GIVES_UP_S

KEYS = {
    "ok",
    "seconds",
    "forge_url",
    "database_url",
    "issues",
    "jobs",
    "pull_requests",
    "children",
    "claims_held",
    "mirror_in_step",
    "left_running",
}
LONGEST_S = GIVES_UP_S + 2 * LIMIT_S
"""By itself a story ends after the time after which it is called wrong; before and after that everything is started and
ended, which takes as long as the machine needs for it."""
IMPATIENT = "from tireless.demo import tell; tell.LIMIT_S = 0.2; from tireless.cli import main; main()"
"""The demo, whose story is given no time to come to rest."""
ROOT = os.geteuid() == 0


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    """Where the demo's temporary files go; every process of it has this path in its environment or its words."""
    async with empty_place() as made:
        yield made


def environment(place: Path) -> dict[str, str]:
    """Nothing of ours but the way to the code, and a place for temporary files."""
    code = [str(Path(module.__path__[0]).resolve().parent) for module in (tireless, psycopg)]
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "TMPDIR": str(place),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(code),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def demo(place: Path, *words: str, user: str = "") -> Process:
    """The demo, not yet started, as ourselves or as somebody else."""
    python = interpreter_for(user) if user else sys.executable
    return Process([python, "-P", "-m", "tireless", "demo", *words], env=environment(place), cwd=place, user=user)


async def left_of(place: Path) -> tuple[dict[int, str], list[str]]:
    """Processes and files of the demo that are still there, after a moment for those that are just ending."""
    return await until_gone(place), sorted(each.name for each in place.iterdir())


def by(rows: list[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """Rows by a key that is unique."""
    found = {row[key]: row for row in rows}
    assert len(found) == len(rows)
    return found


def somebody_else() -> pytest.MarkDecorator:
    """Only root can become another user; as anybody else the demo already ran without root."""
    return pytest.mark.skipif(not ROOT, reason="not root: the demo ran as an unprivileged user already")


@pytest.mark.parametrize("user", ["", pytest.param("nobody", marks=somebody_else())])
async def test_the_demo_is_as_the_labels_ask(place: Path, user: str) -> None:
    """As root and as nobody: exit code 0, one object with the promised keys on the last line, everything as asked."""
    began = time.monotonic()
    async with demo(place, "--json", user=user) as run:
        code = await run.ends(limit_s=LONGEST_S)
    assert code == 0, "\n".join(run.said)
    assert len(run.out) == 1, "the story goes to standard error"
    told = json.loads(run.out[-1])
    assert set(told) == KEYS
    assert told["ok"] is True
    assert 0 < told["seconds"] < time.monotonic() - began
    assert (told["claims_held"], told["mirror_in_step"], told["left_running"]) == (0, True, 0)
    assert (await left_of(place)) == ({}, [])
    _jobs_are_as_asked(told)
    _pulls_are_as_asked(told)
    _children_are_as_asked(told)
    assert any("claimed by a runner of lane" in line for line in run.err)


def _jobs_are_as_asked(told: dict[str, Any]) -> None:
    """One job per proper request; the several-mode issue a plan; the override in its lane; the improper ones none."""
    jobs, issues = by(told["jobs"], "issue"), by(told["issues"], "issue")
    facts = {
        name: (job["kind"], job["lane"], job["state"], job["reason"], job["attempts"], job["parent"])
        for name, job in jobs.items()
    }
    assert facts == {
        "alice/widgets#2": ("implement", "swift", "delivered", None, 1, None),
        "alice/widgets#3": ("plan", "steady", "delivered", None, 1, None),
        "alice/widgets#4": ("plan", "steady", "delivered", None, 1, None),
        "alice/widgets#7": ("implement", "steady", "delivered", None, 1, None),
        "alice/widgets#9": ("implement", "swift", "delivered", None, 3, None),
        "alice/widgets#10": ("implement", "swift", "waiting", "needs_approval", 0, None),
    }
    assert len({job["id"] for job in told["jobs"]}) == 6
    assert {name for name, issue in issues.items() if issue["asked"]} == set(jobs)
    refused = {name: issue["reason"] for name, issue in issues.items() if not issue["asked"]}
    children = {child["issue"] for child in told["children"]}
    assert {name: reason for name, reason in refused.items() if name not in children} == {
        "alice/widgets#1": None,
        "alice/widgets#5": "no_mode",
        "alice/widgets#6": "no_opt_in",
        "alice/widgets#8": "stranger",
    }
    assert {refused[name] for name in children} == {"is_child_waiting"}


def _pulls_are_as_asked(told: dict[str, Any]) -> None:
    """Each delivered implement job has one pull request, which closes its issue."""
    pulls, jobs = by(told["pull_requests"], "issue"), by(told["jobs"], "issue")
    delivered = {name for name, job in jobs.items() if (job["kind"], job["state"]) == ("implement", "delivered")}
    assert set(pulls) == delivered
    for name, pull in pulls.items():
        assert set(pull) == {"issue", "number", "branch", "closes"}
        assert pull["closes"] == name
        assert pull["number"] == jobs[name]["pull_request"]
        assert pull["branch"].startswith(f"tireless/{name.rpartition('#')[2]}-")
    assert {job["pull_request"] for name, job in jobs.items() if name not in delivered} == {None}


def _children_are_as_asked(told: dict[str, Any]) -> None:
    """Each plan has three, labelled, not opted in, one of which depends on another of the same plan."""
    assert {child["plan"] for child in told["children"]} == {"alice/widgets#3", "alice/widgets#4"}
    for plan in ("alice/widgets#3", "alice/widgets#4"):
        mine = by([child for child in told["children"] if child["plan"] == plan], "key")
        assert set(mine) == {"schema", "import", "docs"}
        assert [child["labels"] for child in mine.values()] == [["tireless/implement"]] * 3
        needs = {key: child["depends_on"] for key, child in mine.items()}
        assert needs == {"schema": [], "import": [mine["schema"]["issue"]], "docs": []}


@pytest.mark.parametrize(
    ("number", "moment", "again"),
    [
        (signal.SIGTERM, "Starting a private PostgreSQL", 0),
        (signal.SIGHUP, "Acting as", 0),
        (signal.SIGINT, "claimed by a runner", 3),  # the impatient one changes nothing
    ],
)
async def test_a_signal_in_the_middle_leaves_nothing(
    place: Path, number: signal.Signals, moment: str, again: int
) -> None:
    """A polite kill, a closed terminal, Ctrl-C: it says so, exit code 130, and nothing runs or lies about."""
    async with demo(place) as run:
        await run.says(moment)
        assert living(place), "nothing was found running: the test would see nothing"
        run.process.send_signal(number)
        await run.says("Ending everything")
        for _ in range(again):
            run.process.send_signal(number)
        assert await run.ends() == 130
    assert run.err[-1] == "tireless: interrupted"
    assert (await left_of(place)) == ({}, [])


async def test_a_story_that_does_not_come_to_rest_ends_by_itself(place: Path) -> None:
    """When its time is over it is called wrong, exit code 1, and nothing runs or lies about."""
    argv = [sys.executable, "-P", "-c", IMPATIENT, "demo", "--json"]
    async with Process(argv, env=environment(place), cwd=place) as run:
        assert await run.ends(limit_s=LONGEST_S) == 1
    assert any("WRONG: the story did not come to rest within 0 s" in line for line in run.err)
    told = json.loads(run.out[-1])
    assert (told["ok"], told["left_running"]) == (False, 0)
    assert (await left_of(place)) == ({}, [])


async def test_a_killed_demo_takes_its_parts_along(place: Path) -> None:
    """Even after SIGKILL no process goes on: forge, serve, runners, agents and the database end by themselves."""
    async with demo(place) as run:
        await run.says("claimed by a runner")
        run.process.kill()
        await run.ends()
    assert await until_gone(place) == {}


async def test_keep_stays_up_to_be_played_with(place: Path) -> None:
    """After the story forge and database answer, the commands it names work, and Ctrl-C ends everything well."""
    async with demo(place, "--keep") as run:
        await run.says("Everything stays up until Ctrl-C")
        forge = (await run.says("  forge  ")).split()[-1]
        database = (await run.says("  database  ")).split()[-1]
        await run.says("tireless doctor")
        async with httpx.AsyncClient(trust_env=False) as browser:
            version = await browser.get(f"{forge.removesuffix('/alice/widgets')}/api/v1/version")
        assert "version" in version.json()
        async with await psycopg.AsyncConnection.connect(database) as conn:
            held = await (await conn.execute("SELECT count(*) FROM job WHERE state = 'claimed'")).fetchone()
        assert held == (0,)
        commands = [line[line.index(" tireless ") :] for line in run.out if " tireless " in line]
        assert len(commands) >= 4
        for line in commands:
            await _works(line, place)
        assert not any(line.startswith("Forge and rows") for line in run.out), "it is still up"
        run.process.send_signal(signal.SIGINT)
        assert await run.ends() == 0
    _plain_lines(run)
    assert (await left_of(place)) == ({}, [])


async def _works(line: str, place: Path) -> None:
    """A command as it was printed, typed in."""
    argv = [sys.executable, "-P", "-m", *shlex.split(line)]
    async with Process(argv, env=environment(place), cwd=place) as command:
        assert await command.ends() == 0, f"{line}: {command.said}"


def _plain_lines(run: Process) -> None:
    """Without a terminal: no control characters, a line for each issue, the verdict last, nothing on standard error."""
    assert run.err == []
    assert not any(ord(character) < 32 for line in run.out for character in line)
    assert sum(line.startswith("#") for line in run.out) == 10
    assert run.out[-1].startswith("Forge and rows agree, and are as the labels asked.")
