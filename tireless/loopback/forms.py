"""The few web pages browsers need here: signing in, and the form that lets anyone put labels on a new issue."""

from __future__ import annotations

import hmac
import html
import secrets
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from tireless.loopback import issues, rights
from tireless.loopback.call import Call
from tireless.loopback.gitrepo import GitRepos
from tireless.loopback.state import Level, User
from tireless.loopback.world import World

_COOKIE = "i_like_gitea"


class Pages:
    """Sessions by cookie, and a token against cross-site posts, as the real one has them."""

    def __init__(self, world: World, git: GitRepos) -> None:
        self._world = world
        self._git = git
        self._sessions: dict[str, int] = {}

    async def login_page(self, request: Request) -> Response:
        """The form."""
        return self._page(request, '<form method="post"><input name="user_name"><input name="password"></form>')

    async def login(self, request: Request) -> Response:
        """Sign in by name and password: a session cookie and a redirect."""
        form = await _form(request)
        if not self._csrf_fits(request, form):
            return Response("Bad Request: invalid CSRF token", 400)
        user = self._world.user(form.get("user_name", ""))
        if user is None or not user.password or not hmac.compare_digest(user.password, form.get("password", "")):
            return self._page(request, "<p>Username or password is incorrect.</p>")
        session = secrets.token_hex(16)
        self._sessions[session] = user.id
        answer = RedirectResponse("/", 303)
        answer.set_cookie(_COOKIE, session, httponly=True)
        return answer

    async def new_issue_page(self, request: Request) -> Response:
        """The form."""
        if self._who(request) is None:
            return RedirectResponse("/user/login", 303)
        return self._page(request, '<form method="post"><input name="title"></form>')

    async def new_issue(self, request: Request) -> Response:
        """Open an issue: label ids are taken from anyone who may open one, and attached in his name."""
        user, form = self._who(request), await _form(request)
        repo = self._world.repo(request.path_params["owner"], request.path_params["repo"])
        if user is None:
            return RedirectResponse("/user/login", 303)
        if not self._csrf_fits(request, form):
            return Response("Bad Request: invalid CSRF token", 400)
        if repo is None or rights.unit_level(self._world, user, repo, rights.ISSUES) < Level.READ:
            return Response("Not Found", 404)
        title = form.get("title", "")
        if not title.strip():
            return JSONResponse({"errorMessage": "Title can not be empty.", "renderFormat": "text"}, 400)
        ids = [int(each) for each in form.get("label_ids", "").split(",") if each.isascii() and each.isdigit()]
        ids.sort()
        call = Call(self._world, self._git, request, user, None, {}, repo)
        issue = issues.open_issue(call, user, title=title, body=form.get("content", ""), label_ids=ids)
        return JSONResponse({"redirect": f"/{self._world.path(repo)}/issues/{issue.number}"})

    def _who(self, request: Request) -> User | None:
        found = self._sessions.get(request.cookies.get(_COOKIE, ""))
        return None if found is None else self._world.users.get(found)

    def _page(self, request: Request, content: str) -> Response:
        token = request.cookies.get("_csrf") or secrets.token_hex(16)
        hidden = f'<input type="hidden" name="_csrf" value="{html.escape(token)}">'
        answer = HTMLResponse(f"<!doctype html><title>loopback</title>{content.replace('</form>', hidden + '</form>')}")
        answer.set_cookie("_csrf", token, httponly=True)
        return answer

    def _csrf_fits(self, request: Request, form: dict[str, str]) -> bool:
        cookie = request.cookies.get("_csrf", "")
        return bool(cookie) and hmac.compare_digest(cookie, form.get("_csrf", ""))


async def _form(request: Request) -> dict[str, str]:
    """A urlencoded body; the last of several values."""
    text = (await request.body()).decode("utf-8", "replace")
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}
