"""What the bot says of an issue: status label, comment and explain's sentence from one picture of the rows.

Nothing here looks at the forge, so that the three cannot contradict each other; agents' words are quoted, inert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import assert_never

from tireless.domain.gates import triage_sentence, warning_sentences
from tireless.domain.inert import cut, neutralise, one_line, quote
from tireless.domain.issue import Label, RepoRef
from tireless.domain.job import Cancelled, Failure, Kind, Parked, State, Status, Wait, status_of
from tireless.domain.labels import LabelScheme, LabelView, read
from tireless.domain.marker import Marker
from tireless.domain.steps import Now
from tireless.redact import Redactor

COMMENT_MAX = 60_000
"""Characters of a whole comment; it travels in every webhook of the issue."""
REPORT_MAX = 40_000
SUMMARY_MAX = 6_000
QUOTE_MAX = 4_000

TWIN = "(A second copy of the status comment, made while an answer was lost; the first one is kept up to date.)"
"""What the bot makes of a status comment that it finds twice."""


@dataclass(frozen=True, slots=True)
class Voice:
    """How this installation speaks: its labels, its name in the marker, and the secrets it never repeats."""

    scheme: LabelScheme = field(default_factory=LabelScheme)
    installation: str = "tireless/"
    redactor: Redactor = field(default_factory=Redactor)

    def inert(self, text: str) -> str:
        """Foreign text as it may stand on a forge."""
        return neutralise(self.redactor.text(text))


@dataclass(frozen=True, slots=True)
class ChildPicture:
    """A plan's child or a discovery's proposal; `number` is None while its issue does not exist."""

    key: str
    title: str
    kind: Kind
    number: int | None
    proposal: bool = False
    depends_on: tuple[str, ...] = ()
    ended_reason: str | None = None


@dataclass(frozen=True, slots=True)
class JobPicture:
    """The newest job of an issue, with its last ended attempt's outcome, reason and branch."""

    id: int
    kind: Kind
    lane: str
    state: State
    reason: str | None = None
    attempts: int = 0
    max_attempts: int = 3
    question: str | None = None
    waits_for: tuple[str, ...] = ()
    not_before: datetime | None = None
    pull_request: int | None = None
    publish_reason: str | None = None
    summary: str | None = None
    last_outcome: str | None = None
    last_reason: str | None = None
    branch: str | None = None
    error: str | None = None
    left_open: tuple[tuple[int, bool], ...] = ()
    """Numbers that the forge would not close for the bot, and whether each is a pull request."""
    gate: tuple[str, Mapping[str, object]] | None = None
    """Of a pending one: what keeps its lane from starting anything, by gate code, with what there is to say of it."""
    lane_mark: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """What the rows say of one issue."""

    repo: RepoRef
    number: int
    url: str
    job: JobPicture | None = None
    open: bool = True
    asked: bool = False
    triage_code: str | None = None
    triage_details: Mapping[str, object] = field(default_factory=dict)
    labels: tuple[Label, ...] | None = None
    """What is on it now; None: not known, then those that ask are taken to be."""
    answered_event: int = 0
    answered_time: datetime | None = None
    plan_number: int | None = None
    children_done: int = 0
    children: tuple[ChildPicture, ...] = ()

    def now(self, voice: Voice) -> Now:
        """What a person finds who does what is told here."""
        if self.labels is None:
            return Now(voice.scheme, open=self.open)
        return Now(voice.scheme, read(self.labels, voice.scheme), self.open)

    def address(self, number: int, *, pull: bool = False) -> str:
        """Where another number of this repository is read; written so that it makes no cross-reference."""
        base = self.url.rpartition("/issues/")[0]
        return f"{base}/{'pulls' if pull else 'issues'}/./{number}"


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of an issue: its status label (None: none), a sentence, what a person can do, and the comment.

    An issue without a job has its comment only where one stands already, or where a label of ours needs an answer.
    """

    status: Status | None
    sentence: str
    next_step: str
    comment: str


def tell(picture: Picture, voice: Voice) -> Shown:
    """Label, sentence and comment from one picture. Pure, and the same for the same rows."""
    job = picture.job
    if job is None:
        return _without_job(picture, voice)
    sentence, step, quoted = _says(picture, job, voice)
    parts = [_headline(job), sentence]
    if quoted:
        parts.append(quote(cut(voice.inert(quoted), QUOTE_MAX)))
    parts += _results(picture, job, voice)
    for number, pull in job.left_open:
        linked = f"[{number}]({picture.address(number, pull=pull)})"
        parts.append(f"**Note:** {left_open_sentence(linked, pull=pull)}")
    if picture.plan_number is not None:
        parts.append(f"Part of the plan in [issue {picture.plan_number}]({picture.address(picture.plan_number)}).")
    if step:
        parts.append(f"**Next:** {step}")
    if note := _note(picture, job, voice):
        parts.append(f"**Note:** {voice.inert(note)}")
    return Shown(status_of_job(job), sentence, step, _comment(parts, picture, voice))


def left_open_sentence(number: str, *, pull: bool) -> str:
    """What a person has to close by hand; `number` as it is to be read."""
    what = "Pull request" if pull else "Issue"
    return (
        f"{what} {number} is of no use any more, but depends on something open: the forge keeps it. Close it by hand."
    )


_SAID_BY_THE_JOB = ("closed", "needs_approval")
"""Triage codes that the job's own state tells already, or will in a moment."""


