"""A lane whose agent runs as another user: what he could not run is told beforehand, with what to do."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.support.cli import ROOT, Said, closed, environment, inside
from tests.support.place import config
from tireless.agent.control import RunAs
from tireless.agent.reach import guard_fault

NO_FORGE = "http://127.0.0.1:1"
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin") or ""
AS_ROOT = pytest.mark.skipif(os.getuid() != 0 or not SYSTEM_PYTHON, reason="needs root and a Python others can reach")


def lane(home: Path, dsn: str, user: str) -> Path:
    """A configuration whose one lane runs its agent as `user`."""
    path = config(home, NO_FORGE, token="a-token", dsn=dsn)
    text = path.read_text().replace('token_file = "token"', 'token_file = "token"\ngit_token_file = "token"')
    return closed(path, text.replace('command = ["true"]', f'command = ["true"]\nrun_as = "{user}"'))


async def closed_python(home: Path, *words: str) -> Said:
    """One command by a python of ours below a directory that is closed to all others."""
    inner = home / "closed"
    inner.mkdir(mode=0o700, exist_ok=True)
    python = inner / "python"
    if not python.is_symlink():
        python.symlink_to(Path(sys.executable).resolve())
    env = environment(home, {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"})
    done = await asyncio.to_thread(
        subprocess.run,
        [str(python), "-m", "tireless", *words],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120.0,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@AS_ROOT
async def test_a_python_that_the_agents_user_may_not_run_is_told_beforehand(tmp_path: Path, dsn: str) -> None:
    """run ends with 3 before anything is claimed, and doctor finds the fault: each says where to install."""
    path = lane(tmp_path, dsn, "nobody")
    for code, words in ((3, ("run", "--lane", "claude")), (6, ("doctor",))):
        said = await closed_python(tmp_path, *words, "--config", str(path))
        text = said.out + said.err
        assert said.code == code, text
        assert f"nobody may not run {tmp_path}/closed/python" in text
        assert "closed to him: /" in text
        assert "/opt/tireless" in text


@AS_ROOT
def test_what_the_agents_user_may_run_is_no_fault() -> None:
    """It is tried as that user: a python that is there and does not start for him is told by what it says."""
    assert guard_fault(RunAs(uid=65534, gid=65534, python=SYSTEM_PYTHON), "nobody") is None
    with tempfile.TemporaryDirectory() as name:
        broken = Path(name) / "python"
        broken.parent.chmod(0o755)
        broken.write_text("#!/bin/sh\necho no such library >&2; exit 4\n")
        broken.chmod(0o755)
        said = guard_fault(RunAs(uid=65534, gid=65534, python=str(broken)), "nobody")
    assert said is not None
    assert f"{broken}, by which the guard of his agents is started: no such library; install" in said


async def test_doctor_says_what_it_cannot_try(tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root, and of a user who is not on this host, it is a remark: the runner may be elsewhere."""
    path = lane(tmp_path, dsn, "no-such-user")
    user = "nobody" if getpass.getuser() != "nobody" else "root"
    closed(path, path.read_text() + f'[lanes.other]\ncommand = ["true"]\nrun_as = "{user}"\n')
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    said = await inside("doctor", "--json", "--config", path, home=tmp_path)
    found = {each["subject"]: each for each in said.data["findings"] if str(each["code"]).startswith("run_as")}
    assert {name: (each["code"], each["level"]) for name, each in found.items()} == {
        "lane claude": ("run_as_unknown", "remark"),
        "lane other": ("run_as_untried", "remark"),
    }
    assert "there is no user no-such-user on this host" in found["lane claude"]["text"]
    assert "run doctor as root" in found["lane other"]["text"]
