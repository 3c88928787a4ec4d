"""The mirror against a real database and the loopback forge: labels and comment look like the rows, and stay so."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from psycopg.types.json import Jsonb

from tests.support import rows
from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import FaultPlan
from tests.support.telling import *  # noqa: F403  fixtures
from tests.support.telling import VOICE, Both, drain
from tireless.domain.comments import TWIN, Voice, tell
from tireless.domain.job import Status
from tireless.domain.marker import Marker, read_marker
from tireless.store import tell as store
from tireless.store.comparing import forge_shows
from tireless.store.explaining import explain

LABELS = ("tireless/go", "tireless/implement")


async def queued(both: Both) -> tuple[rows.Made, int]:
    """An opted-in issue with a pending job, on both sides."""
    issue_id, number = await both.issue(labels=LABELS)
    return await rows.job(both.conn, both.repo.path, issue_id=issue_id), number


async def shown(both: Both, number: int) -> tuple[list[str], str]:
    """The status labels of an issue, and its only status comment."""
    (comment,) = await both.status_comments(number)
    return [name for name in await both.label_names(number) if "/status/" in name], comment.body


# ------------------------------------------------------------------------------------------------ what is shown


async def test_a_job_is_shown_as_label_and_comment(both: Both) -> None:
    """One status label and one comment, whose text is what comments.tell says of the rows, and nothing else changes."""
    made, number = await queued(both)
    await drain(both.mirror().tick)
    labels, body = await shown(both, number)
    assert labels == ["tireless/status/queued"]
    assert body == tell(await store.picture(both.conn, made.issue_id), VOICE).comment
    assert await both.label_names(number) == sorted([*LABELS, "tireless/status/queued"])
    row = await both.mirror_row(made.issue_id)
    assert (row["told"], row["told_status"], row["take_token"]) == (row["changed"], "queued", None)


async def test_each_state_has_its_one_label_and_the_comment_is_edited(both: Both) -> None:
    """From queued to delivered there is always one status label, and the one comment is edited, never made anew."""
    made, number = await queued(both)
    seen = []
    for change in (
        {"state": "waiting", "parked": "needs_input", "question": "Which blue?"},
        {"state": "waiting", "parked": None},
        {"state": "failed", "reason": "rejected", "finished_at": datetime.now(UTC)},
    ):
        await rows.change(both.conn, "job", made.job_id, **change)
        await drain(both.mirror().tick)
        labels, body = await shown(both, number)
        seen.append((labels, "Which blue?" in body))
    assert seen == [
        (["tireless/status/parked"], True),
        (["tireless/status/queued"], False),
        (["tireless/status/failed"], False),
    ]
    assert len(await both.forge.comments(both.repo, number)) == 1


async def test_a_storm_of_changes_is_told_once(both: Both) -> None:
    """Many changes between two ticks cost one telling, of the last of them."""
    made, number = await queued(both)
    for _ in range(10):
        await rows.change(both.conn, "job", made.job_id, state="waiting", hold=True)
        await rows.change(both.conn, "job", made.job_id, state="waiting", hold=False)
    before = both.loopback.last_request
    await drain(both.mirror().tick)
    writes = [each for each in both.loopback.requests(after=before) if each.method != "GET"]
    assert len(writes) == 2
    assert (await shown(both, number))[0] == ["tireless/status/queued"]


async def test_telling_again_what_is_shown_sends_nothing(both: Both) -> None:
    """A due issue that looks as it should costs reads only, and the mirror's own writes make nothing due."""
    made, _ = await queued(both)
    mirror = both.mirror()
    await drain(mirror.tick)
    assert not await mirror.tick()
    await both.touch(made.issue_id)
    before = both.loopback.last_request
    await drain(mirror.tick)
    assert {each.method for each in both.loopback.requests(after=before)} == {"GET"}


async def test_labels_are_created_when_they_are_missing(both: Both) -> None:
    """A status label whose definition somebody deleted is created again and put on, once, also by two mirrors."""
    for name, label_id in both.labels.items():
        if "/status/" in name:
            await both.stage.alice.delete_label_definition(both.repo.path, label_id)
    numbers = [(await queued(both))[1] for _ in range(3)]
    await asyncio.gather(*(drain(both.mirror().tick) for _ in range(2)))
    for number in numbers:
        assert (await shown(both, number))[0] == ["tireless/status/queued"]
    names = [label.name for label in await both.forge.labels(both.repo)]
    assert names.count("tireless/status/queued") == 1


