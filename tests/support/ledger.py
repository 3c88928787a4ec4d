"""Judges what many processes did: their own diaries of when they worked, joined with the rows. Pure.

`faults` lists what must not be: two at work on one job, a write after a loss that counted, a limit exceeded, a claim
under a hold, attempts that do not add up, a job that ended twice or never, an error. Diaries are told in nanoseconds of
one monotonic clock, rows in microseconds of the database's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Line = Mapping[str, Any]
SILENT = 100_000_000
"""A process that works writes every twenty milliseconds, and lets go a hundred before its lease ends: one that wrote
nothing for so long was given no time by the machine, and did nothing."""
TERMINAL = ("delivered", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """A row of `attempt`. `swept`: the sweep ended it."""

    job: int
    claim_no: int
    token: str
    lane: str
    repo: str
    host: str
    claimed_at: int
    ended_at: int | None
    outcome: str | None
    burned: bool | None
    swept: bool


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of `job`, with the states its events led through."""

    id: int
    state: str
    finished: bool
    claim_no: int
    attempts: int
    path: Sequence[Sequence[str | None]]


@dataclass(frozen=True, slots=True)
class Limit:
    """So many may run in a lane or a repository, from `since` (it was said) until `until` (a change begins)."""

    of: str
    name: str
    most: int | None
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Held:
    """A lane was held: from when `hold` had returned until `release` was called."""

    lane: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class History:
    """All there is to judge by."""

    lines: Sequence[Line]
    attempts: Sequence[AttemptRow]
    jobs: Sequence[JobRow]
    limits: Sequence[Limit] = ()
    holds: Sequence[Held] = ()
    deadlocks: int = 0


@dataclass(slots=True)
class Work:
    """One claim as its process tells it, from `begin` to `end`; from `stalled_from` on it did not work any more.

    What it says of itself it knows: it looks at the clock before each step, and a step is taken before it looks again.
    """

    token: str
    job: int
    claim_no: int
    host: str
    lane: str
    repo: str
    begin: int
    until: int
    end: int | None = None
    stalled_from: int | None = None
    answers: list[Line] = field(default_factory=list)

    @property
    def stopped(self) -> int:
        """When it had surely stopped working."""
        ends = [at for at in (self.end, self.stalled_from) if at is not None]
        return min(ends, default=self.begin)


def faults(history: History) -> list[str]:
    """Everything that is wrong, one sentence each; nothing when the proof holds."""
    works, found = _works(history.lines)
    found += [f"{line['host']} failed: {line['text']}" for line in history.lines if line["did"] == "error"]
    found += [f"{history.deadlocks} deadlocks"] if history.deadlocks else []
    found += _joined(works, history)
    found += _overlaps(works.values())
    found += _answers(works, history)
    found += _limits(history, works.values())
    found += _held(history)
    found += _sums(history)
    return found


def tally(history: History) -> Counter[str]:
    """How much of what happened, so that a test can ask for enough of it."""
    count = Counter(str(line["did"]) for line in history.lines)
    count += Counter(f"{line['did']}: {line['answer']}" for line in history.lines if "answer" in line)
    count["attempts"] = len(history.attempts)
    count["expired"] = sum(row.swept for row in history.attempts)
    count["jobs"] = len(history.jobs)
    count += Counter(job.state for job in history.jobs)
    works, _ = _works(history.lines)
    count["stalled past the lease"] = sum(work.end is not None and work.end > work.until for work in works.values())
    count["overlaps"] = sum(1 for _ in _pairs(works.values()))
    return count


# ------------------------------------------------------------------------------------------------ diaries


def _works(lines: Sequence[Line]) -> tuple[dict[str, Work], list[str]]:
    """What was worked on, by token; and what no diary may say."""
    works: dict[str, Work] = {}
    found = []
    for line in sorted(lines, key=lambda line: line["at"]):
        token = line.get("token")
        if token is None:
            continue
        if line["did"] == "begin":
            if token in works:
                found.append(f"the claim {token} of job {line['job']} was begun twice")
            names = ("token", "job", "claim_no", "host", "lane", "repo", "until")
            works[token] = Work(begin=line["at"], **{name: line[name] for name in names})
        elif line["did"] in ("tick", "skipped"):
            continue
        elif token not in works:
            found.append(f"{line['did']} of job {line['job']} was told before it was begun")
        elif line["did"] == "end":
            work = works[token]
            work.end, work.until, work.stalled_from = line["at"], line["until"], line.get("stalled_from")
        else:
            works[token].answers.append(line)
            if line["did"] != "renew" and works[token].end is None:
                found.append(f"{line['host']} wrote before it ended job {line['job']}")
    killed = {line["host"]: line["at"] for line in lines if line["did"] == "killed"}
    for work in works.values():
        if work.end is None:
            work.end = killed.get(work.host)
            if work.end is None:
                found.append(f"{work.host} neither ended job {work.job} nor died")
            else:
                work.stalled_from = _stood_still(work.host, work.end, lines)
    return works, found


