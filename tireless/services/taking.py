"""Reads what judging an issue needs from the forge, and takes it in; part of the poller. No transaction awaits it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tireless.domain.issue import IssueRef, Snapshot, TimelineEntry
from tireless.domain.people import Fact, Facts, Need
from tireless.domain.retry import doubling
from tireless.errors import ForgeDenied, ForgeRejected, NotFound
from tireless.forge.base import Forge, hidden_issue
from tireless.services.ringing import in_rung_transaction
from tireless.store import look as looks
from tireless.store.db import Connection, Pool, clock
from tireless.store.dependencies import Blocker
from tireless.store.intake import Reading, Rules, Taken, Took, take_in
from tireless.store.look import Look, Ring
from tireless.store.repos import RepoRow

TRIES = 3
"""How often labels and timeline may tell different stories before it is "cannot tell"."""

DOUBT_BASE_S = 60.0
DOUBT_CAP_S = 3600.0

_ROUNDS = 20
"""Bound of one issue's judgement: facts fetched and repeated readings together."""


class ReplacedError(Exception):
    """The number belongs to another issue now: the repository was deleted and made again under its name."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot, and when the request for it was sent, by the database's clock; `settled` as in Reading."""

    snapshot: Snapshot
    asked_at: datetime
    settled: bool = False


