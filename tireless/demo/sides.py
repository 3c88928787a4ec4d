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
    """A job as the database has it; `branch` is the settled one, `status` the suffix of its status label."""

    id: int
    number: int
    kind: str
    lane: str
    state: str
    reason: str | None
    attempts: int
    claims: int
    pull_request: int | None
    branch: str | None
    parent: int | None
    holds_claim: bool
    status: str


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child as the database has it; `depends_on` as issue numbers."""

    plan: int
    key: str
    kind: str
    lane: str | None
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


PREFIX = "tireless/"
STATUS = f"{PREFIX}status/"


def differences(cast: Mapping[int, Scene], rows: Rows, forge: Side) -> list[str]:
    """Everything that is not as the labels asked, one sentence each; empty is right."""
    found: list[str] = []
    for number, scene in cast.items():
        found += _scene(number, scene, rows, forge)
    found += _only_asked(cast, rows)
    found += _pulls(rows, forge)
    found += _children(cast, rows, forge)
    found += [f"job {job.id} still holds a claim" for job in rows.jobs if job.holds_claim]
    return found + out_of_step(rows, forge)


def out_of_step(rows: Rows, forge: Side) -> list[str]:
    """Where the mirror differs: each job's issue has just its status label and one comment of ours that tells the row.

    An issue without a job has no status label, and at most one comment, which names the reason.
    """
    newest = {job.number: job for job in sorted(rows.jobs, key=lambda job: job.id)}
    found = [f"#{number} has a job and is not on the forge" for number in sorted(set(newest) - set(forge.issues))]
    for number, issue in forge.issues.items():
        job = newest.get(number)
        shown = {label.removeprefix(STATUS) for label in issue.labels if label.startswith(STATUS)}
        wanted = {job.status} if job else set()
        if shown != wanted:
            found.append(f"#{number} shows the status {_words(shown)}, its row says {_words(wanted)}")
        if len(issue.told) > 1:
            found.append(f"#{number} has {len(issue.told)} comments of ours, not one")
        if job and not issue.told:
            found.append(f"#{number} has no comment of ours, though it has a job")
        if issue.told and (lacks := {word for word in _wanted(number, job, rows) if word not in issue.told[0]}):
            found.append(f"#{number} has a comment that does not say {_words(lacks)}")
    return found


def _wanted(number: int, job: JobRow | None, rows: Rows) -> set[str]:
    """What the comment of an issue has to say."""
    if job is None:
        return {f"`{rows.issues.get(number, (False, None))[1]}`"}
    words = {f"**{job.status.capitalize()}**", job.kind, f"lane `{job.lane}`", f"job {job.id}"}
    words |= {f"[issue {child.number}]" for child in rows.children if child.plan == number}
    return words | ({f"[pull request {job.pull_request}]"} if job.pull_request else set())


def _scene(number: int, scene: Scene, rows: Rows, forge: Side) -> Iterator[str]:
    where = f"#{number} ({scene.title})"
    jobs = [job for job in rows.jobs if job.number == number]
    if number not in rows.issues:
        yield f"{where} was never taken in"
    asked, reason = rows.issues.get(number, (False, None))
    if asked != scene.asks:
        yield f"{where} is {'asked for' if asked else 'not asked for'} by its row, and people say otherwise"
    if not scene.asks:
        if jobs:
            yield f"{where} asked for nothing and has {len(jobs)} jobs"
        if reason != scene.reason:
            yield f"{where} has the reason {reason}, want {scene.reason}"
        if scene.reason and number in forge.issues and not forge.issues[number].told:
            yield f"{where} has no comment that says why nothing came of it"
        return
    if len(jobs) != 1:
        yield f"{where} asked once and has {len(jobs)} jobs"
        return
    job = jobs[0]
    seen = (job.kind, job.lane, job.state, job.attempts, job.reason if scene.reason else None)
    want = (scene.kind, scene.lane, scene.state, scene.attempts, scene.reason)
    if seen != want:
        yield f"{where} came out as {seen}, want {want}"


def _only_asked(cast: Mapping[int, Scene], rows: Rows) -> Iterator[str]:
    for job in rows.jobs:
        if job.number not in cast:
            yield f"#{job.number} has the job {job.id}, and nobody asked for it"


def _pulls(rows: Rows, forge: Side) -> Iterator[str]:
    """Each delivered implement job has one open pull request, from its branch, that closes its issue; no other is."""
    wanted = {job.number: job for job in rows.jobs if job.state == "delivered" and job.kind == "implement"}
    opened = [pull for pull in forge.pulls if pull.open]
    for pull in opened:
        if pull.closes is None:
            yield f"pull request {pull.number} has no closing line"
        elif pull.closes not in wanted:
            yield f"pull request {pull.number} closes #{pull.closes}, which has no delivered job"
    for number, job in wanted.items():
        mine = [pull for pull in opened if pull.closes == number]
        numbers = [pull.number for pull in mine]
        if numbers != [job.pull_request]:
            yield f"#{number} has the open pull requests {numbers}, its row says {job.pull_request}"
        for pull in mine:
            if pull.branch != job.branch:
                yield f"pull request {pull.number} is from {pull.branch}, the row of #{number} says {job.branch}"


def _children(cast: Mapping[int, Scene], rows: Rows, forge: Side) -> Iterator[str]:
    """Each child row has its issue: its labels, no opt-in, its plan named, its dependencies; none is left over."""
    by_bot = {number for number, issue in forge.issues.items() if issue.by_bot}
    told = {child.number for child in rows.children}
    for number in sorted(by_bot - {each for each in told if each is not None}):
        yield f"#{number} was made by the bot and is no child row's"
    for child in rows.children:
        yield from _child(child, forge.issues.get(child.number) if child.number is not None else None)
    for number, scene in cast.items():
        mine = [child for child in rows.children if child.plan == number]
        if len(mine) != scene.children:
            yield f"#{number} ({scene.title}) has {len(mine)} children, want {scene.children}"
        if mine and not any(child.depends_on for child in mine):
            yield f"#{number} ({scene.title}) has no child that depends on another"


def _child(child: ChildRow, issue: ForgeIssue | None) -> Iterator[str]:
    if issue is None:
        yield f"the child {child.key} of #{child.plan} has no issue on the forge"
        return
    where = f"the child {child.key} of #{child.plan} (#{issue.number})"
    wanted = {f"{PREFIX}{child.kind}"} | ({f"{PREFIX}agent:{child.lane}"} if child.lane else set())
    shown = {label for label in issue.labels if label.startswith(PREFIX) and not label.startswith(STATUS)}
    if not issue.by_bot:
        yield f"{where} was not made by the bot"
    if lacking := wanted - shown:
        yield f"{where} lacks {_words(lacking)}"
    if f"{PREFIX}go" in shown:
        yield f"{where} is opted in, and nobody did that"
    elif over := shown - wanted:
        yield f"{where} carries {_words(over)}, and nobody put that on"
    if not re.search(rf"#{child.plan}\b|/{child.plan}\b", issue.body):
        yield f"{where} does not name its plan"
    if set(issue.blocked_by) != set(child.depends_on):
        yield f"{where} depends on {_words(issue.blocked_by)} there, on {_words(child.depends_on)} in its row"


def _words(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values))) or "nothing"
