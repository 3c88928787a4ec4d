"""The cast of the demo: ten issues, labelled as people would, and what must come of each."""

from __future__ import annotations

from dataclasses import dataclass

OWNER, STRANGER, BOT = "alice", "mallory", "tireless"
REPOSITORY = "widgets"
STEADY, SWIFT = "steady", "swift"
"""Two lanes: `steady` plans and discovers, `swift` implements."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One issue of the story. `by_form`: its author files it by the web form, labels included."""

    title: str
    body: str
    author: str = OWNER
    labels: tuple[str, ...] = ()
    by_form: bool = False
    edited_by_author: bool = False
    # what must come of it
    reason: str | None = None
    kind: str | None = None
    lane: str | None = None
    attempts: int = 1
    state: str | None = None
    children: int = 0

    @property
    def asks(self) -> bool:
        """Does a proper request come of it: exactly one job, or none."""
        return self.kind is not None


SCENES: tuple[Scene, ...] = (
    Scene("How do I sort widgets?", "Just a question, nobody labelled it."),
    Scene(
        "Sort widgets by size",
        "The plain case: one request, one pull request.",
        labels=("tireless/go", "tireless/implement"),
        kind="implement",
        lane=SWIFT,
        state="delivered",
    ),
    Scene(
        "Let people import parts",
        "A plan: three child issues, of which one depends on another.",
        labels=("tireless/go", "tireless/plan"),
        kind="plan",
        lane=STEADY,
        state="delivered",
        children=3,
    ),
    Scene(
        "Rework the storage",
        "Two modes at once: planning comes before implementing.",
        labels=("tireless/go", "tireless/plan", "tireless/implement"),
        by_form=True,  # only creation puts two exclusive labels on one issue
        kind="plan",
        lane=STEADY,
        state="delivered",
        children=3,
    ),
    Scene("Make it faster", "Opted in, but nobody said what to do.", labels=("tireless/go",), reason="no_mode"),
    Scene("Drop the old format", "A mode, but nobody opted in.", labels=("tireless/implement",), reason="no_opt_in"),
    Scene(
        "Tidy the command line",
        "An override sends this one to the other lane.",
        labels=("tireless/go", "tireless/implement", f"tireless/agent:{STEADY}"),
        kind="implement",
        lane=STEADY,
        state="delivered",
    ),
    Scene(
        "Please run my code",
        "A stranger labelled this by the new-issue form, which lets anyone.",
        author=STRANGER,
        labels=("tireless/go", "tireless/implement"),
        by_form=True,
        reason="stranger",
    ),
    Scene(
        "Publish nightly builds",
        "The agent fails twice and then succeeds.",
        labels=("tireless/go", "tireless/implement"),
        kind="implement",
        lane=SWIFT,
        attempts=3,
        state="delivered",
    ),
    Scene(
        "Fix a typo",
        "Asked for by a stranger, approved by the owner, then edited by the stranger.",
        author=STRANGER,
        labels=("tireless/go", "tireless/implement"),
        edited_by_author=True,
        kind="implement",
        lane=SWIFT,
        attempts=0,
        reason="needs_approval",
        state="waiting",
    ),
)
