"""Looks: written and answered without losing one, put off with growing waits; and the listener that never goes deaf."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.support import rows
from tireless.errors import StoreError
from tireless.store import look as looks
from tireless.store.db import Connection
from tireless.store.look import Look, Wake, listen


@pytest.fixture
async def place(conn: Connection) -> int:
    """A watched repository of the forge `loop`."""
    return await rows.repository(conn)


async def stored(conn: Connection) -> list[dict[str, object]]:
    """All looks."""
    return await rows.rows(
        conn, "SELECT number, why, failures, error, not_before <= clock_timestamp() AS due FROM look ORDER BY number"
    )


async def take(conn: Connection, limit: int = 10) -> list[Look]:
    """What is due, taken."""
    return await looks.take_looks(conn, [rows.FORGE], limit=limit)


async def test_a_look_is_taken_once_and_answered_by_a_read_sent_after_it(conn: Connection, place: int) -> None:
    """Nobody else gets it meanwhile; it is gone afterwards."""
    await looks.write_look(conn, place, 7, why="webhook")
    [look] = await take(conn)
    assert (look.number, look.why) == (7, "webhook")
    assert await take(conn) == []
    assert await looks.answer_look(conn, look)
    assert await stored(conn) == []


async def test_a_look_written_while_it_is_answered_stays(conn: Connection, place: int) -> None:
    """The read may have been sent before it was written: it cannot have seen what it is about."""
    await looks.write_look(conn, place, 7, why="first")
    [look] = await take(conn)
    await looks.write_look(conn, place, 7, why="second")
    assert not await looks.answer_look(conn, look)
    assert [row["why"] for row in await stored(conn)] == ["second"]
    assert len(await take(conn)) == 1


async def test_a_look_put_off_waits_unless_it_was_written_again(conn: Connection, place: int) -> None:
    """Its failures and error are kept; a new writing makes it due and forgets them."""
    await looks.write_look(conn, place, 7, why="webhook")
    [look] = await take(conn)
    await looks.put_off(conn, look, error="no answer\0", delay_s=60)
    [row] = await stored(conn)
    assert (row["failures"], row["error"], row["due"]) == (1, "no answer\ufffd", False)
    assert await take(conn) == []
    await looks.write_look(conn, place, 7, why="again")
    assert await stored(conn) == [{"number": 7, "why": "again", "failures": 0, "error": None, "due": True}]
    [look] = await take(conn)
    await looks.write_look(conn, place, 7, why="meanwhile")
    await looks.put_off(conn, look, error="no answer", delay_s=60)
    assert (await stored(conn))[0]["due"]


async def test_a_failure_during_a_scan_backs_off_and_spares_a_fresh_look(conn: Connection, place: int) -> None:
    """Doubling up to the cap; a look somebody has just written is tried at once all the same."""
    waits = []
    for _ in range(8):
        await looks.fail_look(conn, place, 7, why="bad", error="title is no text", base_s=30, cap_s=600)
        waits.append(
            int(str(await rows.value(conn, "SELECT extract(epoch FROM not_before - clock_timestamp())::int FROM look")))
        )
    expected = [30, 60, 120, 240, 480, 600, 600, 600]
    assert [wait for wait, most in zip(waits, expected, strict=True) if not most / 2 < wait <= most] == [], waits
    await looks.write_look(conn, place, 8, why="webhook")
    await looks.fail_look(conn, place, 8, why="bad", error="title is no text")
    assert [row["number"] for row in await stored(conn) if row["due"]] == [8]


async def test_a_look_may_be_written_for_later_and_be_wanted_sooner(conn: Connection, place: int) -> None:
    """The sooner of the two counts."""
    await looks.write_look(conn, place, 7, why="later", not_before_s=60)
    assert await take(conn) == []
    await looks.write_look(conn, place, 7, why="now")
    await looks.write_look(conn, place, 7, why="later", not_before_s=60)
    assert len(await take(conn)) == 1


async def test_looks_are_handed_out_in_the_order_in_which_they_were_written(conn: Connection, place: int) -> None:
    """Whatever way the database goes to find them."""
    order = [3, 7, 1, 8, 2, 6]
    for number in order:
        await looks.write_look(conn, place, number, why="webhook")
    await conn.execute("SET enable_nestloop = off")
    await conn.execute("SET enable_hashjoin = off")
    assert [look.number for look in await take(conn)] == order


async def test_only_looks_of_watched_repositories_of_these_forges_are_taken(conn: Connection, place: int) -> None:
    """Others wait for who can answer them; an expired take is anybody's."""
    await looks.write_look(conn, place, 7, why="webhook")
    assert await looks.take_looks(conn, ["another"], limit=10) == []
    await rows.change(conn, "repository", place, tracked=False)
    assert await take(conn) == []
    await rows.change(conn, "repository", place, tracked=True)
    assert len(await take(conn)) == 1
    await rows.value(conn, "UPDATE look SET take_until = clock_timestamp() RETURNING 1")
    assert len(await take(conn)) == 1


async def test_a_look_at_an_unknown_repository_is_an_error_by_name(conn: Connection) -> None:
    """Nothing is stored for what nobody watches."""
    with pytest.raises(StoreError, match="look_repository_id_fkey"):
        await looks.write_look(conn, 404, 1, why="webhook")


# ------------------------------------------------------------------------------------------------ listening


@contextlib.asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[AsyncIterator[Wake]]:
    """A listener whose first wake, after LISTEN, has come."""
    wakes = listen(dsn, [looks.CHANNEL, "tireless_lane"], application_name="tireless test listener", retry_s=0.01)
    async with contextlib.aclosing(wakes) as found:
        assert await anext(found) == Wake()
        yield found


async def test_a_written_look_wakes_the_listener(dsn: str, conn: Connection, place: int) -> None:
    """So does any notification on its channels, with its payload, in order; one for later wakes nobody."""
    async with listening(dsn) as wakes:
        await looks.write_look(conn, place, 6, why="later", not_before_s=60)
        await looks.write_look(conn, place, 7, why="webhook")
        await looks.notify(conn, "tireless_lane", "claude")
        assert await anext(wakes) == Wake(looks.CHANNEL)
        assert await anext(wakes) == Wake("tireless_lane", "claude")


async def test_a_listener_whose_connection_is_killed_listens_again_and_wakes(dsn: str, conn: Connection) -> None:
    """Anything may have happened meanwhile: the wake after LISTEN is unconditional."""
    async with listening(dsn) as wakes:
        killed = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = %(name)s
        """
        assert await rows.value(conn, killed, name="tireless test listener") is True
        assert await asyncio.wait_for(anext(wakes), 90) == Wake()
        await looks.notify(conn, looks.CHANNEL)
        assert await asyncio.wait_for(anext(wakes), 90) == Wake(looks.CHANNEL)


async def test_a_closed_listener_leaves_no_connection(dsn: str, conn: Connection) -> None:
    """Closing the iterator closes the session."""
    async with listening(dsn):
        pass
    left = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'tireless test listener'
    """
    async with asyncio.timeout(90):
        while await rows.value(conn, left):
            await rows.value(conn, "SELECT pg_sleep(0.01)::text")
