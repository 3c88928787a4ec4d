"""The git side of the loopback forge: bare repositories, commits, merges, by the git command line. Knows no issue."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

_TIME_LIMIT_S = 60.0

DENIED = "TIRELESS_LOOPBACK_DENIED"
"""Environment of a push: why the hook refuses it; empty or absent for one that may."""


class GitFailed(Exception):
    """A git command ended with another code than 0; the text is its standard error."""


def git_env(git_root: Path) -> dict[str, str]:
    """An environment in which nothing of the machine's configuration counts."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(git_root),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


class GitRepos:
    """Bare repositories below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._env = git_env(root)

    async def run(self, git_dir: Path, *args: str, stdin: bytes | None = None, ok: tuple[int, ...] = (0,)) -> bytes:
        """One git command in a bare repository; its standard output."""
        process = await asyncio.create_subprocess_exec(
            *("git", "-c", "safe.directory=*", "--git-dir", str(git_dir), *args),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
        )
        try:
            async with asyncio.timeout(_TIME_LIMIT_S):
                out, err = await process.communicate(stdin)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode not in ok:
            raise GitFailed(f"git {args[0]} in {git_dir.name}: {err.decode('utf-8', 'replace').strip()}")
        return out

    async def create(self, git_dir: Path, default_branch: str) -> None:
        """A new bare repository that accepts pushes over HTTP."""
        await asyncio.to_thread(git_dir.mkdir, parents=True, exist_ok=True)
        await self.run(git_dir, "init", "--quiet", "--bare", f"--initial-branch={default_branch}", str(git_dir))
        await self.run(git_dir, "config", "http.receivepack", "true")
        await self.run(git_dir, "config", "uploadpack.allowAnySHA1InWant", "true")
        await self.run(git_dir, "config", "uploadpack.allowFilter", "true")
        hook = git_dir / "hooks" / "pre-receive"
        await asyncio.to_thread(_write_hook, hook)

    async def remove(self, git_dir: Path) -> None:
        """Remove a repository of ours."""
        if git_dir.parent == self.root:
            await asyncio.to_thread(shutil.rmtree, git_dir, ignore_errors=True)

    async def branches(self, git_dir: Path) -> dict[str, str]:
        """Branch name -> commit."""
        out = await self.run(git_dir, "for-each-ref", "--format=%(objectname) %(refname:lstrip=2)", "refs/heads")
        pairs = (line.split(" ", 1) for line in out.decode("utf-8", "replace").splitlines())
        return {name: sha for sha, name in pairs}

    async def commit_file(
        self,
        git_dir: Path,
        *,
        branch: str,
        start: str | None,
        path: str,
        content: bytes,
        message: str,
        who: str,
        at: int,
    ) -> None:
        """A commit on `branch` (made from commit `start`) that writes one file; one process does all of it."""
        head = f"commit refs/heads/{branch}\ncommitter {who} <{who}@localhost> {at} +0000\n"
        said = message.encode()
        lines = [head.encode(), b"data %d\n" % len(said), said, b"\n"]
        if start is not None:
            lines.append(f"from {start}\n".encode())
        lines += [b"M 100644 inline ", _quoted(path), b"\ndata %d\n" % len(content), content, b"\n"]
        await self.run(git_dir, "fast-import", "--quiet", "--date-format=raw", stdin=b"".join(lines))

    async def read_file(self, git_dir: Path, commit: str, path: str) -> bytes | None:
        """A file at a commit, None when it is not there."""
        try:
            return await self.run(git_dir, "cat-file", "blob", f"{commit}:{path}")
        except GitFailed:
            return None

    async def merge_base(self, git_dir: Path, one: str, other: str) -> str:
        """The merge base, empty when there is none."""
        out = await self.run(git_dir, "merge-base", one, other, ok=(0, 1))
        return out.decode().strip()

    async def log(self, git_dir: Path, old: str, new: str) -> list[tuple[str, str]]:
        """(commit, message) reachable from `new` and not from `old`, oldest first, at most 200."""
        span = [new] if not old else [new, f"^{old}"]
        out = await self.run(git_dir, "log", "-z", "--reverse", "--max-count=200", "--format=%H%n%B", *span, "--")
        found = []
        for record in out.decode("utf-8", "replace").split("\0"):
            sha, _, message = record.partition("\n")
            if sha:
                found.append((sha, message.strip()))
        return found

    async def message(self, git_dir: Path, commit: str) -> str:
        """The message of one commit."""
        out = await self.run(git_dir, "log", "-1", "--format=%B", commit, "--")
        return out.decode("utf-8", "replace").strip() + "\n"

    async def merge_tree(self, git_dir: Path, base: str, head: str) -> str | None:
        """The tree a merge of `head` into `base` gives, None on conflicts. Needs git 2.38."""
        out = await self.run(git_dir, "merge-tree", "--write-tree", base, head, ok=(0, 1))
        first, _, rest = out.decode().partition("\n")
        return None if rest.strip() else first.strip()

    async def commit_tree(
        self, git_dir: Path, *, tree: str, parents: list[str], message: str, who: str, at: int
    ) -> str:
        """A commit object; no ref moves."""
        args = [arg for parent in parents for arg in ("-p", parent)]
        identity = {
            f"GIT_{role}_{field}": value
            for role in ("AUTHOR", "COMMITTER")
            for field, value in (("NAME", who), ("EMAIL", f"{who}@localhost"), ("DATE", f"{at} +0000"))
        }
        other = GitRepos(self.root)
        other._env = {**self._env, **identity}
        out = await other.run(git_dir, "commit-tree", tree, *args, stdin=message.encode())
        return out.decode().strip()

    async def tree_of(self, git_dir: Path, commit: str) -> str:
        """The tree of a commit."""
        return (await self.run(git_dir, "rev-parse", f"{commit}^{{tree}}")).decode().strip()

    async def set_ref(self, git_dir: Path, ref: str, commit: str) -> None:
        """Point a ref at a commit."""
        await self.run(git_dir, "update-ref", ref, commit)

    async def delete_ref(self, git_dir: Path, ref: str) -> None:
        """Delete a ref."""
        await self.run(git_dir, "update-ref", "-d", ref)


def _write_hook(path: Path) -> None:
    """A push is refused as the real one refuses it: by its hook, after the objects came."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ -z "${DENIED}" ] || {{ echo "${DENIED}" >&2; exit 1; }}\n', encoding="ascii")
    path.chmod(0o755)


def _quoted(path: str) -> bytes:
    """A path as fast-import reads it."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'.encode()
