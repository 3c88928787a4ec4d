"""Work of an attempt that was lost on the way: never used by anybody, and never thrown away."""

from __future__ import annotations

import subprocess

from tests.support import rows
from tests.support.agents import commit, result, wait, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench
from tireless.store import sweep

PAINT = [write("a.txt", "red\n"), commit("Paint it"), result("done", summary="Painted.")]


async def test_work_of_a_lost_lease_is_saved_by_the_next_round(bench: Bench) -> None:
    """A lease runs out in the middle: its work reaches no row and no forge, but a bundle on its host."""
    made = await bench.job([write("lost.txt", "two hours\n"), wait(), *PAINT], PAINT)
    runner, task = await bench.begin()
    await bench.gate.line()
    await rows.expire(bench.conn, made.job_id)
    assert await sweep.expire_stale_claims(bench.conn) == 1
    runner.leases.wake.set()  # its next renewal finds nothing to renew
    runner.stop.set()
    await bench.finish(runner, task)
    (left,) = (bench.directory / "root" / "runs").iterdir()
    await bench.work(name="r2")
    assert await bench.outcomes(made) == ["lease_lost", "done"]
    assert list((bench.directory / "root" / "runs").iterdir()) == []
    (bundle,) = (bench.directory / "root" / "saved").glob("*.bundle")
    assert bundle.stem == left.name
    bench.git("fetch", "-q", str(bundle), "work:refs/saved")
    assert bench.git("show", "refs/saved:lost.txt") == "two hours"
    assert len(bench.branches()) == 1
    subprocess.run(["git", "bundle", "list-heads", str(bundle)], check=True, capture_output=True)
