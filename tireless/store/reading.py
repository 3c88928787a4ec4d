"""What is taken in, and by which rules it is judged: values, no statement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tireless.domain.issue import Snapshot, TimelineEntry
from tireless.domain.labels import LabelScheme
from tireless.domain.people import Policy
from tireless.domain.routing import Lane
from tireless.store.dependencies import Blocker


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says of labels, people and lanes."""

    scheme: LabelScheme
    policy: Policy
    lanes: tuple[Lane, ...]
    installation: str | None = None
    """Whose markers in the bot's comments are ours; None: all of them."""
    per_hour: int | None = None
    """How many requests of one issue may be worked on within an hour; None or 0: any number."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the forge said of one issue. `timeline` was read after `snapshot`, or not at all."""

    snapshot: Snapshot
    asked_at: datetime
    """The database's clock before the request for the snapshot was sent."""
    timeline: tuple[TimelineEntry, ...] | None = None
    dependencies: tuple[Blocker, ...] | None = None
    """What blocks it, read after the timeline, or not at all."""
    offset: timedelta = timedelta()
    """The forge's clock minus the database's, as far as the last Date showed."""
    settled: bool = False
    """Sent well after the issue's stamp: another change would have moved it."""
