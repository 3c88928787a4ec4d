"""A runner's bench for tests: rows, a forge's git, scripted agents, runners here or as processes of their own.

A test module imports `*` from `tests.support.forges` and from here; the fixture is `bench`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.support import rows
from tests.support.agents import LIMIT_S, Gate, Script, Step
from tests.support.forges import LoopbackForge, Stage
from tests.support.runner_process import HASTY, Rig, Setup, rig
from tireless.forge.gitea import GiteaForge
from tireless.services.waiting import all_gone
from tireless.services.work import Worker
from tireless.store import sweep
from tireless.store.db import Connection

__all__ = ["Bench", "bench", "gone"]

ROOT = Path(__file__).parents[2]


async def gone(*pids: int) -> None:
    """Returns when none of these processes is alive; the test fails when they do not die."""
    await asyncio.wait_for(all_gone(pids), LIMIT_S)


@dataclass
class Bench:
    """Everything a runner meets, and a few hands to move it."""

    conn: Connection
    dsn: str
    loopback: LoopbackForge
    stage: Stage
    directory: Path
    gate: Gate
    script: Script
    repository_id: int
    _stack: contextlib.AsyncExitStack
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    # -------------------------------------------------------------- runners

    def setup(self, **changes: Any) -> Setup:
        """A runner's values, some of them changed."""
        made = Setup(
            dsn=self.dsn,
            root=str(self.directory / "root"),
            argv=list(self.script.argv),
            forge=self.stage.repo.forge,
            git_user=self.stage.bot.login,
            git_token=self.stage.bot.token,
        )
        return replace(made, **changes)

    async def rig(self, *, worker_type: type[Worker] = Worker, **changes: Any) -> Rig:
        """A runner in this process, not running yet."""
        return await self._stack.enter_async_context(rig(self.setup(**changes), worker_type=worker_type))

    def limits(self, **changes: float) -> dict[str, float]:
        """Hasty limits, some of them changed: for `limits=`."""
        return asdict(HASTY) | changes

    async def begin(self, **changes: Any) -> tuple[Rig, asyncio.Task[None]]:
        """A runner that runs; stopped at the end of the test."""
        made = await self.rig(**changes)
        self._tasks.append(task := asyncio.create_task(made.run()))
        return made, task

    async def finish(self, made: Rig, task: asyncio.Task[None]) -> None:
        """Drain it."""
        made.stop.set()
        await asyncio.wait_for(task, LIMIT_S)

    async def work(self, **changes: Any) -> Rig:
        """Run a runner until there is nothing left to claim."""
        made = await self.rig(**changes)
        await asyncio.wait_for(made.run(once=True), LIMIT_S)
        return made

    async def process(self, **changes: Any) -> asyncio.subprocess.Process:
        """A runner as a process of its own that is ready; killed at the end of the test. Its log: `log_of`."""
        setup = self.setup(**{"idle_poll_s": 0.1, **changes})
        path = setup.save(self.directory / f"{setup.name}.json")
        with (self.directory / f"{setup.name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "tests.support.runner_process", str(path)),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._stack.push_async_callback(_killed, process)
        await self.hear(process, "ready")
        return process

    async def hear(self, process: asyncio.subprocess.Process, word: str) -> None:
        """Wait until a runner's process says this."""
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
        assert line.decode().strip() == word, self.log_of()

    def log_of(self, name: str = "r1") -> str:
        """What a runner's process logged."""
        return (self.directory / f"{name}.log").read_text()

    async def close(self) -> None:
        """Stop whatever still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        self.gate.close()

    # -------------------------------------------------------------- jobs

    async def job(
        self, *runs: Sequence[Step], title: str = "Paint it", body: str = "Red.", **columns: Any
    ) -> rows.Made:
        """A pending job of a new issue, and what its agents do."""
        issue_id = await rows.issue(self.conn, self.stage.path, title=title, body=body)
        given: dict[str, Any] = {"kind": "implement", **columns}
        made = await rows.job(self.conn, self.stage.path, issue_id=issue_id, **given)
        self.script.runs(made.number, *runs)
        return made

    async def row(self, made: rows.Made) -> dict[str, object]:
        """The job's row."""
        return await rows.row(self.conn, "job", made.job_id)

    async def state(self, made: rows.Made) -> tuple[object, object]:
        """State and reason."""
        job = await self.row(made)
        return job["state"], job["reason"]

    async def attempts(self, made: rows.Made) -> list[dict[str, object]]:
        """The attempts, oldest first."""
        query = "SELECT * FROM attempt WHERE job_id = %(id)s ORDER BY claim_no"
        return await rows.rows(self.conn, query, id=made.job_id)

    async def outcomes(self, made: rows.Made) -> list[object]:
        """How the attempts ended; None: it has not."""
        return [each["outcome"] for each in await self.attempts(made)]

    async def until(self, ask: Callable[[], Awaitable[object]], wanted: object) -> None:
        """Ask until the answer is this; the test fails when it does not come to that."""
        async with asyncio.timeout(LIMIT_S):
            while await ask() != wanted:  # noqa: ASYNC110 - it happens in other processes
                await asyncio.sleep(0.02)

    async def wake(self, made: rows.Made, *rigs: Rig) -> None:
        """Let a job's wait be over."""
        await self.conn.execute(
            "UPDATE job SET not_before = clock_timestamp() - interval '1 s' WHERE id = %(id)s AND state = 'waiting'"
            " AND not_before IS NOT NULL",
            {"id": made.job_id},
        )
        await sweep.wake_due(self.conn)
        for each in rigs:
            each.wake.set()

    # -------------------------------------------------------------- the forge's git

    def git(self, *arguments: str, name: str = "") -> str:
        """Git on the forge's own repository."""
        world = self.loopback.world
        repo = world.repo(self.stage.repo.owner, name or self.stage.repo.name)
        assert repo is not None
        command = ["git", "-c", "safe.directory=*", "--git-dir", str(world.git_dir(repo)), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def branches(self, name: str = "") -> dict[str, str]:
        """Our branches on the forge and their commits; `name`: of the repository, when it was renamed."""
        wanted = "--format=%(refname:lstrip=2) %(objectname)"
        listed = self.git("for-each-ref", wanted, "refs/heads/tireless/", name=name)
        return dict(line.split(" ") for line in listed.splitlines())


async def _killed(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


@pytest_asyncio.fixture
async def bench(
    conn: Connection, dsn: str, loopback: LoopbackForge, stage: Stage, forge: GiteaForge, tmp_path: Path
) -> AsyncIterator[Bench]:
    """A runner's bench: acme/widgets on both sides, a lane without backoff."""
    known = await forge.repository(stage.repo)
    await rows.forge(conn, forge.name)
    repository_id = await rows.repository(
        conn,
        stage.path,
        forge=forge.name,
        forge_repo_id=known.id,
        default_branch=known.default_branch,
        clone_url=known.clone_url,
        html_url=known.html_url,
    )
    await rows.lane(conn, backoff_base_s=0.0, backoff_cap_s=0.0)
    gate = Gate(tmp_path)
    made = Bench(
        conn, dsn, loopback, stage, tmp_path, gate, Script(tmp_path, gate), repository_id, contextlib.AsyncExitStack()
    )
    yield made
    await made.close()
