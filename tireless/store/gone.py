"""An issue that the forge answers with 404 in a repository that it shows: gone only if it stays so. Part of intake."""

from __future__ import annotations

from enum import StrEnum

from tireless.domain.job import Cancelled
from tireless.store.db import Connection, translate
from tireless.store.dependencies import look_at_dependents
from tireless.store.issues import end_child
from tireless.store.jobs import call_off, lock_kin, refresh_waits
from tireless.store.look import Ring

GONE_AFTER_S = 600.0
"""Between the two answers that make an issue gone."""


class Missing(StrEnum):
    """What is known of an issue that is not there."""

    UNKNOWN = "unknown"
    """No row: a pull request's number, or one that never was."""
    SUSPECTED = "suspected"
    """Not there for the first time, or not long enough."""
    GONE = "gone"


LOCK_PLACE = "SELECT r.id FROM repository r WHERE r.id = %(repository_id)s FOR NO KEY UPDATE"
NOT_THERE = """
UPDATE issue i SET gone_since = coalesce(i.gone_since, clock_timestamp())
 WHERE i.repository_id = %(repository_id)s AND i.number = %(number)s
RETURNING i.id, i.gone_since <= clock_timestamp() - make_interval(secs => %(after_s)s::float8)
"""
KIN = """
SELECT c.id, c.plan_issue_id FROM child c JOIN issue p ON p.id = c.plan_issue_id
 WHERE c.issue_id = %(issue_id)s ORDER BY c.id DESC LIMIT 1 FOR NO KEY UPDATE OF p
"""
LIVE = """
SELECT j.id FROM job j
 WHERE j.issue_id = %(issue_id)s AND j.state IN ('pending', 'waiting', 'claimed', 'publishing') FOR NO KEY UPDATE
"""
MARK_GONE = """
UPDATE issue SET open = false, asked = false, triage_code = 'gone', triage_details = '{}' WHERE id = %(issue_id)s
"""


async def missed(
    conn: Connection, repository_id: int, number: int, *, after_s: float = GONE_AFTER_S, ring: Ring | None = None
) -> Missing:
    """Note that an issue is not there; from the second time on, `after_s` later, it is gone and its job ends.

    In a transaction of the caller's, who has seen that the repository is there and has issues. A later reading that
    shows the issue undoes it.
    """
    where: dict[str, object] = {"repository_id": repository_id, "number": number, "after_s": after_s}
    with translate(f"noting that issue {number} of repository {repository_id} is not there"):
        await conn.execute(LOCK_PLACE, where)
        row = await (await conn.execute(NOT_THERE, where)).fetchone()
        if row is None:
            return Missing.UNKNOWN
        if not row[1]:
            return Missing.SUSPECTED
        where["issue_id"] = row[0]
        kin = await (await conn.execute(KIN, where)).fetchone()
        if kin is not None:
            await lock_kin(conn, kin[1])
        job = await (await conn.execute(LIVE, where)).fetchone()
        await conn.execute(MARK_GONE, where)
    if kin is not None:
        await end_child(conn, kin[0], "gone")  # before the job: telling the plan's mirror comes before any look
    if job is not None:
        await call_off(conn, job[0], Cancelled.GONE)
    if kin is not None:
        await refresh_waits(conn, kin[1], ring=ring)
    plan = kin[1] if kin is not None else None
    why = "what blocked it is gone"
    await look_at_dependents(conn, repository_id, number, plan_issue_id=plan, why=why, ring=ring)
    return Missing.GONE
