"""The demo's scripted agent: a real process that really commits; run by file path, so it imports nothing of ours.

It speaks protocol 1 as any agent would: the prompt on standard input, TIRELESS_* in its environment, a result.json out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CHILDREN = (
    ("schema", "Add the table for parts", (), "Write the table the importer fills."),
    ("import", "Import parts from a file", ("schema",), "Read a file of parts into the table; needs the table."),
    ("docs", "Describe the importer", (), "One page that says what the importer does."),
)


def main() -> int:
    """Work on the issue of this attempt; the exit code is the one of protocol 1 for plain scripts."""
    prompt = sys.stdin.read()
    kind, number = os.environ["TIRELESS_KIND"], os.environ["TIRELESS_ISSUE"]
    attempt = int(os.environ["TIRELESS_ATTEMPT"])
    say(f"working on #{number} as {kind}, attempt {attempt}")
    if "fails twice" in prompt and attempt < 3:
        say("the build server is not there yet")
        return 1
    if kind == "plan":
        finish("Split into three steps.", children=[child(*each) for each in CHILDREN])
        return 0
    commit(Path.cwd() / f"work-{number}.md", f"Work on issue {number}\n", f"Do what issue {number} asks")
    text = {"title": f"Do what issue {number} asks", "body": "Done by a script.", "draft": False}
    finish(f"Wrote work-{number}.md.", pr=text)
    return 0


def say(text: str) -> None:
    """A line of output, seen in `tireless jobs logs`."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def child(key: str, title: str, depends_on: tuple[str, ...], body: str) -> dict[str, object]:
    """One child issue of a plan, as result.json wants it."""
    return {"key": key, "title": title, "body": body, "kind": "implement", "lane": None, "depends_on": list(depends_on)}


def commit(path: Path, text: str, message: str) -> None:
    """Write a file and commit it, as an agent of one's own would."""
    path.write_text(text)
    who = ["-c", "user.name=Demo Agent", "-c", "user.email=agent@demo.invalid"]
    for words in (["add", "--", path.name], [*who, "commit", "--quiet", "--message", message]):
        subprocess.run(["git", *words], cwd=path.parent, check=True)  # noqa: S603, S607  our own words, git from PATH


def finish(summary: str, **more: object) -> None:
    """Write result.json aside and rename it, so that no reader ever sees half of one."""
    target = Path(os.environ["TIRELESS_RESULT_FILE"])
    aside = target.with_suffix(".part")
    aside.write_text(json.dumps({"protocol": 1, "outcome": "done", "summary": summary, **more}))
    aside.rename(target)


if __name__ == "__main__":
    sys.exit(main())
