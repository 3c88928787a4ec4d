"""How the demo came out, as the JSON object of `--json` and as a table for people."""

from __future__ import annotations

from collections.abc import Iterator

from tireless.demo.sides import Rows, Side
from tireless.demo.tell import Told


def as_json(told: Told) -> dict[str, object]:
    """One object; its keys are promised in docs/demo.md.

    Of a pull request, `issue` is what the rows say and `closes` what its own closing line says.
    """
    by_pull = {job.pull_request: _issue(told, job.number) for job in told.rows.jobs if job.pull_request is not None}
    return {
        "ok": told.ok,
        "seconds": round(told.seconds, 1),
        "forge_url": told.forge_url,
        "database_url": told.database_url,
        "issues": [
            {"issue": _issue(told, number), "asked": asked, "reason": reason}
            for number, (asked, reason) in sorted(told.rows.issues.items())
        ],
        "jobs": [
            {
                "id": job.id,
                "issue": _issue(told, job.number),
                "kind": job.kind,
                "lane": job.lane,
                "state": job.state,
                "reason": job.reason,
                "attempts": job.attempts,
                "parent": None if job.parent is None else _issue(told, job.parent),
                "pull_request": job.pull_request,
            }
            for job in told.rows.jobs
        ],
        "pull_requests": [
            {
                "issue": by_pull.get(pull.number),
                "number": pull.number,
                "branch": pull.branch,
                "closes": None if pull.closes is None else _issue(told, pull.closes),
            }
            for pull in told.forge.pulls
        ],
        "children": list(_children(told, told.rows, told.forge)),
        "claims_held": sum(job.holds_claim for job in told.rows.jobs),
        "mirror_in_step": told.mirror_in_step,
        "left_running": told.left_running,
    }


def _children(told: Told, rows: Rows, forge: Side) -> Iterator[dict[str, object]]:
    """Labels and dependencies as the forge has them."""
    for child in rows.children:
        issue = forge.issues.get(child.number) if child.number is not None else None
        yield {
            "plan": _issue(told, child.plan),
            "key": child.key,
            "issue": None if issue is None else _issue(told, issue.number),
            "labels": [] if issue is None else list(issue.labels),
            "depends_on": [] if issue is None else [_issue(told, number) for number in issue.blocked_by],
        }


def _issue(told: Told, number: int) -> str:
    return f"{told.repository}#{number}"


def as_lines(told: Told) -> Iterator[str]:
    """A summary for people: a line an issue, then what was wrong, then the verdict."""
    yield f"{'issue':6} {'what people did':28} {'what came of it'}"
    jobs = {job.number: job for job in told.rows.jobs}
    for number, scene in sorted(told.cast.items()):
        job = jobs.get(number)
        reason = told.rows.issues.get(number, (False, None))[1]
        if job is None:
            came = f"no job: {reason}" if reason else "no job, nobody asked"
        else:
            tries = f", {job.attempts} attempts" if job.attempts > 1 else ""
            pull = f", pull request {job.pull_request}" if job.pull_request else ""
            why = f" ({job.reason})" if job.reason else ""
            children = sum(child.plan == number for child in told.rows.children)
            family = f", {children} children" if children else ""
            came = f"{job.kind} in lane {job.lane}: {job.state}{why}{tries}{pull}{family}"
        yield f"#{number:<5} {scene.title:28} {came}"
    yield from (f"WRONG: {each}" for each in told.wrong)
    if told.left_running:
        yield f"WRONG: {told.left_running} processes were left running"
    verdict = "Forge and rows agree, and are as the labels asked." if told.ok else "It did not come out right."
    yield f"{verdict} {told.seconds:.1f} s, nothing left running." if told.ok else f"{verdict} {told.seconds:.1f} s."
