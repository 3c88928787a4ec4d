"""How a process of ours is woken and wakes others: one listening connection, one bell; it does none of the work."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from tireless.store.look import Ring, Wake, listen

LANE, LOOK, PUBLISH, MIRROR = "tireless_lane", "tireless_look", "tireless_publish", "tireless_mirror"
CANCEL = "tireless_cancel"
"""The channels of NOTIFY; a lost one costs one schedule."""


def whoami(what: str) -> str:
    """The name a take is marked with: service, host, process."""
    return f"{what} {socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class _Ear:
    channel: str
    events: Sequence[asyncio.Event]
    lanes: Collection[str]

    def is_meant(self, wake: Wake) -> bool:
        if wake.channel is None:  # listening begins (again): anything may have happened
            return True
        return wake.channel == self.channel and (self.channel != LANE or wake.payload in self.lanes)


class Ears:
    """The one listening connection of a process, to these channels; whoever wants to be woken says so by `wake`."""

    def __init__(self, url: str, *channels: str) -> None:
        self._url = url
        self._channels = channels
        self._all: list[_Ear] = []

    def wake(self, wakes: Mapping[str, Sequence[asyncio.Event]], lanes: Collection[str] = ()) -> None:
        """Set these events from now on, by channel, and once now: what came before this was not heard.

        A notification of a lane counts only for `lanes`. ValueError for a channel that is not listened to.
        """
        if unheard := [channel for channel in wakes if channel not in self._channels]:
            raise ValueError(f"nobody listens to {', '.join(unheard)}: name it when Ears are made")
        new = [_Ear(channel, events, lanes) for channel, events in wakes.items()]
        self._all += new
        _set(new)

    async def run(self) -> None:
        """Set events as notifications come, for ever; all of them whenever we begin to listen (again)."""
        async for wake in listen(self._url, self._channels, application_name=whoami("tireless listen")):
            _set([ear for ear in self._all if ear.is_meant(wake)])


def _set(ears: Sequence[_Ear]) -> None:
    for ear in ears:
        for event in ear.events:
            event.set()


@dataclass(frozen=True, slots=True)
class Waking:
    """How the parts of a process wake others, and are woken: its bell and its ears."""

    ring: Ring
    ears: Ears


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
