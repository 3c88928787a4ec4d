"""What a key's text becomes: durations with their unit, paths, secrets read from files; knows no section."""

from __future__ import annotations

import os
import re
import stat
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, SecretStr

from tireless.redact import MIN_LENGTH

BASE: ContextVar[Path | None] = ContextVar("BASE", default=None)
"""The directory of the file being read: relative paths in it start there, not where the command was typed."""

_MAX_SECRET_BYTES = 64 * 1024

# ------------------------------------------------------------------------------------------------ durations

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_LONGEST = timedelta(days=3650)


def parse_duration(value: object) -> timedelta:
    """`"90s"`, `"10m"`, `"1h30m"`, `"7d"`, `"250ms"` as a timedelta; a bare number is refused, it could be anything."""
    if isinstance(value, timedelta):
        return value
    want = 'write a number with its unit, like "90s", "10m", "1h30m" or "7d"'
    if not isinstance(value, str) or not _WHOLE.fullmatch(text := value.replace(" ", "")):
        raise ValueError(want)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"that is more than {_LONGEST.days} days; {want}")
    return timedelta(seconds=seconds)


def _positive(value: object) -> timedelta:
    found = parse_duration(value)
    if found <= timedelta():
        raise ValueError("it must be longer than nothing")
    return found


Duration = Annotated[timedelta, BeforeValidator(_positive)]
"""A time above zero."""

DurationOrZero = Annotated[timedelta, BeforeValidator(parse_duration)]


def format_duration(value: timedelta) -> str:
    """The shortest text that reads back as `value`, to the millisecond: `1h30m`, `10m`, `250ms`."""
    rest = round(value.total_seconds() * 1000)
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


# ------------------------------------------------------------------------------------------------ sizes

_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?(KiB|MiB|GiB|TiB)")


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError('write a number with its unit, like "500MiB" or "10GiB"')
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('write a number with its unit, like "500MiB" or "10GiB"')
    return int(float(found[1]) * _SIZES[found[2]])


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, written with their unit: `"500MiB"`, `"10GiB"`."""


def format_size(value: int) -> str:
    """Bytes for people: `12.3MiB`; exact only where it is round."""
    for unit, size in reversed(_SIZES.items()):
        if value >= size:
            return f"{value / size:.1f}{unit}".replace(".0", "")
    return f"{value}B"


# ------------------------------------------------------------------------------------------------ paths


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("write a path")
    path = Path(value)
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"~ cannot be resolved here ({error}); write the whole path") from None
    return (BASE.get() or Path.cwd()) / path


ConfigPath = Annotated[Path, BeforeValidator(_path)]
"""An absolute path; a relative one is taken from the directory of the configuration file, `~` from the user."""

# ------------------------------------------------------------------------------------------------ secrets


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret as it was read. `source` says where from, for messages; `value` prints as stars."""

    source: str
    value: SecretStr

    def reveal(self) -> str:
        """The secret itself: for the one call that needs it."""
        return self.value.get_secret_value()


def _secret_from_file(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    _refuse_inline(value)
    path = _path(value)
    try:
        # NONBLOCK: a fifo put there would hang the start instead of failing it
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{path} is not a regular file; write the secret into one, `chmod 600` it")
            _refuse_if_shared(path, status)
            content = file.read(_MAX_SECRET_BYTES + 1)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; write the secret into it and run `chmod 600 {path}`") from None
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); it must belong to the user that runs this"
        ) from None
    if len(content) > _MAX_SECRET_BYTES:
        raise ValueError(f"{path} holds more than {_MAX_SECRET_BYTES // 1024} KiB; is it the right file?")
    return Secret(str(path), SecretStr(_one_line(content, str(path))))


def _refuse_inline(value: object) -> None:
    # Said before anything repeats the value: this text ends up in a terminal and in a log.
    if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{32,}", value):
        raise ValueError("that looks like a token itself; write it into a file, `chmod 600` it, and name the file")


def _refuse_if_shared(path: Path, status: os.stat_result) -> None:
    shared = stat.S_IMODE(status.st_mode) & 0o077
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    if shared == 0o040 and credentials and path.resolve().is_relative_to(Path(credentials).resolve()):
        return  # systemd gives its user access by an ACL, whose mask shows as the group's bits
    if shared:
        mode = stat.S_IMODE(status.st_mode)
        raise ValueError(f"{path} can be read or changed by others (mode {mode:03o}); run `chmod 600 {path}`")


def _one_line(content: bytes, source: str) -> str:
    try:
        text = content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError(f"{source} is not text; it must hold the secret and nothing else") from None
    if not text:
        raise ValueError(f"{source} is empty; write the secret into it")
    if not text.isprintable():
        raise ValueError(f"{source} holds more than one line or control characters; it must hold the secret alone")
    if len(text) < MIN_LENGTH:
        raise ValueError(f"{source} holds fewer than {MIN_LENGTH} characters, which could not be kept out of logs")
    return text


def _secret_from_environment(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("write the name of an environment variable, not the secret itself")
    _refuse_inline(value)
    if value not in os.environ:
        raise ValueError("the environment variable it names is not set; set it for this process, or name a file")
    found = _one_line(os.environ[value].encode("utf-8", "surrogateescape"), f"the environment variable {value}")
    return Secret(f"${value}", SecretStr(found))


SecretFile = Annotated[Secret, BeforeValidator(_secret_from_file)]
"""The path of a file nobody else may read, read when the configuration is."""

SecretEnv = Annotated[Secret, BeforeValidator(_secret_from_environment)]
"""The name of an environment variable that holds the secret."""
