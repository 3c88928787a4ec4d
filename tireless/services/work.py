"""One claimed job from its work tree to the runner's last word: prepare, run, collect, leave, settle, remove.

Every write is fenced by the claim's token; what an agent did is a value. Claims nothing; leases.py renews.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from structlog.contextvars import bound_contextvars

from tireless import log
from tireless.agent.attempt import AgentRoom, LaneCommand, Prepared
from tireless.agent.control import boottime
from tireless.agent.gitcli import Credential, Remote
from tireless.agent.hooks import HookError
from tireless.agent.protocol import Assignment, Message
from tireless.domain import retry
from tireless.domain.issue import IssueRef
from tireless.domain.job import Kind
from tireless.domain.outcome import Ended, Note, Outcome, Stop, Verdict
from tireless.errors import Unworkable, WorkspaceError
from tireless.services.leases import Held
from tireless.services.leaving import Leaver
from tireless.services.live import Live
from tireless.services.settling import Settling
from tireless.services.speaking import Limits, Speaker
from tireless.services.waiting import unless
from tireless.store.adopt import Adopted, Offer, adopt
from tireless.store.claim import Claim
from tireless.store.db import Pool
from tireless.store.history import Recall, recall
from tireless.store.look import Ring
from tireless.store.record import Answer
from tireless.store.settle import Ending, settle

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Worked:
    """What a runner must know of one claim that is over."""

    survivors: tuple[int, ...] = ()
    """Pids of the run that could not be killed: they keep the slot."""
    our_fault: bool = False
    """No agent could be run for a reason of this host's or the forge's: the next job may meet the same."""


@dataclass(slots=True)
class _Work:
    """What one claim came to so far: for whoever must tidy up, wherever it broke off."""

    held: Held
    issue: IssueRef
    prepared: Prepared | None = None
    remote: Remote | None = None
    survivors: tuple[int, ...] = ()


class Worker:
    """Works on claims for the lanes it has commands for.

    `credentials` open the forges' git, by configured name; `ring` is told whom to wake for what was settled.
    """

    def __init__(
        self,
        pool: Pool,
        room: AgentRoom,
        *,
        commands: Mapping[str, LaneCommand],
        credentials: Mapping[str, Credential],
        ring: Ring,
        limits: Limits | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._pool = pool
        self._room = room
        self._commands = commands
        self._credentials = credentials
        self._limits = limits or Limits()
        self._speaker = Speaker(pool, self._limits)
        self._ring = ring
        self._settling = Settling(pool, ring)
        self._leaver = Leaver(self._speaker, room, self._limits)
        self._jitter = jitter

    async def work(self, held: Held) -> Worked:
        """The whole of one claim. StoreError when the database refused a word, or stayed away for too long."""
        claim, work = held.claim, _Work(held, IssueRef(held.claim.repo, held.claim.number))
        where = {"forge": claim.repo.forge, "issue": str(work.issue), "lane": claim.lane}
        with bound_contextvars(job=claim.job_id, attempt=claim.attempts, **where):
            began = boottime()
            _log.info("job claimed", kind=claim.kind.value, claim_no=claim.claim_no)
            try:
                ending = await self._attempt(work)
                answer = Answer.LOST if ending is None else await self._settle(held, ending)
            finally:
                if work.prepared is not None:
                    await self._remove(work.prepared)
            facts = _facts(claim, ending)
            _log.info("attempt finished", answer=answer.value, seconds=round(boottime() - began, 1), **facts)
            return Worked(work.survivors, _is_our_fault(ending))

    async def _attempt(self, work: _Work) -> Ending | None:
        """Everything before the last word; None when the claim was lost on the way."""
        held = work.held
        command = self._commands.get(held.claim.lane)
        if command is None:
            return _unfit(f"this runner has no command for lane {held.claim.lane}: correct its configuration")
        if _lease_too_short(held, command):
            return _unfit(
                f"a lease of {held.claim.lease_s:g} s is too short for this runner, whose agents must be gone "
                f"{held.margin_s:g} s before its end after {command.grace_s:g} s to stop in: see runner.lease_margin"
            )
        held.grace_s = command.grace_s
        if held.over:  # the answer to the claim came too late
            held.call_off(Stop.LEASE_LOST)
        if held.called_off is not None:
            return _called_off(held)
        try:
            prepared = await unless(held.news, self._prepare(work, command))
            if prepared is None or work.remote is None:
                return _called_off(held)
            adopted = await self._adopt(held, prepared)
            if adopted is Answer.LOST:
                return None
            if adopted is not None:
                return _adopted(adopted)
            if held.claim.usd_left is not None and held.claim.usd_left <= 0:
                return _spent()
            ended = await self._execute(work, prepared)
        except WorkspaceError as error:
            # No agent ran: given back, however often. `claim_no` counts these, `attempts` does not.
            return _not_run(error, wake_s=self._backoff_s(held.claim, held.claim.claim_no))
        collect = self._room.collect(prepared, ended)
        verdict = await unless(held.news, collect, patience_s=self._limits.hurry_s) or _cut(held, ended)
        if verdict.outcome is Outcome.LEASE_LOST:
            return None
        if verdict.outcome is Outcome.SHUTDOWN and held.called_off is not Stop.SHUTDOWN and not held.draining.is_set():
            # Not by us. An agent can signal its guard, and must not be run again for nothing as often as it likes.
            reason = f"the run's guard was told to stop, but not by its runner: {verdict.reason}"
            verdict = replace(verdict, outcome=Outcome.AGENT_ERROR, reason=reason)
        ended = await self._room.after_run(prepared, ended, held.control)
        ending = self._ending(held.claim, ended, verdict)
        if verdict.outcome is not Outcome.DONE:
            return ending
        return await self._leaver.leave(held, prepared, work.remote, verdict=verdict, ending=ending)

    async def _prepare(self, work: _Work, command: LaneCommand) -> Prepared:
        claim = work.held.claim
        recalled = await self._speaker.say(work.held, lambda conn: recall(conn, claim.job_id))
        work.remote = Remote(claim.clone_url, self._credentials.get(claim.repo.forge))
        work.prepared = await self._room.prepare(
            _assignment(claim, work.issue, recalled),
            replace(command, run_timeout_s=claim.run_timeout_s, stall_timeout_s=claim.stall_timeout_s),
            work.remote,
            repository=f"{claim.repo.forge}.{claim.forge_repo_id}",
            control=work.held.control,
        )
        return work.prepared

    async def _adopt(self, held: Held, prepared: Prepared) -> Adopted | Literal[Answer.LOST] | None:
        """What an earlier attempt of this request pushed, as this attempt's result; None: it is for an agent to do."""
        claim = held.claim
        if claim.kind is not Kind.IMPLEMENT:  # only then is something pushed
            return None
        offers = [Offer(work.branch, work.commit) for work in await self._room.find_work(prepared)]
        if not offers:
            return None
        adopted = await self._speaker.say(held, lambda conn: adopt(conn, claim.job_id, claim.token, offers))
        if isinstance(adopted, Adopted):
            facts = {"branch": adopted.branch, "commit": adopted.commit, "of_claim": adopted.claim_no}
            _log.info("pushed work adopted", **facts)
        return adopted

    async def _execute(self, work: _Work, prepared: Prepared) -> Ended:
        async with Live(self._pool, work.held.claim) as live:
            ended = await self._room.execute(prepared, work.held.control, on_output=live.add, on_usage=live.spend)
        work.survivors = ended.survivors
        return ended

    def _ending(self, claim: Claim, ended: Ended, verdict: Verdict) -> Ending:
        return Ending(
            outcome=verdict.outcome,
            reason=verdict.reason + "".join(f" [{note}]" for note in verdict.notes),
            summary=verdict.summary,
            question=verdict.question,
            exit_code=ended.exit_code if ended.signal is None else -ended.signal,
            usage=asdict(verdict.usage) | ({"session": verdict.session} if verdict.session else {}),
            output_head=ended.head,
            output_tail=ended.tail,
            wake_s=self._backoff_s(claim, claim.attempts),
            asked_s=retry.wait_s(verdict.retry_after, now=datetime.now(UTC)),
            cannot_start=verdict.reason if Note.CANNOT_START in verdict.notes else None,
            head=verdict.tree,
        )

    def _backoff_s(self, claim: Claim, times: int) -> float:
        return retry.backoff_s(times, jitter=self._jitter(), base_s=claim.backoff_base_s, cap_s=claim.backoff_cap_s)

    async def _settle(self, held: Held, ending: Ending) -> Answer:
        claim = held.claim
        held.settling = True
        answer = await self._settling.settle(claim.job_id, claim.token, ending)
        if answer is not None:
            return answer
        return await self._speaker.say(
            held, lambda conn: settle(conn, claim.job_id, claim.token, ending, ring=self._ring)
        )

    async def _remove(self, prepared: Prepared) -> None:
        try:
            await self._room.remove(prepared)
        except WorkspaceError as error:
            _log.error("run directory not removed", error=str(error))


