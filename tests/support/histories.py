"""Issues for pure tests: what people did, told as a snapshot and a timeline the way the forge would."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from tireless.domain.asking import judge
from tireless.domain.case import Asked, Case, Marks
from tireless.domain.issue import EntryKind, IssueState, Label, Person, Snapshot, TimelineEntry
from tireless.domain.labels import LabelScheme
from tireless.domain.people import Fact, Facts, Need, Policy

ALICE = Person(1, "alice")
BOB = Person(2, "bob")
MALLORY = Person(3, "mallory")
BOT = Person(9, "tireless-bot")
GHOST = Person(-1, "Ghost")

CREATED = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
SCHEME = LabelScheme()
POLICY = Policy(bot=BOT)

GO = "tireless/go"
PLAN = "tireless/plan"
IMPLEMENT = "tireless/implement"
DISCOVER = "tireless/discover"
HOLD = "tireless/hold"


def at(seconds: float) -> datetime:
    """A moment so many seconds after the issue's creation."""
    return CREATED + timedelta(seconds=seconds)


class History:
    """One issue. Acts are given in order; `s` is seconds after creation and defaults to one minute per act."""

    def __init__(self, author: Person = ALICE, labels: tuple[str, ...] = (), body: str = "Please.") -> None:
        self.author = author
        self.title = "An issue"
        self.body = body
        self.state = IssueState.OPEN
        self.updated = CREATED
        self.on: list[Label] = []
        self.entries: list[TimelineEntry] = []
        self.ids = count(10)
        self.label_ids: dict[str, int] = {}
        self.now = 0.0
        for name in labels:
            self.add(author, name, s=0)

    def label(self, name: str) -> Label:
        """The definition of this name."""
        return Label(self.label_ids.setdefault(name, 100 + len(self.label_ids)), name)

    def add(self, who: Person, name: str, s: float | None = None) -> TimelineEntry:
        """Put a label on."""
        label = self.label(name)
        self.on = [*(each for each in self.on if each.id != label.id), label]
        return self._enter(EntryKind.LABEL_ADDED, who, s, label=label)

    def remove(self, who: Person, name: str, s: float | None = None) -> TimelineEntry:
        """Take a label off."""
        label = self.label(name)
        self.on = [each for each in self.on if each.id != label.id]
        return self._enter(EntryKind.LABEL_REMOVED, who, s, label=label)

    def close(self, who: Person, s: float | None = None) -> TimelineEntry:
        """Close it."""
        self.state = IssueState.CLOSED
        return self._enter(EntryKind.CLOSED, who, s)

    def reopen(self, who: Person, s: float | None = None) -> TimelineEntry:
        """Open it again."""
        self.state = IssueState.OPEN
        return self._enter(EntryKind.REOPENED, who, s)

    def comment(self, who: Person, s: float | None = None) -> TimelineEntry:
        """Say something."""
        return self._enter(EntryKind.COMMENT, who, s, body="words")

    def edit(self, body: str, s: float | None = None) -> None:
        """Change the body, which leaves no entry."""
        self.body = body
        self.updated = self._moment(s)

    def forget(self, name: str) -> None:
        """Delete a label's definition, and with it its entries."""
        label = self.label(name)
        self.on = [each for each in self.on if each.id != label.id]
        self.entries = [each for each in self.entries if each.label is None or each.label.id != label.id]
        del self.label_ids[name]

    @property
    def snapshot(self) -> Snapshot:
        """The issue as it is now."""
        return Snapshot(
            number=7,
            issue_id=77,
            title=self.title,
            body=self.body,
            author=self.author,
            state=self.state,
            labels=tuple(self.on),
            created_at=CREATED,
            updated_at=self.updated,
            url="http://forge/acme/widgets/issues/7",
        )

    def case(self, **changes: Any) -> Case:
        """Everything as it is now, to be judged."""
        case = Case(snapshot=self.snapshot, timeline=tuple(self.entries), scheme=SCHEME, policy=POLICY)
        return replace(case, **changes)

    def asked(self, **changes: Any) -> Asked:
        """The judgement of it."""
        return judge(self.case(**changes))

    @property
    def all_seen(self) -> Marks:
        """Marks over everything there is."""
        return Marks().over(self.entries)

    def _moment(self, s: float | None) -> datetime:
        self.now = self.now + 120 if s is None else s
        return at(self.now)

    def _enter(
        self, kind: EntryKind, who: Person, s: float | None, *, label: Label | None = None, body: str = ""
    ) -> TimelineEntry:
        moment = self._moment(s)
        entry = TimelineEntry(next(self.ids), kind, who, moment, label, body)
        self.entries.append(entry)
        self.updated = moment
        return entry


def knows(
    permissions: dict[str, str | None] | None = None,
    *,
    assignees: frozenset[int] | None = None,
    defined: frozenset[int] | None = None,
    owner_is_org: bool | None = None,
    passed: frozenset[int] = frozenset(),
) -> Facts:
    """Facts fetched: a login with None is one whose rights the forge would not tell."""
    told = permissions or {}
    asked = {Need(Fact.PERMISSION, login) for login in told}
    if assignees is not None:
        asked.add(Need(Fact.ASSIGNEES))
    if defined is not None:
        asked.add(Need(Fact.DEFINITIONS))
    return Facts(
        owner_is_org=owner_is_org,
        passed=passed,
        asked=frozenset(asked),
        permissions={login: rights for login, rights in told.items() if rights is not None},
        assignees=assignees,
        defined=defined,
    )
