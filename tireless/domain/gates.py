"""Every gate between a label and a claim, in order, each with a sentence and the next step; looks at no row itself.

`explain`, the comment and the page all take their words from here, so that they cannot contradict each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tireless.domain.held_lane import held
from tireless.domain.job import Cancelled, Parked
from tireless.domain.labels import LabelScheme
from tireless.domain.steps import Now

Details: TypeAlias = Mapping[str, object]

UNREADABLE_BLOCKER = "an issue the bot may not read"
"""What the database writes into a job's `waits_for` for an issue of a place that is not shown to the bot."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition, by the reason code that names its failure. Not blocking: it is only told."""

    code: str
    asks: str
    blocking: bool = True


GATES: tuple[Gate, ...] = (
    # up to the job: rows of repository and issue, and what triage said
    Gate("unknown_repository", "is the repository known here?"),
    Gate("untracked", "is the repository watched?"),
    Gate("unreadable", "can the repository be read?"),
    Gate("unseen", "has the issue been read?"),
    Gate("gone", "is the issue still there?"),
    Gate("closed", "is the issue open?"),
    Gate("not_asked", "does a label ask for work?"),
    Gate("unknown_label", "are the labels known?"),
    Gate("cannot_tell", "is it clear who asked?"),
    Gate("stranger", "did a person who may ask put the labels on?"),
    Gate("no_opt_in", "did a person opt in?"),
    Gate("is_child_waiting", "did a person opt in to what a plan proposed?"),
    Gate("no_mode", "is a mode set?"),
    Gate("too_early", "was it asked after the repository was watched without opt-in?"),
    Gate("no_lane", "does a lane take this kind?"),
    Gate("absorbed", "was it asked after the last job had ended?"),
    Gate("answered", "is there a request that has not been answered?"),
    # the job's own columns, in the order in which one is shown
    Gate("ended", "is the job alive?"),
    Gate("needs_input", "does the agent have its answer?"),
    Gate("needs_approval", "is the text the approved one?"),
    Gate("suspect", "has it been given back too often?"),
    Gate("no_progress", "does it make progress?"),
    Gate("budget_exhausted", "is there budget left?"),
    Gate("asked_too_often", "was it not asked for too often within an hour?"),
    Gate("on_hold", "is it not on hold?"),
    Gate("waits_for", "is what it waits for closed, or done?"),
    Gate("repository_full", "may another job of this repository run?"),
    Gate("day_limit", "does the repository have runs left today?"),
    Gate("blocked", "is it free of what blocked it?"),
    Gate("backoff", "is its backoff over?"),
    Gate("attempts", "has it attempts left?"),
    # the lane
    Gate("lane_not_configured", "is the lane configured?"),
    Gate("lane_held", "is the lane open?"),
    Gate("lane_full", "may the lane run another job?"),
    Gate("probing", "has the lane's probe passed?"),
    Gate("running", "is it not running already?"),
    Gate("publishing", "is it not being delivered already?"),
    # told, never in the way of a claim
    Gate("no_runner", "is a runner of the lane alive?", blocking=False),
)

ORDER: Mapping[str, int] = {gate.code: place for place, gate in enumerate(GATES)}

TRIAGE_CODES = frozenset(
    {
        "gone",
        "closed",
        "unknown_label",
        "cannot_tell",
        "stranger",
        "no_opt_in",
        "is_child_waiting",
        "no_mode",
        "too_early",
        "no_lane",
        "absorbed",
        "needs_approval",
    }
)
"""What `issue.triage_code` can hold."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One gate, judged: `passed` None means it was not reached."""

    gate: Gate
    passed: bool | None
    sentence: str = ""
    next_step: str = ""
    details: Details = field(default_factory=dict)


def triage_sentence(code: str, details: Details, now: Now) -> tuple[str, str]:
    """What a reason code means, and what a person can do now. Labels and names stand in backquotes.

    With a `job` among the details what parks that job says how an operator lets it go on.
    """
    say = _SAYINGS.get(code)
    if say is None:
        return f"The reason is `{code}`.", ""
    said, then = say(details, now)
    if code in _PARKED and details.get("job"):
        then = f"{then.rstrip('.')}; or an operator runs `tireless jobs approve {details['job']}`."
    return said, then


_PARKED = frozenset(Parked)


def warning_sentences(details: Details, scheme: LabelScheme) -> list[str]:
    """What a person should know although the job goes on: `details` as triage stored them."""
    warnings = details.get("warnings")
    if not isinstance(warnings, Mapping):
        return []
    return [_WARNINGS[code](said, scheme) for code, said in warnings.items() if code in _WARNINGS]


# ------------------------------------------------------------------------------------------------ the words


def _listed(values: object, before: str = "") -> str:
    found = values if isinstance(values, list | tuple) else [values]
    return ", ".join(f"`{before}{value}`" for value in found)


_WHY = {
    "bot": "is the bot itself, which never asks",
    "system_user": "is no person",
    "not_on_list": "is not on the list of those who may ask",
    "not_in_team": "is not in the team whose members may ask",
    "no_write_access": "has no write access, as far as the forge says",
}


