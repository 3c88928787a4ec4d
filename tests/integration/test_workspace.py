"""Work trees, caches and branches against a real git server over HTTP: clean, contained, without secrets, once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.githttp import TOKEN, USER, GitServer, plain_git, seed
from tireless.agent import workspace
from tireless.agent.gitcli import Credential, Git, GitError, Remote
from tireless.agent.places import Places
from tireless.agent.workspace import Found, Workspace, Workspaces
from tireless.errors import WorkspaceError
from tireless.redact import Redactor

BRANCH = "tireless/7-make-it-shine.0123abcd"


class Yard:
    """A forge's git, a root for workspaces, and what tests ask of both."""

    def __init__(self, root: Path, server: GitServer) -> None:
        self.root = root
        self.server = server
        self.bare = seed(server.root)
        self.remote = Remote(f"{server.url}/lamp.git", Credential(USER, TOKEN))
        self.git = Git(redactor=Redactor([TOKEN]), environ=os.environ)
        self.places = Places(root / "root")
        self.places.open()
        self.spaces = Workspaces(self.places, self.git)

    async def prepare(self, key: str = "1.0123abcd", branch: str = "main") -> Workspace:
        return await self.spaces.prepare(key, self.remote, repository="main-1", base_branch=branch)

    async def delivered(self, space: Workspace) -> str:
        """A commit beyond base in our own repository, as the collector would leave it."""
        own = space.home.own / "work.git"
        await self.git.run("init", "-q", "--bare", "--", own)
        (own / "objects" / "info" / "alternates").write_text(f"{space.cache / 'objects'}\n")
        tree = plain_git(own, "rev-parse", f"{space.base_sha}^{{tree}}")
        return plain_git(own, "commit-tree", tree, "-p", space.base_sha, "-m", "Shine\n\nTireless-Request: label 12")


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    (tmp_path / "forge").mkdir()
    with GitServer(tmp_path / "forge") as server:
        yield Yard(tmp_path, server)


def everything(root: Path) -> bytes:
    """Every byte of every file below `root`, and every name."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return b"\n".join([*(path.read_bytes() for path in files), *(str(path).encode() for path in files)])


async def test_tree_is_clean_detached_and_ours_is_outside(yard: Yard) -> None:
    """A new tree stands on the base commit, `git status` says nothing, and nothing of ours lies in it."""
    space = await yard.prepare()
    tree = space.home.tree
    assert plain_git(tree, "status", "--porcelain", "--ignored") == ""
    assert plain_git(tree, "rev-parse", "HEAD") == space.base_sha == plain_git(yard.bare, "rev-parse", "main")
    assert plain_git(tree, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
    assert sorted(os.listdir(tree)) == [".git", ".gitignore", "README", "src"]
    assert stat.S_IMODE(space.home.exchange.stat().st_mode) == 0o700
    assert stat.S_IMODE(space.home.own.stat().st_mode) == 0o700


async def test_tree_shares_nothing_with_the_cache(yard: Yard) -> None:
    """No alternates and no hard links: what the agent does to its objects reaches no other run."""
    space = await yard.prepare()
    objects = space.home.tree / ".git" / "objects"
    assert not (objects / "info" / "alternates").exists()
    assert {path.stat().st_nlink for path in objects.rglob("*") if path.is_file()} == {1}


async def test_no_token_on_disk_or_in_the_tree(yard: Yard) -> None:
    """After fetch, clone and push the token is in no file, and the remote's URL has no user information."""
    space = await yard.prepare()
    await yard.spaces.push(space, yard.remote, commit=await yard.delivered(space), branch=BRANCH)
    assert TOKEN.encode() not in everything(yard.root / "root")
    assert plain_git(space.home.tree, "remote", "-v").split()[1] == yard.remote.url
    assert plain_git(yard.bare, "rev-parse", BRANCH)


async def test_token_is_in_no_argument_and_no_environment(yard: Yard, tmp_path: Path) -> None:
    """Git and its helpers get the token by a pipe: a wrapper that records how git is called never sees it."""
    recorder = tmp_path / "git"
    record = tmp_path / "record"
    recorder.write_text(f'#!/bin/sh\n{{ printf "%s\\n" "$@"; env; }} >> {record}\nexec {shutil.which("git")} "$@"\n')
    recorder.chmod(0o755)
    yard.spaces.git = Git(redactor=Redactor([TOKEN]), environ=os.environ, program=str(recorder))
    space = await yard.prepare()
    await yard.spaces.push(space, yard.remote, commit=await yard.delivered(space), branch=BRANCH)
    seen = record.read_text()
    assert "push" in seen
    assert TOKEN not in seen


