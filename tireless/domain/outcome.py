"""How an attempt ended: one ordered decision over what the runner did, the exit, the result and the evidence.

Pure: `decide` is handed everything it judges by. What a job becomes is the store's to say (settle.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from tireless.domain.job import Kind
from tireless.domain.result import Child, Malformed, PullText, Result, Usage, Word


class Outcome(StrEnum):
    """How an attempt ended; the values of CHECK attempt_outcome_known."""

    DONE = "done"
    NO_CHANGE = "no_change"
    NEEDS_INPUT = "needs_input"
    BLOCKED = "blocked"
    QUOTA = "quota"
    RETRY = "retry"
    FAILED = "failed"
    AGENT_ERROR = "agent_error"
    NO_EVIDENCE = "no_evidence"
    PROTOCOL_ERROR = "protocol_error"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    OVER_BUDGET = "over_budget"
    """It was stopped when what its job may cost was used up."""
    WORKSPACE_ERROR = "workspace_error"
    """Our own side failed before an agent ran: no clone, no disk, a command that cannot be started."""
    SHUTDOWN = "shutdown"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease_lost"


class Stop(StrEnum):
    """Why the runner itself ended an agent; the first one said stands."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    OVER_BUDGET = "over_budget"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"


class Note(StrEnum):
    """What else is worth telling about a verdict; shown beside the outcome, never an outcome itself."""

    PROTOCOL_CONFLICT = "protocol_conflict"
    """Result and exit code disagreed; the worse one counted."""
    CANNOT_START = "cannot_start"
    """The lane's command does not exist or may not be executed on this host: hold (lane, host), source setup."""
    GUARD_LOST = "guard_lost"
    """The guard was killed; the agent died with it."""
    WORK_UNREADABLE = "work_unreadable"
    """The agent left a work tree from which no commit could be fetched."""
    WORK_IGNORED = "work_ignored"
    """There was a diff, but the kind or the outcome delivers none."""
    CHILDREN_IGNORED = "children_ignored"
    """There were children, but only plan and discover may have some."""
    SURVIVORS = "survivors"
    """Processes of the run could not be killed: an operator must look at this host."""


SEVERITY = (Word.FAILED, Word.QUOTA, Outcome.AGENT_ERROR, Word.RETRY, Word.BLOCKED, Word.NEEDS_INPUT, Word.NO_CHANGE)
"""Of a result and an exit code that disagree the one earlier here counts; `done` comes last.

`agent_error` (any other exit code, a signal) stands beside `retry`, which it resembles in every consequence.
"""

EXIT_CODES = {
    0: Word.DONE,
    40: Word.NO_CHANGE,
    41: Word.NEEDS_INPUT,
    42: Word.BLOCKED,
    43: Word.QUOTA,
    44: Word.FAILED,
    75: Word.RETRY,
}
"""For plain scripts; every other code, and a signal, is an agent error."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. Exactly one of exit_code, signal, not_started, guard_lost tells how; `stopped` tells who."""

    stopped: Stop | None = None
    exit_code: int | None = None
    signal: int | None = None
    not_started: str | None = None
    """Why our own exec failed; the agent never ran."""
    guard_lost: bool = False
    seconds: float = 0.0
    survivors: tuple[int, ...] = ()
    """Pids that could not be killed; the slot is not free while there are some."""
    head: str = ""
    tail: str = ""
    """The output that did not fit the head; together at most twice the bound, redacted."""
    output_bytes: int = 0
    """Everything the agent printed, also what was not kept."""
    usage: Usage = field(default_factory=Usage)
    """What it said on its way that it had used by then."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the runner saw with its own eyes in the work tree."""

    commit: str | None = None
    """What would be delivered; None when nothing differs from base."""
    commits: int = 0
    """The agent's own commits beyond base, also when together they change nothing."""
    unreadable: str | None = None
    """Why the tree could not be read; then nothing else is known."""
    tree: str | None = None
    """The git tree that was left behind, base's where nothing was changed: the same work has the same at any time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attempt came to: everything settle, record_result and the comment need, from one place."""

    outcome: Outcome
    reason: str
    """A sentence for people; may quote the agent."""
    notes: tuple[Note, ...] = ()
    summary: str = ""
    question: str | None = None
    retry_after: float | datetime | None = None
    commit: str | None = None
    """Set for a `done` implement only."""
    pr: PullText | None = None
    children: tuple[Child, ...] = ()
    usage: Usage = field(default_factory=Usage)
    session: str | None = None
    tree: str | None = None
    """What was left behind, as in Evidence."""

    @property
    def burns(self) -> bool:
        """Does the attempt count?"""
        return burns(self.outcome)


