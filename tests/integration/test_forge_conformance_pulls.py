"""Conformance: branches, pull requests, merging, git over HTTP; alike on the loopback and a real forge."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.conformance import Server
from tests.support.forges import Stage
from tireless.domain.issue import EntryKind, IssueRef, IssueState
from tireless.errors import ForgeDenied, ForgeRejected, NotFound
from tireless.forge.base import NewPull
from tireless.forge.gitea import GiteaForge


def _new(head: str, *, title: str = "Paint", body: str = "", base: str = "main", draft: bool = False) -> NewPull:
    return NewPull(title=title, body=body, head=head, base=base, draft=draft)


async def _soon(ask: Callable[[], Awaitable[object]], expected: object) -> None:
    """Ask until the answer is the expected one: a real forge does some things in the background."""
    for _ in range(100):
        if await ask() == expected:
            return
        await asyncio.sleep(0.05)
    assert await ask() == expected


class Git:
    """The git command line in a directory of the test, talking to one repository as one user."""

    def __init__(self, directory: Path, url: str, path: str, token: str | None) -> None:
        self.directory = directory
        self.remote = f"{url.replace('://', f'://x:{token}@') if token else url}/{path}.git"
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "x",
            "GIT_AUTHOR_EMAIL": "x@localhost",
            "GIT_COMMITTER_NAME": "x",
            "GIT_COMMITTER_EMAIL": "x@localhost",
        }

    async def run(self, *args: str) -> tuple[int, str]:
        """Exit code and what was said."""
        done = await asyncio.to_thread(
            subprocess.run,
            ["git", *args],
            cwd=self.directory,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    async def clone(self) -> None:
        """Into `tree`."""
        code, said = await self.run("clone", "-q", self.remote, "tree")
        assert code == 0, said

    async def commit(self, name: str, content: str) -> str:
        """A commit in `tree`; its id."""
        (self.directory / "tree" / name).write_text(content)
        for args in (("add", "-A"), ("commit", "-qm", f"Add {name}")):
            code, said = await self.run("-C", "tree", *args)
            assert code == 0, said
        return (await self.run("-C", "tree", "rev-parse", "HEAD"))[1].strip()

    async def push(self, spec: str, *options: str) -> tuple[int, str]:
        """Push to the remote."""
        return await self.run("-C", "tree", "push", *options, self.remote, spec)


async def test_branches_are_found_and_deleted(stage: Stage, forge: GiteaForge) -> None:
    """A head is the commit; no such branch is None, also with slashes; deleting twice is no error, the default is."""
    name = "tireless/1-paint-it.0badc0de"
    sha = await stage.bob.commit(stage.path, "a.txt", "a", new_branch=name)
    assert await forge.branch_head(stage.repo, name) == sha
    assert await forge.branch_head(stage.repo, "tireless/nope") is None
    for _ in range(2):
        await forge.delete_branch(stage.repo, name)
    assert await forge.branch_head(stage.repo, name) is None
    with pytest.raises(ForgeDenied):
        await forge.delete_branch(stage.repo, "main")
    missing = type(stage.repo)(stage.repo.forge, stage.repo.owner, "no-such-repository")
    with pytest.raises(NotFound):
        await forge.branch_head(missing, "main")


async def test_a_pull_request_is_created_once_per_head_and_base(stage: Stage, forge: GiteaForge) -> None:
    """Created as asked; the same again is 409; after closing it may be made again; the newest is open."""
    sha = await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    made = await forge.create_pull(stage.repo, _new("work", body="text"))
    assert (made.title, made.body, made.head, made.base, made.head_sha) == ("Paint", "text", "work", "main", sha)
    assert (made.state, made.merged, made.draft) == (IssueState.OPEN, False, False)
    assert made.author.login == stage.bot.login
    assert made.url.endswith(f"/{stage.path}/pulls/{made.number}")
    with pytest.raises(ForgeRejected) as refused:
        await forge.create_pull(stage.repo, _new("work"))
    assert refused.value.status == 409
    await forge.close(IssueRef(stage.repo, made.number))
    second = await forge.create_pull(stage.repo, _new("work"))
    assert [each.number for each in await forge.pulls(stage.repo, head="work")] == [second.number]
    everything = await forge.pulls(stage.repo, head="work", include_closed=True)
    assert {each.number for each in everything} == {made.number, second.number}
    assert await forge.pulls(stage.repo, head="other", include_closed=True) == ()


async def test_a_pull_request_that_cannot_be(server: Server, stage: Stage, forge: GiteaForge) -> None:
    """Missing branches are NotFound, one onto itself 422, a stranger is denied by Gitea; no difference is taken."""
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    for new in (_new("nope"), _new("work", base="nope")):
        with pytest.raises(NotFound):
            await forge.create_pull(stage.repo, new)
    with pytest.raises(ForgeRejected) as refused:
        await forge.create_pull(stage.repo, _new("main"))
    assert refused.value.status == 422
    stranger = stage.as_person(stage.mallory)
    if server.is_forgejo:
        theirs = await stranger.create_pull(stage.repo, _new("work"))
        with pytest.raises(ForgeRejected) as refused:
            await forge.create_pull(stage.repo, _new("work"))
        assert refused.value.status == 409
        (found,) = await forge.pulls(stage.repo, head="work")
        assert (found.number, found.author.login) == (theirs.number, stage.mallory.login)
    else:
        with pytest.raises(ForgeDenied):
            await stranger.create_pull(stage.repo, _new("work"))
    branch = {"new_branch_name": "same", "old_ref_name": "main"}
    await stage.bob.api("POST", f"/repos/{stage.path}/branches", branch)
    assert (await forge.create_pull(stage.repo, _new("same"))).head == "same"


async def test_drafts_are_made_by_their_title(stage: Stage, forge: GiteaForge) -> None:
    """A draft's title begins with WIP:, and it can not be merged until that is gone."""
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    made = await forge.create_pull(stage.repo, _new("work", draft=True))
    assert (made.title, made.draft) == ("WIP: Paint", True)
    with pytest.raises(ForgeRejected) as refused:
        await stage.alice.merge(stage.path, made.number)
    assert refused.value.status == 405
    await stage.alice.edit_issue(stage.path, made.number, title="Paint")
    (found,) = await forge.pulls(stage.repo)
    assert not found.draft


