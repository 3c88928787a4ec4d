"""docs/demo.md says what the demo does: its issues, its object's keys, its exit codes."""

from __future__ import annotations

import re
from pathlib import Path

from tireless.cli.demo import WRONG
from tireless.cli.frame import INTERRUPTED
from tireless.demo import report
from tireless.demo.sides import ChildRow, ForgePull, JobRow, Rows, Side
from tireless.demo.story import SCENES
from tireless.demo.tell import LIMIT_S, Told

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "demo.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    lines = [line for line in TEXT.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def words(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def test_every_issue_of_the_cast_is_described() -> None:
    """Title by title in their order, with the labels, and the reason where one comes of it."""
    described = rows_of("What happens")
    assert [title for title, *_ in described] == [scene.title for scene in SCENES]
    for scene, (_, did, came) in zip(SCENES, described, strict=True):
        if scene.author == "alice":
            assert {f"tireless/{label}" for label in words(did)} == set(scene.labels)
        if scene.reason:
            assert scene.reason in words(came)


def test_every_key_of_the_object_is_described() -> None:
    """No key more and none less, in the object and in the rows of its lists."""
    job = JobRow(1, 1, "implement", "swift", "delivered", None, 1, 1, 2, "b", None, False, "delivered")
    told = Told(
        seconds=1.0,
        forge_url="",
        database_url="",
        repository="a/b",
        cast={},
        rows=Rows({1: (True, None)}, [job], [ChildRow(1, "k", "implement", None, None, ())]),
        forge=Side({}, [ForgePull(2, "b", "Closes #1", open=True)]),
        wrong=(),
    )
    made = report.as_json(told)
    described = rows_of("The object of `--json`")
    assert [key for keys, _ in described for key in words(keys)] == list(made)
    for keys, holds in described:
        for key in words(keys):
            of = made[key]
            if isinstance(of, list):
                assert words(holds) == list(of[0]), key


def test_the_exit_codes_are_described() -> None:
    """Those of the demo itself."""
    assert f"Exit code 0: there was none, and nothing was left running. {WRONG}: there" in TEXT.replace("\n", " ")
    assert f"{INTERRUPTED}: it was interrupted" in TEXT


def test_page_and_readme_say_the_same_time_and_the_story_is_given_up_after_what_is_said() -> None:
    """How long it takes, and after how many seconds it is called wrong."""
    assert "It takes a quarter of a minute;" in TEXT
    assert f"not come to rest {LIMIT_S:.0f} seconds after its parts were started" in " ".join(TEXT.split())
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("$ ./run demo ")]
    assert line.endswith(", a quarter of a minute")
