"""The git CLI as a careful subprocess: no prompts, no foreign configuration, no secret in argv, URL, environment, file.

Every call is bounded in time and output; its failure is a GitError whose text went through the redactor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tireless.errors import WorkspaceError
from tireless.redact import Redactor

CALL_LIMIT_S = 600.0
"""For calls that move data; local ones are given less by their callers."""
OUTPUT_MAX = 16 * 1024 * 1024
_ERROR_MAX = 1024 * 1024
_SAID_MAX = 4_000
"""Characters of git's own words in an error: the last ones tell."""
_GRACE_S = 5.0

# What may be taken over from our environment: where programs are, and how the network is reached.
_INHERITED = (
    *("PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_EXEC_PATH"),
    *("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"),
)
_CONFIG = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.attributesFile=/dev/null"),
    *("-c", "core.excludesFile=/dev/null", "-c", "credential.helper=", "-c", "http.followRedirects=false"),
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "protocol.version=2", "-c", "init.defaultBranch=main"),
    *("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60"),
    *("-c", "submodule.recurse=false", "-c", "diff.ignoreSubmodules=all", "-c", "commit.gpgSign=false"),
    *("-c", "advice.detachedHead=false", "-c", "core.quotePath=false"),
)


class GitError(WorkspaceError):
    """A git command failed. `said` is its redacted standard error, `code` its exit code (None: it was stopped)."""

    def __init__(self, message: str, *, said: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.said = said
        self.code = code


@dataclass(frozen=True, slots=True)
class Credential:
    """User and token for one forge. Never printed: `repr` leaves the token out."""

    username: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Remote:
    """A repository on a forge: its clone URL, without user information, and what opens it (None: public)."""

    url: str
    credential: Credential | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or "@" in parts.netloc or _UNSAFE.search(self.url):
            # The URL itself is not repeated: what is wrong with it may be the token in it.
            raise WorkspaceError(
                f"a clone URL (host {parts.hostname}) is not a plain http(s) URL without user information; "
                "correct the forge's ROOT_URL or the configured clone URL"
            )

    @property
    def origin(self) -> str:
        """Scheme, host and port: where the credential may go."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


_UNSAFE = re.compile(r"[\s\x00-\x20\x7f]")
_USERINFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^/\s@]{1,1024}@")


class Git:
    """Runs git with a fixed, small environment. `environ` is the process's own, handed in by who composes us."""

    def __init__(self, *, redactor: Redactor, environ: Mapping[str, str], program: str = "git") -> None:
        self._redactor = redactor
        self._program = program
        self._env = {name: environ[name] for name in _INHERITED if name in environ} | {
            "LANG": "C",
            "LC_ALL": "C",
            "HOME": "/nonexistent",
            "XDG_CONFIG_HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "SSH_ASKPASS": "/bin/false",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_ADVICE": "0",
        }

    async def run(
        self,
        *arguments: str | Path,
        git_dir: Path | None = None,
        cwd: Path | None = None,
        remote: Remote | None = None,
        protocols: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        limit_s: float = CALL_LIMIT_S,
        may_fail: Sequence[int] = (),
        hold: Sequence[int] = (),
    ) -> bytes:
        """Standard output of one git command; GitError unless it exits 0 or with a code of `may_fail`.

        `protocols`: transports allowed (`file`), by default that of `remote`, else none. `remote`'s credential lives
        in a pipe that only this call's credential helper can read, once. `hold`: descriptors (locks) that must stay
        open as long as git lives, even if we do not.
        """
        allowed = protocols or (urlsplit(remote.url).scheme if remote else "none")
        places = ["--git-dir", str(git_dir)] if git_dir else []
        command = [*_CONFIG, *places]
        fds = tuple(hold)
        pipe: tuple[int, int] | None = None
        if remote and remote.credential:
            pipe = _credential_pipe(remote.credential)
            fds += (pipe[0],)
            # For this origin only: a redirect elsewhere would ask the helper for another one.
            helper = f'!f() {{ test "$1" = get && cat /dev/fd/{pipe[0]}; }}; f'
            command += ["-c", f"credential.{remote.origin}.helper={helper}"]
        whole = (self._program, *command, *map(str, arguments))
        try:
            code, out, err = await self._call(
                whole,
                cwd=cwd or git_dir,
                env={**self._env, "GIT_ALLOW_PROTOCOL": allowed, **(env or {})},
                stdin=stdin,
                fds=fds,
                limit_s=limit_s,
            )
        finally:
            if pipe:
                os.close(pipe[0])
        if code != 0 and code not in may_fail:
            said = self.redact(err)
            raise GitError(f"{_what(arguments)} failed ({code}): {said or 'it said nothing'}", said=said, code=code)
        return out

    def redact(self, said: bytes) -> str:
        """Git's words, short, without secrets and user information."""
        text = said.decode("utf-8", "replace").replace("\0", "�").strip()
        return _USERINFO.sub(r"\1", self._redactor.text(text))[-_SAID_MAX:]

    async def _call(
        self,
        whole: Sequence[str],
        *,
        cwd: Path | None,
        env: Mapping[str, str],
        stdin: bytes,
        fds: tuple[int, ...],
        limit_s: float,
    ) -> tuple[int, bytes, bytes]:
        try:
            process = await asyncio.create_subprocess_exec(
                *whole,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=cwd or "/",
                env=dict(env),
                pass_fds=fds,
                start_new_session=True,  # one group, so that a time limit ends git's helpers too
            )
        except OSError as error:
            raise GitError(f"could not start {self._program}: {error}; is git installed?") from error
        try:
            async with asyncio.timeout(limit_s):
                out, err = await _communicate(process, stdin)
                return await process.wait(), out, err
        except TimeoutError as error:
            raise GitError(f"git did not end within {limit_s:.0f} s and was stopped") from error
        finally:
            await _end(process)


def _credential_pipe(credential: Credential) -> tuple[int, int]:
    """A pipe that holds the answer of a credential helper; its writing end is closed already."""
    if "\n" in credential.username + credential.token:
        raise WorkspaceError("a forge token or user name holds a line break; correct the file it is read from")
    read, write = os.pipe()
    try:
        os.write(write, f"username={credential.username}\npassword={credential.token}\n".encode())
    finally:
        os.close(write)
    return read, write


async def _communicate(process: asyncio.subprocess.Process, stdin: bytes) -> tuple[bytes, bytes]:
    """Feed and read to the end, bounded: output beyond OUTPUT_MAX is an error, not memory."""
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise GitError("git was started without its three pipes")
    _, out, err = await asyncio.gather(
        _feed(process.stdin, stdin), _drain(process.stdout, OUTPUT_MAX), _drain(process.stderr, _ERROR_MAX)
    )
    if len(out) > OUTPUT_MAX:
        raise GitError(f"git printed more than {OUTPUT_MAX} bytes")
    return out, err


async def _feed(pipe: asyncio.StreamWriter, data: bytes) -> None:
    # A command that does not read its input is judged by its exit code.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pipe.write(data)
        await pipe.drain()
    pipe.close()


async def _drain(pipe: asyncio.StreamReader, limit: int) -> bytes:
    """Read to the end; keep the last pieces once more than `limit` came."""
    kept: list[bytes] = []
    size = 0
    while piece := await pipe.read(65_536):
        kept.append(piece)
        size += len(piece)
        while size > limit + 65_536 and len(kept) > 1:
            size -= len(kept.pop(0))
    return b"".join(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Make sure that neither git nor a helper of its group goes on after the call."""
    if process.returncode is not None:
        return
    for sign, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await process.wait()
                return


def _what(arguments: Sequence[str | Path]) -> str:
    """The command's name for an error: arguments may hold paths and refs, which the caller names better."""
    words = iter(map(str, arguments))
    for word in words:
        if word == "-c":
            next(words, None)
        elif not word.startswith("-"):
            return f"git {word}"
    return "git"
