"""Faults a test sets: answer something else, cut the line, garble, wait at a named moment, call back."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from tireless.loopback.journal import Recorded

Do = Literal["answer", "block", "cut", "garble", "call"]
When = Literal["before", "after"]
Callback = Callable[[Recorded], object]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What is to go wrong, and where: requests of `method` (or `*`) whose path?query the expression `path` finds.

    It strikes the `nth` matching request and those after it, `times` in all (0: for ever).
    `answer`: this status, headers and body instead of the real answer. `cut`: the connection ends in mid-answer.
    `garble`: half of the real body. `block`: wait until released, then go on. `call`: run `callback`, then go on.
    `when`: before the effect (there will be none, unless `block` or `call` go on) or after it.
    """

    method: str
    path: str
    do: Do
    when: When = "before"
    nth: int = 1
    times: int = 1
    login: str = ""
    status: int = 500
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    callback: Callback | None = None

    def __post_init__(self) -> None:
        if self.do not in get_args(Do) or self.when not in get_args(When):
            raise ValueError(f"a fault does one of {get_args(Do)} and when is one of {get_args(When)}")
        re.compile(self.path)


@dataclass(slots=True)
class Fault:
    """A plan that was set, and what became of it."""

    id: int
    plan: FaultPlan
    matched: int = 0
    applied: int = 0
    struck: list[int] = field(default_factory=list)
    """Sequence numbers of the requests it struck."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def strikes(self, record: Recorded) -> bool:
        """Whether it strikes this request; counts it."""
        plan = self.plan
        if plan.method not in ("*", record.method) or not re.search(plan.path, record.target):
            return False
        if plan.login and plan.login != record.login:
            return False
        self.matched += 1
        if self.matched < plan.nth or (plan.times and self.applied >= plan.times):
            return False
        self.applied += 1
        self.struck.append(record.seq)
        return True

    def as_json(self) -> dict[str, object]:
        """How it stands."""
        return {
            "id": self.id,
            "do": self.plan.do,
            "when": self.plan.when,
            "matched": self.matched,
            "applied": self.applied,
            "struck": self.struck,
            "reached": self.reached.is_set(),
            "released": self.released.is_set(),
        }


class Faults:
    """The faults set at present."""

    def __init__(self) -> None:
        self._faults: dict[int, Fault] = {}
        self._last = 0

    def add(self, plan: FaultPlan) -> Fault:
        """Set a fault."""
        self._last += 1
        fault = self._faults[self._last] = Fault(self._last, plan)
        return fault

    def get(self, fault_id: int) -> Fault | None:
        """One fault."""
        return self._faults.get(fault_id)

    def all(self) -> list[Fault]:
        """All of them."""
        return list(self._faults.values())

    def striking(self, record: Recorded) -> list[Fault]:
        """The faults that strike a request, in the order they were set."""
        return [each for each in self._faults.values() if each.strikes(record)]

    def drop(self, fault_id: int) -> None:
        """Take a fault away; who waits at it goes on."""
        fault = self._faults.pop(fault_id, None)
        if fault is not None:
            fault.released.set()

    def clear(self) -> None:
        """Take all away."""
        for fault_id in list(self._faults):
            self.drop(fault_id)


async def call_back(fault: Fault, record: Recorded) -> None:
    """Run a fault's callback, on the server's loop."""
    if fault.plan.callback is not None:
        result = fault.plan.callback(record)
        if inspect.isawaitable(result):
            await _awaited(result)
    fault.reached.set()


async def _awaited(result: Awaitable[object]) -> None:
    await result
