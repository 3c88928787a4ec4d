"""What a person does next to ask for work, given what is on the issue now: never a step that cannot be taken there.

Part of the words of gates.py and comments.py; looks at no row itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tireless.domain.job import Kind
from tireless.domain.labels import LabelScheme, LabelView

_ALL_ON = LabelView(opt_in=True, kinds=(Kind.IMPLEMENT,), hold=True)


@dataclass(frozen=True, slots=True)
class Now:
    """An issue as a person finds it: the labels of ours that are on it, whoever put them there, and is it open?"""

    scheme: LabelScheme
    on: LabelView = field(default=_ALL_ON)
    open: bool = True

    @property
    def modes(self) -> str:
        """The labels that say what is to be done."""
        prefix = self.scheme.prefix
        return f"`{prefix}discover`, `{prefix}plan` or `{prefix}implement`"

    def again(self, *, counts: bool = True, reopening: bool = False) -> str:
        """How to ask once more. `counts`: the opt-in that is on does; `reopening`: to reopen the issue asks as well."""
        if self.open:
            return self._labels(counts)
        complete = bool(self.on.kinds) and (self.on.opt_in or not self.scheme.require_opt_in)
        return "reopen it" if reopening and complete else f"reopen it, then {self._labels(counts)}"

    def _labels(self, counts: bool) -> str:
        opt_in, on = f"`{self.scheme.opt_in}`", self.on
        if not self.scheme.require_opt_in:
            return "take the mode label off and put it on again" if on.kinds else f"put on {self.modes}"
        if not on.opt_in:
            return f"put on {opt_in}" if on.kinds else f"put on {opt_in} and {self.modes}"
        anew = f"take {opt_in} off and put it on again"
        if on.kinds:
            return anew
        return f"put on {self.modes}" if counts else f"put on {self.modes}, then {anew}"

    @property
    def start(self) -> str:
        """How to let a job start that is on hold; the label may be off, by one who may not take it off."""
        hold = f"`{self.scheme.prefix}hold`"
        if self.on.hold:
            return f"take {hold} off when it may start"
        return f"a person who may ask puts {hold} on and takes it off again when it may start"
