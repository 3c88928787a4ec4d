"""The tests' own door, below `/_loopback/`: faults, requests, state, clock, rules, users. Bound to loopback only."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import partial
from typing import cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tireless.loopback import journal as journals
from tireless.loopback import render, render_issue
from tireless.loopback.faults import Do, FaultPlan, Faults, When
from tireless.loopback.gitrepo import GitRepos
from tireless.loopback.journal import Journal
from tireless.loopback.state import Rules
from tireless.loopback.webhooks import Deliverer
from tireless.loopback.world import World

_Endpoint = Callable[["Admin", Request], Awaitable[Response]]


class Admin:
    """What the endpoints act on."""

    def __init__(self, world: World, git: GitRepos, journal: Journal, faults: Faults, deliverer: Deliverer) -> None:
        self.world = world
        self.git = git
        self.journal = journal
        self.faults = faults
        self.deliverer = deliverer


async def add_user(admin: Admin, request: Request) -> Response:
    """{login, password?, is_admin?, token?, scopes?}: a user with a token, whose secret is answered."""
    body = await _json(request)
    login = str(body["login"])
    user = admin.world.user(login) or admin.world.add_user(
        login, is_admin=body.get("is_admin") is True, password=str(body.get("password") or "")
    )
    secret = str(body.get("token") or secrets.token_hex(20))
    scopes = body.get("scopes")
    names = frozenset(str(each) for each in scopes) if isinstance(scopes, list) else frozenset({"all"})
    admin.world.add_token(user, f"token {secrets.token_hex(4)}", secret=secret, scopes=names)
    return JSONResponse({"id": user.id, "login": user.login, "token": secret}, 201)


async def set_fault(admin: Admin, request: Request) -> Response:
    """The fields of `FaultPlan` as JSON; `body` is text, and there is no callback."""
    body = await _json(request)
    try:
        plan = FaultPlan(
            method=str(body.get("method", "*")),
            path=str(body.get("path", "")),
            do=cast("Do", body.get("do")),
            when=cast("When", body.get("when", "before")),
            nth=int(str(body.get("nth", 1))),
            times=int(str(body.get("times", 1))),
            login=str(body.get("login", "")),
            status=int(str(body.get("status", 500))),
            body=str(body.get("body", "")).encode(),
            headers={str(k): str(v) for k, v in cast("dict[str, object]", body.get("headers", {})).items()},
        )
    except (ValueError, re.error) as error:
        return JSONResponse({"message": str(error)}, 422)
    return JSONResponse(admin.faults.add(plan).as_json(), 201)


async def get_fault(admin: Admin, request: Request) -> Response:
    """How a fault stands; with `wait=seconds`, once it has struck or that time is over."""
    fault = admin.faults.get(int(request.path_params["fault"]))
    if fault is None:
        return JSONResponse({"message": "no such fault"}, 404)
    try:
        async with asyncio.timeout(float(request.query_params.get("wait", "0"))):
            await fault.reached.wait()
    except TimeoutError:
        pass
    return JSONResponse(fault.as_json())


async def release_fault(admin: Admin, request: Request) -> Response:
    """Let who waits at a fault go on."""
    fault = admin.faults.get(int(request.path_params["fault"]))
    if fault is None:
        return JSONResponse({"message": "no such fault"}, 404)
    fault.released.set()
    return JSONResponse(fault.as_json())


async def drop_fault(admin: Admin, request: Request) -> Response:
    """Take a fault away."""
    admin.faults.drop(int(request.path_params["fault"]))
    return Response(status_code=204)


async def clear_faults(admin: Admin, _: Request) -> Response:
    """Take all faults away."""
    admin.faults.clear()
    return Response(status_code=204)


async def requests(admin: Admin, request: Request) -> Response:
    """What was received; `after=SEQ` for the newer ones."""
    return JSONResponse(journals.as_json(admin.journal.rows(after=int(request.query_params.get("after", "0")))))


async def clear_requests(admin: Admin, _: Request) -> Response:
    """Forget what was received."""
    admin.journal.clear()
    return Response(status_code=204)


async def clock(admin: Admin, request: Request) -> Response:
    """{advance: s} moves, {offset: s} sets, {freeze: true|seconds} stops, {freeze: false} lets run."""
    body = await _json(request)
    moved = admin.world.clock
    if "freeze" in body:
        freeze = body["freeze"]
        if freeze is False:
            moved.run()
        else:
            moved.freeze(None if freeze is True else float(str(freeze)))
    if "offset" in body:
        moved.offset_s = float(str(body["offset"]))
    if "advance" in body:
        moved.advance(float(str(body["advance"])))
    return JSONResponse({"now": moved.now(), "offset": moved.offset_s, "frozen": moved.frozen_at is not None})


async def rules(admin: Admin, request: Request) -> Response:
    """Change settings of the instance; unknown names are refused."""
    body = await _json(request)
    names = {each.name for each in fields(Rules)}
    for name, value in body.items():
        if name not in names:
            return JSONResponse({"message": f"no rule is called {name}; there are {sorted(names)}"}, 422)
        setattr(admin.world.rules, name, value)
    return JSONResponse({name: getattr(admin.world.rules, name) for name in names})


async def dump(admin: Admin, _: Request) -> Response:
    """Everything people could see, as JSON."""
    return JSONResponse(state(admin.world))


def state(world: World) -> dict[str, object]:
    """The whole state: per repository its issues with labels, comments, timeline, and its branches."""
    repos = {}
    for repo in world.repos.values():
        repos[world.path(repo)] = {
            "id": repo.id,
            "default_branch": repo.default_branch,
            "archived": repo.archived,
            "branches": repo.branches,
            "labels": [render.repo_label(world, repo, each) for each in repo.labels.values()],
            "issues": [
                {
                    **render_issue.issue(world, repo, issue),
                    "comment_bodies": [each.body for each in issue.entries if each.type == "comment"],
                    "timeline": [render_issue.timeline_entry(world, repo, issue, each) for each in issue.entries],
                    "depends_on": issue.blocked_by,
                    "pull": None if issue.pull is None else render_issue.pull(world, repo, issue, None),
                }
                for issue in repo.issues.values()
            ],
        }
    return {
        "now": world.clock.now(),
        "users": [{"id": each.id, "login": each.login, "is_org": each.is_org} for each in world.users.values()],
        "repositories": repos,
    }


async def _json(request: Request) -> dict[str, object]:
    raw = await request.body()
    data = json.loads(raw) if raw.strip() else {}
    return data if isinstance(data, dict) else {}


_ROUTES: tuple[tuple[str, str, _Endpoint], ...] = (
    ("POST", "users", add_user),
    ("POST", "faults", set_fault),
    ("DELETE", "faults", clear_faults),
    ("GET", "faults/{fault:int}", get_fault),
    ("DELETE", "faults/{fault:int}", drop_fault),
    ("POST", "faults/{fault:int}/release", release_fault),
    ("GET", "requests", requests),
    ("DELETE", "requests", clear_requests),
    ("POST", "clock", clock),
    ("POST", "rules", rules),
    ("GET", "state", dump),
)


def routes(world: World, git: GitRepos, journal: Journal, faults: Faults, deliverer: Deliverer) -> list[Route]:
    """The admin routes of one instance."""
    admin = Admin(world, git, journal, faults, deliverer)
    return [Route(f"/_loopback/{path}", partial(handler, admin), methods=[method]) for method, path, handler in _ROUTES]
