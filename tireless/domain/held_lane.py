"""The words of a lane that is held, for gates.py, and the command that ends a hold, for commands as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def release_command(lane: str, source: str, host: str = "") -> str:
    """What an operator types to end one hold of a lane; of a setup hold without host: those of every host."""
    words = ["tireless lanes release", lane]
    if source != "operator":
        words.append(f"--source {source}")
    if host:
        words.append(f"--host {host}")
    return " ".join(words)


def held(said: Mapping[str, object]) -> tuple[str, str]:
    """What `explain` and the comment say of it: the hold, or those of all hosts, and how it ends."""
    hosts = said.get("hosts")
    if isinstance(hosts, Sequence):
        return _everywhere(str(said.get("lane", "LANE")), hosts)
    by = f" by `{said['by']}`" if said.get("by") else ""
    why = f": {said['reason']}" if said.get("reason") else ""
    until = f" It ends at {said['until']}." if said.get("until") else ""
    lane, source = str(said.get("lane", "LANE")), str(said.get("source", "operator"))
    command = release_command(lane, source)
    step = f"`{command}`."
    if source != "operator":
        step = f"once what it is held for is over, `{command}`; else it ends by itself, and one job goes first."
    return f"The lane `{lane}` is held ({source}){by}{why}.{until}", step


def _everywhere(lane: str, hosts: Sequence[Mapping[str, object]]) -> tuple[str, str]:
    """Every host that has a runner of the lane has a setup hold of its own."""
    each = [
        f"on `{one['host']}`: {str(one['reason']).rstrip('.')}" + (f" (until {one['until']})" if one["until"] else "")
        for one in hosts
    ]
    command = release_command(lane, "setup", str(hosts[0]["host"]) if len(hosts) == 1 else "")
    return (
        f"The lane `{lane}` cannot be started where its runners are, {'; '.join(each)}.",
        f"correct it there, then `{command}`; else it is tried again when the hold ends.",
    )
