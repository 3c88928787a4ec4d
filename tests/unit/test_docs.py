"""The documents against the code: paths, symbols, commands, options, exit codes, keys, links, units."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

from tests.support.cli import closed
from tests.support.documents import ROOT, Shown, blocks, documents, table, tireless_commands
from tireless import errors
from tireless.cli import tireless
from tireless.config import Settings, load

README, CLI = ROOT / "README.md", ROOT / "docs" / "cli.md"
COMMON = {"--config", "--debug", "--json", "--help"}


def leaves(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by the words that lead to it."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


LEAVES = dict(leaves(tireless))


@pytest.mark.parametrize("row", table(README, "a newcomer asks"), ids=lambda row: row[0])
def test_every_path_and_symbol_of_the_readme_is_there(row: list[str]) -> None:
    """Found in thirty seconds: each file named exists, and each symbol named stands in one of them."""
    quoted = re.findall(r"`([^`]+)`", row[1])
    paths = [word for word in quoted if ("/" in word or word.endswith(".toml")) and "NAME" not in word]
    files = [path for word in paths for path in (ROOT / "tireless" / word, ROOT / word) if path.is_file()]
    assert len(files) == len(paths), f"not all of {paths} are there"
    assert files
    text = "\n".join(path.read_text("utf-8") for path in files)
    for symbol in set(quoted) - set(paths):
        if symbol.isidentifier() and symbol not in ("match", "assert_never"):
            assert re.search(rf"^(async def|def|class)? ?{symbol}\b", text, re.MULTILINE), symbol


def test_every_word_of_the_glossary_stands_once() -> None:
    """One word per thing: no entry is repeated, and the words the code's rooms are named for are all explained."""
    words = [row[0] for row in table(README, "word")]
    assert len(words) == len(set(words))
    needed = {"forge", "issue", "request", "verdict", "job", "kind", "lane", "claim", "lease", "attempt", "outcome"}
    assert needed | {"runner", "agent", "settle", "publisher", "mirror", "sweeper", "look", "hold"} <= set(words)


def test_every_command_is_documented_and_no_other() -> None:
    """docs/cli.md lists exactly the commands there are."""
    documented = [re.sub(r" (?:--lane )?[A-Z].*", "", row[0].strip("`")) for row in table(CLI, "command")]
    assert sorted(documented) == sorted(LEAVES)


@pytest.mark.parametrize("row", table(CLI, "command"), ids=lambda row: row[0])
def test_every_option_is_documented_and_no_other(row: list[str]) -> None:
    """Each row names all options of its command, and only those."""
    name = re.sub(r" (?:--lane )?[A-Z].*", "", row[0].strip("`"))
    options = {
        next(opt for opt in param.opts if opt.startswith("--"))
        for param in LEAVES[name].params
        if isinstance(param, click.Option)
    }
    documented = set(re.findall(r"--[a-z-]+", " ".join(row)))
    assert documented == {opt for opt in options - COMMON if opt != "--once" or name == "run"}


def test_the_exit_codes_are_those_of_the_error_tree() -> None:
    """The table of docs/cli.md covers every code an error of ours can end with, and doctor's."""
    codes = {int(row[0]) for row in table(CLI, "code")}
    tree = [errors.TirelessError]
    for error in tree:
        tree += error.__subclasses__()
    assert {error.exit_code for error in tree} | {0, 6} == codes
    assert all(str(code) in (tireless.help or "") for code in codes)


@pytest.mark.parametrize("shown", tireless_commands(), ids=lambda shown: " ".join(shown.words))
def test_every_command_shown_is_one(shown: Shown) -> None:
    """What a document tells people to type is understood: command, options and arguments."""
    parse(list(shown.words))


def parse(words: list[str]) -> None:
    """Let click read a command line down to its last word, without running it."""
    group: click.Group = tireless
    ctx = click.Context(group, info_name="tireless")
    while True:
        command = group.get_command(ctx, words[0])
        assert command is not None, words
        words = words[1:]
        if not isinstance(command, click.Group):
            command.make_context(command.name, list(words), parent=ctx)
            return
        group = command


def test_links_lead_somewhere() -> None:
    """Relative links of the documents name files of the checkout."""
    for path in documents():
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_toml_in_the_documents_is_configuration(tmp_path: Path) -> None:
    """Every TOML block loads, given the secret files it names."""
    found = list(blocks("toml"))
    assert found
    for path, text in found:
        for name in re.findall(r'_file = "([a-z-]+)"', text):
            closed(tmp_path / name, "postgresql://t@localhost/t")
        try:
            load(closed(tmp_path / "config.toml", text))
        except errors.ConfigError as error:
            pytest.fail(f"{path.name}: {error}")


def test_variables_in_the_documents_set_something() -> None:
    """TIRELESS_SECTION__KEY in documents, the example and the units names a key there is."""
    texts = [*documents(), ROOT / "config.example.toml", *(ROOT / "deploy").glob("*.service")]
    for path in texts:
        for name in re.findall(r"\bTIRELESS_[A-Z0-9]+(?:__[A-Z0-9_]+?)+\b(?!__)", path.read_text("utf-8")):
            section, *rest = name.removeprefix("TIRELESS_").lower().split("__")
            if (section, rest) == ("section", ["key"]):
                continue
            annotation = Settings.model_fields[section].annotation
            model = next(each for each in (annotation, *get_args(annotation)) if hasattr(each, "model_fields"))
            assert rest[-1] in model.model_fields, f"{path.name}: {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("*.service")), ids=lambda path: path.name)
def test_units_start_commands_there_are(path: Path) -> None:
    """Each Exec line of a systemd unit is a command line that tireless understands."""
    lines = re.findall(r"^Exec\w+=(.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert lines
    for line in lines:
        program, *words = line.replace("%i", "claude").split()
        assert os.path.basename(program) == "tireless"
        parse(words)


def test_readme_stays_short() -> None:
    """What does not fit on a few screens belongs into docs/."""
    assert len(README.read_text("utf-8").splitlines()) < 150
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["readme"] == "README.md"
