"""The runner's ways of waiting: the first of several, work that an event cuts off, processes that must be gone."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from tireless.services.waiting import all_gone, first_of, unless


async def never() -> str:
    """Work without an end."""
    await asyncio.Event().wait()
    return "ended"


async def test_first_of_ends_with_any_event_or_the_time() -> None:
    """One event of several is enough; without events, and without an event that comes, the time ends it."""
    one, other = asyncio.Event(), asyncio.Event()
    other.set()
    await asyncio.wait_for(first_of(one, other), 90)
    await asyncio.wait_for(first_of(one, timeout_s=0.01), 90)
    await asyncio.wait_for(first_of(timeout_s=0.01), 90)


async def test_work_that_ends_first_gives_its_value() -> None:
    """Without news the work's value, or its own error, comes out."""
    event = asyncio.Event()

    async def fails() -> str:
        raise LookupError("no paint")

    assert await unless(event, asyncio.sleep(0, "done")) == "done"
    with pytest.raises(LookupError, match="no paint"):
        await unless(event, fails())


async def test_event_cuts_work_off() -> None:
    """Work that goes on when the event comes is cancelled, and has ended when None is returned."""
    event, ended = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        try:
            return await never()
        finally:
            ended.set()

    asyncio.get_running_loop().call_soon(event.set)
    assert await unless(event, work()) is None
    assert ended.is_set()


async def test_patience_lets_work_end_after_the_event() -> None:
    """Within the patience the value still counts; after it the work is cut."""
    event, go = asyncio.Event(), asyncio.Event()
    event.set()

    async def work() -> str:
        await go.wait()
        return "done"

    asyncio.get_running_loop().call_later(0.01, go.set)
    assert await unless(event, work(), patience_s=30) == "done"
    assert await unless(event, never(), patience_s=0.01) is None


async def test_cancelling_cuts_the_work_too() -> None:
    """Who is cancelled while he waits leaves no work behind, and patience counts from then."""
    ended = asyncio.Event()

    async def work() -> str:
        try:
            return await never()
        finally:
            ended.set()

    task = asyncio.create_task(unless(asyncio.Event(), work(), patience_s=0.01))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("first", [0, 1])
async def test_all_gone_waits_for_every_process(first: int) -> None:
    """It returns when the last of the processes has died, whichever that is, at once for those that are gone."""
    sleepers = [
        await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", "import signal; signal.pause()")
        for _ in range(2)
    ]
    waiting = asyncio.create_task(all_gone([each.pid for each in sleepers]))
    one, other = sleepers[first], sleepers[1 - first]
    seen = asyncio.create_task(all_gone([one.pid]))
    await asyncio.sleep(0)
    one.send_signal(signal.SIGKILL)
    await asyncio.wait_for(seen, 90)  # who began to wait for the same one before would have been told before
    await one.wait()
    assert not waiting.done()
    other.send_signal(signal.SIGKILL)
    await asyncio.wait_for(waiting, 90)
    await other.wait()
    await asyncio.wait_for(all_gone([each.pid for each in sleepers]), 90)
