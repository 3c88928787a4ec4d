"""The demo's check of both sides: the true story has no fault, and each way of falsifying it is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tireless.demo import report
from tireless.demo.sides import ChildRow, ForgeIssue, ForgePull, JobRow, Rows, Side, differences, out_of_step
from tireless.demo.story import SCENES, Scene
from tireless.demo.tell import Told

CAST: Mapping[int, Scene] = dict(enumerate(SCENES, start=1))
PLAIN, PLAN, SEVERAL, NO_MODE, NO_OPT_IN, OVERRIDE, STRANGER, FAILING, EDITED = range(2, 11)
SCHEMA, IMPORT, DOCS = 21, 22, 23
"""The children of PLAN; those of SEVERAL come ten later."""


@dataclass(frozen=True)
class Story:
    """Both sides as they are when all went well; each method is one thing that went otherwise."""

    rows: Rows
    forge: Side

    def wrong(self) -> list[str]:
        """What the check says."""
        return differences(CAST, self.rows, self.forge)

    def issue(self, number: int, **changes: Any) -> Story:
        """An issue of the forge."""
        issues = {**self.forge.issues, number: replace(self.forge.issues[number], **changes)}
        return replace(self, forge=replace(self.forge, issues=issues))

    def pull(self, of: int, **changes: Any) -> Story:
        """The pull request of an issue."""
        pulls = [replace(pull, **changes) if pull.closes == of else pull for pull in self.forge.pulls]
        return replace(self, forge=replace(self.forge, pulls=pulls))

    def another_pull(self, of: int, **changes: Any) -> Story:
        """A second pull request like that of an issue."""
        twin = replace(self.pull_of(of), number=99, **changes)
        return replace(self, forge=replace(self.forge, pulls=[*self.forge.pulls, twin]))

    def job(self, of: int, **changes: Any) -> Story:
        """The job of an issue."""
        jobs = [replace(job, **changes) if job.number == of else job for job in self.rows.jobs]
        return replace(self, rows=replace(self.rows, jobs=jobs))

    def another_job(self, like: int, of: int) -> Story:
        """One job more."""
        twin = replace(self.job_of(like), id=99, number=of)
        return replace(self, rows=replace(self.rows, jobs=[*self.rows.jobs, twin]))

    def row(self, number: int, *, asked: bool, reason: str | None) -> Story:
        """What triage said of an issue."""
        return replace(self, rows=replace(self.rows, issues={**self.rows.issues, number: (asked, reason)}))

    def child(self, which: int, /, **changes: Any) -> Story:
        """A child row."""
        children = [replace(each, **changes) if each.number == which else each for each in self.rows.children]
        return replace(self, rows=replace(self.rows, children=children))

    def without_child(self, *numbers: int) -> Story:
        """Neither side has these children."""
        rows = replace(self.rows, children=[each for each in self.rows.children if each.number not in numbers])
        issues = {number: issue for number, issue in self.forge.issues.items() if number not in numbers}
        return replace(self, rows=rows, forge=replace(self.forge, issues=issues))

    def job_of(self, number: int) -> JobRow:
        """The job of an issue."""
        return next(job for job in self.rows.jobs if job.number == number)

    def pull_of(self, number: int) -> ForgePull:
        """The pull request of an issue."""
        return next(pull for pull in self.forge.pulls if pull.closes == number)


def true_story() -> Story:
    """What the labels of the cast ask for, on both sides."""
    jobs = [_job(number, scene) for number, scene in CAST.items() if scene.asks]
    children = [*_children(PLAN, 21), *_children(SEVERAL, 31)]
    issues: dict[int, tuple[bool, str | None]] = {n: (scene.asks, scene.reason) for n, scene in CAST.items()}
    issues |= {child.number: (False, "is_child_waiting") for child in children if child.number}
    rows = Rows(issues, jobs, children)
    shown = [_shown(number, scene, rows) for number, scene in CAST.items()] + [_shown_child(each) for each in children]
    pulls = [
        ForgePull(job.pull_request, f"tireless/{job.number}", f"What I did.\n\nCloses #{job.number}", open=True)
        for job in jobs
        if job.pull_request is not None
    ]
    return Story(rows, Side({issue.number: issue for issue in shown}, pulls))


def _job(number: int, scene: Scene) -> JobRow:
    pulls = scene.kind == "implement" and scene.state == "delivered"
    return JobRow(
        id=100 + number,
        number=number,
        kind=scene.kind or "",
        lane=scene.lane or "",
        state=scene.state or "",
        reason=scene.reason,
        attempts=scene.attempts,
        claims=scene.attempts,
        pull_request=50 + number if pulls else None,
        branch=f"tireless/{number}" if pulls else None,
        parent=None,
        holds_claim=False,
        status="parked" if scene.reason else "delivered",
    )


def _children(plan: int, first: int) -> Iterator[ChildRow]:
    keys = {"schema": (), "import": (first,), "docs": ()}
    for number, (key, after) in enumerate(keys.items(), start=first):
        yield ChildRow(plan=plan, key=key, kind="implement", lane=None, number=number, depends_on=after)


def _shown(number: int, scene: Scene, rows: Rows) -> ForgeIssue:
    labels, told = list(scene.labels), tuple[str, ...]()
    for job in (job for job in rows.jobs if job.number == number):
        labels.append(f"tireless/status/{job.status}")
        words = [f"**{job.status.capitalize()}**", job.kind, f"lane `{job.lane}`", f"job {job.id}"]
        words += [f"[pull request {job.pull_request}](…)"] if job.pull_request else []
        words += [f"[issue {child.number}](…)" for child in rows.children if child.plan == number]
        told = (" · ".join(words),)
    if not scene.asks and scene.reason:
        told = (f"**No job** · `{scene.reason}`",)
    return ForgeIssue(number, tuple(labels), scene.body, by_bot=False, told=told)


def _shown_child(child: ChildRow) -> ForgeIssue:
    body = f"Part of the plan in https://forge/issues/./{child.plan}"
    return ForgeIssue(child.number or 0, ("tireless/implement",), body, by_bot=True, blocked_by=child.depends_on)


def test_the_true_story_has_no_fault() -> None:
    """Nothing is said of a story that is as the labels asked."""
    assert true_story().wrong() == []


WRONG: Mapping[str, tuple[Callable[[Story], Story], str]] = {
    "a child lost its label": (
        lambda s: s.issue(DOCS, labels=()),
        f"docs of #{PLAN} (#{DOCS}) lacks tireless/implement",
    ),
    "a child lost its lane": (lambda s: s.child(DOCS, lane="steady"), f"(#{DOCS}) lacks tireless/agent:steady"),
    "a child got a second mode": (
        lambda s: s.issue(DOCS, labels=("tireless/implement", "tireless/plan")),
        f"(#{DOCS}) carries tireless/plan, and nobody put that on",
    ),
    "a child is opted in": (
        lambda s: s.issue(IMPORT, labels=("tireless/implement", "tireless/go")),
        f"import of #{PLAN} (#{IMPORT}) is opted in",
    ),
    "a dependency is missing": (
        lambda s: s.issue(IMPORT, blocked_by=()),
        f"(#{IMPORT}) depends on nothing there, on {SCHEMA} in its row",
    ),
    "a dependency too many": (lambda s: s.issue(DOCS, blocked_by=(SCHEMA,)), f"(#{DOCS}) depends on {SCHEMA} there"),
    "a child does not name its plan": (lambda s: s.issue(SCHEMA, body="Do it."), f"(#{SCHEMA}) does not name its plan"),
    "a child names another plan": (
        lambda s: s.issue(SCHEMA, body=f"https://forge/issues/./{PLAN}0"),
        f"(#{SCHEMA}) does not name its plan",
    ),
    "a child was made by a person": (lambda s: s.issue(SCHEMA, by_bot=False), f"(#{SCHEMA}) was not made by the bot"),
    "a child has no issue": (lambda s: s.child(DOCS, number=None), f"the child docs of #{PLAN} has no issue"),
    "a child was made twice": (
        lambda s: replace(s, forge=replace(s.forge, issues={**s.forge.issues, 77: s.forge.issues[DOCS]})),
        "#77 was made by the bot and is no child row's",
    ),
    "a plan has a child too few": (
        lambda s: s.without_child(DOCS),
        f"#{PLAN} (Let people import parts) has 2 children",
    ),
    "a plan has no children": (lambda s: s.without_child(SCHEMA, IMPORT, DOCS), "has 0 children, want 3"),
    "no child depends on another": (
        lambda s: s.child(IMPORT, depends_on=()).issue(IMPORT, blocked_by=()),
        f"#{PLAN} (Let people import parts) has no child that depends on another",
    ),
    "a pull request has no closing line": (lambda s: s.pull(PLAIN, body="Done."), "has no closing line"),
    "a pull request closes in passing": (
        lambda s: s.pull(PLAIN, body=f"This closes #{PLAIN} I hope."),
        "has no closing line",
    ),
    "a pull request closes another issue": (
        lambda s: s.pull(PLAIN, body="Closes #1"),
        "closes #1, which has no delivered job",
    ),
    "a second pull request is open": (
        lambda s: s.another_pull(PLAIN),
        f"#{PLAIN} has the open pull requests [52, 99], its row says 52",
    ),
    "a second one without a closing line": (
        lambda s: s.another_pull(PLAIN, body=""),
        "pull request 99 has no closing line",
    ),
    "the pull request is closed": (lambda s: s.pull(PLAIN, open=False), f"#{PLAIN} has the open pull requests []"),
    "the pull request is another": (lambda s: s.job(PLAIN, pull_request=60), "its row says 60"),
    "the pull request is from another branch": (
        lambda s: s.pull(PLAIN, branch="tireless/old"),
        f"is from tireless/old, the row of #{PLAIN} says tireless/{PLAIN}",
    ),
    "a second job": (
        lambda s: s.another_job(PLAIN, PLAIN),
        f"#{PLAIN} (Sort widgets by size) asked once and has 2 jobs",
    ),
    "no job": (
        lambda s: replace(s, rows=replace(s.rows, jobs=[j for j in s.rows.jobs if j.number != PLAIN])),
        f"#{PLAIN} (Sort widgets by size) asked once and has 0 jobs",
    ),
    "a job nobody asked for": (lambda s: s.another_job(PLAIN, 1), "#1 (How do I sort widgets?) asked for nothing"),
    "a job of a child": (lambda s: s.another_job(PLAIN, DOCS), f"#{DOCS} has the job 99, and nobody asked for it"),
    "a job for no mode": (lambda s: s.another_job(PLAIN, NO_MODE), f"#{NO_MODE} (Make it faster) asked for nothing"),
    "a job for a stranger": (lambda s: s.another_job(PLAIN, STRANGER), f"#{STRANGER} (Please run my code) asked for"),
    "a job of an issue that is gone": (lambda s: s.another_job(PLAIN, 88), "#88 has a job and is not on the forge"),
    "another reason": (
        lambda s: s.row(NO_OPT_IN, asked=False, reason="no_mode"),
        f"#{NO_OPT_IN} (Drop the old format) has the reason no_mode, want no_opt_in",
    ),
    "no reason": (lambda s: s.row(STRANGER, asked=False, reason=None), "has the reason None, want stranger"),
    "a row says that it was asked": (
        lambda s: s.row(STRANGER, asked=True, reason="stranger"),
        f"#{STRANGER} (Please run my code) is asked for by its row",
    ),
    "a row says that nobody asked": (
        lambda s: s.row(PLAIN, asked=False, reason=None),
        f"#{PLAIN} (Sort widgets by size) is not asked for by its row",
    ),
    "an issue was never taken in": (
        lambda s: replace(s, rows=replace(s.rows, issues={n: row for n, row in s.rows.issues.items() if n != NO_MODE})),
        f"#{NO_MODE} (Make it faster) was never taken in",
    ),
    "the several-mode issue did not plan": (
        lambda s: s.job(SEVERAL, kind="implement"),
        f"#{SEVERAL} (Rework the storage) came out as ('implement', 'steady', 'delivered', 1, None)",
    ),
    "the override went to another lane": (
        lambda s: s.job(OVERRIDE, lane="swift"),
        f"#{OVERRIDE} (Tidy the command line) came out as ('implement', 'swift'",
    ),
    "the failing one shows one attempt": (lambda s: s.job(FAILING, attempts=1), "'delivered', 1, None), want"),
    "the edited one was worked on": (
        lambda s: s.job(EDITED, state="delivered", attempts=1, reason=None, status="delivered"),
        f"#{EDITED} (Fix a typo) came out as",
    ),
    "a job failed": (lambda s: s.job(PLAIN, state="failed", reason="exhausted", status="failed"), "came out as"),
    "a claim is held": (lambda s: s.job(PLAIN, holds_claim=True), f"job {100 + PLAIN} still holds a claim"),
    "a status label differs": (
        lambda s: s.issue(PLAIN, labels=("tireless/go", "tireless/implement", "tireless/status/running")),
        f"#{PLAIN} shows the status running, its row says delivered",
    ),
    "a status label is missing": (lambda s: s.issue(PLAIN, labels=()), f"#{PLAIN} shows the status nothing"),
    "two status labels": (
        lambda s: s.issue(PLAIN, labels=("tireless/status/running", "tireless/status/delivered")),
        f"#{PLAIN} shows the status delivered, running",
    ),
    "a status label without a job": (
        lambda s: s.issue(1, labels=("tireless/status/queued",)),
        "#1 shows the status queued, its row says nothing",
    ),
    "two comments": (
        lambda s: s.issue(PLAIN, told=s.forge.issues[PLAIN].told * 2),
        f"#{PLAIN} has 2 comments of ours, not one",
    ),
    "no comment": (lambda s: s.issue(PLAIN, told=()), f"#{PLAIN} has no comment of ours"),
    "no comment where nothing came of it": (
        lambda s: s.issue(STRANGER, told=()),
        f"#{STRANGER} (Please run my code) has no comment that says why",
    ),
    "a comment is out of date": (
        lambda s: s.issue(PLAIN, told=(s.forge.issues[PLAIN].told[0].replace("Delivered", "Running"),)),
        f"#{PLAIN} has a comment that does not say **Delivered**",
    ),
    "a comment names no pull request": (
        lambda s: s.issue(PLAIN, told=(s.forge.issues[PLAIN].told[0].replace("pull request", "nothing"),)),
        f"#{PLAIN} has a comment that does not say [pull request 52]",
    ),
    "a comment forgets a child": (
        lambda s: s.issue(PLAN, told=(s.forge.issues[PLAN].told[0].replace(f"issue {DOCS}", "nothing"),)),
        f"#{PLAN} has a comment that does not say [issue {DOCS}]",
    ),
    "a comment says another reason": (
        lambda s: s.issue(NO_MODE, told=("**No job** · `stranger`",)),
        f"#{NO_MODE} has a comment that does not say `no_mode`",
    ),
}
"""What went wrong: how the story is changed, and what has to be said of it."""


@pytest.mark.parametrize("name", WRONG)
def test_what_went_wrong_is_named(name: str) -> None:
    """Each falsified story is wrong, and one of its sentences says in what."""
    falsify, sentence = WRONG[name]
    found = falsify(true_story()).wrong()
    assert any(sentence in each for each in found), found


def told(story: Story, **changes: Any) -> Told:
    """The end of a demo with these sides."""
    made = Told(
        seconds=12.345,
        forge_url="http://127.0.0.1:1",
        database_url="postgresql:///x",
        repository="alice/widgets",
        cast=CAST,
        rows=story.rows,
        forge=story.forge,
        wrong=tuple(story.wrong()),
    )
    return replace(made, **changes)


PROMISED = {
    "ok": bool,
    "seconds": float,
    "forge_url": str,
    "database_url": str,
    "issues": list,
    "jobs": list,
    "pull_requests": list,
    "children": list,
    "claims_held": int,
    "mirror_in_step": bool,
    "left_running": int,
}


def test_the_report_has_the_promised_keys() -> None:
    """One object, with these keys and no others, that survives being written as JSON."""
    made = report.as_json(told(true_story()))
    assert {key: type(value) for key, value in made.items()} == PROMISED
    assert json.loads(json.dumps(made)) == made
    assert [made["ok"], made["claims_held"], made["mirror_in_step"], made["left_running"]] == [True, 0, True, 0]


def test_the_report_names_issues_as_people_do() -> None:
    """Every issue is `owner/repo#N`; a pull request says what it closes, whatever the rows say it is of."""
    made = report.as_json(told(true_story().pull(PLAIN, body="Done.")))
    assert made["ok"] is False
    assert made["pull_requests"] == [
        {"issue": f"alice/widgets#{n}", "number": 50 + n, "branch": f"tireless/{n}", "closes": closes}
        for n, closes in ((PLAIN, None), (OVERRIDE, f"alice/widgets#{OVERRIDE}"), (FAILING, f"alice/widgets#{FAILING}"))
    ]
    (child,) = [each for each in _list(made["children"]) if each["issue"] == f"alice/widgets#{IMPORT}"]
    assert child == {
        "plan": f"alice/widgets#{PLAN}",
        "key": "import",
        "issue": f"alice/widgets#{IMPORT}",
        "labels": ["tireless/implement"],
        "depends_on": [f"alice/widgets#{SCHEMA}"],
    }
    assert {"issue": f"alice/widgets#{STRANGER}", "asked": False, "reason": "stranger"} in _list(made["issues"])


@pytest.mark.parametrize("name", WRONG)
def test_the_report_of_a_falsified_story_is_not_ok(name: str) -> None:
    """`ok` is false, and the summary for people says what is wrong and does not end well."""
    falsify, sentence = WRONG[name]
    end = told(falsify(true_story()))
    assert report.as_json(end)["ok"] is False
    lines = list(report.as_lines(end))
    assert any(line.startswith("WRONG: ") and sentence in line for line in lines)
    assert lines[-1].startswith("It did not come out right.")


def test_what_is_left_running_is_not_ok() -> None:
    """A story that is right in every row is wrong when a process of it still lives."""
    end = told(true_story(), left_running=2)
    assert not end.ok
    assert report.as_json(end)["left_running"] == 2
    assert "WRONG: 2 processes were left running" in list(report.as_lines(end))


def test_the_summary_has_a_line_for_each_issue() -> None:
    """Who reads only the summary sees what came of every issue, and the verdict."""
    lines = list(report.as_lines(told(true_story())))
    assert [line.split()[0] for line in lines[1:-1]] == [f"#{number}" for number in CAST]
    assert "3 attempts" in lines[FAILING]
    assert "3 children" in lines[PLAN]
    assert "no job: stranger" in lines[STRANGER]
    assert lines[-1].startswith("Forge and rows agree")


def test_the_mirror_is_out_of_step_only_where_labels_or_comments_differ() -> None:
    """`mirror_in_step` is about the picture alone: a missing dependency does not change it."""
    assert told(true_story().issue(IMPORT, blocked_by=())).mirror_in_step
    assert not told(true_story().issue(PLAIN, told=())).mirror_in_step
    assert out_of_step(true_story().rows, true_story().forge) == []


def test_every_scene_that_the_demo_promises_is_in_the_cast() -> None:
    """The kinds of issue that the demo is there to show, each once."""
    labels = [set(scene.labels) for scene in SCENES]
    assert sum({"tireless/plan", "tireless/implement"} <= each for each in labels) == 1
    assert sum(each == {"tireless/go"} for each in labels) == 1
    assert sum(each == {"tireless/implement"} for each in labels) == 1
    assert sum(any("agent:" in label for label in each) for each in labels) == 1
    assert sum(not each for each in labels) == 1
    assert [scene.reason for scene in SCENES if scene.by_form and scene.author == "mallory"] == ["stranger"]
    assert [scene.attempts for scene in SCENES if "fails twice" in scene.body] == [3]
    assert [scene.reason for scene in SCENES if scene.edited_by_author] == ["needs_approval"]


def _list(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value
