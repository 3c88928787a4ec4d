"""One claimed job from its work tree to the runner's last word: prepare, run, collect, record, push, settle.

Every write is fenced by the claim's token; what an agent did is a value. Claims nothing, renews nothing (leases.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TypeVar

from structlog.contextvars import bound_contextvars

from tireless import log
from tireless.agent.attempt import AgentRoom, LaneCommand, Prepared
from tireless.agent.gitcli import Credential, Remote
from tireless.agent.process import boottime
from tireless.agent.protocol import Assignment
from tireless.domain import retry
from tireless.domain.issue import IssueRef
from tireless.domain.job import Kind
from tireless.domain.outcome import Ended, Note, Outcome, Stop, Verdict
from tireless.errors import StoreUnavailable, WorkspaceError
from tireless.services.leases import Held
from tireless.services.waiting import first_of
from tireless.store.claim import Claim, check_claim
from tireless.store.db import Connection, Pool
from tireless.store.record import Answer, NewChild, RecordedResult, append_output, mark_pushed, record_result
from tireless.store.settle import Ending, settle

_log = log.get(__name__)

T = TypeVar("T")

_FLUSH_S = 2.0
_CHUNK_MAX = 16_384
"""Characters of live output sent to the database at once, every _FLUSH_S; what an agent prints faster is left out."""
_AGAIN_BASE_S, _AGAIN_CAP_S = 0.5, 30.0
_GIVE_UP_S = 900.0
"""How long after its lease finished work still tries to settle with a database that is out of reach."""
_HURRY_S = 10.0
_PUSHES = 6


class Worker:
    """Works on claims for the lanes it has commands for. `credentials` open the forges' git, by configured name."""

    def __init__(
        self,
        pool: Pool,
        room: AgentRoom,
        *,
        commands: Mapping[str, LaneCommand],
        credentials: Mapping[str, Credential],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._pool = pool
        self._room = room
        self._commands = commands
        self._credentials = credentials
        self._jitter = jitter

    async def work(self, held: Held) -> None:
        """The whole of one claim. Raises StoreError when the database refused a word, or stayed away for too long."""
        claim = held.claim
        issue = IssueRef(claim.repo, claim.number)
        with bound_contextvars(job=claim.job_id, attempt=claim.attempts, issue=str(issue), lane=claim.lane):
            _log.info("job claimed", kind=claim.kind.value, claim_no=claim.claim_no)
            began = boottime()
            ending = await self._attempt(held, issue)
            answer = Answer.LOST if ending is None else await self._settle(held, ending)
            facts = {} if ending is None else {"outcome": ending.outcome.value, "reason": ending.reason}
            _log.info("attempt finished", answer=answer.value, seconds=round(boottime() - began, 1), **facts)

    async def _attempt(self, held: Held, issue: IssueRef) -> Ending | None:
        """Everything before the last word; None when the claim was lost on the way."""
        claim = held.claim
        command = replace(
            self._commands[claim.lane], run_timeout_s=claim.run_timeout_s, stall_timeout_s=claim.stall_timeout_s
        )
        try:
            remote = Remote(claim.clone_url, self._credentials.get(claim.repo.forge))
            prepared = await self._room.prepare(
                _assignment(claim, issue), command, remote, repository=f"{claim.repo.forge}.{claim.forge_repo_id}"
            )
        except WorkspaceError as error:
            return self._our_fault(claim, str(error))
        try:
            return await self._run(held, prepared, remote)
        except WorkspaceError as error:
            return self._our_fault(claim, str(error))
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self._remove(prepared)

    async def _run(self, held: Held, prepared: Prepared, remote: Remote) -> Ending | None:
        live = _Live(self._pool, held)
        shipping = asyncio.create_task(live.run())
        try:
            ended = await self._room.execute(prepared, held.control, on_output=live.add)
        finally:
            shipping.cancel()
            await asyncio.gather(shipping, return_exceptions=True)
        await live.flush()
        if ended.survivors:
            _log.error("processes survived", pids=list(ended.survivors), what="end them by hand: they hold this host")
        verdict = await self._room.collect(prepared, ended)
        if held.lost or verdict.outcome is Outcome.LEASE_LOST:
            return None
        ending = self._ending(held.claim, ended, verdict)
        if verdict.outcome is not Outcome.DONE:
            return ending
        return await self._leave(held, prepared, remote, verdict, ending)

    async def _leave(
        self, held: Held, prepared: Prepared, remote: Remote, verdict: Verdict, ending: Ending
    ) -> Ending | None:
        """Record what is to be delivered, then push it. In this order: an expired lease after it goes to publishing."""
        recorded = _recorded(prepared, verdict)
        job_id, token = held.claim.job_id, held.claim.token
        if await self._say(held, lambda conn: record_result(conn, job_id, token, recorded)) is Answer.LOST:
            return None
        if verdict.commit is None:
            return ending
        if (failed := await self._push(held, prepared, remote, verdict.commit)) is not None:
            return failed if failed.outcome is not Outcome.LEASE_LOST else None
        if await self._say(held, lambda conn: mark_pushed(conn, job_id, token)) is Answer.LOST:
            return None
        return ending

    async def _push(self, held: Held, prepared: Prepared, remote: Remote, commit: str) -> Ending | None:
        """Create the attempt's branch while the lease lives; None when it is there. A forge that is down is awaited."""
        job_id, token = held.claim.job_id, held.claim.token
        for number in range(1, _PUSHES + 1):
            # A push cannot be fenced; it goes to a ref of its own, and only under a live lease.
            if held.over or not await self._say(held, lambda conn: check_claim(conn, job_id, token)):
                return Ending(outcome=Outcome.LEASE_LOST)
            try:
                await self._room.push(prepared, remote, commit)
                return None
            except WorkspaceError as error:
                _log.warning("push failed", branch=prepared.branch, times=number, error=str(error))
                last = str(error)
            await first_of(held.news, timeout_s=retry.doubling(number, base_s=1.0, cap_s=60.0))
        kept = await self._room.spaces.save(prepared.space, commit)
        return self._our_fault(held.claim, f"the work could not be pushed and is kept in {kept}: {last}")

    def _ending(self, claim: Claim, ended: Ended, verdict: Verdict) -> Ending:
        return Ending(
            outcome=verdict.outcome,
            reason=_noted(verdict),
            summary=verdict.summary,
            question=verdict.question,
            exit_code=ended.exit_code if ended.signal is None else -ended.signal,
            usage=asdict(verdict.usage) | ({"session": verdict.session} if verdict.session else {}),
            output_head=ended.head,
            output_tail=ended.tail,
            wake_s=self._backoff_s(claim),
            asked_s=retry.wait_s(verdict.retry_after, now=datetime.now(UTC)),
            cannot_start=verdict.reason if Note.CANNOT_START in verdict.notes else None,
        )

    def _our_fault(self, claim: Claim, reason: str) -> Ending:
        return Ending(outcome=Outcome.WORKSPACE_ERROR, reason=reason, wake_s=self._backoff_s(claim))

    def _backoff_s(self, claim: Claim) -> float:
        return retry.backoff_s(
            claim.attempts, jitter=self._jitter(), base_s=claim.backoff_base_s, cap_s=claim.backoff_cap_s
        )

    async def _settle(self, held: Held, ending: Ending) -> Answer:
        claim = held.claim
        return await self._say(held, lambda conn: settle(conn, claim.job_id, claim.token, ending))

    async def _say(self, held: Held, word: Callable[[Connection], Awaitable[T]]) -> T:
        """Say something to the database, again while it is out of reach: every word may be said twice."""
        began, failures = boottime(), 0
        while True:
            try:
                async with self._pool.connection() as conn:
                    return await word(conn)
            except StoreUnavailable as error:
                failures += 1
                hurried = held.control.stopped is Stop.SHUTDOWN
                if boottime() > (began + _HURRY_S if hurried else held.control.deadline + _GIVE_UP_S):
                    raise
                wait_s = retry.doubling(failures, base_s=_AGAIN_BASE_S, cap_s=_AGAIN_CAP_S)
                _log.warning("database out of reach", error=str(error), again_in_s=wait_s)
                await first_of(timeout_s=wait_s)

    async def _remove(self, prepared: Prepared) -> None:
        try:
            await self._room.remove(prepared)
        except WorkspaceError as error:
            _log.error("run directory not removed", error=str(error))


class _Live:
    """Live output on its way to the database: bounded, in chunks, and never a reason to stop an agent."""

    def __init__(self, pool: Pool, held: Held) -> None:
        self._pool = pool
        self._held = held
        self._waiting = ""
        self._left_out = 0

    def add(self, chunk: str) -> None:
        """Take output as it comes; the oldest is left out when it comes too fast."""
        whole = self._waiting + chunk
        self._left_out += max(0, len(whole) - _CHUNK_MAX)
        self._waiting = whole[-_CHUNK_MAX:]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await first_of(timeout_s=_FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Send what there is; what cannot be sent is lost, head and tail come with the attempt's end."""
        if not self._waiting or self._held.lost:
            return
        said = f"[{self._left_out} characters left out]\n" if self._left_out else ""
        text, self._waiting, self._left_out = said + self._waiting, "", 0
        claim = self._held.claim
        try:
            async with self._pool.connection() as conn:
                await append_output(conn, claim.attempt_id, claim.token, text)
        except StoreUnavailable as error:
            _log.warning("output not stored", characters=len(text), error=str(error))


def _assignment(claim: Claim, issue: IssueRef) -> Assignment:
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
        request=f"{claim.forge_repo_id}#{claim.number}.{claim.request_id}",
    )


def _recorded(prepared: Prepared, verdict: Verdict) -> RecordedResult:
    """What the publisher needs; `result` is the agent's own word as far as it counts."""
    result: dict[str, object] = {
        "outcome": verdict.outcome.value,
        "summary": verdict.summary,
        "reason": verdict.reason,
        "session": verdict.session,
    }
    proposal = prepared.assignment.kind is Kind.DISCOVER
    return RecordedResult(
        result=result,
        summary=verdict.summary,
        base_sha=prepared.space.base_sha,
        commit_sha=verdict.commit,
        branch=prepared.branch if verdict.commit else None,
        pr_title=verdict.pr.title if verdict.pr else None,
        pr_body=verdict.pr.body if verdict.pr else None,
        pr_draft=verdict.pr.draft if verdict.pr else False,
        children=[
            NewChild(
                key=child.key,
                title=child.title,
                body=child.body,
                kind=child.kind,
                lane=child.lane,
                depends_on=child.depends_on,
                proposal=proposal,
            )
            for child in verdict.children
        ],
    )


def _noted(verdict: Verdict) -> str:
    """The reason and what else is worth telling."""
    return verdict.reason + "".join(f" [{note}]" for note in verdict.notes)