async def test_a_label_made_again_under_another_id_is_found(both: Both) -> None:
    """The ids a mirror remembers go stale: the new one is looked up and used."""
    mirror = both.mirror()
    await queued(both)
    await drain(mirror.tick)
    await both.stage.alice.delete_label_definition(both.repo.path, both.labels["tireless/status/queued"])
    _, number = await queued(both)
    await drain(mirror.tick)
    assert (await shown(both, number))[0] == ["tireless/status/queued"]


# ------------------------------------------------------------------------------------------------ without a job


async def test_a_plain_issue_gets_nothing(both: Both) -> None:
    """An issue without job, refusal or label of ours is neither labelled nor commented on, even when it is due."""
    issue_id, number = await both.issue()
    await both.touch(issue_id)
    await drain(both.mirror().tick)
    assert await both.label_names(number) == []
    assert await both.forge.comments(both.repo, number) == ()


async def test_a_refusal_is_told_where_a_label_of_ours_stands(both: Both) -> None:
    """Why nothing is done is said in a comment on an issue that carries our label; the label itself is left alone."""
    issue_id, number = await both.issue(labels=["tireless/go"])
    await rows.change(both.conn, "issue", issue_id, triage_code="no_mode")
    await drain(both.mirror().tick)
    (comment,) = await both.status_comments(number)
    assert "`no_mode`" in comment.body
    assert "`tireless/implement`" in comment.body
    assert await both.label_names(number) == ["tireless/go"]


async def test_a_refusal_without_a_label_of_ours_is_not_told(both: Both) -> None:
    """The labels went before the mirror came: there is nobody left to answer."""
    issue_id, number = await both.issue()
    await rows.change(both.conn, "issue", issue_id, triage_code="no_mode")
    await drain(both.mirror().tick)
    assert await both.forge.comments(both.repo, number) == ()


async def test_an_outdated_refusal_is_unsaid(both: Both) -> None:
    """When the labels are gone the comment that refused them says that nothing is asked any more."""
    issue_id, number = await both.issue(labels=["tireless/go"])
    await rows.change(both.conn, "issue", issue_id, triage_code="no_mode")
    await drain(both.mirror().tick)
    await both.stage.alice.remove_label(both.repo.path, number, both.labels["tireless/go"])
    await rows.change(both.conn, "issue", issue_id, triage_code=None)
    await drain(both.mirror().tick)
    (comment,) = await both.status_comments(number)
    assert comment.body.startswith("Nothing is asked of tireless here.")


async def test_a_plans_child_is_not_told_what_its_body_says(both: Both) -> None:
    """A child that waits for a person's opt-in gets no comment on top of its own body."""
    plan, _ = await queued(both)
    issue_id, number = await both.issue(labels=["tireless/implement"], triage_code="is_child_waiting")
    await rows.child(both.conn, plan.issue_id, "a", issue_id=issue_id, number=number)
    await both.touch(issue_id)
    await drain(both.mirror().tick)
    assert await both.forge.comments(both.repo, number) == ()


async def test_a_child_of_a_forgotten_plan_is_not_told_either(both: Both) -> None:
    """After the database was lost the bot's own hidden line says it; copied by a person into his issue it does not."""
    made = await both.plan("schema", "page", kind="plan")
    await drain(both.publisher().tick)
    (schema, page) = await both.bot_issues()
    await both.conn.execute("UPDATE child SET ended_at = clock_timestamp(), ended_reason = 'gone', issue_id = NULL")
    for each in (schema, page):
        (known,) = await rows.rows(both.conn, "SELECT id FROM issue WHERE number = %(n)s", n=each.number)
        await rows.change(both.conn, "issue", known["id"], triage_code="no_opt_in")
    copied = await both.stage.alice.create_issue(both.repo.path, "Mine", schema.body)
    await both.stage.alice.add_labels(both.repo.path, copied, both.labels["tireless/implement"])
    await rows.issue(both.conn, both.repo.path, copied, triage_code="no_opt_in")
    await drain(both.mirror().tick)
    told = {number: len(await both.status_comments(number)) for number in (schema.number, page.number, copied)}
    assert told == {schema.number: 0, page.number: 0, copied: 1}
    assert len(await both.status_comments(made.number)) == 1


