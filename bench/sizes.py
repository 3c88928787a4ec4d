"""How much is measured: the whole, a quick look of less than three minutes, and the least that still has a shape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts for one run. `history` is the number of finished jobs of its second half, 0 leaves that half out."""

    rounds: int
    history_rounds: int
    history: int
    pairs: int
    """Jobs for pgbench, at each number of clients."""
    jobs: int
    """Jobs for 16 workers; fewer workers, who are slower, get fewer."""
    expired: int
    renewals: int
    enqueued: int
    latencies: int
    held: int
    """Claims beside one held snapshot."""
    patience_s: float
    """No round but the first of each half begins after this much of it; half of it for the empty tables."""

    def jobs_for(self, workers: int) -> int:
        """Jobs that so many workers are given."""
        return max(self.jobs * {1: 2, 4: 3}.get(workers, 4) // 4, workers)

    def pages(self, page: int) -> int:
        """How many pages of so many jobs are enqueued; pages, being faster, make more jobs."""
        return max(self.enqueued * (5 if page > 1 else 1) // page, 1)


FULL = Sizes(
    rounds=5,
    history_rounds=5,
    history=1_000_000,
    pairs=8000,
    jobs=4000,
    expired=10_000,
    renewals=400,
    enqueued=1000,
    latencies=100,
    held=12_000,
    patience_s=3600.0,
)
QUICK = Sizes(
    rounds=3,
    history_rounds=3,
    history=100_000,
    pairs=1600,
    jobs=400,
    expired=1000,
    renewals=100,
    enqueued=150,
    latencies=25,
    held=1200,
    patience_s=100.0,
)
TINY = Sizes(
    rounds=1,
    history_rounds=1,
    history=50,
    pairs=32,
    jobs=32,
    expired=20,
    renewals=3,
    enqueued=10,
    latencies=3,
    held=20,
    patience_s=60.0,
)
