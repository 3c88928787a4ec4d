"""SIGTERM and SIGINT: the first drains, later ones hurry, the last stops at once. No other place handles signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tireless import log
from tireless.errors import TirelessError

_log = log.get(__name__)
_T = TypeVar("_T")


class Stopped(TirelessError):
    """The process was told to stop at once, and did not wait for what was under way."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What one more signal brings: an event to set, and words for what is waited for then."""

    event: asyncio.Event
    means: str


async def until_told(work: Coroutine[None, None, _T], stages: Sequence[Stage]) -> _T:
    """Run `work`. Each signal sets the event of the next stage; one more than there are stages cancels: Stopped."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)

    def told(name: str) -> None:
        left = [stage for stage in stages if not stage.event.is_set()]
        if not left:
            _log.warning("stop forced", signal=name)
            task.cancel()
            return
        _log.info("stop requested", signal=name, now=left[0].means, signal_again=_then(left[1:]))
        left[0].event.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, told, number.name)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise Stopped("stopped at once, without waiting for what was under way; leases free it by themselves") from None
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _then(stages: Sequence[Stage]) -> str:
    return stages[0].means if stages else "stops at once"
