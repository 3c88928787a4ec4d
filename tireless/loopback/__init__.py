"""A stateful Gitea-compatible forge on a loopback port, oddities included, for the demo and the tests only."""

from tireless.loopback.faults import FaultPlan
from tireless.loopback.server import LoopbackForge
from tireless.loopback.state import Rules, forgejo_rules

__all__ = ["FaultPlan", "LoopbackForge", "Rules", "forgejo_rules"]
