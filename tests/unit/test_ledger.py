"""The judge of what many processes did: a true history passes, and whatever is falsified in it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.ledger import AttemptRow, Held, History, JobRow, Limit, faults, tally

MS = 1_000_000
"""A millisecond of the diaries. The rows' clock counts microseconds and began elsewhere."""


def told(did: str, at: float, host: str, token: str, **facts: object) -> dict[str, Any]:
    """A line about a claim; its token says all: `j1c2` is the second claim of job 1."""
    job, claim_no = int(token[1]), int(token[3])
    place = {"lane": "narrow" if job < 5 else "wide", "repo": "acme/x"}
    return {
        "did": did,
        "at": int(at * MS),
        "host": host,
        "token": token,
        "job": job,
        "claim_no": claim_no,
        **place,
        **facts,
    }


def begin(at: float, host: str, token: str) -> dict[str, Any]:
    """It begins, under a lease of a second."""
    return told("begin", at, host, token, until=int((at + 1000) * MS))


def end(at: float, host: str, token: str, *, until: float, **facts: object) -> dict[str, Any]:
    """It ends."""
    return told("end", at, host, token, until=int(until * MS), **facts)


def said(at: float, host: str, token: str, outcome: str, answer: str, did: str = "settle") -> dict[str, Any]:
    """It writes, and is answered."""
    return told(did, at + 1, host, token, sent=int(at * MS), outcome=outcome, answer=answer)


def row(token: str, host: str, claimed: float, ended: float | None, outcome: str | None, **facts: Any) -> AttemptRow:
    """The claim's row; times in milliseconds."""
    job, claim_no = int(token[1]), int(token[3])
    whole = AttemptRow(
        job=job,
        claim_no=claim_no,
        token=token,
        lane="narrow" if job < 5 else "wide",
        repo="acme/x",
        host=host,
        claimed_at=int(claimed * 1000),
        ended_at=None if ended is None else int(ended * 1000),
        outcome=outcome,
        burned=outcome is not None,
        swept=outcome == "lease_lost",
    )
    return replace(whole, **facts)


def job(number: int, claims: int, state: str, *between: str, attempts: int | None = None) -> JobRow:
    """A job that was claimed so often; `between`: what it rested as after each claim but the last."""
    path: list[tuple[str | None, str]] = [(None, "pending")]
    for rested in between:
        path += [("pending", "claimed"), ("claimed", rested)] + (
            [("waiting", "pending")] if rested == "waiting" else []
        )
    path += [("pending", "claimed"), ("claimed", state)]
    return JobRow(number, state, True, claims, claims if attempts is None else attempts, tuple(path))


