"""What a process is handed of whoever started it; light, so that a command that starts nothing loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tireless.redact import Redactor


@dataclass(frozen=True, slots=True)
class Told:
    """Secrets to keep out of everything, and how to say a sentence to the person at the terminal."""

    redactor: Redactor
    say: Callable[[str], None]
