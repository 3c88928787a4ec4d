"""The loopback forge's repositories: making and changing them, who may work in them, their files and branches."""

from __future__ import annotations

import re

from starlette.responses import Response

from tireless.loopback import pushes, render, rights
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.people import LEVELS, team_json
from tireless.loopback.state import Level, Repo, User

_NAME = re.compile(r"^[A-Za-z0-9._-]{1,100}$")


async def create_own(call: Call) -> Response:
    """A repository of the caller's own."""
    return await _create(call, call.me)


async def create_in_org(call: Call) -> Response:
    """A repository of an organisation."""
    org = call.world.user(call.param("org"))
    if org is None or not org.is_org:
        raise not_found()
    if not rights.owns_org(org, call.me):
        raise Refusal(403, "Given user is not allowed to create repository in organization")
    return await _create(call, org)


async def _create(call: Call, owner: User) -> Response:
    name = call.text("name", required=True)
    if not _NAME.match(name):
        raise Refusal(422, "[Name]: AlphaDashDot")
    if call.world.repo(owner.login, name) is not None:
        raise Refusal(409, "The repository with the same name already exists.")
    repo = call.world.add_repo(owner, name, private=call.flag("private"), description=call.text("description"))
    repo.default_branch = call.text("default_branch") or "main"
    async with repo.lock:
        await call.git.create(call.world.git_dir(repo), repo.default_branch)
        if call.flag("auto_init"):
            await pushes.commit_file(
                call.world,
                call.git,
                repo,
                call.me,
                branch=repo.default_branch,
                path="README.md",
                content=f"# {name}\n".encode(),
                message="Initial commit",
            )
    return call.json(render.repository(call.world, repo, call.me), 201)


async def get_repo(call: Call) -> Response:
    """One repository."""
    return call.json(render.repository(call.world, call.repo, call.doer))


async def edit_repo(call: Call) -> Response:
    """Change what an admin may change; a rename leaves a redirect behind."""
    call.need_level(Level.ADMIN)
    repo = call.repo
    name = call.text("name")
    if name and name != repo.name:
        if not _NAME.match(name) or call.world.repo(call.world.owner(repo).login, name) is not None:
            raise Refusal(422, "repository name is taken or not allowed")
        call.world.rename_repo(repo, name)
    repo.private = call.flag("private", default=repo.private)
    repo.archived = call.flag("archived", default=repo.archived)
    repo.has_issues = call.flag("has_issues", default=repo.has_issues)
    repo.has_pulls = call.flag("has_pull_requests", default=repo.has_pulls)
    repo.description = call.text("description") or repo.description
    repo.external_tracker = repo.external_tracker or isinstance(call.body.get("external_tracker"), dict)
    tracker = call.body.get("internal_tracker")
    if isinstance(tracker, dict):
        repo.external_tracker = False
        repo.dependencies_enabled = tracker.get("enable_issue_dependencies") is True
    if call.text("default_branch") in repo.branches:
        repo.default_branch = call.text("default_branch")
        ref = f"refs/heads/{repo.default_branch}"
        await call.git.run(call.world.git_dir(repo), "symbolic-ref", "HEAD", ref)
    return call.json(render.repository(call.world, repo, call.doer))


async def delete_repo(call: Call) -> Response:
    """Delete, for owners."""
    call.need_level(Level.OWNER)
    call.world.delete_repo(call.repo)
    await call.git.remove(call.world.git_dir(call.repo))
    return call.nothing()


async def transfer(call: Call) -> Response:
    """Give a repository to another owner; the old path redirects."""
    call.need_level(Level.OWNER)
    owner = call.world.user(call.text("new_owner"))
    if owner is None:
        raise not_found()
    call.world.rename_repo(call.repo, call.repo.name, owner)
    return call.json(render.repository(call.world, call.repo, call.doer), 202)


async def search_repos(call: Call) -> Response:
    """Repositories the caller may see."""
    word, topic = call.query("q").lower(), call.query("topic") == "true"
    found = [
        each
        for each in call.world.repos.values()
        if rights.may_read(call.world, call.doer, each)
        and (word in each.topics if topic else word in each.name.lower())
    ]
    rows = [render.repository(call.world, each, call.doer) for each in call.paged(found)]
    return call.json({"ok": True, "data": rows})


async def owned_repos(call: Call) -> Response:
    """The repositories of a user or an organisation."""
    owner = call.world.user(call.param("owner_name"))
    if owner is None:
        raise not_found()
    rows = [each for each in call.world.repos.values() if each.owner_id == owner.id]
    # cut into pages first, filtered by visibility then: pages may be short
    shown = [each for each in call.paged(rows) if rights.may_read(call.world, call.doer, each)]
    return call.json([render.repository(call.world, each, call.doer) for each in shown])