def _refused(said: Details) -> str:
    why = _WHY.get(str(said.get("why")), f"may not ask (`{said.get('why')}`)")
    return f"`{said.get('label')}` was put on by `{said.get('login')}`, who {why}."


def _stranger(said: Details, now: Now) -> tuple[str, str]:
    return _refused(said), f"a person who may ask reads the text, and if it is right: {now.again(counts=False)}."


def _means_nothing(said: Details, now: Now) -> str:
    return f" {_listed(said['unknown'], now.scheme.prefix)} means nothing here." if said.get("unknown") else ""


def _no_mode(said: Details, now: Now) -> tuple[str, str]:
    return f"It is opted in, but nothing says what is to be done.{_means_nothing(said, now)}", f"put on {now.modes}."


def _no_opt_in(said: Details, now: Now) -> tuple[str, str]:
    step = f"{now.again(counts=False)} when it may be worked on."
    if said.get("why") == "bot":
        by = f"`{said.get('login')}`, the bot's own user, which never asks"
        return f"`{said.get('label')}` was put on by {by}: no person has opted in.", step
    return f"A mode is set, but no person has opted in.{_means_nothing(said, now)}", step


def _child(_said: Details, now: Now) -> tuple[str, str]:
    step = f"{now.again(counts=False)} when it may be worked on."
    return "A plan made this issue; it waits until a person opts in.", step


def _cannot_tell(said: Details, now: Now) -> tuple[str, str]:
    return (
        f"It cannot be told who asked: {said.get('why')}. Nothing was changed; it is tried again.",
        f"if it stays so, a person who may ask can {now.again(counts=False)}.",
    )


def _unknown_label(said: Details, now: Now) -> tuple[str, str]:
    return f"{_listed(said.get('unknown', []), now.scheme.prefix)} means nothing here.", f"{now.again()}."


def _absorbed(said: Details, now: Now) -> tuple[str, str]:
    return (
        f"`{said.get('login')}` asked again while the last job was under way, so that job is the answer.",
        f"to ask for another, {now.again()}.",
    )


def _unreadable(said: Details, _now: Now) -> tuple[str, str]:
    reason = str(said.get("reason") or "")
    if not reason:  # in a comment: it is read again when it changes, and not told anew
        return "The repository cannot be worked on as it is.", "`tireless repos ls` says why."
    if " answered " not in reason:
        # It answers: what the forge says of it is in the way (Repository.set_aside), and each ends with what to do.
        *fault, remedy = re.split("[;:] ", reason.rstrip("."))
        if fault:
            return f"Nothing can be done in the repository as it is: {': '.join(fault)}.", f"{remedy}."
    said_so = f"The repository cannot be read with the bot's token: {reason}".rstrip(".") + "."
    return said_so, "give the bot's user access."


def next_reading(said: Details) -> str:
    """Which poll reads the issue again, in words that follow a verb; the moments stand in `said` as they are shown."""
    if said.get("under_way"):
        return "the poll that is under way"
    due = f", due at {said['next']}" if said.get("next") else ""
    if said.get("late"):
        due = f", which was due at {said['next']} (is `tireless serve` running?)"
    fault = f" (the last one failed: {str(said['fault']).rstrip('.')})" if said.get("fault") else ""
    return f"the next poll{due}{fault}"


def _not_asked(said: Details, now: Now) -> tuple[str, str]:
    as_of = f", as of {said['as_of']}" if said.get("as_of") else ""
    scheme = now.scheme
    step = f"put on `{scheme.opt_in}` and a mode" if scheme.require_opt_in else f"put on {now.modes}"
    return f"No label asks for work{as_of}.", f"{step}; what was put on since is seen by {next_reading(said)}."


def _unseen(said: Details, _now: Now) -> tuple[str, str]:
    as_of = f"; the repository was, at {said['as_of']}" if said.get("as_of") else ""
    step = f"wait for {next_reading(said)}, or run `tireless poll --once`. If it is a pull request, make an issue: "
    step += "nothing else is worked on."
    return f"The issue has not been read yet{as_of}.", step


def _waits_for(said: Details, _now: Now) -> tuple[str, str]:
    found = said.get("waits_for")
    blockers = [str(each) for each in found] if isinstance(found, list | tuple) else []
    step = "close them when they are done"
    if UNREADABLE_BLOCKER in blockers:
        step = "give the bot's user access to what it may not read, or take that dependency off"
        step += "; close the others when they are done" if len(set(blockers)) > 1 else ""
    return (
        "It waits for these until they are closed, for a part of its own plan until that is done: "
        f"{_listed(blockers)}.",
        f"{step}.",
    )


def _publishing(said: Details, _now: Now) -> tuple[str, str]:
    fault = f" It does not go on: {said['fault']}" if said.get("fault") else ""
    return f"The agent is done; the result is being delivered.{fault}", ""


def _later(sentence: str) -> _Say:
    """Words about something that time ends."""

    def say(said: Details, _now: Now) -> tuple[str, str]:
        when = f"at {said['until']}" if said.get("until") else "by itself"
        return sentence, f"it is tried again {when}."

    return say


