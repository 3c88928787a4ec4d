"""What is to be done about one issue now: decides from its snapshot, its judged asking and its jobs; changes nothing.

Poll, look, webhook and full scan all end here, so that they cannot differ. The order of the rules is the order below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from tireless.domain.case import Asked
from tireless.domain.decision import (
    Absorb,
    Cancel,
    Decision,
    EndedJob,
    Enqueue,
    Ignore,
    LiveJob,
    Park,
    Refresh,
    Renew,
    RequestStop,
    Standing,
    Triage,
    Unpark,
)
from tireless.domain.issue import IssueState, Snapshot, TimelineEntry
from tireless.domain.job import Cancelled, Parked, State
from tireless.domain.labels import LabelScheme, LabelView, first_kind, read
from tireless.domain.routing import Lane, Route, route

SAME_MOMENT = timedelta(seconds=2)
"""Asked not later than this after a job's end: it was meant for that job. Both times are told by the forge's clock."""

LANE_AGAIN_S = 60.0
"""A running job keeps its lane until it comes back, which nobody tells us."""

_TAKEN_AWAY = frozenset({Cancelled.CLOSED, Cancelled.UNLABELLED, Cancelled.GONE, Cancelled.KIND_CHANGED})
"""Ends that a person brought about on the issue: whoever asks after that means a new job, however soon."""


def decide(
    snapshot: Snapshot, asked: Asked | None, standing: Standing, *, scheme: LabelScheme, lanes: Sequence[Lane]
) -> Triage:
    """What this reading means. `asked` is None where no timeline was wanted: nothing asks, or the issue is closed."""
    on = read(snapshot.labels, scheme)
    if snapshot.state is IssueState.CLOSED:
        decision = _stop(standing.live, Cancelled.CLOSED)
        return Triage(decision, "closed" if on.asks else None, asked=None)
    if asked is None:
        return Triage(Ignore(), "unknown_label" if on.unknown else None, _unknown(on))
    if asked.cannot_tell is not None:
        # Moves nothing: what is known of it stays known, only the doubt is said.
        return Triage(Ignore(), "cannot_tell", {"why": asked.cannot_tell}, asked=None)
    if standing.live is not None:
        return _with_job(standing.live, asked, standing, on=on, lanes=lanes)
    return _without_job(asked, standing, on=on, lanes=lanes)


def _with_job(job: LiveJob, asked: Asked, standing: Standing, *, on: LabelView, lanes: Sequence[Lane]) -> Triage:
    if asked.ended:
        return Triage(_stop(job, Cancelled.UNLABELLED), asked.code, _why(asked, on), asked.proper)
    stands = asked
    if not asked.view.kinds:
        # No mode that counts is left (its label was renamed), but nobody took it away: what was asked for stands.
        stands = replace(asked, view=replace(asked.view, kinds=(job.kind,)))
    wanted = _route(stands, standing, lanes) or Route(job.kind, job.lane, job.priority, asked.hold)
    wanted = _steered(wanted, job, standing, on)
    said = Triage(Ignore(), None, _warnings(asked, on, wanted, lanes), asked=True)
    if not asked.approved and job.state in (State.PENDING, State.WAITING):
        said = replace(said, code=Parked.NEEDS_APPROVAL.value)
    match job.state:
        case State.PENDING | State.WAITING:
            if asked.request is None and wanted.kind is not job.kind and wanted.kind in standing.kinds_taken:
                # A job is unique on request and kind, and this request has had its job of that kind.
                return replace(said, decision=Cancel(Cancelled.KIND_CHANGED))
            decision = _at_rest(job, asked, wanted)
        case State.CLAIMED:
            decision = _running(job, asked, wanted)
        case State.PUBLISHING:
            decision = Absorb(asked.request) if asked.request is not None else Ignore()
        case State.DELIVERED | State.FAILED | State.CANCELLED:
            raise AssertionError("a job that has ended is not live")
        case _:
            assert_never(job.state)
    refused = bool(asked.refused) and asked.request is None
    moved = job.state is State.CLAIMED and wanted.lane != job.lane
    answers = refused or isinstance(decision, Renew | Absorb)
    return replace(said, decision=decision, answers=answers, again_s=LANE_AGAIN_S if moved else None)


def _at_rest(job: LiveJob, asked: Asked, wanted: Route) -> Decision:
    if asked.request is not None:
        return Renew(wanted, asked.request)
    if job.parked == Parked.NEEDS_INPUT and asked.answered_by is not None:
        return Unpark(wanted, asked.answered_by)
    if job.parked == Parked.NEEDS_APPROVAL and asked.approved:
        return Unpark(wanted, asked.approved_by)
    if job.parked is None and not asked.approved:
        return Park(wanted)
    changed = wanted != Route(job.kind, job.lane, job.priority, job.hold)
    return Refresh(wanted) if changed else Ignore()


def _running(job: LiveJob, asked: Asked, wanted: Route) -> Decision:
    if wanted.kind is not job.kind:
        # Not absorbed: when the job has stopped, its look makes the next one.
        return _stop(job, Cancelled.KIND_CHANGED)
    if asked.request is not None and job.cancel_requested is None:
        return Absorb(asked.request)
    # The lane of a running job stays until it comes back: limits count it where it runs.
    here = replace(wanted, lane=job.lane)
    changed = here != Route(job.kind, job.lane, job.priority, job.hold)
    return Refresh(here) if changed else Ignore()


def _without_job(asked: Asked, standing: Standing, *, on: LabelView, lanes: Sequence[Lane]) -> Triage:
    wanted = _route(asked, standing, lanes)
    if standing.child_request is not None and wanted is not None:
        return Triage(Enqueue(wanted, request_id=standing.child_request), asked=True)
    if not asked.proper:
        return Triage(Ignore(), _code(asked, standing), _why(asked, on), answers=asked.code == "stranger")
    if wanted is None:
        return Triage(Ignore(), "no_lane", {"kind": first_kind(asked.view.kinds)}, asked=True)
    code = None if asked.approved else Parked.NEEDS_APPROVAL.value
    said = Triage(Ignore(), None, _warnings(asked, on, wanted, lanes), asked=True)
    last = standing.last
    if asked.request is not None:
        if last is None or _after(asked.request, last):
            return replace(said, decision=Enqueue(wanted, asked.request), code=code, answers=True)
        by = {"login": asked.request.actor.login, "at": asked.request.at.isoformat()}
        return replace(said, decision=Absorb(asked.request), code="absorbed", details=by, answers=True)
    if last is not None and _kind_was_changed(last) and wanted.kind not in last.kinds_taken:
        # A removal changed the kind: nobody asked anew, what was asked is still to be done.
        return replace(said, decision=Enqueue(wanted, request_id=last.request_id), code=code)
    return replace(said, answers=bool(asked.refused))


def _kind_was_changed(last: EndedJob) -> bool:
    return last.state is State.CANCELLED and last.reason == Cancelled.KIND_CHANGED


def _after(entry: TimelineEntry, last: EndedJob) -> bool:
    """Whether this was asked after the last job's end, so that it asks for another."""
    if last.state is State.CANCELLED and last.reason in _TAKEN_AWAY:
        return True
    return entry.at > last.finished_at + SAME_MOMENT


