"""Writes issues, comments, timeline entries and pull requests as a real Gitea does; nothing decided here."""

from __future__ import annotations

from tireless.loopback import render
from tireless.loopback.state import Entry, Issue, Repo, User
from tireless.loopback.world import World

_ENTRY_CONSTANTS: render.Json = {
    "pull_request_url": "",
    "old_project_id": 0,
    "project_id": 0,
    "old_milestone": None,
    "milestone": None,
    "tracked_time": None,
    "new_ref": "",
    "ref_comment": None,
    "review_id": 0,
    "assignee": None,
    "assignee_team": None,
    "removed_assignee": False,
    "resolve_doer": None,
}


def issue_html(world: World, repo: Repo, found: Issue) -> str:
    """The page of an issue or pull request."""
    return f"{world.root_url}/{world.path(repo)}/{'issues' if found.pull is None else 'pulls'}/{found.number}"


def issue_labels(world: World, repo: Repo, found: Issue) -> list[render.Json]:
    """The labels of an issue, by name as the real one sorts them."""
    known = [each for each in (world.label(repo, i) for i in found.label_ids) if each is not None]
    return [render.repo_label(world, repo, each) for each in sorted(known, key=lambda each: each.name)]


def issue(world: World, repo: Repo, found: Issue) -> render.Json:
    """An issue, or a pull request seen as one."""
    path = world.path(repo)
    assignees = [render.user_id(world, each) for each in found.assignee_ids]
    pull: render.Json | None = None
    if found.pull is not None:
        pull = {
            "merged": found.pull.merged != 0,
            "merged_at": render.when(world, found.pull.merged) if found.pull.merged else None,
            "draft": is_draft(found.title),
            "html_url": issue_html(world, repo, found),
        }
    return {
        "id": found.id,
        "url": f"{world.root_url}/api/v1/repos/{path}/issues/{found.number}",
        "html_url": issue_html(world, repo, found),
        "number": found.number,
        "user": render.user_id(world, found.author_id),
        "original_author": "",
        "original_author_id": 0,
        "title": found.title,
        "body": found.body,
        "ref": "",
        "assets": [],
        "labels": issue_labels(world, repo, found),
        "milestone": None,
        "assignee": assignees[0] if assignees else None,
        "assignees": assignees or None,
        "state": "closed" if found.is_closed else "open",
        "is_locked": found.locked,
        "comments": sum(1 for each in found.entries if each.type == "comment"),
        "created_at": render.when(world, found.created),
        "updated_at": render.when(world, found.updated),
        "closed_at": render.when(world, found.closed) if found.closed else None,
        "due_date": None,
        "time_estimate": 0,
        "pull_request": pull,
        "repository": {
            "id": repo.id,
            "name": repo.name,
            "owner": world.owner(repo).login,
            "full_name": path,
        },
        "pin_order": 0,
    }


def is_draft(title: str) -> bool:
    """Whether a title marks a draft."""
    return title.upper().startswith(("WIP:", "[WIP]"))


def comment(world: World, repo: Repo, found: Issue, entry: Entry) -> render.Json:
    """A comment."""
    html = issue_html(world, repo, found)
    return {
        "id": entry.id,
        "html_url": f"{html}#issuecomment-{entry.id}",
        "pull_request_url": html if found.pull is not None else "",
        "issue_url": "" if found.pull is not None else html,
        "user": render.user_id(world, entry.user_id),
        "original_author": "",
        "original_author_id": 0,
        "body": entry.body,
        "assets": [],
        "created_at": render.when(world, entry.created),
        "updated_at": render.when(world, entry.updated),
    }


def timeline_entry(world: World, repo: Repo, found: Issue, entry: Entry) -> render.Json:
    """A timeline entry."""
    html = issue_html(world, repo, found)
    ref_repo = world.repos.get(entry.ref_repo_id)
    ref_issue = None if ref_repo is None else ref_repo.issues.get(entry.ref_number)
    other_repo = None if entry.dependent is None else world.repos.get(entry.dependent[0])
    other = None if other_repo is None or entry.dependent is None else other_repo.issues.get(entry.dependent[1])
    shown = None if entry.label_id is None else world.label(repo, entry.label_id)
    return {
        **_ENTRY_CONSTANTS,
        "id": entry.id,
        "type": entry.type,
        "html_url": f"{html}#issuecomment-{entry.id}",
        "pull_request_url": html if found.pull is not None else "",
        "issue_url": "" if found.pull is not None else html,
        "user": render.user_id(world, entry.user_id),
        "body": entry.body,
        "created_at": render.when(world, entry.created),
        "updated_at": render.when(world, entry.updated),
        "old_title": entry.old_title,
        "new_title": entry.new_title,
        "old_ref": entry.old_ref,
        "ref_issue": None if ref_repo is None or ref_issue is None else issue(world, ref_repo, ref_issue),
        "ref_action": entry.ref_action,
        "ref_commit_sha": entry.ref_commit,
        "label": None if shown is None else render.repo_label(world, repo, shown),
        "dependent_issue": None if other_repo is None or other is None else issue(world, other_repo, other),
    }


def pull(world: World, repo: Repo, found: Issue, doer: User | None) -> render.Json:
    """A pull request. Once its branch is gone `head.ref` is refs/pull/N/head and `label` keeps the name."""
    assert found.pull is not None  # noqa: S101  the caller looked it up as a pull request
    each = found.pull
    as_issue = issue(world, repo, found)
    shown_repo = render.repository(world, repo, doer)
    html = issue_html(world, repo, found)
    same = ("number", "user", "title", "body", "labels", "milestone", "assignee", "state", "is_locked", "comments")
    return {
        **{name: as_issue[name] for name in (*same, "created_at", "updated_at", "closed_at", "due_date", "pin_order")},
        "id": each.id,
        "url": html,
        "html_url": html,
        "diff_url": f"{html}.diff",
        "patch_url": f"{html}.patch",
        "assignees": as_issue["assignees"] or [],
        "requested_reviewers": [],
        "requested_reviewers_teams": [],
        "draft": is_draft(found.title),
        "mergeable": not each.conflicts,
        "merged": each.merged != 0,
        "merged_at": render.when(world, each.merged) if each.merged else None,
        "merge_commit_sha": each.merge_sha or None,
        "merged_by": render.user_id(world, each.merged_by) if each.merged else None,
        "allow_maintainer_edit": False,
        "base": {
            "label": each.base,
            "ref": each.base,
            "sha": repo.branches.get(each.base, ""),
            "repo_id": repo.id,
            "repo": shown_repo,
        },
        "head": {
            "label": each.head,
            "ref": each.head if each.head in repo.branches else f"refs/pull/{found.number}/head",
            "sha": each.head_sha,
            "repo_id": repo.id,
            "repo": shown_repo,
        },
        "merge_base": each.merge_base,
    }
