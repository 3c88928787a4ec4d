"""Protocol 1 on disk and in the environment: what an agent is handed, and what it hands back. docs/protocol.md says it.

Writes before the agent runs, reads after everything of it is dead; trusts nothing it reads.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from tireless.agent.guard import MARK_NAME
from tireless.domain.issue import IssueRef
from tireless.domain.job import Kind
from tireless.domain.result import PROTOCOL, Malformed, Result, parse_result
from tireless.domain.text import one_line, visible
from tireless.errors import WorkspaceError
from tireless.redact import Redactor

RESULT_MAX = 4 * 1024 * 1024
"""Bytes of result.json that are read; more is malformed."""
SCHEMAS = Path(__file__).parent / "schemas"
"""job.schema.json, result.schema.json, progress.schema.json: for who writes an agent."""
_PREFIX = "TIRELESS_"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Message:
    """A comment by a person who counts, newest last: the answer to a question, or a hint."""

    login: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One claim as an agent is told of it, in plain values. Title and body are the approved text, verbatim."""

    job_id: int
    attempt_uid: UUID
    attempt: int
    """Counts attempts that burn, from 1."""
    max_attempts: int
    kind: Kind
    lane: str
    issue: IssueRef
    issue_url: str
    title: str
    body: str
    base_branch: str
    request: str
    """What the commit's trailer names: one printable line that means the same after a database was restored."""
    messages: tuple[Message, ...] = ()
    previous: str | None = None
    """How the last attempt ended, for one that is not the first."""
    usd_left: float | None = None
    """What this attempt may cost; None: its lane has no cap."""

    @property
    def key(self) -> str:
        """Names this attempt's directories."""
        return f"{self.job_id}.{self.attempt_uid.hex[:8]}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """The paths of one run directory."""

    directory: Path

    @property
    def job_file(self) -> Path:
        """What is asked, for programs."""
        return self.directory / "job.json"

    @property
    def prompt_file(self) -> Path:
        """What is asked, for models; the same comes on standard input."""
        return self.directory / "prompt.md"

    @property
    def result_file(self) -> Path:
        """What came of it: written aside and renamed by the agent."""
        return self.directory / "result.json"

    @property
    def progress_file(self) -> Path:
        """Optional: one JSON object a line; its growth is a sign of life."""
        return self.directory / "progress.ndjson"

    @property
    def temporary(self) -> Path:
        """TMPDIR of the agent."""
        return self.directory / "tmp"


def job_document(assignment: Assignment, *, base_sha: str, deadline: datetime) -> dict[str, object]:
    """job.json: see schemas/job.schema.json. Foreign text is what a person sees of it."""
    issue = assignment.issue
    return {
        "protocol": PROTOCOL,
        "job": {
            "id": assignment.job_id,
            "attempt": assignment.attempt,
            "max_attempts": assignment.max_attempts,
            "kind": assignment.kind.value,
            "lane": assignment.lane,
        },
        "issue": {
            "forge": issue.repo.forge,
            "repository": issue.repo.path,
            "number": issue.number,
            "url": assignment.issue_url,
            "title": one_line(assignment.title),
            "body": visible(assignment.body),
        },
        "base": {"branch": assignment.base_branch, "sha": base_sha},
        "deadline": _stamp(deadline),
        "messages": [
            {"from": message.login, "at": _stamp(message.at), "text": visible(message.text)}
            for message in assignment.messages
        ],
        "previous": assignment.previous,
        "usd_left": assignment.usd_left,
    }


def write_exchange(exchange: Exchange, *, job: Mapping[str, object], prompt: str) -> None:
    """Write what the agent reads. The directory is new: a file that is there already is refused."""
    try:
        exchange.temporary.mkdir(mode=0o700)
        _write_new(exchange.job_file, json.dumps(job, ensure_ascii=False, indent=2).encode() + b"\n")
        _write_new(exchange.prompt_file, prompt.encode())
    except OSError as error:
        raise WorkspaceError(f"could not write what the agent is handed to {exchange.directory}: {error}") from error


def agent_environment(
    assignment: Assignment,
    exchange: Exchange,
    *,
    base_sha: str,
    deadline: datetime,
    mark: str,
    environ: Mapping[str, str],
    allowed: Sequence[str] = (),
    home: str | None = None,
) -> dict[str, str]:
    """The agent's whole environment. `allowed` names are passed on from `environ` where it has them.

    A name of ours is never passed on, allowed or not: it may be the database's URL.
    """
    issue = assignment.issue
    passed = {name: environ[name] for name in allowed if name in environ and not name.startswith(_PREFIX)}
    ours: dict[str, object] = {
        "PROTOCOL": PROTOCOL,
        "JOB_ID": assignment.job_id,
        "ATTEMPT": assignment.attempt,
        "MAX_ATTEMPTS": assignment.max_attempts,
        "KIND": assignment.kind.value,
        "LANE": assignment.lane,
        "FORGE": issue.repo.forge,
        "REPO": issue.repo.path,
        "ISSUE": issue.number,
        "ISSUE_URL": assignment.issue_url,
        "RUN_DIR": exchange.directory,
        "JOB_FILE": exchange.job_file,
        "PROMPT_FILE": exchange.prompt_file,
        "RESULT_FILE": exchange.result_file,
        "PROGRESS_FILE": exchange.progress_file,
        "BASE_BRANCH": assignment.base_branch,
        "BASE_SHA": base_sha,
        "DEADLINE": _stamp(deadline),
    }
    if assignment.usd_left is not None:
        ours["USD_LEFT"] = f"{assignment.usd_left:.6f}"
    return {
        "PATH": environ.get("PATH") or _DEFAULT_PATH,
        "HOME": home or environ.get("HOME") or str(exchange.temporary),
        "LANG": environ.get("LANG") or "C.UTF-8",
        "TMPDIR": str(exchange.temporary),
        **passed,
        **{f"{_PREFIX}{name}": str(value) for name, value in ours.items()},
        MARK_NAME: mark,
    }


def read_result(exchange: Exchange, redactor: Redactor) -> Result | Malformed | None:
    """result.json, redacted; None when there is none. Links, pipes and other surprises are malformed."""
    try:
        raw = _read_plain(exchange.directory, exchange.result_file.name)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Malformed(f"result.json: could not be read: {error.strerror}")
    if raw is None:
        return Malformed("result.json: is no regular file")
    if len(raw) > RESULT_MAX:
        return Malformed(f"result.json: is larger than {RESULT_MAX} bytes")
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        return parse_result(redactor.value(data))
    except UnicodeDecodeError as error:
        return Malformed(f"result.json: is not UTF-8 (byte {error.start})")
    except ValueError as error:
        return Malformed(f"result.json: is not JSON: {error}")
    except RecursionError:
        return Malformed("result.json: is nested too deeply")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _read_plain(directory: Path, name: str) -> bytes | None:
    """At most RESULT_MAX + 1 bytes of a regular file in a directory that is no link; None for anything else.

    O_NONBLOCK: a pipe that nobody writes to must not hold us up.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    room = os.open(directory, flags | os.O_DIRECTORY)
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=room, follow_symlinks=False).st_mode):
            return None
        with open(os.open(name, flags, dir_fd=room), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return file.read(RESULT_MAX + 1)
    finally:
        os.close(room)


def _write_new(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data)


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
