"""Every SQL constant of the store is one the server understands on a migrated database."""

from __future__ import annotations

import re

import psycopg

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
