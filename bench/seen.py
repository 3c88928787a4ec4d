"""What a rival's task and worker are seen to do, in their own process: when work began, and when its end was stored."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from unittest import mock

from tireless.errors import StoreError

_WARM = 5
_IDLE_S = 0.01
_PATIENCE_S = 30.0


class Seen:
    """One run of a rival's workers."""

    def __init__(self) -> None:
        self._begun: asyncio.Queue[float] = asyncio.Queue()
        self._first: float | None = None
        self._last = 0.0
        self._count = 0

    def begins(self, _payload: object) -> None:
        """Called by each job."""
        self._count += 1
        self._begun.put_nowait(time.perf_counter())

    @contextlib.contextmanager
    def watching(self, owner: object, *, takes: str, stores: str) -> Iterator[None]:
        """Time it from the first call of the method that takes jobs to the last answer of the one that stores ends.

        Starting and stopping workers is not work.
        """
        take, store = getattr(owner, takes), getattr(owner, stores)

        async def taking(*args: object, **kwargs: object) -> object:
            if self._first is None:
                self._first = time.perf_counter()
            return await take(*args, **kwargs)

        async def storing(*args: object, **kwargs: object) -> object:
            answer = await store(*args, **kwargs)
            self._last = time.perf_counter()
            return answer

        with mock.patch.object(owner, takes, taking), mock.patch.object(owner, stores, storing):
            yield

    def rate(self, jobs: int) -> float:
        """Jobs a second; every one must have been run once."""
        if self._first is None or self._count != jobs:
            raise StoreError(f"{self._count} of {jobs} jobs were run")
        return jobs / (self._last - self._first)

    async def latencies(self, enqueue: Callable[[], Awaitable[None]], count: int) -> list[float]:
        """Times in ms from a committed enqueue to its job's beginning, one at a time, the worker idle before each."""
        took = []
        async with asyncio.timeout(_PATIENCE_S + count):
            for _ in range(count + _WARM):
                await asyncio.sleep(_IDLE_S)
                await enqueue()
                committed = time.perf_counter()
                took.append((await self._begun.get() - committed) * 1000)
        return took[_WARM:]
