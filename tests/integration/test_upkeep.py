"""Tidying up a runner's root: dead runs are saved and go, live ones stay, bounds hold, no link leads out."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cli import inside
from tests.support.documents import blocks
from tests.support.githttp import TOKEN, USER, GitServer, plain_git, seed
from tests.support.opened import opened
from tests.support.witness import LIMIT_S, Witness
from tireless.agent import guard
from tireless.agent.control import Control, RunAs, RunSpec, boottime
from tireless.agent.gitcli import Credential, Git, Remote
from tireless.agent.origin import NAME, Subject
from tireless.agent.places import Places
from tireless.agent.process import run_agent
from tireless.agent.retention import Bounds, Retention, What, survey
from tireless.agent.upkeep import Act, Upkeep
from tireless.agent.workspace import Workspace, Workspaces
from tireless.domain.outcome import Stop
from tireless.errors import WorkspaceError
from tireless.redact import Redactor

ABOUT = Subject(12, "main:ada/lamp#7", "main/ada/lamp#7 label 12")
FOREVER = Bounds(1e9, 10**6, 2**60)
AN_AGE_AGO = time.time() - 90 * 86_400

HOLD = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class Yard:
    """A forge's git and a root with runs in it, whose runner can be made dead."""

    def __init__(self, root: Path, server: GitServer, run_as: RunAs | None = None) -> None:
        self.root = root / "root"
        self.run_as = run_as
        self.server = server
        self.bare = seed(server.root)
        self.remote = Remote(f"{server.url}/lamp.git", Credential(USER, TOKEN))
        self.places = Places(self.root)
        self.places.open(shared=run_as is not None)
        self.spaces = Workspaces(self.places, Git(redactor=Redactor([TOKEN]), environ=os.environ))

    async def run(self, key: str = "12.0123abcd", *, dead: bool = True, repository: str = "main.1") -> Workspace:
        space = await self.spaces.prepare(
            key, self.remote, repository=repository, base_branch="main", run_as=self.run_as, subject=ABOUT
        )
        self.spaces.began(space.home)
        if dead:
            space.home.hold.close()  # as the kernel does for who dies
        return space

    async def tidy(self, retention: Retention | None = None, **more: float) -> list[Act]:
        upkeep = Upkeep(self.spaces, Redactor([TOKEN]), retention or Retention())
        dry = bool(more.pop("dry", False))
        return await upkeep.tidy(dry=dry, **more)

    def names(self, name: str) -> list[str]:
        return sorted(os.listdir(self.root / name))

    def saved(self, path: str, key: str = "12.0123abcd") -> str:
        """A file of the work in a bundle, taken out as the documentation says."""
        clone = self.server.root / "lamp.seed"
        plain_git(clone, "fetch", "-q", str(self.root / "saved" / f"{key}.bundle"), "work")
        return plain_git(clone, "show", f"FETCH_HEAD:{path}")


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    (tmp_path / "forge").mkdir()
    with GitServer(tmp_path / "forge") as server:
        yield Yard(tmp_path, server)


async def test_work_of_a_dead_run_is_saved_and_its_tree_goes(yard: Yard) -> None:
    """Commits and what was left over are in a bundle that says where it came from; nothing else of the run is left."""
    space = await yard.run()
    (space.home.tree / "a").write_text("committed\n")
    plain_git(space.home.tree, "add", "a")
    plain_git(space.home.tree, "commit", "-qm", "Work")
    (space.home.tree / "b").write_text("left over\n")
    (act,) = await yard.tidy()
    assert (act.item.what, act.item.job, act.item.issue) == (What.TREE, 12, "main:ada/lamp#7")
    assert (act.reason, act.saved, act.error) == ("nobody works on it any more", "12.0123abcd.bundle", None)
    assert (yard.saved("a"), yard.saved("b")) == ("committed", "left over")
    assert yard.names("runs") == []
    (bundle,) = [item for item in survey(yard.places) if item.what is What.BUNDLE]
    assert (bundle.job, bundle.issue) == (12, "main:ada/lamp#7")


