"""Several last words in one transaction: each comes to what it comes to alone, or waits to be said alone."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support import rows
from tireless.domain.outcome import Outcome
from tireless.errors import Refused, StoreError
from tireless.store import steer
from tireless.store.claim import RunnerId, claim_next, renew_claim
from tireless.store.db import Connection, constraint_of
from tireless.store.look import Wake, take_looks, write_look
from tireless.store.record import Answer
from tireless.store.settle import Ending, Policy, Word, fate, settle, settle_together
from tireless.store.sweep import expire_stale_claims

CAME_TO = """
SELECT j.state, j.reason, j.attempts, j.claim_no, j.given_back, j.given_back_by, j.spent_usd, j.parked, j.question,
       j.not_before_reason, j.not_before IS NULL AS now, j.claim_token, j.finished_at IS NULL AS lives, j.summary,
       j.result_attempt = a.id AS delivers, a.outcome, a.burned, a.reason AS why, a.summary AS said, a.exit_code,
       a.usage, a.head, a.output_head, a.output_tail, a.ended_at IS NULL AS runs, m.changed, e.what, e.from_state,
       e.to_state, e.reason AS told, e.who, e.details, l.why AS look
  FROM job j JOIN attempt a ON a.job_id = j.id JOIN issue i ON i.id = j.issue_id JOIN mirror m ON m.issue_id = i.id
  LEFT JOIN job_event e ON e.job_id = j.id LEFT JOIN look l ON (l.repository_id, l.number) = (i.repository_id, i.number)
 WHERE j.id = %(job)s
"""


def ending(outcome: Outcome, **more: Any) -> Ending:
    """An ending with something in every field that takes it."""
    whole = Ending(
        outcome=outcome,
        reason=f"it was {outcome}\x00",
        summary="Done.",
        question="What?",
        exit_code=3,
        usage={"usd": 0.25, "session": "s\x00"},
        output_tail="ok\ud800",
        wake_s=60.0,
        head="tree",
    )
    return replace(whole, **more)


TOGETHER = [outcome for outcome in Outcome if outcome not in {Outcome.QUOTA, Outcome.LEASE_LOST}]
FAILURES = [outcome for outcome in TOGETHER if fate(ending(outcome)).counts > 0]
"""They count for their lane's breaker."""


def word(made: rows.Made, said: Ending) -> Word:
    """The last word on a claimed job."""
    return Word(*made.claim, said)


def nobody(_wakes: Sequence[Wake]) -> None:
    """A bell that nobody hears."""


async def counted(conn: Connection, *lanes: str) -> None:
    """Lanes of which a failure was counted once, and is long forgotten."""
    for lane in lanes:
        await conn.execute("INSERT INTO lane_breaker (lane) VALUES (%(lane)s)", {"lane": await rows.lane(conn, lane)})


async def came_to(conn: Connection, made: rows.Made) -> list[dict[str, object]]:
    """All that an end writes about its job, but times and ids."""
    return await rows.rows(conn, CAME_TO, job=made.job_id)


async def test_together_each_comes_to_what_it_comes_to_alone(conn: Connection) -> None:
    """Job, attempt, event, mirror and look are written as `settle` writes them, also for one asked to cancel."""
    await counted(conn, rows.LANE)
    asked: list[dict[str, Any]] = [{}, {"cancel_requested": "closed"}, {"max_attempts": 1}]
    words, pairs = [], []
    for outcome in TOGETHER:
        for columns in asked:
            one, other = [await rows.job(conn, state="claimed", recorded=True, **columns) for _ in range(2)]
            assert await settle(conn, *one.claim, ending(outcome)) is Answer.DONE
            words.append(word(other, ending(outcome)))
            pairs.append((one, other))
    random.Random(7).shuffle(words)
    answers = await settle_together(conn, words, ring=nobody)
    assert answers == {each.token: Answer.DONE for each in words}
    for one, other in pairs:
        alone = await came_to(conn, one)
        assert len(alone) == 1
        assert await came_to(conn, other) == alone


