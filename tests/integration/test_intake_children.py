"""A plan's children: without opt-in no job, with one it waits for its siblings and its plan; a closed one ends once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.support import rows
from tests.support.ingest import GO, IMPLEMENT, PLAN, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.outcome import Outcome
from tireless.store.deliver import return_to_pending
from tireless.store.gone import missed
from tireless.store.look import write_look
from tireless.store.publish import take_publishing
from tireless.store.record import RecordedResult, record_result
from tireless.store.settle import Ending, settle


async def planned(ingest: Ingest, *, delivered: bool = True) -> tuple[int, int, int]:
    """A plan's issue and two children the bot made of it, the second depending on the first."""
    stage = ingest.stage
    plan = await ingest.ask(GO, PLAN)
    await ingest.poll()
    issue = await ingest.issue(plan)
    job = await ingest.job(plan)
    numbers = []
    for position, (key, needs) in enumerate((("schema", []), ("page", ["schema"]))):
        number = await stage.bot.create_issue(
            stage.path, f"Child {key}", "By the plan.", label_ids=[await ingest.label(IMPLEMENT)]
        )
        await rows.child(
            ingest.conn,
            int(str(issue["id"])),
            key,
            job_id=job["id"],
            position=position,
            number=number,
            depends_on=needs,
        )
        numbers.append(number)
    if delivered:
        await ingest.deliver()
    return plan, numbers[0], numbers[1]


async def waits(ingest: Ingest, number: int) -> tuple[object, object]:
    """State of a child's job and whom it waits for."""
    job = await ingest.job(number)
    return job["state"], job["waits_for"]


async def test_a_child_without_opt_in_makes_no_job(ingest: Ingest) -> None:
    """It is linked to its plan and waits for a person."""
    _, first, second = await planned(ingest)
    await ingest.poll()
    assert [await ingest.code(number) for number in (first, second)] == ["is_child_waiting"] * 2
    assert len(await ingest.jobs()) == 1
    linked = await rows.rows(ingest.conn, "SELECT i.number FROM child c JOIN issue i ON i.id = c.issue_id ORDER BY 1")
    assert linked == [{"number": first}, {"number": second}]


async def test_a_child_put_on_waits_for_its_open_sibling_and_wakes_when_it_is_closed(ingest: Ingest) -> None:
    """Whatever the forge shows as dependency; a sibling opened again is waited for again."""
    plan, first, second = await planned(ingest)
    for number in (first, second):
        await ingest.ask(GO, number=number)
    assert (await ingest.poll()).made == 2
    assert await waits(ingest, first) == ("pending", [])
    assert await waits(ingest, second) == ("waiting", [f"acme/widgets#{first}"])
    await ingest.stage.alice.close(ingest.stage.path, first)
    await ingest.poll()
    assert await waits(ingest, second) == ("pending", [])
    assert (await ingest.issue(plan))["children_done"] == 1
    await ingest.stage.alice.reopen(ingest.stage.path, first)
    await ingest.poll()
    assert await waits(ingest, second) == ("waiting", [f"acme/widgets#{first}"])
    await ingest.stage.alice.close(ingest.stage.path, first)
    await ingest.poll()
    assert (await ingest.issue(plan))["children_done"] == 1
    assert await ingest.events((await ingest.job(second))["id"]) == ["enqueue", "wake", "wait", "wake"]


async def test_a_child_that_comes_back_waits_for_a_sibling_opened_while_it_ran(ingest: Ingest) -> None:
    """And no more for one that was closed again before it came back; given back by its runner or by the publisher."""
    _, first, second = await planned(ingest)
    await ingest.ask(GO, number=second)
    await ingest.stage.alice.close(ingest.stage.path, first)
    await ingest.poll()

    async def news(act: Callable[[str, int], Awaitable[object]]) -> None:
        await act(ingest.stage.path, first)
        await write_look(ingest.conn, ingest.repository_id, first, why="a hook")  # a poll would read both
        while await ingest.poller.tick():
            pass

    for published in (False, True):
        for again in (True, False):
            claim = await ingest.claim()
            ending = Ending(outcome=Outcome.SHUTDOWN)
            if published:
                result = RecordedResult(result={"outcome": "done"}, branch="b", commit_sha="c")
                await record_result(ingest.conn, claim.job_id, claim.token, result)
                ending = Ending(outcome=Outcome.DONE)
                await settle(ingest.conn, claim.job_id, claim.token, ending)
            await news(ingest.stage.alice.reopen)
            if again:
                await news(ingest.stage.alice.close)
            if published:
                delivery = await take_publishing(ingest.conn, [claim.repo.forge], by="p", take_s=60.0, unanswered_s=0.0)
                assert delivery is not None
                await return_to_pending(ingest.conn, delivery, by="p", found=None)
            else:
                await settle(ingest.conn, claim.job_id, claim.token, ending)
            expected = ("pending", []) if again else ("waiting", [f"acme/widgets#{first}"])
            assert (published, again, await waits(ingest, second)) == (published, again, expected)
        await news(ingest.stage.alice.close)
        assert await waits(ingest, second) == ("pending", [])


async def test_a_child_waits_for_its_plan_until_that_has_ended(ingest: Ingest) -> None:
    """Its end writes looks at the children, which are woken by them; so does a plan that ends otherwise."""
    plan, first, second = await planned(ingest, delivered=False)
    for number in (first, second):
        await ingest.ask(GO, number=number)
    await ingest.poll()
    assert await waits(ingest, first) == ("waiting", [f"acme/widgets#{plan}"])
    assert await waits(ingest, second) == ("waiting", [f"acme/widgets#{plan}", f"acme/widgets#{first}"])
    await ingest.stage.alice.close(ingest.stage.path, plan)
    await ingest.poll()
    await ingest.poller.tick()
    assert (await ingest.job(plan))["state"] == "cancelled"
    assert await waits(ingest, first) == ("pending", [])
    assert await waits(ingest, second) == ("waiting", [f"acme/widgets#{first}"])


