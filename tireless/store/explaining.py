"""Why is this issue (not) being worked on: every gate in order, as the rows have it now. Judges no label itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from psycopg.rows import DictRow, dict_row

from tireless.domain.comments import left_open_sentence, publishing_details
from tireless.domain.gates import GATES, TRIAGE_CODES, Details, Judged, triage_sentence, warning_sentences
from tireless.domain.inert import one_line
from tireless.domain.issue import Label
from tireless.domain.labels import LabelScheme, read
from tireless.domain.steps import Now
from tireless.errors import UsageError
from tireless.store.db import Connection, translate
from tireless.store.freshness import Freshness, freshness
from tireless.store.inspect_places import ALIVE_S
from tireless.store.lanes import HoldRow, hold_rows

_WHY_MAX = 500

_JOB_GATES = frozenset(gate.code for gate in GATES[[gate.code for gate in GATES].index("ended") :])


@dataclass(frozen=True, slots=True)
class Explanation:
    """What keeps an issue from being worked on, or its place in line when nothing does.

    `first` is the first gate that blocks, None when a claim by a runner of its lane with nothing else pending would
    take it. `place` counts from 1 among the pending jobs of its lane; `runners` are alive and serve that lane.
    """

    forge: str | None
    repo: str
    number: int
    title: str | None
    url: str | None
    asked: bool
    job_id: int | None
    state: str | None
    reason: str | None
    kind: str | None
    lane: str | None
    not_before: datetime | None
    gates: tuple[Judged, ...]
    first: Judged | None
    place: int | None
    runners: int
    setup_holds: tuple[HoldRow, ...]
    """Why the lane cannot be started on some hosts; in the way only where every living runner is on one of them."""
    warnings: tuple[str, ...]
    fresh: Freshness | None
    """How old all of this is; None where no row knows the repository."""

    @property
    def held_hosts(self) -> tuple[str, ...]:
        """Hosts on which the lane cannot be started."""
        return tuple(hold.host for hold in self.setup_holds)


REPOSITORY = """
SELECT r.id, r.forge, r.owner || '/' || r.name AS repo, r.tracked, r.readable, r.unreadable_reason
  FROM repository r
 WHERE lower(r.owner || '/' || r.name) = lower(%(repo)s) AND (%(forge)s::text IS NULL OR r.forge = %(forge)s)
 ORDER BY r.tracked DESC, r.id DESC
"""
ISSUE = """
SELECT i.id, i.title, i.url, i.open, i.asked, i.labels, i.triage_code, i.triage_details,
       i.content_hash = i.approved_hash AS approved, m.error AS untold
  FROM issue i LEFT JOIN mirror m ON m.issue_id = i.id
 WHERE i.repository_id = %(repository_id)s AND i.number = %(number)s
"""
NEWEST_JOB = """
SELECT j.id, j.state, j.reason, j.kind, j.lane, j.parked, j.hold, j.waits_for, j.repository_full, j.day_limit,
       j.publish_reason, j.not_before, j.not_before_reason, j.attempts >= j.max_attempts AS spent, j.priority, j.turn,
       g.gate, g.hold_source, g.hold_reason, g.hold_until, g.hold_by,
       (SELECT coalesce(jsonb_agg(o.details ORDER BY o.id), '[]') FROM job_event o
         WHERE o.job_id = j.id AND o.what = 'left_open') AS left_open
  FROM job j LEFT JOIN job_gate g ON g.job_id = j.id
 WHERE j.issue_id = %(issue_id)s ORDER BY j.finished_at IS NULL DESC, j.id DESC LIMIT 1
"""
# How many go before it, in the claim's order.
AHEAD = """
SELECT count(*) FROM job j
 WHERE j.state = 'pending' AND j.lane = %(lane)s
   AND (j.priority > %(priority)s OR (j.priority = %(priority)s AND (j.turn, j.id) < (%(turn)s, %(id)s)))
"""
SERVING = """
SELECT u.host FROM runner u
 WHERE %(lane)s = ANY (u.lanes) AND u.seen_at > clock_timestamp() - make_interval(secs => %(alive_s)s::float8)
