"""What may run of one repository at a time and in a day: by the configuration for all, by an operator for one.

While any repository has a limit the claims of every lane come one by one (claim_counted).
"""

from __future__ import annotations

from dataclasses import dataclass

from tireless.domain.issue import RepoRef
from tireless.errors import NotKnown
from tireless.store.db import Connection, translate
from tireless.store.lanes import no_claims


@dataclass(frozen=True, slots=True)
class Limits:
    """How many jobs of a repository run at once, over all lanes, and how many runs begin in a day (UTC); None: any."""

    max_running: int | None = None
    max_runs_per_day: int | None = None


NONE = Limits()
"""Nothing is limited."""


LIMIT_REPOSITORY = """
UPDATE repository
   SET max_running = %(max_running)s::int, max_runs_per_day = %(max_runs_per_day)s::int,
       limits_by = %(limits_by)s
 WHERE id = %(repository_id)s RETURNING id
"""
FIND = """
SELECT id FROM repository
 WHERE forge = %(forge)s AND lower(owner) = lower(%(owner)s) AND lower(name) = lower(%(name)s) AND tracked
"""


async def limit_repository(conn: Connection, ref: RepoRef, limits: Limits, *, by_operator: bool = True) -> None:
    """Limit one watched repository, in a transaction of its own; NotKnown when it is not watched.

    The limits hold for every claim from the commit on, claims under way included; what stepped aside for the old ones
    is woken by the sweep. `by_operator`: they stay, whatever the configuration says of all.
    """
    doing = f"limiting {ref}"
    place = {"forge": ref.forge, "owner": ref.owner, "name": ref.name}
    with translate(doing):
        row = await (await conn.execute(FIND, place)).fetchone()
        if row is None:
            raise NotKnown(f"{ref.path} is not watched on forge {ref.forge}: see `tireless repos ls`")
        values = _values(limits) | {"repository_id": row[0], "limits_by": "operator" if by_operator else "config"}
        async with no_claims(conn, doing):
            await conn.execute(LIMIT_REPOSITORY, values)


# An operator's choice stands, and so does what nobody of ours set: its own first, then that of the name it took over;
# where it is not told what is configured, all of that one's.
LIMIT_NEW = """
UPDATE repository r SET max_running = g.max_running, max_runs_per_day = g.max_runs_per_day, limits_by = g.limits_by
  FROM (
    SELECT o.max_running, o.max_runs_per_day, o.limits_by, o.id <> %(repository_id)s::bigint AS other
      FROM repository o
     WHERE o.id IN (%(repository_id)s::bigint, %(instead_of)s::bigint)
       AND (o.limits_by = 'operator' OR (o.limits_by IS NULL AND num_nonnulls(o.max_running, o.max_runs_per_day) > 0)
            OR (o.id = %(instead_of)s::bigint AND NOT %(told)s::boolean))
     UNION ALL
    SELECT %(max_running)s::int, %(max_runs_per_day)s::int, 'config', NULL
     ORDER BY other NULLS LAST LIMIT 1) g
 WHERE r.id = %(repository_id)s::bigint
"""


async def limit_new(conn: Connection, repository_id: int, limits: Limits | None, *, instead_of: int | None) -> None:
    """Limit what is watched from this transaction of the caller's on, before it has work that could be claimed.

    By what is configured (None: not known, as what it replaces), unless an operator limited it, or what had its name.
    Never what is watched already: a claim under way may go by the limits it has read.
    """
    values = _values(limits or NONE) | {
        "repository_id": repository_id,
        "instead_of": instead_of,
        "told": limits is not None,
    }
    with translate(f"limiting repository {repository_id}"):
        await conn.execute(LIMIT_NEW, values)


# As above: an operator's choice stands.
UNLIKE = """
SELECT EXISTS (
  SELECT FROM repository r
   WHERE r.tracked AND (r.limits_by = 'config' OR num_nonnulls(r.limits_by, r.max_running, r.max_runs_per_day) = 0)
     AND (r.max_running, r.max_runs_per_day) IS DISTINCT FROM (%(max_running)s::int, %(max_runs_per_day)s::int))
"""
LIMIT_ALL = """
UPDATE repository r
   SET max_running = %(max_running)s::int, max_runs_per_day = %(max_runs_per_day)s::int, limits_by = 'config'
 WHERE r.id IN (
   SELECT b.id FROM repository b
    WHERE b.tracked AND (b.limits_by = 'config' OR num_nonnulls(b.limits_by, b.max_running, b.max_runs_per_day) = 0)
      AND (b.max_running, b.max_runs_per_day) IS DISTINCT FROM (%(max_running)s::int, %(max_runs_per_day)s::int)
    ORDER BY b.id FOR NO KEY UPDATE)
RETURNING r.id
"""


async def limit_all(conn: Connection, limits: Limits) -> int:
    """Give every watched repository that no operator limited these limits; how many had others.

    Claims are held up only when there is something to change.
    """
    doing = "limiting the watched repositories"
    with translate(doing):
        row = await (await conn.execute(UNLIKE, _values(limits))).fetchone()
        if row is None or not row[0]:
            return 0
        async with no_claims(conn, doing):
            return len(await (await conn.execute(LIMIT_ALL, _values(limits))).fetchall())


def _values(limits: Limits) -> dict[str, object]:
    return {"max_running": limits.max_running, "max_runs_per_day": limits.max_runs_per_day}
