"""The rows as the state machine sees them: read in one statement, aged at will, compared with the model."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.support.storemodel import SECOND, Job, Model
from tireless.store.db import Connection

Seen = dict[str, Any]

MICROSECONDS = """
CREATE FUNCTION us(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE
  AS $$ SELECT (extract(epoch FROM at) * 1000000)::bigint $$
"""
OBSERVE = """
SELECT us(clock_timestamp()), jsonb_build_object(
  'jobs', (SELECT jsonb_object_agg(j.id, jsonb_build_object(
     'state', j.state, 'reason', j.reason, 'lane', j.lane, 'priority', j.priority, 'attempts', j.attempts,
     'max_attempts', j.max_attempts, 'claim_no', j.claim_no, 'given_back', j.given_back, 'parked', j.parked,
     'spent', j.spent_usd,
     'hold', j.hold, 'full', j.repository_full, 'wait', j.not_before_reason, 'token', j.claim_token,
     'host', j.claimed_host, 'cancel', j.cancel_requested, 'take', j.publish_token,
     'began', j.publish_began_at IS NOT NULL AND j.state = 'publishing', 'ended', j.finished_at IS NOT NULL,
     'result', (SELECT a.claim_no FROM attempt a WHERE a.id = j.result_attempt AND j.state = 'publishing'),
     'turn', j.turn, 'not_before', us(j.not_before), 'claimed_at', us(j.claimed_at),
     'expires_at', us(j.claim_expires_at), 'take_until', us(j.publish_until),
     'tries', (SELECT jsonb_agg(jsonb_build_array(a.claim_no, a.token, a.outcome, a.burned, a.recorded_at IS NOT NULL,
                                                  a.ended_at IS NOT NULL) ORDER BY a.claim_no)
                 FROM attempt a WHERE a.job_id = j.id))) FROM job j),
  'lanes', (SELECT jsonb_object_agg(l.name, jsonb_build_object(
     'limit', l.max_running, 'probing', l.probing, 'probe', l.probe_token, 'avoid', l.probe_avoid_job,
     'counted', l.counted, 'probe_since', us(l.probe_since),
     'failures', coalesce(b.failures, 0), 'issues', coalesce(b.issues, '{}'),
     'opened', coalesce(b.opened, 0), 'quotas', coalesce(b.quotas, 0), 'ended_at', us(b.last_ended_at),
     'quota_ended_at', us(b.quota_ended_at),
     'holds', (SELECT coalesce(jsonb_agg(jsonb_build_object('source', h.source, 'host', h.host, 'job', h.job_id,
                                                            'until', us(h.until), 'began', us(h.began_at))), '[]')
                 FROM lane_hold h WHERE h.lane = l.name))) FROM lane l LEFT JOIN lane_breaker b ON b.lane = l.name),
  'issues', (SELECT jsonb_object_agg(i.id, jsonb_build_array(
     i.content_hash = i.approved_hash,
     EXISTS (SELECT FROM look k WHERE (k.repository_id, k.number) = (i.repository_id, i.number)),
     EXISTS (SELECT FROM child c WHERE c.issue_id = i.id AND c.ended_at IS NOT NULL))) FROM issue i),
  'done', (SELECT sum(i.children_done) FROM issue i),
  'children ended', (SELECT count(*) FROM child c WHERE c.ended_at IS NOT NULL),
  'twins', (SELECT count(*) FROM (
     SELECT FROM job j WHERE j.finished_at IS NULL GROUP BY j.issue_id HAVING count(*) > 1) t))
"""
TOLD = """
SELECT e.job_id, e.what, e.from_state, e.to_state FROM job_event e
 WHERE e.from_state IS DISTINCT FROM e.to_state ORDER BY e.id
"""
# One round trip each, without any trigger: this is no act on the store, but time or an example before.
AGE = """
BEGIN;
SET LOCAL session_replication_role = replica;
UPDATE job SET claimed_at = claimed_at - i, claim_expires_at = claim_expires_at - i, not_before = not_before - i,
               publish_until = publish_until - i, finished_at = finished_at - i
  FROM (VALUES (interval '{by} us')) AS t (i);
UPDATE attempt SET claimed_at = claimed_at - i, ended_at = ended_at - i FROM (VALUES (interval '{by} us')) AS t (i);
UPDATE lane SET probe_since = probe_since - i FROM (VALUES (interval '{by} us')) AS t (i)
 WHERE probe_since IS NOT NULL;
UPDATE lane_hold SET until = until - i, began_at = began_at - i FROM (VALUES (interval '{by} us')) AS t (i);
UPDATE lane_breaker SET last_ended_at = last_ended_at - i, quota_ended_at = quota_ended_at - i
  FROM (VALUES (interval '{by} us')) AS t (i);
COMMIT
"""
BEGIN_AGAIN = """
BEGIN;
SET LOCAL session_replication_role = replica;
DELETE FROM job_event; DELETE FROM attempt; DELETE FROM job; DELETE FROM request; DELETE FROM look; DELETE FROM mirror;
DELETE FROM lane_hold; DELETE FROM lane_success; DELETE FROM lane_breaker;
INSERT INTO lane_breaker (lane) SELECT name FROM lane;
UPDATE lane SET probing = false, probe_token = NULL, probe_since = NULL, probe_avoid_job = NULL, max_running = NULL,
                max_usd = NULL;
UPDATE issue SET content_hash = approved_hash, children_done = 0;
UPDATE child SET ended_at = NULL, ended_reason = NULL;
COMMIT
"""
ASK = """
INSERT INTO request (issue_id, source, asked_time, actor_login, content_hash)
SELECT %(id)s, 'operator', clock_timestamp(), 'ada', i.content_hash FROM issue i WHERE i.id = %(id)s RETURNING id
"""
COPIED = (
    *("state", "reason", "lane", "priority", "attempts", "max_attempts", "claim_no", "given_back"),
    *("spent", "parked", "hold", "full", "wait", "host", "cancel"),
)
"""What a job's row and its model call by the same name."""
SLACK = 60 * SECOND
"""How far a time that the database chose may be from what the model reckoned: a slow machine, no rule."""


async def observe(conn: Connection) -> Seen:
    """Everything the model knows of, as the rows have it; `now` is the database's clock."""
    row = await (await conn.execute(OBSERVE.encode())).fetchone()
    assert row is not None
    return {"now": row[0], **row[1]}


async def age(conn: Connection, by: int) -> None:
    """Let all that is noted in the rows have happened `by` microseconds earlier. Superusers only."""
    await conn.execute(AGE.format(by=by).encode(), prepare=False)


async def begin_again(conn: Connection) -> None:
    """Leave the places there are, and nothing that happened in them. Superusers only."""
    await conn.execute(BEGIN_AGAIN.encode(), prepare=False)
    await conn.execute(
        b"VACUUM job, attempt, job_event, request, look, mirror, lane, lane_hold, lane_breaker, issue, child",
        prepare=False,
    )


async def asked(conn: Connection, issue_id: int) -> int:
    """A request on an issue. Its id."""
    row = await (await conn.execute(ASK.encode(), {"id": issue_id})).fetchone()
    assert row is not None
    return int(row[0])


def compare(model: Model, seen: Seen, before: dict[int, tuple[str, int]]) -> None:
    """The rows are as the model has them. Times the database chose and turns given together are taken over.

    `before`: states and numbers of claims at the beginning of the step.
    """
    jobs = seen["jobs"] or {}
    assert {int(key) for key in jobs} == set(model.jobs)
    woken = [j for j in model.jobs.values() if j.state == "pending" and before.get(j.id) != ("pending", j.claim_no)]
    for job in model.jobs.values():
        _compare_job(job, jobs[str(job.id)], {j.id for j in woken} if len(woken) > 1 else set())
    given = [
        (j.issue.repo, j.lane, j.priority, j.turn) for j in woken if before.get(j.id, ("waiting", 0))[0] == "waiting"
    ]
    assert len(set(given)) == len(given), f"turns given twice: {given}"
    assert set(seen["lanes"]) == set(model.lanes)
    for name in model.lanes:
        _compare_lane(model, name, seen["lanes"][name])
    shown = {int(key): value for key, value in seen["issues"].items()}
    assert {i.id: [i.approved, i.looked, i.child_ended] for i in model.issues} == {
        i.id: shown[i.id] for i in model.issues
    }
    assert seen["done"] == seen["children ended"] == model.children_done
    assert seen["twins"] == 0, "an issue has two jobs that live"


def _compare_job(job: Job, row: Seen, together: Collection[int]) -> None:
    wanted = {name: getattr(job, name) for name in COPIED}
    wanted |= {"token": job.token and str(job.token), "take": job.take and str(job.take)}
    wanted |= {
        "began": job.began and job.state == "publishing",
        "ended": job.state in ("delivered", "failed", "cancelled"),
    }
    wanted["result"] = job.result if job.state == "publishing" else None
    found = {name: row[name] for name in wanted}
    assert found == wanted, f"job {job.id}: the rows have {_differs(found, wanted)}"
    tries = [[a.claim_no, str(a.token), a.outcome, a.burned, a.recorded, a.outcome is not None] for a in job.tries]
    assert (row["tries"] or []) == tries, f"attempts of job {job.id}: {row['tries']}, want {tries}"
    burned = sum(a.burned is not False for a in job.tries)
    assert job.attempts == burned - job.forgiven, f"attempts of job {job.id} do not add up"
    for name in ("not_before", "claimed_at", "expires_at", "take_until"):
        take_over(job, name, row[name])
    if job.state == "pending":
        assert row["turn"] == job.turn or job.id in together, f"turn of job {job.id}: {row['turn']}, want {job.turn}"
        job.turn = row["turn"]


def _compare_lane(model: Model, name: str, row: Seen) -> None:
    lane = model.lanes[name]
    wanted = {key: getattr(lane, key) for key in ("limit", "probing", "avoid", "failures", "opened", "quotas")}
    wanted |= {"probe": lane.probe and str(lane.probe), "counted": model.counted(name)}
    found = {key: row[key] for key in wanted}
    assert found == wanted, f"lane {name}: the rows have {_differs(found, wanted)}"
    assert set(row["issues"]) == lane.issues
    for key in ("probe_since", "ended_at", "quota_ended_at"):
        take_over(lane, key, row[key])
    holds = {(hold["source"], hold["host"]): hold for hold in row["holds"]}
    assert set(holds) == set(lane.holds)
    for which, hold in lane.holds.items():
        assert holds[which]["job"] == hold.job
        take_over(hold, "until", holds[which]["until"])
        take_over(hold, "began", holds[which]["began"])
    running = len(model.of("claimed", name))
    assert lane.limit is None or running <= lane.limit or row["limit"] is None, f"lane {name} runs {running}"


def take_over(of: object, name: str, found: int | None) -> None:
    """A time of the database's choice, near what the model reckoned."""
    wanted = getattr(of, name)
    near = found == wanted if found is None or wanted is None else abs(found - wanted) < SLACK
    assert near, f"{name} of {of}: {found}, want about {wanted}"
    setattr(of, name, found)


def _differs(found: Seen, wanted: Seen) -> str:
    return ", ".join(f"{key} {found[key]!r} for {wanted[key]!r}" for key in wanted if found[key] != wanted[key])