_HOW_TO_ASK = ("no_opt_in", "no_mode")
"""Triage codes that, without details, say no more than what there is to do for a next job, which an ended one tells."""


def _note(picture: Picture, job: JobPicture, voice: Voice) -> str | None:
    """What triage said that the job does not tell. Once it has ended the job itself says how to ask again."""
    code = picture.triage_code
    if code in (None, job.reason, *_SAID_BY_THE_JOB):
        return None
    said, then = _triage(picture, voice)
    if not job.state.is_terminal or code == "no_lane":
        return f"{said} Next: {then}" if then else said
    told = code == "is_child_waiting" or (code in _HOW_TO_ASK and not picture.triage_details)
    return None if told else said


def status_of_job(job: JobPicture) -> Status:
    """The suffix of the job's status label."""
    return status_of(job.state, job.state is State.WAITING and job.reason in set(Parked))


def _without_job(picture: Picture, voice: Voice) -> Shown:
    if picture.triage_code is None:
        nothing = "Nothing is asked of tireless here."
        return Shown(None, nothing, "", _comment([nothing], picture, voice))
    said, step = _triage(picture, voice)
    parts = [f"**No job** · `{picture.triage_code}`", voice.inert(said)]
    if step:
        parts.append(f"**Next:** {voice.inert(step)}")
    return Shown(None, said, step, _comment(parts, picture, voice))


def _triage(picture: Picture, voice: Voice) -> tuple[str, str]:
    return triage_sentence(picture.triage_code or "", picture.triage_details, picture.now(voice))


def _comment(parts: list[str], picture: Picture, voice: Voice) -> str:
    warnings = warning_sentences(picture.triage_details, voice.scheme)
    parts = [*parts, *(f"**Note:** {voice.inert(said)}" for said in warnings)]
    marker = Marker(voice.installation, picture.number, picture.answered_event, picture.answered_time)
    text = "\n\n".join(parts)
    return f"{cut(text, COMMENT_MAX)}\n\n{marker}"


def _headline(job: JobPicture) -> str:
    words = [f"**{status_of_job(job).capitalize()}**", job.kind.value, f"lane `{job.lane}`"]
    if job.attempts:
        words.append(f"attempt {job.attempts} of {job.max_attempts}")
    return " · ".join([*words, f"job {job.id}"])


def _says(picture: Picture, job: JobPicture, voice: Voice) -> tuple[str, str, str | None]:
    """What holds now, what a person can do (empty: nothing but wait), and what of an agent's words is quoted."""
    now = picture.now(voice)
    called_off = job.state is State.CANCELLED and job.reason == Cancelled.CLOSED
    again = f"To ask again, {now.again(reopening=called_off)}."
    match job.state:
        case State.PENDING:
            return _pending(job, voice, now)
        case State.WAITING:
            return _waiting(job, now)
        case State.CLAIMED:
            return triage_sentence("running", {}, now)[0], "", None
        case State.PUBLISHING:
            return _publishing(job, voice), "", None
        case State.DELIVERED:
            sentence, quoted = _delivered(picture, job)
            return sentence, f"{_after_delivery(picture, job, voice)}{again}", quoted
        case State.FAILED:
            sentence, quoted = _failed(picture, job)
            return sentence, again, quoted
        case State.CANCELLED:
            return _cancelled(job), again, None
        case _:
            assert_never(job.state)


