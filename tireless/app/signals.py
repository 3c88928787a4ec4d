"""SIGTERM and SIGINT: the first drains, the second stops at once. The only place that handles signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

from tireless import log
from tireless.errors import TirelessError

_log = log.get(__name__)
_T = TypeVar("_T")


class Stopped(TirelessError):
    """The process was told twice to stop, and did not wait for what was under way."""


async def until_told(work: Coroutine[None, None, _T], stop: asyncio.Event, *, draining: str) -> _T:
    """Run `work`. The first signal sets `stop` (`draining` says what is waited for), the second cancels: Stopped."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)

    def told(name: str) -> None:
        if not stop.is_set():
            _log.info("stop requested", signal=name, draining=draining, again="stops at once")
            stop.set()
        else:
            _log.warning("stop forced", signal=name)
            task.cancel()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, told, number.name)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise Stopped(
            "stopped at once, without waiting for what was under way; its leases expire by themselves"
        ) from None
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
