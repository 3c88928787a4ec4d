"""The bare limit: pgbench on the least that a claim and a finish can be, two prepared statements and two commits.

What a queue adds to this (attempts, events, fences, limits, a client in Python) shows as its share of this rate.
"""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import PIPE
from functools import partial

from bench.figures import BARE, GROUPS, Measure
from bench.place import Place, pgbench, session
from bench.sizes import Sizes
from tireless.errors import StoreError

NAME = "bench_bare"

SCHEMA = """
CREATE TABLE bare (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  lane        text NOT NULL,
  priority    smallint NOT NULL DEFAULT 0,
  state       text NOT NULL DEFAULT 'pending',
  token       bigint NOT NULL DEFAULT 0,
  expires_at  timestamptz,
  finished_at timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0)
"""
PENDING = "CREATE INDEX bare_pending ON bare (lane, priority DESC, id) WHERE state = 'pending'"
FINISHED = "CREATE INDEX bare_finished ON bare (finished_at, id) WHERE finished_at IS NOT NULL"
FILL = "INSERT INTO bare (lane) SELECT 'one' FROM generate_series(1, %(n)s::int)"
EMPTY = "DELETE FROM bare WHERE state = 'pending'"
HISTORY = """
INSERT INTO bare (lane, state, token, finished_at)
SELECT 'one', 'finished', 1, clock_timestamp() - make_interval(secs => %(n)s::int - n)
  FROM generate_series(1, %(n)s::int) AS n
"""

# \gset demands one row: there is always more pending than is taken, so that no client comes away empty.
PAIR = r"""
WITH c AS MATERIALIZED (
  SELECT id FROM bare WHERE state = 'pending' AND lane = 'one' ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE bare b SET state = 'claimed', token = b.token + 1, expires_at = clock_timestamp() + interval '90 s'
  FROM c WHERE b.id = c.id RETURNING b.id, b.token \gset
UPDATE bare SET state = 'finished', expires_at = NULL, finished_at = clock_timestamp()
 WHERE id = :id AND token = :token AND state = 'claimed';
"""
_RATE = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_SPARE = 200


class Bare:
    """The subject: a database with one table."""

    name = BARE

    def __init__(self, at: Place, sizes: Sizes) -> None:
        self._place = at
        self._sizes = sizes
        self._url = ""

    async def prepare(self) -> None:
        """The table, empty."""
        self._url = await self._place.database(NAME)
        async with session(self._url) as conn:
            for statement in (SCHEMA, PENDING, FINISHED):
                await conn.execute(statement)

    async def fabricate(self, finished: int) -> None:
        """So many finished rows, with statistics."""
        async with session(self._url) as conn:
            await conn.execute(HISTORY, {"n": finished})
            await conn.execute("VACUUM ANALYZE bare")

    def measures(self) -> list[Measure]:
        """Pairs a second at 16, 4 and 1 clients."""
        label = "pgbench, claim + finish"
        return [
            Measure(
                BARE,
                f"pair {clients}",
                group,
                f"{label}, {clients} client{'s' if clients > 1 else ''}",
                "jobs/s",
                partial(self._pairs, clients),
            )
            for clients, group in zip((16, 4, 1), GROUPS[:3], strict=True)
        ]

    async def _pairs(self, clients: int) -> list[float]:
        await self._fill(self._sizes.pairs + _SPARE)
        script = self._place.state / "pair.sql"
        script.write_text(PAIR)
        words = ["-n", "-M", "prepared", "-f", str(script), "-c", str(clients), "-j", str(min(clients, 2))]
        words += ["-t", str(max(self._sizes.pairs // clients, 1)), "-d", self._url]
        ran = await asyncio.create_subprocess_exec(pgbench(), *words, stdout=PIPE, stderr=PIPE)
        told, complained = (text.decode() for text in await ran.communicate())
        rate = _RATE.search(told)
        if ran.returncode or rate is None:
            raise StoreError(f"pgbench with {clients} clients ended with {ran.returncode}: {complained or told}")
        return [float(rate[1])]

    async def _fill(self, pending: int) -> None:
        async with session(self._url) as conn:
            await conn.execute(EMPTY)
            await conn.execute(FILL, {"n": pending})
