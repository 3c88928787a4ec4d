"""Puts the loopback forge's parts together: routes, who asks, what he may see, and how a refusal is answered."""

from __future__ import annotations

import json
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from tireless.loopback import (
    admin,
    comments,
    dependencies,
    files,
    githttp,
    issues,
    labels,
    people,
    pulls,
    repos,
    rights,
    webhooks,
)
from tireless.loopback.call import Call, Handler, Refusal, json_response, not_found
from tireless.loopback.faults import Faults
from tireless.loopback.forms import Pages
from tireless.loopback.gate import Gate
from tireless.loopback.gitrepo import GitRepos
from tireless.loopback.journal import Journal
from tireless.loopback.state import Repo, User
from tireless.loopback.webhooks import Deliverer
from tireless.loopback.world import World

API = "/api/v1"

# Literal segments before `{parameters}` of the same place: the first match wins.
_TABLES = (
    issues.ROUTES[:1],
    repos.ROUTES,
    files.ROUTES,
    comments.ROUTES,
    issues.ROUTES[1:],
    labels.ROUTES,
    dependencies.ROUTES,
    pulls.ROUTES,
    webhooks.ROUTES,
    people.ROUTES,
)


class Forge:
    """The parts of one instance."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.git = GitRepos(world.git_root)
        self.journal = Journal()
        self.faults = Faults()
        self.deliverer = Deliverer(world)
        self.pages = Pages(world, self.git)

    def app(self) -> Gate:
        """The ASGI application."""
        inner = Starlette(routes=self._routes())
        return Gate(inner, world=self.world, journal=self.journal, faults=self.faults)

    def _routes(self) -> list[BaseRoute]:
        found: list[BaseRoute] = [*admin.routes(self.world, self.git, self.journal, self.faults, self.deliverer)]
        for table in _TABLES:
            for method, path, handler in table:
                found.append(Route(API + path, partial(self._serve, handler), methods=[method]))
        found.append(
            Route("/api/forgejo/v1/version", partial(self._serve, people.forgejo_version), methods=["GET"]),
        )
        found += [
            Route("/user/login", self.pages.login_page, methods=["GET"]),
            Route("/user/login", self.pages.login, methods=["POST"]),
            Route("/{owner}/{repo}/issues/new", self.pages.new_issue_page, methods=["GET"]),
            Route("/{owner}/{repo}/issues/new", self.pages.new_issue, methods=["POST"]),
            Route("/{owner}/{repo}.git/{rest:path}", self._git, methods=["GET", "POST"]),
        ]
        return found

    async def _git(self, request: Request) -> Response:
        return await githttp.serve(self.world, self.git, request)

    async def _serve(self, handler: Handler, request: Request) -> Response:
        if request.method == "HEAD":  # starlette would answer it; the real one does not
            return Response(status_code=405, headers={"Allow": "GET"})
        try:
            return await self._call(handler, request)
        except Refusal as refusal:
            return self._refused(refusal)

    async def _call(self, handler: Handler, request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        identity = self.world.identify(authorization)
        if identity is None and authorization:
            raise Refusal(401, "user does not exist [uid: 0, name: ]")
        doer, token = identity if identity is not None else (None, None)
        category = rights.scope_of(request.url.path.removeprefix(API))
        if not rights.in_scope(token, request.method, category):
            scope = f"{'read' if request.method in ('GET', 'HEAD') else 'write'}:{category}"
            raise Refusal(403, f"token does not have at least one of required scope(s), required=[{scope}]")
        if doer is None and request.method not in ("GET", "HEAD"):
            raise Refusal(401, "token is required")
        call = Call(self.world, self.git, request, doer, token, await _body(request))
        moved = self._find_repo(call, doer)
        if moved is not None:
            return moved
        return await handler(call)

    def _find_repo(self, call: Call, doer: User | None) -> Response | None:
        """Put the path's repository into the call; an answer when it has moved."""
        params = call.request.path_params
        repo: Repo | None
        if "repo" in params:
            repo = self.world.repo(params["owner"], params["repo"])
            moved = None if repo is not None else self.world.moved(params["owner"], params["repo"])
            if moved is not None:
                return self._redirect(call, moved)
        elif call.request.url.path.startswith(f"{API}/repositories/"):
            repo = self.world.repos.get(call.number("id"))
        else:
            return None
        if repo is None or not rights.may_read(self.world, doer, repo):
            raise not_found()
        call.found_repo = repo
        return None

    def _redirect(self, call: Call, moved: Repo) -> Response:
        """To the new names, relative, for every method."""
        params, url = call.request.path_params, call.request.url
        rest = url.path.removeprefix(f"{API}/repos/{params['owner']}/{params['repo']}")
        query = f"?{url.query}" if url.query else ""
        return RedirectResponse(f"{API}/repos/{self.world.path(moved)}{rest}{query}", self.world.rules.redirect_status)

    def _refused(self, refusal: Refusal) -> Response:
        if refusal.bare:
            return Response(status_code=refusal.status)
        if refusal.page:
            return HTMLResponse("<!DOCTYPE html><title>Internal server error</title>", refusal.status)
        if refusal.raw is not None:
            return json_response(refusal.raw, refusal.status)
        said: dict[str, object] = {"message": refusal.message, "url": f"{self.world.root_url}/api/swagger"}
        if refusal.status == 404:
            said["errors"] = None
        return json_response(said, refusal.status)


async def _body(request: Request) -> dict[str, object]:
    """The JSON body, an empty one for none; 422 for what is no object."""
    raw = await request.body()
    if not raw.strip():
        return {}
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refusal(422, "invalid character in JSON body") from None
    if not isinstance(data, dict):
        raise Refusal(422, "json: cannot unmarshal into Go value")
    return data
