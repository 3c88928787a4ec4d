"""An agent for the search for markers: shows all it can see of itself, then does what the issue's title asks for.

Run as a file; imports nothing of ours. It never prints its prompt: what it was told is no secret from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Its exit code is that of protocol 1."""
    prompt = sys.stdin.read()
    say("environment", dict(os.environ))
    for pid in (os.getpid(), os.getppid()):
        for name in ("cmdline", "environ"):
            try:
                say(name, Path(f"/proc/{pid}/{name}").read_bytes())
            except OSError as error:
                say(name, error)
    for path in sorted(Path(".git").glob("*")):
        if path.is_file():
            say(path, path.read_bytes())
    number = os.environ["TIRELESS_ISSUE"]
    if "please fail" in prompt:
        say("failing")
        return 1
    if "please wait" in prompt:
        while not Path(sys.argv[1]).exists():  # until a test says so
            subprocess.run(["sleep", "0.05"], check=True)
    if os.environ["TIRELESS_KIND"] == "plan":
        child = {"title": f"Part of {number}", "body": "A part.", "kind": "implement"}
        finish(children=[{"key": key, **child} for key in ("one", "two")])
    elif "please talk" in prompt:
        Path(os.environ["TIRELESS_RESULT_FILE"]).write_text("not what was agreed on")
    else:
        Path(f"work-{number}.md").write_text("done\n")
        finish(pr={"title": f"Do what {number} asks"})
    return 0


def say(*words: object) -> None:
    """A line of output."""
    sys.stdout.write(f"{' '.join(map(str, words))}\n")


def finish(**more: object) -> None:
    """Hand back a result."""
    target = Path(os.environ["TIRELESS_RESULT_FILE"])
    target.with_suffix(".part").write_text(json.dumps({"protocol": 1, "outcome": "done", "summary": "Done.", **more}))
    target.with_suffix(".part").rename(target)


if __name__ == "__main__":
    sys.exit(main())