_Say: TypeAlias = Callable[[Details, Now], tuple[str, str]]


def _fixed(sentence: str, step: str = "") -> _Say:
    """Words that need nothing but how to ask again."""

    def say(_said: Details, now: Now) -> tuple[str, str]:
        return sentence, step.format(again=now.again())

    return say


_SAYINGS: Mapping[str, _Say] = {
    "unknown_repository": _fixed(
        "No such repository is known here.",
        "`tireless repos add` it, or configure it; what is configured already is taken in by `tireless repos sync`.",
    ),
    "untracked": _fixed("The repository is not watched.", "`tireless repos add` it, or configure it."),
    "unreadable": _unreadable,
    "unseen": _unseen,
    "gone": _fixed("The issue was deleted.", "make a new one."),
    "closed": _fixed("The issue is closed.", "reopen it."),
    "not_asked": _not_asked,
    "unknown_label": _unknown_label,
    "cannot_tell": _cannot_tell,
    "stranger": _stranger,
    "no_opt_in": _no_opt_in,
    "is_child_waiting": _child,
    "no_mode": _no_mode,
    "too_early": _fixed("The labels are older than the moment from which they ask without opt-in.", "{again}."),
    "no_lane": lambda said, _now: (
        f"No lane takes the kind `{said.get('kind')}`.",
        "configure a lane for this kind, or a default lane.",
    ),
    "absorbed": _absorbed,
    "answered": lambda said, now: (
        "What was asked has been answered before, by a job of which nothing is kept here any more."
        if said.get("unknown")
        else "What was asked has been answered by a job that ended.",
        f"to ask again, {now.again()}.",
    ),
    "ended": lambda said, now: (
        "The job has ended and stays so.",
        f"to ask again, {now.again(reopening=said.get('reason') == Cancelled.CLOSED)}.",
    ),
    "needs_input": _fixed("The agent wants an answer.", "answer in a comment."),
    "needs_approval": _fixed(
        "It cannot be told whether a person who may ask has read this text: the issue changed after the label, by an "
        "edit or a comment, and its author may not ask himself.",
        "read the text; {again}.",
    ),
    "suspect": _fixed("It was given back too often without an attempt that counts.", "see what it needs; {again}."),
    "no_progress": _fixed("Attempts end without anything new.", "see what it needs; {again}."),
    "budget_exhausted": _fixed(
        "It has cost what a job of its lane may cost, or nearly.", "see what it needs; {again}."
    ),
    "asked_too_often": _fixed(
        "As many requests of this issue were worked on within an hour as one issue may have "
        "(`limits.max_requests_per_issue_per_hour`).",
        "see who asks, and why; an hour later, {again}.",
    ),
    "on_hold": lambda _said, now: ("It is on hold.", f"{now.start}."),
    "waits_for": _waits_for,
    "repository_full": _fixed("As many jobs of this repository are running as may run at once.", "wait."),
    "day_limit": _fixed(
        "This repository has used its runs of today.",
        "wait until tomorrow, or raise the limit: `tireless repos limit`.",
    ),
    "blocked": _later("The agent is blocked by something outside."),
    "backoff": _later("The last attempt failed."),
    "attempts": _fixed("It has no attempts left.", "{again}."),
    "lane_not_configured": _fixed("The lane is not configured any more.", "configure it, or `tireless jobs reroute`."),
    "lane_held": lambda said, _now: held(said),
    "probing": _fixed("The lane was held, and one job goes first to see whether it works again.", "wait."),
    "lane_full": _fixed("As many jobs of this lane are running as may run at once.", "wait."),
    "running": _fixed("An agent is working on it."),
    "publishing": _publishing,
    "no_runner": lambda said, _now: (
        f"No runner of lane `{said.get('lane')}` is alive.",
        f"start one: `tireless run --lane {said.get('lane')}`.",
    ),
}


_WARNINGS: Mapping[str, Callable[[Details, LabelScheme], str]] = {
    "several_modes": lambda said, scheme: (
        f"Several modes are set ({_listed(said.get('kinds', []), scheme.prefix)}); "
        f"`{scheme.prefix}{said.get('kind')}` goes first."
    ),
    "several_lanes": lambda said, _scheme: (
        f"Several lanes are asked for ({_listed(said.get('lanes', []))}); `{said.get('lane')}` is the first configured."
    ),
    "unknown_lane": lambda said, _scheme: (
        f"There is no lane {_listed(said.get('lanes', []))}; it goes to `{said.get('lane')}`."
    ),
    "unknown_label": lambda said, scheme: (
        f"{_listed(said.get('unknown', []), scheme.prefix)} means nothing here and changes nothing."
    ),
    "refused": lambda said, _scheme: _refused(said) + " It changes nothing.",
    "hold_kept": lambda _said, scheme: (
        f"`{scheme.prefix}hold` was taken off by one who may not; it stays on hold. "
        "A person who may ask can put it on and take it off again."
    ),
}