async def test_credential_goes_to_its_own_forge_only(yard: Yard, tmp_path: Path) -> None:
    """A helper for one origin gives nothing to another server that asks."""
    (tmp_path / "other").mkdir()
    with GitServer(tmp_path / "other") as other:
        seed(other.root)
        stranger = Remote(f"{other.url}/lamp.git", yard.remote.credential)
        lied = Remote(yard.remote.url, yard.remote.credential)
        with pytest.raises(GitError, match="ls-remote"):
            # The command names another server than the credential's.
            await yard.git.run("ls-remote", "--", stranger.url, remote=lied, protocols="http")
        assert other.seen
        assert not [headers for _, _, headers in other.seen if "authorization" in headers]


async def test_second_run_sees_what_was_pushed_meanwhile(yard: Yard) -> None:
    """The cache is fetched for each run: a new commit on the base branch is the next run's base."""
    first = await yard.prepare("1.aaaaaaaa")
    work = yard.server.root / "lamp.seed"
    (work / "README").write_text("a better lamp\n")
    plain_git(work, "commit", "-qam", "Better")
    plain_git(work, "push", "-q", str(yard.bare), "+main:main")
    second = await yard.prepare("2.bbbbbbbb")
    assert second.base_sha == plain_git(work, "rev-parse", "HEAD") != first.base_sha
    assert first.cache == second.cache


async def test_rewritten_base_branch_leaves_running_trees_whole(yard: Yard) -> None:
    """The forge's branch is force-pushed: the base commit of a run that is on disk stays readable in the cache."""
    first = await yard.prepare("1.aaaaaaaa")
    work = yard.server.root / "lamp.seed"
    plain_git(work, "commit", "-q", "--amend", "-m", "Begin anew")
    plain_git(work, "push", "-q", str(yard.bare), "+main:main")
    second = await yard.prepare("2.bbbbbbbb")
    pins = plain_git(second.cache, "for-each-ref", "--format=%(objectname)", "refs/tireless/base/").split()
    assert sorted(pins) == sorted([first.base_sha, second.base_sha])
    await yard.spaces.drop(first.home)
    await yard.prepare("3.cccccccc")
    pins = plain_git(second.cache, "for-each-ref", "--format=%(refname)", "refs/tireless/base/").split()
    assert pins == ["refs/tireless/base/2.bbbbbbbb", "refs/tireless/base/3.cccccccc"]


async def test_runs_of_one_repository_share_the_cache_in_turns(yard: Yard) -> None:
    """Four runs prepared at once all get their tree."""
    spaces = await asyncio.gather(*(yard.prepare(f"{n}.0000000{n}") for n in range(4)))
    assert {space.base_sha for space in spaces} == {plain_git(yard.bare, "rev-parse", "main")}


async def test_locks_of_killed_git_are_no_obstacle(yard: Yard) -> None:
    """Lock files that a killed git left in the cache do not stop the next run."""
    space = await yard.prepare("1.aaaaaaaa")
    for name in ("packed-refs.lock", "config.lock", "refs/heads/main.lock"):
        (space.cache / name).parent.mkdir(parents=True, exist_ok=True)
        (space.cache / name).touch()
    await yard.prepare("2.bbbbbbbb")


@pytest.mark.parametrize("branch", ["gone", "main^", "--help", "../main"])
async def test_missing_branch_is_said_and_leaves_nothing(yard: Yard, branch: str) -> None:
    """A base branch that is not there is named in the error, and no run is left on disk."""
    with pytest.raises(WorkspaceError, match="no branch"):
        await yard.prepare(branch=branch)
    assert os.listdir(yard.root / "root" / "runs") == []


async def test_empty_repository_is_said(yard: Yard) -> None:
    """A repository without a commit cannot be worked on, and the error asks whether it is empty."""
    plain_git(yard.server.root, "init", "-q", "--bare", "-b", "main", str(yard.server.root / "void.git"))
    remote = Remote(f"{yard.server.url}/void.git", yard.remote.credential)
    with pytest.raises(WorkspaceError, match="is it empty"):
        await yard.spaces.prepare("1.aaaaaaaa", remote, repository="main-2", base_branch="main")


async def test_unreachable_forge_is_an_error_without_secrets(yard: Yard) -> None:
    """A server that refuses gives git's words, without the token and without user information."""
    remote = Remote(f"{yard.server.url}/lamp.git", Credential(USER, "wrong-token-0001"))
    yard.spaces.git = Git(redactor=Redactor(["wrong-token-0001"]), environ=os.environ)
    with pytest.raises(GitError) as caught:
        await yard.spaces.prepare("1.aaaaaaaa", remote, repository="main-1", base_branch="main")
    assert "git fetch failed" in str(caught.value)
    assert "wrong-token" not in str(caught.value)
    assert "@" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["https://bot:t0ken@forge.example/a/b.git", "ext::sh -c true", "file:///etc", "ssh://forge/a", "http://h/a b"],
)
def test_clone_url_with_secrets_or_other_transports_is_refused(url: str) -> None:
    """Only plain http(s) URLs are taken; the error does not repeat what may be a token."""
    with pytest.raises(WorkspaceError) as caught:
        Remote(url)
    assert "t0ken" not in str(caught.value)


