"""What carrying out a delivery's steps has in common: fenced writes, creates that are recorded first, twins closed.

For offering.py (the pull request) and family.py (children) alone.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tireless import log
from tireless.domain import delivery as texts
from tireless.domain.comments import Voice
from tireless.domain.delivery import Text
from tireless.domain.issue import IssueRef
from tireless.errors import ForgeRejected
from tireless.forge.base import Forge
from tireless.services.labelling import LabelBook
from tireless.services.whom import Whom
from tireless.store import publish
from tireless.store.db import Connection, Pool
from tireless.store.publish import Delivery

_log = log.get(__name__)

T = TypeVar("T")


class TakeLostError(Exception):
    """Another publisher or a cancel has the job; nothing more may be written."""


class WaitError(Exception):
    """Nothing may be created for `seconds`: what an unanswered create did is not known, or `reason` says why."""

    def __init__(self, seconds: float, reason: str | None = None) -> None:
        super().__init__(f"wait {seconds:.0f} s")
        self.seconds = seconds
        self.reason = reason


class WorkNotPushedError(Exception):
    """The remote branch is not the recorded commit; `found` is what it is, None when there is none."""

    def __init__(self, found: str | None) -> None:
        super().__init__(f"found {found}")
        self.found = found


class UnpublishableError(Exception):
    """The forge refuses our own text, also as plain text."""


@dataclass(frozen=True, slots=True)
class Means:
    """What every delivery is carried out with."""

    pool: Pool
    labels: LabelBook
    whom: Whom
    voice: Voice
    take_s: float
    children_run: bool
    children_per_hour: int


class Carrying:
    """One take of one job on its forge. Made anew for each take."""

    def __init__(self, means: Means, forge: Forge, delivery: Delivery) -> None:
        self._means = means
        self._pool = means.pool
        self._voice = means.voice
        self._take_s = means.take_s
        self._forge = forge
        self._delivery = delivery
        self._repo = delivery.repo

    async def _worded(self, create: Callable[[Text], Awaitable[T]], text: Callable[[bool], Text]) -> T:
        """Create with the agent's words; refused as invalid, once more as plain text; then it is unpublishable."""
        try:
            return await create(text(False))
        except ForgeRejected as error:
            if error.status != 422:
                raise
        try:
            return await create(text(True))
        except ForgeRejected as error:
            if error.status != 422:
                raise
            raise UnpublishableError(str(error)) from error

    async def _close_twin(self, kept: int, double: int, *, pull: bool) -> None:
        said = texts.twin(self._address(kept, pull=pull), kept, pull=pull)
        if not await self._say_and_close(double, said, texts.TWIN_MARK):
            await self._leave_open(double, pull=pull)

    async def _leave_open(self, number: int, *, pull: bool) -> None:
        """Record what a person has to close: a delivery never waits for it."""
        where = {"forge": self._repo.forge, "number": f"{self._repo}#{number}"}
        _log.error("left open", job=self._delivery.job_id, **where, what="close it by hand: it depends on others")
        async with self._pool.connection() as conn:
            await publish.left_open(conn, self._delivery, number, pull=pull)

    async def _say_and_close(self, number: int, said: str, mark: str) -> bool:
        """Say a sentence once, found by its mark, then close.

        False: the forge refuses while something is open that a person made it depend on. The sentence holds for both.
        """
        await self._fenced(lambda conn: publish.renew_take(conn, self._delivery, take_s=self._take_s))
        if not any(mark in each.body for each in await self._forge.comments(self._repo, number)):
            await self._forge.write_comment(self._repo, number, said)
        try:
            await self._forge.close(IssueRef(self._repo, number))
        except ForgeRejected as error:
            if error.status != 412:
                raise
            return False
        return True

    def _address(self, number: int, *, pull: bool = False) -> str:
        base = self._delivery.issue_url.rpartition("/issues/")[0]
        return f"{base}/{'pulls' if pull else 'issues'}/./{number}"

    async def _sending(self, write: Callable[[Connection], Awaitable[bool]]) -> None:
        """Record that a create is sent next. Who was stopped in between for long must not send it any more.

        Whoever takes the job then looks for it after a wait counted from that record.
        """
        started = _awake_or_not()
        await self._fenced(write)
        if _awake_or_not() - started > self._take_s / 3:
            raise TakeLostError

    async def _fenced(self, write: Callable[[Connection], Awaitable[bool]]) -> None:
        async with self._pool.connection() as conn:
            if not await write(conn):
                raise TakeLostError


def _awake_or_not() -> float:
    """Seconds of a clock that also runs while the machine is suspended, where there is one."""
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock_id)
