"""Every SQL constant of the store is one the server understands on a migrated database."""

from __future__ import annotations

import re

import psycopg

from tests.support import rows
from tests.support.statements import constants, numbered
from tireless.store.db import Connection

PREPARABLE = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")


def test_there_are_statements() -> None:
    """The search for constants finds them: CLAIM above all."""
    found = constants()
    assert "claim.CLAIM" in found
    assert len(found) > 50


async def test_every_statement_prepares(conn: Connection) -> None:
    """Each prepares without being told any parameter's type, so that what the driver guesses does not matter."""
    refused = {}
    for name, statement in constants().items():
        text, names = numbered(statement)
        if not PREPARABLE.match(text):
            assert not names, f"{name} cannot be prepared, and so must have no parameters"
            continue
        try:
            await conn.execute(f"PREPARE tried AS {text}".encode())
            await conn.execute("DEALLOCATE tried")
        except psycopg.Error as error:
            refused[name] = str(error)
    assert refused == {}


async def test_what_takes_a_list_is_planned_once(conn: Connection) -> None:
    """Of a list that is a parameter the planner makes a plan for each call, which once was a third of a settle."""
    query = """
    SELECT p.proname AS name, 'plan_cache_mode=force_generic_plan' = ANY (p.proconfig) AS once
      FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND 'bigint[]'::regtype = ANY (p.proargtypes)
    """
    found = {str(row["name"]): row["once"] for row in await rows.rows(conn, query)}
    assert found.keys() >= {"jobs_ended", "claim_these"}
    assert [name for name, once in found.items() if not once] == []