def _after_delivery(picture: Picture, job: JobPicture, voice: Voice) -> str:
    """What a person can do with what was delivered, before he asks for more."""
    if job.pull_request is not None:
        return "review the pull request. " if picture.open else ""  # what is merged has closed the issue
    waiting = any(child.number is not None and child.ended_reason is None for child in picture.children)
    if job.kind is Kind.IMPLEMENT or not waiting:
        return ""
    proposed = Now(voice.scheme, LabelView(kinds=(Kind.IMPLEMENT,)))
    step = triage_sentence("is_child_waiting", {}, proposed)[1]
    return f"on each of its issues that does not run by itself, {step} "


def _pending(job: JobPicture, voice: Voice, now: Now) -> tuple[str, str, str | None]:
    """Its turn, or what keeps the whole lane from starting anything, in the words of `explain`."""
    said = f"It waits for its turn in lane `{job.lane}`."
    if job.gate is None:
        return said, "", None
    code, details = job.gate
    # the reason of a hold may be an agent's
    details = {**details, "reason": one_line(str(details["reason"]), 300)} if details.get("reason") else details
    why, step = triage_sentence(code, details, now)
    return f"{said} {voice.inert(why)}", step, None


def _waiting(job: JobPicture, now: Now) -> tuple[str, str, str | None]:
    """The gate's own words, with what this job adds to them."""
    # A job waits `cannot_tell` where its repository cannot be read; of an issue it means that nobody knows who asked.
    code = "unreadable" if job.reason == Wait.CANNOT_TELL else job.reason or ""
    said, step = triage_sentence(code, {"waits_for": list(job.waits_for), "job": job.id}, now)
    if job.not_before is not None:
        said += f" It goes on after {shown_time(job.not_before)}."
    match job.reason:
        case Parked.NEEDS_INPUT | Parked.NO_PROGRESS | Parked.BUDGET_EXHAUSTED | Parked.ASKED_TOO_OFTEN:
            return said, step, job.question
        case Wait.BACKOFF:
            return f"{said} ({_words(job.last_outcome)})", step, _why(job)
        case Wait.BLOCKED | Parked.SUSPECT:
            return said, step, _why(job)
        case _:
            return said, step, None


def _publishing(job: JobPicture, voice: Voice) -> str:
    return triage_sentence("publishing", publishing_details(job.publish_reason), Now(voice.scheme))[0]


def publishing_details(reason: str | None) -> dict[str, object]:
    """What there is to say of a delivery: the fault that holds it up, by its publish_reason; None: it goes on."""
    return {} if reason is None else {"fault": PUBLISH_REASONS.get(reason, f"`{reason}`.")}


PUBLISH_REASONS = {
    "forge_unavailable": "the forge does not answer properly. It is tried again.",
    "moved": "the repository was renamed. It is tried again under its new name.",
    "token_refused": "the forge refuses the bot's token. It needs a new one; it is tried again every 15 minutes.",
    "denied": "the bot's user may not do this here. Give it write access; it is tried again every 15 minutes.",
    "not_found": "the repository or its branch is not there for the bot's user. It is tried again every 15 minutes.",
    "pulls_off": "pull requests are switched off in the repository. Switch them on; it is tried every 15 minutes.",
    "conflict": "the forge says that it exists already, but shows none. It is tried again every 15 minutes.",
    "archived": "the repository is archived or locked. It is tried again every 15 minutes.",
    "quota": "the forge's storage quota is used up. It is tried again every 15 minutes.",
    "refused": "the forge refuses it; the bot's log says why. It is tried again every 15 minutes.",
    "pull_in_the_way": "somebody else's pull request from its branch is in the way, and the forge keeps it open, since "
    "it depends on something open. Close that, or it; it is tried again every 15 minutes.",
    "many_children": "its plans made many issues within the last hour. The next ones are created when it is over.",
    "bot_unknown": "the token may not say whose it is. It needs the scope `read:user`; it is tried every 15 minutes.",
}
"""Why publishing does not go on, by publish_reason; ends with what happens next."""