async def my_repos(call: Call) -> Response:
    """The repositories the caller works in."""
    rows = [each for each in call.world.repos.values() if _works_in(call, each)]
    return call.json([render.repository(call.world, each, call.doer) for each in call.paged(rows)])


def _works_in(call: Call, repo: Repo) -> bool:
    mine = call.me.id == repo.owner_id or call.me.id in repo.collaborators
    return mine or any(call.me.id in team.members for team in call.world.owner(repo).teams.values())


async def set_topics(call: Call) -> Response:
    """Replace the topics."""
    call.need_level(Level.ADMIN)
    topics = call.body.get("topics")
    call.repo.topics = [str(each) for each in topics] if isinstance(topics, list) else []
    return call.nothing()


# ---------------------------------------------------------------------- who


async def put_collaborator(call: Call) -> Response:
    """Give a user a level; `write` when none is named."""
    call.need_level(Level.ADMIN)
    user = call.world.user(call.param("username"))
    if user is None:
        raise Refusal(422, "user does not exist")
    call.repo.collaborators[user.id] = LEVELS.get(call.text("permission") or "write", Level.WRITE)
    return call.nothing()


async def delete_collaborator(call: Call) -> Response:
    """Take a user's level away."""
    call.need_level(Level.ADMIN)
    user = call.world.user(call.param("username"))
    if user is not None:
        call.repo.collaborators.pop(user.id, None)
    return call.nothing()


async def permission(call: Call) -> Response:
    """The general access mode: for site admins, repository admins and the user himself."""
    login = call.param("username")
    mine = call.world.rules.own_permission and call.me.login.lower() == login.lower()
    if not mine and not call.me.is_admin and rights.level(call.world, call.me, call.repo) < Level.ADMIN:
        raise Refusal(403, "Only admins can query all permissions")
    user = call.world.user(login)
    if user is None:
        raise Refusal(404, f"user does not exist [uid: 0, name: {login}]")
    name = render.PERMISSIONS[rights.level(call.world, user, call.repo)]
    return call.json({"permission": name, "role_name": name, "user": render.user(call.world, user)})


async def assignees(call: Call) -> Response:
    """Users with write access; in organisations also those whose team may merely read pull requests."""
    world, repo = call.world, call.repo
    owner = world.owner(repo)
    ids = {each for each, level in repo.collaborators.items() if level >= Level.WRITE}
    for team in owner.teams.values():
        sees_pulls = (team.units.get(rights.PULLS, Level.NONE) if team.units else team.level) >= Level.READ
        if sees_pulls:
            ids |= team.members
    if not owner.is_org:
        ids.add(owner.id)
    found = sorted((world.users[each] for each in ids if each in world.users), key=lambda each: each.login)
    return call.json([render.user(world, each) for each in found])


async def repo_teams(call: Call) -> Response:
    """The teams of the owning organisation; a user's repository is refused, which tells the two apart."""
    owner = call.world.owner(call.repo)
    if not owner.is_org:
        raise Refusal(405, "repo is not owned by an organization")
    return call.json([team_json(each) for each in owner.teams.values()])


ROUTES: list[Route] = [
    ("POST", "/user/repos", create_own),
    ("GET", "/user/repos", my_repos),
    ("POST", "/orgs/{org}/repos", create_in_org),
    ("GET", "/orgs/{owner_name}/repos", owned_repos),
    ("GET", "/users/{owner_name}/repos", owned_repos),
    ("GET", "/repos/search", search_repos),
    ("GET", "/repositories/{id}", get_repo),
    ("GET", "/repos/{owner}/{repo}", get_repo),
    ("PATCH", "/repos/{owner}/{repo}", edit_repo),
    ("DELETE", "/repos/{owner}/{repo}", delete_repo),
    ("POST", "/repos/{owner}/{repo}/transfer", transfer),
    ("PUT", "/repos/{owner}/{repo}/topics", set_topics),
    ("PUT", "/repos/{owner}/{repo}/collaborators/{username}", put_collaborator),
    ("DELETE", "/repos/{owner}/{repo}/collaborators/{username}", delete_collaborator),
    ("GET", "/repos/{owner}/{repo}/collaborators/{username}/permission", permission),
    ("GET", "/repos/{owner}/{repo}/assignees", assignees),
    ("GET", "/repos/{owner}/{repo}/teams", repo_teams),
]
