"""The page: lanes and jobs, one job whole; written on the server, works without JavaScript, changes nothing."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tireless.domain.inert import one_line
from tireless.domain.issue import issue_name
from tireless.domain.job import TERMINAL, State
from tireless.errors import NotKnown, StoreError
from tireless.redact import Redactor
from tireless.store import inspect
from tireless.store.db import Pool

_LIVE = [state.value for state in State if state not in TERMINAL]
_ENDED = [state.value for state in TERMINAL]
_LIVE_SHOWN, _ENDED_SHOWN = 200, 30
_JOB = re.compile("[1-9][0-9]{0,17}")
_CUT = "\n[… left out …]\n"

# What strangers wrote is shown here: no script runs, nothing is loaded from elsewhere, nobody may frame it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Handler = Callable[[Request], Awaitable[Response]]


class Pages:
    """The pages of one installation, over its database."""

    def __init__(self, pool: Pool, *, installation: str, redactor: Redactor) -> None:
        self._pool = pool
        self._installation = installation
        self._redactor = redactor
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        self._templates.filters |= {"at": _at, "web": _web, "named": _named}

    async def index(self, _request: Request) -> Response:
        """Lanes, live jobs, those that ended last."""
        async with self._pool.connection() as conn:
            values = {
                "several": await inspect.several_forges(conn),
                "stats": await inspect.stats(conn),
                "used": (await inspect.usage_sums(conn, days=1)).total,
                "lanes": await inspect.lane_rows(conn),
                "jobs": await inspect.job_rows(conn, states=_LIVE, limit=_LIVE_SHOWN),
                "ended": await inspect.job_rows(conn, states=_ENDED, limit=_ENDED_SHOWN),
            }
        return self._page("index.html", values)

    async def job(self, request: Request) -> Response:
        """One job with its attempts, events and the output of its last attempt."""
        word = request.path_params["job"]
        if not _JOB.fullmatch(word):
            raise NotKnown(f"there is no job {one_line(word, 40)}: see `tireless jobs ls`")
        job_id = int(word)
        async with self._pool.connection() as conn:
            detail = await inspect.job_detail(conn, job_id)
            printed = await inspect.attempt_output(conn, job_id)
            several = await inspect.several_forges(conn)
        output = None if printed is None else {"claim_no": printed.claim_no, "text": _text(printed)}
        values = {"attempts": detail.attempts, "events": detail.events, "output": output, "several": several}
        return self._page("job.html", {"job": detail.job, **values})

    def guarded(self, handler: Handler) -> Handler:
        """The same, with a plain sentence where there is no such job or the database does not answer."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except NotKnown as error:
                return self._sentence(404, str(error))
            except StoreError as error:
                return self._sentence(503, str(error))

        return answer

    def _sentence(self, status: int, text: str) -> Response:
        page = self._templates.from_string('{% extends "base.html" %}{% block body %}<p>{{ text }}</p>{% endblock %}')
        html = page.render(installation=self._installation, text=text)
        return HTMLResponse(self._redactor.text(html), status, headers=_HEADERS)

    def _page(self, name: str, values: dict[str, object]) -> Response:
        html = self._templates.get_template(name).render(installation=self._installation, **values)
        return HTMLResponse(self._redactor.text(html), headers=_HEADERS)


def _text(printed: inspect.Output) -> str:
    if printed.ended:
        return (printed.head or "") + (_CUT + printed.tail if printed.tail else "")
    return "".join(printed.chunks)


def _at(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _named(job: inspect.JobRow, several: bool) -> str:
    return issue_name(job.forge, job.repo, job.number, several=several)


def _web(url: str) -> str:
    """A link only where it leads to a web page: a forge's answer may hold anything, `javascript:` included."""
    return url if url.startswith(("http://", "https://")) else "#"
