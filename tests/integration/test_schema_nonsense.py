"""Every number, time and document of every row at its end: refused by name, or whatever is done and asked goes on.

One row that somebody changed by hand must not stop the claims and ends of a lane, nor empty a list.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from psycopg import sql

from tests.support import rows
from tests.support.asked import HOT, IN_FULL
from tests.support.transitions import CASES, Do, there
from tireless.errors import Refused, StoreError
from tireless.store.db import Connection, constraint_of, transaction

COLUMNS = """
SELECT c.table_name AS of, c.column_name AS name, c.data_type AS type FROM information_schema.columns c
  JOIN information_schema.tables t USING (table_schema, table_name)
 WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.is_identity = 'NO'
   AND c.data_type = ANY (%(types)s::text[])
 ORDER BY 1, 2
"""
TABLES = """
SELECT c.relname AS name FROM pg_class c
 WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname <> 'schema_migration'
"""
NUMBERS: dict[str, Sequence[str]] = {
    "integer": ("2147483647", "-2147483648", "1000000000"),
    "bigint": ("9223372036854775807", "-9223372036854775808", "1000000000000000000"),
    "double precision": ("1e308", "-1e308"),
    "numeric": ("1e30",),
}
SHAPES: dict[str, Sequence[str]] = {
    "timestamp with time zone": (
        "infinity",
        "-infinity",
        "290000-01-01",
        "9999-12-31 23:59:59Z",
        "0001-01-01Z",
    ),
    "jsonb": ("[]", "null", "5", "[null]", '{"a": {}}'),
    "integer": ("2147483647",),
    "bigint": ("9223372036854775807",),
}
MORE = """
INSERT INTO look (repository_id, number, why) SELECT id, 77, 'why' FROM repository;
INSERT INTO lane_hold (lane, source, reason, held_by, until)
SELECT name, 'operator', 'why', 'ada', now() + interval '1 h' FROM lane;
INSERT INTO lane_breaker (lane, failures) SELECT name, 4 FROM lane;
INSERT INTO owner_poll (forge, owner, asked_at, poll_not_before) SELECT name, 'acme', now(), now() FROM forge;
INSERT INTO runner (name, host, uid, pid, slots, lanes, version)
SELECT 'r', 'h', gen_random_uuid(), 1, 1, '{claude}', '1'
"""
"""Rows of the tables that a job alone does not fill."""


async def more(conn: Connection) -> None:
    """Write them."""
    for statement in MORE.split(";"):
        await conn.execute(f"{statement} ON CONFLICT DO NOTHING".encode())


async def taken(conn: Connection, where: str, value: str) -> bool:
    """Write a value into a column of every row, all or none; False where a constraint with a name refuses it."""
    table, column = where.split(".")
    statement = sql.SQL("UPDATE {} SET {} = %(value)s").format(sql.Identifier(table), sql.Identifier(column))
    try:
        async with transaction(conn, f"writing {value} into {where}"):
            await conn.execute(statement, {"value": value})
            await conn.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except StoreError as error:
        if constraint_of(error) is None:
            raise
        return False
    return True


async def fault(conn: Connection, act: Do, made: rows.Made) -> str | None:
    """What stops it; not that it is properly refused. What it did is undone."""
    try:
        async with conn.transaction(force_rollback=True):
            await act(conn, made)
    except Refused:
        return None
    except Exception as error:  # noqa: BLE001 - whatever it is: that is what is looked for
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


async def columns(conn: Connection, values: dict[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Each column of these types with each of its values."""
    found = await rows.rows(conn, COLUMNS, types=[*values])
    return [(f"{each['of']}.{each['name']}", value) for each in found for value in values[str(each["type"])]]


@pytest.mark.long
async def test_a_number_at_its_end_stops_nothing(conn: Connection) -> None:
    """In each of them, whatever leads to a transition: a counter that cannot grow would fail a whole lane for ever."""
    faults, accepted = {}, set()
    names = ", ".join(str(row["name"]) for row in await rows.rows(conn, TABLES))
    # Where a repository has a limit an end goes alone: another answer, and no fault.
    everywhere = [each for each in await columns(conn, NUMBERS) if not each[0].startswith("repository.max_")]
    for key, some in CASES.items():
        for one in some:
            made = await one.prepare(conn)
            await more(conn)
            for where, value in everywhere:
                async with conn.transaction(force_rollback=True):
                    if await taken(conn, where, value):
                        accepted.add((where, value))
                        if why := await fault(conn, one.do, made):
                            faults[(where, value, key[0])] = why
            await conn.execute(f"TRUNCATE {names} CASCADE".encode())
    assert faults == {}
    assert len(accepted) > 20


@pytest.mark.long
async def test_what_no_clock_shows_and_nobody_expects_empties_no_list(conn: Connection) -> None:
    """Times without an end or beyond the years there are, documents of another shape: all that reads them reads on."""
    made, asked = await there("publishing")(conn), HOT | IN_FULL
    await more(conn)
    assert {name: why for name, ask in asked.items() if (why := await fault(conn, ask, made))} == {}
    faults, accepted = {}, set()
    for where, value in await columns(conn, SHAPES):
        async with conn.transaction(force_rollback=True):
            if await taken(conn, where, value):
                accepted.add((where, value))
                for name, ask in asked.items():
                    if why := await fault(conn, ask, made):
                        faults[(where, value, name)] = why
    assert faults == {}
    assert len(accepted) > 50
