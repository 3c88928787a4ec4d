"""What is asked every few seconds reads what is due and what lives, not what is over or has its time to come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from tests.support import rows
from tests.support.asked import HOT
from tests.support.transitions import CASES, there
from tireless.domain.outcome import Outcome
from tireless.store import tell
from tireless.store.children import created_lately
from tireless.store.claim import Claim, RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.dependencies import look_at_dependents
from tireless.store.inspect_places import stats
from tireless.store.jobs import lock_kin, refresh_waits
from tireless.store.look import take_looks
from tireless.store.publish import family_numbers
from tireless.store.settle import Ending, Word, settle, settle_together
from tireless.store.sweep import Retention, expire_stale_claims, prune, wake_due
from tireless.store.usage import usage_sums

MANY = 3000
FEW = 150
"""More than any of these needs, by far less than there is of what it must not read."""
ME = RunnerId("r1", "h1", uuid4())

# Issues, each with a job that ended ten days ago and one that sleeps for an hour; looks and mirrors that are put off
# for an hour; children that ended, each of another one's plan.
MUCH = """
SET session_replication_role = replica;
INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login, open, url,
                   created_at, updated_at, asked_at)
SELECT r.id, 10000 + n, 10000 + n, 't', 'b', 'h', 7, 'ada', true, 'u', now(), now(), now()
  FROM generate_series(1, 3000) AS n, repository r WHERE r.name = 'widgets';
INSERT INTO request (issue_id, source, asked_time, actor_login, content_hash, created_at)
SELECT i.id, 'operator', now() - interval '10 days', 'ada', 'h', now() - interval '10 days'
  FROM issue i WHERE i.number > 10000;
INSERT INTO job (issue_id, repository_id, request_id, kind, lane, state, claim_no, attempts, finished_at)
SELECT q.issue_id, i.repository_id, q.id, 'implement', 'claude', 'delivered', 1, 1, now() - interval '10 days'
  FROM request q JOIN issue i ON i.id = q.issue_id WHERE i.number > 10000;
INSERT INTO attempt (job_id, repository_id, claim_no, token, number, lane, runner, host, claimed_at, ended_at, outcome,
                     burned)
SELECT j.id, j.repository_id, 1, gen_random_uuid(), 1, j.lane, 'r', 'h', j.finished_at, j.finished_at, 'no_change', true
  FROM job j WHERE j.state = 'delivered';
INSERT INTO job (issue_id, repository_id, request_id, kind, lane, state, reason, not_before, not_before_reason)
SELECT j.issue_id, j.repository_id, j.request_id, 'plan', j.lane, 'waiting', 'backoff', now() + interval '1 h',
       'backoff'
  FROM job j WHERE j.state = 'delivered';
INSERT INTO look (repository_id, number, why, not_before)
SELECT i.repository_id, i.number, 'later', now() + interval '1 h' FROM issue i WHERE i.number > 10000;
INSERT INTO mirror (issue_id, not_before) SELECT i.id, now() + interval '1 h' FROM issue i WHERE i.number > 10000;
INSERT INTO child (plan_issue_id, job_id, attempt_id, key, position, title, body, kind, issue_id, number, sent_at,
                   ended_at, ended_reason)
SELECT p.id, p.id, i.id, 'k', 1, 't', 'b', 'implement', i.id, i.number, now(), now(), 'closed'
  FROM issue i JOIN issue p ON p.repository_id = i.repository_id AND p.number = 10001 + i.number % 3000
 WHERE i.number > 10000;
RESET session_replication_role;
ANALYZE
"""
READ = """
SELECT c.relname AS name,
       pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid)
       + (SELECT sum(pg_stat_get_xact_tuples_returned(x.indexrelid)) FROM pg_index x WHERE x.indrelid = c.oid) AS read
  FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
"""


async def reads(conn: Connection) -> dict[str, int]:
    """Rows of each table, and entries of its indexes, that this transaction has read."""
    return {str(row["name"]): int(str(row["read"])) for row in await rows.rows(conn, READ)}


EXPLAIN_ALL = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on;
SET client_min_messages = log
"""


