"""One agent on one issue, for an operator who tries a lane: writes no row and nothing to the forge, only below a
temporary root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from tireless import log
from tireless.agent.attempt import AgentRoom, LaneCommand, Prepared
from tireless.agent.control import Control, boottime
from tireless.agent.gitcli import Git, GitError, Remote
from tireless.agent.places import Places, remove_tree
from tireless.agent.protocol import Assignment
from tireless.agent.workspace import Workspaces, own_repository
from tireless.app.forges import open_forges
from tireless.app.running import credentials, git_environment, lane_commands
from tireless.app.signals import Stage, until_told
from tireless.config import Settings
from tireless.domain.issue import IssueRef, Repository, Snapshot
from tireless.domain.job import Kind
from tireless.domain.labels import job_kind_for, read
from tireless.domain.outcome import Ended, Stop, Verdict
from tireless.domain.routing import lane_for
from tireless.errors import UsageError, WorkspaceError
from tireless.redact import Redactor

_log = log.get(__name__)

_MORE_S = 3600.0
"""Nobody renews a lease here: the guard's deadline is this much beyond the run's own time limit."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be tried. `text`: an issue's title and body from elsewhere; `lane` and `kind`: else as labels say."""

    issue: IssueRef
    lane: str | None = None
    kind: Kind | None = None
    text: tuple[str, str] | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of it. `tree`: where its work lies, when it was to be kept."""

    lane: str
    kind: Kind
    verdict: Verdict
    ended: Ended
    base_sha: str
    diff_stat: str
    tree: Path | None


async def try_once(
    settings: Settings, redactor: Redactor, wanted: Wanted, *, on_output: Callable[[str], None]
) -> Tried:
    """Read the issue, prepare a tree, run the lane's hooks and command as a runner does, look at the work.

    UsageError where lane or kind cannot be told; ForgeError, WorkspaceError. A signal stops the agent, another one
    everything; the temporary root is removed in any case, unless it is kept and told of.
    """
    stop = asyncio.Event()
    work = _try(settings, redactor, wanted, on_output, stop)
    return await until_told(work, [Stage(stop, "the agent is stopped")])


async def _try(
    settings: Settings, redactor: Redactor, wanted: Wanted, on_output: Callable[[str], None], stop: asyncio.Event
) -> Tried:
    ref = wanted.issue
    async with open_forges(settings) as forges:
        forge = forges[ref.repo.forge]
        repository = await forge.repository(ref.repo)
        snapshot = None if wanted.text else await forge.issue(ref.repo, ref.number)
    kind = wanted.kind or _kind(settings, snapshot)
    lane = wanted.lane or _lane(settings, kind, snapshot)
    command = lane_commands(settings, [lane])[lane]
    times = settings.lanes[lane].lane(lane)
    command = replace(command, run_timeout_s=times.run_timeout_s, stall_timeout_s=times.stall_timeout_s)
    root, kept = _temporary_root(shared=command.run_as is not None), False
    try:
        places = Places(root / "work")
        places.open(shared=command.run_as is not None)
        environ = git_environment(settings)
        spaces = Workspaces(places, Git(redactor=redactor, environ=environ))
        room = AgentRoom(spaces, redactor=redactor, environ=os.environ, keeps=False)
        remote = Remote(repository.clone_url, credentials(settings).get(ref.repo.forge))
        assignment = replace(_assignment(wanted, repository, snapshot, kind, lane), usd_left=times.max_usd)
        tried = await _in(room, assignment, command, remote, wanted.keep, on_output, stop)
        kept = wanted.keep
        return tried
    finally:
        if not kept:
            await asyncio.to_thread(_remove, root)


async def _in(
    room: AgentRoom,
    assignment: Assignment,
    command: LaneCommand,
    remote: Remote,
    keep: bool,
    on_output: Callable[[str], None],
    stop: asyncio.Event,
) -> Tried:
    """The attempt, in the order of a runner's."""
    control = Control(boottime() + command.run_timeout_s + 2 * command.hooks.timeout_s + _MORE_S)
    watch = asyncio.create_task(_told(stop, control))
    try:
        prepared = await room.prepare(assignment, command, remote, repository="exec", control=control)
        try:
            ended = await room.execute(prepared, control, on_output=on_output)
            verdict = await room.collect(prepared, ended)
            ended = await room.after_run(prepared, ended, control)
            return Tried(
                lane=assignment.lane,
                kind=assignment.kind,
                verdict=verdict,
                ended=ended,
                base_sha=prepared.space.base_sha,
                diff_stat=await _diff_stat(room, prepared),
                tree=prepared.space.home.tree if keep else None,
            )
        finally:
            if keep:
                prepared.space.home.hold.close()
            else:
                # Whatever is left then goes with the root, or is told with it.
                with contextlib.suppress(WorkspaceError, OSError):
                    await room.remove(prepared)
    finally:
        watch.cancel()


def _temporary_root(*, shared: bool) -> Path:
    """Closed to others, but that the agent's user must pass through it to his tree."""
    root = Path(tempfile.mkdtemp(prefix="tireless-exec-"))
    if shared:
        root.chmod(0o711)
    return root


def _remove(root: Path) -> None:
    """Everything of it, as far as that goes; what stays is told."""
    try:
        remove_tree(root)
    except OSError as error:
        shutil.rmtree(root, ignore_errors=True)
        if os.path.lexists(root):
            _log.warning("temporary directory not removed, remove it by hand", directory=str(root), error=str(error))


async def _told(stop: asyncio.Event, control: Control) -> None:
    await stop.wait()
    control.stop(Stop.SHUTDOWN)


async def _diff_stat(room: AgentRoom, prepared: Prepared) -> str:
    """What would have been delivered, file by file; empty when nothing was collected."""
    git, own = room.spaces.git, own_repository(prepared.space.home)
    try:
        deliver = await git.run("rev-parse", "--verify", "--quiet", "refs/tireless/deliver", git_dir=own)
        shown = await git.run(
            "diff",
            "--stat=100",
            "--no-ext-diff",
            "--no-textconv",
            prepared.space.base_sha,
            deliver.decode().strip(),
            git_dir=own,
        )
    except GitError:
        return ""
    return git.redact(shown)


def _kind(settings: Settings, snapshot: Snapshot | None) -> Kind:
    """What the issue's mode labels say; `implement` without one: whoever types this is the one who asks."""
    if snapshot is None:
        return Kind.IMPLEMENT
    scheme = replace(settings.labels.scheme, require_opt_in=False)
    return job_kind_for(read(snapshot.labels, scheme), scheme) or Kind.IMPLEMENT


def _lane(settings: Settings, kind: Kind, snapshot: Snapshot | None) -> str:
    overrides = read(snapshot.labels, settings.labels.scheme).agents if snapshot else ()
    found = lane_for(kind, is_child=False, overrides=overrides, lanes=settings.lane_values)
    if found is None:
        raise UsageError(f"no lane takes {kind}: name one with --lane, or give one that kind in the configuration")
    return found


def _assignment(wanted: Wanted, repository: Repository, snapshot: Snapshot | None, kind: Kind, lane: str) -> Assignment:
    ref = wanted.issue
    title, body = wanted.text if wanted.text else (snapshot.title, snapshot.body) if snapshot else ("", "")
    return Assignment(
        job_id=0,
        attempt_uid=uuid4(),
        attempt=1,
        max_attempts=1,
        kind=kind,
        lane=lane,
        issue=ref,
        issue_url=snapshot.url if snapshot else f"{repository.html_url}/issues/{ref.number}",
        title=title,
        body=body,
        base_branch=repository.default_branch,
        request=f"exec {ref.number}",
    )
