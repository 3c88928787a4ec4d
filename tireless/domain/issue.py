"""What a forge says, as values: repositories, issues, people, labels, timeline entries; only names and a hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

NUMBER_MAX = 2**31 - 1
"""The greatest number of an issue or a pull request that is believed: what a database's int holds."""

ID_MAX = 2**63 - 1
"""The greatest id of anything."""


@dataclass(frozen=True, slots=True)
class RepoRef:
    """A repository by the names people use. Stored rows use the forge's numeric id as well, since names change."""

    forge: str
    owner: str
    name: str

    @property
    def path(self) -> str:
        """`owner/name`."""
        return f"{self.owner}/{self.name}"

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class IssueRef:
    """An issue by repository and number."""

    repo: RepoRef
    number: int

    def __str__(self) -> str:
        return f"{self.repo.path}#{self.number}"


@dataclass(frozen=True, slots=True)
class Person:
    """A forge user. Ids of system users (ghost, actions) are below 1; `login` is compared exactly."""

    id: int
    login: str

    @property
    def is_system(self) -> bool:
        """Ghost and other users the forge made up: they may ask only when allow-listed."""
        return self.id < 1


@dataclass(frozen=True, slots=True)
class Label:
    """A label definition, of the repository or of its organisation."""

    id: int
    name: str
    exclusive: bool = False
    color: str = ""
    description: str = ""
    archived: bool = False


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """A label as we want it to exist. `color` is six hex digits without '#'."""

    name: str
    color: str
    description: str
    exclusive: bool


class IssueState(StrEnum):
    """Open or closed, as the forge says it."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as the forge describes it; `full` names are those of the answer, not of the question."""

    id: int
    owner: str
    name: str
    owner_is_org: bool | None
    default_branch: str
    clone_url: str
    html_url: str
    private: bool
    archived: bool
    empty: bool
    has_issues: bool
    """True only for the forge's own tracker: an external tracker counts as none."""
    has_pulls: bool
    external_tracker: bool = False
    """Issues are kept elsewhere, and only linked to."""
    may_push: bool = True
    """May the bot's user write to its code? True also where the forge does not say."""

    @property
    def set_aside(self) -> str | None:
        """Why nothing can be worked on here as it is, or None."""
        if self.archived:
            return "it is archived: nothing can be written there; unarchive it"
        if self.external_tracker:
            return "it uses an external issue tracker: switch the forge's own one on"
        if not self.has_issues:
            return "its issues are switched off: switch them on in its settings"
        return None if self.may_push else "the bot's user may not write to it: give that user write access to its code"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One issue as one answer of the forge described it. Never a pull request."""

    number: int
    issue_id: int
    title: str
    body: str
    author: Person
    state: IssueState
    labels: tuple[Label, ...]
    created_at: datetime
    updated_at: datetime
    url: str

    @property
    def content_hash(self) -> str:
        """SHA-256 over title and whole body: what "the approved text" means."""
        return content_hash(self.title, self.body)


def issue_name(forge: str, path: str, number: int, *, several: bool) -> str:
    """An issue as commands take it: with its forge where there are `several`."""
    return f"{forge}:{path}#{number}" if several else f"{path}#{number}"


class EntryKind(StrEnum):
    """The timeline entries that mean something to us; everything else is left out."""

    LABEL_ADDED = "label_added"
    LABEL_REMOVED = "label_removed"
    CLOSED = "closed"
    REOPENED = "reopened"
    COMMENT = "comment"
    TITLE_CHANGED = "title_changed"
    DEPENDENCY_ADDED = "dependency_added"
    """On both issues, the one that waits and the one it waits for."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One act on an issue, oldest first in a timeline. `label` is None for other kinds and for a deleted definition."""

    id: int
    kind: EntryKind
    actor: Person
    at: datetime
    label: Label | None = None
    body: str = ""


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on an issue; `body` is verbatim."""

    id: int
    author: Person
    body: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request; `head` and `base` are branch names, `head_sha` the commit the forge sees at the head."""

    number: int
    title: str
    body: str
    author: Person
    state: IssueState
    merged: bool
    head: str
    head_sha: str
    base: str
    url: str
    draft: bool = False


def content_hash(title: str, body: str) -> str:
    """SHA-256, hex, over title, a NUL, and the whole body, as UTF-8."""
    text = f"{title}\0{body}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()