def _stop(job: LiveJob | None, reason: Cancelled) -> Decision:
    """End a job that rests, ask a running one to stop, leave one that is past stopping."""
    if job is None:
        return Ignore()
    match job.state:
        case State.CLAIMED:
            return Ignore() if job.cancel_requested is not None else RequestStop(reason)
        case State.PUBLISHING:
            return Ignore() if job.creating else Cancel(reason)
        case _:
            return Cancel(reason)


def _route(asked: Asked, standing: Standing, lanes: Sequence[Lane]) -> Route | None:
    return route(
        asked.view,
        hold=asked.hold,
        is_child=standing.is_child,
        lanes=lanes,
        planned_lane=standing.planned_lane,
    )


def _steered(wanted: Route, job: LiveJob, standing: Standing, on: LabelView) -> Route:
    """Keep what an operator chose, until the matching label is changed after it."""
    if "lane" in job.steered and on.agents == standing.view.agents:
        wanted = replace(wanted, lane=job.lane)
    if "priority" in job.steered and on.priorities == standing.view.priorities:
        wanted = replace(wanted, priority=job.priority)
    return wanted


# ------------------------------------------------------------------------------------------------ what is said


def _code(asked: Asked, standing: Standing) -> str | None:
    """A plan's child sits there without opt-in by intention; so does what only the bot has labelled."""
    by_bot_alone = bool(asked.refused) and all(each.reason == "bot" for each in asked.refused)
    if asked.code == "no_opt_in" or (asked.code == "stranger" and by_bot_alone):
        return "is_child_waiting" if standing.is_child and not standing.is_proposal else "no_opt_in"
    return asked.code


def _why(asked: Asked, on: LabelView) -> Mapping[str, object]:
    if asked.code == "stranger" and asked.refused:
        first = asked.refused[0]
        return {"label": first.label, "login": first.login, "why": first.reason}
    return _unknown(on)


def _unknown(on: LabelView) -> Mapping[str, object]:
    return {"unknown": list(on.unknown)} if on.unknown else {}


def _warnings(asked: Asked, on: LabelView, wanted: Route, lanes: Sequence[Lane]) -> Mapping[str, object]:
    """What a person should know though the job goes on, by code."""
    said: dict[str, object] = {}
    names = {lane.name for lane in lanes}
    if len(asked.view.kinds) > 1:
        said["several_modes"] = {"kinds": list(asked.view.kinds), "kind": wanted.kind}
    if len([name for name in asked.view.agents if name in names]) > 1:
        said["several_lanes"] = {"lanes": list(asked.view.agents), "lane": wanted.lane}
    if missing := [name for name in asked.view.agents if name not in names]:
        said["unknown_lane"] = {"lanes": missing, "lane": wanted.lane}
    if on.unknown:
        said["unknown_label"] = {"unknown": list(on.unknown)}
    if asked.refused:
        first = asked.refused[0]
        said["refused"] = {"label": first.label, "login": first.login, "why": first.reason}
    if asked.hold and not on.hold:
        said["hold_kept"] = {}
    return {"warnings": said} if said else {}
