"""Two forges, each with a repository of one name: what names an issue says of which forge, and finds only that one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.requests import Request

from tests.support import rows
from tests.support.cli import Desk
from tireless.redact import Redactor
from tireless.store.db import Connection, Pool
from tireless.web.pages import Pages


@dataclass(frozen=True, slots=True)
class Two:
    """The same issue of the same repository on two forges: their jobs."""

    main: int
    fj: int


def request(**params: str) -> Request:
    """A request with these parts of its path."""
    return Request({"type": "http", "method": "GET", "path": "/", "headers": [], "path_params": params})


@pytest.fixture
def desk(tmp_path: Path, dsn: str) -> Desk:
    """An operator's desk on this test's database."""
    return Desk(tmp_path, dsn)


@pytest.fixture
async def two(conn: Connection) -> Two:
    """`main` and `fj`, both with acme/widget."""
    found = []
    for name in ("main", "fj"):
        await rows.forge(conn, name)
        await conn.execute("UPDATE repository SET tracked = false")
        repository_id = await rows.repository(conn, forge=name)
        found.append((await rows.job(conn, number=2, state="waiting", hold=True)).job_id)
        assert (await rows.row(conn, "job", found[-1]))["repository_id"] == repository_id
        await rows.insert(conn, "job_event", job_id=found[-1], who="intake", what="enqueue", to_state="waiting")
    await conn.execute("UPDATE repository SET tracked = true")
    return Two(*found)


async def test_jobs_of_a_forges_issue_or_repository_are_those_of_that_forge(desk: Desk, two: Two) -> None:
    """And without a forge those of both."""
    both = [two.fj, two.main]
    for words, jobs in (
        (["--issue", f"main:{rows.REPO}#2"], [two.main]),
        (["--issue", f"fj:{rows.REPO}#2"], [two.fj]),
        (["--issue", f"{rows.REPO}#2"], both),
        (["--repository", f"main:{rows.REPO}"], [two.main]),
        (["--repository", f"fj:{rows.REPO}", "--all"], [two.fj]),
        (["--repository", rows.REPO], both),
    ):
        said = await desk("jobs", "ls", *words, "--json")
        assert [each["id"] for each in said.data["jobs"]] == jobs, words


async def test_a_forge_that_does_not_know_a_repository_is_told_with_4(desk: Desk, two: Two, conn: Connection) -> None:
    """Though another forge has one of that name."""
    await rows.forge(conn, "third")
    for forge in ("third", "nosuch"):
        for words in (["--issue", f"{forge}:{rows.REPO}#2"], ["--repository", f"{forge}:{rows.REPO}"]):
            said = await desk("jobs", "ls", *words)
            assert said.code == 4
            assert f"{forge}:{rows.REPO} is not known here: see `tireless repos ls`" in said.err


async def test_wherever_an_issue_is_named_its_forge_is(desk: Desk, two: Two) -> None:
    """As the commands take it; the JSON keeps repository and forge apart."""
    name = f"fj:{rows.REPO}#2"
    for words in (["jobs", "ls"], ["jobs", "show", two.fj], ["events"], ["explain", name]):
        said = await desk(*words)
        assert said.code == 0
        assert name in said.out, words
    for words in (["jobs", "ls"], ["events"]):
        assert f"main:{rows.REPO}#2" in (await desk(*words)).out
    events = (await desk("events", "--job", two.fj, "--json")).data["events"]
    assert {(each["forge"], each["repo"], each["issue"]) for each in events} == {("fj", rows.REPO, 2)}
    explained = (await desk("explain", name, "--json")).data
    assert (explained["forge"], explained["issue"]) == ("fj", f"{rows.REPO}#2")


async def test_the_pages_name_the_forge(two: Two, pool: Pool) -> None:
    """In the list of jobs and on the page of one."""
    pages = Pages(pool, installation="test place", redactor=Redactor([]))
    for answer in (await pages.index(request()), await pages.job(request(job=str(two.fj)))):
        assert f"fj:{rows.REPO}#2" in bytes(answer.body).decode()


async def test_with_one_forge_nobody_names_it(desk: Desk, conn: Connection, pool: Pool) -> None:
    """There is nothing to tell apart."""
    made = await rows.job(conn)
    await rows.insert(conn, "job_event", job_id=made.job_id, who="intake", what="enqueue", to_state="pending")
    for words in (["jobs", "ls"], ["jobs", "show", made.job_id], ["events"], ["explain", f"{rows.REPO}#{made.number}"]):
        said = await desk(*words)
        assert rows.REPO in said.out
        assert f":{rows.REPO}" not in said.out, words
    pages = Pages(pool, installation="test place", redactor=Redactor([]))
    shown = bytes((await pages.index(request())).body).decode()
    assert rows.REPO in shown
    assert f":{rows.REPO}" not in shown
