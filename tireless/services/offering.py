"""One delivery's steps on the forge: ref checked, pull request, children, dependencies; for publisher.py alone.

Each create is recorded as sent before it goes out and by its number once it is answered. Ends no job.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from tireless import log
from tireless.domain import delivery as texts
from tireless.domain.comments import Voice
from tireless.domain.delivery import ChildText, Text
from tireless.domain.issue import IssueRef, IssueState, Label, LabelSpec, Person, PullRequest, Snapshot
from tireless.domain.labels import folded, label_specs, read
from tireless.domain.routing import Lane
from tireless.errors import ForgeDenied, ForgeGarbled, ForgeRejected, ForgeUnavailable, NotFound
from tireless.forge.base import Forge, NewPull
from tireless.services.labelling import LabelBook
from tireless.store import publish
from tireless.store.db import Connection, Pool, clock, transaction
from tireless.store.publish import ChildRow, Delivery

_log = log.get(__name__)

T = TypeVar("T")

MAX_PAGES = 1000


class TakeLostError(Exception):
    """Another publisher or a cancel has the job; nothing more may be written."""


class WaitError(Exception):
    """A create was sent and not answered; what it did is not known for another `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"wait {seconds:.0f} s")
        self.seconds = seconds


class WorkNotPushedError(Exception):
    """The remote branch is not the recorded commit; `found` is what it is, None when there is none."""

    def __init__(self, found: str | None) -> None:
        super().__init__(f"found {found}")
        self.found = found


class UnpublishableError(Exception):
    """The forge refuses our own text, also as plain text."""


class StayError(Exception):
    """Publishing cannot go on until a person mends something; `reason` is a publish_reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Offering:
    """What one take of one job does on the forge. Made anew for each take."""

    def __init__(
        self,
        pool: Pool,
        forge: Forge,
        labels: LabelBook,
        delivery: Delivery,
        *,
        voice: Voice,
        take_s: float,
        runs: bool,
    ) -> None:
        self._pool = pool
        self._forge = forge
        self._labels = labels
        self._delivery = delivery
        self._voice = voice
        self._take_s = take_s
        self._runs = runs
        self._repo = delivery.repo
        self._whom: Person | None = None

    async def carry_out(self) -> Delivery:
        """Every step that is left; the delivery as it stands then."""
        wait_s = max(
            [self._delivery.pr_wait_s if self._delivery.pr_unanswered else 0.0]
            + [child.wait_s for child in self._delivery.children if child.unanswered]
        )
        if wait_s > 0:
            raise WaitError(wait_s)
        if self._delivery.commit_sha is not None:
            number = await self._pull()
            self._delivery = replace(self._delivery, pull_request=number)
            await self._close_predecessors(number)
        if self._delivery.children:
            await self._children()
        return self._delivery

    # ------------------------------------------------------------------ the pull request

    async def _pull(self) -> int:
        delivery = self._delivery
        if delivery.pull_request is not None:
            return delivery.pull_request
        branch = delivery.branch or ""  # never empty beside a commit: CHECK commit_has_a_branch
        # A closed one counts only after a create that was not answered: then it is ours, merged or closed meanwhile.
        found = await self._find_pull(branch, closed=delivery.pr_unanswered)
        if found is None:
            head = await self._forge.branch_head(self._repo, branch)
            if head != delivery.commit_sha:
                raise WorkNotPushedError(head)
            created = await self._create_pull(branch)
            # The forge looks for a double and inserts in two steps: of two creates at once both are answered 201.
            found = await self._find_pull(branch, closed=False) or created
        await self._fenced(lambda conn: publish.pull_made(conn, delivery, found))
        return found

    async def _find_pull(self, branch: str, *, closed: bool) -> int | None:
        """The bot's pull request from our branch, an open one before a closed one; other open ones are closed.

        Only the bot's: on some forges a stranger may open one from any branch, with words of his own.
        """
        bot = await self._bot()
        pulls = sorted(
            await self._forge.pulls(self._repo, head=branch, include_closed=closed), key=lambda each: each.number
        )
        ours = [each for each in pulls if each.author.id == bot.id]
        still_open = [each for each in ours if each.state is IssueState.OPEN]
        for double in still_open[1:]:
            await self._close_twin(still_open[0].number, double.number, pull=True)
        kept = still_open or ours
        return kept[0].number if kept else None

    async def _create_pull(self, branch: str) -> int:
        delivery = self._delivery

        def text(plain: bool) -> Text:
            return texts.pull_text(
                title=delivery.pr_title or delivery.issue_title,
                body=delivery.pr_body or delivery.summary or "",
                kind=delivery.kind,
                number=delivery.number,
                lane=delivery.lane,
                job_id=delivery.job_id,
                voice=self._voice,
                plain=plain,
            )

        async def create(made: Text) -> PullRequest:
            new = NewPull(made.title, made.body, head=branch, base=await self._base(), draft=delivery.pr_draft)
            await self._sending(lambda conn: publish.pull_sent(conn, delivery, take_s=self._take_s))
            return await self._forge.create_pull(self._repo, new)

        try:
            return (await self._worded(create, text)).number
        except ForgeRejected as error:
            await self._fenced(lambda conn: publish.pull_refused(conn, delivery))
            if error.status != 409:
                raise
            found = await self._find_pull(branch, closed=False)
            if found is not None:
                return found
            if not await self._close_strangers(branch):
                raise
            return (await self._worded(create, text)).number
        except (ForgeDenied, NotFound, UnpublishableError):
            await self._fenced(lambda conn: publish.pull_refused(conn, delivery))
            raise

    async def _close_strangers(self, branch: str) -> bool:
        """Close what others opened from our branch, since it keeps ours from being made; False: there is none."""
        theirs = [each for each in await self._forge.pulls(self._repo, head=branch) if each.state is IssueState.OPEN]
        for each in theirs:
            await self._say_and_close(each.number, texts.STRANGERS_PULL, texts.STRANGERS_MARK)
        return bool(theirs)

    async def _base(self) -> str:
        """The branch to merge into: the repository's default one as of now."""
        return (await self._forge.repository(self._delivery.forge_repo_id)).default_branch

    async def _close_predecessors(self, number: int) -> None:
        """Close the open pull requests that earlier jobs of the issue made, with a link."""
        async with self._pool.connection() as conn:
            earlier = await publish.predecessors(conn, self._delivery, number)
        if not earlier:
            return
        for pull in await self._forge.pulls(self._repo):
            if pull.number in earlier:
                said = texts.superseded(self._address(number, pull=True), number)
                await self._say_and_close(pull.number, said, texts.SUPERSEDED)

    # ------------------------------------------------------------------ children

    async def _children(self) -> None:
        children = {child.key: child for child in self._delivery.children}
        order = texts.in_order({key: child.depends_on for key, child in children.items()})
        async with self._pool.connection() as conn:
            numbers = await publish.family_numbers(conn, self._delivery.issue_id)
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
        self._delivery = replace(self._delivery, children=tuple(children[c.key] for c in self._delivery.children))

    def _waits(self, child: ChildRow, children: dict[str, ChildRow], numbers: dict[str, int]) -> list[tuple[int, str]]:
        known = [key for key in child.depends_on if key in numbers]
        return [(numbers[key], children[key].title if key in children else key) for key in known]

    async def _existing(self) -> tuple[Person, list[Snapshot]]:
        """The bot, and every issue it ever created here."""
        bot = await self._bot()
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
            if not await publish.child_made(conn, self._delivery, child, made, asked_at=asked_at, runs=self._runs):
                raise TakeLostError
        return replace(child, number=made.number)

    async def _create_child(
        self, child: ChildRow, specs: Sequence[LabelSpec], waits: Sequence[tuple[int, str]], unknown_lane: str | None
    ) -> Snapshot:
        label_ids = await self._labels.ids(self._forge, self._repo, specs)

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
            await self._sending(lambda conn: publish.child_sent(conn, self._delivery, child.id, take_s=self._take_s))
            return await self._forge.create_issue(self._repo, title=made.title, body=made.body, label_ids=label_ids)

        try:
            return await self._worded(create, text)
        except (ForgeDenied, NotFound, ForgeRejected, UnpublishableError):
            await self._fenced(lambda conn: publish.child_refused(conn, self._delivery, child.id))
            raise

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
        return self._runs and not child.proposal and not self._delivery.is_child

    async def _label(self, made: Snapshot, missing: Sequence[LabelSpec]) -> None:
        """Put on what the create call dropped without a word, as it does with ids that are gone."""
        if missing:
            self._labels.forget(self._repo)
            for label_id in await self._labels.ids(self._forge, self._repo, missing):
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
                _log.info("dependency not shown", issue=str(ref), on=str(on), error=str(error))
            except ForgeUnavailable as error:
                # a 500 is also how it refuses two issues that would block each other, as an earlier plan may have it
                if error.status != 500 or not any(each == ref for each, _ in await self._forge.dependencies(on)):
                    raise
                _log.info("dependency not shown", issue=str(ref), on=str(on), error=str(error))
        await self._fenced(lambda conn: publish.child_linked(conn, self._delivery, child.id))

    # ------------------------------------------------------------------ both

    async def _worded(self, create: Callable[[Text], Awaitable[T]], text: Callable[[bool], Text]) -> T:
        """Create with the agent's words; refused as invalid, once more as plain text; then it is unpublishable."""
        try:
            return await create(text(False))
        except ForgeRejected as error:
            if error.status != 422:
                raise
        try:
            return await create(text(True))
        except ForgeRejected as error:
            if error.status != 422:
                raise
            raise UnpublishableError(str(error)) from error

    async def _bot(self) -> Person:
        """Whom the token speaks for: nobody else's issue or pull request is ever taken for ours."""
        if self._whom is None:
            self._whom = (await self._forge.about()).login
        if self._whom is None:
            raise StayError("bot_unknown")
        return self._whom

    async def _close_twin(self, kept: int, double: int, *, pull: bool) -> None:
        said = texts.twin(self._address(kept, pull=pull), kept, pull=pull)
        await self._say_and_close(double, said, texts.TWIN_MARK)

    async def _say_and_close(self, number: int, said: str, mark: str) -> None:
        """Say a sentence once, found by its mark, then close."""
        await self._fenced(lambda conn: publish.renew_take(conn, self._delivery, take_s=self._take_s))
        if not any(mark in each.body for each in await self._forge.comments(self._repo, number)):
            await self._forge.write_comment(self._repo, number, said)
        await self._forge.close(IssueRef(self._repo, number))

    def _address(self, number: int, *, pull: bool = False) -> str:
        base = self._delivery.issue_url.rpartition("/issues/")[0]
        return f"{base}/{'pulls' if pull else 'issues'}/./{number}"

    async def _now(self) -> datetime:
        async with self._pool.connection() as conn:
            return await clock(conn)

    async def _sending(self, write: Callable[[Connection], Awaitable[bool]]) -> None:
        """Record that a create is sent next. Who was stopped in between for long must not send it any more.

        Whoever takes the job then looks for it after a wait counted from that record.
        """
        started = _awake_or_not()
        await self._fenced(write)
        if _awake_or_not() - started > self._take_s / 3:
            raise TakeLostError

    async def _fenced(self, write: Callable[[Connection], Awaitable[bool]]) -> None:
        async with self._pool.connection() as conn:
            if not await write(conn):
                raise TakeLostError


def _carries(labels: Sequence[Label], name: str) -> bool:
    return any(folded(label.name) == folded(name) for label in labels)


def _awake_or_not() -> float:
    """Seconds of a clock that also runs while the machine is suspended, where there is one."""
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock_id)
