"""Reads the file and the environment into Settings and reports every fault at once; the only reader of either."""

from __future__ import annotations

import copy
import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Self, get_args
from urllib.parse import unquote

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from tireless.config.lanes import LaneSection, RunnerSection, WorkspacesSection, lane_faults, lease_faults
from tireless.config.settings import (
    AskingSection,
    DatabaseSection,
    Faults,
    ForgeSection,
    InstallationSection,
    LabelsSection,
    LimitsSection,
    MirrorSection,
    Name,
    PollSection,
    RetentionSection,
    SweepSection,
    WebSection,
)
from tireless.config.values import BASE
from tireless.domain.routing import Lane
from tireless.errors import ConfigError

ENV_PREFIX = "TIRELESS_"
ENV_FILE = "TIRELESS_CONFIG"
DEFAULT_FILE = Path("/etc/tireless/config.toml")

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL")
"""Names of variables whose values are kept out of everything; a LANG or a PATH in its place would blank out words."""

_RULES_DEEP = 4
"""Faults of keys, of sections, over sections, and one to be sure."""

_FROM_FILE: ContextVar[dict[str, object] | None] = ContextVar("_FROM_FILE", default=None)


class Settings(BaseSettings):
    """The whole configuration: the file's values, those of TIRELESS_SECTION__KEY over them."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    database: DatabaseSection = Field(default_factory=DatabaseSection)
    labels: LabelsSection = Field(default_factory=LabelsSection)
    asking: AskingSection = Field(default_factory=AskingSection)
    forges: dict[Name, ForgeSection] = Field(default_factory=dict)
    lanes: dict[Name, LaneSection] = Field(default_factory=dict)
    runner: RunnerSection = Field(default_factory=RunnerSection)
    workspaces: WorkspacesSection = Field(default_factory=WorkspacesSection)
    web: WebSection = Field(default_factory=WebSection)
    poll: PollSection = Field(default_factory=PollSection)
    mirror: MirrorSection = Field(default_factory=MirrorSection)
    sweep: SweepSection = Field(default_factory=SweepSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    retention: RetentionSection = Field(default_factory=RetentionSection)
    installation: InstallationSection = Field(default_factory=InstallationSection)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over file, nothing else: no .env of whatever directory the command was typed in."""
        del dotenv_settings, file_secret_settings
        file = InitSettingsSource(settings_cls, init_kwargs=_FROM_FILE.get() or {})
        return init_settings, env_settings, file

    @model_validator(mode="after")
    def _lanes(self) -> Self:
        faults = [f"lanes: {each}" for each in lane_faults(self.lanes)]
        if faults := faults + lease_faults(self.lanes, self.runner):
            raise Faults(faults)
        return self

    @property
    def lane_values(self) -> tuple[Lane, ...]:
        """The lanes in the file's order, as the rest of the house takes them."""
        return tuple(section.lane(name) for name, section in self.lanes.items())

    def with_runner(self, changes: Mapping[str, object]) -> Self:
        """The same with other values under [runner], checked like those of the file. ConfigError."""
        try:
            runner = RunnerSection.model_validate({**dict(self.runner), **changes})
            changed = self.model_copy(update={"runner": runner})
        except ValidationError as error:
            raise ConfigError("\n".join(f"runner.{line}" for line in _problems(error))) from None
        return changed

    @property
    def installation_name(self) -> str:
        """What the bot's markers carry: the configured name, else the label prefix."""
        return self.installation.name or self.labels.prefix.rstrip("/")

    @property
    def runner_root(self) -> Path:
        """Where runners keep trees, caches and run directories."""
        return self.runner.root or self.installation.state_dir / "work"

    def secrets(self) -> tuple[str, ...]:
        """Every secret this process was given, for its redactor: tokens, the database's password, agents' keys."""
        found = [
            secret for forge in self.forges.values() for secret in (forge.token, forge.webhook_secret, forge.git_token)
        ]
        found.append(password_of(self.database.address or ""))
        # What a lane hands on to its agent comes back in the agent's output sooner or later.
        names = {name for lane in self.lanes.values() for name in lane.env if _SECRET_NAME.search(name)}
        found += [os.environ.get(name) for name in names]
        return tuple(sorted({secret for secret in found if secret}))


# ------------------------------------------------------------------------------------------------ reading


def config_path(given: Path | None) -> Path | None:
    """The file to read: the one named, else $TIRELESS_CONFIG, else /etc/tireless/config.toml if it is there."""
    if given is not None:
        return given
    if named := os.environ.get(ENV_FILE):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def load(given: Path | None = None) -> Settings:
    """The configuration. ConfigError lists every fault of file and environment, each with the key it is about."""
    path = config_path(given)
    data = _parse(path) if path is not None else {}
    base = BASE.set(path.absolute().parent if path is not None else None)
    file = _FROM_FILE.set(data)
    try:
        settings = Settings()
        problems = list(_unknown_environment())
    except ValidationError as error:
        problems = [*_problems(error), *_beside(error, data), *_unknown_environment()]
    except SettingsError as error:
        problems = [f"the environment: {error}; lists and tables are written there as JSON", *_unknown_environment()]
    finally:
        BASE.reset(base)
        _FROM_FILE.reset(file)
    if problems := [*problems, *_shared_password(data, path)]:
        raise ConfigError(report(problems, path))
    return settings


