"""Kinds, states, reasons and the transitions between states: drawn here once; a test keeps the schema alike.

enqueue ──► pending ──────► claimed ──────► publishing ──► delivered
              ▲  │           │ │ │ │            │ └──► failed: unpublishable
         due, │  ▼           │ │ │ └─ no_change ┼────► delivered
        woken waiting ◄──────┘ │ └──► failed: exhausted, rejected
              (backoff, parked)│                └────► pending: work_not_pushed
              pending ◄────────┘ lease expired, given back
         claimed ──► publishing   also by expiry after a recorded result
         pending, waiting, claimed, publishing before its first create ──► cancelled
         publishing after it, by force of an operator ──► failed: unpublishable
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a job is asked to do; set by a mode label. Order here is not precedence: see labels.PRECEDENCE."""

    DISCOVER = "discover"
    PLAN = "plan"
    IMPLEMENT = "implement"


class State(StrEnum):
    """Where a job is. The last three are terminal and refuse every transition."""

    PENDING = "pending"
    WAITING = "waiting"
    CLAIMED = "claimed"
    PUBLISHING = "publishing"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when the job has ended; running again makes a new job."""
        return self in TERMINAL


TERMINAL = frozenset({State.DELIVERED, State.FAILED, State.CANCELLED})


class Parked(StrEnum):
    """Why a job waits for a person."""

    NEEDS_INPUT = "needs_input"
    NEEDS_APPROVAL = "needs_approval"
    SUSPECT = "suspect"
    NO_PROGRESS = "no_progress"
    BUDGET_EXHAUSTED = "budget_exhausted"
    ASKED_TOO_OFTEN = "asked_too_often"


class Wait(StrEnum):
    """Why a job waits for something else than a person, in the order in which the first one is shown (after Parked)."""

    UNTRACKED = "untracked"
    CANNOT_TELL = "cannot_tell"
    ON_HOLD = "on_hold"
    WAITS_FOR = "waits_for"
    REPOSITORY_FULL = "repository_full"
    DAY_LIMIT = "day_limit"
    BLOCKED = "blocked"
    BACKOFF = "backoff"


class Failure(StrEnum):
    """Why a job failed."""

    EXHAUSTED = "exhausted"
    REJECTED = "rejected"
    UNPUBLISHABLE = "unpublishable"


class Cancelled(StrEnum):
    """Why a job was cancelled."""

    CLOSED = "closed"
    UNLABELLED = "unlabelled"
    GONE = "gone"
    KIND_CHANGED = "kind_changed"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Transition:
    """One arrow: `None` as source is creation."""

    name: str
    source: State | None
    target: State


TRANSITIONS: tuple[Transition, ...] = (
    Transition("enqueue", None, State.PENDING),
    Transition("enqueue", None, State.WAITING),
    Transition("wait", State.PENDING, State.WAITING),
    Transition("wake", State.WAITING, State.PENDING),
    Transition("exhaust", State.WAITING, State.FAILED),
    Transition("claim", State.PENDING, State.CLAIMED),
    Transition("settle", State.CLAIMED, State.PUBLISHING),
    Transition("settle", State.CLAIMED, State.DELIVERED),
    Transition("settle", State.CLAIMED, State.WAITING),
    Transition("settle", State.CLAIMED, State.PENDING),
    Transition("settle", State.CLAIMED, State.FAILED),
    Transition("settle", State.CLAIMED, State.CANCELLED),
    Transition("expire", State.CLAIMED, State.PENDING),
    Transition("expire", State.CLAIMED, State.WAITING),
    Transition("expire", State.CLAIMED, State.PUBLISHING),
    Transition("expire", State.CLAIMED, State.FAILED),
    Transition("expire", State.CLAIMED, State.CANCELLED),
    Transition("publish", State.PUBLISHING, State.DELIVERED),
    Transition("publish", State.PUBLISHING, State.FAILED),
    Transition("return", State.PUBLISHING, State.PENDING),
    Transition("return", State.PUBLISHING, State.WAITING),
    Transition("cancel", State.PENDING, State.CANCELLED),
    Transition("cancel", State.WAITING, State.CANCELLED),
    Transition("cancel", State.PUBLISHING, State.CANCELLED),
    Transition("cancel", State.PUBLISHING, State.FAILED),
)


class Status(StrEnum):
    """The suffix of the status label that mirrors a job."""

    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    PUBLISHING = "publishing"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


def status_of(state: State, parked: bool) -> Status:
    """The only map from a row's state to its status label."""
    match state:
        case State.PENDING:
            return Status.QUEUED
        case State.WAITING:
            return Status.PARKED if parked else Status.QUEUED
        case State.CLAIMED:
            return Status.RUNNING
        case State.PUBLISHING:
            return Status.PUBLISHING
        case State.DELIVERED:
            return Status.DELIVERED
        case State.FAILED:
            return Status.FAILED
        case State.CANCELLED:
            return Status.CANCELLED
