"""What the rows say of an issue before a reading is taken in: locks them in the house's order, writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import LiteralString

from psycopg.rows import DictRow, dict_row

from tireless.domain.case import NEVER, Marks, Seen
from tireless.domain.decision import EndedJob, LiveJob, Standing
from tireless.domain.issue import Label, Person
from tireless.domain.job import Kind, State
from tireless.domain.labels import LabelScheme, Role, read
from tireless.domain.people import Facts, Verdict
from tireless.store.db import Connection, translate


@dataclass(frozen=True, slots=True)
class Known:
    """What the rows say of an issue before a reading is taken in. Job times are told by the forge's clock."""

    repository_id: int
    owner_is_org: bool | None
    asks_after: datetime | None
    issue_id: int | None = None
    forge_issue_id: int | None = None
    seen_at: datetime | None = None
    open: bool | None = None
    content_hash: str | None = None
    approved_hash: str | None = None
    seen: Seen | None = None
    code: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    answered: Marks = field(default_factory=Marks)
    counted: Mapping[int, Role] = field(default_factory=dict)
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    passed: frozenset[int] = frozenset()
    standing: Standing = field(default_factory=Standing)
    request_actor: int | None = None
    question_at: datetime | None = None
    child_id: int | None = None
    plan_issue_id: int | None = None

    def facts_with(self, fetched: Facts) -> Facts:
        """The facts the forge told, and those only the rows know."""
        return replace(fetched, owner_is_org=self.owner_is_org, passed=self.passed)


# Taken first: what follows may make a job pending, which wants this lock for its turn.
LOCK_REPOSITORY = """
SELECT r.tracked, r.owner_is_org, r.asks_after FROM repository r WHERE r.id = %(repository_id)s FOR NO KEY UPDATE
"""
LOCK_ISSUE = """
SELECT i.id, i.forge_issue_id, i.seen_at, i.open, i.content_hash, i.updated_at, i.approved_hash, i.answered_event,
       CASE WHEN i.answered_time = '-infinity' THEN NULL ELSE i.answered_time END AS answered_time,
       i.counted, i.labels, i.triage_code, i.triage_details
  FROM issue i WHERE i.repository_id = %(repository_id)s AND i.number = %(number)s FOR NO KEY UPDATE
"""
# A child's issue may be known by its number alone, until it has a row. The plan's issue is locked before any job.
LOCK_PLAN = """
SELECT c.id, c.plan_issue_id, c.proposal, c.lane, c.ended_at IS NOT NULL AS ended
  FROM child c JOIN issue p ON p.id = c.plan_issue_id
 WHERE p.repository_id = %(repository_id)s AND c.number = %(number)s
 ORDER BY c.ended_at IS NULL DESC, c.id DESC LIMIT 1
   FOR NO KEY UPDATE OF p
"""
LIVE_JOB = """
SELECT j.id, j.state, j.kind, j.lane, j.priority, j.hold, j.parked, j.cancel_requested, j.steered,
       j.publish_began_at IS NOT NULL AS creating, coalesce(j.parked_at, j.created_at) AS parked_at, q.actor_id,
       ARRAY(SELECT DISTINCT o.kind FROM job o WHERE o.request_id = j.request_id AND o.id <> j.id) AS kinds_taken
  FROM job j JOIN request q ON q.id = j.request_id
 WHERE j.issue_id = %(issue_id)s AND j.state IN ('pending', 'waiting', 'claimed', 'publishing')
   FOR NO KEY UPDATE OF j
"""
LAST_JOB = """
SELECT j.state, j.reason, j.kind, j.finished_at, j.request_id, q.actor_id,
       ARRAY(SELECT DISTINCT o.kind FROM job o WHERE o.request_id = j.request_id) AS kinds_taken
  FROM job j JOIN request q ON q.id = j.request_id
 WHERE j.issue_id = %(issue_id)s AND j.finished_at IS NOT NULL
 ORDER BY j.id DESC LIMIT 1
"""
CHILD_REQUEST = """
SELECT q.id FROM request q
 WHERE q.issue_id = %(issue_id)s AND q.source = 'child' AND q.answered_at IS NULL
   AND NOT EXISTS (SELECT FROM job j WHERE j.request_id = q.id)
"""
VERDICTS = """
SELECT v.event_id, v.actor_id, v.actor_login, v.entry_at, v.allowed, v.reason FROM verdict v
 WHERE v.issue_id = %(issue_id)s
"""
PASSED = """
SELECT DISTINCT v.actor_id FROM verdict v JOIN issue i ON i.id = v.issue_id
 WHERE v.allowed AND v.actor_id = ANY (%(people)s::bigint[]) AND i.repository_id = %(repository_id)s
"""


