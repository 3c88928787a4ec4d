"""Runs the parts of a process beside each other until it is told to stop; a part that ends by itself is a bug."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping

from tireless import log

_log = log.get(__name__)


async def run_parts(parts: Mapping[str, Coroutine[None, None, None]], stop: asyncio.Event) -> None:
    """Run all parts until `stop` and until each has ended. A part that ends before that is a bug: RuntimeError.

    A part that fails takes the others with it, and its error is raised: whoever started the process starts it again.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for name, part in parts.items():
                group.create_task(_until_stopped(name, part, stop), name=name)
    except BaseExceptionGroup as failed:
        first, *others = _leaves(failed)
        for other in others:
            _log.error("another part failed as well", exc_info=other)
        raise first from failed


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


async def _until_stopped(name: str, part: Coroutine[None, None, None], stop: asyncio.Event) -> None:
    await part
    if not stop.is_set():
        raise RuntimeError(f"{name} ended by itself")
