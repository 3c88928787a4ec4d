"""What a process of ours is woken by: it listens to the database and sets events; it does none of the work."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Mapping, Sequence

from tireless.store.look import listen

LANE, LOOK, PUBLISH, MIRROR = "tireless_lane", "tireless_look", "tireless_publish", "tireless_mirror"
CANCEL = "tireless_cancel"
"""The channels of NOTIFY; a lost one costs one schedule."""


def whoami(what: str) -> str:
    """The name a take is marked with: service, host, process."""
    return f"{what} {socket.gethostname()}:{os.getpid()}"


async def hear(url: str, wakes: Mapping[str, Sequence[asyncio.Event]], lanes: Sequence[str] = ()) -> None:
    """Set events as notifications come, for ever; all of them whenever we begin to listen (again).

    `wakes`: events by channel. A notification of a lane counts only for `lanes`.
    """
    async for wake in listen(url, list(wakes), application_name=whoami("tireless listen")):
        if wake.channel is None:
            events = [event for each in wakes.values() for event in each]
        elif wake.channel == LANE and wake.payload not in lanes:
            events = []
        else:
            events = list(wakes.get(wake.channel, ()))
        for event in events:
            event.set()


async def until(stop: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Run `work` until it ends or `stop` is set, then see it cancelled."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    if not task.cancelled():
        task.result()
