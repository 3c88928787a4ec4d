"""The child issues of one delivery: found or created in order, labelled, recorded, made to depend. Ends no job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tireless import log
from tireless.domain import delivery as texts
from tireless.domain.delivery import ChildText, Text
from tireless.domain.issue import IssueRef, IssueState, Label, LabelSpec, Person, Snapshot
from tireless.domain.labels import folded, label_specs, read
from tireless.domain.routing import Lane
from tireless.errors import ForgeDenied, ForgeGarbled, ForgeRejected, ForgeUnavailable, NotFound
from tireless.services.carrying import Carrying, TakeLostError, UnpublishableError, WaitError
from tireless.store import children as child_rows
from tireless.store import publish
from tireless.store.db import clock, transaction
from tireless.store.publish import ChildRow

_log = log.get(__name__)

MAX_PAGES = 1000
HOUR_S = 3600.0


class Family(Carrying):
    """Creates a plan's children, or a discovery's proposals."""

    _lately: list[float]
    """For each child created within the last hour, by any plan of the issue: seconds until it is not of that hour."""
    _missing: int

    async def carry_out(self) -> tuple[ChildRow, ...]:
        """Every child with its issue, labels and dependencies, in the plan's order."""
        children = {child.key: child for child in self._delivery.children}
        order = texts.in_order({key: child.depends_on for key, child in children.items()})
        async with self._pool.connection() as conn:
            numbers = await publish.family_numbers(conn, self._delivery.issue_id)
            self._lately = await child_rows.created_lately(conn, self._delivery.issue_id)
        self._missing = sum(child.number is None for child in children.values())
        # Looked through once: what an unanswered create, or a lost database, made before.
        there = await self._existing() if any(child.number is None for child in children.values()) else None
        for key in order:
            if there is not None and children[key].number is None:
                children[key] = await self._child(children[key], there, self._waits(children[key], children, numbers))
            if (number := children[key].number) is not None:
                numbers[key] = number
        for key in order:
            if not children[key].linked:
                await self._link(children[key], numbers)
        return tuple(children[each.key] for each in self._delivery.children)

    def _waits(self, child: ChildRow, children: dict[str, ChildRow], numbers: dict[str, int]) -> list[tuple[int, str]]:
        known = [key for key in child.depends_on if key in numbers]
        return [(numbers[key], children[key].title if key in children else key) for key in known]

    async def _existing(self) -> tuple[Person, list[Snapshot]]:
        """The bot, and every issue it ever created here."""
        bot = await self._means.whom.bot(self._forge)
        found: dict[int, Snapshot] = {}
        for page in range(1, MAX_PAGES):
            answer = await self._forge.issues(self._repo, page=page, created_by=bot.login)
            if not answer.rows:
                return bot, list(found.values())
            found |= {each.number: each for each in answer.issues}
            await self._fenced(lambda conn: publish.renew_take(conn, self._delivery, take_s=self._take_s))
        raise ForgeGarbled(f"listing the issues of {bot.login} in {self._repo}: no end after {MAX_PAGES} pages")

    async def _child(
        self, child: ChildRow, there: tuple[Person, Sequence[Snapshot]], waits: Sequence[tuple[int, str]]
    ) -> ChildRow:
        """Find a child's issue or create it, and record it; its labels are right in either case."""
        asked_at = await self._now()
        specs, unknown_lane = await self._label_specs(child)
        bot, existing = there
        same = texts.find_child(
            existing,
            bot,
            installation=self._voice.installation,
            plan_number=self._delivery.number,
            key=child.key,
            uid=str(child.uid),
        )
        if same:
            made = same[0]
            if not read(made.labels, self._voice.scheme).kinds:
                await self._label(made, specs)
            for double in same[1:]:
                if double.state is IssueState.OPEN:
                    await self._close_twin(made.number, double.number, pull=False)
        else:
            made = await self._create_child(child, specs, waits, unknown_lane)
            await self._label(made, [spec for spec in specs if not _carries(made.labels, spec.name)])
        async with self._pool.connection() as conn, transaction(conn, f"recording child {child.key}"):
            if not await child_rows.child_made(
                conn, self._delivery, child, made, asked_at=asked_at, runs=self._means.children_run
            ):
                raise TakeLostError
        return replace(child, number=made.number)

    async def _create_child(
        self, child: ChildRow, specs: Sequence[LabelSpec], waits: Sequence[tuple[int, str]], unknown_lane: str | None
    ) -> Snapshot:
        self._demand_pace()
        label_ids = await self._means.labels.ids(self._forge, self._repo, specs)

        def text(plain: bool) -> Text:
            fields = ChildText(
                title=child.title,
                body=child.body,
                key=child.key,
                uid=str(child.uid),
                plan_number=self._delivery.number,
                plan_address=self._address(self._delivery.number),
                repo=str(self._repo),
                proposal=child.proposal,
                runs=self._runs_by_itself(child),
                waits=waits,
                unknown_lane=unknown_lane,
            )
            return texts.child_text(fields, self._voice, plain=plain)

        async def create(made: Text) -> Snapshot:
            await self._sending(lambda conn: child_rows.child_sent(conn, self._delivery, child.id, take_s=self._take_s))
            return await self._forge.create_issue(self._repo, title=made.title, body=made.body, label_ids=label_ids)

        try:
            made = await self._worded(create, text)
            self._lately.append(HOUR_S)
            self._missing -= 1
            return made
        except (ForgeDenied, NotFound, ForgeRejected, UnpublishableError):
            await self._fenced(lambda conn: child_rows.child_refused(conn, self._delivery, child.id))
            raise

    def _demand_pace(self) -> None:
        """No flood, whatever plans that are run again and again say. WaitError: until there is room for the rest."""
        if len(self._lately) >= self._means.children_per_hour:
            raise WaitError(self._lately[min(self._missing, len(self._lately)) - 1], "many_children")

    async def _label_specs(self, child: ChildRow) -> tuple[list[LabelSpec], str | None]:
        """The labels a child is created with: its kind, its lane; the opt-in only where children run by themselves.

        An unknown lane is never guessed: no label, and it is named.
        """
        scheme = self._voice.scheme
        names = [f"{scheme.prefix}{child.kind}"]
        lane, unknown = child.lane, None
        async with self._pool.connection() as conn:
            lanes = await publish.configured_lanes(conn)
        if lane is not None and lane not in lanes:
            lane, unknown = None, lane
        if lane is not None:
            names.append(f"{scheme.prefix}agent:{lane}")
        if self._runs_by_itself(child):
            names.append(scheme.opt_in)
        known = {folded(spec.name): spec for spec in label_specs(scheme, [Lane(name) for name in lanes])}
        return [known[folded(name)] for name in names if folded(name) in known], unknown

    def _runs_by_itself(self, child: ChildRow) -> bool:
        return self._means.children_run and not child.proposal and not self._delivery.is_child

    async def _label(self, made: Snapshot, missing: Sequence[LabelSpec]) -> None:
        """Put on what the create call dropped without a word, as it does with ids that are gone."""
        if missing:
            self._means.labels.forget(self._repo)
            for label_id in await self._means.labels.ids(self._forge, self._repo, missing):
                await self._forge.set_label(self._repo, made.number, label_id, on=True)

    async def _link(self, child: ChildRow, numbers: dict[str, int]) -> None:
        """The forge's dependencies, a picture: rows decide what waits. Where there can be none the body says it."""
        ref = IssueRef(self._repo, child.number or 0)
        for key in child.depends_on:
            if key not in numbers or numbers[key] == child.number:
                continue
            on = IssueRef(self._repo, numbers[key])
            try:
                await self._forge.add_dependency(ref, on)
            except (NotFound, ForgeRejected) as error:
                _log.info("dependency not shown", forge=ref.repo.forge, issue=str(ref), on=str(on), error=str(error))
            except ForgeUnavailable as error:
                # a 500 is also how it refuses two issues that would block each other, as an earlier plan may have it
                if error.status != 500 or not any(each == ref for each, _ in await self._forge.dependencies(on)):
                    raise
                _log.info("dependency not shown", forge=ref.repo.forge, issue=str(ref), on=str(on), error=str(error))
        await self._fenced(lambda conn: child_rows.child_linked(conn, self._delivery, child.id))

    async def _now(self) -> datetime:
        async with self._pool.connection() as conn:
            return await clock(conn)


def _carries(labels: Sequence[Label], name: str) -> bool:
    return any(folded(label.name) == folded(name) for label in labels)
