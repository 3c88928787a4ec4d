"""A temporary directory that other users can pass through: pytest's own are closed to them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def opened() -> Iterator[Path]:
    """A directory below the temporary directory, readable by everybody, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="tireless-open-", ignore_cleanup_errors=True) as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
