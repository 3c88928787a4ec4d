"""Carries out what a settled attempt left to deliver, each step found or created and recorded before the next.

It promises "never two left open", not "never sent twice": no forge takes a key that would make a create unique.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from tireless import log
from tireless.domain.comments import Voice
from tireless.errors import ForgeDenied, ForgeError, ForgeGarbled, ForgeRejected, ForgeUnavailable, Moved, NotFound
from tireless.forge.base import Forge
from tireless.services.carrying import Means, TakeLostError, UnpublishableError, WaitError, WorkNotPushedError
from tireless.services.family import Family
from tireless.services.labelling import LabelBook
from tireless.services.offering import Offering
from tireless.services.patience import MOVED_S, STAY_S, Patience, is_doubtful, is_outage
from tireless.services.ringing import rung_transaction
from tireless.services.whom import NamelessError, Whom
from tireless.store import deliver, polls, publish
from tireless.store.db import Pool
from tireless.store.deliver import BranchLeft, Ended
from tireless.store.look import Ring
from tireless.store.publish import Delivery

_log = log.get(__name__)

BRANCHES_PER_TICK = 20
CHILDREN_PER_HOUR = 100
"""Issues created for one plan's issue within an hour at most, whatever plans it had: twice what one may have."""


class Publisher:
    """`tick` delivers one job. Any number of publishers may run."""

    name = "publisher"

    def __init__(
        self,
        pool: Pool,
        forges: Mapping[str, Forge],
        *,
        voice: Voice,
        by: str = "publisher",
        children_run: bool = False,
        children_per_hour: int = CHILDREN_PER_HOUR,
        request_timeout_s: float = 20.0,
        take_s: float = 180.0,
        backoff_base_s: float = 10.0,
        backoff_cap_s: float = 900.0,
        jitter: Callable[[], float] = random.random,
        ring: Ring | None = None,
    ) -> None:
        """`ring` is told whom to wake for what has committed; without it every transaction notifies."""
        self._pool = pool
        self._forges = forges
        self._voice = voice
        self._by = by
        self._take_s = take_s
        self._ring = ring
        # An answer is waited for this long at most; thrice that, and the forge has carried out what it was sent.
        self._unanswered_s = 3 * request_timeout_s
        self._patience = Patience(forges, base_s=backoff_base_s, cap_s=backoff_cap_s, jitter=jitter)
        self._means = Means(pool, LabelBook(pool), Whom(), voice, take_s, children_run, children_per_hour)

    async def tick(self) -> bool:
        """Deliver one due job; without one, look after branches that ended jobs left. False: nothing was to be done."""
        forges = self._patience.ready()
        async with self._pool.connection() as conn:
            delivery = await publish.take_publishing(
                conn, forges, by=self._by, take_s=self._take_s, unanswered_s=self._unanswered_s
            )
            if delivery is None:
                left = await deliver.branches_left(conn, forges, limit=BRANCHES_PER_TICK)
        if delivery is None:
            return await self._tidy(left)
        await self._one(delivery)
        return True

    async def _one(self, delivery: Delivery) -> None:
        forge = self._forges[delivery.repo.forge]
        facts = {"job": delivery.job_id, "forge": forge.name, "issue": f"{delivery.repo}#{delivery.number}"}
        try:
            made = await self._carry_out(forge, delivery)
            self._patience.answered(forge.name)
            await self._deliver(made)
            _log.info("job delivered", **facts, pull_request=made.pull_request, children=len(made.children))
        except TakeLostError:
            _log.info("publishing take lost", **facts)
        except WaitError as wait:
            await self._postpone(delivery, wait_s=wait.seconds, reason=wait.reason, failures=delivery.failures)
            _log.info("waiting before the next create", **facts, reason=wait.reason, seconds=round(wait.seconds))
        except WorkNotPushedError as missing:
            async with self._pool.connection() as conn:
                await deliver.return_to_pending(conn, delivery, by=self._by, found=missing.found, ring=self._ring)
            _log.warning("work not pushed", **facts, branch=delivery.branch, found=missing.found)
        except UnpublishableError as refused:
            await self._unpublishable(delivery, str(refused))
            _log.error("job unpublishable", **facts, error=str(refused))
        except ForgeError as error:
            reason, wait_s = self._reason(error, delivery.failures + 1)
            if is_outage(error):
                self._patience.failed(forge.name, error)
            await self._postpone(delivery, wait_s=wait_s, reason=reason, failures=delivery.failures + 1)
            if is_doubtful(error):
                async with self._pool.connection() as conn:
                    await polls.doubt(conn, [delivery.repository_id])
            _log.warning("delivery postponed", **facts, reason=reason, error=str(error), again_s=round(wait_s))

    async def _carry_out(self, forge: Forge, delivery: Delivery) -> Delivery:
        """Every step that is left; the delivery as it stands then."""
        waits = [child.wait_s for child in delivery.children if child.unanswered]
        if delivery.pr_unanswered:
            waits.append(delivery.pr_wait_s)
        if (wait_s := max(waits, default=0.0)) > 0:
            raise WaitError(wait_s)
        if delivery.commit_sha is not None:
            delivery = replace(delivery, pull_request=await Offering(self._means, forge, delivery).carry_out())
        if delivery.children:
            delivery = replace(delivery, children=await Family(self._means, forge, delivery).carry_out())
        return delivery

    def _reason(self, error: ForgeError, failures: int) -> tuple[str, float]:
        """Why publishing does not go on, as comments.PUBLISH_REASONS names it, and when it is tried again."""
        match error:
            case NamelessError():
                return "bot_unknown", STAY_S
            case ForgeUnavailable() | ForgeGarbled():
                return "forge_unavailable", self._patience.wait_s(error, failures)
            case Moved():
                return "moved", MOVED_S
            case ForgeDenied(status=401):
                return "token_refused", STAY_S
            case ForgeDenied():
                return "denied", STAY_S
            case NotFound():
                return "not_found", STAY_S
            case ForgeRejected(status=409):
                return "conflict", STAY_S
            case ForgeRejected(status=423):
                return "archived", STAY_S
            case ForgeRejected(status=413):
                return "quota", STAY_S
            case _:
                return "refused", STAY_S

    async def _deliver(self, made: Delivery) -> None:
        async with rung_transaction(self._pool, f"delivering job {made.job_id}", self._ring) as (conn, ring):
            ended = await deliver.deliver(conn, made, by=self._by, ring=ring)
        if ended is Ended.LOST:
            raise TakeLostError

    async def _unpublishable(self, delivery: Delivery, error: str) -> None:
        said = self._voice.redactor.text(error)
        async with rung_transaction(self._pool, f"ending job {delivery.job_id}", self._ring) as (conn, ring):
            await deliver.fail_unpublishable(conn, delivery, by=self._by, reason="refused", error=said, ring=ring)

    async def _postpone(self, delivery: Delivery, *, wait_s: float, reason: str | None, failures: int) -> None:
        async with self._pool.connection() as conn:
            await publish.postpone(conn, delivery, wait_s=wait_s, reason=reason, failures=failures)

    # ------------------------------------------------------------------ branches

    async def _tidy(self, left: tuple[BranchLeft, ...]) -> bool:
        """Delete what ended jobs left behind, a few at a time. An outage leaves the rest for later."""
        for branch in left:
            forge = self._forges[branch.forge]
            try:
                if not branch.keep:
                    await self._delete(forge, branch)
            except ForgeError as error:
                facts = {
                    "forge": branch.repo.forge,
                    "branch": branch.branch,
                    "repository": str(branch.repo),
                    "error": str(error),
                }
                if isinstance(error, ForgeUnavailable | ForgeGarbled | Moved):
                    self._patience.failed(forge.name, error)
                    _log.warning("branch not deleted", **facts)
                    return False
                _log.warning("branch left behind", **facts)  # refused for good: a person may delete it
            async with self._pool.connection() as conn:
                await deliver.branch_done(conn, branch.attempt_id)
        return len(left) == BRANCHES_PER_TICK

    async def _delete(self, forge: Forge, branch: BranchLeft) -> None:
        """Delete a branch that still is as the attempt pushed it: on another commit somebody works on it."""
        if await forge.branch_head(branch.repo, branch.branch) == branch.commit_sha:
            await forge.delete_branch(branch.repo, branch.branch)
            _log.info("stale branch deleted", forge=forge.name, branch=branch.branch, repository=str(branch.repo))
