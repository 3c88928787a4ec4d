"""Which lane works on an issue: one pure rule, used at enqueue, at refresh and by `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tireless.domain.job import Kind
from tireless.domain.labels import LabelView, first_kind

MAX_RUNNING = 10_000
"""The highest limit of jobs at once: beyond it nobody means one."""
MAX_RUNS_PER_DAY = 1_000_000


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane as `serve` configures it; times in seconds. `order` in a sequence of lanes is configuration order."""

    name: str
    kinds: tuple[Kind, ...] = ()
    is_default: bool = False
    children_of_plan: str | None = None
    """Another lane for issues that a plan made."""
    lease_s: float = 600.0
    max_attempts: int = 3
    backoff_base_s: float = 30.0
    backoff_cap_s: float = 1800.0
    run_timeout_s: float = 5400.0
    stall_timeout_s: float = 600.0
    max_running: int | None = None
    max_usd: float | None = None
    """What one job may cost in all its attempts since a person last acted on it; None: no cap."""
    reserve_usd: float = 0.0
    """With less left of that no further attempt is started."""


def lane_for(kind: Kind, *, is_child: bool, overrides: Sequence[str], lanes: Sequence[Lane]) -> str | None:
    """The lane for an issue of this kind, or None when there is none.

    `overrides` are the LANE parts of its `agent:LANE` labels that count. An override that names a configured lane
    comes first (of two, the first in configuration order), then the first lane whose kinds have the kind
    (its `children_of_plan` for an issue that a plan made), then the default lane.
    """
    for lane in lanes:
        if lane.name in overrides:
            return lane.name
    for lane in lanes:
        if kind in lane.kinds:
            return lane.children_of_plan if is_child and lane.children_of_plan else lane.name
    return next((lane.name for lane in lanes if lane.is_default), None)


@dataclass(frozen=True, slots=True)
class Route:
    """How an issue is to be worked on; `priority` is 1, 0 or -1."""

    kind: Kind
    lane: str
    priority: int = 0
    hold: bool = False


def route(
    view: LabelView, *, hold: bool, is_child: bool, lanes: Sequence[Lane], planned_lane: str | None = None
) -> Route | None:
    """The route that counting labels ask for; None without a mode, or when no lane takes the kind.

    `planned_lane` is what the plan that made this issue said; an override on the issue goes before it.
    """
    kind = first_kind(view.kinds)
    if kind is None:
        return None
    overrides = view.agents or ((planned_lane,) if planned_lane else ())
    lane = lane_for(kind, is_child=is_child, overrides=overrides, lanes=lanes)
    return None if lane is None else Route(kind, lane, view.priority, hold)
