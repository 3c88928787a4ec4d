"""What rounds of measurement come to: medians, spreads, and the ratios that the design promises; touches nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

BARE = "bare"
OURS = "tireless"
PROCRASTINATE = "procrastinate"
PGQUEUER = "pgqueuer"

GROUPS = (
    "16 workers, a job each",
    "4 workers, a job each",
    "1 worker, a job each",
    "batches",
    "enqueue",
    "latency",
    "upkeep",
)
"""What is compared is measured one right after the other, since a shared machine changes from minute to minute."""


Take: TypeAlias = "Callable[[], Coroutine[None, None, list[float]]]"
"""One round of a measure."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing to measure. `take` makes one round of it: a single rate, or many times in ms.

    `subject` and `key` name it for ratios, `label` for people; `unit` is "ms" where less is better. `loop` makes the
    event loop where it is not asyncio's own.
    """

    subject: str
    key: str
    group: str
    label: str
    unit: str
    take: Take = field(repr=False)
    loop: Callable[[], asyncio.AbstractEventLoop] | None = field(default=None, repr=False)

    def round(self) -> list[float]:
        """One round, in an event loop of its own."""
        with asyncio.Runner(loop_factory=self.loop) as runner:
            return runner.run(self.take())


@dataclass(slots=True)
class Figure:
    """What the rounds of one measure gave, at one size of history; `rounds` are the medians of the rounds."""

    subject: str
    key: str
    group: str
    label: str
    unit: str
    history: int
    samples: list[float] = field(default_factory=list, repr=False)
    rounds: list[float] = field(default_factory=list)

    def add(self, samples: Sequence[float]) -> None:
        """One round's samples."""
        self.samples += samples
        self.rounds.append(median(samples))

    @property
    def median(self) -> float:
        """The middle one of all samples."""
        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest round."""
        return min(self.rounds), max(self.rounds)

    @property
    def slowest(self) -> float:
        """The 99th of a hundred samples, by rank."""
        return sorted(self.samples)[int(0.99 * (len(self.samples) - 1))]

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        low, high = self.spread
        return {
            "subject": self.subject,
            "what": self.key,
            "group": self.group,
            "label": self.label,
            "unit": self.unit,
            "history": self.history,
            "median": round(self.median, 3),
            "low": round(low, 3),
            "high": round(high, 3),
            "p99": round(self.slowest, 3) if self.unit == "ms" else None,
            "rounds": [round(value, 3) for value in self.rounds],
        }


class Figures:
    """All figures of a run, in the order in which they were first measured."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], Figure] = {}

    def add(self, measure: Measure, history: int, samples: Sequence[float]) -> None:
        """One round of a measure."""
        where = (measure.subject, measure.key, history)
        if where not in self._found:
            self._found[where] = Figure(
                measure.subject, measure.key, measure.group, measure.label, measure.unit, history
            )
        self._found[where].add(samples)

    def get(self, subject: str, key: str, history: int = 0) -> Figure | None:
        """One figure, if it was measured."""
        return self._found.get((subject, key, history))

    def all(self) -> list[Figure]:
        """Every figure."""
        return list(self._found.values())

    def histories(self) -> list[int]:
        """The sizes of history that were measured."""
        return sorted({figure.history for figure in self._found.values()})


@dataclass(frozen=True, slots=True)
class Promise:
    """A ratio of two figures and its bound: at least `bound` for rates, at most for times; None: only told.

    Without `under` it is the figure itself that is promised.
    """

    name: str
    over: tuple[str, str]
    under: tuple[str, str] | None
    bound: float | None
    at_most: bool = False

    @property
    def figures(self) -> list[tuple[str, str]]:
        """The figures it needs."""
        return [self.over, *([self.under] if self.under else [])]


PROMISES = (
    Promise("open lane / bare limit", (OURS, "open run"), (BARE, "pair 16"), 0.35),
    Promise("open lane / procrastinate", (OURS, "open run"), (PROCRASTINATE, "drain best"), 2.0),
    Promise("open lane / procrastinate in autocommit", (OURS, "open run"), (PROCRASTINATE, "drain tuned"), None),
    Promise("open lane, 16 workers / bare limit", (OURS, "open 16"), (BARE, "pair 16"), None),
    Promise("open lane, 16 workers / procrastinate", (OURS, "open 16"), (PROCRASTINATE, "drain best"), None),
    Promise("limited lane / bare limit", (OURS, "limited run"), (BARE, "pair 16"), 0.20),
    Promise("limited lane / procrastinate", (OURS, "limited run"), (PROCRASTINATE, "drain best"), 1.25),
    Promise("limited lane / procrastinate in autocommit", (OURS, "limited run"), (PROCRASTINATE, "drain tuned"), None),
    Promise("claims of 10 / pgqueuer's", (OURS, "claim 10"), (PGQUEUER, "claim 10"), 1.0),
    Promise("commit to claimed / procrastinate's", (OURS, "latency"), (PROCRASTINATE, "latency"), 1.0, at_most=True),
    Promise("commit to claimed / pgqueuer's", (OURS, "latency"), (PGQUEUER, "latency"), 1.0, at_most=True),
    Promise("slower beside a held snapshot, ms", (OURS, "held"), None, 5.0, at_most=True),
)
"""What issue and design ask for; each is judged with an empty table and with history."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A promise against the figures: the median over the rounds, and the lowest and highest round."""

    promise: Promise
    history: int
    value: float
    low: float
    high: float

    @property
    def met(self) -> bool | None:
        """Within its bound; None without one."""
        if self.promise.bound is None:
            return None
        return self.value <= self.promise.bound if self.promise.at_most else self.value >= self.promise.bound

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        bound = "at_most" if self.promise.at_most else "at_least"
        return {
            "value": round(self.value, 3),
            "low": round(self.low, 3),
            "high": round(self.high, 3),
            bound: self.promise.bound,
            "met": self.met,
            "history": self.history,
        }


def ratios(figures: Figures, promises: Iterable[Promise] = PROMISES) -> list[Ratio]:
    """Each promise at each size of history, as far as both of its figures are there; taken round by round."""
    found = []
    for history in figures.histories():
        for promise in promises:
            over = figures.get(*promise.over, history)
            under = figures.get(*promise.under, history) if promise.under else None
            if over is None or (promise.under and under is None):
                continue
            # Within a round the two ran side by side; across rounds the machine may have been another one.
            each = [a / b for a, b in zip(over.rounds, under.rounds, strict=True)] if under else over.rounds
            found.append(Ratio(promise, history, median(each), min(each), max(each)))
    return found
