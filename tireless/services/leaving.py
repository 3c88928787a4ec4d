"""What a `done` attempt leaves to be delivered: recorded under its claim, then pushed to the one ref it may create.

In this order: a lease that ends after the record sends the job to the publisher, which looks for the recorded commit.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from tireless import log
from tireless.agent.attempt import AgentRoom, Prepared
from tireless.agent.control import boottime
from tireless.agent.gitcli import GitError, Remote
from tireless.domain.job import Kind
from tireless.domain.outcome import Outcome, Stop, Verdict
from tireless.domain.retry import doubling
from tireless.errors import StoreError, StoreUnavailable, WorkspaceError
from tireless.services.leases import Held
from tireless.services.speaking import Limits, Speaker
from tireless.services.waiting import first_of, unless
from tireless.store.claim import renew_claim
from tireless.store.db import Connection
from tireless.store.history import clone_url
from tireless.store.record import Answer, NewChild, RecordedResult, mark_pushed, record_result
from tireless.store.settle import Ending

_log = log.get(__name__)

_REFUSED = re.compile(r"returned error: 40[134]\b|Authentication failed|repository '.*' not found")
"""Git's words for a forge that answered and will not have it; a ref that was rejected is exit code 1."""


class Leaver:
    """Records and pushes; each method answers with the ending to settle, or None when the claim was lost."""

    def __init__(self, speaker: Speaker, room: AgentRoom, limits: Limits) -> None:
        self._speaker = speaker
        self._room = room
        self._limits = limits

    async def leave(
        self, held: Held, prepared: Prepared, remote: Remote, *, verdict: Verdict, ending: Ending
    ) -> Ending | None:
        """Everything between a `done` and its settle; `ending` itself when the work can be delivered."""
        if held.called_off is Stop.CANCELLED:
            return _cancelled(ending)
        job_id, token = held.claim.job_id, held.claim.token
        recorded = _recorded(prepared, verdict)
        try:
            answer = await self._speaker.say(held, lambda conn: record_result(conn, job_id, token, recorded))
        except StoreUnavailable:
            raise
        except StoreError as error:
            return replace(ending, outcome=Outcome.PROTOCOL_ERROR, reason=f"its result could not be stored: {error}")
        if answer is Answer.LOST:
            return None
        if verdict.commit is None:
            return ending
        failed = await self._push(held, prepared, remote, verdict.commit)
        if failed is None:
            await self._speaker.say(held, lambda conn: mark_pushed(conn, job_id, token))
            return ending  # lost meanwhile? The settle is told so.
        kept = await self._keep(prepared, verdict.commit)
        _log.warning("work not pushed", reason=failed, kept=kept)
        match held.called_off:
            case Stop.LEASE_LOST:
                return None
            case Stop.CANCELLED:
                return _cancelled(ending)
            case Stop.SHUTDOWN:
                # The branch may have arrived all the same: the publisher looks, and gives job and attempt back if not.
                return ending
            case _:
                # It burns: a forge that never takes this branch must not be answered by one paid run after another.
                # Archived, or no more to be written to? Then no other job of the repository is to find out by a run.
                reason = f"the work could not be pushed; {kept}: {failed}"
                return replace(ending, outcome=Outcome.RETRY, reason=reason, doubtful=True)

    async def _push(self, held: Held, prepared: Prepared, remote: Remote, commit: str) -> str | None:
        """Create the attempt's branch while the lease lives; None once it is there, else why it is not."""
        limits, refusals = self._limits, 0
        until = boottime() + limits.push_limit_s
        for number in itertools.count(1):
            if not await self._speaker.say(held, lambda conn: _may_push(conn, held)):
                return "the claim was called off before the push"
            try:
                if number > 1:
                    # Renamed meanwhile? Git obeys no redirect, since the credential would go with it.
                    url = await self._speaker.say(held, lambda conn: clone_url(conn, held.claim.job_id))
                    remote = replace(remote, url=url)
                push = self._room.push(prepared, remote, commit)
                if await unless(held.news, push, patience_s=limits.hurry_s) is not None:
                    return None
                return "the push was cut"
            except WorkspaceError as error:
                why = str(error)
                refusals += _refused(error)
            _log.warning("push failed", times=number, error=why)
            if held.called_off or refusals >= limits.push_refusals or boottime() >= until:
                return why
            await first_of(held.news, timeout_s=doubling(number, base_s=limits.push_base_s, cap_s=limits.push_cap_s))
        raise AssertionError("the loop above returns")

    async def _keep(self, prepared: Prepared, commit: str) -> str:
        """Save the work on this host; a sentence that says where, without a path of the host."""
        try:
            path = await self._room.spaces.save(prepared.space, commit)
        except WorkspaceError as error:
            return f"it could not be saved either ({error})"
        return f"it is kept on the runner's host in {path.name}"


async def _may_push(conn: Connection, held: Held) -> bool:
    """A push cannot be fenced: it goes to a ref of its own, under a lease just renewed, unless it was cancelled."""
    sent = boottime()
    answers = await renew_claim(conn, [(held.claim.job_id, held.claim.token)])
    held.renewed(answers.get(held.claim.token), sent=sent)
    return held.called_off in (None, Stop.SHUTDOWN)


def _refused(error: WorkspaceError) -> bool:
    """Did the forge answer, and say no? Otherwise it was out of reach."""
    return isinstance(error, GitError) and (error.code == 1 or _REFUSED.search(error.said) is not None)


def _cancelled(ending: Ending) -> Ending:
    return replace(ending, outcome=Outcome.CANCELLED, reason="the job was cancelled before its work was delivered")


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
