"""The page of this process: its socket, bound before anything else, and what it is handed to show."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping

from starlette.applications import Starlette

from tireless.app.loops import Loop
from tireless.config import Settings
from tireless.redact import Redactor
from tireless.store.db import Pool
from tireless.store.look import Ring
from tireless.web.app import Site, build
from tireless.web.server import listen


@contextlib.contextmanager
def page_socket(settings: Settings) -> Iterator[socket.socket | None]:
    """The bound socket of the page; None when it is switched off. ConfigError when the address cannot be had."""
    if not settings.web.enabled:
        yield None
        return
    with listen(settings.web.host, settings.web.port) as sock:
        yield sock


def build_page(
    settings: Settings, pool: Pool, loops: Mapping[str, Loop], redactor: Redactor, *, ring: Ring
) -> Starlette:
    """The site over this process's loops and database."""
    site = Site(
        installation=settings.installation_name,
        hook_secrets={name: section.webhook_secret for name, section in settings.forges.items()},
        redactor=redactor,
        hosts=settings.web.hosts,
        ring=ring,
    )
    return build(pool, site, lambda: [loop.pulse(name) for name, loop in loops.items()])
