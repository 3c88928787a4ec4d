"""What an operator does to jobs and lanes, from the command line or the page; each act names who did it.

Refused carries the reason code and the next step; NotKnown says that there is no such job or lane.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import LiteralString

from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from tireless.domain.job import Cancelled, State
from tireless.errors import NotKnown, Refused
from tireless.store.db import Connection, transaction, translate
from tireless.store.lanes import no_claims


class Cancelling(StrEnum):
    """What a cancel came to."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    """A runner has it: it learns of this from its next renewal; if it is dead, the sweep ends the job."""
    ABANDONED = "abandoned"
    """What had begun of its delivery stays on the forge: the job ended failed, as unpublishable."""


# What was delivered in part stays where it is, and is named: a person must look at it. A publisher that has the job
# finds its take gone at its next word.
ABANDON = """
WITH part AS (
  SELECT j.id, j.pull_request, a.branch,
         ARRAY(SELECT c.number FROM child c WHERE c.job_id = j.id AND c.number IS NOT NULL ORDER BY 1) AS children
    FROM job j LEFT JOIN attempt a ON a.id = j.result_attempt
   WHERE j.id = %(job_id)s::bigint AND j.state = 'publishing' AND j.publish_began_at IS NOT NULL FOR NO KEY UPDATE OF j
), ended AS (
  UPDATE job j SET state = 'failed', reason = 'unpublishable', finished_at = clock_timestamp(),
                   publish_reason = 'given_up', publish_by = NULL, publish_token = NULL, publish_until = NULL,
                   publish_not_before = NULL
    FROM part p WHERE j.id = p.id
  RETURNING j.id
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
  SELECT p.id, %(who)s, 'cancel', 'publishing', 'failed', 'unpublishable',
         jsonb_build_object('branch', p.branch, 'pull_request', p.pull_request, 'children', p.children)
    FROM part p JOIN ended e ON e.id = p.id
)
SELECT e.id FROM ended e
"""
ABANDONED = """
SELECT jobs_ended(ARRAY[%(job_id)s::bigint]), pg_notify('tireless_look', ''), pg_notify('tireless_mirror', '')
"""
CANCEL = "SELECT cancel_job(%(job_id)s::bigint, %(who)s::text, %(code)s::text)"


async def cancel(
    conn: Connection, job_id: int, by: str, *, reason: Cancelled = Cancelled.OPERATOR, force: bool = False
) -> Cancelling:
    """Cancel a job in any state. Refused: `already_ended`, or `too_late` once something of it may be on the forge.

    With `force` the delivery of such a job is given up: it ends failed, as unpublishable, and what there is of it on
    the forge is named and left to a person.
    """
    doing = f"cancelling job {job_id}"
    values = {"job_id": job_id, "who": f"operator {by}", "code": reason.value}
    async with transaction(conn, doing):
        with translate(doing):
            row = await (await conn.execute(CANCEL, values)).fetchone()
            if force and row and row[0] == "too_late" and await (await conn.execute(ABANDON, values)).fetchone():
                await conn.execute(ABANDONED, values)
                return Cancelling.ABANDONED
    match row[0] if row else None:
        case None:
            raise _no_job(job_id)
        case "ended":
            raise Refused("already_ended", f"job {job_id} has ended and stays so: nothing is left to cancel")
        case "too_late":
            raise Refused(
                "too_late",
                f"job {job_id} is being delivered: something of it is on the forge already. "
                "Wait for its end and close its pull request there, or give the delivery up (`--force`): "
                "what there is of it stays on the forge then",
            )
        case answer:
            return Cancelling(answer)


# ------------------------------------------------------------------------------------------------ again

# The repository first (turns), then the issue (no second live job), as everywhere.
LOCK_PLACE = """
SELECT r.id FROM repository r
 WHERE r.id = (SELECT j.repository_id FROM job j WHERE j.id = %(job_id)s::bigint) FOR NO KEY UPDATE
"""
LOCK_ISSUE = """
SELECT i.id, i.open, i.number, r.owner || '/' || r.name AS path
  FROM issue i JOIN repository r ON r.id = i.repository_id
 WHERE i.id = (SELECT j.issue_id FROM job j WHERE j.id = %(job_id)s::bigint) FOR NO KEY UPDATE OF i
