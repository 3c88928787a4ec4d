"""Live output on its way to the database: bounded whatever an agent prints, fenced, in order."""

from __future__ import annotations

from uuid import uuid4

from tests.support import rows
from tireless.services.live import CHUNK_MAX, Live
from tireless.store.claim import Claim, RunnerId, claim_next
from tireless.store.db import Connection, Pool

STORED = "SELECT coalesce(string_agg(text, '' ORDER BY seq), '') FROM output_chunk"


async def claimed(conn: Connection) -> Claim:
    """A job of ours."""
    await rows.job(conn)
    (claim,) = await claim_next(conn, [rows.LANE], runner=RunnerId("r1", "h1", uuid4()))
    return claim


async def test_what_is_left_at_the_end_is_sent(conn: Connection, pool: Pool) -> None:
    """Everything an agent printed is stored when its run is over, in order, however short the run."""
    async with Live(pool, await claimed(conn)) as live:
        for n in range(3):
            live.add(f"line {n}\n")
    assert await rows.value(conn, STORED) == "line 0\nline 1\nline 2\n"


async def test_flood_is_cut_to_its_last_part(conn: Connection, pool: Pool) -> None:
    """What is printed faster than it may be sent loses its oldest part, and a line says how much."""
    async with Live(pool, await claimed(conn)) as live:
        live.add("a" * CHUNK_MAX)
        live.add("b" * 100)
    text = str(await rows.value(conn, STORED))
    assert text == "[100 characters left out]\n" + "a" * (CHUNK_MAX - 100) + "b" * 100


async def test_output_of_a_lost_claim_is_not_stored(conn: Connection, pool: Pool) -> None:
    """A runner whose claim is gone writes nothing beside the next one's output."""
    claim = await claimed(conn)
    await rows.change(conn, "job", claim.job_id, claim_token=uuid4())
    async with Live(pool, claim) as live:
        live.add("stale\n")
    assert await rows.value(conn, STORED) == ""
