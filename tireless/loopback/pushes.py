"""What a push does to the rows: branches, heads of pull requests, closing words on the default branch."""

from __future__ import annotations

from tireless.loopback import references
from tireless.loopback.gitrepo import GitRepos
from tireless.loopback.state import Event, Issue, Repo, User
from tireless.loopback.world import World


async def received(world: World, git: GitRepos, repo: Repo, doer: User) -> None:
    """Bring the rows in line with the branches there are now. The caller holds the repository's lock."""
    git_dir = world.git_dir(repo)
    before, repo.branches = repo.branches, await git.branches(git_dir)
    if before == repo.branches:
        return
    repo.updated = world.clock.stamp()
    if not before and repo.default_branch not in repo.branches and repo.branches:
        # the first branch ever pushed becomes the default one
        repo.default_branch = next(iter(repo.branches))
        await git.run(git_dir, "symbolic-ref", "HEAD", f"refs/heads/{repo.default_branch}")
    for name, sha in repo.branches.items():
        if before.get(name) != sha:
            await _moved(world, git, repo, doer, name, before.get(name, ""))
    for name in before:
        if name not in repo.branches:
            _vanished(world, repo, doer, name)
    world.emit(Event("push", "", repo, doer))


async def _moved(world: World, git: GitRepos, repo: Repo, doer: User, branch: str, old: str) -> None:
    git_dir, new = world.git_dir(repo), repo.branches[branch]
    for issue in open_pulls(repo, branch):
        assert issue.pull is not None  # noqa: S101  open_pulls gives pull requests only
        issue.pull.head_sha = new
        issue.pull.conflicts = await conflicts(git, world, repo, issue)
        await git.set_ref(git_dir, f"refs/pull/{issue.number}/head", new)
        world.add_entry(issue, doer, "pull_push")
        world.emit(Event("pull_request_sync", "synchronized", repo, doer, issue))
    default = branch == repo.default_branch
    if old or default:
        for sha, message in await git.log(git_dir, old, new):
            references.mention_in_commit(world, repo, doer, sha, message, close=default)


def _vanished(world: World, repo: Repo, doer: User, branch: str) -> None:
    """A deleted branch closes the pull requests from it."""
    for issue in open_pulls(repo, branch):
        references.set_state(world, repo, issue, doer, closed=True)
        world.add_entry(issue, doer, "delete_branch").old_ref = branch


async def conflicts(git: GitRepos, world: World, repo: Repo, issue: Issue) -> bool:
    """Whether a pull request can not be merged as it stands."""
    assert issue.pull is not None  # noqa: S101  the caller looked
    base = repo.branches.get(issue.pull.base)
    if base is None:
        return True
    return await git.merge_tree(world.git_dir(repo), base, issue.pull.head_sha) is None


def open_pulls(repo: Repo, head: str) -> list[Issue]:
    """The open pull requests from a branch."""
    return [
        each for each in repo.issues.values() if each.pull is not None and not each.is_closed and each.pull.head == head
    ]


async def commit_file(
    world: World,
    git: GitRepos,
    repo: Repo,
    doer: User,
    *,
    branch: str,
    path: str,
    content: bytes,
    message: str,
    start: str | None = None,
) -> str:
    """One file in one commit on `branch`, made from `start`; the commit. The caller holds the lock."""
    await git.commit_file(
        world.git_dir(repo),
        branch=branch,
        start=repo.branches.get(start or branch),
        path=path,
        content=content,
        message=message,
        who=doer.login,
        at=world.clock.stamp(),
    )
    await received(world, git, repo, doer)
    return repo.branches[branch]
