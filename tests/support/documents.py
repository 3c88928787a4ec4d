"""What the documents show: commands, links, tables, TOML; read here so that tests can hold them against the code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """One command line in a document."""

    document: str
    words: tuple[str, ...]


def documents() -> list[Path]:
    """README and docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    """Every code block of a language, with its document; the indentation of a list is taken off."""
    for path in documents():
        for indent, found, text in _BLOCK.findall(path.read_text("utf-8")):
            if found == language:
                yield path, "\n".join(line.removeprefix(indent) for line in text.splitlines())


def tireless_commands() -> list[Shown]:
    """Every `$ tireless …` of a console block, without the word tireless."""
    return [
        Shown(path.name, tuple(shlex.split(re.split(r" > |\s+# ", line[2:])[0])[1:]))
        for path, text in blocks("console")
        for line in text.splitlines()
        if line.startswith("$ tireless ")
    ]


def table(path: Path, first_head: str) -> list[list[str]]:
    """The cells of the table whose first heading this is, without its head."""
    lines = path.read_text("utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows
