"""Composes what `serve` does: poller, sweeper, publisher, mirror as loops, and what wakes them; does none of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tireless import log
from tireless.app.forges import configured_owners, configured_repositories
from tireless.app.hearing import LOOK, MIRROR, PUBLISH, whoami
from tireless.app.loops import Loop
from tireless.config import Settings
from tireless.domain.comments import Voice
from tireless.domain.people import Policy
from tireless.forge.base import Forge
from tireless.redact import Redactor
from tireless.services.mirror import Mirror
from tireless.services.poller import Poller
from tireless.services.publisher import Publisher
from tireless.services.sweeper import Sweeper
from tireless.services.tracker import Tracker
from tireless.store.db import Pool
from tireless.store.intake import Rules
from tireless.store.limits import Limits
from tireless.store.look import Ring
from tireless.store.sweep import Retention

_log = log.get(__name__)

POLLERS = 3
"""Loops of the one poller: a repository that hangs must not hold up the others. Each takes what it works on."""

POLL_TICK_S = 5.0
"""How often it is asked which repositories are due; when each is, stands in its row."""

TRACK_TICK_S = 5.0


def voice(settings: Settings, redactor: Redactor) -> Voice:
    """How this installation speaks on the forge."""
    return Voice(scheme=settings.labels.scheme, installation=settings.installation_name, redactor=redactor)


def request_timeout_s(settings: Settings) -> float:
    """How long the slowest forge may take to answer one call."""
    return max((section.timeout.total_seconds() for section in settings.forges.values()), default=20.0)


def build_sweeper(settings: Settings, pool: Pool, *, ring: Ring | None = None) -> Sweeper:
    """The sweeper, with the retention configured. Without `ring` each of its transactions notifies by itself."""
    kept = settings.retention
    days = [(each or kept.finished).total_seconds() / 86_400 for each in (kept.delivered, kept.failed, kept.cancelled)]
    return Sweeper(pool, ring=ring, retention=Retention(*days))


def build_tracker(settings: Settings, pool: Pool, forges: Mapping[str, Forge]) -> Tracker:
    """What turns configured names into watched repositories."""
    wanted = configured_repositories(settings)
    owners = configured_owners(settings)
    opt_in, limits = settings.labels.require_opt_in, configured_limits(settings)
    return Tracker(pool, forges, wanted, owners=owners, require_opt_in=opt_in, limits=limits)


def configured_limits(settings: Settings) -> Limits:
    """What each repository may use of which no operator said otherwise."""
    return Limits(settings.limits.max_running_per_repository, settings.limits.max_runs_per_repository_per_day)


def build_poller(settings: Settings, pool: Pool, forges: Mapping[str, Forge], *, ring: Ring) -> Poller:
    """The poller, with the rules of labels, people and lanes."""
    policy = Policy(who_may_ask=settings.asking.who_may_ask, allow=frozenset(settings.asking.allow))
    return Poller(
        pool,
        forges,
        rules=Rules(
            scheme=settings.labels.scheme,
            policy=policy,
            lanes=settings.lane_values,
            installation=settings.installation_name,
            per_hour=settings.limits.max_requests_per_issue_per_hour,
        ),
        poll_s=settings.poll.interval.total_seconds(),
        full_scan_s=settings.poll.full_scan.total_seconds(),
        overlap_s=settings.poll.overlap.total_seconds(),
        by=whoami("poller"),
        by_owner=settings.poll.by_owner,
        ring=ring,
    )


def build_loops(
    settings: Settings, pool: Pool, forges: Mapping[str, Forge], redactor: Redactor, *, ring: Ring
) -> dict[str, Loop]:
    """The services of `serve` by name, each in a loop of its own. `ring` wakes others for what they have committed."""
    said, timeout_s = voice(settings, redactor), request_timeout_s(settings)
    publisher = Publisher(
        pool,
        forges,
        voice=said,
        by=whoami("publisher"),
        children_run=settings.asking.children_run,
        request_timeout_s=timeout_s,
        ring=ring,
    )
    mirror = Mirror(
        pool,
        forges,
        voice=said,
        by=whoami("mirror"),
        request_timeout_s=timeout_s,
        edit_every_s=settings.mirror.comment_every.total_seconds(),
        first_comment_after_s=settings.mirror.first_comment_after.total_seconds(),
    )
    sweep_s = settings.sweep.interval.total_seconds()
    poll_s = min(POLL_TICK_S, settings.poll.interval.total_seconds() / 2)
    poller = build_poller(settings, pool, forges, ring=ring)
    loops = {
        "tracker": Loop(build_tracker(settings, pool, forges), every_s=TRACK_TICK_S),
        "sweeper": Loop(build_sweeper(settings, pool, ring=ring), every_s=sweep_s),
        "publisher": Loop(publisher, every_s=sweep_s),
        "mirror": Loop(mirror, every_s=sweep_s),
    }
    return loops | {f"poller {number}": Loop(poller, every_s=poll_s) for number in range(1, POLLERS + 1)}


def wakes(loops: Mapping[str, Loop]) -> dict[str, list[asyncio.Event]]:
    """Which loops a notification wakes, by channel."""
    service = {LOOK: "poller", PUBLISH: "publisher", MIRROR: "mirror"}
    return {
        channel: [loop.wake for loop in loops.values() if loop.service.name == name]
        for channel, name in service.items()
    }
