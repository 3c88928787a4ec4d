"""May this person ask for work? Judges by policy and fetched facts, and says which fact is missing; asks nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from tireless.domain.issue import EntryKind, Person, Snapshot, TimelineEntry

CREATION = timedelta(seconds=60)
"""The new-issue form takes labels from anyone: what the author put on within this time of creation proves nothing."""

WRITERS = "writers"
CODE_WRITERS = "code-writers"
ADMINS = "admins"
ALLOW_LIST = "allow-list"
TEAM = "team:"
"""Followed by ORGANISATION/TEAM."""

_WRITE = frozenset({"write", "admin", "owner"})
_ADMIN = frozenset({"admin", "owner"})


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may ask: a word above (or `team:ORGANISATION/TEAM`), and logins that always may, compared exactly."""

    who_may_ask: str = WRITERS
    allow: frozenset[str] = frozenset()
    bot: Person | None = None
    """The token's own user; None when the forge would not say. He never asks, whatever the lists hold."""

    @property
    def team(self) -> tuple[str, str] | None:
        """Organisation and name of the team whose members may ask; None for the other choices."""
        if not self.who_may_ask.startswith(TEAM):
            return None
        org, _, name = self.who_may_ask.removeprefix(TEAM).partition("/")
        return org, name

    def is_bot(self, person: Person) -> bool:
        """Whether this is the bot itself."""
        return self.bot is not None and (person.id == self.bot.id or person.login == self.bot.login)

    def bot_fault(self) -> str | None:
        """Why the token's user will not do, or None: a bot that may ask could wake itself."""
        if self.bot is None or self.bot.login not in self.allow:
            return None
        return (
            f"the token belongs to {self.bot.login}, who is on the list of those who may ask: "
            "give the bot a user of its own, or take that login off the list"
        )


class Fact(StrEnum):
    """What only the forge can say."""

    PERMISSION = "permission"
    ASSIGNEES = "assignees"
    DEFINITIONS = "definitions"
    TEAM = "team"


@dataclass(frozen=True, slots=True)
class Need:
    """A fact to fetch before the case can be judged; `login` for a permission and for a team's member."""

    fact: Fact
    login: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of people and labels of a repository. Asked and still absent means: the forge would not say."""

    owner_is_org: bool | None = None
    passed: frozenset[int] = frozenset()
    """Ids of people for whom an act in this repository counted before."""
    asked: frozenset[Need] = frozenset()
    permissions: Mapping[str, str] = field(default_factory=dict)
    assignees: frozenset[int] | None = None
    defined: frozenset[int] | None = None
    """Ids of all label definitions."""
    members: Mapping[str, bool] = field(default_factory=dict)
    """Whether somebody is in the team whose members may ask, by login."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Yes, no, or None: cannot tell, at least not before `needs` are fetched. `reason` is a stable code."""

    allowed: bool | None
    reason: str
    needs: frozenset[Need] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A yes or no about one timeline entry, made once. It holds only for the entry of this id, actor and time, since a
    forge restored from a backup gives ids away again."""

    event_id: int
    actor: Person
    at: datetime
    allowed: bool
    reason: str

    def fits(self, entry: TimelineEntry) -> bool:
        """Whether this verdict is about this entry."""
        return (self.event_id, self.actor.id, self.at) == (entry.id, entry.actor.id, entry.at)


def may_ask(person: Person, policy: Policy, facts: Facts) -> Judgement:
    """Whether he passes the lists: the allow-list, then what the forge says of his rights. Cannot tell is not yes."""
    if (plain := _plainly(person, policy)) is not None:
        return plain
    if policy.who_may_ask == ALLOW_LIST:
        return Judgement(False, "not_on_list")
    if policy.team is not None:
        return _by_team(person, facts)
    return _by_rights(person, policy, facts)


def judge_act(entry: TimelineEntry, snapshot: Snapshot, policy: Policy, facts: Facts) -> Judgement:
    """Whether this act on a label was done by one who may ask."""
    if (plain := _plainly(entry.actor, policy)) is not None:
        return plain
    if policy.who_may_ask == WRITERS and _proves_write(entry, snapshot):
        return Judgement(True, "write_proven")
    return may_ask(entry.actor, policy, facts)


def counts(person: Person, policy: Policy, facts: Facts, *, request_actor: int | None) -> Judgement:
    """Whether his comments and reopenings count: he asked for the job, passed here before, or passes the lists."""
    if policy.is_bot(person):
        return Judgement(False, "bot")
    if not person.is_system and person.id == request_actor:
        return Judgement(True, "asked")
    if not person.is_system and person.id in facts.passed:
        return Judgement(True, "passed_before")
    return may_ask(person, policy, facts)


def _plainly(person: Person, policy: Policy) -> Judgement | None:
    """What is decided without looking at rights."""
    if policy.is_bot(person):
        return Judgement(False, "bot")
    if person.login in policy.allow:
        return Judgement(True, "allow_listed")
    if person.is_system:
        return Judgement(False, "system_user")
    return None


def _proves_write(entry: TimelineEntry, snapshot: Snapshot) -> bool:
    """The forge demands write access for every act on labels but those in the transaction that creates the issue."""
    if entry.kind is EntryKind.LABEL_REMOVED or entry.actor.id != snapshot.author.id:
        return True
    return entry.at > snapshot.created_at + CREATION


def _by_team(person: Person, facts: Facts) -> Judgement:
    """Of a team only the forge can tell; rights in the repository, and writing there, prove nothing."""
    need = Need(Fact.TEAM, person.login)
    if need not in facts.asked:
        return Judgement(None, "team_not_asked", frozenset({need}))
    match facts.members.get(person.login):
        case True:
            return Judgement(True, "team_member")
        case False:
            return Judgement(False, "not_in_team")
        case None:
            return Judgement(None, "team_not_shown")


def _by_rights(person: Person, policy: Policy, facts: Facts) -> Judgement:
    permission = Need(Fact.PERMISSION, person.login)
    if permission not in facts.asked:
        return Judgement(None, "permission_not_asked", frozenset({permission}))
    found = facts.permissions.get(person.login)
    if found is not None:
        enough = _ADMIN if policy.who_may_ask == ADMINS else _WRITE
        return Judgement(True, "has_access") if found in enough else Judgement(False, "no_write_access")
    # The bot may not ask for permissions. In a user-owned repository the list of assignees says the same; in an
    # organisation it also holds people who can merely read pull requests.
    if policy.who_may_ask != ADMINS and facts.owner_is_org is False:
        assignees = Need(Fact.ASSIGNEES)
        if assignees not in facts.asked:
            return Judgement(None, "assignees_not_asked", frozenset({assignees}))
        if facts.assignees is not None:
            listed = person.id in facts.assignees
            return Judgement(True, "assignee") if listed else Judgement(False, "no_write_access")
    return Judgement(None, "permission_not_shown")