async def test_a_merge_closes_what_the_closing_line_names(stage: Stage, forge: GiteaForge) -> None:
    """`Closes #n` closes at the merge, in the merger's name; a stranger may not merge."""
    number = await stage.mallory.create_issue(stage.path, "Paint it")
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    made = await forge.create_pull(stage.repo, _new("work", body=f"Text.\n\nCloses #{number}"))
    assert (await forge.issue(stage.repo, number)).state is IssueState.OPEN
    with pytest.raises(ForgeRejected) as refused:
        await stage.mallory.merge(stage.path, made.number)
    assert refused.value.status == 405
    await stage.alice.merge(stage.path, made.number)
    assert (await forge.issue(stage.repo, number)).state is IssueState.CLOSED
    closed = [each for each in await forge.timeline(stage.repo, number) if each.kind is EntryKind.CLOSED]
    assert [each.actor.login for each in closed] == [stage.alice.login]
    (found,) = await forge.pulls(stage.repo, include_closed=True)
    assert (found.state, found.merged, found.head) == (IssueState.CLOSED, True, "work")
    assert await forge.branch_head(stage.repo, "main") != made.head_sha


async def test_a_closing_line_waits_for_nobody(stage: Stage, forge: GiteaForge) -> None:
    """With an open dependency the merge closes nothing, without a word; in a code span it never does."""
    blocked, blocker, quoted = [await stage.alice.create_issue(stage.path, name) for name in ("a", "b", "c")]
    await forge.add_dependency(IssueRef(stage.repo, blocked), IssueRef(stage.repo, blocker))
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    made = await forge.create_pull(stage.repo, _new("work", body=f"Closes #{blocked}\n\n`closes #{quoted}`"))
    await stage.alice.merge(stage.path, made.number)
    for number in (blocked, quoted):
        assert (await forge.issue(stage.repo, number)).state is IssueState.OPEN


async def test_a_deleted_branch_closes_its_pull_request(stage: Stage, forge: GiteaForge) -> None:
    """The open pull request closes, and keeps the name and the commit of its branch."""
    sha = await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    made = await forge.create_pull(stage.repo, _new("work"))
    await forge.delete_branch(stage.repo, "work")
    await _soon(lambda: forge.pulls(stage.repo, head="work"), ())
    (found,) = await forge.pulls(stage.repo, head="work", include_closed=True)
    assert (found.number, found.state, found.head, found.head_sha) == (made.number, IssueState.CLOSED, "work", sha)


async def test_eight_creates_at_once_make_eight(stage: Stage, forge: GiteaForge) -> None:
    """The 409 is looked for, then inserted: no fence. Who creates must look for twins afterwards."""
    most = 0
    for number in range(10):  # a busy machine may carry out all eight one after the other
        branch = f"work{number}"
        await stage.bob.commit(stage.path, f"{branch}.txt", "a", new_branch=branch)
        made = await asyncio.gather(
            *(forge.create_pull(stage.repo, _new(branch)) for _ in range(8)), return_exceptions=True
        )
        opened = await forge.pulls(stage.repo, head=branch)
        assert len(opened) == sum(not isinstance(each, BaseException) for each in made)
        most = max(most, len(opened))
        if most > 1:
            break
    assert most > 1