def _stood_still(host: str, killed: int, lines: Sequence[Line]) -> int | None:
    """Since when a process stood still that was killed: since it was stopped, or since it fell silent."""
    told = [line for line in lines if line.get("host") == host]
    signals = [line for line in told if line["did"] in ("stopped", "continued")]
    last = max(signals, key=lambda line: line["at"], default=None)
    stopped = int(last["at"]) if last is not None and last["did"] == "stopped" else None
    wrote = max(line["at"] for line in told if "token" in line)
    return wrote if (stopped or killed) - wrote > SILENT else stopped


def _pairs(works: Iterable[Work]) -> Iterator[tuple[Work, Work]]:
    """Claims of one job that were worked on at one time, the earlier one first."""
    of_job: dict[int, list[Work]] = defaultdict(list)
    for work in works:
        of_job[work.job].append(work)
    for some in of_job.values():
        some.sort(key=lambda work: work.claim_no)
        for at, one in enumerate(some):
            for other in some[at + 1 :]:
                if one.end is not None and other.begin < one.end and (other.end is None or one.begin < other.end):
                    yield one, other


def _overlaps(works: Iterable[Work]) -> list[str]:
    """Two of one job at one time: only where the first stood still past its lease, and before the second began."""
    found = []
    for one, other in _pairs(works):
        where = f"job {one.job}: claims {one.claim_no} of {one.host} and {other.claim_no} of {other.host} overlap"
        if other.begin < one.until:
            found.append(f"{where}, and the first one's lease was alive")
        elif one.stalled_from is None or one.stalled_from > other.begin:
            found.append(f"{where}, and the first one was not standing still")
    return found


# ------------------------------------------------------------------------------------------------ diaries and rows


def _joined(works: Mapping[str, Work], history: History) -> list[str]:
    """Each claim that was worked on has its row; each row was worked on, or its process died with it unbegun."""
    rows = {row.token: row for row in history.attempts}
    killed = {line["host"] for line in history.lines if line["did"] == "killed"}
    found = [
        f"job {work.job}: {work.host} worked under a claim nobody made"
        for work in works.values()
        if work.token not in rows
    ]
    for work in works.values():
        row = rows.get(work.token)
        if row is not None and (row.job, row.claim_no, row.host) != (work.job, work.claim_no, work.host):
            found.append(f"job {work.job}: claim {work.claim_no} of {work.host} is another's in the rows")
    skipped = {line["token"] for line in history.lines if line["did"] == "skipped"}
    unbegun = [row for row in history.attempts if row.token not in works]
    silent = [row for row in unbegun if row.token not in skipped]
    found += [
        f"job {row.job}: {row.host} never began claim {row.claim_no} and did not die"
        for row in silent
        if row.host not in killed
    ]
    found += [
        f"job {row.job}: {row.host} never began claim {row.claim_no}, and it ended as {row.outcome}"
        for row in unbegun
        if not row.swept
    ]
    lost = Counter(row.host for row in silent)
    found += [f"{host} died once and lost {count} claims it never began" for host, count in lost.items() if count > 2]
    return found


def _answers(works: Mapping[str, Work], history: History) -> list[str]:
    """What the writes were answered is what the rows say, once; and nothing counted after a successor had begun."""
    rows = {row.token: row for row in history.attempts}
    begun: dict[int, list[Work]] = defaultdict(list)
    for work in works.values():
        begun[work.job].append(work)
    last_word: dict[str, str] = {}
    for line in sorted((one for one in history.lines if one.get("token")), key=lambda one: one["at"]):
        last_word[line["host"]] = line["token"]
    found = []
    for work in works.values():
        row = rows.get(work.token)
        if row is None:
            continue
        where = f"job {work.job}, claim {work.claim_no} of {work.host}"
        found += [f"{where}: {fault}" for fault in _settled(work, row, dying=last_word.get(work.host) == work.token)]
        after = min((next_.begin for next_ in begun[work.job] if next_.claim_no > work.claim_no), default=None)
        if after is not None:
            late = [line for line in work.answers if line["sent"] > after and line["answer"] not in ("lost", "already")]
            found += [f"{where}: {line['did']} counted after its successor had begun" for line in late]
    return found


