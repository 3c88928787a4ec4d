"""Taking the work out of a tree that an agent had: everything he did comes along, nothing he planted is obeyed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.githttp import TOKEN, USER, GitServer, plain_git, seed
from tests.support.opened import opened
from tireless.agent.collect import COMMITS_MAX, Collector
from tireless.agent.control import RunAs
from tireless.agent.gitcli import Credential, Git, Remote
from tireless.agent.places import Places
from tireless.agent.workspace import Identity, Workspace, Workspaces, own_repository
from tireless.domain.outcome import Evidence
from tireless.errors import WorkspaceError
from tireless.redact import MASK, Redactor

BRANCH = "tireless/7-make-it-shine.0123abcd"
REQUEST = "main/ada/lamp#7 label 12"


class Desk:
    """One prepared run and the means to look at what was collected from it."""

    remote: Remote

    def __init__(self, space: Workspace, spaces: Workspaces) -> None:
        self.space = space
        self.spaces = spaces
        self.tree = space.home.tree
        self.own = own_repository(space.home)

    def git(self, *arguments: str) -> str:
        """Git in the tree, as the agent runs it."""
        return plain_git(self.tree, *arguments)

    def commit(self, name: str, content: str, message: str) -> None:
        (self.tree / name).write_text(content)
        self.git("add", name)
        self.git("commit", "-qm", message)

    @property
    def base_tree(self) -> str:
        """The git tree of the base commit."""
        return self.git("rev-parse", f"{self.space.base_sha}^{{tree}}").strip()

    async def collect(self) -> Evidence:
        collector = Collector(
            self.spaces.git, self.space, identity=Identity("tireless", "bot@forge"), redactor=Redactor([TOKEN])
        )
        return await collector.evidence(request=REQUEST, subject="Make it shine (#7)")

    def show(self, form: str, commit: str | None) -> str:
        assert commit is not None
        return plain_git(self.own, "show", "-s", f"--format={form}", commit)

    def files(self, commit: str | None) -> list[str]:
        assert commit is not None
        return plain_git(self.own, "ls-tree", "-r", "--name-only", commit).split("\n")

    def content(self, commit: str | None, path: str) -> str:
        return plain_git(self.own, "cat-file", "-p", f"{commit}:{path}")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    (tmp_path / "forge").mkdir()
    with GitServer(tmp_path / "forge") as server:
        seed(server.root)
        places = Places(tmp_path / "root")
        places.open(shared=True)
        spaces = Workspaces(places, Git(redactor=Redactor([TOKEN]), environ=os.environ))
        remote = Remote(f"{server.url}/lamp.git", Credential(USER, TOKEN))
        desk = Desk(await spaces.prepare("1.0123abcd", remote, repository="main-1", base_branch="main"), spaces)
        desk.remote = remote
        yield desk


async def test_untouched_tree_is_no_evidence(desk: Desk) -> None:
    """An agent that changed nothing leaves nothing to deliver."""
    assert await desk.collect() == Evidence(tree=desk.base_tree)


async def test_left_over_changes_are_committed_on_base(desk: Desk) -> None:
    """Edited, new and deleted files that nobody committed become one commit of ours on base; ignored ones do not."""
    (desk.tree / "src" / "app.txt").write_text("on\n")
    (desk.tree / "new file.txt").write_text("n\n")
    (desk.tree / "junk.o").write_text("o\n")
    (desk.tree / "README").unlink()
    evidence = await desk.collect()
    assert evidence.commits == 0
    assert desk.files(evidence.commit) == [".gitignore", "new file.txt", "src/app.txt"]
    assert desk.show("%P", evidence.commit) == desk.space.base_sha
    assert desk.show("%an <%ae>, %cn", evidence.commit) == "tireless <bot@forge>, tireless"


async def test_head_carries_the_trailer_and_no_live_reference(desk: Desk) -> None:
    """The pushed head names its request, and the subject's `#7` is inert."""
    (desk.tree / "README").write_text("bright\n")
    evidence = await desk.collect()
    assert desk.show("%(trailers:key=Tireless-Request,valueonly)", evidence.commit) == REQUEST
    assert "#7" not in desk.show("%s", evidence.commit)


