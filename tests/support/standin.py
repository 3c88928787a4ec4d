"""A scripted stand-in for an agent's program: prints what it is told to, as a real process. Standard library only.

    python -I -S standin.py SCRIPT.json WORDS…

The script is a list of steps: a string is printed as a line, an object does one thing. What it was given (its words,
its standard input) is written beside the script.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    """Follow the script."""
    path = Path(sys.argv[1])
    path.with_suffix(".seen").write_text(json.dumps({"argv": sys.argv[2:], "stdin": sys.stdin.read()}))
    for step in json.loads(path.read_text()):
        if isinstance(step, str):
            print(step, flush=True)  # noqa: T201 - a stand-in's output
        elif (code := act(step)) is not None:
            return code
    return 0


def act(step: dict[str, Any]) -> int | None:
    """One step; a number ends the run."""
    match step:
        case {"exit": code}:
            return int(code)
        case {"die": number}:
            os.kill(os.getpid(), int(number))
        case {"flood": size}:
            sys.stdout.write("{" + "x" * int(size) + "}\n")
            sys.stdout.flush()
        case {"write": name, "text": text}:
            Path(os.path.expandvars(name)).write_text(text)
        case {"child": name}:
            # Holds the output open, and dies by nothing but a signal.
            child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
            Path(name).write_text(str(child.pid))
        case {"until": name}:
            while not Path(name).exists():
                time.sleep(0.02)
        case {"hang": name}:
            Path(f"{name}.new").write_text(str(os.getpid()))
            Path(f"{name}.new").rename(name)
            while True:
                time.sleep(60)
        case {"deaf": _}:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return None


if __name__ == "__main__":
    sys.exit(main())
