"""The label protocol: what each name means, which kind wins, which labels exist; says nothing of who put one on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from tireless.domain.issue import Label, LabelSpec
from tireless.domain.job import Kind, Status

PRECEDENCE: tuple[Kind, ...] = (Kind.DISCOVER, Kind.PLAN, Kind.IMPLEMENT)
"""Several modes at once: the first of these. A plan produces the implementations, so running it first loses nothing;
the reverse throws the decomposition away."""

PRIORITIES = {"high": 1, "low": -1}
"""Suffix of a priority label to the order within a lane; none is 0."""


@dataclass(frozen=True, slots=True)
class LabelScheme:
    """How this installation names its labels. `opt_in` need not begin with `prefix`."""

    prefix: str = "tireless/"
    opt_in: str = "tireless/go"
    require_opt_in: bool = True


class Named(Protocol):
    """A lane, as far as labels go."""

    @property
    def name(self) -> str:
        """Its name."""


class Role(StrEnum):
    """What a label of ours is for."""

    OPT_IN = "opt_in"
    KIND = "kind"
    AGENT = "agent"
    HOLD = "hold"
    PRIORITY = "priority"
    STATUS = "status"
    UNKNOWN = "unknown"


ASKING = frozenset({Role.OPT_IN, Role.KIND})
"""Labels that ask for work; the others only say how."""

STEERING = frozenset({Role.AGENT, Role.PRIORITY, Role.HOLD})


@dataclass(frozen=True, slots=True)
class Meaning:
    """A label name, read: `value` is the kind, the lane, `high`, the status, or an unknown suffix."""

    role: Role
    value: str = ""


@dataclass(frozen=True, slots=True)
class LabelView:
    """What a set of labels says, whoever put them on. Kinds come in order of precedence, the rest as found."""

    opt_in: bool = False
    kinds: tuple[Kind, ...] = ()
    agents: tuple[str, ...] = ()
    hold: bool = False
    priorities: frozenset[str] = frozenset()
    statuses: tuple[Label, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def priority(self) -> int:
        """1, 0 or -1; of both at once the higher, since nothing is lost by going first."""
        return max((PRIORITIES[name] for name in self.priorities), default=0)

    @property
    def asks(self) -> bool:
        """Some label asks for work, properly or not."""
        return self.opt_in or bool(self.kinds)


def folded(name: str) -> str:
    """The form in which label names are compared."""
    return name.strip().casefold()


def meaning(name: str, scheme: LabelScheme) -> Meaning | None:
    """What a label of this name means; None: not one of ours."""
    plain = folded(name)
    if plain == folded(scheme.opt_in):
        return Meaning(Role.OPT_IN)
    prefix = folded(scheme.prefix)
    if not plain.startswith(prefix):
        return None
    suffix = plain.removeprefix(prefix)
    if suffix in set(Kind):
        return Meaning(Role.KIND, suffix)
    if suffix == "hold":
        return Meaning(Role.HOLD)
    group, _, value = suffix.partition("/")
    if group == "priority" and value in PRIORITIES:
        return Meaning(Role.PRIORITY, value)
    if group == "status" and value in set(Status):
        return Meaning(Role.STATUS, value)
    lane = suffix.removeprefix("agent:").strip()
    if suffix.startswith("agent:") and lane:
        return Meaning(Role.AGENT, lane)
    return Meaning(Role.UNKNOWN, suffix)


def read(labels: Iterable[Label], scheme: LabelScheme) -> LabelView:
    """What these labels say. Two labels of one name count as one."""
    found = [(label, said) for label in labels if (said := meaning(label.name, scheme)) is not None]

    def values(role: Role) -> tuple[str, ...]:
        return tuple(dict.fromkeys(said.value for _, said in found if said.role is role))

    kinds = values(Role.KIND)
    return LabelView(
        opt_in=any(said.role is Role.OPT_IN for _, said in found),
        kinds=tuple(kind for kind in PRECEDENCE if kind in kinds),
        agents=values(Role.AGENT),
        hold=any(said.role is Role.HOLD for _, said in found),
        priorities=frozenset(values(Role.PRIORITY)),
        statuses=tuple(label for label, said in found if said.role is Role.STATUS),
        unknown=values(Role.UNKNOWN),
    )


def first_kind(kinds: Iterable[Kind]) -> Kind | None:
    """The kind that wins, None of none."""
    present = frozenset(kinds)
    return next((kind for kind in PRECEDENCE if kind in present), None)


def job_kind_for(view: LabelView, scheme: LabelScheme) -> Kind | None:
    """The kind of job these labels ask for, supposing that all of them count; None: they ask for none."""
    if scheme.require_opt_in and not view.opt_in:
        return None
    return first_kind(view.kinds)


def label_specs(scheme: LabelScheme, lanes: Sequence[Named]) -> tuple[LabelSpec, ...]:
    """Every label the bot ensures in a repository.

    `agent:LANE` is not exclusive: its scope would be the text before the last slash, the prefix, and putting it on
    would take the mode label off.
    """
    prefix = scheme.prefix
    specs = [LabelSpec(f"{prefix}{kind}", *_KINDS[kind], exclusive=True) for kind in PRECEDENCE]
    if scheme.require_opt_in:
        specs.insert(0, LabelSpec(scheme.opt_in, "0e8a16", "Allows tireless to work on this issue", exclusive=False))
    specs += [
        LabelSpec(f"{prefix}agent:{lane.name}", "c5def5", f"To be worked on by the lane {lane.name}", exclusive=False)
        for lane in lanes
    ]
    specs.append(LabelSpec(f"{prefix}hold", "d93f0b", "Stays queued and is not started", exclusive=False))
    specs.append(LabelSpec(f"{prefix}priority/high", "fbca04", "Goes first within its lane", exclusive=True))
    specs.append(LabelSpec(f"{prefix}priority/low", "fef2c0", "Goes last within its lane", exclusive=True))
    specs += [LabelSpec(status_label(scheme, status), *_STATUSES[status], exclusive=True) for status in Status]
    return tuple(specs)


_KINDS = {
    Kind.DISCOVER: ("5319e7", "To be explored: ends in a report or proposals"),
    Kind.PLAN: ("1d76db", "To be planned: ends in child issues"),
    Kind.IMPLEMENT: ("0052cc", "To be implemented: ends in a pull request"),
}
_STATUSES = {
    Status.QUEUED: ("ededed", "Set by the bot: waits for its turn"),
    Status.RUNNING: ("bfd4f2", "Set by the bot: an agent works on it"),
    Status.PARKED: ("f9d0c4", "Set by the bot: waits for a person"),
    Status.PUBLISHING: ("d4c5f9", "Set by the bot: the result is being delivered"),
    Status.DELIVERED: ("c2e0c6", "Set by the bot: done"),
    Status.FAILED: ("e99695", "Set by the bot: given up"),
    Status.CANCELLED: ("cfd3d7", "Set by the bot: called off"),
}


def status_label(scheme: LabelScheme, status: Status) -> str:
    """The name of the label that shows this status."""
    return f"{scheme.prefix}status/{status}"


class StatusDiff(NamedTuple):
    """What makes an issue's status labels right: a label name to add or None, and label ids to remove."""

    add: str | None
    remove: tuple[int, ...]


def status_diff(current: Iterable[Label], wanted: Status | None, scheme: LabelScheme) -> StatusDiff:
    """The least change after which exactly the wanted status label is on; `wanted` None: none of them.

    Of two labels of one name the one with the lowest id stays. Nobody's label but the seven status ones is touched.
    """
    statuses = read(current, scheme).statuses
    right = [label.id for label in statuses if _status(label, scheme) == wanted]
    keep = min(right, default=None)
    return StatusDiff(
        add=status_label(scheme, wanted) if wanted is not None and keep is None else None,
        remove=tuple(label.id for label in statuses if label.id != keep),
    )


def _status(label: Label, scheme: LabelScheme) -> str | None:
    said = meaning(label.name, scheme)
    return said.value if said is not None else None
