"""Refuses requests for foreign host names: a web page could else point a name of its own here and read ours."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class KnownHosts:
    """ASGI: lets through what is asked of an address, of `localhost`, or of one of `names`; 421 for the rest.

    An address in the Host header cannot come from a browser that was led here by a name.
    """

    def __init__(self, app: ASGIApp, *, names: Iterable[str]) -> None:
        self._app = app
        self._names = {"localhost", *(name.casefold() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge, then pass on."""
        if scope["type"] == "http" and not self._known(Headers(scope=scope).get("host", "")):
            text = "this name is not one of this page's; list it under [web] hosts\n"
            await PlainTextResponse(text, 421)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _known(self, header: str) -> bool:
        try:
            host = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return host in self._names or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
