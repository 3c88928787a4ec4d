"""What a runner asks about its job beside the claim: the request's name for good, and where the repository is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support import rows
from tireless.errors import StoreError
from tireless.store.db import Connection
from tireless.store.history import clone_url, recall

ASKED = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("source", "event_id", "name"),
    [
        ("label", 77, "repository=9 issue=4 label=77 at=2026-03-01T12:00:05Z"),
        ("operator", None, "repository=9 issue=4 operator at=2026-03-01T12:00:05Z"),
        ("child", None, "repository=9 issue=4 child"),
    ],
)
async def test_request_is_named_by_what_outlives_a_database(
    conn: Connection, source: str, event_id: int | None, name: str
) -> None:
    """A request's name is made of the forge's ids and times alone: the same after the database was lost or restored."""
    await rows.repository(conn, forge_repo_id=9)
    issue_id = await rows.issue(conn, number=4)
    request_id = await rows.request(conn, issue_id, source=source, event_id=event_id, asked_time=ASKED)
    made = await rows.job(conn, issue_id=issue_id, request_id=request_id)
    assert (await recall(conn, made.job_id)).request == name


async def test_first_attempt_has_nothing_before_it(conn: Connection) -> None:
    """A job that runs for the first time recalls nothing, its own running attempt least of all."""
    made = await rows.job(conn, state="claimed")
    assert (await recall(conn, made.job_id)).previous is None


async def test_clone_url_is_the_one_last_seen(conn: Connection) -> None:
    """A repository that was renamed is asked for under its new address; a job that is gone is an error."""
    made = await rows.job(conn)
    await rows.repository(conn, clone_url="http://127.0.0.1:1/acme/gadgets.git")
    assert await clone_url(conn, made.job_id) == "http://127.0.0.1:1/acme/gadgets.git"
    with pytest.raises(StoreError, match="no such job"):
        await clone_url(conn, made.job_id + 1)
    with pytest.raises(StoreError, match="no such job"):
        await recall(conn, made.job_id + 1)