TRUE = History(
    lines=[
        # job 1: done at once, said twice
        begin(10, "p1", "j1c1"),
        end(20, "p1", "j1c1", until=1010),
        said(21, "p1", "j1c1", "no_change", "done"),
        said(23, "p1", "j1c1", "no_change", "already"),
        # job 2: its runner is killed, another one takes it after the lease
        begin(30, "p1", "j2c1"),
        {"did": "killed", "at": 100 * MS, "host": "p1"},
        begin(1200, "p2", "j2c2"),
        end(1210, "p2", "j2c2", until=2200),
        said(1211, "p2", "j2c2", "failed", "done"),
        # job 3: its runner stands still past the lease, goes on beside the second one, and is lost
        begin(1300, "p2", "j3c1"),
        begin(2500, "p3", "j3c2"),
        end(2600, "p2", "j3c1", until=2300, stalled_from=1310 * MS),
        said(2601, "p2", "j3c1", "no_change", "lost"),
        said(2603, "p2", "j3c1", "no_change", "lost", did="record"),
        end(2700, "p3", "j3c2", until=3500),
        said(2701, "p3", "j3c2", "no_change", "done"),
        # job 4: its runner is given no time by the machine, and killed
        begin(2800, "p6", "j4c1"),
        told("tick", 2820, "p6", "j4c1"),
        begin(4000, "p3", "j4c2"),
        end(4010, "p3", "j4c2", until=5000),
        said(4011, "p3", "j4c2", "failed", "done"),
        {"did": "killed", "at": 4050 * MS, "host": "p6"},
        # job 5: a runner that is stopped, and killed so; the second one backs off and comes again
        begin(3000, "p4", "j5c1"),
        told("tick", 3090, "p4", "j5c1"),
        {"did": "stopped", "at": 3100 * MS, "host": "p4"},
        begin(4200, "p3", "j5c2"),
        end(4210, "p3", "j5c2", until=5200),
        said(4211, "p3", "j5c2", "retry", "done"),
        {"did": "killed", "at": 4300 * MS, "host": "p4"},
        # the third claim of job 5 was made by one who died before he knew
        {"did": "killed", "at": 4500 * MS, "host": "p5"},
        begin(5700, "p3", "j5c4"),
        end(5710, "p3", "j5c4", until=6700),
        said(5711, "p3", "j5c4", "done", "done", did="record"),
        said(5713, "p3", "j5c4", "done", "done"),
        # job 6: claimed along with another, and given up before its turn came
        told("skipped", 7600, "p3", "j6c1"),
        begin(7700, "p2", "j6c2"),
        end(7710, "p2", "j6c2", until=8700),
        said(7711, "p2", "j6c2", "failed", "done"),
    ],
    attempts=[
        row("j1c1", "p1", 10, 21, "no_change"),
        row("j2c1", "p1", 30, 1100, "lease_lost"),
        row("j2c2", "p2", 1200, 1211, "failed"),
        row("j3c1", "p2", 1300, 2400, "lease_lost"),
        row("j3c2", "p3", 2500, 2701, "no_change"),
        row("j4c1", "p6", 2800, 3900, "lease_lost"),
        row("j4c2", "p3", 4000, 4011, "failed"),
        row("j6c1", "p3", 6000, 7500, "lease_lost"),
        row("j6c2", "p2", 7700, 7711, "failed"),
        row("j5c1", "p4", 3000, 4100, "lease_lost"),
        row("j5c2", "p3", 4200, 4211, "retry"),
        row("j5c3", "p5", 4400, 5600, "lease_lost"),
        row("j5c4", "p3", 5700, 5713, "done"),
    ],
    jobs=[
        job(1, 1, "delivered"),
        job(2, 2, "failed", "pending"),
        job(3, 2, "delivered", "pending"),
        job(4, 2, "failed", "pending"),
        job(6, 2, "failed", "pending"),
        job(5, 4, "delivered", "pending", "waiting", "pending"),
    ],
    limits=[
        Limit("lane", "narrow", 1, 0, 2_600_000),
        Limit("lane", "narrow", 2, 2_700_000, 9_000_000),
        Limit("repo", "acme/x", 2, 0, 9_000_000),
    ],
    holds=[Held("wide", 4_600_000, 5_600_000)],
)


def test_a_true_history_passes() -> None:
    """Doubled words, deaths, stalls past a lease, claims nobody lived to begin: all of that may be."""
    assert faults(TRUE) == []
    count = tally(TRUE)
    assert (count["overlaps"], count["expired"], count["settle: lost"], count["settle: already"]) == (3, 6, 1, 1)


def lines(change: Callable[[dict[str, Any]], dict[str, Any] | None], history: History = TRUE) -> History:
    """The history with its lines changed, those left out for which `change` says None."""
    return replace(history, lines=[new for line in history.lines if (new := change(dict(line))) is not None])


def line(did: str, token: str, **new: object) -> History:
    """One line says something else."""
    changed = lines(lambda one: {**one, **new} if (one["did"], one.get("token")) == (did, token) else one)
    assert changed != TRUE
    return changed


def attempt(token: str, **new: Any) -> History:
    """One attempt's row says something else."""
    return replace(TRUE, attempts=[replace(one, **new) if one.token == token else one for one in TRUE.attempts])


def a_job(number: int, **new: Any) -> History:
    """One job's row says something else."""
    return replace(TRUE, jobs=[replace(one, **new) if one.id == number else one for one in TRUE.jobs])


def without(token: str, did: str = "") -> History:
    """A claim's lines, or one kind of them, are gone."""
    return lines(lambda one: None if one.get("token") == token and did in ("", one["did"]) else one)


