"""Which address leads to what: health, metrics, webhooks, the page. It is handed everything it may look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from tireless.redact import Redactor
from tireless.store.db import Pool
from tireless.store.look import Ring
from tireless.web.health import Pulses, healthz, readyz
from tireless.web.hooks import webhook
from tireless.web.hosts import KnownHosts
from tireless.web.metrics import metrics
from tireless.web.pages import Pages


@dataclass(frozen=True, slots=True)
class Site:
    """What the page is about. `hook_secrets`: by forge; None: its webhooks are refused. `ring`: whom they tell."""

    installation: str
    hook_secrets: Mapping[str, str | None]
    redactor: Redactor
    hosts: Sequence[str] = ()
    """Names this page is asked for by, beside addresses and localhost."""
    ring: Ring | None = None


def build(pool: Pool, site: Site, pulses: Pulses) -> Starlette:
    """The whole site."""
    pages = Pages(pool, installation=site.installation, redactor=site.redactor)
    return Starlette(
        routes=[
            Route("/", pages.guarded(pages.index)),
            Route("/jobs/{job}", pages.guarded(pages.job)),
            Route("/healthz", healthz(pulses)),
            Route("/readyz", readyz(pulses, pool)),
            Route("/metrics", metrics(pool, pulses)),
            Route("/webhook/{forge}", webhook(pool, site.hook_secrets, ring=site.ring), methods=["POST"]),
        ],
        middleware=[Middleware(KnownHosts, names=site.hosts)],
    )
