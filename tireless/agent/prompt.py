"""Renders the prompt of a job: our template, or the base branch's own. Foreign text goes in as marked data, cleaned."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tireless.agent import render
from tireless.agent.protocol import Assignment, Exchange
from tireless.domain.text import one_line, visible
from tireless.errors import Unworkable, WorkspaceError

OVERRIDE_MAX = 65_536
"""Bytes of a template of the base branch."""
LIMIT_S = 30.0


class PromptError(Unworkable):
    """A template of the base branch is wrong; the message names file and branch."""


def override_path(assignment: Assignment) -> str:
    """Where the base branch may keep a template of its own for this kind."""
    return f".tireless/prompts/{assignment.kind}.md"


async def render_prompt(
    assignment: Assignment, exchange: Exchange, *, base_sha: str, fence: str, override: bytes | None = None
) -> str:
    """The prompt. `fence` is a random word of this run: foreign text cannot pretend to end where it does not.

    `override` is the text of the base branch's template; it may include and extend ours (`_issue.md`, `_result.md`,
    `implement.md` …) and sees the same variables. It is rendered by a process of its own, within limits.
    """
    values = _values(assignment, exchange, base_sha, fence)
    if override is None:
        return render.render_template(None, f"{assignment.kind}.md", values)
    name = f"the prompt template {override_path(assignment)} of {assignment.base_branch}"
    try:
        source = override.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name} is not UTF-8; correct it") from error
    asked = json.dumps({"source": source, "name": override_path(assignment), "values": values})
    return await _in_a_box(asked.encode(), name)


async def _in_a_box(asked: bytes, name: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", render.__file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate(asked)  # bounded: the child bounds what it makes
    except TimeoutError as error:
        # Perhaps it is this host that is slow: tried again, by another one if there is one.
        raise WorkspaceError(f"{name} took longer than {LIMIT_S:.0f} s; look whether it loops") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return out.decode("utf-8", "replace")
    said = err.decode("utf-8", "replace") if process.returncode == render.WRONG else "it ran too long or broke down"
    raise PromptError(f"{name} is wrong: {said}; correct it")


def _values(assignment: Assignment, exchange: Exchange, base_sha: str, fence: str) -> dict[str, object]:
    issue = assignment.issue
    return {
        "kind": assignment.kind.value,
        "lane": assignment.lane,
        "attempt": assignment.attempt,
        "max_attempts": assignment.max_attempts,
        "repository": issue.repo.path,
        "base": {"branch": assignment.base_branch, "sha": base_sha},
        "issue": {
            "number": issue.number,
            "url": assignment.issue_url,
            "title": _data("ISSUE TITLE", one_line(assignment.title), fence),
            "body": _data("ISSUE BODY", visible(assignment.body), fence),
        },
        "messages": [
            {
                "login": one_line(message.login),
                "text": _data("COMMENT", visible(message.text), fence),
            }
            for message in assignment.messages
        ],
        "previous": _data("LAST ATTEMPT", visible(assignment.previous), fence) if assignment.previous else None,
        "fence": fence,
        "result_file": str(exchange.result_file),
        "job_file": str(exchange.job_file),
    }


def _data(what: str, text: str, fence: str) -> str:
    """Foreign text between two lines that it cannot contain."""
    return f"<<<{what} {fence}\n{text.replace(fence, '') or '(empty)'}\n{what} {fence}>>>"
