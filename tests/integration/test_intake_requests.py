"""From labels to jobs, over HTTP and in real rows: what asks, what does not, what asks again."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import datetime, timedelta

from tests.support import rows
from tests.support.ingest import DISCOVER, GO, IMPLEMENT, PLAN, RULES, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.job import Kind
from tireless.domain.outcome import Outcome
from tireless.store.db import Connection
from tireless.store.jobs import refresh_waits
from tireless.store.look import Wake, listen

# ------------------------------------------------------------------------------------------------ what asks


async def test_a_label_becomes_a_pending_job_with_its_request(ingest: Ingest) -> None:
    """Opted in with a mode: one job, its actor, event and content hash on the request, the text approved."""
    number = await ingest.ask(GO, IMPLEMENT)
    assert (await ingest.poll()).made == 1
    job = await ingest.job(number)
    assert (job["state"], job["kind"], job["lane"], job["priority"]) == ("pending", "implement", "claude", 0)
    request = await rows.row(ingest.conn, "request", job["request_id"])
    issue = await ingest.issue(number)
    assert (request["source"], request["actor_login"], request["event_id"]) == ("label", "bob", 2)
    assert request["content_hash"] == issue["content_hash"] == issue["approved_hash"]
    assert (issue["asked"], issue["triage_code"], issue["answered_event"]) == (True, None, 2)
    assert await ingest.events(job["id"]) == ["enqueue"]


async def test_a_pending_job_that_was_read_again_wakes_its_lane(ingest: Ingest, dsn: str) -> None:
    """A claim passes by a job that intake has locked: its runner is woken when that is over, though nothing changed."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    lane = (await ingest.job(number))["lane"]
    async with contextlib.aclosing(listen(dsn, ["tireless_lane"])) as wakes:
        assert await anext(wakes) == Wake()
        await ingest.poll(full=True)
        assert await asyncio.wait_for(anext(wakes), 90) == Wake("tireless_lane", str(lane))
    assert (await ingest.job(number))["state"] == "pending"


async def test_a_child_that_is_looked_at_with_its_family_wakes_its_lane(conn: Connection, dsn: str) -> None:
    """The same for one whose sibling was closed: it was locked, and waits for nothing as before."""
    plan = await rows.issue(conn)
    made = await rows.job(conn)
    await rows.child(conn, plan, "a", number=made.number, issue_id=made.issue_id)
    async with contextlib.aclosing(listen(dsn, ["tireless_lane"])) as wakes:
        assert await anext(wakes) == Wake()
        assert await refresh_waits(conn, plan) == 0
        assert await asyncio.wait_for(anext(wakes), 90) == Wake("tireless_lane", rows.LANE)


async def test_all_labels_in_one_call_and_labels_of_the_organisation_count(ingest: Ingest) -> None:
    """One act, one job; an organisation's label is as good as the repository's."""
    org_go = await ingest.stage.alice.create_label("acme", GO, org=True)
    number = await ingest.stage.alice.create_issue(ingest.stage.path, "Paint it")
    await ingest.stage.bob.add_labels(ingest.stage.path, number, org_go, await ingest.label(PLAN))
    assert (await ingest.poll()).made == 1
    assert (await ingest.job(number))["lane"] == "thinker"


async def test_closed_issues_and_issues_expressing_no_work_are_not_enqueued(ingest: Ingest) -> None:
    """Each improper one has its own reason, a plain one has none."""
    cases: dict[int, str | None] = {
        await ingest.ask(): None,
        await ingest.ask("bug"): None,
        await ingest.ask(GO): "no_mode",
        await ingest.ask(IMPLEMENT): "no_opt_in",
        await ingest.ask("tireless/implment"): "unknown_label",
        await ingest.ask(GO, "tireless/implment"): "no_mode",
        await ingest.ask("tireless/hold"): None,
    }
    closed = await ingest.ask(GO, IMPLEMENT)
    await ingest.stage.alice.close(ingest.stage.path, closed)
    cases[closed] = "closed"
    assert (await ingest.poll()).made == 0
    assert await ingest.jobs() == []
    assert {number: await ingest.code(number) for number in cases} == cases