"""
LIVE_JOB = """
SELECT j.id, j.state FROM job j
 WHERE j.issue_id = %(issue_id)s::bigint AND j.state IN ('pending', 'waiting', 'claimed', 'publishing')
"""
RERUN = """
WITH old AS (
  -- Locked: one that is being pruned at this moment is gone then, and not named by the new row.
  SELECT j.*, l.max_attempts AS lane_attempts FROM job j JOIN lane l ON l.name = j.lane WHERE j.id = %(job_id)s::bigint
     FOR KEY SHARE OF j
), asked AS (
  INSERT INTO request (issue_id, source, asked_time, actor_login, content_hash)
  SELECT i.id, 'operator', clock_timestamp(), %(by)s, i.content_hash FROM old o JOIN issue i ON i.id = o.issue_id
  RETURNING id
), made AS (
  INSERT INTO job (issue_id, repository_id, request_id, kind, lane, priority, max_attempts, rerun_of,
                   hold, waits_for, steered)
  SELECT o.issue_id, o.repository_id, a.id, o.kind, o.lane, o.priority, o.lane_attempts, o.id,
         o.hold, issue_waits_for(o.issue_id, o.kind), o.steered
    FROM old o CROSS JOIN asked a
  RETURNING id, state, reason, lane, issue_id
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
  SELECT m.id, %(who)s, 'enqueue', NULL, m.state, m.reason, jsonb_build_object('rerun_of', %(job_id)s::bigint)
    FROM made m
)
SELECT m.id, pg_notify('tireless_lane', m.lane), pg_notify('tireless_mirror', ''),
       look_again(ARRAY[m.issue_id], 'rerun'), pg_notify('tireless_look', '')
  FROM made m
"""


async def rerun(conn: Connection, job_id: int, by: str) -> int:
    """Ask for an ended job's work again: a new request and a new job, whose id is returned. The old one stays as it is.

    The text is worked on only as far as it is approved. Refused: `already_live` while a job of the issue lives,
    `closed` when the issue is.
    """
    doing = f"running job {job_id} again"
    async with transaction(conn, doing):
        issue = await _locked(conn, doing, job_id)
        live = await _one(conn, doing, LIVE_JOB, {"issue_id": issue["id"]})
        ref = f"{issue['path']}#{issue['number']}"
        if live is not None:
            message = f"job {live['id']} of {ref} is {live['state']}: wait for it, or cancel it first"
            raise Refused("already_live", message)
        if not issue["open"]:
            raise Refused("closed", f"{ref} is closed: reopen it, then run the job again")
        values = {"job_id": job_id, "by": by, "who": f"operator {by}"}
        made = await _one(conn, doing, RERUN, values)
    if made is None:
        raise _no_job(job_id)
    return int(made["id"])


APPROVE_TEXT = """
UPDATE issue i
   SET approved_hash = i.content_hash, approved_title = i.title, approved_body = i.body, approved_by = %(by)s,
       approved_at = clock_timestamp()
 WHERE i.id = %(issue_id)s::bigint
"""
# Touching the state lets job_rest() say what is true now. No wait of the clock's outlasts a person's word.
UNPARK = """
WITH was AS (
  SELECT j.id, j.state, j.parked FROM job j WHERE j.id = %(job_id)s::bigint FOR NO KEY UPDATE
), moved AS (
  UPDATE job j
     SET parked = NULL, attempts = 0, given_back = 0, spent_usd = 0, fresh_from = j.claim_no, state = 'waiting',
         not_before = NULL, not_before_reason = NULL
    FROM was WHERE j.id = was.id AND was.state = 'waiting' AND was.parked IS NOT NULL
  RETURNING j.id, j.state, j.reason, j.lane
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
  SELECT m.id, %(who)s, CASE WHEN m.state = 'pending' THEN 'wake' ELSE 'approve' END, 'waiting', m.state, m.reason,
         jsonb_build_object('approved', was.parked)
    FROM moved m JOIN was ON was.id = m.id
)
SELECT was.state AS before, m.state, pg_notify('tireless_mirror', ''),
       CASE WHEN m.state = 'pending' THEN pg_notify('tireless_lane', m.lane) END
  FROM was LEFT JOIN moved m ON m.id = was.id
