"""What the demo checks: the forge's side and the rows' side as plain values, and every way in which they differ.

Each side is read by itself (forge_side.py, row_side.py); `differences` is pure, so that a test can falsify either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tireless.demo.story import Scene


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the database has it."""

    id: int
    number: int
    kind: str
    lane: str
    state: str
    reason: str | None
    attempts: int
    claims: int
    pull_request: int | None
    parent: int | None
    holds_claim: bool
    status: str


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child as the database has it; `depends_on` as issue numbers."""

    plan: int
    key: str
    number: int | None
    depends_on: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows' side. `issues`: number to (asked, reason code)."""

    issues: Mapping[int, tuple[bool, str | None]]
    jobs: Sequence[JobRow]
    children: Sequence[ChildRow]


@dataclass(frozen=True, slots=True)
class ForgeIssue:
    """An issue as the forge has it; `told` are the texts of the bot's own status comments."""

    number: int
    labels: tuple[str, ...]
    body: str
    by_bot: bool
    blocked_by: tuple[int, ...] = ()
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgePull:
    """A pull request as the forge has it."""

    number: int
    branch: str
    body: str
    open: bool

    @property
    def closes(self) -> int | None:
        """The issue that its closing line names."""
        found = re.search(r"(?im)^closes #(\d+)\s*$", self.body)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Side:
    """The forge's side."""

    issues: Mapping[int, ForgeIssue] = field(default_factory=dict)
    pulls: Sequence[ForgePull] = ()


STATUS = "tireless/status/"


def differences(cast: Mapping[int, Scene], rows: Rows, forge: Side) -> list[str]:
    """Everything that is not as the labels asked, one sentence each; empty is right."""
    found: list[str] = []
    for number, scene in cast.items():
        found += _scene(number, scene, rows)
    found += _only_asked(cast, rows)
    found += _pulls(rows, forge)
    found += _children(cast, rows, forge)
    found += [f"job {job.id} still holds a claim" for job in rows.jobs if job.holds_claim]
    return found + out_of_step(rows, forge)


def out_of_step(rows: Rows, forge: Side) -> list[str]:
    """Where the mirror differs: each job's issue has just its status label and one comment of ours."""
    newest = {job.number: job for job in sorted(rows.jobs, key=lambda job: job.id)}
    found: list[str] = []
    for number, issue in forge.issues.items():
        shown = {label.removeprefix(STATUS) for label in issue.labels if label.startswith(STATUS)}
        wanted = {newest[number].status} if number in newest else set()
        if shown != wanted:
            found.append(f"#{number} shows the status {_words(shown)}, its row says {_words(wanted)}")
        if len(issue.told) > 1:
            found.append(f"#{number} has {len(issue.told)} comments of ours, not one")
        if number in newest and not issue.told:
            found.append(f"#{number} has no comment of ours, though it has a job")
    return found


def _scene(number: int, scene: Scene, rows: Rows) -> Iterator[str]:
    jobs = [job for job in rows.jobs if job.number == number]
    asked, reason = rows.issues.get(number, (False, None))
    if not scene.asks:
        if jobs:
            yield f"#{number} ({scene.title}) asked for nothing and has {len(jobs)} jobs"
        if reason != scene.reason:
            yield f"#{number} ({scene.title}) has the reason {reason}, want {scene.reason}"
        return
    if len(jobs) != 1:
        yield f"#{number} ({scene.title}) asked once and has {len(jobs)} jobs"
        return
    job = jobs[0]
    if not asked:
        yield f"#{number} ({scene.title}) has a job, but its issue row says that nobody asked"
    seen = (job.kind, job.lane, job.state, job.attempts, job.reason if scene.reason else None)
    want = (scene.kind, scene.lane, scene.state, scene.attempts, scene.reason)
    if seen != want:
        yield f"#{number} ({scene.title}) came out as {seen}, want {want}"


def _only_asked(cast: Mapping[int, Scene], rows: Rows) -> Iterator[str]:
    for job in rows.jobs:
        if job.number not in cast:
            yield f"#{job.number} has the job {job.id}, and nobody asked for it"


def _pulls(rows: Rows, forge: Side) -> Iterator[str]:
    """Each delivered implement job has one open pull request that closes its issue, and there are no others."""
    wanted = {job.number: job for job in rows.jobs if job.state == "delivered" and job.kind == "implement"}
    opened = [pull for pull in forge.pulls if pull.open]
    for pull in opened:
        if pull.closes is None:
            yield f"pull request {pull.number} has no closing line"
        elif pull.closes not in wanted:
            yield f"pull request {pull.number} closes #{pull.closes}, which has no delivered job"
    for number, job in wanted.items():
        mine = [pull.number for pull in opened if pull.closes == number]
        if mine != [job.pull_request]:
            yield f"#{number} has the open pull requests {mine}, its row says {job.pull_request}"


def _children(cast: Mapping[int, Scene], rows: Rows, forge: Side) -> Iterator[str]:
    """Each child row has its issue: a mode label, no opt-in, its plan named, its dependencies; none is left over."""
    by_bot = {number for number, issue in forge.issues.items() if issue.by_bot}
    told = {child.number for child in rows.children}
    for number in sorted(by_bot - {each for each in told if each is not None}):
        yield f"#{number} was made by the bot and is no child row's"
    for child in rows.children:
        issue = forge.issues.get(child.number) if child.number is not None else None
        if issue is None:
            yield f"the child {child.key} of #{child.plan} has no issue on the forge"
            continue
        where = f"the child {child.key} of #{child.plan} (#{issue.number})"
        if "tireless/implement" not in issue.labels:
            yield f"{where} has no mode label"
        if "tireless/go" in issue.labels:
            yield f"{where} is opted in, and nobody did that"
        if not re.search(rf"#{child.plan}\b|/{child.plan}\b", issue.body):
            yield f"{where} does not name its plan"
        if set(issue.blocked_by) != set(child.depends_on):
            yield f"{where} depends on {_words(issue.blocked_by)} there, on {_words(child.depends_on)} in its row"
    for plan in (job for job in rows.jobs if job.kind == "plan" and job.state == "delivered" and job.number in cast):
        count = sum(child.plan == plan.number for child in rows.children)
        if count == 0:
            yield f"the plan #{plan.number} was delivered without children"


def _words(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values))) or "nothing"