async def test_commits_of_the_agent_stay_his_with_inert_messages(desk: Desk) -> None:
    """Author and contents of each commit are kept; closing words, mentions, secrets and forged trailers are not."""
    desk.commit("a", "1", "First\n\nfixes #3, thanks @ada")
    desk.commit("b", "2", f"Second with {TOKEN}\n\nTireless-Request: somebody else's")
    evidence = await desk.collect()
    log = plain_git(desk.own, "log", "--format=%an|%B", f"{desk.space.base_sha}..{evidence.commit}")
    assert evidence.commits == 2
    assert log.count("Ada|") == 2
    assert "#3" not in log
    assert "@ada" not in log
    assert TOKEN not in log
    assert MASK in log
    assert log.count("Tireless-Request:") == 1
    assert "somebody" not in log
    assert desk.content(evidence.commit, "b") == "2"


async def test_commits_and_left_overs_come_together(desk: Desk) -> None:
    """Commits first, then one of ours with what was left over; only the last has the trailer."""
    desk.commit("a", "1", "First")
    (desk.tree / "b").write_text("2")
    evidence = await desk.collect()
    subjects = plain_git(desk.own, "log", "--format=%s", f"{desk.space.base_sha}..{evidence.commit}").split("\n")
    assert len(subjects) == 2
    assert subjects[1] == "First"
    assert desk.files(evidence.commit) == [".gitignore", "README", "a", "b", "src/app.txt"]


async def test_commits_that_change_nothing_together_are_no_evidence(desk: Desk) -> None:
    """An empty commit, or one and its revert, is counted but delivers nothing."""
    desk.commit("a", "1", "Do")
    desk.git("rm", "-q", "a")
    desk.git("commit", "-qm", "Undo")
    assert await desk.collect() == Evidence(commits=2, tree=desk.base_tree)


async def test_work_committed_to_the_base_branch_counts(desk: Desk) -> None:
    """It does not matter on which branch the agent committed, as long as HEAD is there."""
    desk.git("checkout", "-q", "-B", "main")
    desk.commit("a", "1", "On main")
    assert desk.files((await desk.collect()).commit)[-2:] == ["a", "src/app.txt"]


async def test_merges_keep_their_shape(desk: Desk) -> None:
    """A merge of two lines of the agent's own arrives as a merge."""
    desk.git("checkout", "-q", "-b", "one")
    desk.commit("a", "1", "One")
    desk.git("checkout", "-q", "-b", "two", desk.space.base_sha)
    desk.commit("b", "2", "Two")
    desk.git("merge", "-q", "--no-ff", "-m", "Both", "one")
    evidence = await desk.collect()
    assert evidence.commits == 3
    assert len(desk.show("%P", evidence.commit).split()) == 2


@pytest.mark.parametrize("how", ["amend", "orphan"])
async def test_rewritten_history_becomes_one_commit_on_base(desk: Desk, how: str) -> None:
    """History that no longer contains base is delivered as its contents, in one commit on base."""
    (desk.tree / "a").write_text("1")
    if how == "orphan":
        desk.git("checkout", "-q", "--orphan", "fresh")
    desk.git("add", ".")
    desk.git("commit", "-q", *(["--amend"] if how == "amend" else []), "-m", "Rewritten")
    evidence = await desk.collect()
    assert desk.show("%P", evidence.commit) == desk.space.base_sha
    assert desk.files(evidence.commit) == [".gitignore", "README", "a", "src/app.txt"]


async def test_very_many_commits_become_one(desk: Desk) -> None:
    """An agent that commits without end gets one commit with everything."""
    base = desk.space.base_sha
    stream = "".join(
        f"commit refs/heads/many\ncommitter A <a@b> {n} +0000\ndata 1\nx\n"
        + (f"from {base}\n" if n == 0 else "")
        + f"M 644 inline many/{n}\ndata 1\ny\n"
        for n in range(COMMITS_MAX + 1)
    )
    plain_git(desk.tree, "fast-import", "--quiet", stdin=stream)
    desk.git("checkout", "-q", "many")
    evidence = await desk.collect()
    assert desk.show("%P", evidence.commit) == base
    assert len(desk.files(evidence.commit)) == COMMITS_MAX + 4


