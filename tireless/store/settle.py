"""The runner's last word on an attempt, and what it makes of the job; fenced by the claim token, once.

The token dies with the sweep, not with the clock: finished work still settles after an outage. Ends that are due at
once go together: one statement, one transaction, one commit on the disk.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import assert_never
from uuid import UUID

from tireless.domain import retry
from tireless.domain.job import Failure, Parked, State
from tireless.domain.outcome import Outcome, burns, repeats
from tireless.store.db import Connection, clean_json, clean_text, translate
from tireless.store.look import Ring, ring_for
from tireless.store.record import Answer as Answer  # what settle answers, for its callers


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What holds and give-backs go by; seconds and counts. The defaults are the design's."""

    quota_base_s: float = retry.QUOTA_BASE_S
    max_hold_s: float = retry.MAX_HOLD_S
    blocked_base_s: float = retry.BLOCKED_BASE_S
    blocked_cap_s: float = retry.BLOCKED_CAP_S
    breaker_failures: int = 5
    breaker_issues: int = 3
    breaker_base_s: float = retry.BREAKER_BASE_S
    breaker_cap_s: float = retry.BREAKER_CAP_S
    setup_hold_s: float = 900.0
    give_backs: int = 6
    """The give-back in a row, by quota or blocked, that parks a job as suspect."""
    permanent_base_s: float = retry.PERMANENT_BASE_S
    permanent_cap_s: float = retry.PERMANENT_CAP_S
    permanent_give_backs: int = 4
    """The same for one whose repository cannot be worked on until a person changes something."""
    same_head: int = 3
    """So many attempts in a row that end alike and leave the same behind park a job as no_progress."""


POLICY = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended, as the runner says it.

    `wake_s`: the backoff, chosen by the caller (domain.retry), for outcomes that come back by themselves.
    `asked_s`: the wait or hold that the agent named (blocked, quota); without one the policy's doubling.
    `cannot_start`: why the lane's command cannot be started on this host; holds (lane, host).
    `permanent`: a workspace_error that waiting will not mend; `reason` says what a person should do. The policy waits.
    `agent_ran` False: an end that says nothing about the lane's agent, neither to its breaker nor to its probe.
    `doubtful`: the forge refused what it should not: is the repository what it was? The poller asks it.
    `head`: the git tree that was left behind, as far as it is known.
    """

    outcome: Outcome
    reason: str = ""
    summary: str = ""
    question: str | None = None
    exit_code: int | None = None
    usage: Mapping[str, object] | None = None
    output_head: str = ""
    output_tail: str = ""
    wake_s: float | None = None
    asked_s: float | None = None
    cannot_start: str | None = None
    permanent: bool = False
    agent_ran: bool = True
    doubtful: bool = False
    head: str | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """What an outcome makes of its job: `to` a state (pending rests as its waits say); what the breaker counts."""

    to: State
    code: str | None = None
    parked: Parked | None = None
    wait_s: float | None = None
    wait_reason: str | None = None
    counts: int = 0
    """1 a failure, -1 a success, 0 says nothing about the agent."""


def fate(ending: Ending) -> Fate:
    """The table of outcomes. A job with no attempt left, and one asked to cancel, end otherwise: the database knows."""
    match ending.outcome:
        case Outcome.DONE:
            return Fate(State.PUBLISHING, counts=-1)
        case Outcome.NO_CHANGE:
            return Fate(State.DELIVERED, code=Outcome.NO_CHANGE.value, counts=-1)
        case Outcome.NEEDS_INPUT:
            return Fate(State.PENDING, parked=Parked.NEEDS_INPUT, counts=-1)
        case Outcome.BLOCKED:
            asked = None if ending.asked_s is None else min(ending.asked_s, retry.PROMISE_CAP_S)
            return Fate(State.PENDING, wait_s=asked, wait_reason="blocked")
        case Outcome.QUOTA | Outcome.SHUTDOWN:
            return Fate(State.PENDING)
        case Outcome.RETRY:
            return Fate(State.PENDING, wait_s=_backoff(ending), wait_reason="backoff", counts=1)
        case Outcome.FAILED:
            return Fate(State.FAILED, code=Failure.REJECTED.value, counts=1)
        case Outcome.AGENT_ERROR | Outcome.NO_EVIDENCE | Outcome.PROTOCOL_ERROR | Outcome.TIMEOUT | Outcome.STALLED:
            return Fate(State.PENDING, wait_s=_backoff(ending), wait_reason="backoff", counts=1)
        case Outcome.OVER_BUDGET:
            return Fate(State.PENDING, parked=Parked.BUDGET_EXHAUSTED, counts=1)
        case Outcome.WORKSPACE_ERROR:
            if ending.cannot_start is not None:
                return Fate(State.PENDING)  # this host is held, another one may have the command
            if ending.permanent:
                return Fate(State.PENDING, wait_reason="backoff")
            return Fate(State.PENDING, wait_s=_backoff(ending), wait_reason="backoff")
        case Outcome.CANCELLED:
            return Fate(State.CANCELLED, code="operator")
        case Outcome.LEASE_LOST:
            raise ValueError("a lost lease is not settled: the sweep that took the job has spoken")
        case _:
            assert_never(ending.outcome)


def _backoff(ending: Ending) -> float:
    if ending.wake_s is None:
        raise ValueError(f"settling as {ending.outcome}: want wake_s, the backoff (domain.retry.backoff_s)")
    return ending.wake_s


SETTLE = """
SELECT token, answer FROM settle_claims(ids => %(ids)s::bigint[], ends => %(ends)s::jsonb, policy => %(policy)s::jsonb,
                                        alone => %(alone)s::boolean, notify => %(notify)s::boolean)
