"""The composition root: pools, forges, services, schedule and signals; the only room that knows all others."""

from tireless.app.forges import build_forge
from tireless.app.processes import Told, poll_once, run, serve, sweep_once, up

__all__ = ["Told", "build_forge", "poll_once", "run", "serve", "sweep_once", "up"]