FALSE: dict[str, tuple[History, str]] = {
    "two at work under one lease": (line("begin", "j3c2", at=1400 * MS), "the first one's lease was alive"),
    "an overlap without a stall": (line("end", "j3c1", stalled_from=None), "was not standing still"),
    "an overlap by one that still moved": (line("end", "j3c1", stalled_from=2550 * MS), "was not standing still"),
    "a dead one that wrote until it was killed": (
        replace(TRUE, lines=[*TRUE.lines, told("tick", 4040, "p6", "j4c1")]),
        "was not standing still",
    ),
    "one that went on before it was killed": (
        replace(
            TRUE,
            lines=[
                *TRUE.lines,
                {"did": "continued", "at": 4220 * MS, "host": "p4"},
                told("tick", 4230, "p4", "j5c1"),
            ],
        ),
        "was not standing still",
    ),
    "a stale settle that counted": (
        line("settle", "j3c1", answer="done"),
        "done to no_change, and the row says lease_lost",
    ),
    "a stale record that counted": (line("record", "j3c1", answer="done"), "record counted after its successor"),
    "a stale renewal that counted": (
        replace(TRUE, lines=[*TRUE.lines, said(2590, "p2", "j3c1", "", "done", did="renew")]),
        "renew counted after its successor",
    ),
    "a settle that counted twice": (
        lines(lambda one: {**one, "answer": "done"} if one.get("answer") == "already" else one),
        "settled 2 times",
    ),
    "an already for something else": (attempt("j1c1", outcome="failed"), "and the row says failed"),
    "a loss that was none": (line("settle", "j2c2", answer="lost"), "lost to failed, and the row says the same"),
    "an end nobody said": (without("j2c2", "settle"), "ended as failed without having said so"),
    "a settle that the sweep overwrote": (attempt("j5c4", swept=True), "the sweep took it, and its settle counted"),
    "work under no claim": (
        replace(TRUE, attempts=[one for one in TRUE.attempts if one.token != "j1c1"]),
        "worked under a claim nobody made",
    ),
    "work under another's claim": (attempt("j1c1", host="p3"), "is another's in the rows"),
    "a claim handed to nobody": (without("j1c1"), "never began claim 1, and it ended as no_change"),
    "a claim that was skipped and went on": (attempt("j6c1", swept=False), "never began claim 1, and it ended as"),
    "a claim of one who lives": (lines(lambda one: None if one.get("host") == "p5" else one), "p5 never began claim 3"),
    "one claim begun twice": (replace(TRUE, lines=[*TRUE.lines, begin(12, "p1", "j1c1")]), "was begun twice"),
    "a beginning without end": (without("j1c1", "end"), "wrote before it ended"),
    "a lane above its limit, by the rows": (attempt("j2c1", claimed_at=15_000), "narrow may run 1, and ran 2"),
    "a repository above its limit, by the rows": (
        replace(
            TRUE,
            limits=[Limit("repo", "acme/x", 1, 0, 2_600_000)],
            attempts=attempt("j2c2", claimed_at=1_000_000, ended_at=1_500_000).attempts,
        ),
        "may run 1, and ran 2",
    ),
    "a lane above its limit, at work": (
        replace(line("end", "j1c1", at=1500 * MS, until=1600 * MS), limits=[Limit("lane", "narrow", 1, 0, 1)]),
        "narrow may run 1, and 2 worked at one time",
    ),
    "a claim under a hold": (
        replace(TRUE, holds=[Held("wide", 4_150_000, 4_300_000)]),
        "was claimed while lane wide was held",
    ),
    "an attempt that is missing": (
        replace(TRUE, attempts=[one for one in TRUE.attempts if one.token != "j5c3"]),
        "was claimed 4 times",
    ),
    "a count that is short": (a_job(2, attempts=1), "counts 1 attempts, and 2 burned"),
    "an attempt that never ended": (
        attempt("j2c1", ended_at=None, outcome=None, burned=None),
        "has an attempt that never ended",
    ),
    "a claim made before the last had ended": (attempt("j2c1", ended_at=1_205_000), "before claim 1 had ended"),
    "a job that never ended": (a_job(1, state="claimed", finished=False), "job 1 is claimed and ended"),
    "a job that ended twice": (
        a_job(1, path=(*TRUE.jobs[0].path, ("delivered", "delivered"))),
        "job 1 is delivered and ended 2 times",
    ),
    "events with a gap": (a_job(5, path=[*TRUE.jobs[5].path[:2], *TRUE.jobs[5].path[3:]]), "do not follow each other"),
    "a process that failed": (
        replace(
            TRUE, lines=[*TRUE.lines, {"did": "error", "at": 1, "host": "p3", "text": "StoreUnavailable: deadlock"}]
        ),
        "p3 failed: StoreUnavailable",
    ),
    "a deadlock": (replace(TRUE, deadlocks=1), "1 deadlocks"),
}


@pytest.mark.parametrize("falsified", FALSE)
def test_a_falsified_history_is_refused(falsified: str) -> None:
    """Each of these is found, and named."""
    history, says = FALSE[falsified]
    assert [fault for fault in faults(history) if says in fault], faults(history)
