"""Turns what Gitea and Forgejo answer into our values. Pure; every fault is a ValueError that names the field."""

from __future__ import annotations

from datetime import UTC, datetime

from tireless.domain.issue import (
    ID_MAX,
    NUMBER_MAX,
    Comment,
    EntryKind,
    IssueState,
    Label,
    Person,
    PullRequest,
    Repository,
    Snapshot,
    TimelineEntry,
)

GHOST = Person(id=-1, login="Ghost")
"""Stands for an author the forge no longer names: a system user, so that he never counts as one who may ask."""

_ENTRY_KINDS = {
    "close": EntryKind.CLOSED,
    "reopen": EntryKind.REOPENED,
    "comment": EntryKind.COMMENT,
    "change_title": EntryKind.TITLE_CHANGED,
    "add_dependency": EntryKind.DEPENDENCY_ADDED,
}

_DRAFT_PREFIXES = ("wip:", "[wip]")


def moment(data: object, field: str) -> datetime:
    """An RFC 3339 time with its offset, as UTC; the forge answers in its own zone.

    ValueError also for Go's zero time and what lies at the other end: neither can be reckoned with, nor asked from.
    """
    if not isinstance(data, str):
        raise ValueError(f"{field} is no time")
    try:
        found = datetime.fromisoformat(data)
    except ValueError:
        raise ValueError(f"{field} is no time: {data[:40]!r}") from None
    if found.tzinfo is None:
        raise ValueError(f"{field} has no offset: {data[:40]!r}")
    if not 1 < found.year < 9998:
        raise ValueError(f"{field} is no time: {data[:40]!r}")
    return found.astimezone(UTC)


def mapping(data: object, field: str) -> dict[str, object]:
    """`data` as an object."""
    if not isinstance(data, dict):
        raise ValueError(f"{field} is no object")
    return data


def whole(data: object, field: str) -> int:
    """`data` as an integer that can be stored; true and 1.0 are none. System users have ids below 0."""
    if not isinstance(data, int) or isinstance(data, bool):
        raise ValueError(f"{field} is no whole number")
    if abs(data) > ID_MAX:
        raise ValueError(f"{field} is {data}, which no id is")
    return data


def identity(data: object, field: str) -> int:
    """`data` as the id of something that is there; a conversion failure of the forge is an object of zeros."""
    found = whole(data, field)
    if found < 1:
        raise ValueError(f"{field} is {found}")
    return found


def number(data: object, field: str = "number") -> int:
    """`data` as the number of an issue or a pull request."""
    found = identity(data, field)
    if found > NUMBER_MAX:
        raise ValueError(f"{field} is {found}, which no issue has")
    return found


def text(data: object, field: str) -> str:
    """`data` as text; a missing one is a fault."""
    if not isinstance(data, str):
        raise ValueError(f"{field} is no text")
    return data


def text_or_empty(data: object, field: str) -> str:
    """`data` as text, null and absent as the empty one."""
    return "" if data is None else text(data, field)


def person(data: object, field: str = "user") -> Person:
    """A user. Null is the Ghost; `type` is never read, Forgejo has none."""
    if data is None:
        return GHOST
    found = mapping(data, field)
    login = found.get("login")
    return Person(id=whole(found.get("id"), f"{field}.id"), login=text(login, f"{field}.login"))


def label(data: object, field: str = "label") -> Label:
    """A label definition; its colour comes without `#`."""
    found = mapping(data, field)
    return Label(
        id=identity(found.get("id"), f"{field}.id"),
        name=text(found.get("name"), f"{field}.name"),
        exclusive=found.get("exclusive") is True,
        color=text_or_empty(found.get("color"), f"{field}.color").removeprefix("#"),
        description=text_or_empty(found.get("description"), f"{field}.description"),
        archived=found.get("is_archived") is True,
    )


def state(data: object) -> IssueState:
    """Open or closed; anything else is a fault, never a guess."""
    match data:
        case "open":
            return IssueState.OPEN
        case "closed":
            return IssueState.CLOSED
        case _:
            raise ValueError(f"state is {data!r:.40}")


def is_pull(data: object) -> bool:
    """Whether an element of an issue list is a pull request."""
    return isinstance(data, dict) and data.get("pull_request") is not None


def number_of(data: object) -> int:
    """The number of an issue that may be unreadable otherwise; 0 when even that is missing or none."""
    try:
        return number(data.get("number")) if isinstance(data, dict) else 0
    except ValueError:
        return 0


