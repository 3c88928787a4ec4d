"""Renders one prompt template in a sandbox. As a program (`python -P render.py`) it does so within bounds of its own.

A repository's template is somebody else's: it may loop for ever or ask for all memory there is, and must not do so in
the process that renews leases. Imports nothing of ours: it is started as a file.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATES = Path(__file__).parent / "templates"
PROMPT_MAX = 16 * 1024 * 1024
"""Characters of a rendered prompt."""
MEMORY_MAX = 1024 * 1024 * 1024
CPU_MAX_S = 10
WRONG = 3
"""Exit code: standard error is a sentence about the template."""


class TemplateWrong(Exception):
    """The template cannot be rendered; the message says why, and where if that is known."""


def render_template(source: str | None, name: str, values: Mapping[str, object]) -> str:
    """`source`, or the built-in template `name`; either may include and extend the built-in ones."""
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=False,  # a prompt is no HTML; escaping would falsify what the issue says
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    kept: list[str] = []
    size = 0
    try:
        template = environment.get_template(name) if source is None else environment.from_string(source)
        for piece in template.generate(values):
            kept.append(piece)
            size += len(piece)
            if size > PROMPT_MAX:
                raise TemplateWrong(f"it makes more than {PROMPT_MAX} characters")
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        line = getattr(error, "lineno", None)
        raise TemplateWrong(f"line {line}: {error}" if line else str(error)) from error
    return "".join(kept)


def main() -> int:
    """JSON with source, name and values on standard input; the prompt on standard output."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    try:
        asked = json.load(sys.stdin)
        sys.stdout.write(render_template(asked["source"], asked["name"], asked["values"]))
    except TemplateWrong as wrong:
        sys.stderr.write(str(wrong)[:500])
        return WRONG
    except MemoryError:
        sys.stderr.write("it needs too much memory")
        return WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
