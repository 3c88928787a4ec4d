"""`tireless exec` as a real process: an agent works on an issue, and neither rows, forge nor disk know of it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cli import Said, closed, tireless
from tests.support.place import AGENT, REPOSITORY, Place, a_place, ask_for, config


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A forge with alice's project and the bot as a writer there."""
    async with a_place() as found:
        yield found


class Desk:
    """An operator without any database, and an agent that is a script."""

    def __init__(self, home: Path, place: Place, agent: str, more: str = "") -> None:
        self.home = home
        self.temporary = home / "tmp"
        self.temporary.mkdir()
        script = home / "agent.py"
        script.write_text(agent)
        command = (sys.executable, "-I", "-S", str(script))
        self.path = config(home, place.url, token=place.bot.token, command=command, more=more)

    async def __call__(self, *words: str) -> Said:
        """Run `tireless exec`."""
        env = {"TMPDIR": str(self.temporary)}
        return await tireless("exec", *words, "--config", self.path, home=self.home, env=env)


def writes(place: Place, after: int) -> list[str]:
    """Requests that could have changed something; a fetch is the only POST that is none."""
    sent = [f"{each.method} {each.path}" for each in place.forge.requests(after=after)]
    return [each for each in sent if not each.startswith("GET ") and "git-upload-pack" not in each]


async def test_exec_runs_an_agent_and_writes_nothing(tmp_path: Path, place: Place) -> None:
    """The agent's work is shown with its outcome; the forge received no write, no state and no tree is left, and no
    word says so: what it made is meant to go."""
    desk = Desk(tmp_path, place, AGENT)
    number = await ask_for(place, "Sort widgets")
    before = place.forge.last_request
    said = await desk(f"{REPOSITORY}#{number}")
    assert said.code == 0, said
    assert said.out.startswith("done: It is done.")
    assert f"work-{number}.md" in said.out
    assert "1 file changed" in said.out
    assert f"worked on {number}" in said.err
    assert "warning" not in said.err
    assert place.forge.last_request > before
    assert writes(place, before) == []
    assert os.listdir(desk.temporary) == []
    assert not (tmp_path / "state").exists()


async def test_exec_keeps_the_tree_where_it_is_asked_to(tmp_path: Path, place: Place) -> None:
    """With --keep the work tree stays, named in the answer, with the agent's work in it; text comes from a file."""
    agent = "import os, pathlib; pathlib.Path('TITLE').write_text(open(os.environ['TIRELESS_JOB_FILE']).read())"
    desk = Desk(tmp_path, place, agent)
    (tmp_path / "issue.md").write_text("# Sort gadgets\n\nBy size.\n")
    said = await desk(f"{REPOSITORY}#9", "--file", str(tmp_path / "issue.md"), "--keep", "--json")
    assert (said.code, said.data["outcome"], said.data["kind"]) == (0, "done", "implement")
    tree = Path(said.data["tree"])
    written = (tree / "TITLE").read_text()
    assert '"Sort gadgets"' in written
    assert '"By size."' in written
    assert "TITLE" in said.data["diff_stat"]
    shutil.rmtree(desk.temporary)


async def test_exec_heeds_the_lanes_cap(tmp_path: Path, place: Place) -> None:
    """An agent that says it has cost what a job of the lane may cost is stopped, as a runner would stop it."""
    agent = (
        "import json, os, signal\n"
        "with open(os.environ['TIRELESS_PROGRESS_FILE'], 'a') as file:\n"
        "    file.write(json.dumps({'usage': {'usd': float(os.environ['TIRELESS_USD_LEFT'])}}) + '\\n')\n"
        "signal.pause()\n"
    )
    desk = Desk(tmp_path, place, agent)
    (tmp_path / "issue.md").write_text("# Sort gadgets\n\nBy size.\n")
    closed(desk.path, desk.path.read_text().replace("[lanes.claude]\n", "[lanes.claude]\nmax_usd = 1.5\n"))
    said = await desk(f"{REPOSITORY}#9", "--file", str(tmp_path / "issue.md"), "--json")
    assert (said.code, said.data["outcome"], said.data["usage"]["usd"]) == (1, "over_budget", 1.5)


