"""Whole attempts: real git over HTTP, real guard, real agents, from an assignment to a branch on the forge."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.assignment import assignment
from tests.support.githttp import TOKEN, USER, GitServer, plain_git, seed
from tireless.agent.attempt import AgentRoom, LaneCommand, Prepared
from tireless.agent.control import Control, boottime
from tireless.agent.gitcli import Credential, Git, Remote
from tireless.agent.places import Places
from tireless.agent.protocol import Assignment
from tireless.agent.retention import Retention
from tireless.agent.upkeep import Upkeep
from tireless.agent.workspace import Workspaces
from tireless.domain.job import Kind
from tireless.domain.outcome import Note, Outcome, Stop, Verdict
from tireless.errors import WorkspaceError
from tireless.redact import MASK, Redactor

DOCS = Path(__file__).parents[2] / "docs" / "protocol.md"
BRANCH = "tireless/7-make-it-shine.0123abcd"
RESULT = '"$TIRELESS_RESULT_FILE"'


class House:
    """A forge's git and an agent room; `attempt` does what a runner does, without its rows."""

    def __init__(self, root: Path, server: GitServer) -> None:
        self.root = root
        self.server = server
        self.bare = seed(server.root)
        self.remote = Remote(f"{server.url}/lamp.git", Credential(USER, TOKEN))
        redactor = Redactor([TOKEN])
        places = Places(root / "root")
        places.open()
        spaces = Workspaces(places, Git(redactor=redactor, environ=os.environ))
        environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(root), "SECRET": TOKEN}
        self.room = AgentRoom(spaces, redactor=redactor, environ=environ)
        self.output: list[str] = []

    async def prepare(self, job: Assignment, *argv: str) -> Prepared:
        return await self.room.prepare(job, LaneCommand(argv, grace_s=0.2), self.remote, repository="main-1")

    async def attempt(self, job: Assignment, *argv: str) -> tuple[Verdict, Prepared]:
        prepared = await self.prepare(job, *argv)
        ended = await self.room.execute(prepared, Control(boottime() + 60), on_output=self.output.append)
        return await self.room.collect(prepared, ended), prepared

    async def shell(self, script: str, *, kind: Kind = Kind.IMPLEMENT) -> Verdict:
        """What an attempt by a shell script comes to; its traces are removed."""
        verdict, prepared = await self.attempt(replace(assignment(), kind=kind), "/bin/sh", "-c", script)
        if verdict.commit:
            await self.room.spaces.save(prepared.space, verdict.commit)
        await self.room.remove(prepared)
        return verdict

    async def says(self, result: object, *, code: int = 0, kind: Kind = Kind.IMPLEMENT, work: str = "") -> Verdict:
        """What comes of a script that does `work`, writes `result` and exits with `code`."""
        hand_back = f"cat > {RESULT}.new <<'EOF'\n{json.dumps(result)}\nEOF\nmv {RESULT}.new {RESULT}"
        return await self.shell(f"{work}\n{hand_back}\nexit {code}", kind=kind)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    (tmp_path / "forge").mkdir()
    with GitServer(tmp_path / "forge") as server:
        yield House(tmp_path, server)


def documented(name: str, directory: Path) -> str:
    """An agent of docs/protocol.md as an executable file."""
    found = re.search(rf"<!-- test: {re.escape(name)} -->\n```\w+\n(.*?)```", DOCS.read_text(), re.S)
    assert found is not None
    path = directory / name
    path.write_text(found[1])
    path.chmod(0o755)
    return str(path)


async def test_documented_shell_agent_delivers(house: House) -> None:
    """The shell agent of the documentation makes a change that arrives on a branch of its own on the forge."""
    verdict, prepared = await house.attempt(assignment(), documented("agent.sh", house.root))
    assert (verdict.outcome, verdict.summary, verdict.notes) == (Outcome.DONE, "Done by a shell", ())
    assert verdict.pr is not None
    assert verdict.pr.title == "Record the size of the prompt"
    assert verdict.commit is not None
    assert prepared.branch == BRANCH
    assert await house.room.push(prepared, house.remote, verdict.commit)
    size = len(prepared.exchange.prompt_file.read_bytes())
    assert plain_git(house.bare, "cat-file", "-p", f"{BRANCH}:PROMPT_SIZE") == str(size)
    assert plain_git(house.bare, "show", "-s", "--format=%s", BRANCH) == "Record the size of the prompt"
    await house.room.remove(prepared)
    assert os.listdir(house.root / "root" / "runs") == []


async def test_documented_shell_agent_plans(house: House) -> None:
    """For a plan the same agent proposes a child."""
    job = replace(assignment(), kind=Kind.PLAN)
    verdict, _ = await house.attempt(job, documented("agent.sh", house.root))
    assert verdict.outcome is Outcome.DONE
    assert [child.key for child in verdict.children] == ["size"]