def _settled(work: Work, row: AttemptRow, *, dying: bool) -> list[str]:
    """The answers to the last word, against the attempt's row."""
    said = [line for line in work.answers if line["did"] == "settle"]
    done = [line for line in said if line["answer"] == "done"]
    found = []
    if len(done) > 1:
        found.append(f"settled {len(done)} times")
    for line in said:
        agrees = line["outcome"] == row.outcome
        if line["answer"] in ("done", "already") and not agrees:
            found.append(f"{line['answer']} to {line['outcome']}, and the row says {row.outcome}")
        if line["answer"] == "lost" and agrees:
            found.append(f"lost to {line['outcome']}, and the row says the same")
        if line["answer"] == "done" and row.swept:
            found.append("the sweep took it, and its settle counted")
    if row.outcome is not None and not row.swept and not done and not dying:
        found.append(f"ended as {row.outcome} without having said so")
    return found


# ------------------------------------------------------------------------------------------------ limits, holds


def _limits(history: History, works: Iterable[Work]) -> list[str]:
    """No claim found more running than was allowed when it was made, by the rows; nor by the diaries, by any limit."""
    found = []
    for limit in history.limits:
        rows = [row for row in history.attempts if limit.name == (row.lane if limit.of == "lane" else row.repo)]
        made = [row.claimed_at for row in rows if limit.since <= row.claimed_at < limit.until]
        spans = [(row.claimed_at, row.ended_at) for row in rows]
        most = limit.most
        if most is not None and (worst := _most_at(spans, made)) > most:
            found.append(f"{limit.of} {limit.name} may run {most}, and ran {worst} by the rows")
    highest: dict[tuple[str, str], int | None] = {}
    for limit in history.limits:
        before = highest.get((limit.of, limit.name), limit.most)
        highest[limit.of, limit.name] = None if limit.most is None or before is None else max(before, limit.most)
    for (of, name), most in highest.items():
        at_work = [work for work in works if name == (work.lane if of == "lane" else work.repo)]
        spans = [(work.begin, work.stopped) for work in at_work]
        if most is not None and (worst := _most_at(spans, [begin for begin, _ in spans])) > most:
            found.append(f"{of} {name} may run {most}, and {worst} worked at one time")
    return found


def _most_at(spans: Iterable[tuple[int, int | None]], moments: Iterable[int]) -> int:
    """The most of these spans that are open at any of these moments; an end at the moment is over."""
    changes = [(begin, 1, 1) for begin, _ in spans] + [(end, 0, -1) for _, end in spans if end is not None]
    asked = [(at, 2, 0) for at in moments]
    running, worst = 0, 0
    for _, what, by in sorted([*changes, *asked]):
        running += by
        worst = max(worst, running) if what == 2 else worst
    return worst


def _held(history: History) -> list[str]:
    """No claim was made under a hold that had returned."""
    return [
        f"job {row.job} was claimed while lane {row.lane} was held"
        for held in history.holds
        for row in history.attempts
        if row.lane == held.lane and held.since <= row.claimed_at < held.until
    ]


# ------------------------------------------------------------------------------------------------ rows


def _sums(history: History) -> list[str]:
    """Attempts are numbered without a gap and add up; every job ended, once, each state following the last."""
    of_job: dict[int, list[AttemptRow]] = defaultdict(list)
    for row in history.attempts:
        of_job[row.job].append(row)
    found = []
    for job in history.jobs:
        rows = sorted(of_job[job.id], key=lambda row: row.claim_no)
        if [row.claim_no for row in rows] != list(range(1, job.claim_no + 1)):
            found.append(
                f"job {job.id} was claimed {job.claim_no} times, and has attempts {[row.claim_no for row in rows]}"
            )
        if job.attempts != (burned := sum(row.burned is True for row in rows)):
            found.append(f"job {job.id} counts {job.attempts} attempts, and {burned} burned")
        if any(row.ended_at is None for row in rows):
            found.append(f"job {job.id} has an attempt that never ended")
        found += [
            f"job {job.id}: claim {two.claim_no} was made before claim {one.claim_no} had ended"
            for one, two in pairwise(rows)
            if one.ended_at is not None and two.claimed_at < one.ended_at
        ]
        ends = [to for _, to in job.path if to in TERMINAL]
        if job.state not in TERMINAL or not job.finished or len(ends) != 1 or ends != [job.state]:
            found.append(f"job {job.id} is {job.state} and ended {len(ends)} times")
        if any(one[1] != two[0] for one, two in pairwise(job.path)):
            found.append(f"the events of job {job.id} do not follow each other")
    return found