def _is_our_fault(ending: Ending | None) -> bool:
    """Would the next job meet the same? Not what holds the lane for this host, nor what only this repository has."""
    if ending is None or ending.outcome is not Outcome.WORKSPACE_ERROR:
        return False
    return ending.cannot_start is None and not ending.permanent


def _lease_too_short(held: Held, command: LaneCommand) -> bool:
    """Would the agent be stopped before the first renewal was due? Lease and margin come from two configurations."""
    return held.claim.lease_s <= 1.5 * (held.margin_s + command.grace_s)


def _unfit(fault: str) -> Ending:
    """This host cannot serve the lane: it is held for this host, and the attempt given back."""
    return Ending(outcome=Outcome.WORKSPACE_ERROR, reason=fault, cannot_start=fault)


def _not_run(error: WorkspaceError, *, wake_s: float) -> Ending:
    """The end of an attempt that never came to its agent. A hook that is not there is a fault of this host's set-up."""
    reason = str(error)
    if isinstance(error, Unworkable):
        # Counted by the store, which knows how long to wait, and parked then.
        return Ending(outcome=Outcome.WORKSPACE_ERROR, reason=reason, permanent=True, doubtful=True)
    if isinstance(error, HookError):
        fault = reason if error.not_started else None
        return Ending(
            outcome=Outcome.WORKSPACE_ERROR, reason=reason, wake_s=wake_s, output_head=error.said, cannot_start=fault
        )
    return Ending(outcome=Outcome.WORKSPACE_ERROR, reason=reason, wake_s=wake_s)