"""


async def settle(
    conn: Connection, job_id: int, token: UUID, ending: Ending, *, policy: Policy = POLICY, ring: Ring | None = None
) -> Answer:
    """The runner's last word on its attempt: one statement, so one transaction of its own.

    Ends the attempt and moves the job with everything that hangs on it: event, child and counter, breaker and holds,
    look. DONE; ALREADY when this attempt ended thus before; LOST when the claim went to somebody else, or was swept.
    A cancel asked for meanwhile stands, whatever the outcome. StoreError (done_has_a_record) when `done` comes without
    record_result; ValueError when a backoff is missing. `ring` is told whom to wake, and must do so soon; without it
    they are notified in this transaction, which then commits alone.
    """
    if ending.outcome is Outcome.LEASE_LOST:
        return Answer.LOST
    with translate(f"settling job {job_id} as {ending.outcome}"):
        answers = await _settle(conn, [Word(job_id, token, ending)], policy, ring, alone=True)
    return answers[token]


MAX_TOGETHER = 32
"""The most ends of one statement: each may bring 128 KiB of its agent's output."""


@dataclass(frozen=True, slots=True)
class Word:
    """The last word on one attempt, as `settle` takes it."""

    job_id: int
    token: UUID
    ending: Ending


async def settle_together(
    conn: Connection, words: Sequence[Word], *, policy: Policy = POLICY, ring: Ring
) -> dict[UUID, Answer]:
    """Settle those that can go together: all of them, or none when an error is raised.

    By token; a word that has no answer is to be said alone, by `settle`: its claim is gone, or locked by somebody at
    this moment, or it moves more than its own job (a limit, a plan, a hold, a repository). `ring` is told whom to wake.
    StoreError and ValueError as `settle`'s, for any of the words; then each should be said alone.
    """
    with translate(f"settling {len(words)} jobs together"):
        once = {word.token: word for word in words if word.ending.outcome is not Outcome.LEASE_LOST}
        return await _settle(conn, list(once.values()), policy, ring, alone=False)


async def _settle(
    conn: Connection, words: Sequence[Word], policy: Policy, ring: Ring | None, *, alone: bool
) -> dict[UUID, Answer]:
    values = settle_values(words, policy=policy, alone=alone, notify=ring is None)
    answered = await (await conn.execute(SETTLE, values)).fetchall()
    if ring is not None:
        ring_for((wake for _, (_, *wakes) in answered for wake in wakes), ring)
    return {token: Answer(answer) for token, (answer, *_) in answered}


def settle_values(words: Sequence[Word], *, policy: Policy, alone: bool, notify: bool) -> dict[str, object]:
    """What SETTLE takes. ValueError as `settle`."""
    return {
        "ids": [word.job_id for word in words],
        "ends": json.dumps([_said(word) for word in words], ensure_ascii=False),
        "policy": _policy_json(policy),
        "alone": alone,
        "notify": notify,
    }


@functools.lru_cache(maxsize=16)
def _policy_json(policy: Policy) -> str:
    """As JSON, made once: a process has one policy."""
    return json.dumps(asdict(policy))


def _said(word: Word) -> dict[str, object]:
    """What settle_claims is told of one end, by name; every text is storable. ValueError as `settle`."""
    ending = word.ending
    becomes = fate(ending)
    return {
        "job_id": word.job_id,
        "token": str(word.token),
        "outcome": ending.outcome.value,
        "burns": burns(ending.outcome),
        "to": becomes.to.value,
        "code": becomes.code,
        "parked": becomes.parked.value if becomes.parked else None,
        "question": None if ending.question is None else clean_text(ending.question),
        "wait_s": becomes.wait_s,
        "wait_reason": becomes.wait_reason,
        "reason": clean_text(ending.reason),
        "summary": clean_text(ending.summary),
        "exit_code": ending.exit_code,
        "usage": None if ending.usage is None else clean_json(dict(ending.usage)),
        "output_head": _bounded(ending.output_head),
        "output_tail": _bounded(ending.output_tail, last=True),
        "asked_s": ending.asked_s,
        "cannot_start": None if ending.cannot_start is None else clean_text(ending.cannot_start),
        "counts": becomes.counts if ending.agent_ran else 0,
        "head": ending.head if repeats(ending.outcome, named_a_time=ending.asked_s is not None) else None,
        "doubtful": ending.doubtful,
        "permanent": ending.permanent and ending.outcome is Outcome.WORKSPACE_ERROR,
    }


def _bounded(text: str, *, last: bool = False) -> str:
    """At most 64 KiB of UTF-8, from the front or from the end, cut between characters."""
    data = clean_text(text).encode()
    return (data[-65_536:] if last else data[:65_536]).decode(errors="ignore")
