"""Walking lists page by page, and reading values out of answers: what the Gitea client does in every method."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from tireless.domain.issue import RepoRef, Snapshot
from tireless.errors import ForgeGarbled
from tireless.forge import reading
from tireless.forge.base import IssuePage, Malformed
from tireless.forge.http import Http, segment
from tireless.forge.reply import Answer, AnswerTooLarge

PAGE = 50
"""What we ask for; the server may clamp it lower without a word, so a short page is never the last one."""

MAX_PAGES = 2000
"""Bound of a walk: a server that repeats itself for ever is garbled, not endless."""

_T = TypeVar("_T")

Params = dict[str, str | int]


async def pages(http: Http, path: str, params: Params | None = None) -> AsyncIterator[tuple[Answer, object]]:
    """Every element of a list, page by page to the first empty one; `page` and `limit` are always both sent.

    Some endpoints ignore `page` and answer everything each time: a page equal to the one before is the end.
    A page too large to read is asked for one by one, so an element may come twice, but none is left out.
    """
    before: bytes | None = None
    page, limit, seen, size = 1, PAGE, 0, PAGE
    for _ in range(MAX_PAGES):
        try:
            answer = await http.get(path, {**(params or {}), "page": page, "limit": limit})
        except AnswerTooLarge:
            if limit == 1:
                raise
            page, limit = seen + 1, 1
            continue
        rows = answer.sequence()
        if not rows or answer.content == before:
            return
        before = answer.content
        for row in rows:
            yield answer, row
        seen += len(rows)
        page += 1
        if limit == PAGE and page == 2:
            size = len(rows)  # what the server clamps to, when there is a second page at all
        if limit == 1 and seen % size == 0:
            page, limit = seen // size + 1, PAGE
    raise ForgeGarbled(f"GET {path}: forge {http.name} has no end after {MAX_PAGES} pages; giving up")


def issue_page(answer: Answer) -> IssuePage:
    """One page of an issue list; what cannot be read is Malformed beside the others, pull requests are left out.

    An empty list says that there is nothing (more): what says nothing at all is no such answer.
    """
    if answer.json() is None:
        raise answer.garbled("expected a list, got nothing")
    rows = answer.sequence()
    found: list[Snapshot] = []
    malformed: list[Malformed] = []
    for row in rows:
        if reading.is_pull(row):
            continue
        try:
            found.append(reading.snapshot(row))
        except ValueError as error:
            malformed.append(Malformed(number=reading.number_of(row), error=str(error)))
    return IssuePage(
        issues=tuple(found),
        rows=len(rows),
        total=answer.total,
        server_date=answer.server_date,
        malformed=tuple(malformed),
    )


async def one_by_one(http: Http, path: str, params: Params, *, page: int, limit: int) -> IssuePage:
    """The issues of page `page` of `limit`, each by a request of its own; one that is too large alone is Malformed."""
    whole = IssuePage(issues=(), rows=0, total=None, server_date=None)
    for position in range((page - 1) * limit + 1, page * limit + 1):
        try:
            single = issue_page(await http.get(path, {**params, "page": position, "limit": 1}))
        except AnswerTooLarge as error:
            single = IssuePage(issues=(), rows=1, total=None, server_date=None, malformed=(Malformed(0, str(error)),))
        if single.rows == 0:
            break
        whole = replace(
            whole,
            issues=whole.issues + single.issues,
            rows=whole.rows + single.rows,
            # of the first request: what changes during the walk must be seen by the next one
            total=single.total if whole.total is None else whole.total,
            server_date=single.server_date if whole.server_date is None else whole.server_date,
            malformed=whole.malformed + single.malformed,
        )
    return whole


def repo_path(repo: RepoRef) -> str:
    """`/repos/owner/name`, quoted."""
    return f"/repos/{segment(repo.owner)}/{segment(repo.name)}"


def moment(at: datetime) -> str:
    """A time as the forge takes it in a query: whole seconds, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(answer: Answer, reader: Callable[[object], _T], data: object) -> _T:
    """Read one value out of an answer; what does not fit is ForgeGarbled."""
    try:
        return reader(data)
    except ValueError as error:
        raise answer.garbled(str(error)) from error
