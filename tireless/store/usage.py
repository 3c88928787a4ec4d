"""What agents have cost, summed by day, lane and repository. Read-only; walks the attempts of the days asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from psycopg.rows import dict_row

from tireless.store.db import Connection, translate


@dataclass(frozen=True, slots=True)
class Cost:
    """Sums over attempts, as their agents said. `runs`: those that were not given back, running ones included."""

    runs: int = 0
    given_back: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Of the last `days` by UTC, today included. Days and lanes ascending; repositories as `FORGE:OWNER/REPO`."""

    days: int
    total: Cost
    by_day: dict[date, Cost] = field(default_factory=dict)
    by_lane: dict[str, Cost] = field(default_factory=dict)
    by_repository: dict[str, Cost] = field(default_factory=dict)


# From repository to repository, by attempt_of_day: no index of its own, which every claim would have to keep.
USAGE = """
SELECT grouping(a.day, a.lane, r.id) AS kind, a.day, a.lane, min(r.forge || ':' || r.owner || '/' || r.name) AS repo,
       coalesce(sum(a.runs), 0)::bigint AS runs, coalesce(sum(a.given_back), 0)::bigint AS given_back,
       coalesce(sum(a.input_tokens), 0)::bigint AS input_tokens,
       coalesce(sum(a.output_tokens), 0)::bigint AS output_tokens, coalesce(sum(a.usd), 0)::float8 AS usd
  FROM repository r
 CROSS JOIN LATERAL (
    SELECT (t.claimed_at AT TIME ZONE 'UTC')::date AS day, t.lane,
           count(*) FILTER (WHERE t.burned IS NOT FALSE) AS runs, count(*) FILTER (WHERE NOT t.burned) AS given_back,
           sum((t.usage ->> 'input_tokens')::numeric) AS input_tokens,
           sum((t.usage ->> 'output_tokens')::numeric) AS output_tokens, sum((t.usage ->> 'usd')::numeric) AS usd
      FROM attempt t
     WHERE t.repository_id = r.id
       AND t.claimed_at >= date_trunc('day', (SELECT clock_timestamp()), 'UTC')
                           - make_interval(days => %(days)s::int - 1)
     GROUP BY 1, 2) a
 GROUP BY GROUPING SETS ((a.day), (a.lane), (r.id), ())
 ORDER BY 1, 2, 3, 4
"""


async def usage_sums(conn: Connection, *, days: int = 7) -> UsageSums:
    """Runs, tokens and money of the last `days` (1: today), by UTC."""
    total = Cost()
    by_day: dict[date, Cost] = {}
    by_lane: dict[str, Cost] = {}
    by_repository: dict[str, Cost] = {}
    with translate("summing what agents have used"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            rows = await (await cursor.execute(USAGE, {"days": days})).fetchall()
    for row in rows:
        kind, day, lane, repo = (row.pop(name) for name in ("kind", "day", "lane", "repo"))
        # A bit for each of day, lane and repository over which is summed.
        match kind:
            case 0b011:
                by_day[day] = Cost(**row)
            case 0b101:
                by_lane[lane] = Cost(**row)
            case 0b110:
                by_repository[repo] = Cost(**row)
            case _:
                total = Cost(**row)
    return UsageSums(days, total, by_day, by_lane, by_repository)
