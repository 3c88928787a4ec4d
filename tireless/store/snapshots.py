"""Who keeps dead rows from being cleared away: sessions, prepared transactions and slots with an old snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from tireless.store.db import Connection
from tireless.store.inspect_jobs import rows_of


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """One holder. `kind`: session, prepared or slot; `ending`: the statement that ends it.

    `age_s` is None for a slot, which knows no time; `transactions` counts those that began since.
    """

    kind: str
    name: str
    doing: str
    age_s: float | None
    transactions: int
    ending: str


# Vacuum passes by other vacuums, and by snapshots of other databases, except those of walsenders and slots.
# Sessions of other users show nothing to who is neither superuser nor in pg_read_all_stats.
HELD_SNAPSHOTS = """
SELECT 'session' AS kind, coalesce(nullif(a.application_name, ''), a.backend_type) AS name,
       concat_ws(', ', 'pid ' || a.pid, 'user ' || a.usename, a.state) AS doing,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.backend_start))::float8 AS age_s,
       greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions,
       'SELECT pg_terminate_backend(' || a.pid || ')' AS ending
  FROM pg_stat_activity a
 WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
   AND a.backend_type <> 'autovacuum worker' AND (a.datname = current_database() OR a.datname IS NULL)
UNION ALL
SELECT 'prepared', p.gid, 'user ' || p.owner, extract(epoch FROM clock_timestamp() - p.prepared)::float8,
       age(p.transaction), 'ROLLBACK PREPARED ' || quote_literal(p.gid)
  FROM pg_prepared_xacts p WHERE p.database = current_database()
UNION ALL
SELECT 'slot', s.slot_name, concat_ws(', ', s.slot_type, CASE WHEN s.active THEN 'active' ELSE 'nobody reads it' END),
       NULL, greatest(age(s.xmin), age(s.catalog_xmin)),
       'SELECT pg_drop_replication_slot(' || quote_literal(s.slot_name) || ')'
  FROM pg_replication_slots s WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL
 ORDER BY age_s DESC NULLS LAST, transactions DESC
"""


async def held_snapshots(conn: Connection) -> list[HeldSnapshot]:
    """Whoever holds a snapshot now, the oldest first, slots last; this connection is left out."""
    return await rows_of(conn, HeldSnapshot, HELD_SNAPSHOTS, "looking for old snapshots")
