"""Who may do what in the loopback forge: levels per repository and unit, token scopes. Reads state, changes none."""

from __future__ import annotations

from tireless.loopback.state import Level, Repo, Token, User
from tireless.loopback.world import World

ISSUES, PULLS, CODE = "repo.issues", "repo.pulls", "repo.code"


def level(world: World, user: User | None, repo: Repo) -> Level:
    """The general access mode, as the permission endpoint reports it."""
    if user is None:
        return Level.NONE if repo.private else Level.READ
    if user.is_admin or user.id == repo.owner_id:
        return Level.OWNER
    found = Level.NONE if repo.private else Level.READ
    found = max(found, repo.collaborators.get(user.id, Level.NONE))
    for team in world.owner(repo).teams.values():
        if user.id in team.members:
            found = max(found, team.level if not team.units else max(Level.READ, min(team.units.values())))
    return found


def unit_level(world: World, user: User | None, repo: Repo, unit: str) -> Level:
    """Access to one unit: teams may grant issues without code, or the other way round."""
    if unit == ISSUES and not (repo.has_issues and not repo.external_tracker):
        return Level.NONE
    if unit == PULLS and not repo.has_pulls:
        return Level.NONE
    found = level(world, user, repo)
    if user is None or found >= Level.ADMIN:
        return found
    public = Level.NONE if repo.private else Level.READ
    found = max(public, repo.collaborators.get(user.id, Level.NONE))
    for team in world.owner(repo).teams.values():
        if user.id in team.members:
            found = max(found, team.units.get(unit, Level.NONE) if team.units else team.level)
    return found


def may_read(world: World, user: User | None, repo: Repo) -> bool:
    """Whether the repository is visible at all: any unit will do."""
    return any(unit_level(world, user, repo, unit) >= Level.READ for unit in (ISSUES, PULLS, CODE)) or (
        level(world, user, repo) >= Level.READ
    )


def may_write_issues(world: World, user: User | None, repo: Repo, *, pull: bool = False) -> bool:
    """`CanWriteIssuesOrPulls`: what labels after creation demand."""
    return unit_level(world, user, repo, PULLS if pull else ISSUES) >= Level.WRITE


def owns_org(org: User, user: User | None) -> bool:
    """Whether a user is in the owners' team, or a site admin."""
    return user is not None and (
        user.is_admin or any(user.id in team.members for team in org.teams.values() if team.level is Level.OWNER)
    )


def scope_of(path: str) -> str | None:
    """The token scope category of a path below /api/v1, None for those that need none."""
    parts = path.strip("/").split("/")
    match parts:
        case ["version" | "settings", *_]:
            return None
        case ["user", "repos", *_]:
            return "user"
        case ["user" | "users", *_]:
            return "user"
        case ["admin", *_]:
            return "admin"
        case ["orgs", _, "repos", *_]:
            return "organization"
        case ["orgs" | "teams", *_]:
            return "organization"
        case ["repos", "issues", "search"]:
            return "issue"
        case ["repos", _, _, "issues" | "labels" | "milestones", *_]:
            return "issue"
        case _:
            return "repository"


def in_scope(token: Token | None, method: str, category: str | None) -> bool:
    """Whether a token reaches; write implies read, a password (no token) reaches everything."""
    if token is None or category is None or "all" in token.scopes:
        return True
    if f"write:{category}" in token.scopes:
        return True
    return method in ("GET", "HEAD") and f"read:{category}" in token.scopes
