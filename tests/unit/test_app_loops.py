"""Loops around services: they go on after failures, wake when told, never die silently, and drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.app import loops
from tireless.app.loops import BACKOFF_MAX_S, Loop, backoff_s, schedule
from tireless.app.parts import run_parts
from tireless.errors import ForgeUnavailable


class Scripted:
    """A service whose ticks are scripted: each answers, raises or waits; then it stops the run."""

    name = "scripted"

    def __init__(self, stop: asyncio.Event, *ticks: bool | Exception | Callable[[], Awaitable[bool]]) -> None:
        self.stop = stop
        self.script = list(ticks)
        self.ticks = 0
        self.idle = asyncio.Event()

    async def tick(self) -> bool:
        """The next of the script."""
        self.ticks += 1
        if not self.script:
            self.stop.set()
            return False
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        if callable(step):
            return await step()
        if not step:
            self.idle.set()
        return step


@pytest.fixture(autouse=True)
def _fast_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "BACKOFF_FIRST_S", 0.001)


async def test_a_loop_goes_on_after_every_kind_of_failure() -> None:
    """Errors of the forge, of the store and bugs of ours are each followed by another tick."""
    stop = asyncio.Event()
    service = Scripted(stop, ForgeUnavailable("down"), KeyError("bug"), True, ValueError("again"))
    loop = Loop(service, every_s=60)
    await asyncio.wait_for(loop.run(stop), 90)
    assert service.ticks == 5
    assert loop.pulse().ok
    assert loop.failures == 0


async def test_failures_are_counted_and_told() -> None:
    """While a service fails its health carries the error; health rests on the last good tick alone."""
    stop = asyncio.Event()
    seen = []

    async def look() -> bool:
        seen.append(loop.pulse())
        return True

    loop = Loop(Scripted(stop, ForgeUnavailable("the forge is down"), ForgeUnavailable("still"), look), every_s=1)
    assert not loop.pulse().started
    await asyncio.wait_for(loop.run(stop), 90)
    assert (seen[0].failures, seen[0].error) == (2, "still")
    assert loop.pulse().started


def test_health_fails_when_no_tick_succeeded_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging or ever failing service is unhealthy after three schedules and the longest backoff."""
    clock = [1000.0]
    monkeypatch.setattr("tireless.app.loops.time.monotonic", lambda: clock[0])

    async def made() -> Loop:
        return Loop(Scripted(asyncio.Event()), every_s=10)

    loop = asyncio.run(made())
    clock[0] += 30 + BACKOFF_MAX_S
    assert loop.pulse().ok
    clock[0] += 1
    assert not loop.pulse().ok


async def test_a_wake_during_a_tick_is_not_lost() -> None:
    """What wakes a loop while it works leads to another tick, though that one found nothing more."""
    stop = asyncio.Event()

    async def woken_meanwhile() -> bool:
        loop.wake.set()
        return False

    service = Scripted(stop, woken_meanwhile)
    loop = Loop(service, every_s=3600)
    await asyncio.wait_for(loop.run(stop), 90)
    assert service.ticks == 2


async def test_a_loop_with_nothing_to_do_waits() -> None:
    """An idle service is not ticked again until something wakes it."""
    stop = asyncio.Event()
    service = Scripted(stop, False)
    loop = Loop(service, every_s=3600)
    task = asyncio.create_task(loop.run(stop))
    await asyncio.wait_for(service.idle.wait(), 90)
    for _ in range(20):
        await asyncio.sleep(0)
    assert service.ticks == 1
    loop.wake.set()
    await asyncio.wait_for(task, 90)
    assert service.ticks == 2


async def test_a_tick_under_way_is_waited_for_when_told_to_stop() -> None:
    """Stopping lets a short tick end, and starts no other."""
    stop = asyncio.Event()
    ended = asyncio.Event()

    async def short() -> bool:
        stop.set()
        await asyncio.sleep(0.01)
        ended.set()
        return True

    service = Scripted(stop, short)
    await asyncio.wait_for(Loop(service, every_s=1).run(stop), 90)
    assert ended.is_set()
    assert service.ticks == 1


async def test_a_tick_that_does_not_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the drain time the tick is cancelled, and the loop returns only when it is really over."""
    monkeypatch.setattr(loops, "DRAIN_S", 0.01)
    stop = asyncio.Event()
    over = asyncio.Event()

    async def endless() -> bool:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        return True

    await asyncio.wait_for(Loop(Scripted(stop, endless), every_s=1).run(stop), 90)
    assert over.is_set()


async def test_a_part_that_ends_by_itself_takes_the_process_down() -> None:
    """A loop that returns is a bug: the others are stopped and the run fails, so that somebody starts it again."""
    stop = asyncio.Event()
    cancelled = asyncio.Event()

    async def returns() -> None:
        return

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(RuntimeError, match="poller ended by itself"):
        await run_parts({"mirror": goes_on(), "poller": returns()}, stop)
    assert cancelled.is_set()


async def test_parts_end_quietly_when_told() -> None:
    """After `stop` every part may return, and the run is a success."""
    stop = asyncio.Event()

    async def obeys() -> None:
        await stop.wait()

    asyncio.get_running_loop().call_soon(stop.set)
    await asyncio.wait_for(run_parts({"a": obeys(), "b": obeys()}, stop), 90)


async def test_the_schedule_only_wakes() -> None:
    """A due schedule sets the loop's event from the loop's own thread, again and again."""
    stop = asyncio.Event()
    loop = Loop(Scripted(stop), every_s=0.01)
    scheduler = schedule([loop])
    scheduler.start()
    try:
        for _ in range(3):
            await asyncio.wait_for(loop.wake.wait(), 90)
            loop.wake.clear()
    finally:
        scheduler.shutdown(wait=False)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_backoff_grows_and_stays_bounded(failures: int, random_part: float) -> None:
    """Half to all of a doubling time, never above the cap, never nothing."""
    wait = backoff_s(failures, random_part)
    assert 0 < wait <= BACKOFF_MAX_S
    assert backoff_s(failures + 1, random_part) >= wait
