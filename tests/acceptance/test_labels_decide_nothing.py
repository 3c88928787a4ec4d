"""No claim is decided by a label: forge and rows contradict the jobs in every way, and claims do not change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.support.killing import LIMIT_S, Installation, installation
from tireless.demo.row_side import read_rows
from tireless.demo.story import STEADY, SWIFT, Scene
from tireless.domain.job import Status
from tireless.domain.outcome import Outcome
from tireless.store.claim import Claim, RunnerId, claim_next, renew_claim
from tireless.store.db import Pool
from tireless.store.record import Answer
from tireless.store.settle import Ending, settle

ME = RunnerId("r1", "h1", uuid4())
LANES = (STEADY, SWIFT)
GO = "tireless/go"

SCENES = (
    Scene("Plain", "One.", labels=(GO, "tireless/implement"), kind="implement", lane=SWIFT),
    Scene("Plan", "Two.", labels=(GO, "tireless/plan"), kind="plan", lane=STEADY),
    Scene("Look", "Three.", labels=(GO, "tireless/discover"), kind="discover", lane=STEADY),
    Scene(
        "Over", "Four.", labels=(GO, "tireless/implement", f"tireless/agent:{STEADY}"), kind="implement", lane=STEADY
    ),
    Scene("Fast", "Five.", labels=(GO, "tireless/implement", "tireless/priority/high"), kind="implement", lane=SWIFT),
    Scene("Held", "Six.", labels=(GO, "tireless/implement", "tireless/hold"), kind="implement", lane=SWIFT),
)

NAMES = (
    GO,
    "tireless/discover",
    "tireless/plan",
    "tireless/implement",
    f"tireless/agent:{STEADY}",
    f"tireless/agent:{SWIFT}",
    "tireless/agent:nobody",
    "tireless/hold",
    "tireless/priority/high",
    "tireless/priority/low",
    "tireless/unheard-of",
    "bug",
    *(f"tireless/status/{status}" for status in Status),
)
_rng = random.Random(20261)
LIES: tuple[tuple[str, ...], ...] = (
    (),
    NAMES,
    *((name,) for name in NAMES),
    *(tuple(each for each in NAMES if each != name) for name in NAMES),
    *(tuple(_rng.sample(NAMES, _rng.randint(2, 6))) for _ in range(20)),
)
"""No label, all of them, each alone, each missing, and some at random."""


@pytest.fixture
async def place(dsn: str, pool: Pool) -> AsyncIterator[Installation]:
    """An installation whose `serve` has taken in the issues of the cast, and is gone."""
    async with installation(dsn, pool, scenes=SCENES) as made:
        await made.start("serve")
        async with asyncio.timeout(LIMIT_S):
            while len((await read_rows(pool)).jobs) < len(SCENES):  # noqa: ASYNC110 - rows of another process
                await asyncio.sleep(0.05)
        await made.kill("serve")
        yield made


async def claims(place: Installation) -> list[Claim]:
    """Everything that can be claimed, one at a time, in the order it comes."""
    taken: list[Claim] = []
    while got := await claim_next(place.conn, LANES, runner=ME):
        taken += got
    return taken


def shape(taken: Sequence[Claim]) -> list[tuple[object, ...]]:
    """What a claim hands out, without what is new each time."""
    return [(each.job_id, each.number, each.kind, each.lane, each.title, each.body, each.attempts) for each in taken]


async def give_back(place: Installation, taken: Sequence[Claim]) -> None:
    """As it was before: the attempt does not count, the turn is kept."""
    for each in taken:
        assert await settle(place.conn, each.job_id, each.token, Ending(outcome=Outcome.SHUTDOWN)) is Answer.DONE


async def lie(place: Installation, names: Sequence[str]) -> None:
    """Make every row say that its issue carries these labels, and what else was made of labels say the contrary."""
    labels = Jsonb([{"id": number, "name": name} for number, name in enumerate(names, start=1)])
    await place.conn.execute(
        "UPDATE issue SET labels = %s, counted = %s, asked = NOT asked, triage_code = 'stranger'",
        (labels, Jsonb({str(number): "kind" for number in range(len(names))})),
    )
    await place.conn.execute(
        "UPDATE mirror SET told_status = %s, told = changed", (_rng.choice([None, *(each.value for each in Status)]),)
    )


async def test_what_is_claimed_without_lies(place: Installation) -> None:
    """What the others compare with is no accident: each in its lane, the hasty one first, the held one to nobody."""
    taken = await claims(place)
    assert {(each.title, each.kind.value, each.lane) for each in taken} == {
        (scene.title, scene.kind, scene.lane) for scene in SCENES if scene.title != "Held"
    }
    assert next(each.title for each in taken if each.lane == SWIFT) == "Fast"


@pytest.mark.parametrize("counted", [False, True], ids=["open lane", "counted lane"])
async def test_labels_in_the_rows_change_no_claim(place: Installation, counted: bool) -> None:
    """Whatever labels the rows have seen: the same jobs, in the same order, with the same text; renewals go on, too."""
    if counted:
        await place.conn.execute("UPDATE lane SET max_running = 50")
    truth = await claims(place)
    await give_back(place, truth)
    for names in LIES:
        await lie(place, names)
        taken = await claims(place)
        assert shape(taken) == shape(truth), names
        renewed = await renew_claim(place.conn, [(each.job_id, each.token) for each in taken])
        assert {token for token, renewal in renewed.items() if renewal.cancel_requested is None} == {
            each.token for each in taken
        }
        await give_back(place, taken)


@pytest.mark.parametrize("counted", [False, True], ids=["open lane", "counted lane"])
async def test_claims_work_without_any_label_column(place: Installation, counted: bool) -> None:
    """With the columns gone that hold labels, or what was made of them, nothing of a claim is missing."""
    if counted:
        await place.conn.execute("UPDATE lane SET max_running = 50")
    truth = await claims(place)
    await give_back(place, truth)
    await place.conn.execute("DROP TRIGGER issue_mirror_update ON issue")  # of the mirror, which does tell of labels
    for column in (b"labels", b"counted", b"asked"):
        await place.conn.execute(b"ALTER TABLE issue DROP COLUMN " + column)
    assert shape(await claims(place)) == shape(truth)


async def test_labels_on_the_forge_change_no_claim(place: Installation) -> None:
    """Whatever stands on the forge: the same claims, and the forge is not even asked."""
    truth = await claims(place)
    await give_back(place, truth)
    ids = await _defined(place)
    for names in LIES:
        for number in place.cast:
            path = f"/repos/{place.town.repository}/issues/{number}/labels"
            await place.town.owner.api("PUT", path, {"labels": [ids[name] for name in names]})
        shown = await place.town.owner.issue(place.town.repository, 1)
        labels = shown["labels"]
        assert isinstance(labels, list)
        assert {label["name"] for label in labels} == set(names)
        before = place.loopback.last_request
        taken = await claims(place)
        assert place.loopback.requests(after=before) == []
        assert shape(taken) == shape(truth), names
        await give_back(place, taken)


async def test_a_runner_works_on_what_the_rows_say(place: Installation) -> None:
    """`tireless run` under the worst lies: each agent is given the job's own kind, and every job ends as it should."""
    ids = await _defined(place)
    for number in place.cast:
        path = f"/repos/{place.town.repository}/issues/{number}/labels"
        await place.town.owner.api("PUT", path, {"labels": [ids["tireless/hold"], ids["tireless/status/cancelled"]]})
    await lie(place, ("tireless/hold", "tireless/plan", "tireless/agent:nobody", "tireless/status/delivered"))
    await place.start("run")
    async with asyncio.timeout(LIMIT_S):
        while any(job.state in ("pending", "claimed") for job in (await read_rows(place.pool)).jobs):  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.05)
    jobs = {job.number: job for job in (await read_rows(place.pool)).jobs}
    for number, scene in place.cast.items():
        expected = "waiting" if scene.title == "Held" else "publishing"
        assert (jobs[number].kind, jobs[number].lane, jobs[number].state) == (scene.kind, scene.lane, expected)
    assert place.runs() == {number: 1 for number, scene in place.cast.items() if scene.title != "Held"}


async def _defined(place: Installation) -> dict[str, int]:
    """All labels of NAMES on the forge, none of them exclusive, so that any of them can stand beside any other."""
    owner, repository = place.town.owner, place.town.repository
    rows = (await owner.api("GET", f"/repos/{repository}/labels", page=1, limit=50)).sequence()
    ids = {str(row["name"]): int(str(row["id"])) for row in rows if isinstance(row, dict)}
    for label_id in ids.values():
        await owner.api("PATCH", f"/repos/{repository}/labels/{label_id}", {"exclusive": False})
    return ids | {name: await owner.create_label(repository, name) for name in NAMES if name not in ids}
