"""What people do on a forge, for demo and tests, on the loopback forge and a real one alike. No service uses it."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

import httpx

from tireless.errors import ForgeDenied, ForgeGarbled
from tireless.forge.http import Http, segment
from tireless.forge.reply import Answer

Json = dict[str, object]

_PASSWORD = "Person-1234"  # noqa: S105  of people who live on a forge of the demo or the tests


class Person:
    """One user of a forge, by token (and by password where a browser is needed). `async with` it, or `aclose()` it."""

    def __init__(self, *, url: str, login: str, token: str, password: str = "") -> None:
        self.url = url.rstrip("/")
        self.login = login
        self.token = token
        self.password = password
        self._http = Http(name="person", url=url, token=token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def api(self, method: str, path: str, body: object = None, **params: str | int) -> Answer:
        """Any call below /api/v1; sent once unless it is a GET. Raises the ForgeError tree."""
        return await self._http.call(method, path, body=body, params=params or None, repeat=method == "GET")

    # ------------------------------------------------------------------ as a site admin

    async def create_user(self, login: str, *, password: str | None = None, scopes: Sequence[str] = ("all",)) -> Person:
        """A new user with a token, and a password the demo's and tests' people all have unless one is given."""
        password = _PASSWORD if password is None else password
        body = {
            "username": login,
            "password": password,
            "email": f"{login.lower()}@localhost.local",
            "must_change_password": False,
        }
        await self.api("POST", "/admin/users", body)
        token = await make_token(self.url, login=login, password=password, name="first", scopes=scopes)
        return Person(url=self.url, login=login, token=token, password=password)

    async def delete_user(self, login: str) -> None:
        """A user vanishes; what he wrote is the Ghost's then."""
        await self.api("DELETE", f"/admin/users/{segment(login)}")

    # ------------------------------------------------------------------ repositories

    async def create_repository(
        self, name: str, *, org: str | None = None, private: bool = False, files: dict[str, str] | None = None
    ) -> Json:
        """A repository with a first commit on `main`, and one more for each of `files`."""
        path = "/user/repos" if org is None else f"/orgs/{segment(org)}/repos"
        body = {"name": name, "private": private, "auto_init": True, "default_branch": "main", "readme": "Default"}
        made = (await self.api("POST", path, body)).mapping()
        for file, content in (files or {}).items():
            await self.commit(f"{org or self.login}/{name}", file, content)
        return made

    async def edit_repository(self, repo: str, **changes: object) -> Json:
        """Rename (`name=`), archive (`archived=True`), switch units …"""
        return (await self.api("PATCH", f"/repos/{repo}", changes)).mapping()

    async def commit(
        self,
        repo: str,
        path: str,
        content: str,
        *,
        branch: str = "main",
        new_branch: str | None = None,
        message: str = "",
    ) -> str:
        """A commit that creates a file, on a branch or on a new one made from it; its id."""
        body: Json = {
            "content": base64.b64encode(content.encode()).decode(),
            "message": message or f"Add {path}",
            "branch": branch,
        }
        if new_branch is not None:
            body["new_branch"] = new_branch
        made = (await self.api("POST", f"/repos/{repo}/contents/{quote(path)}", body)).mapping()
        commit = made.get("commit")
        return str(commit.get("sha")) if isinstance(commit, dict) else ""

    async def add_collaborator(self, repo: str, login: str, permission: str = "write") -> None:
        """Give someone `read`, `write` or `admin`."""
        await self.api("PUT", f"/repos/{repo}/collaborators/{segment(login)}", {"permission": permission})

    async def remove_collaborator(self, repo: str, login: str) -> None:
        """Take it away."""
        await self.api("DELETE", f"/repos/{repo}/collaborators/{segment(login)}")

    async def create_org(self, name: str) -> Json:
        """An organisation of his own."""
        return (await self.api("POST", "/orgs", {"username": name})).mapping()

    async def create_team(
        self, org: str, name: str, *, units: dict[str, str], members: Sequence[str], permission: str = "read"
    ) -> int:
        """A team over all repositories of the organisation, with a level per unit; its id."""
        body = {
            "name": name,
            "permission": permission,
            "units_map": units,
            "units": sorted(units),
            "includes_all_repositories": True,
        }
        team = _id(await self.api("POST", f"/orgs/{segment(org)}/teams", body))
        for login in members:
            await self.api("PUT", f"/teams/{team}/members/{segment(login)}")
        return team

    # ------------------------------------------------------------------ labels

    async def create_label(
        self, repo: str, name: str, *, exclusive: bool = False, color: str = "4a7", org: bool = False
    ) -> int:
        """A label of the repository, or of its organisation (`repo` is the organisation's name then); its id."""
        path = f"/orgs/{segment(repo)}/labels" if org else f"/repos/{repo}/labels"
        return _id(await self.api("POST", path, {"name": name, "color": f"#{color}", "exclusive": exclusive}))

    async def delete_label_definition(self, repo: str, label_id: int) -> None:
        """The definition goes, from every issue."""
        await self.api("DELETE", f"/repos/{repo}/labels/{label_id}")

    async def rename_label(self, repo: str, label_id: int, name: str) -> None:
        """The definition gets another name."""
        await self.api("PATCH", f"/repos/{repo}/labels/{label_id}", {"name": name})

    async def add_labels(self, repo: str, number: int, *label_ids: int) -> None:
        """Put labels on an issue, in one call."""
        await self.api("POST", f"/repos/{repo}/issues/{number}/labels", {"labels": list(label_ids)})

    async def remove_label(self, repo: str, number: int, label_id: int) -> None:
        """Take one label off."""
        await self.api("DELETE", f"/repos/{repo}/issues/{number}/labels/{label_id}")

    # ------------------------------------------------------------------ issues

    async def create_issue(self, repo: str, title: str, body: str = "", *, label_ids: Sequence[int] = ()) -> int:
        """By the API: labels count only from those who may write issues. Its number."""
        made = await self.api(
            "POST", f"/repos/{repo}/issues", {"title": title, "body": body, "labels": list(label_ids)}
        )
        return _number(made)

    async def create_issue_by_form(
        self, repo: str, title: str, body: str = "", *, label_ids: Sequence[int] = ()
    ) -> int:
        """By the web form: the labels are attached in the author's name, whoever he is. Needs the password."""
        verify = self.url.startswith("https:")  # to read the certificates there are costs more than all the rest
        async with httpx.AsyncClient(
            base_url=self.url, trust_env=False, timeout=20, follow_redirects=False, verify=verify
        ) as browser:
            await self._sign_in(browser)
            page = f"/{repo}/issues/new"
            form = {
                "_csrf": _csrf((await browser.get(page)).text),
                "title": title,
                "content": body,
                "label_ids": ",".join(str(each) for each in label_ids),
            }
            answer = await _post(browser, page, form)
        found = re.search(r"/issues/(\d+)$", str(_redirect(answer)))
        if found is None:
            raise ForgeGarbled(f"POST {page}: the form was answered {answer.status_code} without an issue")
        return int(found[1])

    async def _sign_in(self, browser: httpx.AsyncClient) -> None:
        token = _csrf((await browser.get("/user/login")).text)
        form = {"_csrf": token, "user_name": self.login, "password": self.password}
        answer = await _post(browser, "/user/login", form)
        if not answer.is_redirect:
            raise ForgeDenied(f"POST /user/login: {self.login} could not sign in", status=answer.status_code)

    async def edit_issue(self, repo: str, number: int, **changes: object) -> None:
        """`title=`, `body=`, `state=`."""
        await self.api("PATCH", f"/repos/{repo}/issues/{number}", changes)

    async def close(self, repo: str, number: int) -> None:
        """Close an issue or a pull request."""
        await self.edit_issue(repo, number, state="closed")

    async def reopen(self, repo: str, number: int) -> None:
        """Open it again."""
        await self.edit_issue(repo, number, state="open")

    async def comment(self, repo: str, number: int, body: str) -> int:
        """A comment; its id."""
        return _id(await self.api("POST", f"/repos/{repo}/issues/{number}/comments", {"body": body}))

    async def issues(self, repo: str) -> list[Json]:
        """All issues of a repository, pull requests left out, as the forge writes them."""
        return await self._all(f"/repos/{repo}/issues", state="all", type="issues")

    async def issue(self, repo: str, number: int) -> Json:
        """One issue as the forge writes it."""
        return (await self.api("GET", f"/repos/{repo}/issues/{number}")).mapping()

    async def comments(self, repo: str, number: int) -> list[Json]:
        """The comments as the forge writes them."""
        rows = (await self.api("GET", f"/repos/{repo}/issues/{number}/comments")).sequence()
        return [each for each in rows if isinstance(each, dict)]

    # ------------------------------------------------------------------ pull requests

    async def create_pull(self, repo: str, title: str, *, head: str, base: str = "main", body: str = "") -> int:
        """Open a pull request; its number."""
        made = await self.api(
            "POST", f"/repos/{repo}/pulls", {"title": title, "head": head, "base": base, "body": body}
        )
        return _number(made)

    async def pulls(self, repo: str) -> list[Json]:
        """All pull requests, in any state, as the forge writes them."""
        return await self._all(f"/repos/{repo}/pulls", state="all")

    async def merge(self, repo: str, number: int, *, style: str = "merge") -> None:
        """Merge a pull request."""
        await self.api("POST", f"/repos/{repo}/pulls/{number}/merge", {"Do": style})

    async def _all(self, path: str, **params: str | int) -> list[Json]:
        found: list[Json] = []
        for page in range(1, 1000):
            rows = (await self.api("GET", path, None, **params, page=page, limit=50)).sequence()
            if not rows:
                break
            found += [each for each in rows if isinstance(each, dict)]
        return found