async def test_git_that_hangs_is_ended_with_its_helpers(yard: Yard, tmp_path: Path) -> None:
    """A time limit ends the whole group: no helper of git's goes on."""
    slow = tmp_path / "git"
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    slow.write_text(f"#!/bin/sh\nexec 9>{tmp_path}/held\nsleep 9999 &\nwait\n")
    slow.chmod(0o755)
    git = Git(redactor=Redactor(), environ=os.environ, program=str(slow))
    with pytest.raises(GitError, match="did not end within"):
        await git.run("fetch", limit_s=0.3)
    os.set_blocking(held, True)
    assert await asyncio.wait_for(asyncio.to_thread(os.read, held, 1), 90) == b""
    os.close(held)


async def test_push_creates_once(yard: Yard) -> None:
    """A branch is created, pushing it again finds it there, and another commit never replaces it."""
    space = await yard.prepare()
    commit = await yard.delivered(space)
    assert await yard.spaces.remote_head(yard.remote, BRANCH) is None
    assert await yard.spaces.push(space, yard.remote, commit=commit, branch=BRANCH)
    assert not await yard.spaces.push(space, yard.remote, commit=commit, branch=BRANCH)
    with pytest.raises(GitError):
        await yard.spaces.push(space, yard.remote, commit=space.base_sha, branch=BRANCH)
    assert await yard.spaces.remote_head(yard.remote, BRANCH) == commit
    assert await yard.spaces.remote_branches(yard.remote, 7) == {BRANCH: commit}
    assert await yard.spaces.remote_branches(yard.remote, 77) == {}


async def test_push_moves_no_branch_forward(yard: Yard) -> None:
    """A branch that is there on an ancestor of the commit is somebody's: it stays where it is."""
    space = await yard.prepare()
    commit = await yard.delivered(space)
    plain_git(yard.bare, "update-ref", f"refs/heads/{BRANCH}", space.base_sha)
    with pytest.raises(GitError):
        await yard.spaces.push(space, yard.remote, commit=commit, branch=BRANCH)
    assert plain_git(yard.bare, "rev-parse", BRANCH) == space.base_sha


async def test_push_whose_answer_is_lost_has_happened(yard: Yard) -> None:
    """The server takes the push and hangs up: the branch is looked up, and the push counts."""
    space = await yard.prepare()
    commit = await yard.delivered(space)
    yard.server.cut_push = True
    assert not await yard.spaces.push(space, yard.remote, commit=commit, branch=BRANCH)
    assert plain_git(yard.bare, "rev-parse", BRANCH) == commit


@pytest.mark.parametrize("branch", ["main", "tireless/7-a", "tireless/7-a.0123abcd/x", "tireless/7-A.0123abcd"])
async def test_only_branches_of_ours_are_pushed(yard: Yard, branch: str) -> None:
    """A name that is no attempt's branch is refused before git is asked."""
    space = await yard.prepare()
    with pytest.raises(WorkspaceError, match="no branch of ours"):
        await yard.spaces.push(space, yard.remote, commit=space.base_sha, branch=branch)


async def test_work_on_the_forge_is_found_by_its_trailer(yard: Yard) -> None:
    """A later run finds the pushed branch of its issue with the request it names, and its tree does not show it."""
    space = await yard.prepare("1.0123abcd")
    commit = await yard.delivered(space)
    await yard.spaces.push(space, yard.remote, commit=commit, branch=BRANCH)
    later = await yard.prepare("2.bbbbbbbb")
    assert await yard.spaces.find_work(later, 7) == [
        Found(branch=BRANCH, commit=commit, attempt="0123abcd", request="label 12")
    ]
    assert await yard.spaces.find_work(later, 8) == []
    assert "tireless" not in plain_git(later.home.tree, "branch", "-a")


async def test_base_file_comes_from_the_base_branch(yard: Yard) -> None:
    """A file is read from the base commit whatever the tree says; links and large files are refused."""
    work = yard.server.root / "lamp.seed"
    (work / ".tireless" / "prompts").mkdir(parents=True)
    (work / ".tireless" / "prompts" / "plan.md").write_text("from base\n")
    (work / "link.md").symlink_to("/etc/passwd")
    plain_git(work, "add", ".")
    plain_git(work, "commit", "-qm", "Prompts")
    plain_git(work, "push", "-q", str(yard.bare), "main")
    space = await yard.prepare()
    (space.home.tree / ".tireless" / "prompts" / "plan.md").write_text("from the tree\n")
    assert await yard.spaces.base_file(space, ".tireless/prompts/plan.md", limit=100) == b"from base\n"
    assert await yard.spaces.base_file(space, ".tireless/prompts/implement.md", limit=100) is None
    with pytest.raises(WorkspaceError, match="at most 3"):
        await yard.spaces.base_file(space, ".tireless/prompts/plan.md", limit=3)
    with pytest.raises(WorkspaceError, match="no regular file"):
        await yard.spaces.base_file(space, "link.md", limit=100)


