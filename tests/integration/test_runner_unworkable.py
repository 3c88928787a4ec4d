"""A repository nobody can work on parks its job with a question; a forge that is away parks nothing, however long."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import rows
from tests.support.agents import commit, result, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.forges import FaultPlan
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench
from tireless.store import steer

PAINT = [write("a.txt", "red\n"), commit("Paint it"), result("done", summary="Painted.")]
FETCH = r"info/refs\?service=git-upload-pack"
TIMES = 4


async def rounds(bench: Bench, made: rows.Made, times: int) -> None:
    """Let a runner try so often, each wait being over at once."""
    await rows.lane(bench.conn, backoff_base_s=3600.0, backoff_cap_s=3600.0)  # else one runner tries for ever
    for _ in range(times):
        await bench.work()
        await bench.wake(made)


async def spoil(bench: Bench, how: str) -> str:
    """Make the repository unworkable for good; what the question must say."""
    match how:
        case "no such branch":
            await rows.change(bench.conn, "repository", bench.repository_id, default_branch="trunk")
            return "no branch 'trunk'"
        case "empty":
            names = bench.git("for-each-ref", "--format=delete %(refname)", "refs/heads/")
            where = ["-c", "safe.directory=*", "--git-dir", bench.git("rev-parse", "--absolute-git-dir")]
            subprocess.run(["git", *where, "update-ref", "--stdin"], input=f"{names}\n".encode(), check=True)
            return "is it empty"
        case _:
            await bench.loopback.fault(FaultPlan("GET", FETCH, "answer", status=int(how), times=0))
            return "no such repository for this runner's git user"


@pytest.mark.parametrize("how", ["no such branch", "empty", "404", "403"])
async def test_unworkable_repository_parks_its_job(bench: Bench, how: str) -> None:
    """The fourth give-back in a row parks it as suspect, saying what a person should do; no agent ran, none burned.

    The first one has the repository asked what it is.
    """
    made = await bench.job(PAINT)
    question = await spoil(bench, how)
    await rows.not_due(bench.conn)
    await rounds(bench, made, 1)
    assert await rows.doubted(bench.conn) == ["widgets"]
    await rounds(bench, made, TIMES - 2)
    assert (await bench.row(made))["parked"] is None
    await rounds(bench, made, 2)
    row = await bench.row(made)
    assert (row["state"], row["reason"], row["parked"]) == ("waiting", "suspect", "suspect")
    assert question in str(row["question"])
    assert await bench.outcomes(made) == ["workspace_error"] * TIMES
    assert row["attempts"] == 0
    assert bench.script.recorded("begin") == []


async def test_parked_job_goes_on_once_a_person_has_mended_it(bench: Bench) -> None:
    """The branch is there again and somebody approves: the next attempt delivers, and the count begins anew."""
    made = await bench.job(PAINT)
    branch = (await rows.row(bench.conn, "repository", bench.repository_id))["default_branch"]
    await rows.change(bench.conn, "repository", bench.repository_id, default_branch="trunk")
    await rounds(bench, made, TIMES)
    await rows.change(bench.conn, "repository", bench.repository_id, default_branch=branch)
    await steer.approve(bench.conn, made.job_id, "ada")
    assert (await bench.row(made))["given_back"] == 0
    await rounds(bench, made, 1)
    assert await bench.state(made) == ("publishing", None)


async def test_waits_between_looks_grow_without_chance(bench: Bench) -> None:
    """A proxy that answers 404 for a forge that starts again has minutes before anything is parked."""
    made = await bench.job(PAINT)
    await rows.change(bench.conn, "repository", bench.repository_id, default_branch="trunk")
    waits = []
    for _ in range(TIMES - 1):
        await bench.work()
        query = "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM job WHERE id = %(id)s"
        waits.append(float(str(await rows.value(bench.conn, query, id=made.job_id))))
        await bench.wake(made)
    assert [round(wait / 60) for wait in waits] == [1, 2, 4]


async def away(bench: Bench, how: str) -> None:
    """Let the forge's git be away."""
    match how:
        case "refused":
            url = "http://127.0.0.1:1/a/b.git"
            await rows.change(bench.conn, "repository", bench.repository_id, clone_url=url)
        case _:
            await bench.loopback.fault(FaultPlan("GET", FETCH, "answer", status=int(how), times=0))


@pytest.mark.parametrize("how", ["refused", "503", "401"])
async def test_forge_that_is_away_parks_nothing(bench: Bench, how: str) -> None:
    """However often it cannot be reached, the job comes back by itself, and works as soon as the forge does."""
    made = await bench.job(PAINT)
    await away(bench, how)
    times = TIMES + 1
    await rounds(bench, made, times)
    row = await bench.row(made)
    assert (row["parked"], row["given_back"], row["attempts"]) == (None, 0, 0)
    assert await bench.outcomes(made) == ["workspace_error"] * times


@pytest.mark.long
async def test_outage_in_between_neither_counts_nor_forgives(bench: Bench) -> None:
    """Three looks at a repository that is gone, an outage, and a fourth: parked by the fourth, not by the outage."""
    made = await bench.job(PAINT)
    await bench.loopback.fault(FaultPlan("GET", FETCH, "answer", status=404, times=TIMES - 1))
    await bench.loopback.fault(FaultPlan("GET", FETCH, "answer", status=502, nth=TIMES, times=5))
    await bench.loopback.fault(FaultPlan("GET", FETCH, "answer", status=404, nth=TIMES + 5, times=0))
    await rounds(bench, made, TIMES - 1 + 5)
    assert (await bench.row(made))["parked"] is None
    await rounds(bench, made, 1)
    assert (await bench.row(made))["parked"] == "suspect"


async def test_cancel_of_an_unworkable_job_stands(bench: Bench) -> None:
    """A job that was asked to end meanwhile ends cancelled, not parked."""
    made = await bench.job(PAINT)
    await rows.change(bench.conn, "repository", bench.repository_id, default_branch="trunk")
    await rounds(bench, made, TIMES)
    assert await steer.cancel(bench.conn, made.job_id, "ada")
    assert (await bench.row(made))["state"] == "cancelled"