# ------------------------------------------------------------------------------------------------ what people do


@pytest.mark.parametrize("wrong", [s for s in Status if s is not Status.QUEUED])
async def test_a_status_label_set_by_hand_is_repaired(both: Both, wrong: Status) -> None:
    """Whatever status label a person puts on, the right one is there alone after the next telling."""
    made, number = await queued(both)
    await drain(both.mirror().tick)
    await both.stage.alice.add_labels(both.repo.path, number, both.labels[f"tireless/status/{wrong}"])
    assert await forge_shows(both.conn, made.issue_id, [wrong.value])
    await drain(both.mirror().tick)
    assert (await shown(both, number))[0] == ["tireless/status/queued"]
    assert (await both.mirror_row(made.issue_id))["repairs"] == 1


async def test_what_intake_sees_of_the_mirrors_own_writing_makes_nothing_due(both: Both) -> None:
    """A snapshot with the status label that was told wakes nobody; one with another, with two or with none does."""
    made, _ = await queued(both)
    await drain(both.mirror().tick)
    assert not await forge_shows(both.conn, made.issue_id, ["queued"])
    for statuses in ([], ["running"], ["queued", "running"]):
        assert await forge_shows(both.conn, made.issue_id, statuses)
        assert not await forge_shows(both.conn, made.issue_id, statuses), "due already"
        await drain(both.mirror().tick)


async def test_two_status_labels_become_one(both: Both) -> None:
    """Labels that are not exclusive, as an old installation left them, end up as one."""
    made, number = await queued(both)
    for name in ("tireless/status/running", "tireless/status/failed"):
        await both.stage.alice.delete_label_definition(both.repo.path, both.labels[name])
        label_id = await both.stage.alice.create_label(both.repo.path, name, exclusive=False)
        await both.stage.alice.add_labels(both.repo.path, number, label_id)
    await drain(both.mirror().tick)
    assert (await shown(both, number))[0] == ["tireless/status/queued"]
    assert (await both.mirror_row(made.issue_id))["error"] is None


async def test_a_deleted_comment_is_made_once_more(both: Both) -> None:
    """A person deletes the status comment: the next telling makes one, not two."""
    made, number = await queued(both)
    await drain(both.mirror().tick)
    (comment,) = await both.status_comments(number)
    await both.stage.alice.api("DELETE", f"/repos/{both.repo.path}/issues/comments/{comment.id}")
    await both.touch(made.issue_id)
    await drain(both.mirror().tick)
    (again,) = await both.status_comments(number)
    assert again.id != comment.id
    assert (await both.mirror_row(made.issue_id))["comment_id"] == again.id


async def test_an_edited_comment_is_put_right(both: Both) -> None:
    """Whatever a person makes of the bot's comment, marker included, the same comment carries the right text again."""
    made, number = await queued(both)
    await drain(both.mirror().tick)
    (comment,) = await both.status_comments(number)
    path = f"/repos/{both.repo.path}/issues/comments/{comment.id}"
    await both.stage.alice.api("PATCH", path, {"body": "vandalised"})
    await both.touch(made.issue_id)
    await drain(both.mirror().tick)
    (again,) = await both.status_comments(number)
    assert (again.id, again.body) == (comment.id, comment.body)


async def test_a_strangers_marker_is_no_comment_of_ours(both: Both) -> None:
    """A comment with our very marker by anybody but the bot is neither edited nor taken for ours."""
    _, number = await queued(both)
    forged = f"hello\n\n{Marker('tireless/', number, 999_999)}"
    await both.stage.mallory.api("POST", f"/repos/{both.repo.path}/issues/{number}/comments", {"body": forged})
    await drain(both.mirror().tick)
    theirs, ours = await both.forge.comments(both.repo, number)
    assert theirs.body == forged
    marker = read_marker(ours.body)
    assert marker is not None
    assert marker.answered_event == 0


