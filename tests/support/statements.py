"""The SQL constants of tireless.store, and how a driver's statement looks to the server."""

from __future__ import annotations

import importlib
import pkgutil
import re

import tireless.store

_PARAMETER = re.compile(r"%\((\w+)\)s")
_STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|LOCK|SET|CREATE|ALTER|DROP|LISTEN|NOTIFY)\b")


def numbered(statement: str) -> tuple[str, list[str]]:
    """The statement with `$1`, `$2`, … for `%(name)s`, and the names in that order."""
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _PARAMETER.sub(place, statement).replace("%%", "%"), names


def constants() -> dict[str, str]:
    """Every SQL constant of every module of tireless.store, by `module.NAME`."""
    found = {}
    for info in pkgutil.iter_modules(tireless.store.__path__):
        module = importlib.import_module(f"tireless.store.{info.name}")
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, str) and _STATEMENT.match(value):
                found[f"{info.name}.{name}"] = value
    return found
