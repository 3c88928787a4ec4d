"""Who asked for what: judges one snapshot with its whole timeline; asks no forge, stores nothing, makes no job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tireless.domain.case import NEVER, Asked, Case, Marks, Refusal
from tireless.domain.issue import EntryKind, Label, Person, TimelineEntry
from tireless.domain.labels import ASKING, STEERING, LabelScheme, LabelView, Meaning, Role, meaning, read
from tireless.domain.people import Fact, Facts, Judgement, Need, Policy, Verdict, counts, judge_act

__all__ = ["Asked", "Case", "Facts", "Marks", "Need", "Policy", "Refusal", "Verdict", "asked_last", "judge"]


def judge(case: Case) -> Asked:
    """Judge the asking labels of an issue, the approval of its text, and what else people said to its job."""
    return _Judging(case).run()


def asked_last(timeline: Iterable[TimelineEntry], scheme: LabelScheme) -> int:
    """The newest add of a label that asks, whether or not it counts: its event id, 0 when there is none."""
    adds = ((each.id, each.label) for each in timeline if each.kind is EntryKind.LABEL_ADDED)
    read_adds = ((event, meaning(label.name, scheme)) for event, label in adds if label is not None)
    return max((event for event, said in read_adds if said is not None and said.role in ASKING), default=0)


@dataclass(frozen=True, slots=True)
class _Standing:
    """A label on the issue, its meaning, its last entry (None: there is none), and whether it counts."""

    label: Label
    said: Meaning
    last: TimelineEntry | None
    judgement: Judgement

    @property
    def counts(self) -> bool:
        return self.judgement.allowed is True


class _Judging:
    """Collects, while the rules below are applied in order, verdicts made and facts needed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.needs: set[Need] = set()
        self.verdicts: dict[int, Verdict] = {}
        self.disagreements: list[tuple[Role, str]] = []
        self.entries: dict[int, list[TimelineEntry]] = {}  # label entries of ours by label id, oldest first
        self.meanings: dict[int, Meaning] = {}
        for entry in sorted(case.timeline, key=lambda entry: entry.id):
            said = meaning(entry.label.name, case.scheme) if entry.label is not None else None
            if entry.label is not None and said is not None and said.role in ASKING | STEERING:
                self.entries.setdefault(entry.label.id, []).append(entry)
                self.meanings[entry.label.id] = said

    def run(self) -> Asked:
        case = self.case
        standing = self.standing()
        self.disagree(standing)
        counting = [one for one in standing if one.counts]
        view = read((one.label for one in counting), case.scheme)
        roles = {one.label.id: one.said.role for one in counting if one.said.role in ASKING}
        personal = [one for one in counting if one.said.role in ASKING and one.judgement.reason != _SAID_BY_BOT]
        proper = bool(view.kinds) and bool(personal) and (view.opt_in or not case.scheme.require_opt_in)
        ended, doubt = self.taken_away(view)
        request = self.request(personal) if proper else None
        code = None if proper else self.code(standing, view)
        if proper and request is None and self.too_early(personal):
            proper, code = False, "too_early"
        marks = case.answered.over(self.asking_adds() if request is None else [*self.asking_adds(), request])
        asked = Asked(
            view=view,
            hold=self.hold(),
            proper=proper,
            code=code,
            request=request,
            marks=marks,
            refused=tuple(_refusals(standing)),
            counted=roles,
            ended=ended,
            cannot_tell=self.cannot_tell(standing, view, doubt),
        )
        if proper or personal or case.is_live or case.by_plan:
            approved, by = self.approval(request)
            asked = replace(asked, approved=approved, approved_by=by, answers=self.answers())
        return replace(
            asked,
            needs=frozenset(self.needs),
            disagreement=self.disagreements[0][1] if self.disagreements else self.stale(),
            verdicts=tuple(self.verdicts.values()),
        )

    # ------------------------------------------------------------------ which labels count

    def standing(self) -> list[_Standing]:
        """The labels of ours on the issue, each with its last entry judged."""
        case = self.case
        found = []
        for label in case.snapshot.labels:
            said = meaning(label.name, case.scheme)
            if said is not None and said.role in ASKING | STEERING and said.role is not Role.HOLD:
                found.append((label, said, next(reversed(self.entries.get(label.id, [])), None)))
        if not any(said.role in ASKING for _, said, _ in found):
            return []
        opted = [self.stand(*one, opt_in=0) for one in found if one[1].role is Role.OPT_IN]
        # An opt-in approves what is on the issue at that moment; only later adds are judged by themselves.
        opt_in = max((one.last.id for one in opted if one.counts and one.last is not None), default=0)
        others = [one for one in found if one[1].role is not Role.OPT_IN]
        if self.opt_in_matters and all(one.judgement.allowed is False for one in opted):
            return opted + [_Standing(*one, self.unasked(one[2])) for one in others]
        return opted + [self.stand(*one, opt_in=opt_in) for one in others]

    @property
    def opt_in_matters(self) -> bool:
        """Without one that counts nothing can come of the other labels."""
        return self.case.scheme.require_opt_in and not self.case.is_live and not self.case.by_plan

    def unasked(self, last: TimelineEntry | None) -> Judgement:
        by_bot = last is not None and self.case.policy.is_bot(last.actor)
        return Judgement(True, _SAID_BY_BOT) if by_bot else Judgement(None, _NOT_JUDGED)

    def stand(self, label: Label, said: Meaning, last: TimelineEntry | None, *, opt_in: int) -> _Standing:
        """Whether this label counts, given the newest opt-in that does (an event id)."""
        if last is None or last.kind is not EntryKind.LABEL_ADDED:
            return _Standing(label, said, last, Judgement(None, "no_entry"))
        if last.id < opt_in:
            return _Standing(label, said, last, Judgement(True, "approved_by_opt_in"))
        if said.role is not Role.OPT_IN and self.case.policy.is_bot(last.actor):
            return _Standing(label, said, last, Judgement(True, _SAID_BY_BOT))
        return _Standing(label, said, last, self.judge(last))

    def judge(self, entry: TimelineEntry) -> Judgement:
        """The stored verdict, or one made now and remembered."""
        case = self.case
        stored = case.stored.get(entry.id)
        if stored is not None and stored.fits(entry):
            return Judgement(stored.allowed, stored.reason)
        found = judge_act(entry, case.snapshot, case.policy, case.facts)
        self.needs |= found.needs
        if found.allowed is not None:
            self.verdicts[entry.id] = Verdict(entry.id, entry.actor, entry.at, found.allowed, found.reason)
        return found

    def disagree(self, standing: list[_Standing]) -> None:
        """Note where labels and timeline tell different stories: one of the two was read at another moment."""
        on = {label.id for label in self.case.snapshot.labels}
        for one in standing:
            if one.last is None or one.last.kind is not EntryKind.LABEL_ADDED:
                self.disagreements.append((one.said.role, f"{one.label.name} is on it, but nobody put it there"))
        for label_id, entries in self.entries.items():
            if label_id not in on and entries[-1].kind is EntryKind.LABEL_ADDED and entries[-1].label is not None:
                name = entries[-1].label.name
                self.disagreements.append((self.meanings[label_id].role, f"{name} was put on it, but is not there"))

    def stale(self) -> str | None:
        """The snapshot is older than the newest entry: what the text was at that entry is not known from it."""
        newest = max((entry.at for entry in self.case.timeline), default=NEVER)
        return "the timeline is newer than the issue" if newest > self.case.snapshot.updated_at else None

    def hold(self) -> bool:
        """On the issue, or taken off by one who may not: anybody may stop work, not anybody may start it again."""
        if read(self.case.snapshot.labels, self.case.scheme).hold:
            return True
        last = [entries[-1] for label_id, entries in self.entries.items() if self.meanings[label_id].role is Role.HOLD]
        removed = max(last, key=lambda entry: entry.id, default=None)
        if removed is None:
            return False
        return removed.kind is EntryKind.LABEL_ADDED or self.judge(removed).allowed is not True

    # ------------------------------------------------------------------ requests

    def asking_adds(self) -> list[TimelineEntry]:
        """Every asking entry there is, proper or not."""
        return [
            entry
            for label_id, entries in self.entries.items()
            for entry in entries
            if self.meanings[label_id].role in ASKING and entry.kind is EntryKind.LABEL_ADDED
        ]

    def request(self, personal: list[_Standing]) -> TimelineEntry | None:
        """The newest act of a person that asks for this work and was not answered."""
        case = self.case
        acts = [one.last for one in personal if one.last is not None]
        if not case.scheme.require_opt_in and case.asks_after is not None:
            acts = [act for act in acts if act.at > case.asks_after]
        if case.was_closed and (reopening := self.reopening()) is not None:
            acts.append(reopening)
        return max((act for act in acts if case.answered.before(act)), key=lambda act: act.id, default=None)

    def too_early(self, personal: list[_Standing]) -> bool:
        """Nothing asks because all of it is older than the moment from which labels ask without opt-in."""
        if self.case.scheme.require_opt_in or self.case.asks_after is None:
            return False
        return any(one.last is not None and self.case.answered.before(one.last) for one in personal)

    def reopening(self) -> TimelineEntry | None:
        """The reopening after the last close, if it was by one who counts."""
        ends = [entry for entry in self.case.timeline if entry.kind in (EntryKind.CLOSED, EntryKind.REOPENED)]
        last = max(ends, key=lambda entry: entry.id, default=None)
        if last is None or last.kind is not EntryKind.REOPENED:
            return None
        return last if self.counts(last.actor) else None

    def counts(self, person: Person) -> bool:
        case = self.case
        found = counts(person, case.policy, case.facts, request_actor=case.request_actor)
        self.needs |= found.needs
        return found.allowed is True

    def code(self, standing: list[_Standing], view: LabelView) -> str | None:
        """Why these labels make no proper request."""
        on = read(self.case.snapshot.labels, self.case.scheme)
        if not on.asks:
            return "unknown_label" if on.unknown else None
        if not view.opt_in and on.opt_in and self.case.scheme.require_opt_in:
            return "stranger"
        if not view.opt_in and self.case.scheme.require_opt_in:
            return "no_opt_in"
        if not on.kinds:
            return "no_mode"
        said_by_bot = any(one.judgement.reason == _SAID_BY_BOT and one.said.role is Role.KIND for one in standing)
        return "no_opt_in" if said_by_bot else "stranger"

    def cannot_tell(self, standing: list[_Standing], view: LabelView, doubt: str | None) -> str | None:
        """Why nothing may be concluded: of the labels that ask, some cannot be judged."""
        torn = next((why for role, why in self.disagreements if role in ASKING), None)
        if torn is not None or doubt is not None:
            return torn or doubt
        for one in standing:
            settled = one.judgement.allowed is not None or one.judgement.reason == _NOT_JUDGED
            settled = settled or (one.said.role is Role.OPT_IN and view.opt_in)
            if one.said.role in ASKING and not settled and one.last is not None:
                why = _DOUBTS.get(one.judgement.reason, one.judgement.reason)
                return f"{one.label.name} was put on by {one.last.actor.login}, {why}"
        return None

    # ------------------------------------------------------------------ what ends it

    def taken_away(self, view: LabelView) -> tuple[bool, str | None]:
        """Whether opt-in or mode was taken away, with a removal or with its definition; or why that is in doubt."""
        case = self.case
        if not case.is_live:
            return False, None
        on = {label.id for label in case.snapshot.labels}
        lacking = {Role.KIND} if not view.kinds else set()
        if case.scheme.require_opt_in and not view.opt_in:
            lacking.add(Role.OPT_IN)
        ended = False
        for role in lacking:
            went = [label_id for label_id, was in case.counted.items() if was is role and label_id not in on]
            if all(self.went(label_id) for label_id in went):
                ended = ended or bool(went)
            else:
                return False, f"the {role} label is gone, but nobody took it off"
        return ended, None

    def went(self, label_id: int) -> bool:
        entries = self.entries.get(label_id)
        if entries:
            return entries[-1].kind is EntryKind.LABEL_REMOVED
        # A deleted definition takes its entries with it; an answer that lost its labels looks the same.
        need = Need(Fact.DEFINITIONS)
        if need not in self.case.facts.asked:
            self.needs.add(need)
            return False
        return self.case.facts.defined is not None and label_id not in self.case.facts.defined

    # ------------------------------------------------------------------ text and answers

    def approval(self, request: TimelineEntry | None) -> tuple[bool, str | None]:
        """Whether an agent may work from this text, and who approved it if nobody had before.

        An edit of the text leaves no entry: where the author may not ask, only an act that nothing followed approves,
        and only the text that was there before it.
        """
        case = self.case
        if case.snapshot.content_hash == case.approved_hash:
            return True, None
        if self.stale() is None:
            for entries in self.entries.values():
                for act in entries:
                    if self.approves(act) and self.judge(act).allowed:
                        return True, act.actor.login
        author = case.snapshot.author
        if case.policy.is_bot(author):
            # Only those who can write can edit what the bot wrote; where they may ask, so may they edit.
            return case.policy.who_may_ask == "writers", author.login
        asker = request.actor.id if request is not None else case.request_actor
        found = counts(author, case.policy, case.facts, request_actor=asker)
        self.needs |= found.needs
        return found.allowed is True, author.login

    def approves(self, act: TimelineEntry) -> bool:
        """Does this act, if it is an allowed person's, approve the text of the snapshot?

        Stamps have seconds, and an edit in the second of the act looks as if nothing had followed it. So the text must
        be the one that was read before the act. Of an issue that was never read before nothing better is known.
        """
        if act.at < self.case.snapshot.updated_at:
            return False
        seen = self.case.seen
        if seen is None:
            return True
        return seen.updated_at < act.at and seen.content_hash == self.case.snapshot.content_hash

    def answers(self) -> tuple[TimelineEntry, ...]:
        """The comments after the live job's question by people who count."""
        asked_at = self.case.question_at
        if asked_at is None:
            return ()
        said = (entry for entry in self.case.timeline if entry.kind is EntryKind.COMMENT and entry.at > asked_at)
        return tuple(entry for entry in said if self.counts(entry.actor))


_SAID_BY_BOT = "said_by_bot"
"""The bot's labels say the kind, never ask."""

_NOT_JUDGED = "not_judged"
"""Without an opt-in that counts it does not matter who put the others on."""


def _refusals(standing: Iterable[_Standing]) -> Iterable[Refusal]:
    for one in standing:
        if one.judgement.allowed is False and one.last is not None:
            yield Refusal(one.label.name, one.last.actor.login, one.judgement.reason)


_DOUBTS = {
    "permission_not_shown": "and the forge does not tell the bot what rights they have",
    "team_not_shown": "and the forge does not tell the bot who is in the team: make it a member of that team",
}
"""How "cannot tell" reads."""