async def make_token(url: str, *, login: str, password: str, name: str, scopes: Sequence[str]) -> str:
    """A token for a user, by his password."""
    http = Http(name="person", url=url, basic=(login, password))
    try:
        answer = await http.call("POST", f"/users/{segment(login)}/tokens", body={"name": name, "scopes": list(scopes)})
    finally:
        await http.close()
    return str(answer.mapping()["sha1"])


async def _post(browser: httpx.AsyncClient, path: str, form: dict[str, str]) -> httpx.Response:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return await browser.post(path, content=urlencode(form), headers=headers)


def _csrf(page: str) -> str:
    """The token against cross-site posts a page carries; empty for servers that have none any more."""
    found = re.search(r'name="_csrf" value="([^"]+)"', page) or re.search(r"csrfToken: '([^']+)'", page)
    return found[1] if found else ""


def _redirect(answer: httpx.Response) -> object:
    """Where a form led: a Location, or `redirect` in JSON."""
    if answer.is_redirect:
        return answer.headers.get("location", "")
    try:
        data = answer.json()
    except ValueError:
        return ""
    return data.get("redirect", "") if isinstance(data, dict) else ""


def _id(answer: Answer) -> int:
    return _whole(answer, "id")


def _number(answer: Answer) -> int:
    return _whole(answer, "number")


def _whole(answer: Answer, field: str) -> int:
    found = answer.mapping().get(field)
    if not isinstance(found, int):
        raise answer.garbled(f"{field} is no number")
    return found