@pytest.fixture
async def running(conn: Connection) -> list[Claim]:
    """Four jobs that run, beside much that is over or sleeps; the repository of the last one has a limit."""
    await rows.repository(conn, "acme/limited", max_running=5)
    for path in ("acme/widgets", "acme/widgets", "acme/widgets", "acme/limited"):
        await rows.job(conn, path)
    claims = await claim_next(conn, [rows.LANE], runner=ME, n=4)
    assert len(claims) == 4
    await rows.job(conn, "acme/limited")
    await conn.execute(MUCH.encode())
    counted = "SELECT least((SELECT count(*) FROM look), (SELECT count(*) FROM child), (SELECT count(*) FROM attempt))"
    assert int(str(await rows.value(conn, counted))) >= MANY
    return sorted(claims, key=lambda claim: (claim.repo.name != "widgets", claim.job_id))


Act = Callable[[Connection, list[Claim]], Awaitable[object]]


async def limited(conn: Connection, _claims: list[Claim]) -> None:
    """A claim where a limit of the repository is counted."""
    await conn.execute("UPDATE attempt SET repository_id = (SELECT id FROM repository WHERE name = 'limited')")
    assert await claim_next(conn, [rows.LANE], runner=ME)


async def alone(conn: Connection, claims: list[Claim]) -> None:
    """An end by itself."""
    await settle(conn, claims[0].job_id, claims[0].token, Ending(outcome=Outcome.NO_CHANGE))


async def together(conn: Connection, claims: list[Claim]) -> None:
    """Ends in company."""
    words = [Word(claim.job_id, claim.token, Ending(outcome=Outcome.NO_CHANGE)) for claim in claims[:3]]
    assert len(await settle_together(conn, words, ring=lambda _wakes: None)) == 3


async def taken(conn: Connection, _claims: list[Claim]) -> None:
    """A mirror's look for what is due."""
    await tell.take_due(conn, [rows.FORGE], by="m", take_s=60, unanswered_s=60)


async def looked_at(conn: Connection, plan: int) -> None:
    """Looks at all that waits for an issue."""
    await look_at_dependents(conn, 1, 11001, plan_issue_id=plan, why="closed")


def of_plan(act: Callable[[Connection, int], Awaitable[object]]) -> Act:
    """Something that is asked of a plan's issue and its children."""

    async def asks(conn: Connection, _claims: list[Claim]) -> object:
        plan = await rows.value(conn, "SELECT id FROM issue WHERE number = 11000")
        assert isinstance(plan, int)
        return await act(conn, plan)

    return asks


ACTS: list[tuple[str, str, Act]] = [
    ("settle", "child", alone),
    ("settle", "job", alone),
    ("settle", "attempt", alone),
    ("settle_together", "child", together),
    ("settle_together", "job", together),
    ("settle_together", "attempt", together),
    ("claim of a limited repository", "job", limited),
    ("expire_stale_claims", "job", lambda conn, _: expire_stale_claims(conn)),
    ("wake_due", "job", lambda conn, _: wake_due(conn)),
    ("prune", "job", lambda conn, _: prune(conn, retention=Retention.all(30))),
    ("prune", "request", lambda conn, _: prune(conn, retention=Retention.all(30))),
    ("take_looks", "look", lambda conn, _: take_looks(conn, [rows.FORGE], limit=10)),
    ("take_due", "mirror", taken),
    ("a plan's picture", "child", of_plan(tell.picture)),
    ("a plan's picture", "job", of_plan(tell.picture)),
    ("locking a plan's kin", "child", of_plan(lock_kin)),
    ("a plan's child was closed", "child", of_plan(looked_at)),
    ("a plan's child was closed", "job", of_plan(looked_at)),
    ("a plan's children were closed", "child", of_plan(refresh_waits)),
    ("a plan's children were closed", "job", of_plan(refresh_waits)),
    ("children created within the hour", "child", of_plan(created_lately)),
    ("numbers of a plan's children", "child", of_plan(family_numbers)),
    ("usage of a day", "attempt", lambda conn, _: usage_sums(conn, days=1)),
]


@pytest.mark.parametrize(("name", "table", "act"), ACTS, ids=[f"{name}-{table}" for name, table, _ in ACTS])
async def test_it_reads_nothing_that_is_over_or_asleep(
    conn: Connection, running: list[Claim], name: str, table: str, act: Act
) -> None:
    """With fresh statistics, in a session of its own, of three thousand rows that do not concern it."""
    async with conn.transaction(force_rollback=True):
        before = (await reads(conn))[table]
        await act(conn, running)
        assert (await reads(conn))[table] - before <= FEW, name


