"""One API call as a handler sees it: who asks, of what, with which words; and the refusals a handler may raise."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tireless.loopback import rights
from tireless.loopback.gitrepo import GitRepos
from tireless.loopback.state import Issue, Level, Repo, Token, User
from tireless.loopback.world import World

_T = TypeVar("_T")


class Refusal(Exception):
    """An answer that is no success. Some have no body (`bare`), a bare JSON value (`raw`) or an HTML page (`page`)."""

    def __init__(
        self, status: int, message: str = "", *, bare: bool = False, raw: object = None, page: bool = False
    ) -> None:
        super().__init__(message)
        self.page = page
        self.status = status
        self.message = message
        self.bare = bare
        self.raw = raw


def not_found() -> Refusal:
    """404, in the words of the real one."""
    return Refusal(404, "not found")


@dataclass(slots=True)
class Call:
    """One call. `repo` is set below `/repos/{owner}/{repo}` and `/repositories/{id}`."""

    world: World
    git: GitRepos
    request: Request
    doer: User | None
    token: Token | None
    body: dict[str, object]
    found_repo: Repo | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def repo(self) -> Repo:
        """The repository of the path; it is there and visible."""
        assert self.found_repo is not None  # noqa: S101  routing put it there
        return self.found_repo

    @property
    def me(self) -> User:
        """Who asks; 401 for nobody."""
        if self.doer is None:
            raise Refusal(401, "token is required")
        return self.doer

    def param(self, name: str) -> str:
        """A piece of the path."""
        return str(self.request.path_params[name])

    def query(self, name: str) -> str:
        """A query parameter, empty when absent."""
        return self.request.query_params.get(name, "")

    def number(self, name: str) -> int:
        """A number in the path; 0, which names nothing, for anything else."""
        text = self.param(name)
        return int(text) if text.isascii() and text.isdigit() else 0

    def issue(self, *, missing: int = 404, anyone: bool = False) -> Issue:
        """The issue of the path, readable by the caller. `missing`: what this endpoint says where there is none.

        `anyone`: the endpoint does not look whether the caller may read issues, only whether he sees the repository.
        """
        found = self.repo.issues.get(self.number("index"))
        if found is None:
            raise Refusal(missing, "" if missing == 500 else "not found")
        unit = rights.ISSUES if found.pull is None else rights.PULLS
        if not anyone and rights.unit_level(self.world, self.doer, self.repo, unit) < Level.READ:
            raise not_found()
        return found

    def backdated(self, issue: Issue) -> AbstractContextManager[None]:
        """The act's own time: now, or on Forgejo the `updated_at` a repository admin gives (else 403)."""
        text = self.text("updated_at") if self.world.rules.backdating else ""
        if not text:
            return nullcontext()
        self.need_level(Level.ADMIN)
        try:
            stamp = int(datetime.fromisoformat(text).timestamp())
        except ValueError:
            raise Refusal(422, f'parsing time "{text}"') from None
        if not issue.created <= stamp <= self.world.clock.stamp():
            raise Refusal(403, "unallowed update date")
        return self.world.clock.pinned(stamp)

    def need_writer(self, issue: Issue, *, bare: bool = False, page: bool = False) -> None:
        """403 unless the caller may write this issue; some places say it without a body, or with a page."""
        if not rights.may_write_issues(self.world, self.me, self.repo, pull=issue.pull is not None):
            raise Refusal(403, "write permission is required", bare=bare, page=page)

    def need_level(self, level: Level, unit: str | None = None) -> None:
        """403 unless the caller has this level (of a unit)."""
        have = (
            rights.level(self.world, self.me, self.repo)
            if unit is None
            else rights.unit_level(self.world, self.me, self.repo, unit)
        )
        if have < level:
            raise Refusal(403, "user should have a permission to write to this repository")

    def need_unarchived(self) -> None:
        """423 on an archived repository."""
        if self.repo.archived:
            raise Refusal(423, f"{self.world.path(self.repo)} is archived")

    def window(self) -> tuple[int, int]:
        """(page, limit), clamped without an error as the real one does."""
        page, limit = _int(self.query("page")), _int(self.query("limit"))
        rules = self.world.rules
        limit = rules.default_page if limit <= 0 else limit
        return max(1, page), min(limit, rules.page_limit)

    def paged(self, rows: Sequence[_T]) -> list[_T]:
        """The page asked for; sets X-Total-Count."""
        page, limit = self.window()
        self.headers["X-Total-Count"] = str(len(rows))
        start = (page - 1) * limit
        if len(rows) > limit:
            self._link(page, limit, len(rows))
        return list(rows[start : start + limit])

    def _link(self, page: int, limit: int, total: int) -> None:
        last = -(-total // limit)
        url = self.request.url
        base = f"{self.world.root_url}{url.path}"

        def link(number: int, rel: str) -> str:
            return f'<{base}?{url.include_query_params(page=number).query}>; rel="{rel}"'

        links = []
        if page < last:
            links += [link(page + 1, "next"), link(last, "last")]
        if page > 1:
            links += [link(1, "first"), link(page - 1, "prev")]
        self.headers["Link"] = ",".join(links)

    def stamp(self, name: str) -> int:
        """`since` or `before` as whole seconds, 0 for none; 422 for what is no time."""
        text = self.query(name)
        if not text:
            return 0
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise Refusal(422, f'parsing time "{text}"') from None
        if found.tzinfo is None:
            raise Refusal(422, f'parsing time "{text}"')
        return max(0, int(found.timestamp()))

    def text(self, name: str, *, required: bool = False) -> str:
        """A text of the body; 422 for another type, or for a required one that is empty."""
        found = self.body.get(name)
        if found is None:
            found = ""
        if not isinstance(found, str):
            raise Refusal(422, f"json: cannot unmarshal into Go struct field .{name} of type string")
        if required and not found:
            raise Refusal(422, f"[{name.title()}]: Required")
        return found

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean of the body."""
        found = self.body.get(name)
        return default if found is None else found is True

    def ids(self, name: str) -> list[int]:
        """A list of ids of the body; 422 for anything else in it."""
        found = self.body.get(name)
        if found is None:
            return []
        if not isinstance(found, list) or any(not isinstance(each, int) or isinstance(each, bool) for each in found):
            raise Refusal(422, f"json: cannot unmarshal into Go struct field .{name} of type int64")
        return found

    def json(self, data: object, status: int = 200) -> Response:
        """A JSON answer with the headers collected so far."""
        return json_response(data, status, self.headers)

    def nothing(self, status: int = 204) -> Response:
        """An answer without a body."""
        return Response(status_code=status, headers=self.headers)


Handler = Callable[[Call], Awaitable[Response]]
Route = tuple[str, str, Handler]
"""(method, path below /api/v1, handler)."""


def json_response(data: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON as Go writes it: UTF-8, control characters escaped, lone surrogates replaced, a newline at the end."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Response(
        text.encode("utf-8", "replace") + b"\n",
        status_code=status,
        headers=headers,
        media_type="application/json;charset=utf-8",
    )


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
