"""The users that agents run as: who they are on this host, and whether an agent can be started as one of them."""

from __future__ import annotations

import os
import pwd

from tireless.agent.control import RunAs
from tireless.agent.reach import guard_fault
from tireless.errors import ConfigError


def agents_user(name: str) -> tuple[RunAs | None, str | None]:
    """The user an agent runs as, and his home; None for ourselves. ConfigError where nothing could run as him."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(
            f"there is no user {name} on this host: create him (`useradd --system --create-home {name}`)"
        ) from None
    if found.pw_uid == os.geteuid():
        return None, None
    if os.geteuid() != 0:
        raise ConfigError(f"only root can run an agent as {name}: start this runner as root, or take run_as out")
    who = RunAs(uid=found.pw_uid, gid=found.pw_gid, groups=tuple(os.getgrouplist(name, found.pw_gid)))
    if (fault := guard_fault(who, name)) is not None:
        raise ConfigError(fault)
    return who, found.pw_dir
