"""Issues nobody ever asked for anything on, and that no row knows: stored a page at a time. Part of intake.

A first scan meets little else. Whatever is known already, carries a label of ours or is a plan's child is judged by
`take_in`, one by one; what is stored here is what `take_in` would have stored (a test compares).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tireless.domain.issue import IssueState, Snapshot
from tireless.domain.labels import LabelScheme, meaning
from tireless.store.db import Connection, clean_text, jsonb, translate
from tireless.store.issues import bounded


@dataclass(frozen=True, slots=True)
class Plain:
    """A snapshot without any label of ours; `settled` as in Reading."""

    snapshot: Snapshot
    settled: bool


def is_plain(snapshot: Snapshot, scheme: LabelScheme) -> bool:
    """Whether nothing can come of it, as long as no row knows it."""
    return all(meaning(label.name, scheme) is None for label in snapshot.labels)


LOCK_REPOSITORY = "SELECT r.id FROM repository r WHERE r.id = %(repository_id)s AND r.tracked FOR NO KEY UPDATE"
# A plan's child may be known by its number alone, until it has a row.
STORE_PLAIN = """
WITH given AS (
  SELECT g.* FROM unnest(%(number)s::int[], %(forge_issue_id)s::bigint[], %(title)s::text[], %(body)s::text[],
                         %(content_hash)s::text[], %(author_id)s::bigint[], %(author_login)s::text[],
                         %(open)s::boolean[], %(labels)s::jsonb[], %(url)s::text[], %(created_at)s::timestamptz[],
                         %(updated_at)s::timestamptz[], %(settled)s::boolean[])
    AS g(number, forge_issue_id, title, body, content_hash, author_id, author_login, open, labels, url, created_at,
         updated_at, settled)
   WHERE NOT EXISTS (SELECT FROM child c JOIN issue p ON p.id = c.plan_issue_id
                      WHERE p.repository_id = %(repository_id)s AND c.number = g.number)
), stored AS (
  INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login, open,
                     labels, url, created_at, updated_at, asked_at, settled)
  SELECT %(repository_id)s, number, forge_issue_id, title, body, content_hash, author_id, author_login, open,
         labels, url, created_at, updated_at, %(asked_at)s, settled FROM given ORDER BY number
  ON CONFLICT ON CONSTRAINT issue_once DO NOTHING
  RETURNING number
), answered AS (
  -- What was seen answers looks written before it was asked for; `was` is the look as this statement began with it, so
  -- that one written anew, by whoever commits while this waits for him, is another.
  DELETE FROM look l USING stored s, look was
   WHERE l.repository_id = %(repository_id)s AND l.number = s.number AND l.written_at < %(asked_at)s
     AND was.repository_id = l.repository_id AND was.number = l.number AND was.written_at = l.written_at
)
SELECT number FROM stored
"""


async def store_plain(
    conn: Connection, repository_id: int, plain: Sequence[Plain], *, asked_at: datetime
) -> frozenset[int]:
    """Store those that no row knows; their numbers. In a transaction of the caller's."""
    if not plain:
        return frozenset()
    shown = [one.snapshot for one in plain]
    values = {
        "repository_id": repository_id,
        "asked_at": asked_at,
        "number": [one.number for one in shown],
        "forge_issue_id": [one.issue_id for one in shown],
        "title": [clean_text(one.title) for one in shown],
        "body": [bounded(one.body) for one in shown],
        "content_hash": [one.content_hash for one in shown],
        "author_id": [one.author.id for one in shown],
        "author_login": [clean_text(one.author.login) for one in shown],
        "open": [one.state is IssueState.OPEN for one in shown],
        "labels": [
            jsonb([{"id": each.id, "name": each.name, "exclusive": each.exclusive} for each in one.labels])
            for one in shown
        ],
        "url": [clean_text(one.url) for one in shown],
        "created_at": [one.created_at for one in shown],
        "updated_at": [one.updated_at for one in shown],
        "settled": [one.settled for one in plain],
    }
    with translate(f"storing {len(plain)} issues of repository {repository_id} on which nobody asks for anything"):
        if await (await conn.execute(LOCK_REPOSITORY, values)).fetchone() is None:
            return frozenset()
        return frozenset([int(row[0]) async for row in await conn.execute(STORE_PLAIN, values)])
