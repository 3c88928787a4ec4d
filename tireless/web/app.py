"""Which address leads to what: health, metrics, webhooks, the page. It is handed everything it may look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.routing import Route

from tireless.domain.labels import LabelScheme
from tireless.redact import Redactor
from tireless.store.db import Pool
from tireless.web.health import Pulses, healthz, readyz
from tireless.web.hooks import webhook


@dataclass(frozen=True, slots=True)
class Site:
    """What the page is about. `hook_secrets`: by forge; None: its webhooks are refused."""

    installation: str
    scheme: LabelScheme
    hook_secrets: Mapping[str, str | None]
    redactor: Redactor


def build(pool: Pool, site: Site, pulses: Pulses) -> Starlette:
    """The whole site."""
    return Starlette(
        routes=[
            Route("/healthz", healthz(pulses)),
            Route("/readyz", readyz(pulses, pool)),
            Route("/webhook/{forge}", webhook(pool, site.hook_secrets), methods=["POST"]),
        ]
    )
