"""`job_gate` and the claim agree: a job with nothing else pending is taken exactly when no gate blocks it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection

ME = RunnerId("r1", "here", uuid4())

FACTORS: dict[str, Sequence[str]] = {
    "wait": ("none", "on_hold", "suspect", "backoff", "waits_for", "untracked", "cannot_tell", "needs_approval"),
    "lane": ("configured", "lane_not_configured"),
    "hold": ("none", "operator", "quota", "breaker", "here", "elsewhere", "both"),
    "lane_limit": ("none", "room", "lane_full"),
    "repository_limit": ("none", "room", "repository_full"),
    "day_limit": ("none", "room", "day_limit"),
    "probe": ("none", "free", "probing", "lived"),
}
_rng = random.Random(20261)
SAMPLE = [
    # Mostly harmless, or every case would be blocked many times over.
    tuple(values[0] if _rng.random() < 0.6 else _rng.choice(values) for values in FACTORS.values())
    for _ in range(240)
]
ALONE = [
    tuple(value if name == factor else values[0] for factor, values in FACTORS.items())
    for name, options in FACTORS.items()
    for value in options
]
"""One thing at a time, so that each gate is certainly met."""


def expected(case: tuple[str, ...]) -> str | None:
    """The first gate in the order in which people are told, for a runner of any host."""
    wait, lane, hold, *limits, probe = case
    if wait != "none":
        return wait
    if lane != "configured":
        return lane
    if hold in ("operator", "quota", "breaker", "both"):
        return "lane_held"
    full = [limit for limit in limits if limit not in ("none", "room")]
    return full[0] if full else ("probing" if probe == "probing" else None)


async def arrange(conn: Connection, case: tuple[str, ...]) -> rows.Made:
    """One pending or waiting job, and around it what the case names."""
    wait, lane, hold, lane_limit, repository_limit, day_limit, probe = case
    made = await rows.job(conn)
    await _arrange_repository(conn, made, repository_limit, day_limit)
    if lane_limit != "none":
        await rows.job(conn, "acme/third", state="claimed")
        await rows.lane(conn, max_running=1 if lane_limit == "lane_full" else 9)
    sources = {"both": ("quota", "operator"), "none": ()}.get(hold, (hold,))
    for source in sources:
        host = "" if source in ("operator", "quota", "breaker") else source
        values = {"source": "setup" if host else source, "host": host, "reason": "why", "held_by": "x"}
        await rows.insert(conn, "lane_hold", lane=rows.LANE, **values)
    if probe != "none":
        await rows.lane(conn, probing=True)
    if probe in ("probing", "lived"):
        age = {"probing": "119 s", "lived": "121 s"}[probe]
        since = await rows.value(conn, "SELECT clock_timestamp() - %(age)s::interval", age=age)
        await rows.lane(conn, probe_token=uuid4(), probe_since=since)
    await rows.lane(conn, configured=lane == "configured")
    await _arrange_wait(conn, made, wait)
    return made


async def _arrange_repository(conn: Connection, made: rows.Made, repository_limit: str, day_limit: str) -> None:
    if repository_limit != "none":
        await rows.job(conn, lane_name="another", state="claimed")
        limit = 1 if repository_limit == "repository_full" else 9
        await rows.change(conn, "repository", made.repository_id, max_running=limit)
    if day_limit != "none":
        await rows.job(conn, lane_name="another", state="delivered")
        running = await rows.value(
            conn, "SELECT count(*) FROM attempt WHERE repository_id = %(id)s", id=made.repository_id
        )
        limit = int(str(running)) if day_limit == "day_limit" else 9
        await rows.change(conn, "repository", made.repository_id, max_runs_per_day=limit)
    await conn.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what a commit would do


async def _arrange_wait(conn: Connection, made: rows.Made, wait: str) -> None:
    later = await rows.value(conn, "SELECT clock_timestamp() + interval '1 h'")
    columns: dict[str, dict[str, object]] = {
        "on_hold": {"hold": True},
        "suspect": {"parked": "suspect"},
        "backoff": {"not_before": later, "not_before_reason": "backoff"},
        "waits_for": {"waits_for": ["acme/widget#9"]},
    }
    match wait:
        case "untracked":
            await rows.change(conn, "repository", made.repository_id, tracked=False)
        case "cannot_tell":
            await rows.change(conn, "repository", made.repository_id, readable=False, unreadable_reason="403")
        case "needs_approval":
            await rows.change(conn, "issue", made.issue_id, content_hash="another text")
    await rows.change(conn, "job", made.job_id, **columns.get(wait, {"state": "pending"}))


@pytest.mark.parametrize("cases", [ALONE, SAMPLE], ids=["alone", "mixed"])
async def test_a_claim_takes_a_job_exactly_when_no_gate_blocks_it(
    conn: Connection, cases: Sequence[tuple[str, ...]]
) -> None:
    """Over combinations of all waits, holds, limits and probes: the view names the first gate, the claim obeys it."""
    taken = 0
    for case in cases:
        async with conn.transaction(force_rollback=True):
            made = await arrange(conn, case)
            (seen,) = await rows.rows(
                conn, "SELECT gate, held_hosts FROM job_gate WHERE job_id = %(id)s", id=made.job_id
            )
            assert seen["gate"] == expected(case), case
            assert isinstance(seen["held_hosts"], list)
            held_here = ME.host in seen["held_hosts"]
            got = await claim_next(conn, [rows.LANE], runner=ME, n=5)
            assert [c.job_id for c in got] == ([made.job_id] if seen["gate"] is None and not held_here else []), case
            taken += len(got)
    assert 0 < taken < len(cases)  # both answers were met


async def test_the_gate_names_the_operators_hold_first(conn: Connection) -> None:
    """Of several holds the one a person set is told, with its reason and end."""
    made = await rows.job(conn)
    for source in ("quota", "operator"):
        await rows.insert(conn, "lane_hold", lane=rows.LANE, source=source, reason=f"{source} says", held_by="x")
    (seen,) = await rows.rows(conn, "SELECT * FROM job_gate WHERE job_id = %(id)s", id=made.job_id)
    assert (seen["gate"], seen["hold_source"], seen["hold_reason"]) == ("lane_held", "operator", "operator says")