def burns(outcome: Outcome) -> bool:
    """Does an attempt that ended so count against max_attempts? The claim counted it; False gives it back.

    A lost lease is not ours to give back: the sweep that took the job has already spoken.
    """
    match outcome:
        case Outcome.BLOCKED | Outcome.QUOTA | Outcome.SHUTDOWN | Outcome.WORKSPACE_ERROR:
            return False
        case (
            Outcome.DONE
            | Outcome.NO_CHANGE
            | Outcome.NEEDS_INPUT
            | Outcome.RETRY
            | Outcome.FAILED
            | Outcome.AGENT_ERROR
            | Outcome.NO_EVIDENCE
            | Outcome.PROTOCOL_ERROR
            | Outcome.TIMEOUT
            | Outcome.STALLED
            | Outcome.OVER_BUDGET
            | Outcome.CANCELLED
            | Outcome.LEASE_LOST
        ):
            return True
        case _:
            assert_never(outcome)


def repeats(outcome: Outcome, *, named_a_time: bool) -> bool:
    """May an attempt that ended so be followed by one just like it? The same so often in a row is no progress.

    Not where it tells nothing of the agent's work, where a person is asked anyway, or where the agent named a time.
    """
    match outcome:
        case Outcome.BLOCKED:
            return not named_a_time
        case (
            Outcome.RETRY
            | Outcome.AGENT_ERROR
            | Outcome.NO_EVIDENCE
            | Outcome.PROTOCOL_ERROR
            | Outcome.TIMEOUT
            | Outcome.STALLED
        ):
            return True
        case (
            Outcome.DONE
            | Outcome.NO_CHANGE
            | Outcome.NEEDS_INPUT
            | Outcome.QUOTA
            | Outcome.FAILED
            | Outcome.OVER_BUDGET
            | Outcome.WORKSPACE_ERROR
            | Outcome.SHUTDOWN
            | Outcome.CANCELLED
            | Outcome.LEASE_LOST
        ):
            return False
        case _:
            assert_never(outcome)


def decide(ended: Ended, result: Result | Malformed | None, evidence: Evidence, kind: Kind) -> Verdict:
    """The decision table, in order: the runner's own act, our exec, the guard, the result's form, the worse word."""
    notes = (Note.SURVIVORS,) if ended.survivors else ()
    said, session = (result.usage, result.session) if isinstance(result, Result) else (Usage(), None)
    usage = ended.usage.then(said)

    def verdict(outcome: Outcome, reason: str, *more: Note) -> Verdict:
        return Verdict(outcome, reason, notes=(*notes, *more), usage=usage, session=session)

    if ended.stopped is not None:
        return verdict(Outcome(ended.stopped), _stop_sentence(ended.stopped, ended.seconds))
    if ended.not_started is not None:
        reason = f"the lane's command could not be started: {ended.not_started}; correct it or install it on this host"
        return verdict(Outcome.WORKSPACE_ERROR, reason, Note.CANNOT_START)
    if ended.guard_lost:
        return verdict(Outcome.AGENT_ERROR, "the guard of the run was killed, and the agent with it", Note.GUARD_LOST)
    if isinstance(result, Malformed):
        return verdict(Outcome.PROTOCOL_ERROR, result.error)
    return _weigh(ended, result, evidence, kind, notes)