async def known_of(
    conn: Connection,
    repository_id: int,
    number: int,
    *,
    offset: timedelta,
    scheme: LabelScheme,
    people: Collection[int],
) -> Known | None:
    """Lock repository, issue, plan issue and job, in this order, and say what they hold; None: not watched.

    `offset` is the forge's clock minus ours; `people` are those whose earlier acts may matter, by id.
    """
    where: dict[str, object] = {"repository_id": repository_id, "number": number}
    with translate(f"reading what is known of issue {number} in repository {repository_id}"):
        place = await _one(conn, LOCK_REPOSITORY, where)
        if place is None or not place["tracked"]:
            return None
        issue = await _one(conn, LOCK_ISSUE, where)
        plan = await _one(conn, LOCK_PLAN, where)
        known = Known(repository_id, place["owner_is_org"], place["asks_after"])
        if plan is not None:
            known = replace(known, child_id=plan["id"], plan_issue_id=plan["plan_issue_id"])
        known = replace(known, standing=_childhood(plan))
        if issue is None:
            return known
        known = _with_issue(known, issue, scheme)
        where |= {"issue_id": known.issue_id, "people": list(people)}
        live = await _one(conn, LIVE_JOB, where)
        last = await _one(conn, LAST_JOB, where)
        request = await _one(conn, CHILD_REQUEST, where) if plan is not None and not plan["ended"] else None
        known = _with_jobs(known, live, last, request, offset)
        verdicts = [_verdict(row) for row in await _all(conn, VERDICTS, where)]
        passed = frozenset(row["actor_id"] for row in await _all(conn, PASSED, where))
    return replace(known, verdicts={one.event_id: one for one in verdicts}, passed=passed)


def _with_issue(known: Known, issue: DictRow, scheme: LabelScheme) -> Known:
    labels = [Label(one["id"], one["name"]) for one in issue["labels"]]
    return replace(
        known,
        issue_id=issue["id"],
        forge_issue_id=issue["forge_issue_id"],
        seen_at=issue["seen_at"],
        open=issue["open"],
        content_hash=issue["content_hash"],
        approved_hash=issue["approved_hash"],
        seen=Seen(issue["content_hash"], issue["updated_at"]),
        code=issue["triage_code"],
        details=issue["triage_details"],
        answered=Marks(issue["answered_event"], issue["answered_time"] or NEVER),
        counted={int(key): Role(role) for key, role in issue["counted"].items()},
        standing=replace(known.standing, view=read(labels, scheme)),
    )


def _with_jobs(
    known: Known, live: DictRow | None, last: DictRow | None, request: DictRow | None, offset: timedelta
) -> Known:
    standing = known.standing
    if live is not None:
        job = LiveJob(
            id=live["id"],
            state=State(live["state"]),
            kind=Kind(live["kind"]),
            lane=live["lane"],
            priority=live["priority"],
            hold=live["hold"],
            parked=live["parked"],
            cancel_requested=live["cancel_requested"],
            steered=frozenset(live["steered"]),
            creating=live["creating"],
        )
        standing = replace(standing, live=job, kinds_taken=_kinds(live))
    if last is not None:
        ended = EndedJob(
            state=State(last["state"]),
            reason=last["reason"],
            kind=Kind(last["kind"]),
            finished_at=last["finished_at"] + offset,
            request_id=last["request_id"],
            kinds_taken=_kinds(last),
        )
        standing = replace(standing, last=ended)
    if request is not None:
        standing = replace(standing, child_request=request["id"])
    asker = live or last
    return replace(
        known,
        standing=standing,
        request_actor=asker["actor_id"] if asker is not None else None,
        question_at=live["parked_at"] + offset if live is not None else None,
    )


def _childhood(plan: DictRow | None) -> Standing:
    if plan is None:
        return Standing()
    return Standing(is_child=True, is_proposal=plan["proposal"], planned_lane=plan["lane"])


def _kinds(job: DictRow) -> frozenset[Kind]:
    return frozenset(Kind(kind) for kind in job["kinds_taken"])


def _verdict(row: DictRow) -> Verdict:
    actor = Person(row["actor_id"], row["actor_login"])
    return Verdict(row["event_id"], actor, row["entry_at"], row["allowed"], row["reason"])


async def _one(conn: Connection, statement: LiteralString, values: Mapping[str, object]) -> DictRow | None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        return await (await cursor.execute(statement, values)).fetchone()


async def _all(conn: Connection, statement: LiteralString, values: Mapping[str, object]) -> list[DictRow]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        return await (await cursor.execute(statement, values)).fetchall()