async def test_a_fight_over_a_label_is_given_up_for_an_hour(both: Both) -> None:
    """After six repairs within an hour the mirror leaves the label alone; a change of state is still told."""
    made, number = await queued(both)
    await drain(both.mirror().tick)
    for _ in range(8):
        await both.stage.alice.add_labels(both.repo.path, number, both.labels["tireless/status/failed"])
        await forge_shows(both.conn, made.issue_id, ["failed"])
        await drain(both.mirror().tick)
    row = await both.mirror_row(made.issue_id)
    assert (row["contested"], row["repairs"]) == (True, 6)
    assert (await shown(both, number))[0] == ["tireless/status/failed"]
    await rows.change(both.conn, "job", made.job_id, state="waiting", parked="suspect")
    await drain(both.mirror().tick)
    assert (await shown(both, number))[0] == ["tireless/status/parked"]
    await both.conn.execute("UPDATE mirror SET repairs_since = repairs_since - interval '2 hours'")
    await both.stage.alice.add_labels(both.repo.path, number, both.labels["tireless/status/failed"])
    await forge_shows(both.conn, made.issue_id, ["failed"])
    await drain(both.mirror().tick)
    assert (await shown(both, number))[0] == ["tireless/status/parked"]
    assert not (await both.mirror_row(made.issue_id))["contested"]


async def test_a_fight_is_taken_up_again_after_an_hour(both: Both) -> None:
    """Also where the job has ended and nobody touches the issue any more: the last word is the row's."""
    made, number = await queued(both)
    await rows.change(both.conn, "job", made.job_id, state="failed", reason="rejected", finished_at=datetime.now(UTC))
    await drain(both.mirror().tick)
    for _ in range(7):
        await both.stage.alice.add_labels(both.repo.path, number, both.labels["tireless/status/running"])
        await forge_shows(both.conn, made.issue_id, ["running"])
        await drain(both.mirror().tick)
    assert (await both.mirror_row(made.issue_id))["contested"]
    await drain(both.mirror().tick)
    assert (await shown(both, number))[0] == ["tireless/status/running"]
    await both.conn.execute(
        "UPDATE mirror SET repairs_since = repairs_since - interval '61 minutes',"
        " told_at = told_at - interval '61 minutes'"
    )
    await drain(both.mirror().tick)
    assert (await shown(both, number))[0] == ["tireless/status/failed"]
    assert not (await both.mirror_row(made.issue_id))["contested"]


async def test_what_was_told_long_ago_is_compared_again(both: Both) -> None:
    """Issues with a live job come up by themselves, so that a deleted comment comes back without anybody's word."""
    _, number = await queued(both)
    await drain(both.mirror().tick)
    (comment,) = await both.status_comments(number)
    await both.stage.alice.api("DELETE", f"/repos/{both.repo.path}/issues/comments/{comment.id}")
    assert not await both.mirror(recheck_s=3600.0).tick()
    await both.conn.execute("UPDATE mirror SET told_at = told_at - interval '2 hours'")
    await drain(both.mirror(recheck_s=3600.0).tick)
    assert len(await both.status_comments(number)) == 1


# ------------------------------------------------------------------------------------------------ other databases


async def test_another_installations_comment_keeps_us_away(both: Both) -> None:
    """Two installations with one bot user do not fight: the one that finds the other's marker writes nothing there."""
    made, number = await queued(both)
    await drain(both.mirror().tick)
    body = (await shown(both, number))[1]
    await rows.change(both.conn, "job", made.job_id, state="waiting", hold=True)
    before = both.loopback.last_request
    await drain(both.mirror(voice=Voice(installation="other")).tick)
    assert {each.method for each in both.loopback.requests(after=before)} == {"GET"}
    assert (await shown(both, number))[1] == body
    assert "the installation tireless/" in str((await both.mirror_row(made.issue_id))["error"])
    (said,) = (await explain(both.conn, both.repo.path, made.number, scheme=VOICE.scheme)).warnings
    assert said.startswith("Its status label and comment are not kept up to date: the installation tireless/ keeps the")


async def test_a_fresh_database_finds_the_comment_and_keeps_its_marks(both: Both) -> None:
    """After a loss of the database the old comment is edited, not doubled, and its answered marks never go back."""
    made, number = await queued(both)
    asked = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    await rows.change(both.conn, "issue", made.issue_id, answered_event=77, answered_time=asked)
    await rows.change(both.conn, "job", made.job_id, state="cancelled", reason="operator", finished_at=asked)
    await drain(both.mirror().tick)
    assert read_marker((await shown(both, number))[1]) == Marker("tireless/", number, 77, asked)
    await both.conn.execute("DELETE FROM mirror")
    await rows.change(
        both.conn, "issue", made.issue_id, answered_event=5, answered_time=datetime(2025, 1, 1, tzinfo=UTC)
    )
    await drain(both.mirror().tick)
    assert read_marker((await shown(both, number))[1]) == Marker("tireless/", number, 77, asked)


