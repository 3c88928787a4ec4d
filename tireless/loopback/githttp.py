"""Git over HTTP: hands requests to `git http-backend`, after the checks a forge makes. Pushes then change the rows."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from tireless.loopback import pushes, rights
from tireless.loopback.gitrepo import DENIED, GitRepos, git_env
from tireless.loopback.state import Level, Repo, User
from tireless.loopback.world import World

_TIME_LIMIT_S = 300.0
_FILES = ("info/refs", "git-upload-pack", "git-receive-pack", "HEAD")


async def serve(world: World, git: GitRepos, request: Request) -> Response:
    """One request of a git client."""
    owner, name, rest = request.path_params["owner"], request.path_params["repo"], request.path_params["rest"]
    if rest not in _FILES and not rest.startswith("objects/"):
        return Response(status_code=404)
    writes = rest == "git-receive-pack" or request.query_params.get("service") == "git-receive-pack"
    identity = world.identify(request.headers.get("authorization", ""))
    if identity is None and "authorization" in request.headers:
        return _ask()
    user, token = identity if identity is not None else (None, None)
    repo = world.repo(owner, name)
    if repo is None:
        moved = world.moved(owner, name)
        if moved is not None and user is not None:
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"/{world.path(moved)}.git/{rest}{query}", world.rules.redirect_status)
        return _missing(world, owner, user, writes=writes)
    level = rights.unit_level(world, user, repo, rights.CODE)
    if user is None and (writes or level < Level.READ):
        return _ask()
    if level < Level.READ:
        return PlainTextResponse("Repository not found", 404)
    if not rights.in_scope(token, "POST" if writes else "GET", "repository"):
        return PlainTextResponse("token does not have at least one of required scope(s)", 403)
    if writes and repo.archived:
        return PlainTextResponse("This repository is archived. You can view files and clone it, but cannot push", 403)
    if rest != "git-receive-pack" or user is None:
        return await _backend(world, repo, request, rest, user)
    brand = "Forgejo: " if world.rules.is_forgejo else ""
    denied = f"{brand}User permission denied for writing." if level < Level.WRITE else ""
    async with repo.lock:
        answer = await _backend(world, repo, request, rest, user, denied)
        await pushes.received(world, git, repo, user)
    return answer


def _missing(world: World, owner: str, user: User | None, *, writes: bool) -> Response:
    if user is None:
        return _ask()
    if not writes:
        return PlainTextResponse("Repository not found", 404)
    found = world.user(owner)
    kind = "organizations" if found is not None and found.is_org else "users"
    return PlainTextResponse(f"Push to create is not enabled for {kind}.", 403)


def _ask() -> Response:
    return PlainTextResponse("Unauthorized", 401, headers={"WWW-Authenticate": 'Basic realm="Gitea"'})


async def _backend(
    world: World, repo: Repo, request: Request, rest: str, user: User | None, denied: str = ""
) -> Response:
    """One run of the CGI program."""
    body = await request.body()
    env = {
        **git_env(world.git_root),
        "GIT_PROJECT_ROOT": str(world.git_root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": f"/{repo.id}.git/{rest}",
        "REQUEST_METHOD": request.method,
        "QUERY_STRING": request.url.query,
        "CONTENT_TYPE": request.headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
        "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        "REMOTE_ADDR": "127.0.0.1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    if denied:
        env[DENIED] = denied
    if user is not None:
        env["REMOTE_USER"] = user.login
    process = await asyncio.create_subprocess_exec(
        "git",
        "http-backend",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    try:
        async with asyncio.timeout(_TIME_LIMIT_S):
            out, err = await process.communicate(body)
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    head, separator, content = out.partition(b"\r\n\r\n")
    if not separator:
        return Response(f"git http-backend failed: {err.decode('utf-8', 'replace')}", 500)
    status, headers = 200, {}
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(": ")
        if name.lower() == "status":
            status = int(value.split(" ", 1)[0])
        else:
            headers[name] = value
    return Response(content, status, headers=headers)
