"""config.example.toml is the reference: every key of Settings is in it, explained, with the default it really has."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tireless.config import Settings, load
from tireless.config.example import example_text

ROOT = Path(__file__).resolve().parents[2]
_SETTING = re.compile(r"#([a-z_]+ = .*)")

# Nothing to compare: they have no default, or one that depends on the machine.
NO_DEFAULT = {
    "database.url",
    "database.url_file",
    "forges.*.url",
    "forges.*.token_file",
    "forges.*.token_env",
    "forges.*.repositories",
    "forges.*.webhook_secret_file",
    "forges.*.webhook_secret_env",
    "forges.*.git_token_file",
    "forges.*.git_token_env",
    "web.url",
    "forges.*.ca_file",
    "lanes.*.kinds",
    "lanes.*.children_of_plan",
    "lanes.*.max_running",
    "lanes.*.max_usd",
    "lanes.*.command",
    "lanes.*.run_as",
    "lanes.*.env",
    "lanes.*.after_create",
    "lanes.*.before_run",
    "lanes.*.after_run",
    "lanes.*.before_remove",
    "labels.opt_in",
    "limits.max_running_per_repository",
    "limits.max_runs_per_repository_per_day",
    "retention.delivered",
    "retention.failed",
    "retention.cancelled",
    "runner.name",
    "runner.root",
    "installation.name",
    "installation.state_dir",
}


def switched_on() -> dict[str, object]:
    """The example with every setting that is commented out taken in."""
    return tomllib.loads("\n".join(_SETTING.sub(r"\1", line) for line in example_text().splitlines()))


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every leaf of Settings as section.key, with * for the NAME of a named table."""
    for name, field in model.model_fields.items():
        inner = [
            each
            for each in (field.annotation, *get_args(field.annotation))
            if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        if inner:
            star = "" if inner[0] is field.annotation else "*."
            yield from keys_of(inner[0], f"{prefix}{name}.{star}")
        else:
            yield f"{prefix}{name}", field


def leaves(data: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every leaf of the file in the same spelling."""
    for name, value in data.items():
        if isinstance(value, dict):
            shown = "*" if prefix in ("forges.", "lanes.") else name
            yield from leaves(value, f"{prefix}{shown}.")
        else:
            yield f"{prefix}{name}", value


def test_every_key_stands_in_the_example_and_no_other() -> None:
    """A key added to Settings without a word in the example, or left there after its end, fails here."""
    assert {key for key, _ in leaves(switched_on())} == {key for key, _ in keys_of(Settings)}


def test_every_key_is_used_by_somebody() -> None:
    """What can be set is read where settings are handed out: no key is documented and then forgotten."""
    used: set[str] = set()
    for path in (path for room in ("config", "app", "cli") for path in (ROOT / "tireless" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                    used.add(name)
    assert [key for key, _ in keys_of(Settings) if key.rsplit(".", 1)[-1] not in used] == []


def test_every_key_is_explained() -> None:
    """Each setting has prose above it, directly or above the settings it stands with."""
    lines = example_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"#?[a-z_]+ = ", line):
            above = number - 1
            while re.match(r"#?[a-z_]+ = ", lines[above]):
                above -= 1
            assert lines[above].startswith("# "), f"line {number + 1} ({line}) has no explanation above it"


def test_the_example_shows_the_real_defaults(tmp_path: Path) -> None:
    """Each key that has a default is written with exactly that: the file changes nothing when it is switched on."""
    shown = dict(leaves(switched_on()))
    for key, field in keys_of(Settings):
        default = field.get_default(call_default_factory=True, validated_data={})
        if key in NO_DEFAULT:
            assert default in (None, (), "") or key == "forges.*.url" or key == "installation.state_dir", key
            continue
        section, name = key.rsplit(".", 1)
        head = section.replace("*", "x")
        extra = 'url = "http://x"\n' if section == "forges.*" and name != "url" else ""
        path = tmp_path / "config.toml"
        path.write_text(f"[{head}]\n{extra}{name} = {_toml(shown[key])}\n")
        value: object = load(path)
        for part in head.split("."):
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        assert getattr(value, name) == default, key


def test_the_example_as_it_stands_is_a_configuration(tmp_path: Path) -> None:
    """Written out and given a token it loads: what a newcomer edits is right from the first line."""
    token = tmp_path / "forge-token"
    token.write_text("a-token-for-the-test")
    token.chmod(0o600)
    path = tmp_path / "config.toml"
    path.write_text(example_text().replace('"/etc/tireless/forge-token"', '"forge-token"'))
    settings = load(path)
    assert settings.forges["main"].token == "a-token-for-the-test"
    assert settings.forges["main"].repositories == ("example/project",)
    assert settings.lanes["claude"].command == ("/usr/local/bin/my-agent", "--quiet")


def test_the_example_is_the_file_of_the_checkout() -> None:
    """`generate-config` prints the checkout's file, byte for byte."""
    assert example_text() == (ROOT / "config.example.toml").read_text("utf-8")


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case list():
            return "[" + ", ".join(_toml(each) for each in value) + "]"
        case _:
            return '"' + str(value) + '"'
