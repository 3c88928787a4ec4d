"""Writes the loopback forge's state as the JSON a real Gitea answers; field by field, nothing decided here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from tireless.loopback import rights
from tireless.loopback.state import Entry, Hook, Issue, Label, Level, Repo, User, World

Json = dict[str, object]

ZERO_TIME = "0001-01-01T00:00:00Z"

PERMISSIONS = {
    Level.NONE: "none",
    Level.READ: "read",
    Level.WRITE: "write",
    Level.ADMIN: "admin",
    Level.OWNER: "owner",
}

_GHOST: Json = {"id": -1, "login": "Ghost", "username": "Ghost"}

_REPO_CONSTANTS: Json = {
    "fork": False,
    "template": False,
    "mirror": False,
    "size": 24,
    "language": "",
    "link": "",
    "original_url": "",
    "website": "",
    "stars_count": 0,
    "forks_count": 0,
    "watchers_count": 1,
    "release_counter": 0,
    "has_wiki": True,
    "has_projects": True,
    "has_releases": True,
    "has_packages": False,
    "has_actions": False,
    "allow_merge_commits": True,
    "allow_rebase": True,
    "allow_squash_merge": True,
    "default_merge_style": "merge",
    "avatar_url": "",
    "internal": False,
    "object_format_name": "sha1",
    "licenses": [],
}

_ENTRY_CONSTANTS: Json = {
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


def when(world: World, stamp: int) -> str:
    """A moment, in the zone the instance writes."""
    zone = timezone(timedelta(minutes=world.rules.utc_offset_minutes))
    text = datetime.fromtimestamp(stamp, tz=UTC).astimezone(zone).strftime("%Y-%m-%dT%H:%M:%S%z")
    return text.replace("+0000", "Z") if text.endswith("+0000") else f"{text[:-2]}:{text[-2:]}"


def user(world: World, found: User | None) -> Json:
    """A user; one that is gone is the Ghost."""
    if found is None:
        return {**_GHOST, "full_name": "", "email": "", "avatar_url": "", "html_url": "", "created": ZERO_TIME}
    return {
        "id": found.id,
        "login": found.login,
        "login_name": "",
        "source_id": 0,
        "full_name": found.full_name,
        "email": found.email,
        "avatar_url": f"{world.root_url}/avatars/{found.id}",
        "html_url": f"{world.root_url}/{found.login}",
        "language": "",
        "is_admin": found.is_admin,
        "last_login": ZERO_TIME,
        "created": when(world, found.created),
        "restricted": False,
        "active": True,
        "prohibit_login": False,
        "location": "",
        "website": "",
        "description": "",
        "visibility": "public",
        "followers_count": 0,
        "following_count": 0,
        "starred_repos_count": 0,
        "username": found.login,
    }


def user_id(world: World, found: int) -> Json:
    """A user by id."""
    return user(world, world.users.get(found))


def organization(world: World, found: User) -> Json:
    """An organisation."""
    return {
        "id": found.id,
        "name": found.login,
        "full_name": found.full_name,
        "email": "",
        "avatar_url": f"{world.root_url}/avatars/{found.id}",
        "description": "",
        "website": "",
        "location": "",
        "visibility": "public",
        "repo_admin_change_team_access": False,
        "username": found.login,
    }


def label(world: World, found: Label, url: str) -> Json:
    """A label definition; colours go without `#`."""
    return {
        "id": found.id,
        "name": found.name,
        "exclusive": found.exclusive,
        "is_archived": found.archived,
        "color": found.color,
        "description": found.description,
        "url": f"{world.root_url}/api/v1{url}/labels/{found.id}",
    }


def repo_label(world: World, repo: Repo, found: Label) -> Json:
    """A label as seen from a repository: its own or its organisation's."""
    if found.id in repo.labels:
        return label(world, found, f"/repos/{world.path(repo)}")
    return label(world, found, f"/orgs/{world.owner(repo).login}")