async def test_a_pull_request_is_never_enqueued(ingest: Ingest) -> None:
    """It is an issue to the forge, with labels and all."""
    stage = ingest.stage
    await stage.alice.commit(stage.path, "a.txt", "a", new_branch="topic")
    number = await stage.alice.create_pull(stage.path, "A change", head="topic")
    await ingest.ask(GO, IMPLEMENT, number=number)
    assert (await ingest.poll()).made == 0
    assert await rows.value(ingest.conn, "SELECT count(*) FROM issue") == 0


async def test_several_modes_run_the_first_and_say_so(ingest: Ingest) -> None:
    """Discover beats plan beats implement; an override goes to its lane; priority and hold are kept."""
    stage = ingest.stage
    number = await stage.alice.create_issue(stage.path, "Paint it")
    # set at creation, exclusive labels do not evict each other
    labels = [await ingest.label(name) for name in (GO, PLAN, IMPLEMENT)]
    several = await stage.alice.create_issue(stage.path, "Paint them", label_ids=labels)
    await ingest.judge_strangers()
    await ingest.ask(GO, DISCOVER, "tireless/agent:spare", "tireless/priority/high", "tireless/hold", number=number)
    await ingest.poll()
    job = await ingest.job(number)
    assert (job["kind"], job["lane"], job["priority"]) == ("discover", "spare", 1)
    assert (job["state"], job["reason"]) == ("waiting", "on_hold")
    assert (await ingest.job(several))["kind"] == "plan"
    details = (await ingest.issue(several))["triage_details"]
    assert details == {"warnings": {"several_modes": {"kinds": ["plan", "implement"], "kind": "plan"}}}


# ------------------------------------------------------------------------------------------------ who asks


async def test_labels_a_stranger_put_on_by_the_form_make_no_job_until_a_writer_puts_them_on(ingest: Ingest) -> None:
    """The form takes labels from anyone; taking one off and on again heals."""
    await ingest.judge_strangers()
    stage = ingest.stage
    labels = [await ingest.label(name) for name in (GO, IMPLEMENT)]
    number = await stage.mallory.create_issue_by_form(stage.path, "Pay me", label_ids=labels)
    await ingest.poll()
    issue = await ingest.issue(number)
    assert (issue["triage_code"], issue["asked"]) == ("stranger", False)
    assert issue["triage_details"] == {"label": GO, "login": "mallory", "why": "no_write_access"}
    verdicts = await rows.rows(ingest.conn, "SELECT allowed, reason, actor_login FROM verdict")
    assert verdicts == [{"allowed": False, "reason": "no_write_access", "actor_login": "mallory"}]
    await ingest.loopback.advance(2)
    await ingest.unlabel(number, GO)
    await ingest.ask(GO, number=number)
    assert (await ingest.poll()).made == 1
    assert (await ingest.issue(number))["triage_code"] is None


async def test_an_author_with_write_access_asks_by_labelling_at_creation(ingest: Ingest) -> None:
    """The permission endpoint tells him from a stranger, once: the verdict is stored."""
    await ingest.judge_strangers()
    labels = [await ingest.label(name) for name in (GO, IMPLEMENT)]
    number = await ingest.stage.bob.create_issue(ingest.stage.path, "Paint it", label_ids=labels)
    assert (await ingest.poll()).made == 1
    before = ingest.loopback.last_request
    await ingest.stage.alice.comment(ingest.stage.path, number, "Good.")
    await ingest.poll(full=True)
    assert [r for r in ingest.loopback.requests(after=before) if "permission" in r.target] == []


