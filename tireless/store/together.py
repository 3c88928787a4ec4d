"""The last words of several attempts that end at once: one statement, one transaction, one commit on the disk.

What each comes to is settle.py's; here is only who may go together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tireless.domain.outcome import Outcome
from tireless.store.db import Connection, translate
from tireless.store.look import Ring
from tireless.store.record import Answer
from tireless.store.settle import POLICY, Ending, Policy, policy_json, ring_for, said

MAX_TOGETHER = 32
"""The most ends of one statement: each may bring 128 KiB of its agent's output."""


@dataclass(frozen=True, slots=True)
class Word:
    """The last word on one attempt, as `settle` takes it."""

    job_id: int
    token: UUID
    ending: Ending


SETTLE_TOGETHER = """
SELECT token, answer FROM settle_claims(%(ends)s::jsonb, %(policy)s::jsonb)
"""


async def settle_together(
    conn: Connection, words: Sequence[Word], *, policy: Policy = POLICY, ring: Ring
) -> dict[UUID, Answer]:
    """Settle those that can go together: all of them, or none when an error is raised.

    By token; a word that has no answer is to be said alone, by `settle`: its claim is gone, or locked by somebody at
    this moment, or it moves more than its own job (a limit, a plan, a hold, a breaker). `ring` is told whom to wake.
    StoreError and ValueError as `settle`'s, for any of the words; then each should be said alone.
    """
    ends = [
        said(word.job_id, word.token, word.ending) | {"token": str(word.token)}
        for word in words
        if word.ending.outcome is not Outcome.LEASE_LOST
    ]
    values = {"ends": json.dumps(ends), "policy": policy_json(policy)}
    with translate(f"settling {len(words)} jobs together"):
        answered = await (await conn.execute(SETTLE_TOGETHER, values)).fetchall()
    ring_for((wake for _, (_, *wakes) in answered for wake in wakes), ring)
    return {token: Answer(answer) for token, (answer, *_) in answered}
