"""A lane that is held, as its operator meets it: the reason, until when, and the very command that ends the hold."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.cli import Desk
from tireless.domain.job import Parked
from tireless.store.claim import RunnerId, show_runner
from tireless.store.db import Connection

UNTIL = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
RELEASE = f"tireless lanes release {rows.LANE}"


@pytest.fixture
def desk(tmp_path: Path, dsn: str) -> Desk:
    """An operator's desk on this test's database."""
    return Desk(tmp_path, dsn)


async def held(conn: Connection, source: str, *, host: str = "", reason: str = "no such command: codex") -> None:
    """Hold the lane until UNTIL."""
    values = {"source": source, "host": host, "reason": reason, "until": UNTIL, "held_by": "runner r1"}
    await rows.insert(conn, "lane_hold", lane=rows.LANE, **values)


async def alive(conn: Connection, *hosts: str) -> None:
    """A runner of the lane on each host shows itself."""
    for host in hosts:
        await show_runner(conn, RunnerId(f"of-{host}", host, uuid4()), lanes=[rows.LANE], slots=1, version="1")


async def test_a_lane_that_no_host_of_its_runners_can_start_is_in_the_way(desk: Desk, conn: Connection) -> None:
    """explain says why, until when and what to do, and not that nothing is in the way."""
    made = await rows.job(conn)
    await held(conn, "setup", host="vm")
    await alive(conn, "vm")
    said = (await desk("explain", f"{rows.REPO}#{made.number}")).out
    assert "nothing is in its way" not in said
    for words in ("lane_held: ", "`vm`: no such command: codex", "2031-02-03 04:05:06 UTC", "correct it"):
        assert words in said
    assert f"`{RELEASE} --source setup --host vm`" in said
    data = (await desk("explain", f"{rows.REPO}#{made.number}", "--json")).data
    assert (data["claimable"], data["reason"], data["held_hosts"]) == (False, "lane_held", ["vm"])


async def test_a_host_that_cannot_start_the_lane_beside_one_that_can_is_told(desk: Desk, conn: Connection) -> None:
    """The job has its place in line; the hold is named with reason, end and command. So it is where no runner lives."""
    made = await rows.job(conn)
    await held(conn, "setup", host="vm")
    for hosts, runners in (((), "0 runners"), (("vm", "h2"), "2 runners")):
        await alive(conn, *hosts)
        said = (await desk("explain", f"{rows.REPO}#{made.number}")).out
        assert f"nothing is in its way: number 1 in line, {runners} of its lane alive" in said
        assert "the lane cannot be started on vm until 2031-02-03 04:05:06 UTC: no such command: codex" in said
        assert f"correct it there, then `{RELEASE} --source setup --host vm`" in said


@pytest.mark.parametrize("source", ["operator", "quota", "breaker"])
async def test_a_lane_held_everywhere_names_the_command_that_ends_it(desk: Desk, conn: Connection, source: str) -> None:
    """Typed as it is told, it ends the hold, and nothing is in the way any more."""
    made = await rows.job(conn)
    await held(conn, source)
    said = (await desk("explain", f"{rows.REPO}#{made.number}")).out
    told = re.search(
        rf"^lane_held: The lane `{rows.LANE}` is held \({source}\).* `tireless ([^`]*)`", said, re.MULTILINE
    )
    assert told is not None, said
    assert (await desk(*told[1].split())).code == 0
    assert "nothing is in its way" in (await desk("explain", f"{rows.REPO}#{made.number}")).out


async def test_of_several_hosts_that_cannot_start_it_each_is_named(desk: Desk, conn: Connection) -> None:
    """With its own reason; one command releases them all."""
    made = await rows.job(conn)
    await held(conn, "setup", host="vm")
    await held(conn, "setup", host="h2", reason="no git")
    await alive(conn, "vm", "h2")
    said = (await desk("explain", f"{rows.REPO}#{made.number}")).out
    assert "`h2`: no git" in said
    assert "`vm`: no such command: codex" in said
    assert f"then `{RELEASE} --source setup`;" in said


async def test_the_doctor_remarks_on_every_hold(desk: Desk, conn: Connection) -> None:
    """Of a lane that is configured: source, host, reason, end, and the command that ends it."""
    await rows.lane(conn)
    await rows.lane(conn, "gone", configured=False)
    await rows.insert(conn, "lane_hold", lane="gone", source="operator", reason="x", held_by="ada")
    await rows.insert(conn, "lane_hold", lane=rows.LANE, source="operator", reason="a look", held_by="ada")
    for source, host in (("setup", "vm"), ("quota", ""), ("breaker", "")):
        await held(conn, source, host=host)
    findings = (await desk("doctor", "--json")).data["findings"]
    told = {each["text"] for each in findings if each["code"] == "lane_held"}
    assert {each["subject"] for each in findings if each["code"] == "lane_held"} == {f"lane {rows.LANE}"}
    by = "by runner r1"
    until = "until 2031-02-03 04:05:06 UTC: no such command: codex"
    assert told == {
        f"held by ada (operator): a look; to end it: `{RELEASE}`",
        f"held on vm {by} (setup) {until}; correct it there, then `{RELEASE} --source setup --host vm`",
        f"held {by} (quota) {until}; to end it: `{RELEASE} --source quota`",
        f"held {by} (breaker) {until}; to end it: `{RELEASE} --source breaker`",
    }


async def test_a_release_names_the_holds_that_stay(desk: Desk, conn: Connection) -> None:
    """Whether it ended one or found none, each with the command that ends it."""
    await rows.lane(conn)
    await held(conn, "setup", host="vm")
    await held(conn, "quota")
    none = await desk("lanes", "release", rows.LANE)
    assert none.code == 0
    assert none.out.startswith(f"lane {rows.LANE} had no operator hold; it stays held:\n")
    for command in (f"`{RELEASE} --source setup --host vm`", f"`{RELEASE} --source quota`"):
        assert command in none.out
    data = (await desk("lanes", "release", rows.LANE, "--json")).data
    assert (data["released"], [each["source"] for each in data["holds"]]) == (False, ["quota", "setup"])
    ended = (await desk("lanes", "release", rows.LANE, "--source", "quota")).out
    assert ended.startswith(f"lane {rows.LANE}: the quota hold is gone; it stays held:\n")
    assert "--source quota" not in ended


async def test_setup_holds_are_released_on_every_host_or_on_one(desk: Desk, conn: Connection) -> None:
    """Without --host all of them; a host that has none is told as such; --host goes with no other source."""
    await rows.lane(conn)
    for host in ("h1", "h2", "h3"):
        await held(conn, "setup", host=host)
    one = (await desk("lanes", "release", rows.LANE, "--source", "setup", "--host", "h2")).out
    assert one.startswith(f"lane {rows.LANE}: the setup hold on h2 is gone; it stays held:\n")
    wrong = (await desk("lanes", "release", rows.LANE, "--source", "setup", "--host", "h2")).out
    assert wrong.startswith(f"lane {rows.LANE} had no setup hold on h2; it stays held:\n")
    refused = await desk("lanes", "release", rows.LANE, "--host", "h1")
    assert (refused.code, "--source setup" in refused.err) == (2, True)
    every = await desk("lanes", "release", rows.LANE, "--source", "setup")
    assert (every.code, every.out) == (0, f"lane {rows.LANE}: the setup hold on h1, h3 is gone\n")
    assert await rows.value(conn, "SELECT count(*) FROM lane_hold") == 0
    again = (await desk("lanes", "release", rows.LANE, "--source", "setup")).out
    assert again == f"lane {rows.LANE} had no setup hold\n"


@pytest.mark.parametrize("parked", list(Parked))
async def test_explain_of_a_parked_job_names_the_operators_command(
    desk: Desk, conn: Connection, parked: Parked
) -> None:
    """As the comment does."""
    issue_id = await rows.issue(conn, approved=parked is not Parked.NEEDS_APPROVAL)
    made = await rows.job(conn, issue_id=issue_id, state="waiting", parked=parked.value, attempts=1, claim_no=1)
    said = (await desk("explain", f"{rows.REPO}#{made.number}")).out
    assert f"; or an operator runs `tireless jobs approve {made.job_id}`." in said


@pytest.mark.parametrize("command", ["show", "logs", "cancel", "rerun", "approve", "reroute", "bump"])
async def test_who_names_an_issue_where_a_job_is_wanted_is_told_where_its_number_is(desk: Desk, command: str) -> None:
    """With the command that lists the jobs of this very issue."""
    said = await desk("jobs", command, "alice/proj#1", *(["shell"] if command == "reroute" else []))
    assert said.code == 2
    assert "'alice/proj#1' is not the number of a job" in said.err
    assert "`tireless jobs ls --issue alice/proj#1`" in said.err
    nonsense = await desk("jobs", command, "seven", *(["shell"] if command == "reroute" else []))
    assert (nonsense.code, "see `tireless jobs ls`" in nonsense.err) == (2, True)


async def test_one_run_is_one_run(desk: Desk, conn: Connection) -> None:
    """And none are none, as it stands beside what may be spent."""
    for state, runs in (("pending", "0 runs"), ("delivered", "1 run")):
        made = await rows.job(conn, state=state)
        await rows.lane(conn, max_usd=5)
        assert f" {runs}, 0 of 5 USD" in (await desk("jobs", "show", made.job_id)).out