async def test_a_plans_own_request_makes_one_job_without_opt_in_and_never_another(ingest: Ingest) -> None:
    """`children_run`: nothing compares it with what was answered, and a pruned job does not bring it back."""
    _, first, _ = await planned(ingest)
    await ingest.poll()
    child = await ingest.issue(first)
    await rows.request(
        ingest.conn, int(str(child["id"])), source="child", event_id=None, actor_login=ingest.stage.bot.login
    )
    await ingest.poll(full=True)
    assert (await ingest.job(first))["state"] == "pending"
    assert (await ingest.issue(first))["answered_event"] == 0
    claim = await ingest.deliver()
    await ingest.poll(full=True)
    assert len(await ingest.jobs(first)) == 1
    await rows.value(
        ingest.conn,
        "UPDATE child SET ended_at = NULL, ended_reason = NULL WHERE number = %(n)s RETURNING 1",
        n=first,
    )
    await rows.value(ingest.conn, "DELETE FROM job WHERE id = %(id)s RETURNING 1", id=claim.job_id)
    await ingest.poll(full=True)
    assert await ingest.jobs(first) == []


async def test_children_go_to_the_lane_the_plan_named(ingest: Ingest) -> None:
    """Unless an override on the issue says otherwise."""
    _, first, second = await planned(ingest)
    await rows.value(ingest.conn, "WITH u AS (UPDATE child SET lane = 'spare' RETURNING 1) SELECT 1")
    await ingest.ask("tireless/agent:thinker", number=second)
    for number in (first, second):
        await ingest.ask(GO, number=number)
    await ingest.poll()
    assert [(await ingest.job(number))["lane"] for number in (first, second)] == ["spare", "thinker"]


async def test_a_planned_issue_waits_for_its_parts_before_it_is_implemented(ingest: Ingest) -> None:
    """A person asks anew, for `implement`: not while parts of it are open. The last one closed wakes it."""
    plan, first, second = await planned(ingest)
    await ingest.poll()
    await ingest.let_pass(60)
    await implement(ingest, plan)
    await ingest.poll()
    job = (await ingest.jobs(plan))[-1]
    both = [f"acme/widgets#{first}", f"acme/widgets#{second}"]
    assert (job["kind"], job["state"], job["reason"], job["waits_for"]) == ("implement", "waiting", "waits_for", both)
    await ingest.stage.alice.close(ingest.stage.path, first)
    await ingest.poll()
    assert await last(ingest, plan) == ("waiting", both[1:])
    await ingest.stage.alice.close(ingest.stage.path, second)
    await ingest.poll()
    assert await last(ingest, plan) == ("pending", [])
    await ingest.stage.alice.reopen(ingest.stage.path, second)
    await ingest.poll()
    assert await last(ingest, plan) == ("waiting", both[1:])
    assert await ingest.events(job["id"]) == ["enqueue", "refresh", "wake", "wait"]


async def test_parts_that_are_delivered_or_gone_free_the_planned_issue(ingest: Ingest) -> None:
    """One's job is delivered while its issue stays open, the other's issue is deleted."""
    plan, first, second = await planned(ingest)
    await ingest.ask(GO, number=first)
    await ingest.poll()
    await ingest.let_pass(60)
    await implement(ingest, plan)
    await ingest.poll()
    await ingest.deliver()
    while await ingest.poller.tick():
        pass  # the end of its job left a look at the planned issue
    assert await last(ingest, plan) == ("waiting", [f"acme/widgets#{second}"])
    await ingest.stage.alice.api("DELETE", f"/repos/{ingest.stage.path}/issues/{second}")
    for _ in range(2):
        await missed(ingest.conn, ingest.repository_id, second, after_s=0.0)
    assert await last(ingest, plan) == ("pending", [])


async def test_neither_proposals_nor_another_kind_make_it_wait(ingest: Ingest) -> None:
    """Issues that a discovery proposed are nobody's parts, and planning anew takes over what is there."""
    plan, first, second = await planned(ingest)
    await ingest.poll()
    await ingest.let_pass(60)
    for name in (GO, PLAN):
        await ingest.unlabel(plan, name)
        await ingest.ask(name, number=plan)
    await ingest.poll()
    assert await last(ingest, plan) == ("pending", [])
    await implement(ingest, plan)
    await ingest.poll()
    assert await last(ingest, plan) == ("waiting", [f"acme/widgets#{first}", f"acme/widgets#{second}"])
    await rows.value(ingest.conn, "WITH u AS (UPDATE child SET proposal = true RETURNING 1) SELECT count(*) FROM u")
    await ingest.unlabel(plan, GO)
    await ingest.ask(GO, number=plan)
    await ingest.poll()
    assert await last(ingest, plan) == ("pending", [])


async def implement(ingest: Ingest, number: int) -> None:
    """A person puts `implement` in the place of `plan`, and opts in anew."""
    await ingest.unlabel(number, PLAN)
    await ingest.unlabel(number, GO)
    await ingest.ask(IMPLEMENT, GO, number=number)


async def last(ingest: Ingest, number: int) -> tuple[object, object]:
    """State of the newest job of an issue, and whom it waits for."""
    job = (await ingest.jobs(number))[-1]
    return job["state"], job["waits_for"]