@pytest.mark.parametrize("table", ["job", "attempt", "child"])
async def test_to_prune_a_job_reads_what_points_at_it(conn: Connection, running: list[Claim], table: str) -> None:
    """A child, a child of its attempt and the job that was run again let go of it: theirs are looked for, no others."""
    old, other, *_ = running
    await alone(conn, running)
    pointing = """
    UPDATE child SET job_id = %(old)s WHERE id = (SELECT min(id) FROM child);
    UPDATE child SET attempt_id = (SELECT id FROM attempt WHERE job_id = %(old)s)
     WHERE id = (SELECT max(id) FROM child);
    UPDATE job SET rerun_of = %(old)s WHERE id = %(other)s;
    SET session_replication_role = replica;
    UPDATE job SET finished_at = now() - interval '100 days' WHERE id = %(old)s;
    RESET session_replication_role
    """
    for statement in pointing.split(";"):
        await conn.execute(statement.encode(), {"old": old.job_id, "other": other.job_id})
    async with conn.transaction(force_rollback=True):
        before = (await reads(conn))[table]
        assert await prune(conn, retention=Retention.all(30)) == 1
        assert (await reads(conn))[table] - before <= FEW


STATES: tuple[tuple[str, dict[str, bool]], ...] = (("publishing", {}), ("waiting", {"hold": True}), ("delivered", {}))


@pytest.mark.parametrize("table", ["job", "attempt"])
async def test_to_take_back_a_hundred_claims_reads_those(conn: Connection, running: list[Claim], table: str) -> None:
    """A batch of them is looked for one by one: what ended before is not read with it."""
    for _ in range(100):
        await rows.job(conn, state="claimed", lease_s=-1.0)
    async with conn.transaction(force_rollback=True):
        before = (await reads(conn))[table]
        assert await expire_stale_claims(conn, limit=100) == 100
        assert (await reads(conn))[table] - before <= 10 * 100


async def test_no_transition_and_no_tick_reads_what_is_over(conn: Connection) -> None:
    """Of no table more than a few, whatever the act: all ways into all transitions, and all that is asked often."""
    await rows.repository(conn, "acme/widgets")
    await conn.execute(MUCH.encode())
    acts = [(" ".join(map(str, key)), one.do, await one.prepare(conn)) for key, some in CASES.items() for one in some]
    for state, columns in STATES:
        made = await there(state, **columns)(conn)
        acts += [(name, ask, made) for name, ask in HOT.items()]
    await conn.execute("ANALYZE")
    excess: dict[tuple[str, str], int] = {}
    for name, act, made in acts:
        async with conn.transaction(force_rollback=True):
            before = await reads(conn)
            await act(conn, made)
            after = await reads(conn)
            excess |= {
                (name, table): after[table] - before[table] for table in after if after[table] - before[table] > FEW
            }
    assert excess == {}


async def test_runs_of_a_day_are_not_counted_from_the_first_day(conn: Connection, running: list[Claim]) -> None:
    """Where a repository has a limit each claim and each end counts the day's runs."""
    async with conn.transaction(force_rollback=True):
        before = (await reads(conn))["attempt"]
        today = await rows.value(conn, "SELECT runs_today(id) FROM repository WHERE name = 'widgets'")
        assert today == 3
        assert (await reads(conn))["attempt"] - before <= FEW


async def test_what_metrics_count_of_history_is_a_day_of_it(conn: Connection, running: list[Claim]) -> None:
    """Each scrape counts what lives, which is three thousand that sleep, and what ended within a day: nothing."""
    asleep = 2 * MANY  # each by its entry in the index and its row
    async with conn.transaction(force_rollback=True):
        before = (await reads(conn))["job"]
        attempts = (await reads(conn))["attempt"]
        assert (await stats(conn)).delivered_today == 0
        assert (await reads(conn))["job"] - before <= asleep + FEW
        assert (await reads(conn))["attempt"] - attempts <= FEW


async def test_what_the_mirror_is_told_of_costs_a_walk_of_it(conn: Connection, running: list[Claim]) -> None:
    """A plan made for one job stays with the session: it must not compare each of thousands with each."""
    told: list[str] = []
    conn.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
    await conn.execute(EXPLAIN_ALL)
    for statement in ("UPDATE job SET priority = 1 WHERE id = 1", "UPDATE job SET hold = true WHERE state = 'waiting'"):
        told.clear()
        await conn.execute(statement.encode())
        (plan,) = [each for each in told if "INSERT INTO mirror" in each]
        assert "Named Tuplestore Scan" in plan
        assert "Nested Loop" not in plan
