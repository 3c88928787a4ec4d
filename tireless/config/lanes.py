"""What a runner and its lanes are configured by, and what must hold between them; it reads no file."""

from __future__ import annotations

import re
import socket
from datetime import timedelta
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from tireless.config.settings import Faults, Section
from tireless.config.values import ConfigPath, Duration, DurationOrZero, Size, format_duration
from tireless.domain.job import Kind
from tireless.domain.routing import MAX_RUNNING, Lane

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_OWN_ENV = "TIRELESS_"
"""Names the protocol sets for every agent, or this configuration reads: never handed through."""
# ------------------------------------------------------------------------------------------------ [lanes.NAME]


HOOKS = ("after_create", "before_run", "after_run", "before_remove")
"""Keys of a lane that name an operator's command around the agent."""


class LaneSection(Section):
    """An agent lane: the first part is read by `serve` (stored for everybody), the second by `run` on its host."""

    kinds: tuple[Kind, ...] = ()
    default: bool = False
    children_of_plan: str | None = None
    lease: Duration = timedelta(minutes=10)
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    backoff: DurationOrZero = timedelta(seconds=30)
    backoff_max: DurationOrZero = timedelta(minutes=30)
    run_timeout: Duration = timedelta(minutes=90)
    stall_timeout: Duration = timedelta(minutes=10)
    max_running: Annotated[int, Field(ge=1, le=MAX_RUNNING)] | None = None
    max_usd: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    reserve_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    command: tuple[str, ...] = ()
    run_as: str | None = None
    env: tuple[str, ...] = ()
    after_create: tuple[str, ...] = ()
    before_run: tuple[str, ...] = ()
    after_run: tuple[str, ...] = ()
    before_remove: tuple[str, ...] = ()
    hook_timeout: Duration = timedelta(minutes=5)

    @field_validator("command", *HOOKS, mode="before")
    @classmethod
    def _argv(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError('no shell reads it: write a list, like ["my-agent", "--quiet"]')
        return value

    @field_validator("command", *HOOKS)
    @classmethod
    def _words(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not value[0].strip():
            raise ValueError("its first word, the program, is empty")
        if any("\0" in word for word in value):
            raise ValueError("a word holds a NUL character")
        return value

    @field_validator("env")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        faults = [
            f'"{name.partition("=")[0]}" is not the name of an environment variable'
            for name in value
            if not _ENV_NAME.fullmatch(name)
        ]
        faults += [f"{name} belongs to tireless and is not handed on" for name in value if name.startswith(_OWN_ENV)]
        if faults:
            raise Faults(faults)
        return value

    @model_validator(mode="after")
    def _order(self) -> Self:
        faults = []
        if self.backoff_max < self.backoff:
            faults.append(
                f"backoff_max ({format_duration(self.backoff_max)}) is shorter than backoff "
                f"({format_duration(self.backoff)})"
            )
        if self.stall_timeout > self.run_timeout:
            faults.append(
                f"stall_timeout ({format_duration(self.stall_timeout)}) is longer than run_timeout "
                f"({format_duration(self.run_timeout)}) and could never be met"
            )
        if self.reserve_usd > 0 and self.max_usd is None:
            faults.append(f"reserve_usd ({self.reserve_usd:g}) is kept back from max_usd, which is not set")
        elif self.max_usd is not None and self.reserve_usd > self.max_usd:
            faults.append(f"reserve_usd ({self.reserve_usd:g}) is more than max_usd ({self.max_usd:g})")
        if faults:
            raise Faults(faults)
        return self

    def lane(self, name: str) -> Lane:
        """The value the rest of the house works with."""
        return Lane(
            name=name,
            kinds=self.kinds,
            is_default=self.default,
            children_of_plan=self.children_of_plan,
            lease_s=self.lease.total_seconds(),
            max_attempts=self.attempts,
            backoff_base_s=self.backoff.total_seconds(),
            backoff_cap_s=self.backoff_max.total_seconds(),
            run_timeout_s=self.run_timeout.total_seconds(),
            stall_timeout_s=self.stall_timeout.total_seconds(),
            max_running=self.max_running,
            max_usd=self.max_usd,
            reserve_usd=self.reserve_usd,
        )


# ------------------------------------------------------------------------------------------------ the processes


class RunnerSection(Section):
    """`tireless run` on this host."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] | None = None
    root: ConfigPath | None = None
    concurrency: Annotated[int, Field(ge=1, le=100)] = 1
    idle_poll: Duration = timedelta(seconds=15)
    stop_grace: Duration = timedelta(seconds=10)
    lease_margin: Duration = timedelta(seconds=30)

    @property
    def shown_name(self) -> str:
        """What this runner is called on rows and pages: the configured name, else the host's."""
        return self.name or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63].lstrip("._-") or "runner"


class WorkspacesSection(Section):
    """How long, how many and how much is kept below a runner's root, by kind."""

    interval: Duration = timedelta(minutes=10)
    trees_age: DurationOrZero = timedelta(days=7)
    trees_count: Annotated[int, Field(ge=0)] = 20
    trees_size: Size = 10 * 2**30
    bundles_age: DurationOrZero = timedelta(days=30)
    bundles_count: Annotated[int, Field(ge=0)] = 500
    bundles_size: Size = 5 * 2**30
    caches_age: DurationOrZero = timedelta(days=30)
    caches_count: Annotated[int, Field(ge=0)] = 200
    caches_size: Size = 50 * 2**30


# ------------------------------------------------------------------------------------------------ rules over sections


def lane_faults(lanes: dict[str, LaneSection]) -> list[str]:
    """What is wrong with the lanes as a set."""
    faults = []
    defaults = [name for name, lane in lanes.items() if lane.default]
    if len(defaults) > 1:
        faults.append(f"{' and '.join(defaults)} are all marked default; at most one lane is")
    faults += [
        f"{name}.children_of_plan names the lane {lane.children_of_plan}, which is not configured"
        for name, lane in lanes.items()
        if lane.children_of_plan is not None and lane.children_of_plan not in lanes
    ]
    return faults


def lease_faults(lanes: dict[str, LaneSection], runner: RunnerSection) -> list[str]:
    """Lanes whose lease is too short for the order: renewed, stopped, gone, margin, lease over.

    A lease is renewed each third of it. Stopping an agent begins `stop_grace` before it has to be gone, and it has to
    be gone `lease_margin` before the lease ends. Stopping must not begin before the first renewal was due.
    """
    need = (runner.lease_margin + runner.stop_grace) * 1.5
    return [
        f"lanes.{name}.lease ({format_duration(lane.lease)}) is too short: it is renewed every third, and the agent "
        f"must be gone {format_duration(runner.lease_margin)} (runner.lease_margin) before its end, after "
        f"{format_duration(runner.stop_grace)} (runner.stop_grace) to stop in; "
        f"make it longer than {format_duration(need)}, or those two shorter"
        for name, lane in lanes.items()
        if lane.lease <= need
    ]