async def test_cannot_tell_is_no_and_is_looked_at_again(ingest: Ingest) -> None:
    """The bot may not ask for rights here: no verdict, no job, a look with backoff, and a reason to act on."""
    labels = [await ingest.label(name) for name in (GO, IMPLEMENT)]
    number = await ingest.stage.mallory.create_issue_by_form(ingest.stage.path, "Pay me", label_ids=labels)
    await ingest.poll()
    issue = await ingest.issue(number)
    assert (issue["triage_code"], issue["asked"], issue["answered_event"]) == ("cannot_tell", False, 0)
    assert "mallory" in str(issue["triage_details"])
    assert await rows.value(ingest.conn, "SELECT count(*) FROM verdict") == 0
    [look] = await ingest.looks()
    assert look["failures"] == 1
    assert isinstance(look["not_before"], datetime)
    assert look["not_before"] > datetime.now().astimezone()
    await ingest.judge_strangers()
    await ingest.due()
    assert await ingest.poller.tick()
    assert await ingest.code(number) == "stranger"
    assert await ingest.looks() == []


async def test_the_assignees_of_a_user_owned_repository_tell_writers(ingest: Ingest) -> None:
    """There the list of assignees needs no rights to be read."""
    stage = ingest.stage
    await stage.alice.create_repository("sketches")
    for person in (stage.bob, stage.bot):
        await stage.alice.add_collaborator("alice/sketches", person.login)
    stage.repo = replace(stage.repo, owner="alice", name="sketches")
    await ingest.watch()
    assert (await ingest.repository())["owner_is_org"] is False
    labels = [await ingest.label(name) for name in (GO, IMPLEMENT)]
    stranger = await ingest.stage.mallory.create_issue_by_form(ingest.stage.path, "Pay me", label_ids=labels)
    writer = await ingest.stage.bob.create_issue(ingest.stage.path, "Paint it", label_ids=labels)
    await ingest.poll()
    assert await ingest.code(stranger) == "stranger"
    assert (await ingest.job(writer))["state"] == "pending"


async def test_the_bots_own_labels_never_ask(ingest: Ingest) -> None:
    """It has write access and would prove itself."""
    number = await ingest.stage.alice.create_issue(ingest.stage.path, "Paint it")
    labels = [await ingest.label(name) for name in (GO, IMPLEMENT)]
    await ingest.stage.bot.add_labels(ingest.stage.path, number, *labels)
    await ingest.poll()
    assert await ingest.jobs() == []
    assert await ingest.code(number) == "no_opt_in"


async def test_an_allow_list_is_obeyed_and_names_are_compared_exactly(ingest: Ingest) -> None:
    """Only alice: bob, who has write access, is a stranger to it."""
    policy = replace(RULES.policy, who_may_ask="allow-list", allow=frozenset({"alice"}))
    ingest.poller = ingest.another(replace(RULES, policy=policy))
    by_bob = await ingest.ask(GO, IMPLEMENT)
    by_alice = await ingest.stage.alice.create_issue(ingest.stage.path, "Paint it")
    labels = [await ingest.label(name) for name in (GO, IMPLEMENT)]
    await ingest.stage.alice.add_labels(ingest.stage.path, by_alice, *labels)
    await ingest.poll()
    assert await ingest.code(by_bob) == "stranger"
    assert (await ingest.job(by_alice))["state"] == "pending"


# ------------------------------------------------------------------------------------------------ relabelling


