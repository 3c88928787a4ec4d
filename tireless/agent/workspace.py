"""Work trees and branches: cloned from a bare cache, delivered from a repository of our own, pushed once and only once.

The agent's tree and its `.git/config` are never trusted: nothing here runs git in a tree that an agent had.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from tireless import log
from tireless.agent.control import RunAs
from tireless.agent.gitcli import Git, GitError, Remote
from tireless.agent.origin import NAME, Origin, Subject
from tireless.agent.places import Home, Places, StoppedHolderError
from tireless.domain.text import branch_prefix
from tireless.errors import Unworkable, WorkspaceError

TRAILER = "Tireless-Request"
"""The trailer of each pushed head: which request it answers."""
LOCK_LIMIT_S = 900.0
CACHES_MAX = 3
"""Caches of one repository at most: another one is made only where who holds the others is stopped."""
_BEGAN, _SETTLED = "began", "settled"
"""Notes in a run's own directory, for whoever finds it after its runner died."""
_LOCAL_S = 120.0
_PIN = "refs/tireless/base/"
_OUT = "refs/tireless/out/"
_log = log.get(__name__)
_BRANCH = re.compile(r"refs/heads/(tireless/[0-9]+-[a-z0-9-]+\.[0-9a-f]{8})")
_NOT_OURS = re.compile(
    r"(?m)^fatal: (?:repository '.*' not found|unable to access '.*': .* returned error: (?:403|404|410)\b)"
)
"""Git's words for a forge that answered: there is no such repository for this user. 401 is the token's fault."""
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom our own commits name, and who commits an agent's."""

    name: str = "tireless"
    email: str = "tireless@localhost"

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"


@dataclass(frozen=True, slots=True)
class Workspace:
    """One run's place: its directories, the cache it came from, and the commit it began at."""

    home: Home
    cache: Path
    base_branch: str
    base_sha: str
    run_as: RunAs | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Work of an earlier attempt that is on the forge already."""

    branch: str
    commit: str
    attempt: str
    """The first 8 hex digits of the attempt's uid."""
    request: str
    """What its trailer says; empty without one."""


