"""Waiting for the first of several events, bounded; every loop of ours sleeps here and nowhere else."""

from __future__ import annotations

import asyncio


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Return when one of the events is set or the time is over."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
