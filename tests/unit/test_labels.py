"""The label protocol, over all combinations of labels."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from tireless.domain.issue import Label
from tireless.domain.job import Kind, Status
from tireless.domain.labels import (
    PRECEDENCE,
    LabelScheme,
    Meaning,
    Role,
    first_kind,
    folded,
    job_kind_for,
    label_specs,
    meaning,
    read,
    status_diff,
    status_label,
)
from tireless.domain.routing import Lane

SCHEME = LabelScheme()
WITHOUT = LabelScheme(require_opt_in=False)
OURS = (
    "tireless/go",
    "tireless/discover",
    "tireless/plan",
    "tireless/implement",
    "tireless/agent:claude",
    "tireless/agent:opencode",
    "tireless/hold",
    "tireless/priority/high",
    "tireless/priority/low",
    "tireless/status/queued",
    "tireless/typo",
    "bug",
)


def labels(*names: str) -> tuple[Label, ...]:
    """Labels of these names, each with an id of its own."""
    return tuple(Label(n, name) for n, name in enumerate(names, start=1))


ALL = tuple(chain.from_iterable(combinations(OURS, n) for n in range(len(OURS) + 1)))


def test_every_combination_is_read_as_the_table_says() -> None:
    """Over all 4,096 sets of labels: the kind by precedence, opt-in as required, the rest exactly as present."""
    assert len(ALL) == 4096
    for names in ALL:
        view = read(labels(*names), SCHEME)
        modes = [name.removeprefix("tireless/") for name in names if name.removeprefix("tireless/") in set(Kind)]
        wins = next((kind for kind in ("discover", "plan", "implement") if kind in modes), None)
        assert view.opt_in == ("tireless/go" in names)
        assert sorted(view.kinds) == sorted(modes)
        assert first_kind(view.kinds) == wins
        assert job_kind_for(view, SCHEME) == (wins if view.opt_in else None)
        assert job_kind_for(view, WITHOUT) == wins
        assert view.agents == tuple(n.removeprefix("tireless/agent:") for n in names if "agent:" in n)
        assert view.hold == ("tireless/hold" in names)
        high, low = "tireless/priority/high" in names, "tireless/priority/low" in names
        assert view.priority == (1 if high else -1 if low else 0)
        assert [label.name for label in view.statuses] == [n for n in names if "/status/" in n]
        assert view.unknown == (("typo",) if "tireless/typo" in names else ())
        assert view.asks == (view.opt_in or bool(modes))


def test_discover_beats_plan_beats_implement() -> None:
    """The order of precedence is not the order of the enum by accident: it is this."""
    assert PRECEDENCE == (Kind.DISCOVER, Kind.PLAN, Kind.IMPLEMENT)
    assert first_kind([Kind.IMPLEMENT, Kind.PLAN]) is Kind.PLAN
    assert first_kind(list(Kind)) is Kind.DISCOVER
    assert first_kind([]) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (" Tireless/GO ", Meaning(Role.OPT_IN)),
        ("TIRELESS/Implement", Meaning(Role.KIND, "implement")),
        ("tireless/agent: Claude ", Meaning(Role.AGENT, "claude")),
        ("tireless/agent:", Meaning(Role.UNKNOWN, "agent:")),
        ("tireless/agent/claude", Meaning(Role.UNKNOWN, "agent/claude")),
        ("tireless/priority/urgent", Meaning(Role.UNKNOWN, "priority/urgent")),
        ("tireless/status/Running", Meaning(Role.STATUS, "running")),
        ("tireless/status/done", Meaning(Role.UNKNOWN, "status/done")),
        ("tireless/", Meaning(Role.UNKNOWN, "")),
        ("tireless", None),
        ("tirelessly/go", None),
        ("go", None),
        ("tireless/g\N{GREEK SMALL LETTER OMICRON}", Meaning(Role.UNKNOWN, "g\N{GREEK SMALL LETTER OMICRON}")),
        ("tireless/" + "x" * 246, Meaning(Role.UNKNOWN, "x" * 246)),
    ],
)
def test_names_are_compared_trimmed_and_case_folded_and_never_guessed(name: str, said: Meaning | None) -> None:
    """Case and outer blanks do not matter; look-alikes and near misses are unknown."""
    assert meaning(name, SCHEME) == said


def test_another_prefix_and_opt_in_are_obeyed() -> None:
    """Prefix and opt-in are configured apart; the default names then mean nothing."""
    scheme = LabelScheme(prefix="bot/", opt_in="ready for work")
    view = read(labels("Ready for Work", "bot/plan", "tireless/discover"), scheme)
    assert job_kind_for(view, scheme) is Kind.PLAN
    assert view.kinds == (Kind.PLAN,)


def test_two_labels_of_one_name_count_as_one() -> None:
    """A repository and its organisation may both define a name."""
    view = read(labels("tireless/agent:claude", "Tireless/agent:claude", "tireless/plan", "tireless/plan"), SCHEME)
    assert view.agents == ("claude",)
    assert view.kinds == (Kind.PLAN,)


def test_the_ensured_labels_are_exclusive_exactly_where_the_table_says() -> None:
    """Modes, priorities and statuses evict each other; opt-in, hold and above all agent labels evict nothing."""
    specs = {spec.name: spec for spec in label_specs(SCHEME, [Lane("claude"), Lane("opencode")])}
    exclusive = {name for name, spec in specs.items() if spec.exclusive}
    assert exclusive == {
        *(f"tireless/{kind}" for kind in Kind),
        "tireless/priority/high",
        "tireless/priority/low",
        *(f"tireless/status/{status}" for status in Status),
    }
    assert set(specs) - exclusive == {
        "tireless/go",
        "tireless/hold",
        "tireless/agent:claude",
        "tireless/agent:opencode",
    }
    for spec in specs.values():
        assert len(spec.color) == 6
        assert int(spec.color, 16) >= 0
        assert spec.description
        assert len(spec.name) <= 50


def test_every_ensured_label_is_read_back_as_known() -> None:
    """What the bot creates, it understands; without opt-in it creates no opt-in label."""
    for scheme in (SCHEME, WITHOUT, LabelScheme(prefix="bot/", opt_in="ready")):
        specs = label_specs(scheme, [Lane("claude")])
        assert [spec.name for spec in specs if (said := meaning(spec.name, scheme)) is None or said.value == ""] == (
            [scheme.opt_in, f"{scheme.prefix}hold"] if scheme.require_opt_in else [f"{scheme.prefix}hold"]
        )
        assert not read(labels(*(spec.name for spec in specs)), scheme).unknown
        assert len({folded(spec.name) for spec in specs}) == len(specs)


def test_status_diff_reaches_every_status_from_every_set_of_status_labels() -> None:
    """Whatever status labels are on, the change leaves exactly the wanted one and touches no other label."""
    names = [status_label(SCHEME, status) for status in Status]
    for present in chain.from_iterable(combinations(names, n) for n in range(4)):
        current = labels(*present, "tireless/go", "tireless/plan", "bug")
        for wanted in (None, *Status):
            diff = status_diff(current, wanted, SCHEME)
            left = [label.name for label in current if label.id not in diff.remove]
            after = left + ([diff.add] if diff.add else [])
            assert [name for name in after if "/status/" in name] == ([status_label(SCHEME, wanted)] if wanted else [])
            assert {"tireless/go", "tireless/plan", "bug"} <= set(after)


def test_nothing_is_sent_when_the_right_status_is_on() -> None:
    """Only differences go to the forge."""
    assert status_diff(labels("tireless/status/running", "x"), Status.RUNNING, SCHEME) == (None, ())


def test_of_two_status_labels_of_one_name_the_lower_id_stays() -> None:
    """Twins of a label are made one without adding a third."""
    twins = (Label(8, "tireless/status/running"), Label(3, "Tireless/Status/Running"))
    assert status_diff(twins, Status.RUNNING, SCHEME) == (None, (8,))
