"""Read-only questions of CLI, page and metrics, gathered under one name. Nothing here writes or locks."""

from tireless.store.explaining import Explanation, explain
from tireless.store.inspect_jobs import (
    AttemptRow,
    ChildOf,
    EventRow,
    JobDetail,
    JobRow,
    Output,
    attempt_output,
    children_of,
    event_rows,
    job_detail,
    job_rows,
    several_forges,
)
from tireless.store.inspect_places import (
    ALIVE_S,
    IssueRow,
    LookRow,
    RepositoryRow,
    RunnerRow,
    Stats,
    issue_rows,
    look_rows,
    repository_rows,
    runner_rows,
    stats,
)
from tireless.store.lanes import HoldRow, LaneRow, lane_rows
from tireless.store.snapshots import HeldSnapshot, held_snapshots
from tireless.store.usage import Cost, UsageSums, usage_sums

__all__ = [
    "ALIVE_S",
    "AttemptRow",
    "ChildOf",
    "Cost",
    "EventRow",
    "Explanation",
    "HeldSnapshot",
    "HoldRow",
    "IssueRow",
    "JobDetail",
    "JobRow",
    "LaneRow",
    "LookRow",
    "Output",
    "RepositoryRow",
    "RunnerRow",
    "Stats",
    "UsageSums",
    "attempt_output",
    "children_of",
    "event_rows",
    "explain",
    "held_snapshots",
    "issue_rows",
    "job_detail",
    "job_rows",
    "lane_rows",
    "look_rows",
    "repository_rows",
    "runner_rows",
    "several_forges",
    "stats",
    "usage_sums",
]