async def test_relabelling_a_queued_job_re_routes_the_same_row(ingest: Ingest) -> None:
    """Lane, kind, priority and hold change in place, with an event and a turn of its own, never by a second job."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    first = await ingest.job(number)
    for names, off, wanted in (
        (["tireless/agent:spare"], [], ("implement", "spare", 0, "pending")),
        (["tireless/priority/low"], ["tireless/agent:spare"], ("implement", "claude", -1, "pending")),
        (["tireless/hold"], [], ("implement", "claude", -1, "waiting")),
        ([], ["tireless/hold"], ("implement", "claude", -1, "pending")),
        ([PLAN], [], ("plan", "thinker", -1, "pending")),
    ):
        await ingest.ask(*names, number=number)
        for name in off:
            await ingest.unlabel(number, name)
        await ingest.poll()
        job = await ingest.job(number)
        assert job["id"] == first["id"]
        assert (job["kind"], job["lane"], job["priority"], job["state"]) == wanted
    assert await ingest.events(first["id"]) == ["enqueue", "refresh", "refresh", "wait", "wake", "re-ask"]


async def test_toggling_the_opt_in_re_asks_a_queued_job(ingest: Ingest) -> None:
    """The same row takes the newer request over and gets its attempts back, and what it may cost."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    first = await ingest.job(number)
    await rows.lane(ingest.conn, str(first["lane"]), max_usd="1")
    used: dict[str, object] = {"attempts": 2, "claim_no": 2, "given_back": 6, "spent_usd": "2"}
    await rows.change(ingest.conn, "job", first["id"], parked="suspect", state="waiting", **used)
    await ingest.unlabel(number, GO)
    await ingest.ask(GO, number=number)
    assert (await ingest.poll()).made == 0
    job = await ingest.job(number)
    assert (job["id"], job["state"], job["attempts"], job["given_back"]) == (first["id"], "pending", 0, 0)
    assert (job["spent_usd"], job["fresh_from"]) == (0, 2)
    assert job["request_id"] != first["request_id"]


async def test_an_operators_reroute_stands_until_the_label_is_changed(ingest: Ingest) -> None:
    """Polls do not undo it; a new agent label does, and ends its standing."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    job = await ingest.job(number)
    await rows.change(ingest.conn, "job", job["id"], lane="spare", steered=["lane"])
    await ingest.stage.alice.comment(ingest.stage.path, number, "Hm.")
    await ingest.poll(full=True)
    assert (await ingest.job(number))["lane"] == "spare"
    await ingest.ask("tireless/agent:thinker", number=number)
    await ingest.poll()
    after = await ingest.job(number)
    assert (after["lane"], after["steered"]) == ("thinker", [])


# ------------------------------------------------------------------------------------------------ asking again


async def test_a_label_on_a_delivered_issue_runs_nothing_again(ingest: Ingest) -> None:
    """Nor when the job is pruned; taking the opt-in off and on asks again, and makes a new row."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    first = await ingest.deliver()
    await ingest.poll(full=True)
    assert len(await ingest.jobs(number)) == 1
    await rows.value(ingest.conn, "DELETE FROM job WHERE id = %(id)s RETURNING 1", id=first.job_id)
    await ingest.poll(full=True)
    assert await ingest.jobs(number) == []
    await ingest.unlabel(number, GO)
    await ingest.ask(GO, number=number)
    assert (await ingest.poll()).made == 1
    assert (await ingest.job(number))["id"] != first.job_id


async def test_a_request_just_before_the_end_is_absorbed_and_one_after_it_is_not(ingest: Ingest) -> None:
    """Told apart by the forge's clock, ten minutes ahead of ours here."""
    await ingest.loopback.advance(600)
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await ingest.unlabel(number, GO)
    await ingest.ask(GO, number=number)
    await ingest.deliver()
    assert (await ingest.poll()).made == 0
    assert await ingest.code(number) == "absorbed"
    await ingest.poll(full=True)
    assert await ingest.code(number) == "absorbed"  # said until something newer is to be said
    await ingest.let_pass(10)
    await ingest.unlabel(number, GO)
    await ingest.ask(GO, number=number)
    assert (await ingest.poll()).made == 1
    assert await ingest.code(number) is None
    assert [job["state"] for job in await ingest.jobs(number)] == ["delivered", "pending"]


async def test_a_running_job_absorbs_and_is_never_twinned(ingest: Ingest) -> None:
    """Toggling labels during a run yields no second row, whatever is toggled."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    claim = await ingest.claim()
    for _ in range(5):
        await ingest.unlabel(number, GO)
        await ingest.ask(GO, number=number)
        await ingest.poll()
    after = await ingest.job(number)
    assert (after["state"], after["cancel_requested"]) == ("claimed", None)
    assert (await ingest.events(claim.job_id)).count("absorbed") == 5


async def test_a_mode_added_while_it_runs_stops_it_and_makes_the_next(ingest: Ingest) -> None:
    """The running implement job is asked to stop; when it has, its look makes a plan job for the newer request."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    claim = await ingest.claim()
    await ingest.ask(PLAN, number=number)
    await ingest.poll()
    assert (await ingest.job(number))["cancel_requested"] == "kind_changed"
    await ingest.settle(claim, Outcome.CANCELLED)
    await ingest.poller.tick()
    ended, made = await ingest.jobs(number)
    assert (ended["state"], ended["reason"]) == ("cancelled", "kind_changed")
    assert (made["kind"], made["lane"], made["state"]) == ("plan", "thinker", "pending")
    assert made["request_id"] != ended["request_id"]


