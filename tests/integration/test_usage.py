"""What agents have cost, summed from the attempts' usage by job, lane, repository and day; on the command line too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from starlette.requests import Request

from tests.support import rows
from tests.support.cli import Desk
from tireless.store import inspect
from tireless.store.db import Connection, Pool, clock
from tireless.store.inspect import Cost
from tireless.web.metrics import metrics


@pytest.fixture
def desk(tmp_path: Path, dsn: str) -> Desk:
    """On this test's database."""
    return Desk(tmp_path, dsn)


async def ran(
    conn: Connection,
    made: rows.Made,
    *,
    usage: object,
    days_ago: int = 0,
    burned: bool | None = True,
    lane: str = rows.LANE,
) -> None:
    """An attempt of a job that has ended (None: that runs), so long ago."""
    before = await rows.row(conn, "job", made.job_id)
    number = int(str(before["claim_no"])) + 1
    await rows.change(conn, "job", made.job_id, claim_no=number)
    at = await clock(conn) - timedelta(days=days_ago)
    ended: dict[str, object] = {} if burned is None else {"ended_at": at, "outcome": "retry", "burned": burned}
    given = None if usage is None else Jsonb(usage)
    columns: dict[str, Any] = {"claimed_at": at, "usage": given, "lane": lane, **ended}
    await rows.attempt(conn, made.job_id, **columns)


async def seed(conn: Connection) -> rows.Made:
    """Two repositories, two lanes, three days."""
    made = await rows.job(conn)
    await ran(conn, made, usage={"usd": 0.1, "input_tokens": 10, "output_tokens": 1})
    await ran(conn, made, usage={"usd": 0.2, "model": "m"}, burned=False)
    await ran(conn, made, usage=None, burned=None)
    other = await rows.job(conn, "acme/other")
    await ran(conn, other, usage={"usd": 4, "input_tokens": 2**52}, days_ago=1, lane="codex")
    await ran(conn, other, usage={"usd": 8}, days_ago=9)
    return made


async def test_usage_is_summed(conn: Connection) -> None:
    """Every attempt's money and tokens count, given back or not; runs are those that were not given back."""
    await seed(conn)
    used = await inspect.usage_sums(conn, days=7)
    today = Cost(runs=2, given_back=1, input_tokens=10, output_tokens=1, usd=0.3)
    before = Cost(runs=1, given_back=0, input_tokens=2**52, output_tokens=0, usd=4.0)
    assert list(used.by_day.values()) == [before, today]
    assert used.by_lane == {"claude": today, "codex": before}
    assert used.by_repository == {"loop:acme/other": before, "loop:acme/widget": today}
    assert used.total == Cost(runs=3, given_back=1, input_tokens=2**52 + 10, output_tokens=1, usd=4.3)
    assert (await inspect.usage_sums(conn, days=1)).total == today
    assert (await inspect.usage_sums(conn, days=30)).total.usd == pytest.approx(12.3)


async def test_metrics_have_today(conn: Connection, pool: Pool) -> None:
    """`/metrics` tells each lane's runs and money since midnight; what is older is not of today."""
    await seed(conn)
    answer = await metrics(pool, lambda: ())(Request({"type": "http"}))
    told = bytes(answer.body).decode()
    assert 'tireless_usage_today{lane="claude",what="usd"} 0.3\n' in told
    assert 'tireless_usage_today{lane="claude",what="runs"} 2.0\n' in told
    assert 'lane="codex",what="usd"' not in told


async def test_nothing_used_is_nothing(conn: Connection) -> None:
    """An empty installation sums to zero, with no day, lane or repository."""
    used = await inspect.usage_sums(conn)
    assert (used.total, used.by_day, used.by_lane, used.by_repository) == (Cost(), {}, {}, {})


async def test_a_job_shows_what_it_has_cost(desk: Desk, conn: Connection) -> None:
    """`jobs show` and `jobs ls --json` have the sums of its attempts, and what is left of its lane's cap."""
    made = await seed(conn)
    await rows.lane(conn, max_usd="2")
    await rows.change(conn, "job", made.job_id, spent_usd="0.3")
    told = (await desk("jobs", "show", str(made.job_id))).out
    assert "2 runs, 10 tokens in, 1 out, 0.3 USD, 0.3 of 2 USD until a person acts" in told
    (row,) = [each for each in (await desk("jobs", "ls", "--json")).data["jobs"] if each["id"] == made.job_id]
    assert (row["runs"], row["usd"], row["input_tokens"], row["spent_usd"], row["max_usd"]) == (2, 0.3, 10, 0.3, 2.0)
    (ended,) = (await desk("jobs", "ls", "--json", "--issue", f"{rows.REPO}#{made.number}")).data["jobs"]
    assert ended["usd"] == 0.3


async def test_stats_tell_usage(desk: Desk, conn: Connection) -> None:
    """`stats` adds up by day, lane and repository, as a table and as JSON."""
    await seed(conn)
    told = (await desk("stats", "--days", "30")).out
    assert "loop:acme/other" in told
    assert "12.30" in told
    used = (await desk("stats", "--json")).data["usage"]
    assert used["total"]["usd"] == 4.3
    assert used["by_lane"]["codex"]["runs"] == 1
    assert [cost["usd"] for cost in used["by_day"].values()] == [4.0, 0.3]
