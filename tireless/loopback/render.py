"""Writes the loopback forge's state as the JSON a real Gitea answers; field by field, nothing decided here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from tireless.loopback import rights
from tireless.loopback.state import Hook, Label, Level, Repo, User
from tireless.loopback.world import World

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