async def test_failures_count_in_the_order_they_came(conn: Connection) -> None:
    """The breaker is what it would be had each spoken alone: a success between failures has them begin anew."""
    await counted(conn, "alone", "together")
    policy = Policy(breaker_failures=3, breaker_issues=2)
    breaker = """
    SELECT b.failures, cardinality(b.issues) AS issues, b.opened, h.grown, h.source
      FROM lane_breaker b LEFT JOIN lane_hold h ON h.lane = b.lane WHERE b.lane = %(lane)s
    """
    opened = 0
    for turn in range(25):
        chance = random.Random(turn)
        several = [Outcome.FAILED, Outcome.RETRY, Outcome.FAILED, Outcome.NO_CHANGE, Outcome.SHUTDOWN]
        outcomes = chance.choices(several, k=chance.randint(2, 9))
        for outcome in outcomes:
            made = await rows.job(conn, state="claimed", lane_name="alone")
            assert await settle(conn, *made.claim, ending(outcome), policy=policy) is Answer.DONE
        words = [
            word(await rows.job(conn, state="claimed", lane_name="together"), ending(outcome)) for outcome in outcomes
        ]
        assert len(await settle_together(conn, words, policy=policy, ring=nobody)) == len(words)
        (alone,) = await rows.rows(conn, breaker, lane="alone")
        assert await rows.rows(conn, breaker, lane="together") == [alone], outcomes
        opened += alone["source"] == "breaker"
        await conn.execute("DELETE FROM lane_hold")
    assert 5 < opened < 25


async def test_one_commit_for_all(conn: Connection) -> None:
    """They are one transaction: every attempt is written by the same one."""
    several = [await rows.job(conn, state="claimed") for _ in range(5)]
    await settle_together(conn, [word(made, ending(Outcome.NO_CHANGE)) for made in several], ring=nobody)
    assert await rows.value(conn, "SELECT count(DISTINCT xmin::text) FROM attempt") == 1


Prepare = Callable[[Connection], Coroutine[None, None, Word]]


def counting(outcome: Outcome) -> Prepare:
    """The first failure of its lane, or one that holds it."""

    async def prepare(conn: Connection) -> Word:
        return word(await rows.job(conn, state="claimed"), ending(outcome, asked_s=60.0))

    return prepare


async def of_a_child(conn: Connection) -> Word:
    """Its end is counted at a plan."""
    plan, made = await rows.issue(conn), await rows.job(conn, state="claimed")
    await rows.child(conn, plan, "part", number=made.number, issue_id=made.issue_id)
    return word(made, ending(Outcome.NO_CHANGE))


async def of_a_plan(conn: Connection) -> Word:
    """Its end is told to its children."""
    made = await rows.job(conn, state="claimed", kind="plan", recorded=True)
    await rows.child(conn, made.issue_id, "part", job_id=made.job_id, attempt_id=made.attempt_id)
    return word(made, ending(Outcome.DONE))


async def of_a_limit(conn: Connection) -> Word:
    """Its end wakes the next of its repository."""
    await rows.repository(conn, "acme/full", max_running=1)
    return word(await rows.job(conn, "acme/full", state="claimed"), ending(Outcome.NO_CHANGE))


async def of_a_probe(conn: Connection) -> Word:
    """Its end opens or closes its lane."""
    await rows.lane(conn, "probed")
    made = await rows.job(conn, state="claimed", lane_name="probed")
    since = await rows.value(conn, "SELECT clock_timestamp()")
    await rows.change(conn, "lane", "probed", probing=True, probe_token=made.token, probe_since=since)
    return word(made, ending(Outcome.NO_CHANGE))


async def of_a_host_that_cannot(conn: Connection) -> Word:
    """Its end holds the lane for its host."""
    made = await rows.job(conn, state="claimed")
    return word(made, ending(Outcome.WORKSPACE_ERROR, cannot_start="no such command"))


async def of_a_doubtful_repository(conn: Connection) -> Word:
    """Its end has the poller ask what the repository is."""
    return word(await rows.job(conn, state="claimed"), ending(Outcome.WORKSPACE_ERROR, doubtful=True))


@pytest.mark.parametrize(
    "prepare",
    [
        *map(counting, [*FAILURES, Outcome.QUOTA]),
        of_a_child,
        of_a_plan,
        of_a_limit,
        of_a_probe,
        of_a_host_that_cannot,
        of_a_doubtful_repository,
    ],
    ids=[*FAILURES, Outcome.QUOTA, "child", "plan", "limit", "probe", "setup", "doubtful"],
)
async def test_who_moves_more_than_his_job_is_left_to_speak_alone(conn: Connection, prepare: Prepare) -> None:
    """It gets no answer and nothing of it is written; its company is settled; alone it is settled as ever."""
    shared = await prepare(conn)
    company = await rows.job(conn, state="claimed")
    answers = await settle_together(conn, [shared, word(company, ending(Outcome.NO_CHANGE))], ring=nobody)
    assert answers == {company.token: Answer.DONE}
    state = "SELECT state FROM job WHERE id = %(id)s"
    assert await rows.value(conn, state, id=shared.job_id) == "claimed"
    assert await rows.events(conn, shared.job_id) == []
    assert await settle(conn, shared.job_id, shared.token, shared.ending) is Answer.DONE


