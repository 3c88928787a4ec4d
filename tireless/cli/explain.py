"""`tireless explain`: every gate between a label and a claim, in order, and what to do about the first that is shut."""

from __future__ import annotations

import click

from tireless.cli.frame import Frame, database, pass_frame, printing, run
from tireless.cli.words import how_to_end, issue, why_held
from tireless.domain.gates import Judged, next_reading
from tireless.domain.issue import issue_name
from tireless.store import inspect
from tireless.store.explaining import told_of
from tireless.store.inspect import Explanation

NOT_FOUND = 4
_UNKNOWN = ("unknown_repository", "unseen")
_MARKS = {True: "ok", False: "NO", None: "-"}


@click.command("explain")
@click.argument("reference", metavar="OWNER/REPO#N")
@click.option("--all", "everything", is_flag=True, help="Also list the conditions that were not reached.")
@printing
@pass_frame
def explain(frame: Frame, reference: str, everything: bool) -> int:
    """Why an issue is being worked on, or is not: the answer, then every condition in order, with the next step.

    Reads what is stored: `tireless poll` first if the forge was changed just now. Exit code 4 for an issue that is not
    known here.
    """
    found, several = run(_explain(frame, reference))
    frame.show(_data(found), lambda: _told(found, several=several, everything=everything))
    return NOT_FOUND if found.first is not None and found.first.gate.code in _UNKNOWN else 0


async def _explain(frame: Frame, reference: str) -> tuple[Explanation, bool]:
    forge, owner, name, number = issue(reference)
    scheme = frame.settings.labels.scheme
    async with database(frame) as conn:
        found = await inspect.explain(conn, f"{owner}/{name}", number, scheme=scheme, forge=forge)
        return found, found.forge is not None and await inspect.several_forges(conn)


def _data(found: Explanation) -> dict[str, object]:
    """The stable object: gates by code, and the first that blocks."""
    gates = [
        {
            "code": each.gate.code,
            "asks": each.gate.asks,
            "blocking": each.gate.blocking,
            "passed": each.passed,
            "sentence": each.sentence,
            "next_step": each.next_step,
            "details": each.details,
        }
        for each in found.gates
    ]
    return {
        "forge": found.forge,
        "issue": f"{found.repo}#{found.number}",
        "title": found.title,
        "url": found.url,
        "asked": found.asked,
        "claimable": found.first is None,
        "reason": found.first.gate.code if found.first else None,
        "job": found.job_id,
        "state": found.state,
        "kind": found.kind,
        "lane": found.lane,
        "not_before": found.not_before,
        "place": found.place,
        "runners": found.runners,
        "held_hosts": found.held_hosts,
        "setup_holds": found.setup_holds,
        "warnings": found.warnings,
        "as_of": found.fresh.as_of if found.fresh else None,
        "next_poll": found.fresh.next_at if found.fresh else None,
        "gates": gates,
    }


def _told(found: Explanation, *, several: bool, everything: bool) -> str:
    """The answer first; how it was come to is below it."""
    name = issue_name(found.forge or "", found.repo, found.number, several=several)
    lines = [f"{name}  {found.title or ''}".rstrip(), *([found.url] if found.url else [])]
    if found.job_id is not None:
        reason = f" ({found.reason})" if found.reason else ""
        lines.append(f"job {found.job_id}: {found.state}{reason}, {found.kind}, lane {found.lane}")
    if found.fresh is not None and found.fresh.as_of is not None:
        told = told_of(found.fresh)
        then = f"; read again by {next_reading(told)}" if found.fresh.next_at is not None else ""
        lines.append(f"as of {told['as_of']}{then}")
    lines += ["", _sum(found)]
    lines += [f"warning: {each}" for each in found.warnings]
    if not any(each.passed is False and "hosts" in each.details for each in found.gates):
        lines += [f"the lane cannot be started {why_held(hold)}; {how_to_end(hold)}" for hold in found.setup_holds]
    reached = [each for each in found.gates if everything or each.passed is not None]
    lines += ["", *(_gate(each) for each in reached)]
    if left := len(found.gates) - len(reached):
        lines.append(f"    {left} more conditions were not reached (--all lists them)")
    return "\n".join(lines)


def _gate(each: Judged) -> str:
    line = f"{_MARKS[each.passed]:3} {each.gate.asks}"
    if each.passed is not False:
        return line
    then = f" Next: {each.next_step}" if each.next_step else ""
    return f"{line} ({each.gate.code})\n      {each.sentence}{then}"


def _sum(found: Explanation) -> str:
    if found.first is not None:
        then = f" Next: {found.first.next_step}" if found.first.next_step else ""
        return f"{found.first.gate.code}: {found.first.sentence}{then}"
    runners = f"{found.runners} runner{'s' if found.runners != 1 else ''} of its lane alive"
    return f"nothing is in its way: number {found.place} in line, {runners}"