async def test_undelivered_work_is_kept_as_a_bundle(yard: Yard, tmp_path: Path) -> None:
    """What was not delivered can be fetched from its bundle after the run is gone."""
    space = await yard.prepare()
    commit = await yard.delivered(space)
    path = await yard.spaces.save(space, commit)
    await yard.spaces.drop(space.home)
    assert plain_git(yard.server.root / "lamp.seed", "fetch", "-q", str(path), "work") == ""
    assert plain_git(yard.server.root / "lamp.seed", "rev-parse", "FETCH_HEAD") == commit


async def test_removal_is_idempotent_and_thorough(yard: Yard, tmp_path: Path) -> None:
    """A run is removed twice without complaint, also when the agent closed its directories against everybody."""
    space = await yard.prepare()
    locked = space.home.tree / "cache" / "module"
    locked.mkdir(parents=True)
    (locked / "file").touch()
    locked.chmod(0o500)
    locked.parent.chmod(0)
    await yard.spaces.drop(space.home)
    assert os.listdir(yard.root / "root" / "runs") == []
    other = os.open(tmp_path, os.O_RDONLY)  # may get the number of the lock that was let go of
    await yard.spaces.drop(space.home)
    os.close(other)


async def test_removal_follows_no_link(yard: Yard, tmp_path: Path) -> None:
    """Links an agent left, in its tree or in place of it, are removed themselves; what they name stays."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    space = await yard.prepare()
    (space.home.tree / "link").symlink_to(precious)
    shutil.rmtree(space.home.tree / "src")
    (space.home.tree / "src").symlink_to(precious)
    await yard.places.remove(space.home.key)
    (yard.root / "root" / "runs" / "9.ffffffff").symlink_to(precious)
    await yard.places.remove("9.ffffffff")
    assert (precious / "file").read_text() == "kept"
    assert os.listdir(yard.root / "root" / "runs") == []


@pytest.mark.parametrize("key", ["..", "../cache", "a/b", "", ".hidden", "a" * 101])
async def test_removal_refuses_what_could_lead_elsewhere(yard: Yard, key: str) -> None:
    """A key that is no name of ours is refused."""
    with pytest.raises(WorkspaceError, match="cannot be the name"):
        await yard.places.remove(key)


async def test_removal_refuses_a_root_that_is_not_ours(yard: Yard, tmp_path: Path) -> None:
    """Without our mark, or through a link, nothing is removed."""
    other = tmp_path / "home"
    (other / "runs" / "1.aaaaaaaa").mkdir(parents=True)
    with pytest.raises(WorkspaceError, match="not empty and not ours"):
        Places(other).open()
    with pytest.raises(WorkspaceError, match="does not carry our mark"):
        await Places(other).remove("1.aaaaaaaa")
    link = tmp_path / "link"
    link.symlink_to(yard.root / "root")
    (yard.root / "root" / "runs" / "1.aaaaaaaa").mkdir()
    with pytest.raises(WorkspaceError, match="is a link"):
        await Places(link).remove("1.aaaaaaaa")
    assert (other / "runs" / "1.aaaaaaaa").exists()
    assert (yard.root / "root" / "runs" / "1.aaaaaaaa").exists()


async def test_stale_runs_are_those_nobody_holds(yard: Yard) -> None:
    """A run whose runner lives is not stale; once let go of, as by a runner's death, it is."""
    space = await yard.prepare("1.aaaaaaaa")
    assert yard.places.stale() == []
    space.home.hold.close()
    assert yard.places.stale() == ["1.aaaaaaaa"]


HOLDER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_holder_of_the_cache_is_waited_for_unless_it_is_stopped(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that runs is waited for to the limit; one that is stopped is named within seconds, and nothing is left."""
    monkeypatch.setattr(workspace, "CACHES_MAX", 1)
    lock = yard.places.cache("main-1").with_suffix(".lock")
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", HOLDER, str(lock)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        await holder.stdout.readline()
        monkeypatch.setattr(workspace, "LOCK_LIMIT_S", 2.5)
        with pytest.raises(WorkspaceError, match=r"another process has held .*/main-1\.lock for 2 s"):
            await yard.prepare()
        monkeypatch.setattr(workspace, "LOCK_LIMIT_S", 60.0)
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(WorkspaceError, match=rf"process {holder.pid} holds .* and is stopped: continue it"):
            await yard.prepare()
        assert yard.places.runs() == []
    finally:
        holder.kill()
        await holder.communicate()
