"""An operator's commands around an agent: in its tree, as its user, with its environment, each under its own guard.

A hook is given no credential and no database. It may fail, hang, fork or delete the tree: what it did is a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tireless.agent.control import Control, RunSpec
from tireless.agent.output import KEPT
from tireless.agent.process import run_agent
from tireless.domain.outcome import Ended, Stop
from tireless.errors import WorkspaceError
from tireless.redact import Redactor

OUTPUT_KEPT = 8_192
"""Bytes kept of the head of a hook's output, and as many of its tail."""
_LAST_LINES, _LAST_CHARS = 10, 1_000


class Hook(StrEnum):
    """When an operator's command runs, in the order of an attempt."""

    AFTER_CREATE = "after_create"
    BEFORE_RUN = "before_run"
    AFTER_RUN = "after_run"
    BEFORE_REMOVE = "before_remove"


@dataclass(frozen=True, slots=True)
class Hooks:
    """A lane's hooks on this host: argv by moment, and how long each may take, in seconds."""

    commands: Mapping[Hook, tuple[str, ...]] = field(default_factory=dict)
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of one hook. `fault` is a sentence for people, None when it exited with 0."""

    said: str = ""
    """Its redacted output under a line that names it, bounded."""
    fault: str | None = None
    not_started: bool = False
    """Its program does not exist on this host, or may not be executed."""


class HookError(WorkspaceError):
    """A hook before the agent failed: no agent ran. `said` is its output, `not_started` as in Ran."""

    def __init__(self, ran: Ran) -> None:
        super().__init__(ran.fault or "a hook failed")
        self.said = ran.said
        self.not_started = ran.not_started


async def run_hook(
    hook: Hook,
    hooks: Hooks,
    spec: RunSpec,
    control: Control,
    *,
    on_output: Callable[[str], None],
    redactor: Redactor,
) -> Ran:
    """Run one hook to its end, if the lane has it; nothing of it is alive afterwards.

    `spec` is the agent's own: user, directory and environment are taken from it. The run's `control` stops the hook as
    it would stop the agent, but only by what is said from now on: a hook after a cancelled run has its time too.
    """
    argv = hooks.commands.get(hook)
    if not argv:
        return Ran()
    title = f"[hook {hook}]\n"
    on_output(title)
    own = replace(
        spec,
        argv=argv,
        stdin=b"",
        run_timeout_s=hooks.timeout_s,
        stall_timeout_s=hooks.timeout_s,
        progress_file=None,
        kept=OUTPUT_KEPT,
    )
    ended = await _follow(own, control, on_output=on_output, redactor=redactor)
    said = title + _ended_line(ended.head + ("\n[…]\n" + ended.tail if ended.tail else ""))
    return Ran(said=said, fault=_fault(hook, ended, hooks.timeout_s), not_started=ended.not_started is not None)


async def _follow(spec: RunSpec, control: Control, *, on_output: Callable[[str], None], redactor: Redactor) -> Ended:
    """Run under a control of the hook's own: its time limit must not end the attempt, as the agent's does."""
    own = Control(control.deadline)
    listening = False

    def obey(order: str) -> None:
        if order.startswith("deadline"):
            own.set_deadline(control.deadline)
        elif listening:  # to be attached is to hear what was said before: that was for the agent
            own.stop(control.stopped or Stop.SHUTDOWN, hurry=order == "kill")

    control.attach(obey)
    listening = True
    try:
        return await run_agent(spec, own, on_output=on_output, redactor=redactor)
    finally:
        control.attach(None)


def with_hooks(ended: Ended, *, before: str = "", after: str = "") -> Ended:
    """An agent's end with what its hooks said around its output: the head stays a head of at most KEPT bytes."""
    tail = ended.tail + after
    head = (before + _ended_line(ended.head) if before else ended.head) + ("" if ended.tail else after)
    if not ended.tail:
        tail = ""
    data = head.encode()
    if len(data) > KEPT:
        kept = data[:KEPT].decode(errors="ignore")
        head, tail = kept, head[len(kept) :] + tail
    return replace(ended, head=head, tail=tail.encode()[-KEPT:].decode(errors="ignore"))


def _fault(hook: Hook, ended: Ended, timeout_s: float) -> str | None:
    if ended.not_started is not None:
        return f"the hook {hook} could not be started: {ended.not_started}; correct it or install it on this host"
    match ended.stopped:
        case None if ended.exit_code == 0 and not ended.survivors:
            return None
        case None if ended.exit_code is not None and ended.exit_code != 0:
            how = f"ended with exit code {ended.exit_code}"
        case None if ended.survivors:
            how = f"left processes that could not be killed: {', '.join(map(str, ended.survivors))}"
        case None:
            how = f"was ended by signal {ended.signal}" if ended.signal else "lost its guard"
        case Stop.TIMEOUT | Stop.STALLED:
            how = f"was stopped, it took longer than {timeout_s:g} s (hook_timeout)"
        case Stop.CANCELLED | Stop.LEASE_LOST | Stop.SHUTDOWN | Stop.OVER_BUDGET:
            how = f"was stopped with its run ({ended.stopped})"
    last = "\n".join((ended.head + ended.tail).strip().splitlines()[-_LAST_LINES:])[-_LAST_CHARS:]
    return f"the hook {hook} {how}" + (f"; the last it said:\n{last}" if last else "; it said nothing")


def _ended_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
