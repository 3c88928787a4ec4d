"""One attempt from assignment to verdict, in steps that a runner strings together with its claim; no store, no forge.

room = AgentRoom(spaces, redactor=…, environ=os.environ)
prepared = await room.prepare(assignment, command, remote)       # WorkspaceError: our side; give the attempt back
control = Control(deadline)                                      # deadline: boottime() by when the agent is dead
ended = await room.execute(prepared, control, on_output=…)       # meanwhile: control.set_deadline, control.stop
verdict = await room.collect(prepared, ended)                    # never raises for what an agent did
… record_result(verdict) …  await room.push(prepared, remote, verdict)  … settle(verdict) …
ended = await room.after_run(prepared, ended, control)           # the operator's hook; its words join the output
await room.remove(prepared)                                      # always; keeps undelivered work as a bundle
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tireless import log
from tireless.agent import protocol
from tireless.agent.collect import Collector
from tireless.agent.control import Control, RunAs, RunSpec, boottime
from tireless.agent.gitcli import Remote
from tireless.agent.hooks import Hook, HookError, Hooks, Ran, run_hook, with_hooks
from tireless.agent.origin import Subject
from tireless.agent.process import run_agent
from tireless.agent.prompt import OVERRIDE_MAX, override_path, render_prompt
from tireless.agent.protocol import Assignment, Exchange
from tireless.agent.workspace import Found, Workspace, Workspaces, give
from tireless.domain.job import Kind
from tireless.domain.outcome import Ended, Evidence, Stop, Verdict, decide
from tireless.domain.result import Result, Usage
from tireless.domain.text import branch_name, one_line
from tireless.errors import WorkspaceError
from tireless.redact import Redactor

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class LaneCommand:
    """What a runner's configuration says of a lane's agent, and the lane row's limits; times in seconds."""

    argv: tuple[str, ...]
    allowed_env: tuple[str, ...] = ()
    run_timeout_s: float = 5400.0
    stall_timeout_s: float = 600.0
    grace_s: float = 10.0
    run_as: RunAs | None = None
    home: str | None = None
    """HOME of the agent; None: the runner's own."""
    hooks: Hooks = field(default_factory=Hooks)


@dataclass(frozen=True, slots=True)
class Prepared:
    """An attempt that is ready to run. `branch` is the only ref it may ever create."""

    assignment: Assignment
    space: Workspace
    exchange: Exchange
    spec: RunSpec
    branch: str
    hooks: Hooks = field(default_factory=Hooks)
    said: str = ""
    """What the hook after_create printed."""