"""


async def approve(conn: Connection, job_id: int, by: str) -> State:
    """Let a parked job go on, on the issue's text as it is stored now, with all its attempts; its state afterwards.

    It may still wait for something else. Refused: `not_parked`.
    """
    doing = f"approving job {job_id}"
    async with transaction(conn, doing):
        issue = await _locked(conn, doing, job_id)
        with translate(doing):
            await conn.execute(APPROVE_TEXT, {"issue_id": issue["id"], "by": by})
        row = await _one(conn, doing, UNPARK, {"job_id": job_id, "who": f"operator {by}"})
        if row is None:
            raise _no_job(job_id)
        if row["state"] is None:
            raise Refused(
                "not_parked", f"job {job_id} is {row['before']} and waits for nobody's word: see `tireless explain`"
            )
    return State(row["state"])


STEER = """
WITH was AS (
  SELECT j.id, j.state, j.lane, j.priority FROM job j WHERE j.id = %(job_id)s::bigint FOR NO KEY UPDATE
), moved AS (
  UPDATE job j
     SET lane = coalesce(%(lane)s, j.lane), priority = coalesce(%(priority)s::smallint, j.priority),
         steered = ARRAY(SELECT DISTINCT s FROM unnest(j.steered || %(steered)s::text) AS s ORDER BY s)
    FROM was WHERE j.id = was.id AND was.state IN ('pending', 'waiting')
  RETURNING j.id, j.state, j.reason, j.lane
), told AS (
  INSERT INTO job_event (job_id, who, what, from_state, to_state, reason, details)
  SELECT m.id, %(who)s,
         -- Touching a row lets it say the truth: a wait may just have ended, or the text lost its approval.
         CASE WHEN m.state = was.state THEN %(what)s WHEN m.state = 'pending' THEN 'wake' ELSE 'wait' END,
         was.state, m.state, m.reason,
         jsonb_strip_nulls(jsonb_build_object(
           'act', %(what)s::text, 'lane', %(lane)s::text, 'priority', %(priority)s::smallint,
           'lane_before', was.lane, 'priority_before', was.priority))
    FROM moved m JOIN was ON was.id = m.id
)
SELECT was.state AS before, m.state, pg_notify('tireless_mirror', ''),
       CASE WHEN m.state = 'pending' THEN pg_notify('tireless_lane', m.lane) END
  FROM was LEFT JOIN moved m ON m.id = was.id
"""
LANE_KNOWN = "SELECT l.configured FROM lane l WHERE l.name = %(lane)s"


async def reroute(conn: Connection, job_id: int, lane: str, by: str) -> State:
    """Give a job that waits for its turn to another lane, whatever its labels say until they are changed.

    Refused: `lane_not_configured`, or `not_queued` once it runs or has ended.
    """
    doing = f"moving job {job_id} to lane {lane}"
    known = await _one(conn, doing, LANE_KNOWN, {"lane": lane})
    if known is None:
        raise NotKnown(f"there is no lane {lane}: see `tireless lanes ls`")
    if not known["configured"]:
        raise Refused(
            "lane_not_configured", f"lane {lane} is gone from the configuration of `serve`: add it there first"
        )
    return await _steer(conn, doing, job_id, by, "reroute", steered="lane", lane=lane)


async def bump(conn: Connection, job_id: int, by: str, *, priority: int = 1) -> State:
    """Set the priority (1 high, 0, -1 low) of a job that waits for its turn, until its label is changed."""
    doing = f"setting the priority of job {job_id}"
    return await _steer(conn, doing, job_id, by, "bump", steered="priority", priority=priority)


async def _steer(
    conn: Connection,
    doing: str,
    job_id: int,
    by: str,
    what: str,
    *,
    steered: str,
    lane: str | None = None,
    priority: int | None = None,
) -> State:
    values = {"job_id": job_id, "who": f"operator {by}", "what": what, "steered": steered}
    async with transaction(conn, doing):
        await _locked(conn, doing, job_id)
        row = await _one(conn, doing, STEER, {**values, "lane": lane, "priority": priority})
        if row is None:
            raise _no_job(job_id)
        if row["state"] is None:
            raise Refused("not_queued", f"job {job_id} is {row['before']}: only pending and waiting jobs can be moved")
    return State(row["state"])


async def _locked(conn: Connection, doing: str, job_id: int) -> DictRow:
    """Lock the repository and the issue of a job, in this order; the issue's row."""
    await _one(conn, doing, LOCK_PLACE, {"job_id": job_id})
    issue = await _one(conn, doing, LOCK_ISSUE, {"job_id": job_id})
    if issue is None:
        raise _no_job(job_id)
    return issue


