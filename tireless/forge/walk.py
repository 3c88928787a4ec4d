"""Walking lists page by page, and reading values out of answers: what the Gitea client does in every method."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from tireless.domain.issue import RepoRef
from tireless.errors import ForgeGarbled
from tireless.forge.http import Http, segment
from tireless.forge.reply import Answer

PAGE = 50
"""What we ask for; the server may clamp it lower without a word, so a short page is never the last one."""

MAX_PAGES = 2000
"""Bound of a walk: a server that repeats itself for ever is garbled, not endless."""

_T = TypeVar("_T")


async def pages(
    http: Http, path: str, params: dict[str, str | int] | None = None
) -> AsyncIterator[tuple[Answer, object]]:
    """Every element of a list, page by page to the first empty one; `page` and `limit` are always both sent.

    Some endpoints ignore `page` and answer everything each time: a page equal to the one before is the end.
    """
    before: bytes | None = None
    for page in range(1, MAX_PAGES + 1):
        answer = await http.get(path, {**(params or {}), "page": page, "limit": PAGE})
        rows = answer.sequence()
        if not rows or answer.content == before:
            return
        before = answer.content
        for row in rows:
            yield answer, row
    raise ForgeGarbled(f"GET {path}: forge {http.name} has no end after {MAX_PAGES} pages; giving up")


def repo_path(repo: RepoRef) -> str:
    """`/repos/owner/name`, quoted."""
    return f"/repos/{segment(repo.owner)}/{segment(repo.name)}"


def read(answer: Answer, reader: Callable[[object], _T], data: object) -> _T:
    """Read one value out of an answer; what does not fit is ForgeGarbled."""
    try:
        return reader(data)
    except ValueError as error:
        raise answer.garbled(str(error)) from error