async def test_index_lock_left_behind_is_no_obstacle(desk: Desk) -> None:
    """A lock the agent's git left in the tree means nothing to ours."""
    (desk.tree / ".git" / "index.lock").touch()
    (desk.tree / "a").write_text("1")
    assert (await desk.collect()).commit


PAYLOADS = [
    *(
        "fsmonitor",
        "filter",
        "hooks",
        "hooksDirectory",
        "insteadOf",
        "promisor",
        "askpass",
        "alternateRefs",
        "packHook",
    ),
    *(
        "include",
        "includeIf",
        "proxy",
        "sshCommand",
        "alternates",
        "drivers",
        "worktree",
        "worktreeConfig",
        "submodule",
    ),
    *("programs", "replace", "grafts"),
]
UNREADABLE = {"promisor", "submodule"}
"""What makes the objects unfit to be taken: one is missing, or fsck refuses it."""


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_planted_configuration_is_not_obeyed(desk: Desk, tmp_path: Path, payload: str) -> None:
    """Whatever the agent planted, no command of his runs while its work is taken, saved and pushed; and it arrives."""
    trap = tmp_path / "trap"
    sprung = tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\ncat 2>/dev/null\n")
    trap.chmod(0o755)
    desk.commit("a", "1", "Work")
    (desk.tree / "b").write_text("2")
    plant(desk, payload, trap)
    evidence = await desk.collect()
    if payload in UNREADABLE:
        assert evidence.unreadable
    else:
        assert {"a", "b"} <= set(desk.files(evidence.commit))
        assert desk.content(evidence.commit, "b") == "2"
        assert evidence.commit is not None
        await desk.spaces.save(desk.space, evidence.commit)
        assert await desk.spaces.push(desk.space, desk.remote, commit=evidence.commit, branch=BRANCH)
    await desk.spaces.prepare("2.0123abcd", desk.remote, repository="main-1", base_branch="main")
    assert not sprung.exists()
    assert TOKEN.encode() not in b"".join(path.read_bytes() for path in desk.tree.rglob("*") if path.is_file())


OBEDIENT = {
    "fsmonitor": ["status"],
    "filter": ["add", "b"],
    "hooks": ["checkout", "-q", "-b", "x"],
    "hooksDirectory": ["checkout", "-q", "-b", "x"],
    "insteadOf": ["-c", "protocol.ext.allow=always", "ls-remote", "/x"],
    "include": ["status"],
    "includeIf": ["status"],
    "proxy": ["ls-remote", "git://127.0.0.1/x"],
    "sshCommand": ["ls-remote", "ssh://127.0.0.1/x"],
    "drivers": ["diff", "--ext-diff", "HEAD~1"],
    "worktreeConfig": ["status"],
    "programs": ["commit", "-q", "--allow-empty", "-m", "x"],
    "alternateRefs": ["fetch", "-q", "."],
}
"""A command of plain git that walks into the trap: the traps are sharp."""


@pytest.mark.parametrize("payload", OBEDIENT)
async def test_traps_are_sharp(desk: Desk, tmp_path: Path, payload: str) -> None:
    """A git that obeys the tree's configuration runs the agent's command: what we do above is not safe by chance."""
    trap, sprung = tmp_path / "trap", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\nexit 1\n")
    trap.chmod(0o755)
    desk.commit("a", "1", "Work")
    (desk.tree / "b").write_text("2")
    if payload == "alternateRefs":
        plain_git(tmp_path, "clone", "-q", "--bare", str(desk.tree), "lent.git")
        (desk.tree / ".git" / "objects" / "info" / "alternates").write_text(f"{tmp_path}/lent.git/objects\n")
    plant(desk, payload, trap)
    subprocess.run(["git", *OBEDIENT[payload]], cwd=desk.tree, capture_output=True, stdin=subprocess.DEVNULL)
    assert sprung.exists()


