"""The loopback forge as a whole: from an issue to a merged pull request, over HTTP and git."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import LoopbackForge, Stage
from tireless.domain.issue import EntryKind, IssueState
from tireless.forge.base import NewPull
from tireless.forge.gitea import GiteaForge


async def test_an_issue_becomes_a_merged_pull_request(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, tmp_path: Path
) -> None:
    """Labels, timeline, push over HTTP, pull request, merge: the closing line closes the issue."""
    go = await stage.label("tireless/go")
    number = await stage.mallory.create_issue(stage.path, "Paint it", "blue, please")
    await stage.bob.add_labels(stage.path, number, go)
    snapshot = await forge.issue(stage.repo, number)
    assert [each.name for each in snapshot.labels] == ["tireless/go"]
    (entry,) = await forge.timeline(stage.repo, number)
    assert (entry.kind, entry.actor.login) == (EntryKind.LABEL_ADDED, stage.bob.login)

    tree = tmp_path / "tree"
    url = stage.url.replace("http://", f"http://bot:{stage.bot.token}@")

    def git(*args: str) -> str:
        who = ["-c", "user.name=bot", "-c", "user.email=bot@localhost"]
        return subprocess.run(
            ["git", *who, *args], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    git("clone", "-q", f"{url}/{stage.path}.git", str(tree))
    (tree / "paint.txt").write_text("blue\n")
    git("-C", str(tree), "add", "-A")
    git("-C", str(tree), "commit", "-qm", "Paint")
    git("-C", str(tree), "push", "-q", "origin", "HEAD:refs/heads/tireless/1-paint")
    head = git("-C", str(tree), "rev-parse", "HEAD").strip()
    assert await forge.branch_head(stage.repo, "tireless/1-paint") == head

    pull = await forge.create_pull(
        stage.repo, NewPull(title="Paint", body=f"Closes #{number}", head="tireless/1-paint", base="main")
    )
    assert pull.head_sha == head
    assert [each.number for each in await forge.pulls(stage.repo, head="tireless/1-paint")] == [pull.number]
    await stage.alice.merge(stage.path, pull.number)
    assert (await forge.issue(stage.repo, number)).state is IssueState.CLOSED
    (merged,) = await forge.pulls(stage.repo, include_closed=True)
    assert merged.merged
    assert any(each.path.endswith("git-receive-pack") and each.login == stage.bot.login for each in loopback.requests())