async def test_documented_python_agent_commits_and_asks(house: House) -> None:
    """The Python agent of the documentation commits by itself, and asks where the title is a question."""
    agent = documented("agent.py", house.root)
    verdict, prepared = await house.attempt(assignment(), agent)
    assert (verdict.outcome, verdict.notes) == (Outcome.DONE, ())
    assert (
        plain_git(prepared.space.home.own / "work.git", "cat-file", "-p", f"{verdict.commit}:TITLE") == "Make it shine"
    )
    assert verdict.commit is not None
    await house.room.push(prepared, house.remote, verdict.commit)
    await house.room.remove(prepared)
    verdict, _ = await house.attempt(assignment(title="Shine?"), agent)
    assert (verdict.outcome, verdict.question) == (Outcome.NEEDS_INPUT, "What is meant by: Shine?")


async def test_two_megabytes_of_issue(house: House) -> None:
    """A body of 2 MB arrives whole on standard input and in job.json, by no argument and no environment."""
    body = "0123456789abcde\n" * 131_072
    script = 'grep -c 0123456789abcde; grep -o 0123456789abcde "$TIRELESS_JOB_FILE" | wc -l'
    await house.attempt(assignment(body=body), "/bin/sh", "-c", script)
    assert "".join(house.output).split() == ["131072", "131072"]


async def test_template_of_the_base_branch_is_used(house: House) -> None:
    """`.tireless/prompts/implement.md` on the base branch is what the agent reads."""
    work = house.server.root / "lamp.seed"
    (work / ".tireless" / "prompts").mkdir(parents=True)
    (work / ".tireless" / "prompts" / "implement.md").write_text("Our own way: {{ issue.number }}\n")
    plain_git(work, "add", ".")
    plain_git(work, "commit", "-qm", "Prompts")
    plain_git(work, "push", "-q", str(house.bare), "main")
    await house.attempt(assignment(), "/bin/cat")
    assert "".join(house.output) == "Our own way: 7\n"


async def test_wrong_template_is_our_side_and_leaves_nothing(house: House) -> None:
    """A template that cannot be rendered stops the attempt before an agent runs, and nothing is left on disk."""
    work = house.server.root / "lamp.seed"
    (work / ".tireless" / "prompts").mkdir(parents=True)
    (work / ".tireless" / "prompts" / "implement.md").write_text("{{ issue.nummer }}\n")
    plain_git(work, "add", ".")
    plain_git(work, "commit", "-qm", "Prompts")
    plain_git(work, "push", "-q", str(house.bare), "main")
    with pytest.raises(WorkspaceError, match="nummer"):
        await house.prepare(assignment(), "/bin/cat")
    assert os.listdir(house.root / "root" / "runs") == []


async def test_missing_command_is_our_side(house: House) -> None:
    """A lane's command that does not exist is given back, and says so."""
    verdict, _ = await house.attempt(assignment(), "/no/such/agent")
    assert (verdict.outcome, verdict.notes) == (Outcome.WORKSPACE_ERROR, (Note.CANNOT_START,))


@pytest.mark.parametrize(
    ("result", "code", "outcome"),
    [
        ({"outcome": "done"}, 0, Outcome.NO_CHANGE),
        ({"outcome": "no_change", "reason": "is so"}, 40, Outcome.NO_CHANGE),
        ({"outcome": "needs_input", "question": "?"}, 41, Outcome.NEEDS_INPUT),
        ({"outcome": "blocked", "reason": "r"}, 42, Outcome.BLOCKED),
        ({"outcome": "quota", "retry_after": 60}, 43, Outcome.QUOTA),
        ({"outcome": "failed", "reason": "r"}, 44, Outcome.FAILED),
        ({"outcome": "retry", "reason": "r"}, 75, Outcome.RETRY),
        ({"outcome": "done"}, 1, Outcome.AGENT_ERROR),
        ({"outcome": "quota"}, 1, Outcome.QUOTA),
        ({"outcome": "well"}, 0, Outcome.PROTOCOL_ERROR),
    ],
)
async def test_outcomes_of_real_runs(house: House, result: dict[str, object], code: int, outcome: Outcome) -> None:
    """Result and exit code of a real process come to the outcome of the table."""
    assert (await house.says({"protocol": 1, **result}, code=code)).outcome is outcome


async def test_exit_zero_alone_needs_a_diff(house: House) -> None:
    """A plain script that changed something succeeded; one that did not has shown nothing."""
    assert (await house.shell("echo more >> README")).outcome is Outcome.DONE
    assert (await house.shell("echo I did everything")).outcome is Outcome.NO_EVIDENCE


async def test_undelivered_work_is_kept(house: House) -> None:
    """Work of an attempt that failed is in a bundle after its tree is gone, and the reason says so."""
    verdict = await house.shell("echo more >> README; exit 1")
    assert (verdict.outcome, verdict.commit) == (Outcome.AGENT_ERROR, None)
    assert "12.0123abcd.bundle" in verdict.reason
    bundle = house.root / "root" / "saved" / "12.0123abcd.bundle"
    assert plain_git(house.bare, "bundle", "list-heads", str(bundle)).endswith("refs/heads/work")


