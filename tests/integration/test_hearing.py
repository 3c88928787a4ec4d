"""The ears of a process: whom a notification wakes, and that nobody is forgotten who asks late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support import rows
from tireless.app.hearing import CANCEL, LANE, LOOK, Ears
from tireless.store.db import Connection
from tireless.store.look import notify


@pytest.fixture
async def ears(dsn: str) -> AsyncIterator[Ears]:
    """Listening, as is known by the event that was there before it began."""
    made, began = Ears(dsn, LANE, LOOK), asyncio.Event()
    made.wake({LOOK: [began]})
    began.clear()
    listening = asyncio.create_task(made.run())
    await asyncio.wait_for(began.wait(), rows.LIMIT_S)
    yield made
    listening.cancel()
    await asyncio.wait([listening])


async def test_each_is_woken_by_its_channel_and_its_lanes(ears: Ears, conn: Connection) -> None:
    """A lane's notification wakes who serves it; the last one shows that all before it have been heard."""
    mine, others, look = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ears.wake({LANE: [mine], LOOK: [look]}, ["claude"])
    ears.wake({LANE: [others]}, ["spare"])
    for event in (mine, others, look):
        event.clear()
    await notify(conn, LANE, "claude")
    await notify(conn, LOOK)
    await asyncio.wait_for(look.wait(), rows.LIMIT_S)
    assert mine.is_set()
    assert not others.is_set()


async def test_who_asks_late_is_woken_for_what_came_before(ears: Ears) -> None:
    """What was notified while nobody asked was not heard: it looks once by itself."""
    late = asyncio.Event()
    ears.wake({LOOK: [late]})
    assert late.is_set()


def test_what_is_not_listened_to_is_refused() -> None:
    """Else its owner would wait for ever for what nobody hears."""
    with pytest.raises(ValueError, match=f"nobody listens to {CANCEL}"):
        Ears("postgresql:///unused", LANE).wake({CANCEL: [asyncio.Event()]})
