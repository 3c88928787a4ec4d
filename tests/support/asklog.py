"""What people did to the issues of one repository, written down as they did it, and what of it is a proper request.

The truth the poller is held against: it sees every act, also those whose traces the forge deletes later, and it judges
by names and people alone, not by any code of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tireless.loopback.state import Entry, Issue, Repo
from tireless.loopback.world import World

GO = "tireless/go"
MODES = ("tireless/discover", "tireless/plan", "tireless/implement")
"""In order of precedence."""
STEERING = ("tireless/hold", "tireless/priority/high", "tireless/agent:spare")
OURS = (GO, *MODES, *STEERING)
MAY_ASK = frozenset({"alice", "bob"})
BOT = "tireless-bot"


@dataclass(frozen=True, slots=True)
class Said:
    """One entry of a timeline: `add`, `remove`, `close`, `reopen`."""

    id: int
    what: str
    who: str
    stamp: int
    label: int = 0


@dataclass(frozen=True, slots=True)
class On:
    """A label on an issue: its name now, and the act that put it there (None: its trace is gone)."""

    name: str
    by: Said | None


@dataclass(frozen=True, slots=True)
class Moment:
    """How an issue stood after some act."""

    open: bool
    labels: Mapping[int, On]
    body: str
    stamp: int
    turned: Said | None
    """The last close or reopening."""
    last: int
    """The highest id of any act on a label, close or reopening so far."""

    def named(self, *names: str) -> list[On]:
        """The labels on it that have one of these names."""
        return [on for on in self.labels.values() if on.name in names]

    @property
    def opted_in(self) -> int | None:
        """The add of an opt-in that counts, by event id; of several the newest."""
        counting = [on.by.id for on in self.named(GO) if on.by is not None and on.by.who in MAY_ASK]
        return max(counting, default=None)

    @property
    def kinds(self) -> list[str]:
        """The modes that count, in order of precedence: put on by one who may, by the bot, or approved by opt-in."""
        go = self.opted_in or 0
        counting = {
            on.name
            for on in self.named(*MODES)
            if on.by is not None and (on.by.who in MAY_ASK or on.by.who == BOT or on.by.id < go)
        }
        return [name.removeprefix("tireless/") for name in MODES if name in counting]

    @property
    def proper(self) -> bool:
        """Someone who may asks for work on it."""
        return self.open and self.opted_in is not None and bool(self.kinds)

    @property
    def newest(self) -> int | None:
        """The newest add of a person that asks for this work, by event id."""
        go = self.opted_in
        if go is None:
            return None
        asking = [
            on.by.id for on in self.named(*MODES) if on.by is not None and (on.by.who in MAY_ASK or on.by.id < go)
        ]
        return max([go, *asking])


@dataclass(slots=True)
class Issued:
    """One issue: everything that was ever seen of it."""

    number: int
    author: str
    moments: list[Moment] = field(default_factory=list)
    said: dict[int, Said] = field(default_factory=dict)
    gone: bool = False

    @property
    def now(self) -> Moment:
        """How it stands, or stood last."""
        return self.moments[-1]

    def since(self, event_id: int) -> list[Moment]:
        """How it stood from this act on."""
        return [moment for moment in self.moments if moment.last >= event_id]


def went(issue: Issued, moment: Moment, *names: str) -> bool:
    """Whether no label of these names is on it any more, and one that was has gone. Renaming takes nothing away."""
    if moment.named(*names):
        return False
    before = issue.moments[: issue.moments.index(moment)]
    return any(on.name in names and key not in moment.labels for was in before for key, on in was.labels.items())


class Log:
    """All issues of one repository, by number; `note` after every act, on the forge's loop."""

    def __init__(self, repo_id: int) -> None:
        self.repo_id = repo_id
        self.issues: dict[int, Issued] = {}
        self.roles: dict[int, set[str]] = {}
        """Every name a label had, by its id."""

    def note(self, world: World) -> None:
        """Write down how everything stands now."""
        repo = world.repos[self.repo_id]
        for label in repo.labels.values():
            self.roles.setdefault(label.id, set()).add(label.name)
        for number, issue in repo.issues.items():
            known = self.issues.setdefault(number, Issued(number, world.users[issue.author_id].login))
            known.said |= {each.id: each for entry in issue.entries if (each := _said(world, entry)) is not None}
            moment = _moment(world, repo, issue, known)
            if not known.moments or known.moments[-1] != moment:
                known.moments.append(moment)
        for number in self.issues.keys() - repo.issues.keys():
            self.issues[number].gone = True

    def had(self, moment: Moment, *names: str) -> bool:
        """Whether a label is on it that ever had one of these names."""
        return any(self.roles.get(label_id, set()) & set(names) for label_id in moment.labels)


def _said(world: World, entry: Entry) -> Said | None:
    user = world.users.get(entry.user_id)
    who = user.login if user is not None else "Ghost"
    match entry.type:
        case "label":
            what = "add" if entry.body == "1" else "remove"
            return Said(entry.id, what, who, entry.created, entry.label_id or 0)
        case "close" | "reopen":
            return Said(entry.id, entry.type, who, entry.created)
        case _:
            return None


def _moment(world: World, repo: Repo, issue: Issue, known: Issued) -> Moment:
    here = {entry.id for entry in issue.entries}
    said = [each for each in known.said.values() if each.id in here]
    labels = {}
    for label_id in issue.label_ids:
        label = world.label(repo, label_id)
        if label is not None:
            adds = [each for each in said if each.what == "add" and each.label == label_id]
            labels[label_id] = On(label.name, max(adds, key=lambda each: each.id, default=None))
    turns = [each for each in said if each.what in ("close", "reopen")]
    turned = max(turns, key=lambda each: each.id, default=None)
    return Moment(not issue.is_closed, labels, issue.body, issue.updated, turned, max(known.said, default=0))
