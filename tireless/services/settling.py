"""Ends that are due at the same moment go to the database together; which is all it decides.

A commit waits for the disk, and ten ends in one wait once. Nobody is waited for: while some are on their way others
gather, and go when those are back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tireless import log
from tireless.errors import StoreError
from tireless.store.db import Pool
from tireless.store.look import Ring
from tireless.store.record import Answer
from tireless.store.settle import MAX_TOGETHER, POLICY, Ending, Policy, Word, settle_together

_log = log.get(__name__)

_ANSWER_S = 5.0
"""Said alone they are tried for longer, and by what is known of each claim."""


@dataclass(frozen=True, slots=True)
class _Due:
    word: Word
    answer: asyncio.Future[Answer | None]


class Settling:
    """One for a process. `ring` is told whom to wake for what was settled."""

    def __init__(self, pool: Pool, ring: Ring, *, policy: Policy = POLICY) -> None:
        self._pool = pool
        self._ring = ring
        self._policy = policy
        self._due: list[_Due] = []
        self._going: asyncio.Task[None] | None = None

    async def settle(self, job_id: int, token: UUID, ending: Ending) -> Answer | None:
        """The answer, if this end found company and could go with it; None: say it alone, now.

        Raises nothing of the database's: whoever says the word alone hears it then. Nothing is lost by a cancelled
        caller: his word may have been said.
        """
        due = _Due(Word(job_id, token, ending), asyncio.get_running_loop().create_future())
        self._due.append(due)
        if self._going is None:
            # Begins when everybody who is ready now has had a turn: they are the company.
            self._going = asyncio.create_task(self._go(), name="ends")
        return await due.answer

    async def _go(self) -> None:
        """Until nothing is due. Whatever happens here, nobody is left without an answer."""
        some: list[_Due] = []
        try:
            while self._due:
                some, self._due = self._due[:MAX_TOGETHER], self._due[MAX_TOGETHER:]
                answers = await self._answers([due.word for due in some]) if len(some) > 1 else {}
                _answer(some, answers)
        finally:
            _answer([*some, *self._due], {})
            self._due, self._going = [], None

    async def _answers(self, words: Sequence[Word]) -> dict[UUID, Answer]:
        try:
            async with asyncio.timeout(_ANSWER_S), self._pool.connection() as conn:
                return await settle_together(conn, words, policy=self._policy, ring=self._ring)
        except (StoreError, ValueError, TimeoutError) as error:
            why = str(error) or f"no answer within {_ANSWER_S:g} s"
            _log.warning("ends are settled one by one", jobs=[word.job_id for word in words], error=why)
        except Exception as error:  # noqa: BLE001 - the top of a loop
            _log.error("ends are settled one by one by a fault of ours", exc_info=error)
        return {}


def _answer(some: Sequence[_Due], answers: Mapping[UUID, Answer]) -> None:
    for due in some:
        if not due.answer.done():  # answered, or its caller was cancelled
            due.answer.set_result(answers.get(due.word.token))