async def test_result_replaced_by_a_link_is_malformed(house: House) -> None:
    """A link in place of the result is not followed: what it names reaches no row and no comment."""
    (house.root / "secret.json").write_text('{"protocol": 1, "outcome": "done", "summary": "stolen"}')
    verdict = await house.shell(f'echo more >> README; ln -s {house.root}/secret.json "$TIRELESS_RESULT_FILE"')
    assert (verdict.outcome, verdict.summary) == (Outcome.PROTOCOL_ERROR, "")


async def test_tree_that_is_gone_is_an_agent_error(house: House) -> None:
    """`done` about a deleted work tree burns, and says what is missing."""
    verdict = await house.says({"protocol": 1, "outcome": "done"}, work='rm -rf "$PWD"')
    assert verdict.outcome is Outcome.AGENT_ERROR
    assert Note.WORK_UNREADABLE in verdict.notes


async def test_secret_of_the_result_is_redacted(house: House) -> None:
    """A secret the agent came by is in no text that is stored or posted."""
    verdict = await house.says({"protocol": 1, "outcome": "failed", "reason": f"token {TOKEN} expired"})
    assert verdict.reason == f"token {MASK} expired"


async def test_lost_lease_looks_at_nothing(house: House) -> None:
    """After a lost lease neither result nor tree is read, and nothing is kept: it belongs to somebody else now."""
    prepared = await house.prepare(assignment(), "/bin/sh", "-c", "echo more >> README; sleep 9999")
    control = Control(boottime() + 60)
    control.stop(Stop.LEASE_LOST)
    ended = await house.room.execute(prepared, control, on_output=house.output.append)
    assert (await house.room.collect(prepared, ended)).outcome is Outcome.LEASE_LOST
    assert not (prepared.space.home.own / "work.git").exists()


async def test_earlier_work_for_the_same_request_is_found(house: House) -> None:
    """What an attempt pushed is found by the next one of the same request, and by none of another."""
    verdict, prepared = await house.attempt(assignment(), "/bin/sh", "-c", "echo more >> README")
    assert verdict.commit is not None
    await house.room.push(prepared, house.remote, verdict.commit)
    await house.room.remove(prepared)
    again = await house.prepare(assignment(), "/bin/cat")
    found = await house.room.find_work(again)
    assert [(work.branch, work.commit, work.attempt) for work in found] == [(BRANCH, verdict.commit, "0123abcd")]
    await house.room.remove(again)
    other = await house.prepare(replace(assignment(), request="main/ada/lamp#7 label 13"), "/bin/cat")
    assert await house.room.find_work(other) == []


async def test_no_token_anywhere_in_a_run(house: House) -> None:
    """The agent sees the token in no file below the root, no environment and no command line of ours it can read."""
    # Not of the whole machine: beside this test others run, whose own calls of git name who they are.
    runner = f"/proc/{os.getpid()}"
    words = f'for pid in $(cat {runner}/task/*/children) $PPID $$; do cat "/proc/$pid/cmdline"; done'
    environments = "cat /proc/$PPID/environ /proc/$$/environ"
    script = f'{{ cat {runner}/cmdline; {words}; {environments}; }} | tr "\\0" "\\n"; grep -r {TOKEN[:8]} ../..'
    _, prepared = await house.attempt(assignment(), "/bin/sh", "-c", f'{script} && echo FO"UND"')
    seen = "".join(house.output)
    assert "TIRELESS_JOB_ID=12" in seen
    assert "guard" in seen
    assert TOKEN not in seen
    assert MASK not in seen
    assert "FOUND" not in seen
    assert "SECRET" not in seen
    await house.room.remove(prepared)


async def test_work_that_nobody_has_is_left_for_who_tidies_up(house: House) -> None:
    """A `done` that was neither pushed nor saved is not removed with its tree; the next round makes a bundle of it."""
    verdict, prepared = await house.attempt(assignment(), "/bin/sh", "-c", "echo more >> README")
    assert verdict.commit is not None
    await house.room.remove(prepared)
    places = house.room.spaces.places
    assert places.stale() == [prepared.space.home.key]
    (act,) = await Upkeep(house.room.spaces, Redactor(), Retention()).tidy()
    assert (act.saved, act.error, places.runs()) == ("12.0123abcd.bundle", None, [])
    assert places.saved("12.0123abcd").exists()


@pytest.mark.parametrize("script", ["true", "exit 40", "echo more >> README; exit 1"])
async def test_runs_with_nothing_to_lose_go_at_once(house: House, script: str) -> None:
    """Nothing was changed, or what was changed is saved already: the tree is removed with its attempt."""
    await house.shell(script)
    assert os.listdir(house.root / "root" / "runs") == []