class Taking:
    """The issues of one repository, during one scan or one look: facts are fetched once and not kept longer.

    `ring` is told whom each issue wakes.
    """

    def __init__(
        self, pool: Pool, forge: Forge, repo: RepoRow, rules: Rules, *, offset: timedelta, ring: Ring | None = None
    ) -> None:
        self._pool = pool
        self._forge = forge
        self._repo = repo
        self._rules = rules
        self._facts = Facts()
        self._ring = ring
        self.offset = offset

    async def read(self, number: int) -> Seen:
        """One issue as it is now."""
        async with self._pool.connection() as conn:
            asked_at = await clock(conn)
        return Seen(await self._forge.issue(self._repo.ref, number), asked_at)

    async def take(
        self, seen: Seen, *, look: Look | None = None, timeline: tuple[TimelineEntry, ...] | None = None
    ) -> Taken:
        """Judge and store one issue, with as many readings as it takes; answers or writes its look.

        `timeline` if it was read already, after `seen`.
        ReplacedError when it is another issue than the stored one; ForgeError when something could not be read.
        """
        blockers: tuple[Blocker, ...] | None = None
        tries = 1
        for _ in range(_ROUNDS):
            taken = await self._store(seen, timeline, blockers, look, last_try=tries >= TRIES)
            match taken.how:
                case Took.STORED | Took.DROPPED:
                    return taken
                case Took.REPLACED:
                    raise ReplacedError(f"{self._repo.ref}#{seen.snapshot.number}")
                case Took.WANTS_FACTS:
                    await self._fetch(taken.needs)
                case Took.AGAIN:
                    tries += 1
                    seen = await self.read(seen.snapshot.number)
                    timeline, blockers = await self.timeline(seen), None
                case Took.WANTS_DEPENDENCIES:
                    blockers = await self._blockers(seen.snapshot.number)
                case Took.WANTS_TIMELINE:
                    timeline = await self.timeline(seen)
        raise AssertionError(f"judging {self._repo.ref}#{seen.snapshot.number} wants the same facts again and again")

    async def timeline(self, seen: Seen) -> tuple[TimelineEntry, ...]:
        """What has happened on an issue until now."""
        return await self._forge.timeline(self._repo.ref, seen.snapshot.number)

    async def _blockers(self, number: int) -> tuple[Blocker, ...]:
        """What blocks an issue. Where dependencies are switched off, or not shown to the bot, nothing does."""
        ref = IssueRef(self._repo.ref, number)
        try:
            found = await self._forge.dependencies(ref)
        except (ForgeDenied, NotFound, ForgeRejected) as error:
            if error.status == 401:
                raise
            return ()
        hidden = hidden_issue(self._repo.forge)
        return tuple(
            Blocker("" if on == hidden else on.repo.path, on.number, open=not closed)
            for on, closed in found
            # a forge lets an issue wait for itself, which nobody can ever end
            if (on.repo.path.casefold(), on.number) != (ref.repo.path.casefold(), number)
        )

    async def _store(
        self,
        seen: Seen,
        timeline: tuple[TimelineEntry, ...] | None,
        blockers: tuple[Blocker, ...] | None,
        look: Look | None,
        *,
        last_try: bool,
    ) -> Taken:
        reading = Reading(
            seen.snapshot,
            seen.asked_at,
            timeline=timeline,
            dependencies=blockers,
            offset=self.offset,
            settled=seen.settled,
        )
        number = seen.snapshot.number

        async def work(conn: Connection, ring: Ring | None) -> Taken:
            before: datetime | None = None
            if look is None:
                before = await looks.written_look(conn, self._repo.id, number, asked_at=seen.asked_at)
            taken = await take_in(
                conn, self._repo.id, reading, rules=self._rules, facts=self._facts, last_try=last_try, ring=ring
            )
            if taken.how in (Took.STORED, Took.DROPPED):
                await self._answer(conn, number, before, taken, look, ring)
            return taken

        doing = f"taking in {self._repo.ref}#{number}"
        return await in_rung_transaction(self._pool, work, doing=doing, ring=self._ring)

    async def _answer(
        self,
        conn: Connection,
        number: int,
        before: datetime | None,
        taken: Taken,
        look: Look | None,
        ring: Ring | None,
    ) -> None:
        """What was seen answers the look that led to it, else one written `before`; doubts and what waits write one."""
        if taken.cannot_tell is not None:
            if look is not None:
                delay_s = doubling(look.failures + 1, base_s=DOUBT_BASE_S, cap_s=DOUBT_CAP_S)
                await looks.put_off(conn, look, error=taken.cannot_tell, delay_s=delay_s)
                return
            await looks.fail_look(
                conn,
                self._repo.id,
                number,
                why="cannot tell",
                error=taken.cannot_tell,
                base_s=DOUBT_BASE_S,
                cap_s=DOUBT_CAP_S,
            )
            return
        if look is not None:
            await looks.answer_look(conn, look)
        elif taken.how is Took.STORED and before is not None:
            await looks.drop_look(conn, self._repo.id, number, written_at=before)
        if taken.again_s is not None:
            await looks.write_look(
                conn, self._repo.id, number, why=taken.again_why, not_before_s=taken.again_s, ring=ring
            )

    # ------------------------------------------------------------------ facts

    async def _fetch(self, needs: Iterable[Need]) -> None:
        """Ask the forge for what is needed; a refusal is an answer too: it would not say."""
        for need in sorted(needs, key=lambda need: (need.fact, need.login)):
            try:
                self._facts = await self._with(need)
            except (ForgeDenied, NotFound, ForgeRejected) as error:
                if error.status == 401:
                    raise
            self._facts = replace(self._facts, asked=self._facts.asked | {need})

    async def _with(self, need: Need) -> Facts:
        facts, repo = self._facts, self._repo.ref
        match need.fact:
            case Fact.PERMISSION:
                rights = await self._forge.permission(repo, need.login)
                return replace(facts, permissions={**facts.permissions, need.login: rights})
            case Fact.ASSIGNEES:
                people = await self._forge.assignees(repo)
                return replace(facts, assignees=frozenset(person.id for person in people))
            case Fact.TEAM:
                if (team := self._rules.policy.team) is None:
                    raise AssertionError("a team is asked for, but none is configured")
                member = await self._forge.in_team(*team, need.login)
                return replace(facts, members={**facts.members, need.login: member})
            case Fact.DEFINITIONS:
                labels = await self._forge.labels(repo)
                return replace(facts, defined=frozenset(label.id for label in labels))