async def test_what_was_not_worked_on_yet_is_not_marked_answered(both: Both) -> None:
    """While a job waits or runs its comment keeps the marks from before, so that a fresh database makes it again."""
    made, number = await queued(both)
    asked = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    await rows.change(both.conn, "issue", made.issue_id, answered_event=77, answered_time=asked)
    await drain(both.mirror().tick)
    assert read_marker((await shown(both, number))[1]) == Marker("tireless/", number)
    await rows.change(both.conn, "job", made.job_id, state="waiting", hold=True)
    await drain(both.mirror().tick)
    assert read_marker((await shown(both, number))[1]) == Marker("tireless/", number)
    await rows.change(both.conn, "job", made.job_id, state="cancelled", reason="operator", finished_at=asked)
    await drain(both.mirror().tick)
    assert read_marker((await shown(both, number))[1]) == Marker("tireless/", number, 77, asked)


async def test_a_fresh_database_unsays_nothing(both: Both) -> None:
    """A label and a comment about a job this database does not know are left as they stand."""
    made, number = await queued(both)
    await drain(both.mirror().tick)
    before = await shown(both, number)
    await both.conn.execute("DELETE FROM mirror")
    await both.conn.execute("DELETE FROM job")
    await both.touch(made.issue_id)
    await drain(both.mirror().tick)
    assert await shown(both, number) == before


async def test_twin_comments_become_one(both: Both) -> None:
    """Two status comments of the bot: the older one is kept up to date, the other says so and is no status any more."""
    made, number = await queued(both)
    await drain(both.mirror().tick)
    (comment,) = await both.status_comments(number)
    twin = await both.forge.write_comment(both.repo, number, comment.body)
    await both.conn.execute("UPDATE mirror SET comment_id = NULL")
    await both.touch(made.issue_id)
    await drain(both.mirror().tick)
    assert [each.id for each in await both.status_comments(number)] == [comment.id]
    assert [each.body for each in await both.forge.comments(both.repo, number) if each.id == twin.id] == [TWIN]


# ------------------------------------------------------------------------------------------------ what goes wrong

MODES = {
    "killed before its effect": FaultPlan("*", ".", "block"),
    "killed after its effect": FaultPlan("*", ".", "block", when="after"),
    "cut off before its effect": FaultPlan("*", ".", "cut"),
    "cut off after its effect": FaultPlan("*", ".", "cut", when="after"),
    "answered 500 after its effect": FaultPlan("*", ".", "answer", when="after", status=500),
}


@pytest.mark.parametrize("mode", MODES)
async def test_one_comment_and_one_label_whatever_happens(both: Both, mode: str) -> None:
    """Killed or cut off at every request of a first telling: one comment and one status label in the end."""
    plan, nth, struck = MODES[mode], 0, True
    while struck:
        nth += 1
        made, number = await queued(both)
        mirror = both.mirror()
        here = FaultPlan(plan.method, plan.path, plan.do, when=plan.when, nth=nth, status=plan.status)
        if plan.do == "block":
            struck = await both.killed_at(mirror.tick, here)
        else:
            fault = await both.loopback.fault(here)
            await mirror.tick()
            struck = fault.fault.applied > 0
            await fault.drop()
        await both.later()
        await drain(both.mirror().tick)
        labels, _ = await shown(both, number)
        assert labels == ["tireless/status/queued"], f"request {nth}"
        row = await both.mirror_row(made.issue_id)
        assert row["told"] == row["changed"]
    assert nth > 6


async def test_an_unanswered_comment_is_waited_for(both: Both) -> None:
    """A create without an answer: three timeouts are waited by the row's time, then it is looked for, then made."""
    made, number = await queued(both)
    assert await both.killed_at(both.mirror().tick, FaultPlan("POST", "/comments$", "block"))
    await both.conn.execute("UPDATE mirror SET take_until = clock_timestamp() - interval '1 s'")
    await both.mirror(timeout_s=100.0).tick()
    assert not await both.status_comments(number)
    query = "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM mirror"
    assert 240 < float(str(await rows.value(both.conn, query))) <= 300
    assert (await both.mirror_row(made.issue_id))["error"] is None
    await both.later()
    await drain(both.mirror(timeout_s=100.0).tick)
    assert len(await both.status_comments(number)) == 1


