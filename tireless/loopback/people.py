"""The loopback forge's people: users, tokens, organisations, teams, and what the server says of itself."""

from __future__ import annotations

import re
import secrets

from starlette.responses import Response

from tireless.loopback import render, rights
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.state import Level, Team, User

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,38}$")

LEVELS = {name: level for level, name in render.PERMISSIONS.items()}


async def version(call: Call) -> Response:
    """The version."""
    return call.json({"version": call.world.rules.version})


async def settings_api(call: Call) -> Response:
    """Page sizes."""
    rules = call.world.rules
    return call.json(
        {
            "max_response_items": rules.page_limit,
            "default_paging_num": rules.default_page,
            "default_git_trees_per_page": 1000,
            "default_max_blob_size": 10485760,
            "default_max_response_size": 104857600,
        }
    )


async def forgejo_version(call: Call) -> Response:
    """Only Forgejo has it."""
    if not call.world.rules.is_forgejo:
        raise not_found()
    return call.json({"version": call.world.rules.version})


async def me(call: Call) -> Response:
    """The caller."""
    return call.json(render.user(call.world, call.me))


async def get_user(call: Call) -> Response:
    """A user."""
    found = call.world.user(call.param("username"))
    if found is None:
        raise not_found()
    return call.json(render.user(call.world, found))


def _need_site_admin(call: Call) -> None:
    if not call.me.is_admin:
        raise Refusal(403, "user should be the site admin")


async def create_user(call: Call) -> Response:
    """A new user, by a site admin."""
    _need_site_admin(call)
    user = call.world.add_user(_free_name(call, "username"), password=call.text("password"))
    user.email = call.text("email", required=True)
    return call.json(render.user(call.world, user), 201)


async def delete_user(call: Call) -> Response:
    """A user vanishes; what he wrote is the Ghost's then."""
    _need_site_admin(call)
    user = call.world.user(call.param("username"))
    if user is None:
        raise not_found()
    if any(repo.owner_id == user.id for repo in call.world.repos.values()):
        raise Refusal(422, "user still has ownership of repositories")
    call.world.remove_user(user)
    return call.nothing()


def _free_name(call: Call, field: str) -> str:
    name = call.text(field, required=True)
    if not _NAME.match(name):
        raise Refusal(422, f"[{field.title()}]: AlphaDashDot")
    if call.world.user(name) is not None:
        raise Refusal(422, f"user already exists [name: {name}]")
    return name


async def create_token(call: Call) -> Response:
    """A token, by password only; a site admin may make one for anybody."""
    if call.token is not None:
        raise Refusal(401, "auth required")
    user = call.world.user(call.param("username"))
    if user is None or (user.id != call.me.id and not call.me.is_admin):
        raise Refusal(403, "cannot create a token for another user")
    asked = call.body.get("scopes")
    scopes = frozenset(str(each) for each in asked) if isinstance(asked, list) else frozenset[str]()
    if not scopes:
        raise Refusal(400, "access token must have a scope")
    name = call.text("name", required=True)
    if any(each.name == name for each in user.tokens):
        raise Refusal(400, "access token name has been used already")
    token = call.world.add_token(user, name, secret=secrets.token_hex(20), scopes=scopes)
    return call.json(
        {
            "id": token.id,
            "name": name,
            "sha1": token.secret,
            "token_last_eight": token.secret[-8:],
            "scopes": sorted(scopes),
        },
        201,
    )


async def delete_token(call: Call) -> Response:
    """Revoke a token by name or id; by password only."""
    if call.token is not None:
        raise Refusal(401, "auth required")
    wanted = call.param("token")
    found = next((each for each in call.me.tokens if wanted in (each.name, str(each.id))), None)
    if found is None:
        raise not_found()
    call.world.drop_token(call.me, found)
    return call.nothing()


# ---------------------------------------------------------------------- organisations


async def create_org(call: Call) -> Response:
    """A new organisation; its maker is its owner."""
    org = call.world.add_user(_free_name(call, "username"), is_org=True)
    team = Team(id=call.world.next_id("team"), name="Owners", level=Level.OWNER, units={}, members={call.me.id})
    org.teams[team.id] = team
    return call.json(render.organization(call.world, org), 201)


