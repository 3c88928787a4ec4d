"""Lanes: override first, then the kind, then the default."""

from __future__ import annotations

import pytest

from tireless.domain.job import Kind
from tireless.domain.labels import LabelView
from tireless.domain.routing import Lane, Route, lane_for, route

LANES = (
    Lane("a", (Kind.IMPLEMENT,), children_of_plan="c"),
    Lane("b", (Kind.PLAN, Kind.IMPLEMENT)),
    Lane("c"),
    Lane("d", is_default=True),
)


@pytest.mark.parametrize(
    ("kind", "is_child", "overrides", "lane"),
    [
        (Kind.IMPLEMENT, False, (), "a"),
        (Kind.IMPLEMENT, True, (), "c"),
        (Kind.PLAN, True, (), "b"),
        (Kind.DISCOVER, False, (), "d"),
        (Kind.DISCOVER, False, ("c",), "c"),
        (Kind.IMPLEMENT, True, ("b",), "b"),
        (Kind.IMPLEMENT, False, ("c", "b"), "b"),
        (Kind.IMPLEMENT, False, ("nobody",), "a"),
    ],
)
def test_a_lane_is_found_in_the_order_of_the_rule(
    kind: Kind, is_child: bool, overrides: tuple[str, ...], lane: str
) -> None:
    """Of two overrides the first in configuration order; an unknown one is no override."""
    assert lane_for(kind, is_child=is_child, overrides=overrides, lanes=LANES) == lane


def test_without_lane_or_mode_there_is_no_route() -> None:
    """Nothing is guessed."""
    assert route(LabelView(), hold=False, is_child=False, lanes=LANES) is None
    discover = LabelView(kinds=(Kind.DISCOVER,))
    assert route(discover, hold=False, is_child=False, lanes=LANES[:3]) is None
    assert route(discover, hold=True, is_child=False, lanes=LANES) == Route(Kind.DISCOVER, "d", 0, hold=True)


def test_the_plans_lane_gives_way_to_an_override_on_the_issue() -> None:
    """A person's word goes before the plan's."""
    view = LabelView(kinds=(Kind.IMPLEMENT,))
    planned = route(view, hold=False, is_child=True, lanes=LANES, planned_lane="b")
    assert planned == Route(Kind.IMPLEMENT, "b")
    over = LabelView(kinds=(Kind.IMPLEMENT,), agents=("d",))
    assert route(over, hold=False, is_child=True, lanes=LANES, planned_lane="b") == Route(Kind.IMPLEMENT, "d")
