"""One attempt from assignment to verdict, in steps that a runner strings together with its claim; no store, no forge.

room = AgentRoom(spaces, redactor=…, environ=os.environ)
prepared = await room.prepare(assignment, command, remote)       # WorkspaceError: our side; give the attempt back
control = Control(deadline)                                      # deadline: boottime() by when the agent is dead
ended = await room.execute(prepared, control, on_output=…)       # meanwhile: control.set_deadline, control.stop
verdict = await room.collect(prepared, ended)                    # never raises for what an agent did
… record_result(verdict) …  await room.push(prepared, remote, verdict)  … settle(verdict) …
await room.remove(prepared)                                      # always; keeps undelivered work as a bundle
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from tireless.agent import protocol
from tireless.agent.collect import Collector
from tireless.agent.control import Control, RunAs, RunSpec
from tireless.agent.gitcli import Remote
from tireless.agent.process import run_agent
from tireless.agent.prompt import OVERRIDE_MAX, override_path, render_prompt
from tireless.agent.protocol import Assignment, Exchange
from tireless.agent.workspace import Found, Workspace, Workspaces, give
from tireless.domain.job import Kind
from tireless.domain.outcome import Ended, Evidence, Stop, Verdict, decide
from tireless.domain.result import Result
from tireless.domain.text import branch_name, one_line
from tireless.errors import WorkspaceError
from tireless.redact import Redactor


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """An attempt that is ready to run. `branch` is the only ref it may ever create."""

    assignment: Assignment
    space: Workspace
    exchange: Exchange
    spec: RunSpec
    branch: str


class AgentRoom:
    """Everything a runner needs for one attempt; holds no state of attempts itself."""

    def __init__(self, spaces: Workspaces, *, redactor: Redactor, environ: Mapping[str, str]) -> None:
        self.spaces = spaces
        self._redactor = redactor
        self._environ = environ

    async def prepare(
        self, assignment: Assignment, command: LaneCommand, remote: Remote, *, repository: str
    ) -> Prepared:
        """Tree, prompt and environment. `repository` names the cache: made of ids, one per forge and repository.

        Raises WorkspaceError, and leaves nothing on disk then.
        """
        space = await self.spaces.prepare(
            assignment.key,
            remote,
            repository=repository,
            base_branch=assignment.base_branch,
            run_as=command.run_as,
        )
        try:
            return await self._hand_over(assignment, command, space)
        except BaseException:
            await self.spaces.drop(space.home)
            raise

    async def find_work(self, prepared: Prepared) -> list[Found]:
        """Branches of this issue that answer this very request: adopt one (if its attempt counts), run no agent."""
        found = await self.spaces.find_work(prepared.space, prepared.assignment.issue.number)
        return [work for work in found if work.request == prepared.assignment.request]

    async def execute(self, prepared: Prepared, control: Control, *, on_output: Callable[[str], None]) -> Ended:
        """Run the agent to its end. Raises WorkspaceError when not even its guard could be started."""
        return await run_agent(prepared.spec, control, on_output=on_output, redactor=self._redactor)

    async def collect(self, prepared: Prepared, ended: Ended) -> Verdict:
        """Read the result, look at the tree, decide. After a lost lease nothing is looked at: it is not ours."""
        kind = prepared.assignment.kind
        if ended.stopped is Stop.LEASE_LOST or ended.not_started is not None:
            return decide(ended, None, Evidence(), kind)
        result = protocol.read_result(prepared.exchange, self._redactor)
        evidence = await self._evidence(prepared, result if isinstance(result, Result) else None)
        verdict = decide(ended, result, evidence, kind)
        if kind is Kind.IMPLEMENT and evidence.commit is not None and verdict.commit is None:
            verdict = await self._save(prepared, evidence.commit, verdict)
        return verdict

    async def push(self, prepared: Prepared, remote: Remote, commit: str) -> bool:
        """Create this attempt's branch at the recorded commit; False: it was there already. Check the lease first."""
        return await self.spaces.push(prepared.space, remote, commit=commit, branch=prepared.branch)

    async def remove(self, prepared: Prepared) -> None:
        """Remove everything of this attempt but a saved bundle; idempotent."""
        await self.spaces.drop(prepared.space.home)

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
            run_as=command.run_as,
        )
        branch = branch_name(assignment.issue.number, assignment.title, assignment.attempt_uid.hex)
        return Prepared(assignment=assignment, space=space, exchange=exchange, spec=spec, branch=branch)

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