async def test_a_mode_taken_off_while_it_runs_asks_with_the_same_request(ingest: Ingest) -> None:
    """Plan and implement were both on; the plan is withdrawn, implement is still wanted."""
    number = await ingest.stage.alice.create_issue(ingest.stage.path, "Paint it")
    await ingest.stage.bob.add_labels(ingest.stage.path, number, await ingest.stage.label(IMPLEMENT))
    await ingest.stage.bob.add_labels(ingest.stage.path, number, await ingest.stage.label(PLAN))
    await ingest.ask(GO, number=number)
    await ingest.poll()
    claim = await ingest.claim()
    assert claim.kind is Kind.PLAN
    await ingest.unlabel(number, PLAN)
    await ingest.poll()
    assert (await ingest.job(number))["cancel_requested"] == "kind_changed"
    await ingest.settle(claim, Outcome.CANCELLED)
    await ingest.poller.tick()
    ended, made = await ingest.jobs(number)
    assert (made["kind"], made["request_id"]) == ("implement", ended["request_id"])


async def test_a_reopening_asks_again_after_an_end_by_closing(ingest: Ingest) -> None:
    """By bob, who asked for the job; mallory's reopening of her own issue would not."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await ingest.stage.bob.close(ingest.stage.path, number)
    await ingest.poll()
    assert [(job["state"], job["reason"]) for job in await ingest.jobs(number)] == [("cancelled", "closed")]
    await ingest.stage.bob.reopen(ingest.stage.path, number)
    assert (await ingest.poll()).made == 1
    assert [job["state"] for job in await ingest.jobs(number)] == ["cancelled", "pending"]
    await ingest.poll(full=True)
    assert len(await ingest.jobs(number)) == 2


async def test_without_opt_in_only_labels_put_on_after_the_watching_ask(ingest: Ingest) -> None:
    """An old mode label says how to ask; a new one asks."""
    old = await ingest.ask(IMPLEMENT)
    await rows.value(ingest.conn, "UPDATE repository SET asks_after = clock_timestamp() + interval '5 s' RETURNING 1")
    rules = replace(RULES, scheme=replace(RULES.scheme, require_opt_in=False))
    ingest.poller = ingest.another(rules)
    await ingest.poll()
    assert await ingest.code(old) == "too_early"
    await ingest.loopback.advance(10)
    new = await ingest.ask(IMPLEMENT)
    assert (await ingest.poll()).made == 1
    assert (await ingest.job(new))["state"] == "pending"


async def test_a_fresh_database_takes_the_marks_from_the_bots_own_comment(ingest: Ingest) -> None:
    """What was answered before the loss runs nothing again; a stranger's copy of the marker is nobody's word."""
    marker = (
        "<!-- tireless:status installation=tireless/ issue={n} answered_event=900 "
        f"answered_time={(datetime.now().astimezone() + timedelta(hours=1)).isoformat()} -->"
    )
    answered, forged = await ingest.ask(GO, IMPLEMENT), await ingest.ask(GO, IMPLEMENT)
    await ingest.stage.bot.comment(ingest.stage.path, answered, f"Done.\n\n{marker.format(n=answered)}")
    await ingest.stage.mallory.comment(ingest.stage.path, forged, f"Done.\n\n{marker.format(n=forged)}")
    assert (await ingest.poll()).made == 1
    assert await ingest.jobs(answered) == []
    assert (await ingest.issue(answered))["answered_event"] == 900
    assert len(await ingest.jobs(forged)) == 1