class Workspaces:
    """What a runner does with git, for one root. Every method may raise WorkspaceError (GitError is one)."""

    def __init__(self, places: Places, git: Git, *, identity: Identity | None = None) -> None:
        self.places = places
        self.git = git
        self.identity = identity or Identity()

    async def prepare(
        self,
        key: str,
        remote: Remote,
        *,
        repository: str,
        base_branch: str,
        run_as: RunAs | None = None,
        subject: Subject | None = None,
    ) -> Workspace:
        """Fetch the cache, then clone a clean tree from it, detached on the head of `base_branch`.

        `key` names the run, `repository` the cache: both are made of ids. `subject`: what it is about, for whoever
        finds the run after our death. On failure nothing of the run is left.
        """
        home = self.places.create(key)
        try:
            async with self._locked_cache(repository) as (cache, lock):
                await self._fetch(cache, remote, lock)
                base = await self._resolve(cache, base_branch)
                await self.git.run("update-ref", f"{_PIN}{key}", base, git_dir=cache, limit_s=_LOCAL_S)
                Origin(cache.name, base_branch, base, home.tree_id, subject or Subject()).write(home.own)
                await self._clone(home.tree, cache, remote, base)
            if run_as:
                await asyncio.to_thread(give, (home.tree, home.exchange), run_as)
        except BaseException:
            await self.drop(home)
            raise
        return Workspace(home=home, cache=cache, base_branch=base_branch, base_sha=base, run_as=run_as)

    async def base_file(self, space: Workspace, path: str, *, limit: int) -> bytes | None:
        """A regular file of the base commit, read from the cache, not from the tree; None when there is none."""
        listed = await self.git.run(
            "ls-tree", "-l", "-z", "--full-tree", space.base_sha, "--", path, git_dir=space.cache, limit_s=_LOCAL_S
        )
        if not listed:
            return None
        mode, kind, sha, size = listed.split(b"\t", 1)[0].split()
        if kind != b"blob" or mode not in (b"100644", b"100755"):
            raise Unworkable(f"{path} of {space.base_branch} is no regular file: make it one, or remove it")
        if int(size) > limit:
            raise Unworkable(
                f"{path} of {space.base_branch} has {int(size)} bytes, at most {limit} are read: shorten it"
            )
        return await self.git.run("cat-file", "blob", sha.decode(), git_dir=space.cache, limit_s=_LOCAL_S)

    async def push(self, space: Workspace, remote: Remote, *, commit: str, branch: str) -> bool:
        """Create `branch` at `commit` on the forge; False when it was there already, at just this commit.

        Only ever creates: a branch that exists with another commit is a GitError. An answer that was lost is looked up.
        """
        _check_branch(branch)
        own = own_repository(space.home)
        # A branch's name has words of the title, and everybody on this host can read an argv: it goes by stdin,
        # and in a pattern; nothing else is ever below _OUT. A lease would put it into the argv of git's own helpers: so
        # we look first, and without force git moves no branch but forward, of which only we know the name until now.
        there = await self.remote_head(remote, branch)
        if there is not None and there != commit:
            raise GitError(f"the forge has {branch} already, on another commit ({there})", code=1)
        if there is not None:
            return False
        out = f"update {_OUT}{branch} {_checked_sha(commit)}\n".encode()
        await self.git.run("update-ref", "--stdin", git_dir=own, stdin=out, limit_s=_LOCAL_S)
        try:
            said = await self.git.run(
                *("push", "--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"),
                *("--", remote.url, f"{_OUT}*:refs/heads/*"),
                git_dir=own,
                remote=remote,
            )
        except GitError:
            if await self.remote_head(remote, branch) != commit:
                raise
            return False
        return b"\n*\t" in said

    async def remote_head(self, remote: Remote, branch: str) -> str | None:
        """The commit a branch of ours has on the forge, None when there is no such branch."""
        number = branch.removeprefix("tireless/").partition("-")[0]
        return (await self.remote_branches(remote, int(number))).get(branch)

    async def remote_branches(self, remote: Remote, number: int) -> dict[str, str]:
        """Every branch of ours for an issue, with its commit."""
        heads = await self._ls_remote(remote, f"refs/heads/{branch_prefix(number)}*")
        return {match[1]: sha for ref, sha in heads.items() if (match := _BRANCH.fullmatch(ref))}

    async def find_work(self, space: Workspace, number: int) -> list[Found]:
        """Branches of an issue as of the last fetch, with the request each head names: to be adopted, not redone.

        Newest commit first; none whose work is in the base branch already.
        """
        wanted = f"%(objectname) %(refname) %(contents:trailers:key={TRAILER},valueonly,separator=%2C)"
        listed = await self.git.run(
            *("for-each-ref", "--sort=-committerdate", f"--no-merged={space.base_sha}", f"--format={wanted}"),
            f"refs/heads/{branch_prefix(number)}*",
            git_dir=space.cache,
            limit_s=_LOCAL_S,
        )
        found = []
        for line in listed.decode("utf-8", "replace").splitlines():
            sha, ref, request = line.split(" ", 2)
            if match := _BRANCH.fullmatch(ref):
                found.append(Found(branch=match[1], commit=sha, attempt=ref[-8:], request=request.strip()))
        return found

    async def save(self, space: Workspace, commit: str) -> Path:
        """Keep undelivered work as a bundle (`git fetch FILE` reads it); the path of it."""
        path = self.places.saved(space.home.key)
        own = own_repository(space.home)
        await self.git.run("update-ref", "refs/heads/work", _checked_sha(commit), git_dir=own, limit_s=_LOCAL_S)
        await self.git.run("bundle", "create", "--quiet", path, "refs/heads/work", f"^{space.base_sha}", git_dir=own)
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.copyfile, space.home.own / NAME, path.with_suffix(".json"))
        return path

    async def forget_work(self, space: Workspace) -> None:
        """Remove what a collection that was killed left, locks included: it is made anew from the tree."""
        own = own_repository(space.home)
        for path in (own, *space.home.own.glob("index*")):
            await asyncio.to_thread(shutil.rmtree if path.is_dir() else _unlink, path)

    async def pinned(self, cache: Path) -> bool:
        """Is a run on disk that stands on a commit of this cache? Asked by who holds its lock."""
        listed = await self.git.run("for-each-ref", "--format=%(refname)", _PIN, git_dir=cache, limit_s=_LOCAL_S)
        return any(self.places.has_run(ref.removeprefix(_PIN)) for ref in listed.decode().split())

    async def pack(self, cache: Path) -> None:
        """Make one pack of many, unless somebody uses the cache now. What nothing names goes after two weeks only."""
        hold = self.places.lock_cache(cache)
        if hold is None:
            return
        try:
            await asyncio.to_thread(_remove_stale_locks, cache)
            await self.git.run("gc", "--quiet", "--prune=2.weeks.ago", git_dir=cache, hold=hold.fds)
        finally:
            hold.close()

    def began(self, home: Home) -> None:
        """Note that an agent runs in this tree: from here on there may be work in it."""
        try:
            (home.own / _BEGAN).touch()
        except OSError as error:
            raise WorkspaceError(f"could not write to the directories of a run at {home.own}: {error}") from error

    def settled(self, home: Home) -> None:
        """Note that nothing is lost with this tree any more."""
        with contextlib.suppress(OSError):  # then it is saved once more than is needed
            (home.own / _SETTLED).touch()

    def may_lose(self, home: Home) -> bool:
        """Is there a run on disk whose work was neither delivered nor saved, as far as anybody noted?"""
        if not (home.own / _BEGAN).exists() or (home.own / _SETTLED).exists():
            return False
        return not self.places.saved(home.key).exists()

    async def drop(self, home: Home) -> None:
        """Remove a run's directories; idempotent."""
        await self.places.remove(home.key)
        home.hold.close()

    @contextlib.asynccontextmanager
    async def _locked_cache(self, repository: str) -> AsyncIterator[tuple[Path, int]]:
        """The repository's cache and its lock. One whose holder is stopped is passed over: a clone costs less."""
        async with contextlib.AsyncExitStack() as stack:
            for n in range(1, CACHES_MAX + 1):
                cache = self.places.cache(repository if n == 1 else f"{repository}--{n}")
                try:
                    lock = await stack.enter_async_context(self.places.locked(cache, limit_s=LOCK_LIMIT_S))
                except StoppedHolderError as error:
                    if n == CACHES_MAX:
                        raise
                    _log.warning("cache passed over", cache=cache.name, pid=error.pid, error=str(error))
                    continue
                break
            yield cache, lock

    async def _fetch(self, cache: Path, remote: Remote, lock: int) -> None:
        """Bring the cache up to the forge. The lock is ours and git's: whatever else lies there half-done is dead."""
        await asyncio.to_thread(_remove_stale_locks, cache)
        await self.git.run("init", "--quiet", "--bare", "--template=", "--", cache, limit_s=_LOCAL_S)
        await self._unpin(cache)
        try:
            await self.git.run(
                *("fetch", "--quiet", "--prune", "--force", "--no-write-fetch-head", "--no-recurse-submodules"),
                *("--", remote.url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"),
                git_dir=cache,
                remote=remote,
                hold=(lock,),
            )
        except GitError as error:
            if _NOT_OURS.search(error.said):
                raise Unworkable(
                    f"the forge has no such repository for this runner's git user ({error.said.splitlines()[-1]}): "
                    "give that user read and write access to its code, or close the issue"
                ) from error
            raise

    async def _unpin(self, cache: Path) -> None:
        """Forget the base commits of runs that are no longer on disk."""
        listed = await self.git.run("for-each-ref", "--format=%(refname)", _PIN, git_dir=cache, limit_s=_LOCAL_S)
        for ref in listed.decode().split():
            if not self.places.has_run(ref.removeprefix(_PIN)):
                await self.git.run("update-ref", "-d", ref, git_dir=cache, limit_s=_LOCAL_S)

    async def _resolve(self, cache: Path, branch: str) -> str:
        try:
            sha = await self.git.run(
                *("rev-parse", "--verify", "--quiet", "--end-of-options", f"refs/heads/{branch}^{{commit}}"),
                git_dir=cache,
                limit_s=_LOCAL_S,
            )
        except GitError as error:
            if error.code != 1:
                raise
            raise Unworkable(
                f"the repository has no branch {branch!r} with a commit (is it empty? was the branch renamed?): "
                "push a first commit to it, or correct the default branch on the forge"
            ) from error
        return sha.decode().strip()

    async def _clone(self, tree: Path, cache: Path, remote: Remote, base: str) -> None:
        """A tree that shares nothing with the cache. Fetched, not cloned: a local clone would link or copy files."""

        async def git(*arguments: str | Path) -> None:
            await self.git.run(*arguments, cwd=tree, protocols="file")

        await git("init", "--quiet", "--template=", "--", tree)
        await git(
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", cache),
            *("+refs/heads/*:refs/remotes/origin/*", "^refs/heads/tireless/*", "+refs/tags/*:refs/tags/*"),
        )
        for name, value in (
            ("remote.origin.url", remote.url),
            ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
            ("user.name", self.identity.name),
            ("user.email", self.identity.email),
        ):
            await git("config", "--local", name, value)
        await git("checkout", "--quiet", "--detach", base)

    async def _ls_remote(self, remote: Remote, pattern: str) -> dict[str, str]:
        listed = await self.git.run("ls-remote", "--heads", "--", remote.url, pattern, remote=remote)
        lines = (line.split("\t", 1) for line in listed.decode("utf-8", "replace").splitlines())
        return {ref: sha for sha, ref in lines}


def own_repository(home: Home) -> Path:
    """The bare repository of ours that work is collected in and pushed from."""
    return home.own / "work.git"


def _check_branch(branch: str) -> None:
    if not _BRANCH.fullmatch(f"refs/heads/{branch}"):
        raise WorkspaceError(f"refused to push to {branch!r}: no branch of ours")


def _checked_sha(sha: str) -> str:
    if not _SHA.fullmatch(sha):
        raise WorkspaceError(f"{sha!r} is no commit")
    return sha


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _remove_stale_locks(cache: Path) -> None:
    """Git that was killed leaves its lock files, and every later call would fail on them."""
    for directory, names, files in os.walk(cache):
        if "objects" in names:
            names.remove("objects")
        for name in files:
            if name.endswith(".lock"):
                Path(directory, name).unlink(missing_ok=True)


def give(paths: Iterable[Path], who: RunAs) -> None:
    """Make the other user the owner of what is his, without following links out of it."""
    for path in paths:
        os.chown(path, who.uid, who.gid, follow_symlinks=False)
        for directory, names, files in os.walk(path):
            for name in (*names, *files):
                os.chown(os.path.join(directory, name), who.uid, who.gid, follow_symlinks=False)
