"""`/metrics` for Prometheus: counts and ages from the rows, pulses of this process; a registry of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tireless.errors import StoreError
from tireless.store import inspect
from tireless.store.db import Pool
from tireless.web.health import Pulses

_STATES = ("pending", "waiting", "claimed", "publishing")


class Metrics:
    """The gauges of one site; read anew from the database at every scrape."""

    def __init__(self, pool: Pool, pulses: Pulses) -> None:
        self._pool = pool
        self._pulses = pulses
        self._registry = CollectorRegistry()
        self._lane_jobs = self._gauge("tireless_lane_jobs", "Live jobs by lane and state.", "lane", "state")
        self._lane_held = self._gauge("tireless_lane_held", "1 while the lane has a hold for every host.", "lane")
        self._counts = self._gauge("tireless_count", "Counts over everything, by what is counted.", "what")
        self._ages = self._gauge("tireless_age_seconds", "Age of the oldest, by what it is; 0: there is none.", "what")
        self._snapshot = self._gauge(
            "tireless_oldest_snapshot_seconds",
            "Age of the oldest snapshot that keeps dead rows.",
            "kind",
            "name",
        )
        self._snapshot_age = self._gauge(
            "tireless_oldest_snapshot_transactions", "Transactions begun since any snapshot still held.", "kind", "name"
        )
        self._used = self._gauge(
            "tireless_usage_today", "What agents said they used since 0:00 UTC, and their runs.", "lane", "what"
        )
        self._loop_ok = self._gauge("tireless_loop_ok", "1 while the loop's last success is recent.", "loop")
        self._loop_age = self._gauge("tireless_loop_age_seconds", "Seconds since the loop's last success.", "loop")
        self._loop_failures = self._gauge("tireless_loop_failures", "Failed ticks in a row.", "loop")
        lanes = (self._lane_jobs, self._lane_held, self._used)
        self._of_rows = (*lanes, self._counts, self._ages, self._snapshot, self._snapshot_age)
        self._database = self._gauge("tireless_database_up", "1 when the database answered this scrape.")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)

    async def answer(self, _request: Request) -> Response:
        """One scrape. A database that does not answer is a value, not an error: the loops' pulses are told anyway."""
        for pulse in self._pulses():
            self._loop_ok.labels(pulse.name).set(pulse.ok)
            self._loop_age.labels(pulse.name).set(pulse.age_s)
            self._loop_failures.labels(pulse.name).set(pulse.failures)
        for gauge in self._of_rows:
            gauge.clear()  # what is gone from the rows must be gone here
        try:
            await self._read()
            self._database.set(1)
        except StoreError:
            self._database.set(0)
        return PlainTextResponse(generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _read(self) -> None:
        async with self._pool.connection() as conn:
            lanes = await inspect.lane_rows(conn)
            counts = asdict(await inspect.stats(conn))
            snapshots = await inspect.held_snapshots(conn)
            used = await inspect.usage_sums(conn, days=1)
        if oldest := max(snapshots, key=lambda held: held.age_s or 0.0, default=None):
            self._snapshot.labels(oldest.kind, oldest.name).set(oldest.age_s or 0.0)
        if oldest := max(snapshots, key=lambda held: held.transactions, default=None):
            self._snapshot_age.labels(oldest.kind, oldest.name).set(oldest.transactions)
        for lane in lanes:
            for state in _STATES:
                self._lane_jobs.labels(lane.name, state).set(getattr(lane, state))
            self._lane_held.labels(lane.name).set(any(not hold.host for hold in lane.holds))
        for lane_name, cost in used.by_lane.items():
            for what, value in asdict(cost).items():
                self._used.labels(lane_name, what).set(value)
        for what, value in counts.items():
            if what.endswith("_s"):
                self._ages.labels(what.removesuffix("_s")).set(value or 0)
            else:
                self._counts.labels(what).set(value)


def metrics(pool: Pool, pulses: Pulses) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint."""
    return Metrics(pool, pulses).answer