async def test_dead_run_without_work_leaves_nothing(yard: Yard) -> None:
    """A tree in which nothing was changed makes no bundle."""
    await yard.run()
    (act,) = await yard.tidy()
    assert (act.saved, act.error) == (None, None)
    assert yard.names("runs") == yard.names("saved") == []


async def test_collection_that_was_killed_is_no_obstacle(yard: Yard) -> None:
    """A runner killed while it collected left its own repository half-made and locked: the work is saved anyway."""
    space = await yard.run()
    (space.home.tree / "b").write_text("1")
    own = space.home.own / "work.git"
    own.mkdir()
    (own / "HEAD").write_text("nonsense")
    (space.home.own / "index.lock").touch()
    (act,) = await yard.tidy()
    assert act.saved
    assert yard.saved("b") == "1"


async def test_live_run_is_never_touched(yard: Yard) -> None:
    """Whatever its age and whatever is asked, a run that a process holds stays, and so does the cache it came from."""
    space = await yard.run(dead=False)
    nothing = Bounds(0, 0, 0)
    for path in (space.home.path, space.cache.with_suffix(".lock")):
        os.utime(path, (AN_AGE_AGO, AN_AGE_AGO))
    assert await yard.tidy(Retention(nothing, nothing, nothing), older_than_s=0.0) == []
    assert space.home.check_tree() is None
    assert {item.in_use for item in survey(yard.places)} == {True}


async def test_mark_of_life_is_another_processes(yard: Yard) -> None:
    """A run held by another process stays until that process is dead, however it died."""
    space = await yard.run()
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", HOLD, str(space.home.own / "lock")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    assert await yard.tidy() == []
    holder.kill()
    await holder.wait()
    assert len(await yard.tidy()) == 1


async def test_lock_that_cannot_be_looked_at_is_taken_for_held(yard: Yard) -> None:
    """In doubt a run is in use: a link in place of its lock is nothing to open."""
    space = await yard.run()
    (space.home.own / "lock").unlink()
    (space.home.own / "lock").symlink_to("/dev/null")
    assert await yard.tidy(older_than_s=0.0) == []
    assert yard.names("runs") == [space.home.key]


@pytest.mark.parametrize("ruin", ["git", "replaced", "origin"])
async def test_tree_that_cannot_be_saved_stays_for_its_time(yard: Yard, ruin: str) -> None:
    """Where the work cannot be read the tree is kept, told each time, until it is too old."""
    space = await yard.run()
    (space.home.tree / "b").write_text("1")
    match ruin:
        case "git":
            (space.home.tree / ".git" / "HEAD").write_text("nonsense")
        case "replaced":
            shutil.copytree(space.home.tree, space.home.path / "copy")
            shutil.rmtree(space.home.tree)
            (space.home.path / "copy").rename(space.home.tree)
        case _:
            (space.home.own / NAME).write_text('{"cache": "../../etc"}')
    (act,) = await yard.tidy()
    assert act.error
    assert "could not be saved" in act.error
    assert yard.names("runs") == [space.home.key]
    os.utime(space.home.path, (AN_AGE_AGO, AN_AGE_AGO))
    (act,) = await yard.tidy()
    assert (act.error, act.reason) == (None, "older than 7 days")
    assert yard.names("runs") == []


async def test_agents_configuration_is_not_obeyed_when_its_tree_is_saved(yard: Yard, tmp_path: Path) -> None:
    """What a dead agent planted in its tree does not run when somebody tidies up, perhaps as root."""
    space = await yard.run()
    sprung = tmp_path / "sprung"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\ncat\n")
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "filter.x.clean", "core.alternateRefsCommand", "uploadpack.packObjectsHook"):
        plain_git(space.home.tree, "config", name, str(trap))
    (space.home.tree / ".gitattributes").write_text("* filter=x\n")
    (act,) = await yard.tidy()
    assert act.saved
    assert not sprung.exists()


