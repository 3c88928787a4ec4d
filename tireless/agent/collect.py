"""Takes an agent's work out of its tree into a repository of our own, made fit to be pushed.

Whatever the agent did to its tree, its `.git/config` or its history: the only git that runs in there is `upload-pack`,
without credentials and without the right to start anything; left-over changes are read by our repository.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

from tireless.agent.gitcli import Git, GitError
from tireless.agent.workspace import TRAILER, Identity, Workspace, own_repository
from tireless.domain.inert import neutralise
from tireless.domain.outcome import Evidence
from tireless.errors import WorkspaceError
from tireless.redact import Redactor

COMMITS_MAX = 200
"""An agent's commits beyond this, or beyond a rewritten base, are delivered as one."""
MESSAGE_MAX = 16_384
_LOCAL_S = 120.0
_AGENT = "refs/tireless/agent"
_OURS_ALONE = re.compile(rf"(?im)^[ \t]*{TRAILER}[ \t]*:.*\n?")
_REQUEST = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,198}[\x21-\x7e])?")
# Old tools write these harmlessly; everything else that fsck finds in an agent's objects is refused.
_HARMLESS = ("zeroPaddedFilemode", "missingSpaceBeforeDate", "badTimezone", "nullSha1")
_FSCK = (
    *("-c", "fetch.fsckObjects=true"),
    *(word for name in _HARMLESS for word in ("-c", f"fetch.fsck.{name}=ignore")),
)