def _weigh(ended: Ended, result: Result | None, evidence: Evidence, kind: Kind, notes: tuple[Note, ...]) -> Verdict:
    """The agent ended by itself and said nothing malformed: take the worse of its two words, then ask for evidence."""
    code_word = _exit_word(ended)
    word, reason = code_word, _exit_sentence(ended)
    if result is not None:
        # Exit 0 only says "I ended properly": beside a result it contradicts nothing.
        if code_word != Word.DONE and code_word != result.outcome:
            notes = (*notes, Note.PROTOCOL_CONFLICT)
            conflict = f'the result says "{result.outcome}", but {reason}; the worse of the two counts'
            word = min(code_word, result.outcome, key=_severity)
            reason = f"{conflict}: {_first(result)}" if _first(result) else conflict
        else:
            word, reason = result.outcome, _first(result) or f'the agent says "{result.outcome}"'
    outcome = Outcome(word)
    if outcome is Outcome.DONE:
        outcome, reason, notes = _check(result, evidence, kind, reason, notes)
    elif evidence.commit is not None:
        notes = (*notes, Note.WORK_IGNORED)
    delivers = outcome is Outcome.DONE
    if kind is Kind.IMPLEMENT and result is not None and result.children:
        notes = (*notes, Note.CHILDREN_IGNORED)
    return Verdict(
        outcome=outcome,
        reason=reason,
        notes=notes,
        summary=result.summary if result else "",
        question=_question(outcome, result),
        retry_after=result.retry_after if result else None,
        commit=evidence.commit if delivers and kind is Kind.IMPLEMENT else None,
        pr=result.pr if result and delivers and kind is Kind.IMPLEMENT else None,
        children=result.children if result and delivers and kind is not Kind.IMPLEMENT else (),
        usage=ended.usage.then(result.usage if result else Usage()),
        session=result.session if result else None,
    )


def _check(
    result: Result | None, evidence: Evidence, kind: Kind, reason: str, notes: tuple[Note, ...]
) -> tuple[Outcome, str, tuple[Note, ...]]:
    """Success without evidence is refused. A valid result without a diff is an honest "nothing to do"."""
    match kind:
        case Kind.IMPLEMENT:
            if evidence.unreadable is not None:
                text = f"the work tree could not be read: {evidence.unreadable}"
                return Outcome.AGENT_ERROR, text, (*notes, Note.WORK_UNREADABLE)
            if evidence.commit is not None:
                return Outcome.DONE, reason, notes
            if result is not None:
                return Outcome.NO_CHANGE, _no_diff(result, evidence), notes
            return Outcome.NO_EVIDENCE, f"{reason}, but left no result and no change", notes
        case Kind.PLAN:
            proven = result is not None and bool(result.children)
            missing = "no children"
        case Kind.DISCOVER:
            proven = result is not None and bool(result.children or result.summary.strip())
            missing = "neither proposals nor a report"
        case _:
            assert_never(kind)
    if evidence.commit is not None:
        notes = (*notes, Note.WORK_IGNORED)
    if proven:
        return Outcome.DONE, reason, notes
    return Outcome.NO_EVIDENCE, f'the agent says "done", but its result has {missing}', notes


def _no_diff(result: Result, evidence: Evidence) -> str:
    said = _first(result)
    seen = f"{evidence.commits} commits change nothing together" if evidence.commits else "nothing was changed"
    return f"{seen}; the agent says: {said}" if said else seen


def _exit_word(ended: Ended) -> Word | Outcome:
    if ended.exit_code is None:
        return Outcome.AGENT_ERROR
    return EXIT_CODES.get(ended.exit_code, Outcome.AGENT_ERROR)


def _severity(word: Word | Outcome) -> int:
    return SEVERITY.index(word) if word in SEVERITY else len(SEVERITY)


def _first(result: Result) -> str:
    """The agent's own explanation, the most telling one."""
    return result.question or result.reason or result.summary


def _question(outcome: Outcome, result: Result | None) -> str | None:
    """What a person is asked; an exit code alone asks too, if not very well."""
    if outcome is not Outcome.NEEDS_INPUT:
        return None
    said = (result.question or result.reason or result.summary) if result else ""
    return said or "The agent asked for input without saying for which; its output may tell."


def _exit_sentence(ended: Ended) -> str:
    if ended.exit_code is None:
        return f"the agent was ended by signal {ended.signal}"
    word = EXIT_CODES.get(ended.exit_code)
    return f"the agent exited with {ended.exit_code}" + (f" ({word})" if word else "")


def _stop_sentence(stop: Stop, seconds: float) -> str:
    match stop:
        case Stop.CANCELLED:
            return "the job was cancelled while the agent ran"
        case Stop.TIMEOUT:
            return f"the agent ran into its time limit after {seconds:.0f} s"
        case Stop.STALLED:
            return f"the agent gave no sign of life for too long and was stopped after {seconds:.0f} s"
        case Stop.OVER_BUDGET:
            return f"the agent had used up what its job may cost, and was stopped after {seconds:.0f} s"
        case Stop.LEASE_LOST:
            return "the lease was lost while the agent ran; what it did is not used"
        case Stop.SHUTDOWN:
            return "the runner was stopped while the agent ran"
        case _:
            assert_never(stop)