async def test_two_who_tidy_up_at_once_do_each_thing_once(yard: Yard) -> None:
    """Four rounds at the same time over six dead runs: each is buried by one of them, none is reported as failed."""
    for n in range(6):
        space = await yard.run(f"{n + 1}.0000000{n}")
        (space.home.tree / "b").write_text(str(n))
    acts = [act for done in await asyncio.gather(*(yard.tidy() for _ in range(4))) for act in done]
    assert [act.error for act in acts] == [None] * 6
    assert len(yard.names("saved")) == 12  # with their notes
    assert yard.names("runs") == []


async def test_bundles_go_by_age_with_their_notes(yard: Yard) -> None:
    """A bundle beyond its age goes, and the note beside it; a younger one stays."""
    for n in (1, 2):
        space = await yard.run(f"{n}.0000000{n}")
        (space.home.tree / "b").write_text(str(n))
    await yard.tidy()
    os.utime(yard.root / "saved" / "1.00000001.bundle", (AN_AGE_AGO, AN_AGE_AGO))
    (act,) = await yard.tidy()
    assert (act.item.key, act.reason) == ("1.00000001", "older than 30 days")
    assert yard.names("saved") == ["2.00000002.bundle", "2.00000002.json"]


async def test_dry_run_removes_nothing_and_says_the_same(yard: Yard) -> None:
    """What a dry round announces is what a real one does."""
    space = await yard.run()
    os.utime(space.home.path, (AN_AGE_AGO, AN_AGE_AGO))
    (yard.root / "saved" / "9.ffffffff.bundle").write_bytes(b"x")
    os.utime(yard.root / "saved" / "9.ffffffff.bundle", (AN_AGE_AGO, AN_AGE_AGO))
    announced = {act.item.path: act.reason for act in await yard.tidy(dry=True)}
    assert yard.names("runs") == [space.home.key]
    assert {act.item.path: act.reason for act in await yard.tidy()} == announced
    assert len(announced) == 2


async def test_unused_cache_goes_and_comes_again(yard: Yard) -> None:
    """A cache nobody used for long is removed with all its files, its lock stays; the next run fetches it again."""
    space = await yard.run()
    await yard.tidy()
    os.utime(space.cache.with_suffix(".lock"), (AN_AGE_AGO, AN_AGE_AGO))
    (act,) = await yard.tidy()
    assert (act.item.what, act.item.key, act.error) == (What.CACHE, "main.1", None)
    assert yard.names("cache") == ["main.1.lock"]
    again = await yard.run("13.0123abcd")
    assert again.base_sha == space.base_sha


async def test_cache_stays_while_a_run_stands_on_it(yard: Yard) -> None:
    """The note of a run is gone, so that nothing shows whose the cache is: the pin in it is asked under its lock."""
    space = await yard.run(dead=False)
    (space.home.own / NAME).unlink()
    os.utime(space.cache.with_suffix(".lock"), (AN_AGE_AGO, AN_AGE_AGO))
    assert await yard.tidy() == []
    assert space.cache.is_dir()


async def test_cache_that_is_being_fetched_stays(yard: Yard) -> None:
    """While somebody holds its lock a cache is in use."""
    space = await yard.run()
    await yard.tidy()
    os.utime(space.cache.with_suffix(".lock"), (AN_AGE_AGO, AN_AGE_AGO))
    hold = yard.places.lock_cache(space.cache)
    assert hold is not None
    assert await yard.tidy(older_than_s=0.0) == []
    hold.close()
    assert len(await yard.tidy(older_than_s=0.0)) == 1


