"""Issues stored a page at a time are stored as they would be one by one, and only those of which nothing can come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest

from tests.support import rows
from tests.support.ingest import GO, IMPLEMENT, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.errors import StoreError
from tireless.services import scanning
from tireless.store.db import Connection
from tireless.store.plain import Plain

# All that is stored, but for the row's id and when it was read.
STORED = """
SELECT to_jsonb(i) - '{id, asked_at, seen_at, triaged_at, approved_at}'::text[] AS row FROM issue i ORDER BY number
"""


async def none_at_once(_: Connection, __: int, ___: Sequence[Plain], *, asked_at: datetime) -> frozenset[int]:
    """Store none of them."""
    return frozenset()


async def people_write(ingest: Ingest) -> None:
    """Issues of all kinds: plain, labelled, closed, large, unprintable, asking, of nobody any more."""
    stage = ingest.stage
    bug = await ingest.label("bug")
    await stage.alice.create_issue(stage.path, "Plain", "Words.")
    await stage.alice.create_issue(stage.path, "Labelled", "Words.", label_ids=[bug])
    await stage.alice.create_issue(stage.path, "Large", "é" * 700_000)
    await stage.mallory.create_issue(stage.path, "N\0UL", "be\0fore")
    await stage.alice.create_issue(stage.path, "Looks like a label", "tireless/go")
    closed = await stage.alice.create_issue(stage.path, "Closed", "Done.")
    await stage.alice.close(stage.path, closed)
    await ingest.ask(GO, IMPLEMENT)
    await ingest.ask(GO)
    await ingest.ask("tireless/hold")
    await ingest.ask("tireless/nonsense")


async def test_a_page_at_once_is_what_one_by_one_would_be(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row the same, and the same jobs; polled again, nothing is read or written anew."""
    await people_write(ingest)
    await ingest.loopback.advance(400)
    assert (await ingest.poll()).made == 1
    at_once = await rows.rows(ingest.conn, STORED)
    await ingest.conn.execute("TRUNCATE job_event, job, request, verdict, mirror, look, issue CASCADE")
    await ingest.conn.execute("UPDATE repository SET since = NULL, newest_seen = NULL, newest_first_seen_at = NULL")
    monkeypatch.setattr(scanning, "store_plain", none_at_once)
    assert (await ingest.poll(full=True)).made == 1
    assert await rows.rows(ingest.conn, STORED) == at_once
    assert len(at_once) == 10


async def test_what_is_known_or_a_plans_child_is_judged_by_itself(ingest: Ingest) -> None:
    """A job's issue that lost all its labels is no plain one; nor is a child that is known by its number alone."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    for name in (GO, IMPLEMENT):
        await ingest.unlabel(number, name)
    child = await ingest.stage.alice.create_issue(ingest.stage.path, "A child", "Of a plan.")
    plan = await rows.value(ingest.conn, "SELECT id FROM issue WHERE number = %(number)s", number=number)
    made = await rows.child(ingest.conn, int(str(plan)), "key", number=child)
    await ingest.poll()
    assert (await ingest.job(number))["reason"] == "unlabelled"
    row = await rows.row(ingest.conn, "child", made)
    assert row["issue_id"] == (await ingest.issue(child))["id"]


async def test_a_look_at_a_plain_issue_is_answered_by_the_page(ingest: Ingest) -> None:
    """As any reading answers what was written before it was asked for."""
    number = await ingest.stage.alice.create_issue(ingest.stage.path, "Plain", "Words.")
    await ingest.conn.execute(
        "INSERT INTO look (repository_id, number, why, not_before) VALUES (%s, %s, 'test', 'infinity')",
        [ingest.repository_id, number],
    )
    await ingest.poll()
    assert (await ingest.issue(number))["title"] == "Plain"
    assert await ingest.looks() == []


async def test_a_page_that_cannot_be_stored_at_once_is_stored_one_by_one(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad issue stops none of the others."""

    async def fails(*_: object, **__: object) -> frozenset[int]:
        """As if the database refused one of them."""
        raise StoreError("one of them is bad")

    for n in range(3):
        await ingest.stage.alice.create_issue(ingest.stage.path, f"Plain {n}", "Words.")
    monkeypatch.setattr(scanning, "store_plain", fails)
    await ingest.poll()
    assert await rows.value(ingest.conn, "SELECT count(*) FROM issue") == 3
