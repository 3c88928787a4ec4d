"""The protocol and its implementation agree: same methods, same signatures, few enough to write another one."""

from __future__ import annotations

import inspect

from tireless.forge.base import Forge, HookForge
from tireless.forge.gitea import GiteaForge


def _methods(of: type) -> dict[str, inspect.Signature]:
    named = inspect.getmembers(of, inspect.iscoroutinefunction)
    return {name: inspect.signature(each) for name, each in named if not name.startswith("_")}


async def test_gitea_implements_the_protocol() -> None:
    """Every method with the very same signature; more only for closing. mypy checks the assignment too."""
    forge: Forge = GiteaForge(name="main", url="http://127.0.0.1:1/", token=None)
    assert (forge.name, forge.url) == ("main", "http://127.0.0.1:1")
    administers: HookForge = GiteaForge(name="main", url="http://127.0.0.1:1/", token=None)
    wanted, found = _methods(Forge) | _methods(HookForge), _methods(GiteaForge)
    assert {name: found.get(name) for name in wanted} == wanted
    assert set(found) - set(wanted) == {"aclose"}
    assert isinstance(forge, GiteaForge)
    assert isinstance(administers, GiteaForge)
    for each in (forge, administers):
        await each.aclose()


def test_the_protocol_stays_small() -> None:
    """Twenty for one repository, three that widen it, one for `doctor`: what a third forge would have to implement."""
    assert len(_methods(Forge)) <= 24
