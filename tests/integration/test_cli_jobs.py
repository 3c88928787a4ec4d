"""What operators see of jobs and lanes and do to them: real commands against a real database, exit codes included."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support import rows
from tests.support.cli import Desk, tireless
from tireless.store.db import Connection, jsonb


@pytest.fixture
def desk(tmp_path: Path, dsn: str) -> Desk:
    """An operator's desk on this test's database."""
    return Desk(tmp_path, dsn)


async def test_jobs_are_listed_and_shown(desk: Desk, conn: Connection) -> None:
    """ls shows what lives, --all and --issue what ended as well; show holds attempts and events; JSON says the same."""
    pending = await rows.job(conn)
    claimed = await rows.job(conn, state="claimed")
    ended = await rows.job(conn, state="delivered")
    listed = await desk.process("jobs", "ls", "--json")
    assert [each["id"] for each in listed.data["jobs"]] == [claimed.job_id, pending.job_id]
    everything = await desk("jobs", "ls", "--all", "--json")
    assert [each["id"] for each in everything.data["jobs"]] == [ended.job_id, claimed.job_id, pending.job_id]
    of_issue = await desk("jobs", "ls", "--issue", f"{rows.REPO}#{ended.number}", "--json")
    assert [each["id"] for each in of_issue.data["jobs"]] == [ended.job_id]
    text = (await desk("jobs", "ls")).out.splitlines()
    assert text[0].split() == ["JOB", "ISSUE", "KIND", "LANE", "STATE", "REASON", "ATTEMPT", "TITLE"]
    assert [line.split()[0] for line in text[1:]] == [str(claimed.job_id), str(pending.job_id)]
    shown = await desk("jobs", "show", claimed.job_id, "--json")
    assert shown.data["job"]["state"] == "claimed"
    assert [each["runner"] for each in shown.data["attempts"]] == ["r1"]
    assert "claimed by   r1 on h1" in (await desk("jobs", "show", claimed.job_id)).out


async def test_titles_cannot_steer_the_terminal(desk: Desk, conn: Connection) -> None:
    """Escape sequences in a title are not passed on, in no form of output but escaped JSON."""
    made = await rows.job(conn)
    await rows.change(conn, "issue", made.issue_id, title="\x1b[2J\x07evil\nline")
    for words in (["jobs", "ls"], ["jobs", "show", str(made.job_id)], ["jobs", "ls", "--json"]):
        said = await desk(*words)
        assert said.code == 0
        assert "\x1b" not in said.out
        assert "\x07" not in said.out
        assert "evil" in said.out


async def test_what_does_not_exist_is_told_with_4(desk: Desk, conn: Connection) -> None:
    """Unknown jobs, lanes and issues: exit 4, a sentence, the command that lists them, no traceback."""
    await rows.lane(conn)
    for told, text in (
        (["jobs", "ls", "--all"], "no job was made yet"),
        (["jobs", "ls", "--lane", rows.LANE], "no job"),
    ):
        said = await desk(*told)
        assert (said.code, text in said.out) == (0, True)
    commands: list[list[str | int]] = [
        ["jobs", "show", 99],
        ["jobs", "logs", 99],
        ["jobs", "cancel", 99],
        ["jobs", "rerun", 99],
        ["jobs", "approve", 99],
        ["jobs", "bump", 99],
        ["lanes", "hold", "nope", "--reason", "x"],
        ["lanes", "release", "nope"],
        ["events", "--job", 99],
        ["jobs", "ls", "--lane", "nope"],
        ["jobs", "ls", "--all", "--repository", "acme/nope"],
    ]
    for said, words in zip(await asyncio.gather(*(desk(*words) for words in commands)), commands, strict=True):
        assert said.code == 4, (words, said)
        assert any(f"tireless {each} ls" in said.err for each in ("jobs", "lanes", "repos")), words
        assert "Traceback" not in said.err


async def test_refusals_name_a_code_and_the_next_step(desk: Desk, conn: Connection) -> None:
    """What policy forbids ends with 7 and a stable reason code."""
    live = await rows.job(conn)
    ended = await rows.job(conn, state="delivered")
    await rows.lane(conn, "gone", configured=False)
    refused = {
        "already_live": await desk.process("jobs", "rerun", live.job_id),
        "already_ended": await desk("jobs", "cancel", ended.job_id),
        "not_parked": await desk("jobs", "approve", live.job_id),
        "lane_not_configured": await desk("jobs", "reroute", live.job_id, "gone"),
        "not_queued": await desk("jobs", "bump", ended.job_id),
    }
    for code, said in refused.items():
        assert said.code == 7, (code, said)
        assert said.err.startswith(f"tireless: refused ({code}): "), said.err


async def test_an_operator_moves_jobs(desk: Desk, conn: Connection) -> None:
    """cancel, rerun, approve, reroute and bump do what they say, in the name of the operator behind sudo."""
    first = await rows.job(conn)
    await rows.lane(conn, "other")
    assert (await desk("jobs", "bump", first.job_id)).code == 0
    assert (await desk("jobs", "reroute", first.job_id, "other", "--json")).data["lane"] == "other"
    job = await rows.row(conn, "job", first.job_id)
    assert (job["lane"], job["priority"]) == ("other", 1)
    assert (await desk("jobs", "cancel", first.job_id)).out == f"job {first.job_id} is cancelled\n"
    again = (await desk("jobs", "rerun", first.job_id, "--json")).data
    assert again["rerun_of"] == first.job_id
    assert (await rows.row(conn, "job", again["job"]))["state"] == "pending"
    parked = await rows.job(conn, state="waiting", parked="needs_input", attempts=1, claim_no=1)
    assert (await desk("jobs", "approve", parked.job_id, "--json")).data["state"] == "pending"
    who = {each["who"] for each in await rows.rows(conn, "SELECT who FROM job_event")}
    assert who == {"operator olga"}


async def test_a_lane_is_held_drained_and_released(desk: Desk, conn: Connection) -> None:
    """hold with reason and time, seen in ls; drain returns when nothing runs; release opens it again."""
    await rows.job(conn)
    held = await desk.process("lanes", "hold", rows.LANE, "--reason", "key is broken", "--for", "2h", "--json")
    assert held.code == 0
    hold = (await rows.rows(conn, "SELECT source, reason, held_by, until - now() AS left FROM lane_hold"))[0]
    assert (hold["source"], hold["reason"], hold["held_by"]) == ("operator", "key is broken", "olga")
    assert "1:5" in str(hold["left"])
    listed = await desk("lanes", "ls")
    assert "held by olga (operator) until" in listed.out
    assert "key is broken" in listed.out
    assert (await desk("lanes", "drain", rows.LANE)).out == f"lane {rows.LANE} is held and nothing of it runs\n"
    assert (await desk("lanes", "release", rows.LANE, "--json")).data["released"] is True
    again = await desk("lanes", "release", rows.LANE)
    assert (again.code, again.out) == (0, f"lane {rows.LANE} had no operator hold\n")
    assert "open" in (await desk("lanes", "ls")).out


LOOKS_AT_JOBS = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'job'::regclass
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
"""Does somebody wait to read the jobs of this database?"""


async def test_drain_waits_for_what_runs(desk: Desk, conn: Connection) -> None:
    """The command returns only after the last claim of the lane has ended."""
    claimed = await rows.job(conn, state="claimed")
    draining = asyncio.create_task(desk.process("lanes", "drain", rows.LANE))
    async with asyncio.timeout(rows.LIMIT_S):
        while not await rows.value(conn, "SELECT count(*) FROM lane_hold"):  # noqa: ASYNC110 - the command tells nobody
            await asyncio.sleep(0.05)
    end = (
        "UPDATE job SET state = 'cancelled', reason = 'operator', finished_at = now(), claimed_by = NULL, "
        "claimed_host = NULL, claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL WHERE id = %(id)s"
    )
    # It looks at the jobs, and having found that one runs it looks again.
    for change in (None, end):
        async with conn.transaction(), asyncio.timeout(rows.LIMIT_S):
            await conn.execute("LOCK TABLE job IN ACCESS EXCLUSIVE MODE")
            while not await rows.value(conn, LOOKS_AT_JOBS):
                assert not draining.done(), "it returned though a job of the lane runs"
            if change is not None:
                await conn.execute(change, {"id": claimed.job_id})
    assert (await asyncio.wait_for(draining, 90)).code == 0


async def test_output_is_shown_live_and_kept(desk: Desk, conn: Connection) -> None:
    """A running attempt's chunks, an ended one's head and tail; a job never started is told as such."""
    made = await rows.job(conn, state="claimed")
    for seq, text in enumerate(["one\n", "two\n"]):
        await conn.execute(
            "INSERT INTO output_chunk (attempt_id, seq, text) VALUES (%(id)s, %(seq)s, %(text)s)",
            {"id": made.attempt_id, "seq": seq, "text": text},
        )
    assert (await desk("jobs", "logs", made.job_id)).out == "one\ntwo\n"
    data = (await desk("jobs", "logs", made.job_id, "--json")).data
    assert (data["text"], data["ended"]) == ("one\ntwo\n", False)
    ended = await rows.job(conn, state="delivered")
    await rows.change(conn, "attempt", ended.attempt_id, output_head="the head\n", output_tail="the tail")
    text = (await desk("jobs", "logs", ended.job_id, "--follow")).out
    assert text.splitlines() == ["the head", "", "[… left out …]", "the tail"]
    never = await rows.job(conn)
    said = await desk("jobs", "logs", never.job_id)
    assert said.code == 4
    assert "not been started yet" in said.err


async def test_explain_says_what_is_in_the_way(desk: Desk, conn: Connection) -> None:
    """Every gate in order; the first that blocks with its code and next step; unknown issues end with 4."""
    made = await rows.job(conn, state="waiting", hold=True)
    said = await desk.process("explain", f"{rows.REPO}#{made.number}", "--json")
    assert said.code == 0
    assert (said.data["reason"], said.data["claimable"], said.data["job"]) == ("on_hold", False, made.job_id)
    codes = [gate["code"] for gate in said.data["gates"] if gate["passed"] is False]
    assert codes == ["on_hold", "no_runner"]
    assert said.data["as_of"]
    assert said.data["next_poll"]
    text = (await desk("explain", f"{rows.REPO}#{made.number}")).out
    assert re.search(r"^as of 2[-0-9: ]+ UTC; read again by the next poll, due at 2[-0-9: ]+ UTC$", text, re.MULTILINE)
    assert "NO  is it not on hold? (on_hold)" in text
    assert "Next: a person who may ask puts `tireless/hold` on and takes it off again" in text
    labels = jsonb([{"id": 1, "name": "tireless/hold", "exclusive": False}])
    await rows.change(conn, "issue", made.issue_id, labels=labels)
    assert "Next: take `tireless/hold` off" in (await desk("explain", f"{rows.REPO}#{made.number}")).out
    free = await rows.job(conn)
    text = (await desk("explain", f"{rows.REPO}#{free.number}")).out
    assert "nothing is in its way: number 1 in line, 0 runners of its lane alive" in text
    unknown = await desk("explain", "nobody/nothing#1", "--json")
    assert (unknown.code, unknown.data["reason"]) == (4, "unknown_repository")


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "acme/widget"],
        ["explain", "acme#7"],
        ["jobs", "show", "seven"],
        ["jobs", "show", "9" * 30],
        ["jobs", "logs", "7", "--attempt", "9" * 30],
        ["explain", "acme/widget#99999999999"],
        ["jobs", "ls", "--state", "sleeping"],
        ["lanes", "hold", "claude"],
        ["lanes", "hold", "claude", "--reason", "x", "--for", "600"],
        ["jobs", "nonsense"],
    ],
)
async def test_a_wrong_command_line_is_told_with_2(desk: Desk, words: list[str]) -> None:
    """Words that make no sense, and numbers that no database holds, end with 2 and say what would make some."""
    said = await desk(*words)
    assert said.code == 2, said
    assert "Traceback" not in said.err
    assert said.err


async def test_overviews_print_and_are_empty_in_words(desk: Desk, conn: Connection) -> None:
    """runners, repos, stats and events on an empty database say so; with rows they show them."""
    texts = [
        await desk(*words) for words in (["runners", "ls"], ["repos", "ls"], ["events"], ["jobs", "ls"], ["stats"])
    ]
    assert [each.code for each in texts] == [0] * 5
    assert "no runner was seen" in texts[0].out
    assert "no repository is watched" in texts[1].out
    assert "nothing has happened yet" in texts[2].out
    assert "no job lives" in texts[3].out
    made = await rows.job(conn)
    await desk("jobs", "bump", made.job_id)
    assert (await desk("stats", "--json")).data["pending"] == 1
    assert [each["repo"] for each in (await desk("repos", "ls", "--json")).data["repositories"]] == [rows.REPO]
    (event,) = (await desk("events", "--json")).data["events"]
    assert (event["what"], event["who"], event["job_id"]) == ("bump", "operator olga", made.job_id)


async def test_a_database_that_is_behind_is_told(tmp_path: Path, server_url: str) -> None:
    """Commands on a database without the schema end with 3 and say `tireless migrate`."""
    env = {"TIRELESS_DATABASE__URL": server_url}
    said = await tireless("jobs", "ls", home=tmp_path, env=env)
    assert said.code == 3
    assert "run `tireless migrate`" in said.err
