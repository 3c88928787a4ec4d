"""How often one issue's requests were worked on lately: who asks again and again, person or bot, is paid for by us."""

from __future__ import annotations

from tireless.store.db import Connection, translate

# Retries of one request count once, and a request that no runner has taken costs nothing.
WORKED_ON = """
SELECT count(DISTINCT (SELECT max(q.id) FROM request q
                        WHERE q.issue_id = %(issue_id)s AND q.source = 'label' AND q.created_at <= a.claimed_at))
  FROM job j JOIN attempt a ON a.job_id = j.id
 WHERE j.issue_id = %(issue_id)s AND a.claimed_at > clock_timestamp() - interval '1 hour'
"""


async def too_often(conn: Connection, issue_id: int, most: int | None) -> str | None:
    """What a person is asked before one more request of an issue is worked on; None while it may be.

    `most`: how many may within an hour, None or 0 without end.
    """
    if not most:
        return None
    with translate(f"counting what was worked on lately for issue row {issue_id}"):
        row = await (await conn.execute(WORKED_ON, {"issue_id": issue_id})).fetchone()
    many = int(row[0]) if row else 0
    if many < most:
        return None
    return (
        f"{many} requests of this issue were worked on within the last hour, and at most {most} may be "
        "(limits.max_requests_per_issue_per_hour). Shall this one be worked on as well?"
    )
