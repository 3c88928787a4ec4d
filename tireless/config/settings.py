"""What can be configured: a class per section of the file, its defaults and rules (runners and lanes: lanes.py)."""

from __future__ import annotations

import os
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from tireless.config.values import ConfigPath, Duration, DurationOrZero, SecretEnv, SecretFile
from tireless.domain.labels import LabelScheme, Role, meaning
from tireless.domain.people import ADMINS, ALLOW_LIST, CODE_WRITERS, WRITERS
from tireless.domain.routing import MAX_RUNNING, MAX_RUNS_PER_DAY

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_TEAM = re.compile(r"team:[A-Za-z0-9._-]+/[^/\s]+")
_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


class Faults(ValueError):
    """Several faults found by one rule; the report prints a line for each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("write a name of small letters, digits, - and _, at most 40 of them")
    return value


Name = Annotated[str, AfterValidator(_name)]
"""What a forge or a lane may be called: the database demands it of lanes, web addresses of forges."""


class Section(BaseModel):
    """A table of the file. Unknown keys are faults; values are never quoted back, they could be secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, arbitrary_types_allowed=True)


# ------------------------------------------------------------------------------------------------ [database]


class DatabaseSection(Section):
    """Where the rows are. Neither key: no database of one's own."""

    url: SecretStr | None = None
    url_file: SecretFile | None = None
    connections: Annotated[int, Field(ge=4, le=500)] = 10

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.url is not None and self.url_file is not None:
            raise ValueError("url and url_file are both set; keep one")
        return self

    @property
    def address(self) -> str | None:
        """The connection string, with its password; None when none is configured."""
        if self.url_file is not None:
            return self.url_file.reveal()
        return self.url.get_secret_value() if self.url is not None else None


# ------------------------------------------------------------------------------------------------ [labels] [asking]


def _prefix(value: str) -> str:
    if not re.fullmatch(r"[^\s,/][^\n,]{0,38}/", value) or "//" in value:
        # The scope of exclusive labels is the text before the last slash.
        raise ValueError('write a short word that ends in a slash, like "tireless/"')
    return value


def _label(value: str) -> str:
    if not value.strip() or value != value.strip() or len(value) > 50 or not value.isprintable() or "," in value:
        raise ValueError("write a label's name: 1 to 50 printable characters, no comma")
    return value


class LabelsSection(Section):
    """The names of the labels people steer with."""

    prefix: Annotated[str, AfterValidator(_prefix)] = "tireless/"
    opt_in: Annotated[str, AfterValidator(_label)] | None = None
    require_opt_in: bool = True

    @model_validator(mode="after")
    def _opt_in_is_free(self) -> Self:
        other = meaning(self.scheme.opt_in, LabelScheme(prefix=self.prefix, opt_in=""))
        if other is not None and other.role is not Role.UNKNOWN:
            raise ValueError(f"opt_in is {self.scheme.opt_in}, which means something else already; choose another name")
        return self

    @property
    def scheme(self) -> LabelScheme:
        """The value the rest of the house works with; the opt-in is the prefix and `go` unless it is named."""
        opt_in = self.opt_in if self.opt_in is not None else f"{self.prefix}go"
        return LabelScheme(prefix=self.prefix, opt_in=opt_in, require_opt_in=self.require_opt_in)


def _who(value: str) -> str:
    if value not in (WRITERS, CODE_WRITERS, ADMINS, ALLOW_LIST) and not _TEAM.fullmatch(value):
        raise ValueError('write "writers", "code-writers", "admins", "allow-list" or "team:ORGANISATION/TEAM"')
    return value


class AskingSection(Section):
    """Whose labels count."""

    who_may_ask: Annotated[str, AfterValidator(_who)] = "writers"
    allow: tuple[str, ...] = ()
    children_run: bool = False


# ------------------------------------------------------------------------------------------------ [forges.NAME]


def _forge_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError('write the address people open in a browser, like "https://git.example.org"')
    if parts.username or parts.password:
        raise ValueError("the address holds a user or password; put the token into a file and name it as token_file")
    if parts.query or parts.fragment:
        raise ValueError("the address ends before any ? or #")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port of the address is not a number from 1 to 65535") from None
    return value.rstrip("/")