def repository(world: World, repo: Repo, doer: User | None) -> Json:
    """A repository, with the caller's permissions."""
    path = world.path(repo)
    level = rights.level(world, doer, repo)
    html = f"{world.root_url}/{path}"
    shown: Json = {
        **_REPO_CONSTANTS,
        "id": repo.id,
        "owner": user(world, world.owner(repo)),
        "name": repo.name,
        "full_name": path,
        "description": repo.description,
        "empty": repo.empty,
        "private": repo.private,
        "languages_url": f"{world.root_url}/api/v1/repos/{path}/languages",
        "html_url": html,
        "url": f"{world.root_url}/api/v1/repos/{path}",
        "ssh_url": f"git@localhost:{path}.git",
        "clone_url": f"{html}.git",
        "open_issues_count": sum(1 for each in repo.issues.values() if each.pull is None and not each.is_closed),
        "open_pr_counter": sum(1 for each in repo.issues.values() if each.pull is not None and not each.is_closed),
        "default_branch": repo.default_branch,
        "archived": repo.archived,
        "created_at": when(world, repo.created),
        "updated_at": when(world, repo.updated),
        "archived_at": "1970-01-01T00:00:00Z",
        "permissions": {"admin": level >= Level.ADMIN, "push": level >= Level.WRITE, "pull": level >= Level.READ},
        "has_issues": repo.has_issues or repo.external_tracker,
        "has_pull_requests": repo.has_pulls,
        "topics": repo.topics,
    }
    if repo.external_tracker:
        shown["external_tracker"] = {
            "external_tracker_url": "http://tracker.invalid",
            "external_tracker_format": "",
            "external_tracker_style": "numeric",
            "external_tracker_regexp_pattern": "",
        }
    elif repo.has_issues:
        shown["internal_tracker"] = {
            "enable_time_tracker": True,
            "allow_only_contributors_to_track_time": True,
            "enable_issue_dependencies": repo.dependencies_enabled,
        }
    return shown


def issue_html(world: World, repo: Repo, found: Issue) -> str:
    """The page of an issue or pull request."""
    return f"{world.root_url}/{world.path(repo)}/{'issues' if found.pull is None else 'pulls'}/{found.number}"


def issue_labels(world: World, repo: Repo, found: Issue) -> list[Json]:
    """The labels of an issue, by name as the real one sorts them."""
    known = [each for each in (world.label(repo, i) for i in found.label_ids) if each is not None]
    return [repo_label(world, repo, each) for each in sorted(known, key=lambda each: each.name)]


def issue(world: World, repo: Repo, found: Issue) -> Json:
    """An issue, or a pull request seen as one."""
    path = world.path(repo)
    assignees = [user_id(world, each) for each in found.assignee_ids]
    pull: Json | None = None
    if found.pull is not None:
        pull = {
            "merged": found.pull.merged != 0,
            "merged_at": when(world, found.pull.merged) if found.pull.merged else None,
            "draft": is_draft(found.title),
            "html_url": issue_html(world, repo, found),
        }
    return {
        "id": found.id,
        "url": f"{world.root_url}/api/v1/repos/{path}/issues/{found.number}",
        "html_url": issue_html(world, repo, found),
        "number": found.number,
        "user": user_id(world, found.author_id),
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
        "created_at": when(world, found.created),
        "updated_at": when(world, found.updated),
        "closed_at": when(world, found.closed) if found.closed else None,
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


def comment(world: World, repo: Repo, found: Issue, entry: Entry) -> Json:
    """A comment."""
    html = issue_html(world, repo, found)
    return {
        "id": entry.id,
        "html_url": f"{html}#issuecomment-{entry.id}",
        "pull_request_url": html if found.pull is not None else "",
        "issue_url": "" if found.pull is not None else html,
        "user": user_id(world, entry.user_id),
        "original_author": "",
        "original_author_id": 0,
        "body": entry.body,
        "assets": [],
        "created_at": when(world, entry.created),
        "updated_at": when(world, entry.updated),
    }


def timeline_entry(world: World, repo: Repo, found: Issue, entry: Entry) -> Json:
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
        "user": user_id(world, entry.user_id),
        "body": entry.body,
        "created_at": when(world, entry.created),
        "updated_at": when(world, entry.updated),
        "old_title": entry.old_title,
        "new_title": entry.new_title,
        "old_ref": entry.old_ref,
        "ref_issue": None if ref_repo is None or ref_issue is None else issue(world, ref_repo, ref_issue),
        "ref_action": entry.ref_action,
        "ref_commit_sha": entry.ref_commit,
        "label": None if shown is None else repo_label(world, repo, shown),
        "dependent_issue": None if other_repo is None or other is None else issue(world, other_repo, other),
    }


def pull(world: World, repo: Repo, found: Issue, doer: User | None) -> Json:
    """A pull request. Once its branch is gone `head.ref` is refs/pull/N/head and `label` keeps the name."""
    assert found.pull is not None  # noqa: S101  the caller looked it up as a pull request
    each = found.pull
    as_issue = issue(world, repo, found)
    shown_repo = repository(world, repo, doer)
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
        "merged_at": when(world, each.merged) if each.merged else None,
        "merge_commit_sha": each.merge_sha or None,
        "merged_by": user_id(world, each.merged_by) if each.merged else None,
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


def hook(world: World, found: Hook) -> Json:
    """A webhook; the secret is never shown."""
    return {
        "id": found.id,
        "type": "gitea",
        "config": {"content_type": found.content_type, "url": found.url},
        "events": sorted(found.events),
        "active": found.active,
        "authorization_header": found.authorization,
        "branch_filter": "",
        "created_at": when(world, found.created),
        "updated_at": when(world, found.created),
    }
