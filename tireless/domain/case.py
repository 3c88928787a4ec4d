"""What is judged of an issue's asking, and what is concluded: values only; the rules are in asking.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tireless.domain.issue import Snapshot, TimelineEntry
from tireless.domain.labels import LabelScheme, LabelView, Role
from tireless.domain.people import Facts, Need, Policy, Verdict

NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Marks:
    """How far asking has been answered: two maxima kept apart, since a forge restored from a backup goes back."""

    event: int = 0
    time: datetime = NEVER

    def before(self, entry: TimelineEntry) -> bool:
        """Whether the entry is newer than these marks."""
        return entry.id > self.event or entry.at > self.time

    def over(self, entries: Iterable[TimelineEntry]) -> Marks:
        """These marks, moved over the entries."""
        found = tuple(entries)
        return Marks(
            event=max([self.event, *(entry.id for entry in found)]), time=max([self.time, *(e.at for e in found)])
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """Which text an earlier reading showed, and the issue's stamp in it (forge time)."""

    content_hash: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged. `snapshot` was read before `timeline`; times are the forge's, `stored` verdicts by event id."""

    snapshot: Snapshot
    timeline: tuple[TimelineEntry, ...]
    scheme: LabelScheme
    policy: Policy
    facts: Facts = field(default_factory=Facts)
    stored: Mapping[int, Verdict] = field(default_factory=dict)
    answered: Marks = field(default_factory=Marks)
    counted: Mapping[int, Role] = field(default_factory=dict)
    """Ids of opt-in and mode labels that counted when last judged."""
    asks_after: datetime | None = None
    """Without opt-in: only adds after this moment ask."""
    approved_hash: str | None = None
    seen: Seen | None = None
    """The reading stored before this one, if there is one."""
    is_live: bool = False
    by_plan: bool = False
    """A plan asked for this child: no opt-in is wanted."""
    request_actor: int | None = None
    """Who asked for the job there is, by id."""
    question_at: datetime | None = None
    """When the live job asked a person something; None: it did not."""
    was_closed: bool = False
    """The last job ended because the issue was closed: a reopening asks again."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A label that does not count, who put it on, and why (a code of people.py)."""

    label: str
    login: str
    reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The judgement. With `needs` or `disagreement` the rest is provisional; with `cannot_tell` nothing is moved."""

    needs: frozenset[Need] = frozenset()
    disagreement: str | None = None
    """Labels and timeline tell different stories: read both again."""
    cannot_tell: str | None = None
    view: LabelView = field(default_factory=LabelView)
    """What the labels say that count."""
    hold: bool = False
    proper: bool = False
    """An opt-in (where required) and a mode that count are on the issue."""
    code: str | None = None
    """Why it is not proper; None also for an issue that asks for nothing."""
    request: TimelineEntry | None = None
    """The newest proper request, if it is newer than what was answered."""
    marks: Marks = field(default_factory=Marks)
    refused: tuple[Refusal, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """Newly made, to be stored."""
    counted: Mapping[int, Role] = field(default_factory=dict)
    ended: bool = False
    """What asked for the job was taken away."""
    approved: bool = False
    approved_by: str | None = None
    """Who approved this text; None where nobody had to, because it was approved before."""
    answers: tuple[TimelineEntry, ...] = ()
    """What people who count commented after the live job's question, oldest first."""

    @property
    def answered_by(self) -> str | None:
        """Who answered the live job's question, the first of them."""
        return self.answers[0].actor.login if self.answers else None