def snapshot(data: object) -> Snapshot:
    """One issue. A conversion failure of the forge is an object of zeros: refused."""
    found = mapping(data, "issue")
    labels = found.get("labels")
    if not isinstance(labels, list):
        # absent is not "none": taking it for none would cancel what was asked for
        raise ValueError("labels is no list")
    return Snapshot(
        number=number(found.get("number")),
        issue_id=identity(found.get("id"), "id"),
        title=text(found.get("title"), "title"),
        body=text_or_empty(found.get("body"), "body"),
        author=person(found.get("user")),
        state=state(found.get("state")),
        labels=tuple(label(each, "labels[]") for each in labels),
        created_at=moment(found.get("created_at"), "created_at"),
        updated_at=moment(found.get("updated_at"), "updated_at"),
        url=text_or_empty(found.get("html_url"), "html_url"),
    )


def entry(data: object) -> TimelineEntry | None:
    """One timeline entry; None for nulls and for kinds that mean nothing here."""
    if data is None:
        return None
    found = mapping(data, "entry")
    kind = found.get("type")
    body = text_or_empty(found.get("body"), "entry.body")
    which: EntryKind | None
    if kind == "label":
        which = EntryKind.LABEL_ADDED if body == "1" else EntryKind.LABEL_REMOVED
    else:
        which = _ENTRY_KINDS.get(kind) if isinstance(kind, str) else None
    if which is None:
        return None
    told = found.get("label") if kind == "label" else None
    return TimelineEntry(
        id=whole(found.get("id"), "entry.id"),
        kind=which,
        actor=person(found.get("user"), "entry.user"),
        at=moment(found.get("created_at"), "entry.created_at"),
        label=None if told is None else label(told, "entry.label"),
        body=body if which is EntryKind.COMMENT else "",
    )


def comment(data: object) -> Comment:
    """One comment."""
    found = mapping(data, "comment")
    return Comment(
        id=whole(found.get("id"), "comment.id"),
        author=person(found.get("user"), "comment.user"),
        body=text_or_empty(found.get("body"), "comment.body"),
        created_at=moment(found.get("created_at"), "comment.created_at"),
        updated_at=moment(found.get("updated_at"), "comment.updated_at"),
    )


def repository(data: object) -> Repository:
    """One repository. `owner_is_org` is not in this answer: None."""
    found = mapping(data, "repository")
    return Repository(
        id=identity(found.get("id"), "repository.id"),
        owner=person(mapping(found.get("owner"), "repository.owner"), "repository.owner").login,
        name=text(found.get("name"), "repository.name"),
        owner_is_org=None,
        default_branch=text_or_empty(found.get("default_branch"), "repository.default_branch"),
        clone_url=text_or_empty(found.get("clone_url"), "repository.clone_url"),
        html_url=text_or_empty(found.get("html_url"), "repository.html_url"),
        private=found.get("private") is True,
        archived=found.get("archived") is True,
        empty=found.get("empty") is True,
        # `has_issues` is true for an external tracker too; only the forge's own one has this object
        has_issues=found.get("has_issues") is True and found.get("internal_tracker") is not None,
        has_pulls=found.get("has_pull_requests") is True,
        external_tracker=found.get("external_tracker") is not None and found.get("internal_tracker") is None,
        may_push=not isinstance(rights := found.get("permissions"), dict) or rights.get("push") is not False,
    )


def pull(data: object) -> PullRequest:
    """One pull request. Once its branch is gone `head.ref` turns into refs/pull/N/head; `label` keeps the name."""
    found = mapping(data, "pull request")
    head = mapping(found.get("head"), "head")
    ref = text_or_empty(head.get("ref"), "head.ref")
    if ref.startswith("refs/") or not ref:
        ref = text_or_empty(head.get("label"), "head.label").rpartition(":")[2]
    title = text(found.get("title"), "title")
    draft = found.get("draft")
    return PullRequest(
        number=number(found.get("number")),
        title=title,
        body=text_or_empty(found.get("body"), "body"),
        author=person(found.get("user")),
        state=state(found.get("state")),
        merged=found.get("merged") is True,
        head=ref,
        head_sha=text_or_empty(head.get("sha"), "head.sha"),
        base=text_or_empty(mapping(found.get("base"), "base").get("ref"), "base.ref"),
        url=text_or_empty(found.get("html_url"), "html_url"),
        draft=draft if isinstance(draft, bool) else title.lower().startswith(_DRAFT_PREFIXES),
    )


def from_fork(data: object) -> bool:
    """Whether a pull request's head lies in another repository, or in none any more."""
    found = mapping(data, "pull request")
    head, base = found.get("head"), found.get("base")
    if not isinstance(head, dict) or not isinstance(base, dict):
        return True
    return head.get("repo_id") != base.get("repo_id")
