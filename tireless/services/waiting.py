"""Waiting for the first of several things, bounded; every loop of ours sleeps here and nowhere else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterable
from typing import TypeVar

T = TypeVar("T")


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Return when one of the events is set or the time is over; without events it is the time."""
    if not events:
        await asyncio.sleep(timeout_s or 0.0)
        return
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def unless(event: asyncio.Event, work: Coroutine[object, object, T], *, patience_s: float = 0.0) -> T | None:
    """What `work` gives, or None when it was cut: `patience_s` after the event, or after we were cancelled.

    It has ended when this returns, and its own error is raised.
    """
    task = asyncio.ensure_future(work)
    coming = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, coming), return_when=asyncio.FIRST_COMPLETED)
    finally:
        coming.cancel()
        await _end(task, patience_s)
    return None if task.cancelled() else task.result()


async def _end(task: asyncio.Future[T], patience_s: float) -> None:
    try:
        if not task.done():
            await asyncio.wait([task], timeout=patience_s)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # fetched, lest it be reported as lost where we were cancelled ourselves


async def all_gone(pids: Iterable[int]) -> None:
    """Return when none of these processes is alive any more. Linux only, as is everything that names survivors."""
    if sys.platform == "linux":
        for pid in pids:
            await _gone(pid)


async def _gone(pid: int) -> None:
    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
