"""The demo's configuration file: the same kind a person writes, with everything in a hurry."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tireless.demo import agent
from tireless.demo.story import STEADY, SWIFT

FORGE = "demo"

_TEMPLATE = """\
[database]
url = {database}

[forges.{forge}]
url = {url}
token_file = "token"
repositories = [{repository}]

[lanes.{steady}]
kinds = ["discover", "plan"]
default = true
backoff = "100ms"
backoff_max = "400ms"
command = {command}

[lanes.{swift}]
kinds = ["implement"]
backoff = "100ms"
backoff_max = "400ms"
command = {command}

[runner]
root = {root}
idle_poll = "1s"

[web]
port = {port}

[poll]
interval = "1s"

[mirror]
comment_every = "2s"
first_comment_after = "2s"

[sweep]
interval = "1s"

[installation]
state_dir = {state}
"""


def write(directory: Path, *, database: str, url: str, token: str, repository: str, port: int = 0) -> Path:
    """Write the file and the token beside it; the path of the file. Both are closed to others."""
    text = _TEMPLATE.format(
        forge=FORGE,
        steady=STEADY,
        swift=SWIFT,
        database=json.dumps(database),
        url=json.dumps(url),
        repository=json.dumps(repository),
        command=json.dumps([sys.executable, str(Path(agent.__file__))]),
        root=json.dumps(str(directory / "work")),
        port=port,
        state=json.dumps(str(directory)),
    )
    _write_closed(directory / "token", token + "\n")
    path = directory / "tireless.toml"
    _write_closed(path, text)
    return path


def _write_closed(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
