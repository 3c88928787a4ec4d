"""`#12`, `owner/repo#12` and closing words: the entries they leave on other issues, and what a merge closes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tireless.loopback import rights
from tireless.loopback.state import Entry, Event, Issue, Repo, User
from tireless.loopback.world import World

_REFERENCE = re.compile(
    r"(?:(?P<word>clos(?:e|es|ed)|fix(?:|es|ed)|resolv(?:e|es|ed)|reopen(?:|s|ed)):?\s+)?"
    r"(?<![\w/#!&])(?:(?P<owner>[\w.-]+)/(?P<name>[\w.-]+))?[#!](?P<number>\d{1,10})(?![\w-])",
    re.IGNORECASE,
)
_CODE = re.compile(r"(```.*?```|~~~.*?~~~|`[^`\n]+`)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reference:
    """One mention of an issue in a text."""

    owner: str
    name: str
    number: int
    action: str


def find(text: str) -> list[Reference]:
    """The mentions of a text, code spans left out."""
    found = []
    for match in _REFERENCE.finditer(_CODE.sub(" ", text)):
        word = (match["word"] or "").lower()
        action = "none" if not word else "reopens" if word.startswith("reopen") else "closes"
        found.append(Reference(match["owner"] or "", match["name"] or "", int(match["number"]), action))
    return found


def leave(world: World, repo: Repo, origin: Issue, doer: User, text: str, comment: Entry | None = None) -> None:
    """Leave reference entries for what `text` mentions: each bumps the mentioned issue, never the origin itself."""
    kind = "comment_ref" if comment is not None else "pull_ref" if origin.pull is not None else "issue_ref"
    wanted: dict[int, tuple[Repo, Issue, str]] = {}
    for each in find(text):
        where = world.repo(each.owner, each.name) if each.owner else repo
        target = None if where is None else where.issues.get(each.number)
        if where is None or target is None or target is origin:
            continue
        action = _allowed_action(world, repo, origin, doer, where, target, each.action, in_comment=comment is not None)
        if action is None:
            continue
        before = wanted.get(target.id)
        if before is not None and action == "none":
            continue
        wanted[target.id] = (where, target, action)
    for where, target, action in wanted.values():
        _place(world, repo, origin, doer, (where, target, action), kind)


def _allowed_action(
    world: World, repo: Repo, origin: Issue, doer: User, where: Repo, target: Issue, action: str, *, in_comment: bool
) -> str | None:
    """The action that counts, None when the writer may not even read the target."""
    if action == "none" and where is repo:
        return action
    unit = rights.ISSUES if target.pull is None else rights.PULLS
    if not rights.unit_level(world, doer, where, unit):
        return None
    if target.pull is not None or origin.pull is None:
        return "none"
    may_close = doer.id == target.author_id or rights.may_write_issues(world, doer, where)
    if action != "none" and not may_close and (where is not repo or in_comment):
        return "none"
    return action


def _place(world: World, repo: Repo, origin: Issue, doer: User, what: tuple[Repo, Issue, str], kind: str) -> None:
    _, target, action = what
    for entry in target.entries:
        same = entry.type == kind and (entry.ref_repo_id, entry.ref_number) == (repo.id, origin.number)
        if same and kind != "comment_ref":
            if entry.ref_action == action:
                return  # the text still says what it said
            entry.ref_action = "neutered"
    entry = world.add_entry(target, doer, kind)
    entry.ref_repo_id, entry.ref_number, entry.ref_action = repo.id, origin.number, action


def mention_in_commit(world: World, repo: Repo, doer: User, sha: str, message: str, *, close: bool) -> None:
    """A commit's mentions leave `commit_ref` entries; on the default branch its closing words act."""
    seen: set[int] = set()
    for each in find(message):
        where = world.repo(each.owner, each.name) if each.owner else repo
        target = None if where is None else where.issues.get(each.number)
        if where is None or target is None or target.id in seen:
            continue
        seen.add(target.id)
        if where is not repo and not rights.unit_level(world, doer, where, rights.ISSUES):
            continue
        if any(entry.type == "commit_ref" and entry.ref_commit == sha for entry in target.entries):
            continue
        entry = world.add_entry(
            target,
            doer,
            "commit_ref",
            body=f'<a href="/{world.path(repo)}/commit/{sha}">{message.split(chr(10))[0]}</a>',
        )
        entry.ref_commit = sha
        may = doer.id == target.author_id or rights.may_write_issues(world, doer, where)
        if close and may and target.pull is None and each.action != "none":
            set_state(world, where, target, doer, closed=each.action == "closes", commit=sha)


def close_by_merge(world: World, repo: Repo, pull: Issue, doer: User) -> None:
    """What a merged pull request's closing words close; silently nothing where a dependency is open."""
    for where in list(world.repos.values()):
        for target in list(where.issues.values()):
            latest = None
            for entry in target.entries:
                if (entry.ref_repo_id, entry.ref_number) == (repo.id, pull.number) and entry.ref_action != "neutered":
                    latest = entry.ref_action if entry.ref_action != "none" else latest
            if latest is not None and target.pull is None:
                set_state(world, where, target, doer, closed=latest == "closes")


def set_state(world: World, repo: Repo, issue: Issue, doer: User, *, closed: bool, commit: str = "") -> bool:
    """Close or reopen, with the entry and the event; False when an open dependency forbids it."""
    if issue.is_closed == closed:
        return True
    if closed and world.open_blockers(issue):
        return False
    issue.closed = world.clock.stamp() if closed else 0
    entry = world.add_entry(issue, doer, "close" if closed else "reopen")
    entry.ref_commit = commit
    name = "issues" if issue.pull is None else "pull_request"
    world.emit(Event(name, "closed" if closed else "reopened", repo, doer, issue))
    return True