"""


async def explain(
    conn: Connection, repo: str, number: int, *, scheme: LabelScheme, forge: str | None = None
) -> Explanation:
    """Judge every gate of issue `number` in `owner/name`. UsageError when several forges have that repository."""
    with translate(f"explaining {repo}#{number}"):
        places = await _all(conn, REPOSITORY, {"repo": repo, "forge": forge})
        watched = [place for place in places if place["tracked"]]
        if len({place["forge"] for place in watched or places}) > 1:
            names = ", ".join(sorted(place["forge"] for place in watched or places))
            raise UsageError(f"{repo} is known on several forges: say which one of {names}")
        place = places[0] if places else None
        issue = await _one(conn, ISSUE, {"repository_id": place["id"], "number": number}) if place else None
        fresh = await freshness(conn, place["id"], number) if place else None
        job = await _one(conn, NEWEST_JOB, {"issue_id": issue["id"]}) if issue else None
        ahead = await _count(conn, AHEAD, job) if job is not None and job["state"] == "pending" else None
        serving = await _all(conn, SERVING, {"lane": job["lane"], "alive_s": ALIVE_S}) if job is not None else []
        queued = job is not None and job["state"] in ("pending", "waiting")
        holds = await hold_rows(conn, job["lane"]) if job is not None and queued else []
    setup_holds = tuple(hold for hold in holds if hold.source == "setup")
    failing = _failing(place, issue, job, len(serving))
    failing |= {code: told_of(fresh) for code in ("not_asked", "unseen") if fresh and code in failing}
    if job is not None and job["state"] == "pending" and "lane_held" not in failing:
        failing |= _held_everywhere(job["lane"], setup_holds, {row["host"] for row in serving})
    now = Now(scheme)
    if issue is not None:
        on = read((Label(each["id"], each["name"]) for each in issue["labels"]), scheme)
        now = Now(scheme, on, issue["open"])
    gates = _judged(failing, now, has_live_job=job is not None and "ended" not in failing)
    details: Details = issue["triage_details"] if issue else {}
    return Explanation(
        forge=place["forge"] if place else forge,
        repo=place["repo"] if place else repo,
        number=number,
        title=issue["title"] if issue else None,
        url=issue["url"] if issue else None,
        asked=bool(issue and issue["asked"]),
        job_id=job["id"] if job else None,
        state=job["state"] if job else None,
        reason=job["reason"] if job else None,
        kind=job["kind"] if job else None,
        lane=job["lane"] if job else None,
        not_before=job["not_before"] if job else None,
        gates=gates,
        first=next((one for one in gates if one.passed is False and one.gate.blocking), None),
        place=None if ahead is None else ahead + 1,
        runners=len(serving),
        setup_holds=setup_holds,
        warnings=(*warning_sentences(details, scheme), *_left_open(job), *_untold(issue)),
        fresh=fresh,
    )


def told_of(fresh: Freshness) -> dict[str, object]:
    """What gates.next_reading wants to know, shown as people read it."""
    told = {"as_of": _shown(fresh.as_of), "next": _shown(fresh.next_at), "fault": fresh.fault}
    return {**told, "under_way": fresh.under_way, "late": fresh.late}


def _untold(issue: DictRow | None) -> list[str]:
    """Why what the forge shows may be old, or is missing: another installation keeps it, a refusal, an outage."""
    if issue is None or not issue["untold"]:
        return []
    return [f"Its status label and comment are not kept up to date: {one_line(issue['untold'], _WHY_MAX).rstrip('.')}."]


def _left_open(job: DictRow | None) -> list[str]:
    found = job["left_open"] if job else ()
    return [left_open_sentence(str(each["number"]), pull=each["pull"]) for each in found]


def _failing(place: DictRow | None, issue: DictRow | None, job: DictRow | None, runners: int) -> dict[str, Details]:
    """The codes of the gates that do not let it pass, with what there is to say of each."""
    if place is None:
        return {"unknown_repository": {}}
    failing: dict[str, Details] = {}
    if not place["tracked"]:
        failing["untracked"] = {}
    if not place["readable"]:
        failing["unreadable"] = {"reason": place["unreadable_reason"]}
    if issue is None:
        return {**failing, "unseen": {}}
    if job is not None and job["state"] not in ("delivered", "failed", "cancelled"):
        failing |= _of_live_job(job)
        if not runners:
            failing["no_runner"] = {"lane": job["lane"]}
        return failing
    code = issue["triage_code"]
    if code in TRIAGE_CODES and not (code == "needs_approval" and issue["approved"]):
        failing[code] = issue["triage_details"]
    elif not issue["open"]:
        failing["closed"] = {}
    elif not issue["asked"] and job is None:
        failing["not_asked"] = {}
    else:
        failing["answered"] = {} if job is not None else {"unknown": True}
    if job is not None:
        failing["ended"] = {"job": job["id"], "state": job["state"], "reason": job["reason"]}
    return failing


def _of_live_job(job: DictRow) -> dict[str, Details]:
    if job["state"] == "claimed":
        return {"running": {}}
    if job["state"] == "publishing":
        return {"publishing": publishing_details(job["publish_reason"])}
    failing: dict[str, Details] = {}
    if job["parked"] is not None:
        failing[job["parked"]] = {"job": job["id"]}
    if job["hold"]:
        failing["on_hold"] = {}
    if job["waits_for"]:
        failing["waits_for"] = {"waits_for": job["waits_for"]}
    for flag in ("repository_full", "day_limit"):
        if job[flag]:
            failing[flag] = {}
    if job["not_before_reason"] is not None:
        failing[job["not_before_reason"]] = {"until": _shown(job["not_before"])}
    if job["spent"] and job["parked"] is None:
        failing["attempts"] = {}
    gate = job["gate"]
    if gate == "lane_held":
        failing[gate] = {
            "lane": job["lane"],
            "source": job["hold_source"],
            "reason": job["hold_reason"],
            "by": job["hold_by"],
            "until": _shown(job["hold_until"]),
        }
    elif gate is not None and gate not in ("untracked", "cannot_tell"):
        failing.setdefault(gate, {"lane": job["lane"]})
    return failing


def _held_everywhere(lane: str, holds: Sequence[HoldRow], hosts: set[str]) -> dict[str, Details]:
    """The gate of the setup holds, where no host that has a living runner of the lane is without one."""
    theirs = [hold for hold in holds if hold.host in hosts]
    if not hosts or len(theirs) < len(hosts):
        return {}
    told = [{"host": hold.host, "reason": hold.reason, "until": _shown(hold.until)} for hold in theirs]
    return {"lane_held": {"lane": lane, "source": "setup", "hosts": told}}


def _judged(failing: Mapping[str, Details], now: Now, *, has_live_job: bool) -> tuple[Judged, ...]:
    """All gates in order. Those after the first failed one up to the job were not reached; a live job's all are."""
    judged = []
    stopped = False
    for gate in GATES:
        if gate.code in failing:
            said, then = triage_sentence(gate.code, failing[gate.code], now)
            judged.append(Judged(gate, False, said, then, failing[gate.code]))
            stopped = stopped or gate.code not in _JOB_GATES
        elif gate.code in _JOB_GATES:
            judged.append(Judged(gate, True if has_live_job else None))
        else:
            judged.append(Judged(gate, None if stopped and not has_live_job else True))
    return tuple(judged)


def _shown(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


async def _all(conn: Connection, statement: LiteralString, values: Mapping[str, object]) -> list[DictRow]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        return await (await cursor.execute(statement, values)).fetchall()


async def _one(conn: Connection, statement: LiteralString, values: Mapping[str, object]) -> DictRow | None:
    found = await _all(conn, statement, values)
    return found[0] if found else None


async def _count(conn: Connection, statement: LiteralString, values: Mapping[str, object]) -> int:
    row = await (await conn.execute(statement, values)).fetchone()
    return int(row[0]) if row else 0
