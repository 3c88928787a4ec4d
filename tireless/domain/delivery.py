"""The texts a job is delivered with: pull request, child issues with their hidden line, sentences about twins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote as percent
from urllib.parse import unquote

from tireless.domain.comments import Voice
from tireless.domain.inert import cut, one_line
from tireless.domain.issue import Person, Snapshot
from tireless.domain.job import Kind

TITLE_MAX = 240
"""Characters; the forge cuts at 255, and a draft's prefix goes before."""
BODY_MAX = 60_000
PLAIN_MAX = 4_000

_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n]")


@dataclass(frozen=True, slots=True)
class Text:
    """Title and body as they are sent."""

    title: str
    body: str


def pull_text(
    *, title: str, body: str, kind: Kind, number: int, lane: str, job_id: int, voice: Voice, plain: bool = False
) -> Text:
    """A pull request's text, ending in the one closing line that is ours (an implementation's only).

    `plain`: the agent's words without anything a forge could stumble over, for the retry after a refusal.
    """
    said = _foreign(body, voice, plain=plain)
    origin = f"Made by an agent of lane `{lane}` (job {job_id})."
    parts = [said, "---", origin] if said else [origin]
    if kind is Kind.IMPLEMENT:
        parts.append(f"Closes #{number}")
    return Text(_title(title, voice, plain=plain), "\n\n".join(parts))


@dataclass(frozen=True, slots=True)
class ChildText:
    """What the body of a child issue is made from. `waits` are those it waits for: number and title."""

    title: str
    body: str
    key: str
    uid: str
    plan_number: int
    plan_address: str
    repo: str
    proposal: bool
    runs: bool = False
    """It is worked on without a person's opt-in."""
    waits: Sequence[tuple[int, str]] = ()
    unknown_lane: str | None = None


def child_text(child: ChildText, voice: Voice, *, plain: bool = False) -> Text:
    """A child issue's text: what the agent wrote, its parent, what it waits for, and the hidden line it is found by."""
    origin = "Proposed by the discovery in" if child.proposal else "Part of the plan in"
    notes = [f"{origin} [issue {child.plan_number}]({child.plan_address})."]
    if child.waits:
        listed = ", ".join(f"`{child.repo}#{n}` ({_title(title, voice, plain=plain)})" for n, title in child.waits)
        notes.append(f"Waits until these are closed: {listed}.")
    if child.unknown_lane is not None:
        lane = one_line(voice.inert(child.unknown_lane), 60).replace("`", "'")
        notes.append(f"The plan named the lane `{lane}`, which does not exist here.")
    if not child.runs:
        notes.append(f"It is worked on once a person puts `{voice.scheme.opt_in}` on it.")
    said = _foreign(child.body, voice, plain=plain)
    parts = [said, "---"] if said else []
    line = ChildLine(voice.installation, child.plan_number, child.key, child.uid)
    return Text(_title(child.title, voice, plain=plain), "\n\n".join([*parts, "\n".join(notes), str(line)]))


def _foreign(text: str, voice: Voice, *, plain: bool) -> str:
    if not plain:
        return cut(voice.inert(text), BODY_MAX).strip()
    bare = _NOT_PLAIN.sub("?", voice.inert(text)).replace("`", "'").strip()
    return f"```text\n{bare[:PLAIN_MAX]}\n```" if bare else ""


def _title(text: str, voice: Voice, *, plain: bool) -> str:
    line = one_line(voice.inert(text), TITLE_MAX)
    return (_NOT_PLAIN.sub("?", line) if plain else line) or "(no title)"


# ------------------------------------------------------------------------------------------------ the hidden line


@dataclass(frozen=True, slots=True)
class ChildLine:
    """The hidden last line of a child issue's body. It counts only where the issue's author is the bot."""

    installation: str
    plan_number: int
    key: str
    uid: str

    def __str__(self) -> str:
        return (
            f"<!-- tireless:child installation={percent(self.installation, safe='/')} plan={self.plan_number} "
            f"key={self.key} uid={self.uid} -->"
        )


_CHILD_LINE = re.compile(
    r"<!-- tireless:child installation=(\S+) plan=([0-9]{1,18}) key=([a-z0-9][a-z0-9-]{0,63}) uid=([0-9a-f-]{36}) -->"
)


def read_child_line(body: str) -> ChildLine | None:
    """The hidden line that ends a body, None when there is none; only the last line counts."""
    found = _CHILD_LINE.fullmatch(body.rstrip().rpartition("\n")[2].strip())
    return ChildLine(unquote(found[1]), int(found[2]), found[3], found[4]) if found else None


def find_child(
    issues: Sequence[Snapshot], bot: Person, *, installation: str, plan_number: int, key: str, uid: str
) -> list[Snapshot]:
    """The bot's issues that are this child, lowest number first.

    Those with its uid in any state; where there are none, open ones of the same plan and key: an earlier plan, or a
    database that was lost, made them.
    """
    lines = [(each, read_child_line(each.body)) for each in issues if each.author.id == bot.id]
    mine = [(each, line) for each, line in lines if line is not None and line.installation == installation]
    exact = [each for each, line in mine if line.uid == uid]
    same = [each for each, line in mine if (line.plan_number, line.key) == (plan_number, key) and each.state == "open"]
    return sorted(exact or same, key=lambda each: each.number)


def in_order(depends_on: Mapping[str, Sequence[str]]) -> list[str]:
    """The keys, each after those it depends on; given order otherwise. What goes in a circle keeps its given order."""
    done: dict[str, None] = {}
    left = list(depends_on)
    while left:
        free = [key for key in left if all(other in done or other not in depends_on for other in depends_on[key])]
        for key in free or left[:1]:
            done[key] = None
        left = [key for key in left if key not in done]
    return list(done)


# ------------------------------------------------------------------------------------------------ sentences

SUPERSEDED = "<!-- tireless:superseded -->"


def superseded(address: str, number: int) -> str:
    """What is said on a predecessor's pull request before it is closed."""
    return f"Replaced by [pull request {number}]({address}), made when the issue was worked on again.\n\n{SUPERSEDED}"


STRANGERS_MARK = "<!-- tireless:stranger -->"
STRANGERS_PULL = f"""This branch is tireless's own, and its own pull request is opened in the place of this one.

{STRANGERS_MARK}"""
"""What is said on a pull request that somebody else opened from the bot's branch, before it is closed."""

TWIN_MARK = "<!-- tireless:twin -->"


def twin(address: str, number: int, *, pull: bool) -> str:
    """What is said on an issue or pull request that came into being twice, before the higher number is closed.

    True also where the forge refuses to close it.
    """
    what = "pull request" if pull else "issue"
    return (
        f"The same as [{what} {number}]({address}), which counts: an answer of the forge was lost, and this one was "
        f"made by mistake.\n\n{TWIN_MARK}"
    )