class ForgeSection(Section):
    """One Gitea or Forgejo instance and what is watched there."""

    url: Annotated[str, AfterValidator(_forge_url)]
    kind: Literal["gitea", "forgejo"] = "gitea"
    token_file: SecretFile | None = None
    token_env: SecretEnv | None = None
    repositories: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    webhook_secret_file: SecretFile | None = None
    webhook_secret_env: SecretEnv | None = None
    git_user: str = "tireless"
    git_token_file: SecretFile | None = None
    git_token_env: SecretEnv | None = None
    timeout: Duration = timedelta(seconds=20)
    concurrency: Annotated[int, Field(ge=1, le=100)] = 8
    requests_per_minute: Annotated[int, Field(ge=10)] = 3000
    ca_file: ConfigPath | None = None

    @field_validator("repositories")
    @classmethod
    def _named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        faults = [f'"{name}" is not of the form "owner/name"' for name in value if not _REPOSITORY.fullmatch(name)]
        faults += [f'"{name}" is named twice' for name, n in Counter(map(str.casefold, value)).items() if n > 1]
        if faults:
            raise Faults(faults)
        return value

    @field_validator("owners", "topics")
    @classmethod
    def _words(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        faults = [f'"{name}" is not one word' for name in value if not re.fullmatch(r"[A-Za-z0-9._-]+", name)]
        faults += [f'"{name}" is named twice' for name, n in Counter(map(str.casefold, value)).items() if n > 1]
        if faults:
            raise Faults(faults)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        faults = [
            f"{key}_file and {key}_env are both set; keep one"
            for key in ("token", "webhook_secret", "git_token")
            if getattr(self, f"{key}_file") is not None and getattr(self, f"{key}_env") is not None
        ]
        if self.topics and not self.owners:
            # anybody can give a repository of his own any topic, and make the bot a writer there
            faults.append("topics choose among the repositories of owners: name those as well")
        if faults:
            raise Faults(faults)
        return self

    @property
    def token(self) -> str | None:
        """The API token, None when none is configured (a runner's file needs none)."""
        secret = self.token_file or self.token_env
        return secret.reveal() if secret else None

    @property
    def webhook_secret(self) -> str | None:
        """What webhooks are signed with; None: webhooks of this forge are refused."""
        secret = self.webhook_secret_file or self.webhook_secret_env
        return secret.reveal() if secret else None

    @property
    def git_token(self) -> str | None:
        """What a runner fetches and pushes with: its own, else the API token."""
        secret = self.git_token_file or self.git_token_env
        return secret.reveal() if secret else self.token


# ------------------------------------------------------------------------------------------------ the processes


class WebSection(Section):
    """The page, health, metrics and webhooks; nothing there asks who reads it."""

    enabled: bool = True
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8474
    url: Annotated[str, AfterValidator(_forge_url)] | None = None
    hosts: tuple[str, ...] = ()


class PollSection(Section):
    """How the forge is read."""

    interval: Duration = timedelta(seconds=60)
    full_scan: Duration = timedelta(hours=1)
    overlap: Duration = timedelta(seconds=120)
    by_owner: bool = True


class LimitsSection(Section):
    """What each watched repository may use, unless an operator said otherwise of one; and what one issue may."""

    max_running_per_repository: Annotated[int, Field(ge=1, le=MAX_RUNNING)] | None = None
    max_runs_per_repository_per_day: Annotated[int, Field(ge=1, le=MAX_RUNS_PER_DAY)] | None = None
    max_requests_per_issue_per_hour: Annotated[int, Field(ge=0, le=10_000)] = 6


class MirrorSection(Section):
    """How the forge is told."""

    comment_every: DurationOrZero = timedelta(seconds=30)
    first_comment_after: DurationOrZero = timedelta(seconds=10)


class SweepSection(Section):
    """How often time is let do its work."""

    interval: Duration = timedelta(seconds=10)


def _a_day(value: timedelta) -> timedelta:
    # What counts attempts (runs_today(), too_often()) looks back a day at most; they go with their jobs.
    if value < timedelta(days=1):
        raise ValueError(
            "that is less than a day: the runs of a day could not be counted any more "
            '(limits.max_runs_per_repository_per_day); write "1d" or more'
        )
    return value


Kept = Annotated[Duration, AfterValidator(_a_day)]
"""How long ended jobs are kept, with their attempts: no shorter than anything that counts those."""


class RetentionSection(Section):
    """How long ended jobs are kept, and where one kind of end is to be kept longer or shorter."""

    finished: Kept = timedelta(days=90)
    delivered: Kept | None = None
    failed: Kept | None = None
    cancelled: Kept | None = None


def _state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/tireless")  # root's home is closed to the user a private PostgreSQL runs as
    given = os.environ.get("XDG_STATE_HOME", "")
    # The specification: a relative path here is invalid and ignored.
    base = Path(given) if given.startswith("/") else Path("~/.local/state").expanduser()
    return base / "tireless"


class InstallationSection(Section):
    """This installation among others on the same forge and host."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")] | None = None
    state_dir: ConfigPath = Field(default_factory=_state_dir)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "text"] = "auto"
