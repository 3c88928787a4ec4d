"""The smallest round of the measurements that need nobody else: they run, and they give what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bench.__main__ import measure
from bench.bare import Bare
from bench.figures import BARE, OURS, PROMISES, Figures, ratios
from bench.ours import Ours
from bench.place import Place, machine, place, session, settings, versions
from bench.sizes import TINY

pytestmark = pytest.mark.xdist_group("bench_smoke")  # one server, measured once


@pytest.fixture(scope="module")
def at() -> Iterator[Place]:
    """A server in safe mode."""
    with place() as found:
        yield found
    assert not found.state.exists()


@pytest.fixture(scope="module")
def figures(at: Place) -> Figures:
    """A run of the bare limit and of tireless."""
    said: list[str] = []
    found = measure(at, [Bare(at, TINY), Ours(at, TINY)], TINY, say=said.append)
    assert len(said) == 2 + sum(len(figure.rounds) for figure in found.all())
    return found


def test_a_group_has_one_process(request: pytest.FixtureRequest) -> None:
    """`./run test` sends a group to one process, which says so in its tests' names: versions were seen that do not."""
    grouped = request.config.getoption("loadgroup", default=False)
    assert request.node.nodeid.endswith("@bench_smoke") == grouped


def test_every_measure_gives_its_rounds(figures: Figures) -> None:
    """Rates and times above 0, as many rounds as asked for, with an empty table and beside a history."""
    for figure in figures.all():
        assert len(figure.rounds) == (TINY.history_rounds if figure.history else TINY.rounds)
        assert min(figure.samples) > 0 or figure.unit == "ms"
    assert figures.histories() == [0, TINY.history]
    subjects = [figure.subject for figure in figures.all()]
    assert (subjects.count(BARE), subjects.count(OURS)) == (2 * 3, 2 * 18)


def test_the_ratios_to_the_bare_limit_are_there(figures: Figures) -> None:
    """Lanes and held snapshot at both sizes of history; and every figure of ours that is promised was measured."""
    promised = {key for promise in PROMISES for subject, key in promise.figures if subject == OURS}
    assert promised <= {figure.key for figure in figures.all() if figure.subject == OURS}
    assert [(ratio.promise.over[1], ratio.history) for ratio in ratios(figures)] == [
        ("open run", 0),
        ("open 16", 0),
        ("limited run", 0),
        ("held", 0),
        ("open run", TINY.history),
        ("open 16", TINY.history),
        ("limited run", TINY.history),
        ("held", TINY.history),
    ]


def test_all_that_a_claim_and_an_end_write_is_written(at: Place, figures: Figures) -> None:
    """Every job left in the table has ended, with its attempt, its events and its mirror; the breaker was counted."""
    asked = {
        "not ended": "SELECT count(*) FROM job WHERE finished_at IS NULL",
        "no attempt": "SELECT count(*) FROM job j WHERE NOT EXISTS (SELECT FROM attempt a WHERE a.job_id = j.id)",
        "no end told": "SELECT count(*) FROM job j WHERE NOT EXISTS (SELECT FROM job_event e WHERE e.job_id = j.id)",
        "no mirror": "SELECT count(*) FROM job j WHERE NOT EXISTS (SELECT FROM mirror m WHERE m.issue_id = j.issue_id)",
        "no breaker": "SELECT count(*) FROM lane l WHERE NOT EXISTS (SELECT FROM lane_breaker b WHERE b.lane = l.name)",
        "held": "SELECT count(*) FROM lane_hold",
    }

    async def ask() -> dict[str, int]:
        async with session(at.url_of("bench_tireless")) as conn:
            answers = {}
            for what, query in asked.items():
                row = await (await conn.execute(query.encode())).fetchone()
                answers[what] = -1 if row is None else int(row[0])
            return answers

    assert figures.all()
    assert asyncio.run(ask()) == dict.fromkeys(asked, 0)


def test_the_place_is_as_safe_as_production(at: Place) -> None:
    """A commit that is answered is on the disk; the document can say so, and where."""
    told = asyncio.run(settings(at))
    assert {told[name] for name in ("fsync", "synchronous_commit", "full_page_writes", "autovacuum")} == {"on"}
    assert told["server_version"]
    assert float(str(machine(at)["sync_ms"])) > 0
    assert {"python", "tireless", "psycopg"} <= set(versions())