class AgentRoom:
    """Everything a runner needs for one attempt; holds no state of attempts itself.

    Without `keeps` nothing is saved or left of work that was not delivered: for who only tries an agent.
    """

    def __init__(
        self, spaces: Workspaces, *, redactor: Redactor, environ: Mapping[str, str], keeps: bool = True
    ) -> None:
        self.spaces = spaces
        self._keeps = keeps
        self._redactor = redactor
        self._environ = environ

    async def prepare(
        self,
        assignment: Assignment,
        command: LaneCommand,
        remote: Remote,
        *,
        repository: str,
        control: Control | None = None,
    ) -> Prepared:
        """Tree, prompt, environment, and the hook after_create, which `control` stops as it will stop the agent.

        `repository` names the cache: made of ids, one per forge and repository. Raises WorkspaceError (HookError is
        one), and leaves nothing on disk then.
        """
        space = await self.spaces.prepare(
            assignment.key,
            remote,
            repository=repository,
            base_branch=assignment.base_branch,
            run_as=command.run_as,
            subject=Subject(assignment.job_id, str(assignment.issue), assignment.request),
        )
        prepared: Prepared | None = None
        try:
            prepared = await self._hand_over(assignment, command, space)
            ran = await self._before(Hook.AFTER_CREATE, prepared, control or _long_enough(command.hooks))
            return replace(prepared, said=ran.said)
        except BaseException:
            if prepared is not None:
                await self.remove(prepared)
            await self.spaces.drop(space.home)
            raise

    async def find_work(self, prepared: Prepared) -> list[Found]:
        """Branches of this issue that answer this very request: adopt one (if its attempt counts), run no agent."""
        found = await self.spaces.find_work(prepared.space, prepared.assignment.issue.number)
        return [work for work in found if work.request == prepared.assignment.request]

    async def execute(
        self,
        prepared: Prepared,
        control: Control,
        *,
        on_output: Callable[[str], None],
        on_usage: Callable[[Usage], None] = lambda _usage: None,
    ) -> Ended:
        """Run the hook before_run and the agent to their ends; the hooks' words stand before the agent's output.

        Raises HookError, and WorkspaceError when not even the agent's guard could be started.
        """
        if prepared.said:
            on_output(prepared.said)
        ran = await self._before(Hook.BEFORE_RUN, prepared, control, on_output)
        self.spaces.began(prepared.space.home)
        ended = await run_agent(prepared.spec, control, on_output=on_output, redactor=self._redactor, on_usage=on_usage)
        return with_hooks(ended, before=prepared.said + ran.said)

    async def after_run(self, prepared: Prepared, ended: Ended, control: Control) -> Ended:
        """The hook after_run: after the work was collected, so that it can spoil nothing of it.

        A fault of it is told in the log and in the output, and changes nothing else. A run whose lease was lost has
        none: the next attempt may be under way. One that is stopped for its runner's end has the agent's grace.
        """
        if control.stopped is Stop.LEASE_LOST or ended.not_started is not None:
            return ended
        hooks = prepared.hooks
        if control.stopped is Stop.SHUTDOWN:
            hooks = replace(hooks, timeout_s=min(hooks.timeout_s, prepared.spec.grace_s))
        return with_hooks(ended, after=(await self._after(Hook.AFTER_RUN, prepared, hooks, control)).said)

    async def collect(self, prepared: Prepared, ended: Ended) -> Verdict:
        """Read the result, look at the tree, decide. After a lost lease nothing is looked at: it is not ours."""
        kind = prepared.assignment.kind
        if ended.stopped is Stop.LEASE_LOST or ended.not_started is not None:
            return decide(ended, None, Evidence(), kind)
        result = protocol.read_result(prepared.exchange, self._redactor)
        evidence = await self._evidence(prepared, result if isinstance(result, Result) else None)
        if kind is not Kind.IMPLEMENT or evidence.commit is None:
            self.spaces.settled(prepared.space.home)
        verdict = replace(decide(ended, result, evidence, kind), tree=evidence.tree)
        if self._keeps and kind is Kind.IMPLEMENT and evidence.commit is not None and verdict.commit is None:
            verdict = await self._save(prepared, evidence.commit, verdict)
        return verdict

    async def push(self, prepared: Prepared, remote: Remote, commit: str) -> bool:
        """Create this attempt's branch at the recorded commit; False: it was there already. Check the lease first."""
        created = await self.spaces.push(prepared.space, remote, commit=commit, branch=prepared.branch)
        self.spaces.settled(prepared.space.home)
        return created

    async def remove(self, prepared: Prepared) -> None:
        """The hook before_remove, then remove everything of this attempt but a saved bundle; idempotent.

        Work that was neither pushed nor saved (the lease was lost, or something broke off) is left where it is, for
        whoever tidies up next: to save it takes its time, and this slot is wanted.
        """
        home = prepared.space.home
        if self.spaces.places.has_run(home.key):
            await self._after(Hook.BEFORE_REMOVE, prepared, prepared.hooks, _long_enough(prepared.hooks))
        if self._keeps and self.spaces.may_lose(home):
            home.hold.close()
            _log.warning("work left to be tidied up", run=home.key)
            return
        await self.spaces.drop(home)

    async def _before(
        self,
        hook: Hook,
        prepared: Prepared,
        control: Control,
        on_output: Callable[[str], None] = lambda _text: None,
    ) -> Ran:
        """A hook that must succeed and leave a work tree, or no agent runs: HookError."""
        if control.stopped is not None:
            return Ran()
        ran = await run_hook(hook, prepared.hooks, prepared.spec, control, on_output=on_output, redactor=self._redactor)
        if ran.fault is None and ran.said and (wrong := prepared.space.home.check_tree()):
            ran = replace(ran, fault=f"the hook {hook} left no work tree to run in: {wrong}")
        # Stopped with its run? Then that is what is to be told, by who runs the agent.
        if ran.fault is not None and control.stopped is None:
            raise HookError(ran)
        return ran

    async def _after(self, hook: Hook, prepared: Prepared, hooks: Hooks, control: Control) -> Ran:
        """A hook that changes no outcome: its fault is told. It never runs in what an agent put in the tree's place."""
        if hook not in hooks.commands:
            return Ran()
        if wrong := prepared.space.home.check_root():
            ran = Ran(f"[hook {hook}]\n", f"the hook {hook} was not run: {wrong}")
        else:
            try:
                ran = await run_hook(
                    hook, hooks, prepared.spec, control, on_output=lambda _text: None, redactor=self._redactor
                )
            except WorkspaceError as error:
                ran = Ran(f"[hook {hook}]\n", f"the hook {hook} could not be run: {error}")
        if ran.fault is not None:
            _log.warning("hook failed", hook=hook.value, error=ran.fault)
            ran = replace(ran, said=f"{ran.said}[{ran.fault.splitlines()[0]}]\n")
        return ran

    async def _hand_over(self, assignment: Assignment, command: LaneCommand, space: Workspace) -> Prepared:
        exchange = Exchange(space.home.exchange)
        mark = secrets.token_hex(16)
        deadline = datetime.now(UTC) + timedelta(seconds=command.run_timeout_s)
        override = await self.spaces.base_file(space, override_path(assignment), limit=OVERRIDE_MAX)
        # Random per run and told to nobody before: foreign text cannot contain it.
        fence = hashlib.sha256(f"fence {mark}".encode()).hexdigest()[:16]
        prompt = await render_prompt(assignment, exchange, base_sha=space.base_sha, fence=fence, override=override)
        job = protocol.job_document(assignment, base_sha=space.base_sha, deadline=deadline)
        protocol.write_exchange(exchange, job=job, prompt=prompt)
        if command.run_as:
            give((exchange.directory,), command.run_as)
        env = protocol.agent_environment(
            assignment,
            exchange,
            base_sha=space.base_sha,
            deadline=deadline,
            mark=mark,
            environ=self._environ,
            allowed=command.allowed_env,
            home=command.home,
        )
        spec = RunSpec(
            argv=command.argv,
            cwd=space.home.tree,
            env=env,
            stdin=prompt.encode(),
            run_timeout_s=command.run_timeout_s,
            stall_timeout_s=command.stall_timeout_s,
            grace_s=command.grace_s,
            progress_file=exchange.progress_file,
            usd_left=assignment.usd_left,
            run_as=command.run_as,
            hold=space.home.hold.fds,
        )
        branch = branch_name(assignment.issue.number, assignment.title, assignment.attempt_uid.hex)
        return Prepared(
            assignment=assignment, space=space, exchange=exchange, spec=spec, branch=branch, hooks=command.hooks
        )

    async def _evidence(self, prepared: Prepared, result: Result | None) -> Evidence:
        """What the tree shows. A fault of ours here comes after a paid run: it must not be given back for ever."""
        title = result.pr.title if result and result.pr else prepared.assignment.title
        collector = Collector(self.spaces.git, prepared.space, identity=self.spaces.identity, redactor=self._redactor)
        try:
            return await collector.evidence(request=prepared.assignment.request, subject=one_line(title))
        except WorkspaceError as error:
            return Evidence(unreadable=str(error))

    async def _save(self, prepared: Prepared, commit: str, verdict: Verdict) -> Verdict:
        """Work that is not delivered is kept on this host, and the verdict says where."""
        try:
            path = await self.spaces.save(prepared.space, commit)
        except WorkspaceError as error:
            return replace(verdict, reason=f"{verdict.reason}; its work could not be saved: {error}")
        # The reason may end up in a comment: no path of the host in it.
        return replace(verdict, reason=f"{verdict.reason}; its work is kept on the runner's host in {path.name}")


def _long_enough(hooks: Hooks) -> Control:
    """For a hook outside of a lease: nothing but its own time limit ends it."""
    return Control(boottime() + hooks.timeout_s + 60.0)
