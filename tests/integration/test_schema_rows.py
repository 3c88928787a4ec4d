"""The makers of test rows make what the schema takes, in every state."""

from __future__ import annotations

import pytest

from tests.support import rows
from tireless.domain.job import State
from tireless.store.db import Connection


@pytest.mark.parametrize("state", State)
async def test_a_job_can_be_made_in_every_state(conn: Connection, state: State) -> None:
    """A made job is in the state that was asked for, and holds a claim only when it is claimed."""
    made = await rows.job(conn, state=state, hold=state is State.WAITING)
    job = await rows.row(conn, "job", made.job_id)
    assert job["state"] == state
    assert (job["claim_token"] is not None) == (state is State.CLAIMED)
    assert job["claim_token"] is None or made.claim == (made.job_id, job["claim_token"])


async def test_two_jobs_have_issues_of_their_own(conn: Connection) -> None:
    """Each job gets a new issue of the same repository, numbered on."""
    one, two = await rows.job(conn), await rows.job(conn, state="claimed")
    assert (one.repository_id, one.number + 1) == (two.repository_id, two.number)