async def test_links_are_removed_never_followed(yard: Yard, tmp_path: Path) -> None:
    """Links among runs, bundles and caches go themselves once they are litter; what they name stays whole."""
    precious = tmp_path / "precious"
    (precious / "own").mkdir(parents=True)
    (precious / "file").write_text("kept")
    links = [yard.root / path for path in ("runs/7.aaaaaaaa", "saved/7.aaaaaaaa.bundle", "cache/x.1.git")]
    for link in links:
        link.symlink_to(precious)
        os.utime(link, (AN_AGE_AGO, AN_AGE_AGO), follow_symlinks=False)
    await yard.tidy(older_than_s=0.0)
    assert not any(os.path.lexists(link) for link in links)
    assert (precious / "file").read_text() == "kept"
    assert sorted(os.listdir(precious)) == ["file", "own"]


async def test_litter_of_killed_processes_goes(yard: Yard) -> None:
    """Half-made runs, bundles and caches go after an hour; a young one may still be in the making."""
    places = [yard.root / path for path in ("runs/.1.aaaaaaaa", "saved/1.a.bundle.lock", "cache/.x.git.77")]
    for path in places:
        (path.touch if path.suffix == ".lock" else path.mkdir)()
    await yard.tidy()
    assert all(path.exists() for path in places)
    for path in places:
        os.utime(path, (AN_AGE_AGO, AN_AGE_AGO))
    await yard.tidy()
    assert not any(path.exists() for path in places)


async def test_nothing_outside_of_the_root_is_an_entry(yard: Yard) -> None:
    """What is asked to be removed must lie directly below the root's three directories."""
    inside = (yard.root / "runs", yard.root / "runs" / "..", yard.root / "runs" / "a" / "b")
    for path in (yard.root, *inside, Path("/etc")):
        with pytest.raises(WorkspaceError, match="refused to remove"):
            await yard.places.remove_entry(path)


async def test_many_packs_become_one(yard: Yard) -> None:
    """A cache that was fetched often is packed anew, and its runs can still be collected."""
    space = await yard.run(dead=False)
    work = yard.server.root / "lamp.seed"
    packs = space.cache / "objects" / "pack"
    for n in range(52):
        plain_git(work, "commit", "-q", "--allow-empty", "-m", str(n))
        plain_git(work, "pack-objects", "-q", "--revs", f"{packs}/pack", stdin="HEAD\n^HEAD~1\n")
    assert len(list(packs.glob("*.pack"))) > 50
    await yard.tidy(Retention(FOREVER, FOREVER, FOREVER))
    assert len(list(packs.glob("*.pack"))) < 5
    assert plain_git(space.cache, "cat-file", "-t", space.base_sha) == "commit"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_guard_holds_the_run_until_its_agent_is_dead(yard: Yard, tmp_path: Path) -> None:
    """The runner is gone, its agent is not yet: the run is in use while the guard lives; the agent has no lock."""
    space = await yard.run(dead=False)
    witness = Witness(tmp_path)
    script = 'exec 9>"$WITNESS"; readlink /proc/self/fd/* | grep -c /own/lock >&9; exec sleep 9999'
    env = {"PATH": os.environ["PATH"], "WITNESS": str(witness.path), guard.MARK_NAME: f"upkeep-{os.getpid()}"}
    spec = RunSpec(("/bin/sh", "-c", script), space.home.tree, env, grace_s=0.2, hold=space.home.hold.fds)
    control = Control(boottime() + 600)
    running = asyncio.create_task(run_agent(spec, control, on_output=lambda _text: None, redactor=Redactor()))
    assert await witness.line() == "0"
    space.home.hold.close()
    assert await yard.tidy(older_than_s=0.0) == []
    control.stop(Stop.SHUTDOWN)
    await asyncio.wait_for(running, LIMIT_S)
    assert len(await yard.tidy()) == 1
    witness.close()


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
async def test_tree_of_another_user_is_saved_as_that_user() -> None:
    """A dead run of `run_as` is read as its owner, whom the tree itself names."""
    with opened() as root, GitServer(root) as server:
        yard = Yard(root, server, RunAs(uid=65534, gid=65534, groups=(65534,)))
        space = await yard.run()
        (space.home.tree / "b").write_text("1")
        (act,) = await yard.tidy()
        assert (act.saved, act.error) == ("12.0123abcd.bundle", None)
        assert yard.saved("b") == "1"


