"""What the store is asked often, or by people: for tests of what it costs and of what it survives."""

from __future__ import annotations

from datetime import timedelta

from tests.support import rows
from tests.support.transitions import Do
from tireless.domain.labels import LabelScheme
from tireless.store import inspect_jobs, inspect_places, lanes, sweep, tell
from tireless.store.comparing import recheck
from tireless.store.dependencies import refresh_own_waits
from tireless.store.explaining import explain
from tireless.store.history import recall
from tireless.store.known import known_of
from tireless.store.look import take_looks
from tireless.store.owners import take_owner
from tireless.store.polls import poll_sooner, take_repository
from tireless.store.publish import children_of, take_publishing

FORGES = [rows.FORGE]

HOT: dict[str, Do] = {
    "explain": lambda conn, of: explain(conn, rows.REPO, of.number, scheme=LabelScheme()),
    "a job's page": lambda conn, of: inspect_jobs.job_detail(conn, of.job_id),
    "its output": lambda conn, of: inspect_jobs.attempt_output(conn, of.job_id),
    "its events": lambda conn, of: inspect_jobs.event_rows(conn, job_id=of.job_id),
    "what went before": lambda conn, of: recall(conn, of.job_id),
    "what intake knows": lambda conn, of: known_of(
        conn, of.repository_id, of.number, offset=timedelta(seconds=1), scheme=LabelScheme(), people=()
    ),
    "whom it waits for": lambda conn, of: refresh_own_waits(conn, of.job_id),
    "its picture": lambda conn, of: tell.picture(conn, of.issue_id),
    "its children to publish": lambda conn, of: children_of(conn, of.job_id, unanswered_s=60),
    "a mirror's turn": lambda conn, _: tell.take_due(conn, FORGES, by="m", take_s=60, unanswered_s=60),
    "a poll's turn": lambda conn, _: take_repository(conn, FORGES, by="p", full_scan_s=60),
    "a search's turn": lambda conn, _: take_owner(conn, FORGES, by="p"),
    "a publisher's turn": lambda conn, _: take_publishing(conn, FORGES, by="p", take_s=60, unanswered_s=60),
    "the looks": lambda conn, _: take_looks(conn, FORGES, limit=9),
    "the holds": lambda conn, _: lanes.hold_rows(conn),
    "holds that end": lambda conn, _: sweep.end_holds(conn),
    "the clock": lambda conn, _: sweep.clock_and_leases(conn),
    "what fills up": lambda conn, _: sweep.wake_full(conn),
    "what is due": lambda conn, _: sweep.wake_due(conn),
    "what is stale": lambda conn, _: sweep.expire_stale_claims(conn),
}
"""For one job or at every tick."""

IN_FULL: dict[str, Do] = {
    "jobs": lambda conn, _: inspect_jobs.job_rows(conn),
    "events": lambda conn, _: inspect_jobs.event_rows(conn),
    "children": lambda conn, of: inspect_jobs.children_of(conn, rows.REPO, of.number),
    "issues": lambda conn, _: inspect_places.issue_rows(conn, told=False),
    "repositories": lambda conn, _: inspect_places.repository_rows(conn, all_known=True),
    "runners": lambda conn, _: inspect_places.runner_rows(conn),
    "looks": lambda conn, _: inspect_places.look_rows(conn),
    "metrics": lambda conn, _: inspect_places.stats(conn),
    "lanes": lambda conn, _: lanes.lane_rows(conn),
    "marks": lambda conn, _: lanes.lane_marks(conn),
    "what was told": lambda conn, _: recheck(conn, after_s=60),
    "the poller's schedule": lambda conn, _: poll_sooner(conn, FORGES, poll_s=60, full_scan_s=3600),
    "pruning": lambda conn, _: sweep.prune(conn, retention=sweep.Retention()),
}
"""Lists for people, and what walks all there is seldom."""
