"""The demo's story by the installed `tireless`, as separate processes, on every forge at hand: from issue to branch."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.conformance import Server
from tests.support.forges import Stage
from tireless.agent.workspace import TRAILER
from tireless.demo.sides import ForgePull
from tireless.demo.tell import Ground, Told, tell


async def test_the_story_is_the_same_on_every_forge(server: Server, stage: Stage, tmp_path: Path) -> None:
    """`serve` and two `run` on this forge and a database of their own: everything as asked, work pushed over HTTP."""

    async def later() -> None:
        for _ in range(2):
            await server.next_second(stage)

    lines: list[str] = []
    told = await tell(lines.append, ground=Ground(stage.admin, later, suffix=f"-{secrets.token_hex(3)}"))
    assert told.wrong == (), "\n".join(lines)
    assert told.ok
    assert told.left_running == 0
    opened = [pull for pull in told.forge.pulls if pull.open]
    assert len(opened) == 3
    for pull in opened:
        _work_is_on_the_branch(told, pull, tmp_path)
    if server.loopback is not None:
        pushed = [each for each in server.loopback.requests() if each.path.endswith(".git/git-receive-pack")]
        assert len([each for each in pushed if told.repository in each.path and each.method == "POST"]) == 3


def _work_is_on_the_branch(told: Told, pull: ForgePull, tmp_path: Path) -> None:
    """Cloned by a stranger over HTTP, the branch holds what the agent wrote, in one commit that names its request."""
    tree = tmp_path / str(pull.number)
    clone = ["clone", "--quiet", "--branch", pull.branch, f"{told.forge_url}/{told.repository}.git", str(tree)]
    _git(*clone)
    assert (tree / f"work-{pull.closes}.md").read_text() == f"Work on issue {pull.closes}\n"
    assert _git("-C", str(tree), "rev-list", "--count", "origin/main..HEAD").strip() == "1"
    trailer = _git("-C", str(tree), "log", "-1", f"--format=%(trailers:key={TRAILER},valueonly)").strip()
    assert f" issue={pull.closes} " in trailer


def _git(*words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True, env=env).stdout
