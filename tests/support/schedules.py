"""Random schedules of a repository's updates and the polls of it, played without a network and without a clock.

The forge's list is a model (inclusive whole seconds, newest created first, pages cut by offset, rows that become
visible after later-stamped ones); what walks it, moves the cursor and says what is settled is the poller's own code.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tireless.domain.cursor import Cursor, after_scan, settled
from tireless.domain.walk import Step, Walk

EPOCH = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
OVERLAP = timedelta(seconds=120)
LATEST_S = 60.0
"""The longest a stamped row takes to become visible; less than the overlap."""
DATES = ("true", "ahead", "behind", "absent", "constant", "constant, long ago")
CLOCKS = (0, 0, 600, -600)
"""Seconds the forge's clock is ahead of ours."""
LIMITS = (1, 2, 3, 7, 50)


@dataclass(frozen=True, slots=True)
class Version:
    """One state of an issue: when it can be seen (our clock), its stamp (forge time), what its labels look like."""

    seen_from: float
    stamp: int
    labels: int


@dataclass(slots=True)
class Row:
    """An issue of the model."""

    number: int
    created: int
    versions: list[Version]
    gone_at: float = float("inf")

    def at(self, now: float) -> int:
        """The index of the version that can be seen now; -1: none yet."""
        found = -1
        for n, version in enumerate(self.versions):
            if version.seen_from > now:
                break
            found = n
        return found