class Collector:
    """One run's work: `evidence` reads the tree, commits what was left over, rewrites what will be pushed."""

    def __init__(self, git: Git, space: Workspace, *, identity: Identity, redactor: Redactor) -> None:
        self._git = git
        self._space = space
        self._identity = identity
        self._redactor = redactor
        self._own = own_repository(space.home)
        self._index = {"GIT_INDEX_FILE": str(space.home.own / "index")}

    async def evidence(self, *, request: str, subject: str) -> Evidence:
        """What there is to deliver. A tree that cannot be read is evidence too; WorkspaceError is a fault of ours.

        `request` is what the trailer names, one printable line. `subject` heads the commits that we make ourselves.
        """
        if not _REQUEST.fullmatch(request):
            raise WorkspaceError(f"{request!r} cannot be named by a trailer")
        await self._open_own()
        try:
            head = await self._take_over()
            tree = await self._tree_with_left_over(head)
        except GitError as error:
            return Evidence(unreadable=str(error))
        except _Unreadable as error:
            return Evidence(unreadable=str(error))
        theirs = await self._commits(head)
        if tree == await self._tree_of(self._space.base_sha):
            return Evidence(commits=len(theirs or ()), tree=tree)
        commit = await self._deliverable(theirs, tree, request=request, subject=subject)
        await self._local("update-ref", "refs/tireless/deliver", commit)
        return Evidence(commit=commit, commits=len(theirs or ()), tree=tree)

    async def _open_own(self) -> None:
        await self._git.run("init", "--quiet", "--bare", "--template=", "--", self._own, limit_s=_LOCAL_S)
        # Alternates of ours, to a cache of ours: base need not be copied.
        (self._own / "objects" / "info" / "alternates").write_text(f"{self._space.cache / 'objects'}\n")

    async def _take_over(self) -> str:
        """Fetch the tree's HEAD; objects that are not sound are refused."""
        home = self._space.home
        if wrong := home.check_tree():
            raise _Unreadable(wrong)
        await self._git.run(
            *(*_FSCK, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"),
            *(f"--upload-pack={self._upload_pack()}", "--", home.tree / ".git", f"+HEAD:{_AGENT}"),
            git_dir=self._own,
            protocols="file",
        )
        return await self._local("rev-parse", "--verify", f"{_AGENT}^{{commit}}")

    def _upload_pack(self) -> str:
        """What git runs by a shell. A promisor remote of the agent's would start a command of his: no transport at all.

        Git refuses a tree of another user, so with `run_as` this runs as that user.
        """
        who = self._space.run_as
        groups = f"--groups={','.join(map(str, who.groups))}" if who and who.groups else "--clear-groups"
        change = f"setpriv --reuid={who.uid} --regid={who.gid} {groups} -- " if who else ""
        return f"GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1 {change}git upload-pack --strict"

    async def _tree_with_left_over(self, head: str) -> str:
        """The tree of `head` with what lies uncommitted in the work tree, through an index of ours.

        Submodules are taken out of the index first and put back after: to see whether one is dirty git would run a
        `status` inside it, which obeys that repository's configuration. So left-overs never move a submodule.
        """
        await self._local("read-tree", head, indexed=True)
        links = await self._gitlinks()
        await self._drop(links)
        await self._local("add", "--all", "--", ".", indexed=True, in_tree=True)
        await self._drop(await self._gitlinks())
        await self._put_back(links)
        return await self._local("write-tree", indexed=True)

    async def _gitlinks(self) -> dict[bytes, bytes]:
        """Path to commit of every submodule entry in the index."""
        listed = await self._raw("ls-files", "--stage", "-z", indexed=True)
        entries = (entry.split(b"\t", 1) for entry in listed.split(b"\0") if entry.startswith(b"160000 "))
        return {path: mode.split(b" ")[1] for mode, path in entries}

    async def _drop(self, links: dict[bytes, bytes]) -> None:
        paths = b"".join(path + b"\0" for path in links)
        if paths:
            await self._raw("update-index", "--force-remove", "-z", "--stdin", indexed=True, in_tree=True, stdin=paths)

    async def _put_back(self, links: dict[bytes, bytes]) -> None:
        """Unless its directory was removed, or something else stands there now."""
        listed = (await self._raw("ls-files", "-z", indexed=True)).split(b"\0") if links else []
        taken = set(listed) | {parent for path in listed for parent in _parents(path)}
        kept = (
            path
            for path in links
            if path not in taken
            and not taken.intersection(_parents(path))
            and _is_directory(self._space.home.tree, path)
        )
        lines = b"".join(b"160000 %s\t%s\0" % (links[path], path) for path in kept)
        if lines:
            await self._raw("update-index", "-z", "--index-info", indexed=True, stdin=lines)

    async def _commits(self, head: str) -> list[str] | None:
        """The agent's commits beyond base, parents first; None: history was rewritten, or there are too many."""
        base = self._space.base_sha
        descends = await self._raw("merge-base", base, head, may_fail=(1,))
        if descends.decode().strip() != base:
            return None
        known = await self._git.run(
            "for-each-ref", "--format=^%(objectname)", "refs/heads/", git_dir=self._space.cache, limit_s=_LOCAL_S
        )
        listed = await self._raw(
            *("rev-list", "--topo-order", "--reverse", f"--max-count={COMMITS_MAX + 1}", "--stdin"),
            stdin=f"{head}\n^{base}\n".encode() + known,
        )
        commits = listed.decode().split()
        return commits if len(commits) <= COMMITS_MAX else None

    async def _deliverable(self, theirs: list[str] | None, tree: str, *, request: str, subject: str) -> str:
        """The commit to push: theirs with inert messages, ours for what was left over, the trailer on the last."""
        base = self._space.base_sha
        if not theirs:
            return await self._commit(tree, [base], self._message(subject, request))
        last = theirs[-1]
        left_over = tree != await self._tree_of(last)
        rewritten: dict[str, str] = {}
        for sha in theirs:
            head_request = request if sha == last and not left_over else None
            rewritten[sha] = await self._rewrite(sha, rewritten, head_request)
        if not left_over:
            return rewritten[last]
        return await self._commit(tree, [rewritten[last]], self._message(subject, request))

    async def _rewrite(self, sha: str, rewritten: dict[str, str], request: str | None) -> str:
        """The same commit with its new parents, committed by us, unsigned, its message inert."""
        raw = (await self._raw("cat-file", "commit", sha)).decode("utf-8", "replace")
        headers, _, message = raw.partition("\n\n")
        fields = [line.partition(" ") for line in headers.split("\n")]
        parents = [rewritten.get(value, value) for name, _, value in fields if name == "parent"]
        author = next(value for name, _, value in fields if name == "author")
        tree = next(value for name, _, value in fields if name == "tree")
        when = " ".join(next(value for name, _, value in fields if name == "committer").rsplit(" ", 2)[1:])
        return await self._write(tree, parents, author, when, self._message(message, request))

    async def _commit(self, tree: str, parents: list[str], message: str) -> str:
        when = f"{int(time.time())} +0000"
        return await self._write(tree, parents, f"{self._identity} {when}", when, message)

    async def _write(self, tree: str, parents: list[str], author: str, when: str, message: str) -> str:
        """As an object, not by `git commit`: no editor, no hook, no configuration has a word in it."""
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        lines += [f"author {author}", f"committer {self._identity} {when}", "", message]
        text = "\n".join(lines).encode("utf-8", "replace")
        return (await self._raw("hash-object", "-t", "commit", "-w", "--stdin", stdin=text)).decode().strip()

    def _message(self, text: str, request: str | None) -> str:
        """Redacted, inert, bounded; trailers that only we may write are taken out."""
        plain = _OURS_ALONE.sub("", neutralise(self._redactor.text(text[:MESSAGE_MAX]))).strip() or "(no message)"
        return f"{plain}\n\n{TRAILER}: {request}\n" if request else f"{plain}\n"

    async def _tree_of(self, commit: str) -> str:
        return await self._local("rev-parse", "--verify", f"{commit}^{{tree}}")

    async def _local(self, *arguments: str, indexed: bool = False, in_tree: bool = False) -> str:
        return (await self._raw(*arguments, indexed=indexed, in_tree=in_tree)).decode().strip()

    async def _raw(
        self,
        *arguments: str,
        indexed: bool = False,
        in_tree: bool = False,
        stdin: bytes = b"",
        may_fail: tuple[int, ...] = (),
    ) -> bytes:
        """Git on our repository; `in_tree` lets it read (never obey) the agent's files."""
        tree: Path = self._space.home.tree
        places = ("-c", "core.bare=false", f"--work-tree={tree}") if in_tree else ()
        return await self._git.run(
            *(*places, *arguments),
            git_dir=self._own,
            cwd=tree if in_tree else None,
            env=self._index if indexed else None,
            stdin=stdin,
            may_fail=may_fail,
        )


class _Unreadable(Exception):
    """The tree cannot be read; the message says why."""


def _parents(path: bytes) -> list[bytes]:
    """The directories above a path of the index."""
    parts = path.split(b"/")
    return [b"/".join(parts[:n]) for n in range(1, len(parts))]


def _is_directory(tree: Path, path: bytes) -> bool:
    """Is there a directory, no link, at this path of the index?"""
    try:
        return stat.S_ISDIR(os.lstat(os.path.join(os.fsencode(tree), path)).st_mode)
    except OSError:
        return False