def _delivered(picture: Picture, job: JobPicture) -> tuple[str, str | None]:
    if job.pull_request is not None:
        return f"Done: [pull request {job.pull_request}]({picture.address(job.pull_request, pull=True)}).", None
    made = [child for child in picture.children if child.number is not None]
    if job.kind is not Kind.IMPLEMENT and made:
        what = "proposal" if job.kind is Kind.DISCOVER else "child issue"
        plural = "" if len(made) == 1 else "s"
        return f"Done: {len(made)} {what}{plural}, {picture.children_done} of them ended.", None
    if job.last_outcome == "no_change":
        return "Done: the agent found that nothing has to be changed.", _why(job)
    return "Done.", None


def _failed(picture: Picture, job: JobPicture) -> tuple[str, str | None]:
    match job.reason:
        case Failure.EXHAUSTED:
            return (
                f"Given up after {job.attempts} of {job.max_attempts} attempts; the last: {_words(job.last_outcome)}.",
                _why(job),
            )
        case Failure.REJECTED:
            return "The agent says that this cannot be done.", _why(job)
        case Failure.UNPUBLISHABLE if job.publish_reason == "given_up":
            parts = [f"the branch `{job.branch}`"] if job.branch else []
            if job.pull_request is not None:
                parts.append(f"[pull request {job.pull_request}]({picture.address(job.pull_request, pull=True)})")
            left = f" On the forge there {'are' if len(parts) > 1 else 'is'} {' and '.join(parts)}." if parts else ""
            return f"An operator gave its delivery up; what there was of it is left to people.{left}", None
        case Failure.UNPUBLISHABLE:
            kept = f" The work is kept on the branch `{job.branch}`." if job.branch else ""
            return f"The work is done, but the forge refuses the text it comes with.{kept}", job.error
        case _:
            return f"Given up: `{job.reason}`.", _why(job)


def _cancelled(job: JobPicture) -> str:
    said = _CALLED_OFF.get(job.reason or "")
    return f"Called off{said}." if said else f"Called off: `{job.reason}`."


_CALLED_OFF: Mapping[str, str] = {
    Cancelled.CLOSED: ": the issue was closed",
    Cancelled.UNLABELLED: ": the label that asked for it was taken off",
    Cancelled.GONE: ": the issue was deleted",
    Cancelled.KIND_CHANGED: ": another kind of work is asked for now",
    Cancelled.OPERATOR: " by an operator",
}


def _results(picture: Picture, job: JobPicture, voice: Voice) -> list[str]:
    """The children there are, and the agent's own account of what it did."""
    parts = []
    if picture.children and (job.kind is not Kind.IMPLEMENT or job.state.is_terminal):
        parts.append("\n".join(_child_line(picture, child, voice) for child in picture.children))
    if job.state is State.DELIVERED and job.summary:
        report = job.kind is Kind.DISCOVER
        parts.append(quote(cut(voice.inert(job.summary), REPORT_MAX if report else SUMMARY_MAX)))
    return parts


def _child_line(picture: Picture, child: ChildPicture, voice: Voice) -> str:
    title = one_line(voice.inert(child.title), 120).replace("[", "(").replace("]", ")")
    where = f"[issue {child.number}]({picture.address(child.number)})" if child.number else "not created yet"
    after = f", after {', '.join(f'`{key}`' for key in child.depends_on)}" if child.depends_on else ""
    ended = f" ({_words(child.ended_reason)})" if child.ended_reason else ""
    return f"- `{child.key}` ({child.kind.value}{after}): {where}, {title}{ended}"


def _why(job: JobPicture) -> str | None:
    return job.last_reason or job.summary


def _words(code: str | None) -> str:
    return (code or "unknown").replace("_", " ")


def shown_time(moment: datetime) -> str:
    """A time as people read it, to the minute, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
