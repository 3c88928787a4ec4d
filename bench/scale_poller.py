"""One polling process, as `serve` has it: scans everything for the first time, then quietly, then whole again.

`python -m bench.scale_poller` reads one line of JSON from its input (database, url, token, and whether to search by
owner) and prints a line of JSON for each phase: seconds, requests, jobs, and its memory. The database knows the
repositories already.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
import time
from pathlib import Path
from typing import LiteralString

import structlog

from tireless.app.serving import POLLERS
from tireless.domain.job import Kind
from tireless.domain.labels import LabelScheme
from tireless.domain.people import Policy
from tireless.domain.routing import Lane
from tireless.forge.gitea import GiteaForge
from tireless.services.poller import Poller
from tireless.store.db import Connection, pool
from tireless.store.intake import Rules

LANE = Lane("claude", (Kind.IMPLEMENT,), is_default=True)
FORGE = "forge"

COUNT = "SELECT (SELECT count(*) FROM issue), (SELECT count(*) FROM job), (SELECT count(*) FROM look)"
DUE = "UPDATE repository SET poll_not_before = '-infinity'"
SEARCH_DUE = "UPDATE owner_poll SET poll_not_before = '-infinity'"
# As if ten minutes had passed since each newest stamp was first seen.
QUIET = "UPDATE repository SET newest_first_seen_at = newest_first_seen_at - interval '10 min'"
SEARCH_QUIET = "UPDATE owner_poll SET newest_first_seen_at = newest_first_seen_at - interval '10 min'"
FULL = "UPDATE repository SET full_scan_at = '-infinity'"


def peak_mib() -> float:
    """The most memory this process ever held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(about: dict[str, str]) -> None:
    """All phases."""
    # The budget of 3,000 requests a minute is the forge's protection, not what is measured here.
    forge = GiteaForge(name=FORGE, url=about["url"], token=about["token"], requests_per_minute=10**7)
    async with pool(about["database"], min_size=1, max_size=10, application_name="tireless scale") as opened:
        rules = Rules(LabelScheme(), Policy(), (LANE,))
        forges = {FORGE: forge}
        alone = Poller(opened, forges, rules=rules, poll_s=86_400.0, by_owner=False)
        together = Poller(opened, forges, rules=rules, poll_s=86_400.0)
        async with opened.connection() as conn:
            await phase("first scan", alone, forge, conn)
            await make(conn, QUIET, DUE)
            await phase("round after it", alone, forge, conn)
            await make(conn, DUE)
            await phase("idle round", alone, forge, conn)
            if about["search"]:
                await make(conn, DUE)
                await phase("round that tries the owner's search", together, forge, conn)
                await make(conn, SEARCH_QUIET, SEARCH_DUE)
                await phase("search after it", together, forge, conn)
                await make(conn, SEARCH_QUIET, SEARCH_DUE)
                await phase("search once it is quiet", together, forge, conn)
                await make(conn, SEARCH_DUE)
                await phase("idle round by the search", together, forge, conn)
            await make(conn, FULL, DUE)
            await phase("full scan", together if about["search"] else alone, forge, conn)
    await forge.aclose()


async def make(conn: Connection, *statements: LiteralString) -> None:
    """Move time along."""
    for statement in statements:
        await conn.execute(statement)


async def phase(name: str, poller: Poller, forge: GiteaForge, conn: Connection) -> None:
    """Everything that is due, by as many loops as `serve` has; then what it took."""
    began, cpu, requests = time.monotonic(), time.process_time(), forge.requests

    async def loop() -> None:
        while await poller.tick():
            pass

    await asyncio.gather(*(loop() for _ in range(POLLERS)))
    row = await (await conn.execute(COUNT)).fetchone()
    assert row is not None  # noqa: S101  a row of counts
    said = {
        "phase": name,
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "requests": forge.requests - requests,
        "issues": row[0],
        "jobs": row[1],
        "looks": row[2],
        "peak_mib": round(peak_mib(), 1),
    }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read where everything is, and measure."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(measure(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
