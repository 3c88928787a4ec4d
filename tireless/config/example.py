"""The text of config.example.toml, which is the reference of all keys and what `generate-config` prints."""

from __future__ import annotations

from pathlib import Path

from tireless.errors import ConfigError


def example_text() -> str:
    """The checkout's file; where there is no checkout, the copy in the installed package."""
    package = Path(__file__).resolve().parents[1]
    for path in (package.parent / "config.example.toml", package / "config.example.toml"):
        if path.is_file():
            return path.read_text("utf-8")
    raise ConfigError(f"config.example.toml is not beside {package}: the installation is incomplete, install it again")
