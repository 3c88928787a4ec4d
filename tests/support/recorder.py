"""The demo's agent, which notes when it begins and ends, and waits where a test wants it to: run as a file.

`python -I -S recorder.py AGENT PLACE`; imports nothing but the standard library. In PLACE: `records`, a line of JSON
per begin and end; `job-N.lock`, held as long as an agent of this job lives; `hold-KIND`, a named pipe: while it is
there an agent of this kind waits until somebody opens it for writing.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import sys
from pathlib import Path


def main(agent: str, place: Path) -> int:
    """Work on the issue of this attempt as `agent` does; its exit code."""
    job = int(os.environ["TIRELESS_JOB_ID"])
    lock = os.open(place / f"job-{job}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except BlockingIOError:
        alone = False
    facts = {"issue": int(os.environ["TIRELESS_ISSUE"]), "job": job, "pid": os.getpid(), "alone": alone}
    _record(place, {"what": "begin", **facts})
    hold = place / f"hold-{os.environ['TIRELESS_KIND']}"
    if hold.exists():
        os.close(os.open(hold, os.O_RDONLY))
    code = int(runpy.run_path(agent)["main"]())
    _record(place, {"what": "end", **facts})
    return code


def _record(place: Path, facts: dict[str, object]) -> None:
    with (place / "records").open("a") as file:
        file.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
