"""Query plans as EXPLAIN tells them: their nodes, the pages they looked at, and what the claim's plan must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Node = dict[str, Any]


def nodes(plan: Node) -> Iterator[Node]:
    """Every node of a plan."""
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def pages(plan: Node) -> int:
    """How many pages it looked at, found in the cache or not; of EXPLAIN (ANALYZE, BUFFERS)."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def walks_one_index(plan: Node) -> None:
    """The pick walks job_pending once, unsorted; no job, attempt or issue is searched for by reading the table."""
    indexes = [node["Index Name"] for node in nodes(plan) if "Index Name" in node]
    assert indexes.count("job_pending") == 1
    assert {name for name in indexes if name.startswith("job")} == {"job_pending", "job_pkey"}
    read_through = {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
    assert not {"job", "attempt", "issue"} & read_through
    (lock,) = [node for node in nodes(plan) if node["Node Type"] == "LockRows"]
    assert [node["Node Type"] for node in nodes(lock)][1:] in (["Index Scan"], ["Result", "Index Scan"])