async def test_a_claim_that_is_gone_has_no_answer(conn: Connection) -> None:
    """Neither a stranger's token, nor one the sweep took, nor one that was settled before, nor a lost lease."""
    swept = await rows.job(conn, state="claimed")
    await rows.expire(conn, swept.job_id)
    await expire_stale_claims(conn)
    before, other, mine = [await rows.job(conn, state="claimed") for _ in range(3)]
    await settle(conn, *before.claim, ending(Outcome.NO_CHANGE))
    end = ending(Outcome.NO_CHANGE)
    words = [word(swept, end), word(before, end), Word(other.job_id, uuid4(), end), Word(10**12, uuid4(), end)]
    assert await settle_together(conn, [*words, word(mine, end)], ring=nobody) == {mine.token: Answer.DONE}
    lost = Word(*other.claim, Ending(outcome=Outcome.LEASE_LOST))
    assert await settle_together(conn, [lost], ring=nobody) == {}
    assert [await rows.value(conn, "SELECT state FROM job WHERE id = %(i)s", i=m.job_id) for m in (swept, other)] == [
        "pending",
        "claimed",
    ]
    assert len(await rows.events(conn, before.job_id)) == 1


async def test_a_claim_that_was_lost_says_nothing_of_the_one_that_lives(conn: Connection) -> None:
    """A runner may have two claims of one job, the first one swept: what is said of that is not written nor counted."""
    await counted(conn, rows.LANE)
    made = await rows.job(conn, state="claimed")
    await rows.expire(conn, made.job_id)
    await expire_stale_claims(conn)
    (claim,) = await claim_next(conn, [rows.LANE], runner=RunnerId("r1", "h1", uuid4()))
    assert claim.job_id == made.job_id
    stale, live = word(made, ending(Outcome.FAILED)), Word(claim.job_id, claim.token, ending(Outcome.NO_CHANGE))
    assert await settle_together(conn, [stale, live, stale], ring=nobody) == {claim.token: Answer.DONE}
    assert await rows.value(conn, "SELECT failures FROM lane_breaker") == 0
    assert await rows.states(conn, [made]) == ["delivered"]


async def test_what_is_said_twice_counts_once(conn: Connection) -> None:
    """In one group, by one token."""
    await counted(conn, rows.LANE)
    fails = word(await rows.job(conn, state="claimed"), ending(Outcome.FAILED))
    assert await settle_together(conn, [fails, fails], ring=nobody) == {fails.token: Answer.DONE}
    assert await rows.value(conn, "SELECT failures FROM lane_breaker") == 1


async def test_a_locked_job_is_not_waited_for(dsn: str) -> None:
    """A renewal that has not committed holds several jobs: who waited for one of them might be waited for by it."""
    async with rows.connections(dsn, 2) as (conn, renewing):
        held, free = [await rows.job(conn, state="claimed") for _ in range(2)]
        words = [word(made, ending(Outcome.NO_CHANGE)) for made in (held, free)]
        async with renewing.transaction():
            assert set(await renew_claim(renewing, [held.claim])) == {held.token}
            assert await settle_together(conn, words, ring=nobody) == {free.token: Answer.DONE}
        assert await settle_together(conn, words, ring=nobody) == {held.token: Answer.DONE}


async def test_a_locked_breaker_is_not_waited_for(dsn: str) -> None:
    """Who counts a failure in it may be in no hurry; company that counts nothing goes on, and so do other lanes."""
    async with rows.connections(dsn, 2) as (conn, counting):
        await counted(conn, "busy", "idle")
        made = [await rows.job(conn, state="claimed", lane_name=lane) for lane in ("busy", "busy", "idle")]
        fails, fine, other = made
        words = [word(fails, ending(Outcome.FAILED)), word(fine, ending(Outcome.NO_CHANGE))]
        words.append(word(other, ending(Outcome.FAILED)))
        async with counting.transaction():
            await counting.execute("SELECT FROM lane_breaker WHERE lane = 'busy' FOR NO KEY UPDATE")
            answers = await settle_together(conn, words, ring=nobody)
            assert answers == dict.fromkeys([fine.token, other.token], Answer.DONE)
        assert await settle_together(conn, words, ring=nobody) == {fails.token: Answer.DONE}