def _spent() -> Ending:
    """Its lane's cap fell while it was being claimed."""
    reason = "no agent was run: the job had used up what it may cost"
    return Ending(outcome=Outcome.OVER_BUDGET, reason=reason, agent_ran=False)


def _adopted(work: Adopted) -> Ending:
    """The end of an attempt whose work was done, and paid for, by an earlier one."""
    whose = f"claim {work.claim_no}" if work.claim_no else "an attempt whose record was lost"
    reason = f"no agent was run: {whose} had pushed {work.branch} already"
    return Ending(outcome=Outcome.DONE, reason=reason, summary=work.summary, agent_ran=False)


def _called_off(held: Held) -> Ending | None:
    """The end of an attempt whose agent never ran."""
    match held.called_off:
        case Stop.CANCELLED:
            return Ending(outcome=Outcome.CANCELLED, reason="the job was cancelled before its agent was started")
        case Stop.SHUTDOWN:
            return Ending(outcome=Outcome.SHUTDOWN, reason="the runner was stopped before the agent was started")
        case _:
            return None


def _cut(held: Held, ended: Ended) -> Verdict:
    """The verdict on an attempt that was called off while its work was being looked at."""
    outcome = Outcome(ended.stopped or held.called_off or Stop.SHUTDOWN)
    return Verdict(outcome, "it was called off, and looking at its work took too long")


def _facts(claim: Claim, ending: Ending | None) -> dict[str, object]:
    """What the log says of an attempt's end."""
    facts: dict[str, object] = {"kind": claim.kind.value, "claim_no": claim.claim_no}
    if ending is not None:
        facts |= {"outcome": ending.outcome.value, "reason": ending.reason, "exit_code": ending.exit_code}
        facts |= {"usage": ending.usage}
    return facts


def _assignment(claim: Claim, issue: IssueRef, recalled: Recall) -> Assignment:
    return Assignment(
        job_id=claim.job_id,
        attempt_uid=claim.attempt_uid,
        attempt=claim.attempts,
        max_attempts=claim.max_attempts,
        kind=claim.kind,
        lane=claim.lane,
        issue=issue,
        issue_url=claim.issue_url,
        title=claim.title,
        body=claim.body,
        base_branch=claim.default_branch,
        request=recalled.request,
        messages=tuple(Message(said.login, said.at, said.text) for said in recalled.answers),
        previous=recalled.previous,
        usd_left=claim.usd_left,
    )