# ------------------------------------------------------------------------------------------------ lanes

HOLD = """
INSERT INTO lane_hold (lane, source, until, reason, held_by)
SELECT l.name, 'operator', %(until)s::timestamptz, %(reason)s, %(by)s FROM lane l WHERE l.name = %(lane)s
ON CONFLICT (lane, source, host) DO UPDATE
   SET until = EXCLUDED.until, reason = EXCLUDED.reason, held_by = EXCLUDED.held_by, began_at = clock_timestamp()
RETURNING lane
"""


async def hold(conn: Connection, lane: str, by: str, *, reason: str, until: datetime | None = None) -> None:
    """Hold a lane for every host, until released or until a time. After this returns no claim is made under it.

    Not inside a transaction: the hold is committed, then every claim begun before is waited for. Repeating it replaces
    reason and time. Drain: this, then wait for `drain_done`.
    """
    doing = f"holding lane {lane}"
    _alone(conn, doing)
    if await _one(conn, doing, HOLD, {"lane": lane, "until": until, "reason": reason, "by": by}) is None:
        raise NotKnown(f"there is no lane {lane}: see `tireless lanes ls`")
    await barrier(conn, lane)


RELEASE = """
SELECT end_hold(l.name, %(source)s::text, %(host)s::text, false) AS ended FROM lane l WHERE l.name = %(lane)s
"""


async def release(conn: Connection, lane: str, by: str, *, source: str = "operator", host: str = "") -> bool:
    """Remove one hold of a lane, an operator's unless `source` names another; False: there was none.

    After a quota or breaker hold the next claim is a probe, whoever removed it. Not inside a transaction.
    """
    doing = f"releasing lane {lane} for {by}"
    _alone(conn, doing)
    row = await _one(conn, doing, RELEASE, {"lane": lane, "source": source, "host": host})
    if row is None:
        raise NotKnown(f"there is no lane {lane}: see `tireless lanes ls`")
    await barrier(conn, lane)
    return bool(row["ended"])


async def barrier(conn: Connection, lane: str) -> None:
    """Return when every claim begun before has committed, so that none misses what was committed before this call."""
    async with no_claims(conn, f"waiting for the claims under way on lane {lane}"):
        pass


RUNNING = "SELECT count(*) AS n FROM job j WHERE j.state = 'claimed' AND j.lane = %(lane)s"


async def drain_done(conn: Connection, lane: str) -> bool:
    """Does no runner hold a job of this lane any more? Only final while the lane is held."""
    row = await _one(conn, f"counting what runs on lane {lane}", RUNNING, {"lane": lane})
    return row is not None and row["n"] == 0


def _alone(conn: Connection, doing: str) -> None:
    if conn.info.transaction_status != TransactionStatus.IDLE:
        raise ValueError(f"{doing}: not inside a transaction, the hold must be committed before claims are waited for")


async def _one(conn: Connection, doing: str, statement: LiteralString, values: dict[str, object]) -> DictRow | None:
    with translate(doing):
        async with conn.cursor(row_factory=dict_row) as cursor:
            return await (await cursor.execute(statement, values)).fetchone()


def _no_job(job_id: int) -> NotKnown:
    return NotKnown(f"there is no job {job_id}: see `tireless jobs ls`")
