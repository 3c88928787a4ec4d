"""What explain and the comment tell a person to do next can be done, in the state in which they tell it, and helps."""

from __future__ import annotations

import re

import pytest

from tests.support import rows
from tests.support.ingest import DISCOVER, GO, IMPLEMENT, PLAN, RULES, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.comments import Voice, tell
from tireless.domain.outcome import Outcome
from tireless.store.explaining import explain
from tireless.store.tell import picture

HOLD = "tireless/hold"
AGAIN = f"take `{GO}` off and put it on again"
MODES = f"`{DISCOVER}`, `{PLAN}` or `{IMPLEMENT}`"


async def comment(ingest: Ingest, number: int) -> str:
    """The status comment as the mirror would write it now, without its last, hidden line."""
    issue_id = int(str((await ingest.issue(number))["id"]))
    return tell(await picture(ingest.conn, issue_id), Voice()).comment.rpartition("\n\n<!--")[0]


async def steps(ingest: Ingest, number: int) -> list[str]:
    """Whatever the comment tells people to do."""
    return re.findall(r"Next:\*{0,2} (.*)", await comment(ingest, number))


async def explained(ingest: Ingest, number: int) -> dict[str, str]:
    """Explain's next step of every gate that is shut."""
    found = await explain(ingest.conn, ingest.stage.path, number, scheme=RULES.scheme)
    return {each.gate.code: each.next_step for each in found.gates if each.passed is False and each.gate.blocking}


async def changes(ingest: Ingest, number: int) -> int:
    """How often the mirror was told that something changed."""
    issue_id = (await ingest.issue(number))["id"]
    found = await rows.value(ingest.conn, "SELECT changed FROM mirror WHERE issue_id = %(id)s", id=issue_id)
    return int(str(found))


@pytest.fixture(params=["pending", "claimed"])
async def called_off(ingest: Ingest, request: pytest.FixtureRequest) -> int:
    """An issue whose job, waiting for its turn or running, was called off: the opt-in was taken off."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    claim = await ingest.claim() if request.param == "claimed" else None
    await ingest.unlabel(number, GO)
    await ingest.poll()
    if claim is not None:
        await ingest.settle(claim, Outcome.CANCELLED)
        await ingest.poll()
    assert (await ingest.job(number))["state"] == "cancelled"
    return number


async def test_an_opt_in_of_the_bots_own_is_said_to_be_its_own(ingest: Ingest) -> None:
    """It is on already: it is not to be put on, but to be taken off and put on by a person, which is then enough."""
    stage = ingest.stage
    number = await stage.bot.create_issue(stage.path, "Paint it", "Blue, please.")
    await stage.bot.add_labels(stage.path, number, await ingest.label(GO), await ingest.label(IMPLEMENT))
    await ingest.poll()
    step = f"{AGAIN} when it may be worked on."
    assert await explained(ingest, number) == {"no_opt_in": step}
    assert await steps(ingest, number) == [step]
    assert f"`{GO}` was put on by `{stage.bot.login}`, the bot's own user, which never asks" in (
        await comment(ingest, number)
    )
    await ingest.unlabel(number, GO)
    await ingest.poll()
    assert await steps(ingest, number) == [f"put on `{GO}` when it may be worked on."]
    await ingest.ask(GO, number=number)
    assert (await ingest.poll()).made == 1


async def test_who_took_the_opt_in_off_puts_it_on_again(ingest: Ingest, called_off: int) -> None:
    """It is off: one thing to do, and it makes the next job."""
    assert await steps(ingest, called_off) == [f"To ask again, put on `{GO}`."]
    found = await explained(ingest, called_off)
    assert found == {"no_opt_in": f"put on `{GO}` when it may be worked on.", "ended": f"to ask again, put on `{GO}`."}
    await ingest.ask(GO, number=called_off)
    assert (await ingest.poll()).made == 1


async def test_what_was_taken_off_as_well_is_named(ingest: Ingest, called_off: int) -> None:
    """The comment follows the labels, and what it says makes the next job."""
    await ingest.unlabel(called_off, IMPLEMENT)
    await ingest.poll()
    assert await steps(ingest, called_off) == [f"To ask again, put on `{GO}` and {MODES}."]
    await ingest.ask(GO, number=called_off)
    await ingest.poll()
    assert await steps(ingest, called_off) == [f"To ask again, put on {MODES}."]
    await ingest.ask(PLAN, number=called_off)
    assert (await ingest.poll()).made == 1


async def test_labels_taken_off_a_delivered_issue_together_are_told_of(ingest: Ingest) -> None:
    """Nothing else of it changes: the mirror hears of it all the same."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await ingest.deliver()
    await ingest.poll()
    assert await steps(ingest, number) == [f"To ask again, {AGAIN}."]
    before = await changes(ingest, number)
    await ingest.unlabel(number, GO)
    await ingest.unlabel(number, IMPLEMENT)
    await ingest.poll()
    assert await changes(ingest, number) > before
    assert await steps(ingest, number) == [f"To ask again, put on `{GO}` and {MODES}."]