def _org(call: Call) -> User:
    org = call.world.user(call.param("org"))
    if org is None or not org.is_org:
        raise not_found()
    return org


async def get_org(call: Call) -> Response:
    """An organisation; 404 for a user."""
    return call.json(render.organization(call.world, _org(call)))


async def create_team(call: Call) -> Response:
    """A team over all repositories of the organisation."""
    org = _org(call)
    if not rights.owns_org(org, call.me):
        raise Refusal(403, "Must be an organization owner")
    units = call.body.get("units_map")
    team = Team(
        id=call.world.next_id("team"),
        name=call.text("name", required=True),
        level=LEVELS.get(call.text("permission"), Level.NONE),
        units={str(k): LEVELS[str(v)] for k, v in units.items()} if isinstance(units, dict) else {},
    )
    org.teams[team.id] = team
    return call.json(team_json(team), 201)


def team_json(team: Team) -> render.Json:
    return {
        "id": team.id,
        "name": team.name,
        "description": "",
        "organization": None,
        "includes_all_repositories": True,
        "permission": render.PERMISSIONS[team.level],
        "units": sorted(team.units),
        "units_map": {unit: render.PERMISSIONS[level] for unit, level in team.units.items()},
        "can_create_org_repo": team.level is Level.OWNER,
    }


async def list_teams(call: Call) -> Response:
    """The teams of an organisation, for its members."""
    if not call.me.is_admin and not any(call.me.id in each.members for each in _org(call).teams.values()):
        raise Refusal(403, "Must be an organization member")
    return call.json([team_json(each) for each in call.paged(list(_org(call).teams.values()))])


def _find_team(call: Call) -> tuple[User, Team]:
    wanted = call.number("team")
    for user in call.world.users.values():
        if wanted in user.teams:
            return user, user.teams[wanted]
    raise not_found()


def _need_team_member(call: Call, org: User, team: Team) -> None:
    """Team members and owners may ask; other members are refused, to strangers there is no such team."""
    if call.me.is_admin or call.me.id in team.members or rights.owns_org(org, call.me):
        return
    if any(call.me.id in each.members for each in org.teams.values()):
        raise Refusal(403, "Must be a team member")
    raise not_found()


async def team_member(call: Call) -> Response:
    """One member; 404 for who is none."""
    org, team = _find_team(call)
    _need_team_member(call, org, team)
    user = call.world.user(call.param("username"))
    if user is None or user.id not in team.members:
        raise not_found()
    return call.json(render.user(call.world, user))


async def team_members(call: Call) -> Response:
    """Who is in a team."""
    org, team = _find_team(call)
    _need_team_member(call, org, team)
    return call.json([render.user_id(call.world, each) for each in call.paged(sorted(team.members))])


async def change_member(call: Call) -> Response:
    """PUT a user into a team, or DELETE him from it."""
    org, team = _find_team(call)
    user = call.world.user(call.param("username"))
    if not rights.owns_org(org, call.me):
        raise Refusal(403, "Must be an organization owner")
    if user is None:
        raise not_found()
    if call.request.method == "PUT":
        team.members.add(user.id)
    else:
        team.members.discard(user.id)
    return call.nothing()


ROUTES: list[Route] = [
    ("GET", "/version", version),
    ("GET", "/settings/api", settings_api),
    ("GET", "/user", me),
    ("GET", "/users/{username}", get_user),
    ("POST", "/users/{username}/tokens", create_token),
    ("DELETE", "/users/{username}/tokens/{token}", delete_token),
    ("POST", "/admin/users", create_user),
    ("DELETE", "/admin/users/{username}", delete_user),
    ("POST", "/orgs", create_org),
    ("GET", "/orgs/{org}", get_org),
    ("GET", "/orgs/{org}/teams", list_teams),
    ("POST", "/orgs/{org}/teams", create_team),
    ("GET", "/teams/{team}/members", team_members),
    ("GET", "/teams/{team}/members/{username}", team_member),
    ("PUT", "/teams/{team}/members/{username}", change_member),
    ("DELETE", "/teams/{team}/members/{username}", change_member),
]
