"""The publisher killed, cut off and lied to at every single request of a delivery: it always ends the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support import rows
from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import FaultPlan
from tests.support.telling import *  # noqa: F403  fixtures
from tests.support.telling import Both, drain
from tireless.domain.delivery import read_child_line
from tireless.domain.issue import IssueRef, IssueState

MODES = {
    "killed before its effect": FaultPlan("*", ".", "block"),
    "killed after its effect": FaultPlan("*", ".", "block", when="after"),
    "cut off before its effect": FaultPlan("*", ".", "cut"),
    "cut off after its effect": FaultPlan("*", ".", "cut", when="after"),
    "answered 500 after its effect": FaultPlan("*", ".", "answer", when="after", status=500),
}


def at(plan: FaultPlan, nth: int) -> FaultPlan:
    """The same fault at the nth request from now on."""
    return FaultPlan(plan.method, plan.path, plan.do, when=plan.when, nth=nth, status=plan.status)


async def disturbed(both: Both, plan: FaultPlan) -> bool:
    """One tick with the fault; True when it struck. Then whoever takes the job next brings it to its end."""
    publisher = both.publisher()
    if plan.do == "block":
        struck = await both.killed_at(publisher.tick, plan)
    else:
        fault = await both.loopback.fault(plan)
        await publisher.tick()
        struck = fault.fault.applied > 0
        await fault.drop()
    await both.later()
    await drain(both.publisher().tick)
    return struck


async def at_every_request(
    both: Both,
    plan: FaultPlan,
    scene: Callable[[], Awaitable[rows.Made]],
    check: Callable[[rows.Made], Awaitable[None]],
) -> int:
    """Play a scene anew for each of its requests, disturbed there; how many there were."""
    nth = 0
    while True:
        nth += 1
        made = await scene()
        struck = await disturbed(both, at(plan, nth))
        assert (await both.job(made))["state"] == "delivered", f"request {nth}"
        await check(made)
        if not struck:
            return nth - 1


@pytest.mark.parametrize("mode", MODES)
async def test_one_pull_request_whatever_happens(both: Both, mode: str) -> None:
    """At every request of a pull request's delivery, and of its predecessor's closing: one is open, and recorded."""

    async def scene() -> rows.Made:
        first = await both.publishing()
        await drain(both.publisher().tick)
        return await both.publishing(issue_id=first.issue_id)

    async def check(made: rows.Made) -> None:
        pulls = [each for each in await both.open_pulls() if f"Closes #{made.number}" in each.body.splitlines()]
        assert [each.number for each in pulls] == [(await both.job(made))["pull_request"]]
        query = "SELECT min(pull_request) FROM job WHERE issue_id = %(id)s"
        older = await rows.value(both.conn, query, id=made.issue_id)
        said = [each.body for each in await both.forge.comments(both.repo, int(str(older)))]
        assert len(said) == 1

    assert await at_every_request(both, MODES[mode], scene, check) >= 6


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", MODES)
async def test_each_child_once_whatever_happens(both: Both, mode: str) -> None:
    """At every request of a plan's delivery: each child is open once, with label and dependency, and recorded."""

    async def check(made: rows.Made) -> None:
        mine = [
            (line.key, each)
            for each in await both.bot_issues()
            if (line := read_child_line(each.body)) and line.plan_number == made.number
        ]
        still_open = [(key, each) for key, each in mine if each.state is IssueState.OPEN]
        assert sorted(key for key, _ in still_open) == ["a", "b"]
        assert all([label.name for label in each.labels] == ["tireless/implement"] for _, each in still_open)
        numbers = {key: each.number for key, each in still_open}
        assert {key: row["number"] for key, row in (await both.children(made)).items()} == numbers
        blockers = await both.forge.dependencies(IssueRef(both.repo, numbers["b"]))
        assert [each.number for each, _ in blockers] == [numbers["a"]]

    assert await at_every_request(both, MODES[mode], lambda: both.plan("a", "b<a"), check) >= 12


async def test_an_unanswered_create_is_waited_for_before_another_is_sent(both: Both) -> None:
    """A create without an answer: three timeouts are waited by the row's time, then it is looked for before another."""
    made = await both.publishing()
    assert await both.killed_at(both.publisher().tick, FaultPlan("POST", "/pulls$", "block"))
    await both.conn.execute("UPDATE job SET publish_until = clock_timestamp() - interval '1 s'")
    before = both.loopback.last_request
    await both.publisher(timeout_s=100.0).tick()
    assert not both.loopback.requests(after=before)
    query = "SELECT extract(epoch FROM publish_not_before - clock_timestamp())::float8 FROM job"
    assert 240 < float(str(await rows.value(both.conn, query))) <= 300
    assert (await both.job(made))["publish_failures"] == 0
    await both.later()
    before = both.loopback.last_request
    await drain(both.publisher(timeout_s=100.0).tick)
    methods = [each.method for each in both.loopback.requests(after=before)]
    assert methods.index("GET") < methods.index("POST")
    assert len(await both.open_pulls()) == 1


async def test_a_publisher_that_lost_its_take_writes_nothing(both: Both) -> None:
    """Stopped over the end of its take and continued: the other's delivery stands, and it creates no second one."""
    made = await both.publishing()
    fault = await both.loopback.fault(FaultPlan("GET", "/branches/", "block"))
    slow = asyncio.ensure_future(both.publisher().tick())
    await fault.reached()
    await both.conn.execute("UPDATE job SET publish_until = clock_timestamp() - interval '1 s'")
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    await fault.release()
    await slow
    assert [each.number for each in await both.open_pulls()] == [pull.number]
    assert (await both.job(made))["pull_request"] == pull.number
    assert len([e for e in await rows.events(both.conn, made.job_id) if e[2] == "delivered"]) == 1


async def test_two_publishers_never_take_the_same_job(both: Both) -> None:
    """Ticking at once over several jobs, each is delivered once with one pull request."""
    made = [await both.publishing() for _ in range(4)]
    publishers = [both.publisher() for _ in range(3)]
    await asyncio.gather(*(drain(each.tick) for each in publishers))
    assert await rows.states(both.conn, made) == ["delivered"] * 4
    assert len(await both.open_pulls()) == 4