async def test_one_that_is_refused_refuses_them_all(conn: Connection) -> None:
    """Nothing of any of them is written, nobody is woken, and the error is the one that `settle` raises."""
    fine, unrecorded = [await rows.job(conn, state="claimed") for _ in range(2)]
    words = [word(fine, ending(Outcome.NO_CHANGE)), word(unrecorded, ending(Outcome.DONE))]
    heard: list[Wake] = []
    with pytest.raises(StoreError, match="settling 2 jobs together") as caught:
        await settle_together(conn, words, ring=heard.extend)
    assert constraint_of(caught.value) == "done_has_a_record"
    assert await rows.states(conn, [fine, unrecorded]) == ["claimed", "claimed"]
    assert heard == []


async def test_everybody_is_woken_once(conn: Connection) -> None:
    """However many ends name the same channel: the poller, the publisher, the mirror, each lane that got work."""
    outcomes = [Outcome.NO_CHANGE, Outcome.NO_CHANGE, Outcome.DONE, Outcome.SHUTDOWN, Outcome.SHUTDOWN]
    words = [word(await rows.job(conn, state="claimed", recorded=True), ending(outcome)) for outcome in outcomes]
    rung: list[Sequence[Wake]] = []
    await settle_together(conn, words, ring=rung.append)
    assert len(rung) == 1
    names = ["tireless_lane", "tireless_look", "tireless_mirror", "tireless_publish"]
    assert sorted(str(wake.channel) for wake in rung[0]) == names


async def test_looks_are_locked_by_number(conn: Connection) -> None:
    """As everybody does who writes several, in whatever order the ends came."""
    made = [await rows.job(conn, number=number, state="claimed") for number in (9, 4, 7, 2)]
    await settle_together(conn, [word(each, ending(Outcome.NO_CHANGE)) for each in made], ring=nobody)
    assert [row["number"] for row in await rows.rows(conn, "SELECT number FROM look ORDER BY ctid")] == [2, 4, 7, 9]


@pytest.mark.long
async def test_groups_and_everybody_else_at_once(dsn: str) -> None:
    """Groups that overlap, renewals in any order, cancels, sweeps and looks: no deadlock, each job ends once."""
    async with rows.connections(dsn, 7) as (watch, *conns):
        for turn in range(40):
            chance = random.Random(turn)
            made = [await rows.job(watch, state="claimed") for _ in range(12)]
            for each in chance.sample(made, 2):
                await rows.expire(watch, each.job_id)
            ways = [groups, groups, renewals, cancels, sweeps, looks]
            answers = await asyncio.gather(
                *(way(conn, made, random.Random(chance.random())) for way, conn in zip(ways, conns, strict=True))
            )
            done = [token for answer in answers for token in answer or ()]
            assert len(done) == len(set(done))
            for each in made:
                await settle(watch, *each.claim, ending(Outcome.NO_CHANGE))
                told = [what for what, *_ in await rows.events(watch, each.job_id) if what in ("settle", "expire")]
                assert len(told) == 1
                assert (each.token in done) <= (told == ["settle"])


async def groups(conn: Connection, made: Sequence[rows.Made], chance: random.Random) -> list[UUID]:
    """Settles half of them together, and again; whom it settled."""
    done = []
    for _ in range(3):
        words = [word(each, ending(Outcome.NO_CHANGE)) for each in chance.sample(made, 6)]
        done += list(await settle_together(conn, words, ring=nobody))
    return done


async def renewals(conn: Connection, made: Sequence[rows.Made], chance: random.Random) -> None:
    """Renews all of them, in any order."""
    for _ in range(5):
        await renew_claim(conn, [each.claim for each in chance.sample(made, len(made))])


async def cancels(conn: Connection, made: Sequence[rows.Made], chance: random.Random) -> None:
    """Asks for a few to be cancelled."""
    for each in chance.sample(made, 3):
        with contextlib.suppress(Refused):  # it has ended
            await steer.cancel(conn, each.job_id, "ada")


async def sweeps(conn: Connection, made: Sequence[rows.Made], chance: random.Random) -> None:
    """Takes back what has expired."""
    for _ in range(3):
        await expire_stale_claims(conn)


async def looks(conn: Connection, made: Sequence[rows.Made], chance: random.Random) -> None:
    """Asks for looks, and takes them."""
    for each in chance.sample(made, 6):
        await write_look(conn, each.repository_id, each.number, why="test")
        await take_looks(conn, [rows.FORGE], limit=10)