async def test_a_closed_issue_is_to_be_reopened_first(ingest: Ingest) -> None:
    """Labels ask for nothing on it. Where closing it called the job off, reopening it asks again; else it does not."""
    stage = ingest.stage
    delivered, cancelled = await ingest.ask(GO, IMPLEMENT), await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    assert (await ingest.deliver()).number == delivered
    for number in (delivered, cancelled):
        await stage.bob.close(stage.path, number)
    await ingest.poll()
    assert await steps(ingest, delivered) == [f"To ask again, reopen it, then {AGAIN}."]
    assert await steps(ingest, cancelled) == ["To ask again, reopen it."]
    assert (await explained(ingest, cancelled))["ended"] == "to ask again, reopen it."
    for number in (delivered, cancelled):
        await stage.bob.reopen(stage.path, number)
    await ingest.poll()
    assert [job["state"] for job in await ingest.jobs(delivered)] == ["delivered"]
    assert [job["state"] for job in await ingest.jobs(cancelled)] == ["cancelled", "pending"]


async def test_a_merged_pull_request_is_not_to_be_reviewed(ingest: Ingest) -> None:
    """While the issue is open it is; the merge closes the issue."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    claim = await ingest.deliver()
    await ingest.conn.execute("UPDATE job SET pull_request = 9 WHERE id = %(id)s", {"id": claim.job_id})
    assert "review the pull request" in (await steps(ingest, number))[0]
    await ingest.stage.bob.close(ingest.stage.path, number)
    await ingest.poll()
    assert "review" not in (await steps(ingest, number))[0]


async def test_a_stranger_without_a_mode_is_told_what_is_missing(ingest: Ingest) -> None:
    """His opt-in does not count, and nothing says what is to be done."""
    stage = ingest.stage
    await ingest.judge_strangers()
    go = await ingest.label(GO)
    number = await stage.mallory.create_issue_by_form(stage.path, "Paint it", label_ids=[go])
    await ingest.poll()
    wanted = f"a person who may ask reads the text, and if it is right: put on {MODES}, then {AGAIN}."
    assert await explained(ingest, number) == {"stranger": wanted}
    await ingest.ask(IMPLEMENT, number=number)
    await ingest.unlabel(number, GO)
    await ingest.ask(GO, number=number)
    assert (await ingest.poll()).made == 1


async def test_a_hold_that_somebody_took_off_who_may_not_is_not_to_be_taken_off(ingest: Ingest) -> None:
    """It is off. A person who may ask puts it on and takes it off."""
    number = await ingest.ask(GO, IMPLEMENT, HOLD)
    await ingest.poll()
    assert (await explained(ingest, number))["on_hold"] == f"take `{HOLD}` off when it may start."
    await ingest.conn.execute("UPDATE issue SET labels = '[]'")
    step = f"a person who may ask puts `{HOLD}` on and takes it off again when it may start."
    assert (await explained(ingest, number))["on_hold"] == step
    assert step in await steps(ingest, number)


async def test_what_the_bot_may_not_read_is_not_to_be_closed(ingest: Ingest) -> None:
    """Its being closed would change nothing. What the bot can read beside it is."""
    stage = ingest.stage
    await stage.alice.create_repository("secret", org="acme", private=True)
    hidden = await stage.alice.create_issue("acme/secret", "Hidden")
    shown = await stage.alice.create_issue(stage.path, "First this")
    number = await stage.alice.create_issue(stage.path, "Paint it")
    for name, index in (("secret", hidden), ("widgets", shown)):
        body = {"owner": "acme", "repo": name, "index": index}
        await stage.alice.api("POST", f"/repos/{stage.path}/issues/{number}/dependencies", body)
    await ingest.ask(GO, IMPLEMENT, number=number)
    await ingest.poll()
    access = "give the bot's user access to what it may not read, or take that dependency off"
    step = f"{access}; close the others when they are done."
    assert await explained(ingest, number) == {"waits_for": step}
    assert await steps(ingest, number) == [step]
    await stage.alice.close(stage.path, shown)
    await ingest.poll()
    assert await explained(ingest, number) == {"waits_for": f"{access}."}
    assert await steps(ingest, number) == [f"{access}."]


async def test_a_repository_that_is_set_aside_needs_no_access(ingest: Ingest) -> None:
    """It can be read: what is in the way is what the step speaks of. One that refuses the bot needs it."""
    stage = ingest.stage
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await stage.alice.edit_repository(stage.path, has_issues=False)
    await ingest.poller.poll_once(full=True)
    assert await explained(ingest, number) == {"unreadable": "switch them on in its settings."}
    await stage.alice.edit_repository(stage.path, has_issues=True)
    await stage.alice.edit_repository(stage.path, archived=True)
    await ingest.poller.poll_once(full=True)
    assert await explained(ingest, number) == {"unreadable": "unarchive it."}
    await stage.alice.edit_repository(stage.path, archived=False, private=True)
    await stage.alice.remove_collaborator(stage.path, stage.bot.login)
    await ingest.poller.poll_once(full=True)
    assert await explained(ingest, number) == {"unreadable": "give the bot's user access."}


async def test_a_pull_request_is_not_waited_for(ingest: Ingest) -> None:
    """It has a number as issues have, and may carry the labels; no poll will ever read it."""
    stage = ingest.stage
    await stage.bob.commit(stage.path, "a.txt", "x", new_branch="work")
    pull = await stage.bob.create_pull(stage.path, "Work", head="work")
    await stage.bob.add_labels(stage.path, pull, await ingest.label(GO), await ingest.label(IMPLEMENT))
    await ingest.poll(full=True)
    assert (
        "If it is a pull request, make an issue: nothing else is worked on."
        in (await explained(ingest, pull))["unseen"]
    )
