"""SIGKILL of `serve` and `run` before effects and in the middle of writes, each restarted: the story ends the same.

What is done when its maker dies is test_every_effect.py's; here it is still to come, or is rolled back.

What is expected of attempts says what a death costs: before a result was recorded one attempt, afterwards none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import LiteralString

import pytest

from tests.support.killing import At, AtAgent, AtForge, AtRow, Installation, LateAtForge, Who, installation
from tireless.store.db import Pool


@dataclass(frozen=True)
class Moment:
    """When who is killed, and what that costs the job that a killed `run` had."""

    who: Who
    at: At
    burns: bool = False
    """The attempt is lost: another one follows."""
    again: bool = False
    """An agent works on it once more."""
    cut: bool = False
    """An agent died at work."""
    held: bool = False
    """What waited in the moment stays there to the end: a request that never arrives."""


RECORD = AtRow("attempt", "NEW.commit_sha IS NOT NULL AND OLD.recorded_at IS NULL")
PUSHED = AtRow("attempt", "NEW.pushed_at IS DISTINCT FROM OLD.pushed_at")
FETCH = AtForge("GET", r"\.git/info/refs\?service=git-upload-pack")
PUSH_BEGINS = AtForge("GET", r"\.git/info/refs\?service=git-receive-pack")
PUSH = AtForge("POST", r"\.git/git-receive-pack")

RUN = {
    "the claim is recorded": Moment("run", FETCH, burns=True),
    "its agent is at work": Moment("run", AtAgent("implement"), burns=True, again=True, cut=True),
    "the result is being written": Moment("run", RECORD, burns=True, again=True),
    "the result is recorded": Moment("run", PUSH_BEGINS, again=True, held=True),
    "the push is sent": Moment("run", PUSH, again=True, held=True),
    "the push is being recorded": Moment("run", PUSHED),
    "the children are being written": Moment(
        "run", AtRow("child", "NEW.key = 'import'", "INSERT"), burns=True, again=True
    ),
}


@pytest.mark.parametrize("moment", RUN.values(), ids=RUN)
async def test_run_is_killed(dsn: str, pool: Pool, moment: Moment) -> None:
    """The runner dies, its agent with it; after the lease the job goes on from what was recorded."""
    await killed(dsn, pool, moment)


SERVE = {
    "the first job is being written": Moment("serve", AtRow("job", "true", "INSERT")),
    "a job is taken for delivery": Moment("serve", AtForge("GET", r"/pulls\?")),
    "a pull request is sent": Moment("serve", AtForge("POST", r"/pulls$")),
    "a pull request is being recorded": Moment(
        "serve", AtRow("job", "NEW.pull_request IS DISTINCT FROM OLD.pull_request")
    ),
    "the delivery is being written": Moment(
        "serve", AtRow("job", "NEW.state = 'delivered' AND NEW.kind = 'implement'")
    ),
    "a child is sent": Moment("serve", AtForge("POST", r"/issues$")),
    "a child is being recorded": Moment("serve", AtRow("child", "NEW.number IS DISTINCT FROM OLD.number")),
    "a dependency is sent": Moment("serve", AtForge("POST", r"/dependencies$")),
    "a status label is sent": Moment("serve", AtForge("POST", r"/issues/\d+/labels$")),
    "a comment is sent": Moment("serve", AtForge("POST", r"/comments$")),
    "a comment is being recorded": Moment("serve", AtRow("mirror", "NEW.comment_id IS DISTINCT FROM OLD.comment_id")),
}


@pytest.mark.parametrize("moment", SERVE.values(), ids=SERVE)
async def test_serve_is_killed(dsn: str, pool: Pool, moment: Moment) -> None:
    """Poller, publisher, mirror, sweeper die at once; the next ones find what was made instead of making it again."""
    await killed(dsn, pool, moment)


WAITS_FOR_JOB: LiteralString = "SELECT 1 FROM job WHERE publish_not_before > clock_timestamp()"
WAITS_FOR_COMMENT: LiteralString = "SELECT 1 FROM mirror WHERE not_before > clock_timestamp()"
LATE: dict[str, tuple[LateAtForge, LiteralString]] = {
    "a pull request": (LateAtForge("POST", r"/pulls$"), WAITS_FOR_JOB),
    "a child": (LateAtForge("POST", r"/issues$"), WAITS_FOR_JOB),
    "a comment": (LateAtForge("POST", r"/comments$"), WAITS_FOR_COMMENT),
}


@pytest.mark.parametrize("late", LATE)
async def test_what_the_dead_sent_arrives_late(dsn: str, pool: Pool, late: str) -> None:
    """The forge carries a create out after the next `serve` began: that one waits for it, and finds it in time.

    It waits three minutes, which no machine takes to begin it; they pass when the create has arrived.
    """
    at, waits = LATE[late]
    async with installation(dsn, pool, timeout_s=60) as place, AsyncExitStack() as gate:
        reached = await gate.enter_async_context(at.armed(place))
        await place.start("serve")
        await place.start("run")
        await place.reach(reached)
        await place.kill("serve")
        await place.takes_end("serve")
        await place.start("serve")
        await place.asked(waits)
        await gate.aclose()
        await at.arrived(place)
        await place.waits_end()
        await place.rests(place.cast)
        await _nothing_is_twice(place)


async def test_push_of_the_dead_arrives_late_and_is_adopted(dsn: str, pool: Pool) -> None:
    """The publisher looked before the recorded push came: the next runner finds it, delivers it, and runs no agent."""
    async with installation(dsn, pool) as place, AsyncExitStack() as gate:
        late = LateAtForge("POST", r"\.git/git-receive-pack")
        reached = await gate.enter_async_context(late.armed(place))
        await place.start("serve")
        await place.start("run")
        await place.reach(reached)
        await place.kill("run")
        await place.agents_gone()
        await place.takes_end("run")
        await place.asked("SELECT 1 FROM job_event WHERE reason = 'work_not_pushed'")
        await gate.aclose()
        await place.pushed()
        await place.start("run")
        await place.rests(place.cast)
        await place.asked("SELECT 1 FROM job_event WHERE what = 'adopt'")
        await _nothing_is_twice(place)
        _no_agent_beside_another(place, {}, cut=False)


async def test_a_lease_runs_out_by_itself(dsn: str, pool: Pool) -> None:
    """No row is moved: the agent dies with its runner, and when the lease is over another runner has the job."""
    async with installation(dsn, pool, lease_s=12) as place:
        async with AtAgent("implement").armed(place) as reached:
            await place.start("serve")
            await place.start("run")
            await place.reach(reached)
            await place.kill("run")
        await place.agents_gone()
        await place.start("run")
        issue = place.number_of("implement")
        await place.rests(place.with_attempts({issue: 2}))
        _no_agent_beside_another(place, {issue: 2}, cut=True)


async def killed(dsn: str, pool: Pool, moment: Moment) -> None:
    """The story with a death in the middle of it."""
    async with installation(dsn, pool) as place, AsyncExitStack() as gate:
        reached = await gate.enter_async_context(moment.at.armed(place))
        await place.start("serve")
        await place.start("run")
        await place.reach(reached)
        await place.kill(moment.who)
        had = None
        if moment.who == "run":
            await place.agents_gone()
            had = await place.had()
        if not moment.held:
            await gate.aclose()
        await place.time_passes(moment.who)
        await place.start(moment.who)
        await place.rests(place.with_attempts({had: 2} if moment.burns else {}))
        await _nothing_is_twice(place)
        _no_agent_beside_another(place, {had: 2} if moment.again else {}, cut=moment.cut)


async def _nothing_is_twice(place: Installation) -> None:
    """What `differences` does not see: labels defined twice, pull requests that were closed again."""
    definitions = (await place.town.owner.api("GET", f"/repos/{place.town.repository}/labels", limit=50)).sequence()
    names = Counter(str(each["name"]) for each in definitions if isinstance(each, dict))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(await place.town.owner.pulls(place.town.repository)) == 1


def _no_agent_beside_another(place: Installation, runs: Mapping[int | None, int], *, cut: bool) -> None:
    """By the agents' own records: none began while another of its job lived, and as many began as had to."""
    begun, ended = place.recorded("begin"), place.recorded("end")
    assert all(each["alone"] for each in begun)
    assert place.runs() == {number: runs.get(number, 1) for number, scene in place.cast.items() if scene.asks}
    assert len(ended) == len(begun) - cut
