"""What triage looks at and what it can decide: values only; the rules are in triage.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from tireless.domain.issue import TimelineEntry
from tireless.domain.job import Cancelled, Kind, State
from tireless.domain.labels import LabelView
from tireless.domain.routing import Route


@dataclass(frozen=True, slots=True)
class LiveJob:
    """The issue's job that has not ended."""

    id: int
    state: State
    kind: Kind
    lane: str
    priority: int = 0
    hold: bool = False
    parked: str | None = None
    cancel_requested: str | None = None
    steered: frozenset[str] = frozenset()
    """`lane`, `priority`: an operator's choice, which stands until the matching label changes."""
    creating: bool = False
    """The publisher has sent its first create: too late to stop."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """The issue's newest job that has ended; `finished_at` is told by the forge's clock."""

    state: State
    reason: str | None
    kind: Kind
    finished_at: datetime
    request_id: int
    kinds_taken: frozenset[Kind] = frozenset()
    """Kinds for which its request has had a job; a job is unique on request and kind."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the rows say of the issue before this reading."""

    live: LiveJob | None = None
    last: EndedJob | None = None
    kinds_taken: frozenset[Kind] = frozenset()
    """Kinds for which the live job's request has had other jobs."""
    is_child: bool = False
    is_proposal: bool = False
    planned_lane: str | None = None
    child_request: int | None = None
    """A request written for a plan's child, which no job answers yet."""
    view: LabelView = field(default_factory=LabelView)
    """What the labels said at the last reading, whoever put them on."""


# ------------------------------------------------------------------------------------------------ decisions


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Make a job: for a new request (`entry`) or for one there is (`request_id`)."""

    route: Route
    entry: TimelineEntry | None = None
    request_id: int | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """The pending or waiting job takes a newer request over: attempts at 0, unparked."""

    route: Route
    entry: TimelineEntry


@dataclass(frozen=True, slots=True)
class Absorb:
    """A newer request that is answered by what runs, or ended just then."""

    entry: TimelineEntry


@dataclass(frozen=True, slots=True)
class Refresh:
    """Change the job in place."""

    route: Route


@dataclass(frozen=True, slots=True)
class Park:
    """The text is not the approved one: nothing is started before a person approves it."""

    route: Route


@dataclass(frozen=True, slots=True)
class Unpark:
    """A person did what was wanted; `by` None: the text is the approved one again."""

    route: Route
    by: str | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the job: it is not being worked on."""

    reason: Cancelled


@dataclass(frozen=True, slots=True)
class RequestStop:
    """Ask the runner to stop; the job ends when it has."""

    reason: Cancelled


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing to do to any job."""


Decision: TypeAlias = Enqueue | Renew | Absorb | Refresh | Park | Unpark | Cancel | RequestStop | Ignore


@dataclass(frozen=True, slots=True)
class Triage:
    """A decision, and what is said of the issue: `code` tells why there is no job, or what a person should know."""

    decision: Decision
    code: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    asked: bool | None = False
    """A proper request is on it; None: as it was."""
    answers: bool = False
    """Every asking entry seen is answered by this: the marks move."""
    again_s: float | None = None
    """Judge again after so many seconds: something cannot be done yet."""
