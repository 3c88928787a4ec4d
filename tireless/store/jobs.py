"""Making jobs and changing those that rest: enqueue, refresh, re-ask, absorb; never touches a claim.

What a job waits for is written as columns; the trigger of 0002 finds the state, so that every UPDATE here says
`state = 'waiting'` and gets the truth back. A turn is given under the repository's row lock, which comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tireless.domain.job import Cancelled, Kind
from tireless.domain.routing import Route
from tireless.store.db import Connection, jsonb, translate
from tireless.store.look import Ring, wake_lanes


@dataclass(frozen=True, slots=True)
class NewJob:
    """A request to be worked on, of one kind, in one lane."""

    issue_id: int
    repository_id: int
    request_id: int
    kind: Kind
    lane: str
    priority: int = 0
    hold: bool = False
    rerun_of: int | None = None
    question: str | None = None
    """Asked of a person before it may begin: it is made parked, asked_too_often."""


# One statement, so that a batch is one round trip. A live job of the issue, or a job of this request and kind, is there
# already after a lost COMMIT reply, or made by another poller: the unique indexes say so, and nothing is made.
ENQUEUE = """
WITH locked AS MATERIALIZED (  -- turns are given under the repository's lock, in the house's order of locks
  SELECT id FROM repository WHERE id = ANY (%(repository_id)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
), given AS (
  SELECT g.* FROM unnest(%(issue_id)s::bigint[], %(repository_id)s::bigint[], %(request_id)s::bigint[],
                         %(kind)s::text[], %(lane)s::text[], %(priority)s::smallint[], %(hold)s::boolean[],
                         %(rerun_of)s::bigint[], %(question)s::text[])
    WITH ORDINALITY AS g(issue_id, repository_id, request_id, kind, lane, priority, hold, rerun_of, question, n)
    JOIN locked ON locked.id = g.repository_id
), made AS (
  INSERT INTO job (issue_id, repository_id, request_id, kind, lane, priority, hold, rerun_of,
                   parked, parked_at, question, waits_for, max_attempts)
  SELECT g.issue_id, g.repository_id, g.request_id, g.kind, g.lane, g.priority, g.hold, g.rerun_of,
         CASE WHEN g.question IS NOT NULL THEN 'asked_too_often' END,
         CASE WHEN g.question IS NOT NULL THEN clock_timestamp() END, g.question,
         issue_waits_for(g.issue_id, g.kind), coalesce((SELECT l.max_attempts FROM lane l WHERE l.name = g.lane), 1)
    FROM given g ORDER BY g.n
  ON CONFLICT DO NOTHING
  RETURNING id, lane, state, reason
), told AS (
  INSERT INTO job_event (job_id, who, what, to_state, reason, details)
  SELECT id, %(who)s, 'enqueue', state, reason, jsonb_build_object('lane', lane) FROM made
), woken AS MATERIALIZED (
  SELECT lane, CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_lane', lane) END
    FROM (SELECT DISTINCT lane FROM made WHERE state = 'pending') AS one
)
SELECT (SELECT count(*) FROM made), ARRAY(SELECT lane FROM woken)
"""


async def enqueue(conn: Connection, jobs: Sequence[NewJob], *, who: str = "intake", ring: Ring | None = None) -> int:
    """Make jobs; how many are new. One statement; repeating it makes none. Wakes their lanes, or tells `ring`.

    The issue row must hold its new snapshot and approved text by then: a job whose text is not the approved one is
    made parked. StoreError names `job_lane_fkey` for a lane the database does not know.
    """
    if not jobs:
        return 0
    values: dict[str, object] = {
        "who": who,
        "issue_id": [job.issue_id for job in jobs],
        "repository_id": [job.repository_id for job in jobs],
        "request_id": [job.request_id for job in jobs],
        "kind": [job.kind.value for job in jobs],
        "lane": [job.lane for job in jobs],
        "priority": [job.priority for job in jobs],
        "hold": [job.hold for job in jobs],
        "rerun_of": [job.rerun_of for job in jobs],
        "question": [job.question for job in jobs],
        "notify": ring is None,
    }
    with translate(f"enqueueing {len(jobs)} jobs"):
        row = await (await conn.execute(ENQUEUE, values)).fetchone()
    if row is None:
        return 0
    wake_lanes(ring, row[1])
    return int(row[0])


# `by_person`: what a person does gives attempts and allowance back and ends every wait but holds and dependencies.
CHANGE_RESTING = """
WITH old AS MATERIALIZED (
  SELECT id, state, kind, lane, priority, hold, waits_for FROM job
   WHERE id = %(job_id)s AND state IN ('pending', 'waiting') FOR NO KEY UPDATE
), moved AS (
  UPDATE job SET
      kind = %(kind)s, lane = %(lane)s, priority = %(priority)s::smallint, hold = %(hold)s::boolean,
      request_id = coalesce(%(request_id)s::bigint, job.request_id),
      waits_for = issue_waits_for(job.issue_id, %(kind)s),
      steered = ARRAY(SELECT unnest(job.steered) EXCEPT SELECT unnest(%(unsteered)s::text[])),
      parked = CASE WHEN %(question)s::text IS NOT NULL THEN 'asked_too_often'
                    WHEN %(unpark)s::boolean THEN NULL ELSE job.parked END,
      parked_at = CASE WHEN %(question)s::text IS NOT NULL THEN clock_timestamp() ELSE job.parked_at END,
      question = coalesce(%(question)s::text, job.question),
      attempts = CASE WHEN %(by_person)s::boolean THEN 0 ELSE job.attempts END,
      given_back = CASE WHEN %(by_person)s::boolean THEN 0 ELSE job.given_back END,
      spent_usd = CASE WHEN %(by_person)s::boolean THEN 0 ELSE job.spent_usd END,
      fresh_from = CASE WHEN %(by_person)s::boolean THEN job.claim_no ELSE job.fresh_from END,
      not_before = CASE WHEN %(by_person)s::boolean THEN NULL ELSE job.not_before END,
      not_before_reason = CASE WHEN %(by_person)s::boolean THEN NULL ELSE job.not_before_reason END,
      max_attempts = CASE WHEN job.lane = %(lane)s THEN job.max_attempts
                          ELSE greatest((SELECT l.max_attempts FROM lane l WHERE l.name = %(lane)s),
                                        CASE WHEN %(by_person)s::boolean THEN 1 ELSE job.attempts + 1 END) END,
      state = 'waiting'
    FROM old WHERE job.id = old.id
  RETURNING job.id, job.kind, job.lane, job.priority, job.hold, job.waits_for, job.state, job.reason
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
  SELECT m.id, %(who)s,
         CASE WHEN o.state = m.state THEN %(what)s WHEN m.state = 'pending' THEN 'wake' ELSE 'wait' END,
         o.state, m.state, m.reason,
         jsonb_build_object('kind', m.kind, 'lane', m.lane, 'priority', m.priority, 'hold', m.hold)
           || %(details)s::jsonb
    FROM moved m JOIN old o ON o.id = m.id
), woken AS MATERIALIZED (
  SELECT m.lane, CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_lane', m.lane) END
    FROM moved m JOIN old o ON o.id = m.id
   WHERE m.state = 'pending' AND (o.state = 'waiting' OR o.lane <> m.lane)
)
SELECT m.state, ARRAY(SELECT lane FROM woken) FROM moved m
"""


async def change_resting(
    conn: Connection,
    job_id: int,
    route: Route,
    *,
    what: str,
    request_id: int | None = None,
    unpark: bool = False,
    by_person: bool = False,
    question: str | None = None,
    unsteered: Sequence[str] = (),
    details: Mapping[str, object] | None = None,
    who: str = "intake",
    ring: Ring | None = None,
) -> str | None:
    """Change a pending or waiting job in place; its state after that, None when it does not rest any more.

    `what` names the act in the event when the state stays. `question`: a person is asked it first, though what is asked
    for was asked too often. The caller holds the repository's row lock.
    """
    values: dict[str, object] = {
        "job_id": job_id,
        "kind": route.kind.value,
        "lane": route.lane,
        "priority": route.priority,
        "hold": route.hold,
        "request_id": request_id,
        "unpark": unpark,
        "by_person": by_person,
        "question": question,
        "unsteered": list(unsteered),
        "what": what,
        "details": jsonb({"act": what, **(details or {})}),
        "who": who,
        "notify": ring is None,
    }
    with translate(f"changing job {job_id}: {what}"):
        row = await (await conn.execute(CHANGE_RESTING, values)).fetchone()
    if row is None:
        return None
    wake_lanes(ring, row[1])
    return str(row[0])


LOCK_REPOSITORY_OF = """
SELECT r.id FROM repository r WHERE r.id = (SELECT j.repository_id FROM job j WHERE j.id = %(job_id)s) FOR NO KEY UPDATE
"""


async def refresh_lane(
    conn: Connection, job_id: int, route: Route, *, who: str = "intake", ring: Ring | None = None
) -> bool:
    """Re-route a pending or waiting job: kind, lane, priority and hold change on its row. False: it does not rest.

    In a transaction of the caller's.
    """
    with translate(f"locking the repository of job {job_id}"):
        await conn.execute(LOCK_REPOSITORY_OF, {"job_id": job_id})
    return await change_resting(conn, job_id, route, what="refresh", who=who, ring=ring) is not None


# Hold and priority of a running job hold for when it comes back.
CHANGE_RUNNING = """
WITH moved AS (
  UPDATE job SET hold = %(hold)s::boolean, priority = %(priority)s::smallint
   WHERE id = %(job_id)s AND state = 'claimed'
  RETURNING id
)
INSERT INTO job_event (job_id, who, what, from_state, to_state, details)
SELECT id, %(who)s, 'refresh', 'claimed', 'claimed', %(details)s::jsonb FROM moved
"""


async def change_running(conn: Connection, job_id: int, route: Route, *, who: str = "intake") -> None:
    """Note hold and priority on a claimed job; they count when it comes back."""
    details = jsonb({"priority": route.priority, "hold": route.hold})
    values = {"job_id": job_id, "hold": route.hold, "priority": route.priority, "details": details, "who": who}
    with translate(f"changing job {job_id} while it runs"):
        await conn.execute(CHANGE_RUNNING, values)


NOTE = """
INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
SELECT id, %(who)s, %(what)s, state, state, reason, %(details)s::jsonb FROM job WHERE id = %(job_id)s
"""


async def note(conn: Connection, job_id: int, what: str, details: Mapping[str, object], *, who: str = "intake") -> None:
    """An event that changes nothing of the job."""
    with translate(f"noting {what} on job {job_id}"):
        await conn.execute(NOTE, {"job_id": job_id, "what": what, "details": jsonb(dict(details)), "who": who})


# The one function for every cancel: it asks a runner to stop, and leaves what has begun to be created.
CANCEL = "SELECT cancel_job(%(job_id)s, %(who)s, %(reason)s)"


async def call_off(conn: Connection, job_id: int, reason: Cancelled, *, who: str = "intake") -> None:
    """End a job that rests or was not begun to be delivered, ask a running one to stop."""
    with translate(f"cancelling job {job_id}: {reason}"):
        await conn.execute(CANCEL, {"job_id": job_id, "who": who, "reason": reason.value})


# Not those that run: whoever renews has several of them, in whatever order.
LOCK_KIN = """
SELECT FROM job j
 WHERE j.state IN ('pending', 'waiting')
   AND j.issue_id = ANY (kin_of(%(plan_issue_id)s))
 ORDER BY j.id FOR NO KEY UPDATE
"""


async def lock_kin(conn: Connection, plan_issue_id: int) -> None:
    """Lock the jobs whose waits a child changes (refresh_waits), before any mirror or look is written.

    The caller has locked the repository and the plan's issue.
    """
    with translate(f"locking the jobs of the children of plan issue {plan_issue_id}"):
        await conn.execute(LOCK_KIN, {"plan_issue_id": plan_issue_id})


# A plan's children, after one of their issues was closed or opened again: those that wait for it, or again; and the
# plan's own issue, where somebody asks to have it implemented as well.
REFRESH_WAITS = """
WITH kin AS MATERIALIZED (
  SELECT j.id, j.state, j.lane, j.waits_for, issue_waits_for(j.issue_id, j.kind) AS waits
    FROM job j
   WHERE j.state IN ('pending', 'waiting')
     AND j.issue_id = ANY (kin_of(%(plan_issue_id)s))
   ORDER BY j.id FOR NO KEY UPDATE
), moved AS (
  UPDATE job SET waits_for = kin.waits, state = 'waiting' FROM kin
   WHERE job.id = kin.id AND job.waits_for IS DISTINCT FROM kin.waits
  RETURNING job.id, kin.state AS was, job.state, job.reason, job.lane, job.waits_for
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
  SELECT id, %(who)s, CASE WHEN was = state THEN 'refresh' WHEN state = 'pending' THEN 'wake' ELSE 'wait' END,
         was, state, reason, jsonb_build_object('waits_for', waits_for) FROM moved
), woken AS MATERIALIZED (
  -- Also where nothing changed: a claim that came meanwhile has passed the locked ones by.
  SELECT lane, CASE WHEN %(notify)s::boolean THEN pg_notify('tireless_lane', lane) END
    FROM (SELECT DISTINCT kin.lane FROM kin LEFT JOIN moved USING (id)
           WHERE coalesce(moved.state, kin.state) = 'pending') AS one
)
SELECT (SELECT count(*) FROM moved), ARRAY(SELECT lane FROM woken)
"""


async def refresh_waits(conn: Connection, plan_issue_id: int, *, who: str = "intake", ring: Ring | None = None) -> int:
    """Find anew whom the resting jobs of a plan's children, and of its own issue, wait for; how many changed.

    The caller has locked the repository and the plan's issue; and first of all these jobs (lock_kin).
    """
    values = {"plan_issue_id": plan_issue_id, "who": who, "notify": ring is None}
    with translate(f"waking the children of plan issue {plan_issue_id}"):
        row = await (await conn.execute(REFRESH_WAITS, values)).fetchone()
    if row is None:
        return 0
    wake_lanes(ring, row[1])
    return int(row[0])
