"""What rounds of measurement come to: medians, ratios, promises, the table, the plot, the document."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.document import MARKER, Circumstances, as_json, figure_table, markdown, panels, ratio_table, write
from bench.figures import BARE, GROUPS, OURS, PGQUEUER, PROCRASTINATE, PROMISES, Figures, Measure, ratios
from bench.plot import number, svg
from bench.sizes import FULL, QUICK, TINY


async def nothing() -> list[float]:
    """A round that is never run."""
    raise AssertionError("run")


def measure(subject: str, key: str, unit: str = "jobs/s", group: str = GROUPS[0]) -> Measure:
    """A measure by name."""
    return Measure(subject, key, group, f"{key} of {subject}", unit, nothing)


@pytest.fixture
def figures() -> Figures:
    """Three rounds of everything that is promised; ours 0.4 of the bare limit, then one bad round."""
    found = Figures()
    for ours, bare in ((400.0, 1000.0), (800.0, 2000.0), (100.0, 1000.0)):
        found.add(measure(OURS, "open run"), 0, [ours])
        found.add(measure(OURS, "limited run"), 0, [ours / 4])
        found.add(measure(BARE, "pair 16"), 0, [bare])
        found.add(measure(PROCRASTINATE, "drain best"), 0, [ours / 4])
        found.add(measure(PROCRASTINATE, "drain tuned"), 0, [ours / 2])
        found.add(measure(PGQUEUER, "claim 10", group="batches"), 0, [bare])
        found.add(measure(OURS, "claim 10", group="batches"), 0, [bare * 2])
        found.add(measure(OURS, "latency", "ms", "latency"), 0, [1.0, 2.0, 9.0])
        found.add(measure(PGQUEUER, "latency", "ms", "latency"), 0, [3.0, 4.0, 5.0])
        found.add(measure(PROCRASTINATE, "latency", "ms", "latency"), 0, [1.0, 1.5, 2.0])
    found.add(measure(BARE, "pair 16"), 1_000_000, [900.0])
    found.add(measure(OURS, "open run"), 1_000_000, [450.0])
    return found


@pytest.fixture
def around() -> Circumstances:
    """A quiet machine without pgqueuer."""
    return Circumstances(
        words="--quick",
        machine={"cpu": "a | b", "cores": 2},
        versions={"python": "3.11"},
        settings={"synchronous_commit": "on"},
        sizes={"rounds": 3},
        load_before=0.4,
        load_after=2.2,
        took_s=99.6,
        missing=["pgqueuer"],
    )


def test_a_figure_is_the_median_and_its_spread_that_of_rounds(figures: Figures) -> None:
    """Rates: the middle round; times: the middle of all samples, with the highest of a few as 99th of a hundred."""
    rate = figures.get(OURS, "open run")
    assert rate is not None
    assert (rate.median, rate.spread) == (400.0, (100.0, 800.0))
    times = figures.get(OURS, "latency")
    assert times is not None
    assert (times.median, times.spread, times.slowest) == (2.0, (2.0, 2.0), 9.0)
    assert len(times.samples) == 9


def test_a_ratio_is_taken_round_by_round(figures: Figures) -> None:
    """Both numbers of a ratio are of one round: a machine that slows down for both changes nothing."""
    (first, *_) = ratios(figures)
    assert first.promise is PROMISES[0]
    assert (first.value, first.low, first.high) == (0.4, 0.1, 0.4)
    assert first.met


def test_promises_bound_rates_from_below_and_times_from_above(figures: Figures) -> None:
    """What is promised is met or missed by the median, in the direction in which better lies."""
    met = {ratio.promise.name: ratio.met for ratio in ratios(figures) if ratio.history == 0}
    assert met == {
        "open lane / bare limit": True,
        "open lane / procrastinate": True,
        "open lane / procrastinate in autocommit": None,
        "limited lane / bare limit": False,
        "limited lane / procrastinate": False,
        "limited lane / procrastinate in autocommit": None,
        "claims of 10 / pgqueuer's": True,
        "commit to claimed / procrastinate's": False,
        "commit to claimed / pgqueuer's": True,
    }


def test_ratios_need_both_figures_at_the_same_history(figures: Figures) -> None:
    """Beside a million finished jobs only the bare limit and the open lane were measured."""
    assert [(r.promise.name, r.value) for r in ratios(figures) if r.history] == [("open lane / bare limit", 0.5)]
    assert ratios(Figures()) == []


@pytest.mark.parametrize("rival", [PROCRASTINATE, PGQUEUER])
def test_what_is_promised_of_a_rival_is_measured(rival: str) -> None:
    """A promise about a figure that nobody measures is never judged; by the text, as rivals need not be installed."""
    text = (Path(__file__).parents[2] / "bench" / f"by_{rival}.py").read_text()
    keys = {key for promise in PROMISES for subject, key in promise.figures if subject == rival}
    assert keys
    assert [key for key in keys if f'"{key}"' not in text] == []


def test_the_tables_show_every_figure(figures: Figures) -> None:
    """One line a figure under its group, a dash where a size of history was not measured."""
    lines = figure_table(figures).splitlines()
    assert lines[0] == "| | | unit | an empty table | 1,000,000 finished |"
    assert "| tireless | open run of tireless | jobs/s | 400 (100 to 800) | 450 (450 to 450) |" in lines
    assert "| tireless | latency of tireless | ms | 2.00 (2.00 to 2.00, p99 9.00) | - |" in lines
    assert len(lines) == 2 + 3 + 10  # head, groups, figures
    assert {line.count("|") for line in lines} == {6}
    assert "| open lane / bare limit | 0 | ≥ 0.35 | **0.40** (0.10 to 0.40) | met |" in ratio_table(ratios(figures))
    assert "| open lane / procrastinate in autocommit | 0 | - | **2.00** (2.00 to 2.00) |  |" in ratio_table(
        ratios(figures)
    )


def test_the_object_can_be_printed(figures: Figures, around: Circumstances) -> None:
    """`--json`: figures and ratios by name, and where they were made."""
    told = json.loads(json.dumps(as_json(figures, around)))
    assert told["ratios"]["open lane / bare limit"] == {
        "value": 0.4,
        "low": 0.1,
        "high": 0.4,
        "at_least": 0.35,
        "met": True,
        "history": 0,
    }
    assert told["ratios"]["open lane / bare limit (1000000 finished)"]["value"] == 0.5
    assert len(told["figures"]) == 12
    assert (told["disturbed"], told["missing"], told["load"]) == (False, ["pgqueuer"], [0.4, 2.2])


def test_the_plot_is_well_formed_and_keeps_to_its_width(figures: Figures) -> None:
    """A bar for each figure of the chosen groups with an empty table, none beyond the frame."""
    root = ElementTree.fromstring(svg(panels(figures)))  # noqa: S314 - made here
    bars = [node for node in root.iter("{http://www.w3.org/2000/svg}rect") if node.get("height") == "16"]
    assert len(bars) == 10
    width = float(root.get("width", "0"))
    assert all(float(bar.get("x", "0")) + float(bar.get("width", "0")) < width for bar in bars)


@pytest.mark.parametrize(("value", "shown"), [(12_345.0, "12,300"), (1234.0, "1,230"), (845.4, "845"), (3.21, "3.21")])
def test_numbers_keep_three_digits(value: float, shown: str) -> None:
    """More digits than the spread would pretend."""
    assert number(value) == shown


def test_the_document_says_when_others_used_the_machine(figures: Figures, around: Circumstances) -> None:
    """Figures of a busy machine are called noise where they stand."""
    assert "noise" not in markdown(figures, around)
    busy = Circumstances(**{**{f: getattr(around, f) for f in around.__slots__}, "load_before": 7.0})
    assert "take these figures as noise" in markdown(figures, busy)


def test_what_people_wrote_is_kept(figures: Figures, around: Circumstances, tmp_path: Path) -> None:
    """Writing again replaces what is above the marker, and the plot, and nothing else."""
    path = write(tmp_path / "docs", figures, around)
    assert (tmp_path / "docs" / "benchmarks.svg").exists()
    path.write_text(path.read_text() + "\n## Seen\n\nA profile.\n")
    assert write(tmp_path / "docs", Figures(), around) == path
    text = path.read_text()
    assert text.endswith(f"{MARKER}\n\n## Seen\n\nA profile.\n")
    assert "open run" not in text


def test_fewer_workers_get_fewer_jobs_and_every_size_has_a_history() -> None:
    """Every worker has something to do, at every size."""
    for sizes in (TINY, QUICK, FULL):
        assert 16 <= sizes.jobs_for(1) < sizes.jobs_for(4) < sizes.jobs_for(16) == sizes.jobs
        assert sizes.pages(50) >= 1
        assert sizes.history % 5 == 0
        assert sizes.history_rounds <= sizes.rounds