async def test_exec_asks_the_labels_for_the_kind(tmp_path: Path, place: Place) -> None:
    """A plan is tried as a plan, whether or not anybody opted in; its children are only printed."""
    agent = (
        "import json, os, pathlib; assert os.environ['TIRELESS_KIND'] == 'plan'; "
        "child = {'key': 'a', 'title': 'Do a'}; "
        "result = {'protocol': 1, 'outcome': 'done', 'children': [child]}; "
        "pathlib.Path(os.environ['TIRELESS_RESULT_FILE']).write_text(json.dumps(result))"
    )
    desk = Desk(tmp_path, place, agent)
    number = await ask_for(place, "Sort widgets", "tireless/plan")
    before = place.forge.last_request
    said = await desk(f"{REPOSITORY}#{number}")
    assert said.code == 0, said
    assert "child a (implement): Do a" in said.out
    assert writes(place, before) == []


async def test_exec_of_an_agent_that_fails(tmp_path: Path, place: Place) -> None:
    """An agent that fails ends the command with 1, after its hooks; nothing is left of either."""
    more = '[lanes.hooked]\ncommand = ["false"]\nbefore_run = ["echo", "hook ran"]\n'
    desk = Desk(tmp_path, place, AGENT, more)
    number = await ask_for(place, "Sort widgets")
    said = await desk(f"{REPOSITORY}#{number}", "--lane", "hooked")
    assert said.code == 1
    assert "agent_error" in said.out
    assert "hook ran" in said.err
    assert os.listdir(desk.temporary) == []


FAILS = (
    AGENT
    + """
closed = pathlib.Path("vendor/closed")
closed.mkdir(parents=True)
(closed / "module.go").touch()
closed.chmod(0o500)
sys.exit(1)
"""
)
"""It has committed its work and left a directory that nobody may write to; then it fails."""


async def test_exec_leaves_nothing_of_an_agent_that_fails_with_work_done(tmp_path: Path, place: Place) -> None:
    """Its work goes with its tree, closed directories and all; no word says that it is kept or left to others."""
    desk = Desk(tmp_path, place, FAILS)
    said = await desk(f"{REPOSITORY}#{await ask_for(place, 'Sort widgets')}")
    assert said.code == 1, said
    assert os.listdir(desk.temporary) == []
    assert "kept" not in said.out
    assert "warning" not in said.err


async def test_exec_says_what_it_could_not_remove(tmp_path: Path, place: Place) -> None:
    """An agent that puts a link in the place of the temporary directory has nothing removed behind it, and is told."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "notes").write_text("mine")
    agent = (
        "import os, pathlib; root = pathlib.Path.cwd().parents[3]; assert root.name.startswith('tireless-exec-'); "
        f"root.rename(root.with_name('moved')); root.symlink_to({str(precious)!r})"
    )
    desk = Desk(tmp_path, place, agent)
    said = await desk(f"{REPOSITORY}#{await ask_for(place, 'Sort widgets')}")
    assert said.code == 1, said
    [link] = [each for each in desk.temporary.iterdir() if each.is_symlink()]
    assert "temporary directory not removed, remove it by hand" in said.err
    assert str(link) in said.err
    assert (precious / "notes").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((f"{REPOSITORY}#777",), 4, ""),
        ((f"{REPOSITORY}#1", "--lane", "nobody"), 2, "no lane nobody"),
        (("nonsense",), 2, "is no issue"),
        (("alice/missing#1",), 4, ""),
    ],
)
async def test_exec_says_what_is_not_there(
    tmp_path: Path, place: Place, words: tuple[str, ...], code: int, sentence: str
) -> None:
    """An unknown issue, repository or lane ends with its own exit code and a sentence, before anything was made."""
    desk = Desk(tmp_path, place, AGENT)
    await ask_for(place, "Sort widgets")
    said = await desk(*words)
    assert said.code == code, said
    assert sentence in said.err
    assert os.listdir(desk.temporary) == []
