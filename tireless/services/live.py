"""Live output and usage on their way to the database: bounded, fenced, and never a reason to stop an agent."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from types import TracebackType
from typing import Self

from tireless import log
from tireless.domain.result import Usage
from tireless.errors import StoreError
from tireless.services.waiting import first_of
from tireless.store.claim import Claim
from tireless.store.db import Pool
from tireless.store.record import append_output, note_usage

_log = log.get(__name__)

FLUSH_S = 2.0
CHUNK_MAX = 16_384
"""Characters sent at once, every FLUSH_S; what comes faster is left out. Head and tail are kept anyway."""
_CALL_S = 5.0


class Live:
    """`async with Live(pool, claim) as live:` hand its `add` to the agent's run; the last piece is sent at the end."""

    def __init__(self, pool: Pool, claim: Claim, *, flush_s: float = FLUSH_S) -> None:
        self._pool = pool
        self._claim = claim
        self._flush_s = flush_s
        self._waiting = ""
        self._left_out = 0
        self._usage: Usage | None = None
        self._some = asyncio.Event()
        """There is something to send: an agent that says nothing costs nothing here."""
        self._over = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._shipping = asyncio.create_task(self._ship())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        await self._shipping

    def add(self, chunk: str) -> None:
        """Take output as it comes; the oldest is left out when it comes too fast."""
        whole = self._waiting + chunk
        self._left_out += max(0, len(whole) - CHUNK_MAX)
        self._waiting = whole[-CHUNK_MAX:]
        self._some.set()

    def spend(self, usage: Usage) -> None:
        """Take what was used so far: should this runner die, the sweep counts it."""
        self._usage = usage
        self._some.set()

    async def _ship(self) -> None:
        while not self._over.is_set():
            await first_of(self._over, self._some)
            await first_of(self._over, timeout_s=self._flush_s)
            self._some.clear()
            await self._flush()
        await self._flush()  # a run may be over before this task has begun

    async def _flush(self) -> None:
        """Send what there is; output that cannot be sent is lost, a sum is sent again with the next."""
        await self._flush_usage()
        if not self._waiting:
            return
        said = f"[{self._left_out} characters left out]\n" if self._left_out else ""
        text, self._waiting, self._left_out = said + self._waiting, "", 0
        try:
            async with asyncio.timeout(_CALL_S), self._pool.connection() as conn:
                await append_output(conn, self._claim.attempt_id, self._claim.token, text)
        except (StoreError, TimeoutError) as error:
            _log.warning("output not stored", characters=len(text), error=str(error) or "no answer in time")

    async def _flush_usage(self) -> None:
        usage, claim = self._usage, self._claim
        if usage is None:
            return
        try:
            async with asyncio.timeout(_CALL_S), self._pool.connection() as conn:
                await note_usage(conn, claim.attempt_id, claim.token, asdict(usage))
        except (StoreError, TimeoutError) as error:
            _log.warning("usage not stored", usd=usage.usd, error=str(error) or "no answer in time")
            self._some.set()
            return
        if self._usage == usage:
            self._usage = None