async def test_a_push_moves_the_head_of_a_pull_request(stage: Stage, forge: GiteaForge, tmp_path: Path) -> None:
    """Cloned and pushed over HTTP with the token as password; the pull request follows its branch."""
    git = Git(tmp_path, stage.url, stage.path, stage.bot.token)
    await git.clone()
    first = await git.commit("a.txt", "a")
    code, said = await git.push("HEAD:refs/heads/tireless/1-a")
    assert code == 0, said
    made = await forge.create_pull(stage.repo, _new("tireless/1-a"))
    assert made.head_sha == first
    second = await git.commit("b.txt", "b")
    await git.push("HEAD:refs/heads/tireless/1-a")
    assert await forge.branch_head(stage.repo, "tireless/1-a") == second
    (found,) = await forge.pulls(stage.repo, head="tireless/1-a")
    assert found.head_sha == second


async def test_a_ref_is_only_ever_created(stage: Stage, forge: GiteaForge, tmp_path: Path) -> None:
    """With an empty lease: absent is made, the same commit is fine, another is refused and leaves the ref alone."""
    git = Git(tmp_path, stage.url, stage.path, stage.bot.token)
    await git.clone()
    first = await git.commit("a.txt", "a")
    lease = "--force-with-lease=refs/heads/tireless/x:"
    assert (await git.push(f"{first}:refs/heads/tireless/x", lease))[0] == 0
    assert (await git.push(f"{first}:refs/heads/tireless/x", lease))[0] == 0
    second = await git.commit("b.txt", "b")
    assert (await git.push(f"{second}:refs/heads/tireless/x", lease))[0] == 1
    assert await forge.branch_head(stage.repo, "tireless/x") == first


async def test_who_may_clone_and_push(stage: Stage, forge: GiteaForge, tmp_path: Path) -> None:
    """Anyone clones a public repository; a stranger's push is declined by the hook, a bad token at the door."""
    reader = Git(tmp_path, stage.url, stage.path, None)
    await reader.clone()
    await reader.commit("a.txt", "a")
    stranger = Git(tmp_path, stage.url, stage.path, stage.mallory.token)
    code, said = await stranger.push("HEAD:refs/heads/his")
    assert (code, "User permission denied for writing" in said) == (1, True)
    code, said = await Git(tmp_path, stage.url, stage.path, "no-token").push("HEAD:refs/heads/his")
    assert (code, "Authentication failed" in said) == (128, True)
    assert await forge.branch_head(stage.repo, "his") is None
    code, said = await Git(tmp_path, stage.url, f"{stage.repo.owner}/nope", stage.bot.token).push("HEAD:refs/heads/x")
    assert (code, "Push to create is not enabled" in said) == (128, True), said


async def test_a_commit_on_the_default_branch_closes_by_its_words(
    stage: Stage, forge: GiteaForge, tmp_path: Path
) -> None:
    """A pushed commit message closes the issue it names, in the pusher's name, and one on a branch does not."""
    mentioned, closed = [await stage.alice.create_issue(stage.path, name) for name in ("a", "b")]
    git = Git(tmp_path, stage.url, stage.path, stage.bob.token)
    await git.clone()
    await git.commit(f"x{mentioned}", "x")
    await git.run("-C", "tree", "commit", "-q", "--amend", "-m", f"On a branch\n\nFixes #{mentioned}")
    assert (await git.push("HEAD:refs/heads/side"))[0] == 0
    await git.run("-C", "tree", "checkout", "-q", "-B", "main", "origin/main")
    await git.commit(f"y{closed}", "y")
    await git.run("-C", "tree", "commit", "-q", "--amend", "-m", f"On main\n\nFixes #{closed}")
    assert (await git.push("HEAD:refs/heads/main"))[0] == 0

    async def state() -> IssueState:
        return (await forge.issue(stage.repo, closed)).state

    await _soon(state, IssueState.CLOSED)
    assert (await forge.issue(stage.repo, mentioned)).state is IssueState.OPEN


async def test_large_pushes_and_partial_fetches(stage: Stage, forge: GiteaForge, tmp_path: Path) -> None:
    """Eight megabytes arrive (git sends them in chunks); a commit is fetched by its id, shallow, and without blobs."""
    git = Git(tmp_path, stage.url, stage.path, stage.bot.token)
    await git.clone()
    sha = await git.commit("noise.txt", secrets.token_hex(8 * 1024 * 1024))
    code, said = await git.push("HEAD:refs/heads/large")
    assert code == 0, said
    assert await forge.branch_head(stage.repo, "large") == sha
    await git.run("init", "-q", "--bare", "bare")
    for options in ((sha,), ("--depth=1", "refs/heads/main"), ("--filter=blob:none", "refs/heads/large")):
        code, said = await git.run("-C", "bare", "fetch", "-q", git.remote, *options)
        assert code == 0, said
    code, said = await git.run("-C", "bare", "fetch", "-q", git.remote, "1" * 40)
    assert (code, "not our ref" in said) == (128, True), said