@dataclass(frozen=True, slots=True)
class Parts:
    """What is put to the test; a mutant replaces one of them."""

    cursor: Callable[..., Cursor] = after_scan
    settled: Callable[..., bool] = settled
    walk: Callable[[], Walk] = Walk
    overlap: timedelta = OVERLAP
    moves_after_crash: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What the poller has stored of an issue: the version it has judged, the snapshot, whether it is settled."""

    version: int
    stamp: int
    labels: int
    settled: bool


class CrashError(Exception):
    """The poller died between two pages."""


@dataclass
class Schedule:
    """One schedule, chosen by a number: acts at moments, polls at moments, and how the forge behaves."""

    number: int
    parts: Parts = field(default_factory=Parts)
    count: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.number)
        self.rows: dict[int, Row] = {}
        self.acts: list[tuple[float, str]] = []
        self.cursor = Cursor()
        self.known: dict[int, Known] = {}
        self.now = 0.0
        self.date = self.chance.choice(DATES)
        self.clock = self.chance.choice(CLOCKS) if self.date == "true" else 0
        self.limit = self.chance.choice(LIMITS)
        self.totals = self.chance.random() < 0.8
        self.count[f"date {self.date}"] += 1
        self.count[f"limit {self.limit}"] += 1

    # ------------------------------------------------------------------ what people do

    def plan(self) -> None:
        """Acts: some issues from before, then creations, updates and deletions, many in one second with another."""
        chance = self.chance
        moments: list[float] = []
        for _ in range(chance.randint(3, 14)):
            again = moments and chance.random() < 0.4
            moments.append(int(chance.choice(moments)) + chance.random() if again else chance.uniform(0, 900))
        kinds = chance.choices(("update", "create", "delete"), (8, 3, 3), k=len(moments))
        self.acts = sorted(zip(moments, kinds, strict=True), reverse=True)
        for number in range(1, chance.randint(1, 12)):
            self.rows[number] = Row(number, -5000 + number, [Version(-5000.0, int(-5000 + number + self.clock), 0)])

    def until(self, moment: float) -> None:
        """Time goes by; what people do meanwhile is done."""
        while self.acts and self.acts[-1][0] <= moment:
            at, kind = self.acts.pop()
            self.act(at, kind)
        self.now = moment

    def act(self, at: float, kind: str) -> None:
        """One act. Whatever it writes is stamped now and becomes visible now or a little later."""
        chance = self.chance
        stamp = int(at + self.clock // 1)
        seen_from = at + (0 if chance.random() < 0.6 else chance.uniform(0, LATEST_S))
        there = [row for row in self.rows.values() if row.gone_at > at]
        if kind == "create" or not there:
            number = len(self.rows) + 1
            self.rows[number] = Row(number, stamp, [Version(seen_from, stamp, 0)])
            return
        row = chance.choice(there)
        if kind == "delete":
            row.gone_at = at
            return
        last = row.versions[-1]
        labels = last.labels if chance.random() < 0.5 else last.labels + 1
        # an issue's row is locked until its last change is there to be seen
        stamp = max(stamp, last.stamp)
        self.count["same second"] += stamp == last.stamp
        row.versions.append(Version(max(seen_from, last.seen_from), stamp, labels))

    # ------------------------------------------------------------------ what the forge answers

    def page_at(
        self, since: datetime | None, page: int
    ) -> tuple[list[tuple[int, Version]], int | None, datetime | None]:
        """A page as the forge shows it now: rows, the total, its Date."""
        least = -(10**9) if since is None else int((since - EPOCH).total_seconds())
        found = []
        for row in self.rows.values():
            shown = row.at(self.now)
            if shown >= 0 and row.gone_at > self.now and row.versions[shown].stamp >= least:
                found.append((row.created, row.number, row.versions[shown]))
        found.sort(key=lambda each: each[:2], reverse=True)
        start = (page - 1) * self.limit
        shown_rows = [(number, version) for _, number, version in found[start : start + self.limit]]
        return shown_rows, len(found) if self.totals else None, self.said_date()

    def said_date(self) -> datetime | None:
        """The Date header."""
        true = int(self.now + self.clock)
        match self.date:
            case "absent":
                return None
            case "ahead":
                return moment(true + 600)
            case "behind":
                return moment(true - 600)
            case "constant":
                return moment(450)
            case "constant, long ago":
                return moment(-(10**6))
            case _:
                return moment(true)

    # ------------------------------------------------------------------ what the poller does

    def poll(self, *, may_crash: bool) -> None:
        """One scan, as the poller makes it; it may die between two pages."""
        crash_after = self.chance.randint(1, 4) if may_crash and self.chance.random() < 0.25 else None
        began, before = self.now, len(self.acts)
        walk = self.parts.walk()
        try:
            date = self.pages(walk, crash_after)
        except CrashError:
            self.count["crash"] += 1
            if self.parts.moves_after_crash:
                self.move(walk, None, began)
            return
        self.count["during a scan"] += before - len(self.acts)
        if walk.torn:
            self.count["torn"] += 1
            return
        self.move(walk, date, began)

    def pages(self, walk: Walk, crash_after: int | None) -> datetime | None:
        """All pages, each issue judged as it comes; the first page's Date."""
        first: datetime | None = None
        for page in range(1, 1000):
            asked_at = moment(self.now)
            self.until(self.now + self.chance.choice((0.01, 0.01, 0.5, 3, 20)))
            shown, total, date = self.page_at(self.cursor.since, page)
            first = date if page == 1 else first
            fresh = walk.fresh([number for number, _ in shown])
            step = walk.page(
                [number for number, _ in shown],
                nameless=0,
                newest=max((moment(version.stamp) for _, version in shown), default=None),
                rows=len(shown),
                total=total,
            )
            for number, version in shown:
                if number in fresh:
                    sure = self.parts.settled(
                        moment(version.stamp), server_date=date, asked_at=asked_at, overlap=OVERLAP
                    )
                    self.take(number, version, settled=sure)
            self.count["pages"] += 1
            if step is Step.END:
                self.count["several pages"] += page > 1
                return first
            # going round in circles (one row a page, and others come faster than we read) ends a scan like a crash
            if crash_after == page or step is Step.CIRCLES:
                raise CrashError
        raise AssertionError("a list without end")

    def take(self, number: int, version: Version, *, settled: bool) -> None:
        """Judge one issue, unless it was judged exactly as it is shown; the timeline is read a moment later."""
        before = self.known.get(number)
        if before is not None and before.settled and (before.stamp, before.labels) == (version.stamp, version.labels):
            self.count["skipped"] += 1
            return
        self.until(self.now + 0.01)
        row = self.rows[number]
        now = row.at(self.now)
        shown = row.versions[now]
        if (shown.stamp, shown.labels) != (version.stamp, version.labels):
            settled = False  # labels and timeline told different stories: both were read again
        self.known[number] = Known(now, shown.stamp, shown.labels, settled)

    def move(self, walk: Walk, date: datetime | None, began: float) -> None:
        """The cursor moves alone, after the last page."""
        self.cursor = self.parts.cursor(
            self.cursor,
            found=walk.newest,
            server_date=date,
            began=moment(began),
            ended=moment(self.now),
            overlap=self.parts.overlap,
        )
        newest = self.cursor.newest
        self.count["quiet"] += newest is not None and self.cursor.since == newest + timedelta(seconds=1)

    # ------------------------------------------------------------------ the whole of it

    def play(self) -> list[str]:
        """Play it to its end and beyond; what was missed, in words."""
        self.plan()
        while self.acts:
            self.until(self.now + self.chance.choice((2, 20, 60, 60, 60, 100, 250, 400)))
            self.poll(may_crash=True)
        self.until(max([self.now, *(v.seen_from for row in self.rows.values() for v in row.versions)]))
        for _ in range(6):
            self.until(self.now + self.chance.choice((60, 60, 130)))
            self.poll(may_crash=False)
        found = []
        for row in self.rows.values():
            known = self.known.get(row.number)
            last = len(row.versions) - 1
            self.count["versions"] += last + 1
            if row.gone_at == float("inf") and (known is None or known.version != last):
                seen = None if known is None else known.version
                found.append(f"schedule {self.number}: issue {row.number} was changed last to {last}, known is {seen}")
        return found


def moment(seconds: float) -> datetime:
    """A moment so many seconds after the beginning."""
    return EPOCH + timedelta(seconds=seconds)


def play(numbers: range, parts: Parts | None = None) -> tuple[list[str], Counter[str]]:
    """Play schedules until one misses something: what it missed, and what was counted."""
    count: Counter[str] = Counter()
    for number in numbers:
        schedule = Schedule(number, parts or Parts(), count)
        if found := schedule.play():
            return found, count
    return [], count