async def test_documented_command_takes_work_out_of_a_bundle(yard: Yard, tmp_path: Path) -> None:
    """The commands of docs/operating.md, run in a clone, leave a branch with the saved work."""
    space = await yard.run("42.0123abcd")
    (space.home.tree / "b").write_text("1")
    await yard.tidy()
    clone = tmp_path / "clone"
    plain_git(tmp_path, "clone", "-q", str(yard.bare), str(clone))
    found = [text for path, text in blocks("console") if path.name == "operating.md" and ".bundle" in text]
    lines = [line[2:] for text in found for line in text.splitlines() if line.startswith("$ git ")]
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line.replace("/var/lib/tireless/work", str(yard.root)))
        subprocess.run(words, cwd=clone, check=True, capture_output=True)
    assert plain_git(clone, "show", "saved:b") == "1"


# ------------------------------------------------------------------------------------------------ the command


def configured(home: Path, root: Path) -> Path:
    """A configuration that names the root."""
    path = home / "config.toml"
    path.write_text(f'[runner]\nroot = "{root}"\n')
    return path


async def test_workspaces_ls_and_prune(yard: Yard, tmp_path: Path) -> None:
    """The commands show what there is, announce, do it, and say the same as JSON; the database is not asked."""
    config = configured(tmp_path, yard.root)
    dead, living = await yard.run(), await yard.run("13.0123abcd", dead=False)
    (dead.home.tree / "b").write_text("1")
    said = await inside("workspaces", "ls", "--config", config, home=tmp_path)
    assert said.code == 0
    assert re.search(r"tree +12\.0123abcd +12 +main:ada/lamp#7 .* no +nobody works on it any more", said.out)
    assert re.search(r"tree +13\.0123abcd .* yes +-", said.out)
    data = (await inside("workspaces", "ls", "--json", "--config", config, home=tmp_path)).data
    shown = {(each["kind"], each["in_use"]) for each in data["workspaces"]}
    assert shown == {("tree", False), ("tree", True), ("cache", True)}
    assert all(each["bytes"] > 0 for each in data["workspaces"])
    said = await inside("workspaces", "prune", "--dry-run", "--config", config, home=tmp_path)
    assert "12.0123abcd would go" in said.out
    said = await inside("workspaces", "prune", "--json", "--config", config, home=tmp_path)
    assert [(act["key"], act["saved"]) for act in said.data["acts"]] == [("12.0123abcd", "12.0123abcd.bundle")]
    said = await inside("workspaces", "prune", "--older-than", "0s", "--config", config, home=tmp_path)
    assert said.out == "bundle 12.0123abcd gone (older than 0 s)\n"
    assert (await inside("workspaces", "prune", "--config", config, home=tmp_path)).out == "nothing to remove\n"
    assert living.home.check_tree() is None


async def test_prune_says_what_it_could_not_do(yard: Yard, tmp_path: Path) -> None:
    """A tree that cannot be saved ends the command with exit code 1, and its line says why."""
    space = await yard.run()
    (space.home.tree / ".git" / "HEAD").write_text("nonsense")
    said = await inside("workspaces", "prune", "--config", configured(tmp_path, yard.root), home=tmp_path)
    assert said.code == 1
    assert "tree 12.0123abcd NOT removed" in said.out


async def test_workspaces_without_a_root_makes_none(tmp_path: Path) -> None:
    """Looking makes nothing; a directory of somebody else's is refused with a sentence."""
    root = tmp_path / "none"
    said = await inside("workspaces", "ls", "--config", configured(tmp_path, root), home=tmp_path)
    assert (said.code, said.out, root.exists()) == (0, f"nothing is kept in {root}\n", False)
    root.mkdir()
    said = await inside("workspaces", "prune", "--config", configured(tmp_path, root), home=tmp_path)
    assert said.code == 1
    assert "does not carry our mark" in said.err