async def test_a_change_while_it_is_told_is_told_again(both: Both) -> None:
    """What changes between the mirror's reading and its recording makes the issue due once more."""
    made, number = await queued(both)
    fault = await both.loopback.fault(FaultPlan("POST", "/comments$", "block"))
    task = asyncio.ensure_future(both.mirror().tick())
    await fault.reached()
    await rows.change(both.conn, "job", made.job_id, state="waiting", hold=True)
    await fault.release()
    await task
    row = await both.mirror_row(made.issue_id)
    assert int(str(row["changed"])) > int(str(row["told"]))
    await drain(both.mirror().tick)
    assert "on hold" in (await shown(both, number))[1]


async def test_an_outage_is_got_over(both: Both) -> None:
    """While the forge answers nothing the issue stays due with its error; afterwards it converges."""
    made, number = await queued(both)
    outage = await both.loopback.fault(FaultPlan("*", "/repos/", "answer", status=502, times=0))
    mirror = both.mirror()
    assert await mirror.tick()
    row = await both.mirror_row(made.issue_id)
    assert (row["failures"], row["take_token"]) == (1, None)
    assert "502" in str(row["error"])
    await outage.drop()
    await drain(mirror.tick)
    assert (await shown(both, number))[0] == ["tireless/status/queued"]
    assert (await both.mirror_row(made.issue_id))["failures"] == 0


@pytest.mark.parametrize(("status", "doubted"), [(403, ["widgets"]), (404, ["widgets"]), (423, ["widgets"]), (502, [])])
async def test_a_refusal_has_the_repository_asked_what_it_is(both: Both, status: int, doubted: list[str]) -> None:
    """Where nothing else is written the mirror notices first: a poll is due, and asks. An outage says nothing."""
    await queued(both)
    await rows.not_due(both.conn)
    await both.loopback.fault(FaultPlan("*", "/repos/", "answer", status=status, times=0))
    assert await both.mirror().tick()
    assert await rows.doubted(both.conn) == doubted


async def test_a_forge_that_is_down_is_left_alone_for_a_while(both: Both) -> None:
    """One failure to reach it sets the whole forge aside: a hundred due issues do not cost a hundred timeouts."""
    for _ in range(3):
        await queued(both)
    await both.loopback.fault(FaultPlan("*", "/api/", "cut", times=0))
    mirror = both.mirror()
    mirror._patience._base_s, mirror._patience._cap_s = 60.0, 60.0
    before = both.loopback.last_request
    await drain(mirror.tick)
    assert len(both.loopback.requests(after=before)) <= 3


async def test_a_vanished_issue_is_asked_for_rarely(both: Both) -> None:
    """A 404 is neither hammered nor taken for the end: the next try is an hour away, and others go on."""
    made, number = await queued(both)
    _, other = await queued(both)
    await both.stage.admin.api("DELETE", f"/repos/{both.repo.path}/issues/{number}")
    await drain(both.mirror().tick)
    query = "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM mirror WHERE issue_id = %(id)s"
    assert 3500 < float(str(await rows.value(both.conn, query, id=made.issue_id))) <= 3600
    assert (await shown(both, other))[0] == ["tireless/status/queued"]


async def test_untracked_repositories_are_not_written_to(both: Both) -> None:
    """A repository the bot was told to forget gets no more labels or comments."""
    await queued(both)
    await rows.change(both.conn, "repository", both.repository_id, tracked=False)
    before = both.loopback.last_request
    await drain(both.mirror().tick)
    assert not both.loopback.requests(after=before)


async def test_warnings_stand_beside_the_job(both: Both) -> None:
    """Two mode labels: the comment of the job names which one won, in the words of the gates."""
    made, number = await queued(both)
    details = {"warnings": {"several_modes": {"kinds": ["plan", "implement"], "kind": "plan"}}}
    await rows.change(both.conn, "issue", made.issue_id, triage_details=Jsonb(details))
    await drain(both.mirror().tick)
    assert "Several modes are set" in (await shown(both, number))[1]