def _beside(error: ValidationError, data: dict[str, object]) -> Iterator[str]:
    """What is wrong beside the faults of single keys. Rules over several keys are not tried where one of them is wrong.

    They are tried without the wrong ones, and nothing is said that speaks of one of those; the rules of a section
    first, then, without what they refuse, those over sections.
    """
    told, gone, without = set(_problems(error)), set[str](), copy.deepcopy(data)
    for _ in range(_RULES_DEEP):
        gone |= {key for fault in error.errors(include_url=False) for key in _take_out(without, fault)}
        file = _FROM_FILE.set(without)
        try:
            Settings()
        except ValidationError as found:
            error = found
        else:
            return
        finally:
            _FROM_FILE.reset(file)
        speaks_of_one = re.compile(rf"\b({'|'.join(map(re.escape, sorted(gone))) or '(?!)'})\b")
        new = [line for line in _problems(error) if line not in told and not speaks_of_one.search(line)]
        told.update(new)
        yield from new


def _take_out(data: dict[str, object], fault: ErrorDetails) -> list[str]:
    """Take what a fault is about out of `data`: the value of a key, or of those keys of a section that it names."""
    place = data
    for part in fault["loc"]:
        value = place.get(str(part))
        if not isinstance(value, dict):
            found = [str(part)] if str(part) in place else []
            break
        place = value
    else:
        text = _explain(fault)
        found = [key for key in place if place is not data and re.search(rf"\b{re.escape(key)}\b", text)]
    for key in found:
        del place[key]
        if key == "url":  # without one no other rule of its section would be tried
            place[key] = "http://localhost"
    return found


def report(problems: Sequence[str], path: Path | None) -> str:
    """The message of a ConfigError: where, how many, then a line for each."""
    where = str(path) if path is not None else "the environment (no configuration file was named)"
    count = "1 fault" if len(problems) == 1 else f"{len(problems)} faults"
    return "\n".join([f"{where}: {count}", *(f"  - {line}" for line in problems)])


def _parse(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist; `tireless generate-config > {path}` writes one to start from"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as such") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}; see https://toml.io, or `tireless generate-config`") from None


def _shared_password(data: dict[str, object], path: Path | None) -> Iterator[str]:
    """A database password inside a file that others may read is as open as the file."""
    database = data.get("database")
    inline = database.get("url") if isinstance(database, dict) else None
    if path is None or not isinstance(inline, str) or password_of(inline) is None:
        return
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        yield (
            f"database.url: it holds a password, and others can read or change {path} (mode {mode:03o}); "
            f"run `chmod 600 {path}`, or put the address into a file of its own and name it as url_file"
        )


def password_of(address: str) -> str | None:
    """The password in a connection string or URL, as it was before it was written there; None without one."""
    rest = address.partition("://")[2]
    user = rest.partition("/")[0].rpartition("@")[0]
    if ":" in user:
        return unquote(user.partition(":")[2])
    found = re.search(r"\bpassword\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)", address)
    return unquote(found[1].strip("'")) if found else None


def _unknown_environment() -> Iterator[str]:
    """TIRELESS_X__Y of a section that does not exist; other TIRELESS_ names belong to agents and are left alone.

    An empty one counts as not set, here as where it would set a key.
    """
    for name in sorted(os.environ):
        if name.startswith(ENV_PREFIX) and "__" in name and os.environ[name]:
            section = name.removeprefix(ENV_PREFIX).partition("__")[0].lower()
            if section not in Settings.model_fields:
                yield f"the environment variable {name} sets nothing: {_nearest(section, list(Settings.model_fields))}"


# ------------------------------------------------------------------------------------------------ the report

_NEVER_INLINE = {"token": "token_file", "webhook_secret": "webhook_secret_file", "git_token": "git_token_file"}


def _problems(error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        for line in _explain(fault).splitlines():
            yield f"{where}: {line}" if where else line


def _explain(fault: ErrorDetails) -> str:
    match fault["type"]:
        case "extra_forbidden":
            return _unknown_key(fault["loc"])
        case "missing":
            return "it is missing"
        case "value_error":
            return str(fault["ctx"]["error"])
        case "string_pattern_mismatch":
            return "write letters, digits, and . _ - after the first, not too many"
        case _:
            said = fault["msg"]
            return said[0].lower() + said[1:]


def _unknown_key(loc: tuple[int | str, ...]) -> str:
    key = str(loc[-1])
    if key in _NEVER_INLINE:
        return (
            "a secret is never written into the configuration, which is copied, shown and kept in git; write it "
            f"into a file that only this user can read (`chmod 600`) and name that file as {_NEVER_INLINE[key]}"
        )
    return f"there is no such key: {_nearest(key, list(_fields_at(loc[:-1])))}"


def _nearest(word: str, known: Sequence[str]) -> str:
    if close := difflib.get_close_matches(word.lower(), known, n=1):
        return f"did you mean {close[0]}?"
    return f"known here are {', '.join(known)}"


def _fields_at(loc: tuple[int | str, ...]) -> Sequence[str]:
    """The keys that may stand at this place of the file."""
    model: type[BaseModel] = Settings
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            continue  # the NAME of [forges.NAME]: the model is known from the part before
        found = field.annotation
        for candidate in (found, *get_args(found)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return tuple(model.model_fields)