def plant(desk: Desk, payload: str, trap: Path) -> None:
    """Set one trap in the tree."""
    config = {
        "fsmonitor": [("core.fsmonitor", str(trap))],
        "filter": [("filter.evil.clean", str(trap)), ("filter.evil.process", str(trap))],
        "hooks": [("core.hooksPath", str(trap.parent / "hooks"))],
        "insteadOf": [(f"url.ext::{trap} .insteadOf", "/")],
        "promisor": [
            ("extensions.partialClone", "evil"),
            ("remote.evil.url", str(desk.tree)),
            ("remote.evil.promisor", "true"),
            ("remote.evil.uploadpack", str(trap)),
        ],
        "askpass": [("core.askPass", str(trap)), ("credential.helper", f"!{trap}")],
        "alternateRefs": [("core.alternateRefsCommand", str(trap))],
        "packHook": [("uploadpack.packObjectsHook", str(trap))],
        "include": [("include.path", str(trap.parent / "more"))],
        "includeIf": [("includeIf.gitdir:/.path", str(trap.parent / "more"))],
        "proxy": [("core.gitProxy", str(trap)), ("http.proxy", "http://127.0.0.1:9"), ("http.sslVerify", "false")],
        "sshCommand": [("core.sshCommand", str(trap)), ("ssh.variant", "simple")],
        "drivers": [
            ("diff.evil.textconv", str(trap)),
            ("diff.evil.command", str(trap)),
            ("merge.evil.driver", str(trap)),
            ("diff.external", str(trap)),
        ],
        "worktree": [("core.worktree", "/etc")],
        "worktreeConfig": [("extensions.worktreeConfig", "true")],
        "submodule": [("submodule.x.update", f"!{trap}"), ("submodule.recurse", "true")],
        "programs": [
            *(("core.editor", str(trap)), ("core.pager", str(trap)), ("sequence.editor", str(trap))),
            *(("gpg.program", str(trap)), ("commit.gpgSign", "true"), ("trailer.x.command", str(trap))),
            *(("gc.auto", "1"), ("alias.upload-pack", f"!{trap}"), ("uploadarchive.x", str(trap))),
        ],
    }.get(payload, [])
    for name, value in config:
        desk.git("config", name, value)
    if payload == "filter":
        (desk.tree / ".gitattributes").write_text("* filter=evil\n")
    if payload == "hooks":
        (trap.parent / "hooks").mkdir()
        for name in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change", "pre-push"):
            shutil.copy(trap, trap.parent / "hooks" / name)
            shutil.copy(trap, desk.tree / ".git" / name)
    if payload == "promisor":
        blob = desk.git("rev-parse", "HEAD:a")
        (desk.tree / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    if payload in ("include", "includeIf"):
        (trap.parent / "more").write_text(f"[core]\n\tfsmonitor = {trap}\n[uploadpack]\n\tpackObjectsHook = {trap}\n")
    plant_files(desk, payload, trap)


def plant_files(desk: Desk, payload: str, trap: Path) -> None:
    """The part of a trap that is no configuration."""
    git = desk.tree / ".git"
    match payload:
        case "hooksDirectory":
            (git / "hooks").mkdir(exist_ok=True)
            for name in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change", "pre-push"):
                shutil.copy(trap, git / "hooks" / name)
        case "alternates":
            (git / "objects" / "info").mkdir(exist_ok=True)
            (git / "objects" / "info" / "alternates").write_text(f"{trap.parent}\n/nonexistent\n")
        case "drivers":
            (desk.tree / ".gitattributes").write_text("* diff=evil merge=evil\n")
            (git / "info").mkdir(exist_ok=True)
            (git / "info" / "attributes").write_text("* filter=evil diff=evil ident\n")
            for name in ("clean", "smudge", "process"):
                desk.git("config", f"filter.evil.{name}", str(trap))
        case "worktreeConfig":
            (git / "config.worktree").write_text(f"[core]\n\tfsmonitor = {trap}\n\thooksPath = {trap.parent}\n")
        case "submodule":
            text = "".join(
                f'[submodule "{name}"]\n\tpath = {name}\n\turl = {url}\n'
                for name, url in (("x", f"ext::sh -c {trap}"), ("y", "-u./trap"), ("../../z", "https://host\\nevil/"))
            )
            (desk.tree / ".gitmodules").write_text(text)
            for name in ("x", "y"):
                desk.git("update-index", "--add", "--cacheinfo", f"160000,{desk.space.base_sha},{name}")
            desk.git("add", ".gitmodules")
            desk.git("-c", "commit.gpgSign=false", "commit", "-qm", "Odd submodules")
        case "replace":
            desk.git("replace", desk.git("rev-parse", "HEAD:a"), desk.git("hash-object", "-w", "README"))
        case "grafts":
            (git / "info").mkdir(exist_ok=True)
            (git / "info" / "grafts").write_text(f"{desk.git('rev-parse', 'HEAD')}\n")


async def test_odd_submodules_that_nobody_committed_start_nothing(desk: Desk, tmp_path: Path) -> None:
    """A `.gitmodules` that was left over is a file like any other: delivered, never followed."""
    trap, sprung = tmp_path / "trap", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\n")
    trap.chmod(0o755)
    text = f'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c {trap}\n\tupdate = !{trap}\n'
    (desk.tree / ".gitmodules").write_text(text)
    (desk.tree / "x").mkdir()
    evidence = await desk.collect()
    assert desk.content(evidence.commit, ".gitmodules") == text.strip()
    assert not sprung.exists()


@pytest.mark.parametrize("tracked", [False, True])
async def test_nested_repository_is_left_alone(desk: Desk, tmp_path: Path, tracked: bool) -> None:
    """A repository inside the tree is not asked anything (its configuration would be obeyed) and not delivered."""
    sprung = tmp_path / "sprung"
    nested = desk.tree / "nested"
    nested.mkdir()
    plain_git(nested, "init", "-q")
    (nested / "g").write_text("1")
    plain_git(nested, "add", "g")
    plain_git(nested, "commit", "-qm", "Inside")
    if tracked:
        desk.git("-c", "advice.addEmbeddedRepo=false", "add", "nested")
        desk.git("commit", "-qm", "With a submodule")
    plain_git(nested, "config", "core.fsmonitor", f"touch {sprung}; false")
    plain_git(nested, "config", "filter.evil.clean", f"touch {sprung}; cat")
    (nested / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    (nested / "g").write_text("2")
    (desk.tree / "b").write_text("2")
    evidence = await desk.collect()
    assert not sprung.exists()
    assert ("nested" in desk.files(evidence.commit)) is tracked
    assert "b" in desk.files(evidence.commit)


async def test_removed_submodule_is_removed(desk: Desk) -> None:
    """A submodule whose directory the agent removed, or made a plain directory, does not come back."""
    for name in ("gone", "plain", "kept"):
        desk.git("update-index", "--add", "--cacheinfo", f"160000,{desk.space.base_sha},{name}")
        (desk.tree / name).mkdir()
    desk.git("commit", "-qm", "Three submodules")
    (desk.tree / "gone").rmdir()
    (desk.tree / "plain" / "file").write_text("1")
    files = desk.files((await desk.collect()).commit)
    assert "gone" not in files
    assert "plain/file" in files
    assert "kept" in files


def _gone(tree: Path, _elsewhere: Path) -> None:
    shutil.rmtree(tree)


def _linked(tree: Path, elsewhere: Path) -> None:
    shutil.move(tree, elsewhere)
    tree.symlink_to(elsewhere)


def _replaced(tree: Path, elsewhere: Path) -> None:
    shutil.move(tree, elsewhere)
    shutil.copytree(elsewhere, tree)


def _git_gone(tree: Path, _elsewhere: Path) -> None:
    shutil.rmtree(tree / ".git")


def _git_file(tree: Path, elsewhere: Path) -> None:
    shutil.move(tree / ".git", elsewhere)
    (tree / ".git").write_text(f"gitdir: {elsewhere}\n")


def _git_linked(tree: Path, elsewhere: Path) -> None:
    shutil.move(tree / ".git", elsewhere)
    (tree / ".git").symlink_to(elsewhere)


def _head_broken(tree: Path, _elsewhere: Path) -> None:
    (tree / ".git" / "HEAD").write_text("ref: refs/heads/never\n")


def _objects_broken(tree: Path, _elsewhere: Path) -> None:
    plain_git(tree, "commit", "-q", "--allow-empty", "-m", "More")
    sha = plain_git(tree, "rev-parse", "HEAD")
    path = tree / ".git" / "objects" / sha[:2] / sha[2:]
    path.chmod(0o600)
    path.write_bytes(b"garbage")


def _evil_path(tree: Path, _elsewhere: Path) -> None:
    blob = plain_git(tree, "hash-object", "-w", "README")
    inner = plain_git(tree, "mktree", stdin=f"100644 blob {blob}\tconfig\n")
    outer = plain_git(tree, "hash-object", "-t", "tree", "--literally", "-w", "--stdin", stdin="")
    outer = plain_git(tree, "mktree", stdin=f"040000 tree {inner}\tx.git\n")
    assert outer
    raw = b"40000 .git\0" + bytes.fromhex(inner)
    (tree / "raw").write_bytes(raw)
    evil = plain_git(tree, "hash-object", "-t", "tree", "--literally", "-w", "raw")
    (tree / "raw").unlink()
    commit = plain_git(tree, "commit-tree", evil, "-p", "HEAD", "-m", "Evil")
    plain_git(tree, "update-ref", "--no-deref", "HEAD", commit)


@pytest.mark.parametrize(
    "ruin", [_gone, _linked, _replaced, _git_gone, _git_file, _git_linked, _head_broken, _objects_broken, _evil_path]
)
async def test_ruined_tree_is_unreadable_not_an_error(
    desk: Desk, tmp_path: Path, ruin: Callable[[Path, Path], None]
) -> None:
    """A tree that is gone, replaced, broken or dangerous is evidence with a sentence, never work, never a crash."""
    desk.commit("a", "1", "Work")
    ruin(desk.tree, tmp_path / "elsewhere")
    evidence = await desk.collect()
    assert evidence.unreadable
    assert evidence.commit is None


async def test_links_are_delivered_as_links(desk: Desk) -> None:
    """A link that points out of the tree is committed as a link: what it names is not read."""
    (desk.tree / "shadow").symlink_to("/etc/passwd")
    evidence = await desk.collect()
    assert desk.content(evidence.commit, "shadow") == "/etc/passwd"


@pytest.mark.parametrize("request_name", ["", "two\nlines", "x" * 201, " padded"])
async def test_trailer_that_is_no_line_is_refused(desk: Desk, request_name: str) -> None:
    """A request that could not be read back from a trailer is a fault of ours, and said."""
    collector = Collector(desk.spaces.git, desk.space, identity=Identity(), redactor=Redactor())
    with pytest.raises(WorkspaceError, match="trailer"):
        await collector.evidence(request=request_name, subject="x")


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
async def test_tree_of_another_user_is_read_as_that_user() -> None:
    """With `run_as` the tree belongs to the other user, git would refuse it, and its work arrives all the same."""
    with opened() as root, GitServer(root) as server:
        seed(root)
        places = Places(root / "root")
        places.open(shared=True)
        spaces = Workspaces(places, Git(redactor=Redactor(), environ=os.environ))
        remote = Remote(f"{server.url}/lamp.git", Credential(USER, TOKEN))
        other = RunAs(uid=65534, gid=65534, groups=(65534,))
        space = await spaces.prepare("1.0123abcd", remote, repository="main-1", base_branch="main", run_as=other)
        desk = Desk(space, spaces)
        assert desk.tree.stat().st_uid == (desk.tree / ".git" / "config").stat().st_uid == 65534
        (desk.tree / "a").write_text("1")
        assert "a" in desk.files((await desk.collect()).commit)


@pytest.mark.parametrize("where", ["new", "tracked", "directory"])
async def test_pipes_and_sockets_hold_nothing_up(desk: Desk, where: str) -> None:
    """A named pipe in the tree is neither read nor waited for; what else was done arrives."""
    (desk.tree / "b").write_text("2")
    match where:
        case "new":
            os.mkfifo(desk.tree / "pipe")
        case "tracked":
            (desk.tree / "README").unlink()
            os.mkfifo(desk.tree / "README")
        case _:
            shutil.rmtree(desk.tree / "src")
            os.mkfifo(desk.tree / "src")
    evidence = await asyncio.wait_for(desk.collect(), 90)
    assert evidence.commit or evidence.unreadable
    if evidence.commit:
        assert "b" in desk.files(evidence.commit)
        assert "pipe" not in desk.files(evidence.commit)
