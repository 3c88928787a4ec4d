"""What a runner costs while its agents work: memory and CPU of `tireless run` and its guards, the agents left out."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import rows
from tests.support.agents import exits, wait
from tests.support.cli import Running, closed
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench

AGENTS = 8
MEMORY_MAX = 100_000_000
"""Bytes, of runner and guards together."""
CPU_MAX = 0.01
"""Of one core."""
RENEWALS = int(os.environ.get("TIRELESS_TEST_RENEWALS", "1"))
"""How many renewals, ten seconds apart, the CPU is counted over; what was found is printed (`-s`)."""


def configured(bench: Bench) -> Path:
    """The configuration of a runner with all its defaults but the number of slots."""
    closed(bench.directory / "token", bench.stage.bot.token)
    text = f"""
[database]
url = {json.dumps(bench.dsn)}
[forges.{bench.stage.repo.forge}]
url = "{bench.loopback.url}"
token_file = "token"
[lanes.claude]
command = {json.dumps(list(bench.script.argv))}
[runner]
concurrency = {AGENTS}
"""
    return closed(bench.directory / "config.toml", text)


def parent(pid: int) -> int:
    """Who started this process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def cpu_s(pids: Sequence[int]) -> float:
    """Seconds these processes' threads ran so far, by the scheduler's own count (nanoseconds, not ticks)."""
    ran = 0
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()):
        with contextlib.suppress(OSError):  # a thread that ends at this moment
            ran += int((task / "schedstat").read_text().split()[0])
    return ran / 1e9


def memory(pid: int, *names: str) -> int:
    """Bytes of a process, the sum of these lines of its smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    table = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return 1024 * sum(table[name] for name in names)


async def renewed(bench: Bench, times: int) -> None:
    """Returns when the claims were renewed so often from now on."""
    query = "SELECT max(claim_expires_at) FROM job WHERE state = 'claimed'"
    for _ in range(times):
        before = await rows.value(bench.conn, query)

        async def news(before: object = before) -> bool:
            return await rows.value(bench.conn, query) != before

        await bench.until(news, True)


@pytest.mark.long
async def test_a_runner_with_eight_quiet_agents_is_cheap(bench: Bench) -> None:
    """Beyond its agents it takes less than 100 MB and, from renewal to renewal, less than a hundredth of a core."""
    for _ in range(AGENTS):
        await bench.job([wait(), exits(44)])
    async with Running("run", "--lane", "claude", "--config", configured(bench), home=bench.directory) as runner:
        agents = [(await bench.gate.line()).pid for _ in range(AGENTS)]
        guards = [parent(pid) for pid in agents]
        ours = [runner.process.pid, *guards]
        assert {parent(pid) for pid in guards} == {runner.process.pid}
        await renewed(bench, 1)
        before, began = cpu_s(ours), time.monotonic()
        await renewed(bench, RENEWALS)
        used = (cpu_s(ours) - before) / (time.monotonic() - began)
        # What guards share with each other (the interpreter's own files) the runner has mapped as well.
        own = [memory(pid, "Private_Clean", "Private_Dirty") for pid in guards]
        whole = memory(runner.process.pid, "Rss")
        said = f"runner {whole:,} B, guards {', '.join(f'{each:,}' for each in own)} B, CPU {used:.2%} of a core"
        sys.stdout.write(said + "\n")
        bench.gate.release(AGENTS)
        await runner.logged("attempt finished", nth=AGENTS)
        assert await runner.stop() == 0
    assert whole + sum(own) < MEMORY_MAX, said
    assert used < CPU_MAX, said
