"""One poll of one repository: pages to the end, each issue taken in by itself; part of the poller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar, assert_never

from tireless import log
from tireless.domain.asking import asked_last
from tireless.domain.cursor import Cursor, after_scan, settled
from tireless.domain.issue import IssueState, Snapshot, TimelineEntry
from tireless.domain.labels import read
from tireless.domain.walk import Step, Walk
from tireless.errors import ForgeError, ForgeGarbled, ForgeUnavailable, Moved, StoreError, StoreUnavailable
from tireless.forge.base import Forge, IssuePage
from tireless.services.ordering import InOrder, KeptBack, full
from tireless.services.taking import ReplacedError, Seen, Taking
from tireless.store import look as looks
from tireless.store import polls, repos
from tireless.store.db import Connection, Pool, clock, in_transaction, transaction
from tireless.store.intake import Rules
from tireless.store.look import Ring
from tireless.store.plain import Plain, is_plain, store_plain
from tireless.store.repos import RepoRow

_log = log.get(__name__)

T = TypeVar("T")

MAX_PAGES = 1_000_000
"""Bound of a walk."""

OUTAGE = 3
"""Issues in a row that the forge did not answer for: it is the forge, not they."""

KEEP_EVERY = 20
"""Issues of those kept back after which the take is renewed."""


class SetAsideError(Exception):
    """Nothing can be worked on in this repository as it is: archived, or without issues of its own."""


class TakeLostError(Exception):
    """Another poller has the repository, or nobody watches it any more."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan to the last page came to."""

    cursor: Cursor
    issues: int
    made: int
    offset: timedelta | None
    """The forge's clock minus ours, None when it did not say."""
    whole: bool
    """False: issues were deleted while we read, and others may have slipped past: the cursor stays where it was."""
    began: datetime
    ended: datetime
    """Our clock, before the first request was sent and after the last was taken in."""
    server_date: datetime | None
    """The forge's, at the first page."""
    asked: datetime | None
    """When it was asked what the repository is, if it was."""


class Scan:
    """`full`: from the beginning, asking what the repository is and missing what is gone; `anew`: also what is judged
    already, since the rules have changed. Without a cursor any scan begins at the beginning."""

    def __init__(
        self,
        pool: Pool,
        forge: Forge,
        repo: RepoRow,
        rules: Rules,
        *,
        overlap: timedelta,
        full: bool,
        anew: bool,
        offset: timedelta = timedelta(),
        ring: Ring | None = None,
    ) -> None:
        self._pool = pool
        self._forge = forge
        self._repo = repo
        self._scheme = rules.scheme
        self._overlap = overlap
        self._full = full
        self._anew = anew
        self._taking = Taking(pool, forge, repo, rules, offset=offset, ring=ring)
        self._walk = Walk()
        self.made = 0
        self.held = KeptBack()
        self._failures = 0

    async def run(self) -> Scanned:
        """All pages. ForgeError when a page could not be read: then the cursor must stay where it is."""
        began = await self._clock()
        asked = None
        if self._full or not self._repo.readable or self._repo.doubted:
            asked = began
            await self._refresh()
        since = None if self._full else self._repo.since
        try:
            first = await self._pages(since)
        except ForgeError as error:
            # A page that cannot be read for good must not starve those before it. Nor is a forge that is away asked on.
            if isinstance(error, ForgeUnavailable):
                self._failures = max(self._failures, OUTAGE - 1)
            await self.take_held(self._keep)
            raise
        await self.take_held(self._keep)
        if self._full and not self._walk.torn:
            async with self._pool.connection() as conn:
                await polls.look_for_unseen(conn, self._repo, self._walk.seen, began=began)
        ended = await self._clock()
        cursor = after_scan(
            self._repo.cursor,
            found=self._walk.newest,
            server_date=first.server_date,
            began=began,
            ended=ended,
            overlap=self._overlap,
        )
        return Scanned(
            self._repo.cursor if self._walk.torn else cursor,
            len(self._walk.seen),
            self.made,
            self._taking.offset if first.server_date else None,
            whole=not self._walk.torn,
            began=began,
            ended=ended,
            server_date=first.server_date,
            asked=asked,
        )

    async def _pages(self, since: datetime | None) -> IssuePage:
        """Read and take in all pages; the first one."""
        first: IssuePage | None = None
        for number in range(1, MAX_PAGES):
            asked_at = await self._clock(keep=number > 1)
            page = await self._forge.issues(self._repo.ref, page=number, since=since)
            if first is None:
                first = page
                self._taking.offset = page.server_date - asked_at if page.server_date else timedelta()
            new = self._walk.fresh([one.number for one in page.issues])
            fresh = [one for one in page.issues if one.number in new]
            step = self._note(page)
            await self.take_page(fresh, page, asked_at)
            if full([self.held]):
                await self.take_held(self._keep)
            match step:
                case Step.ON:
                    pass
                case Step.END:
                    return first
                case Step.CIRCLES:
                    said = f"page {number} shows what earlier ones did"
                    raise ForgeGarbled(f"listing the issues of {self._repo.ref}: {said}")
                case _:
                    assert_never(step)
        raise ForgeGarbled(f"listing the issues of {self._repo.ref}: no end after {MAX_PAGES} pages")

    async def _refresh(self) -> None:
        """What the repository is now, by its id: a new name, a new default branch."""
        found = await self._forge.repository(self._repo.forge_repo_id)
        async with self._pool.connection() as conn, transaction(conn, f"refreshing {self._repo.ref}"):
            await repos.refresh_repository(conn, self._repo.id, found, forge=self._repo.forge)
        if (found.owner, found.name) != (self._repo.owner, self._repo.name):
            raise Moved(f"{self._repo.ref} is {found.owner}/{found.name} now")
        if found.set_aside is not None:
            raise SetAsideError(found.set_aside)

    def _note(self, page: IssuePage) -> Step:
        named = [*(one.number for one in page.issues), *(one.number for one in page.malformed if one.number)]
        return self._walk.page(
            named,
            nameless=sum(1 for one in page.malformed if not one.number),
            newest=max((one.updated_at for one in page.issues), default=None),
            rows=page.rows,
            total=page.total,
        )

    async def _clock(self, *, keep: bool = False) -> datetime:
        """The database's clock; `keep`: go on with the take, which has an expiry."""
        async with self._pool.connection() as conn:
            if keep and not await polls.keep_take(conn, self._repo):
                raise TakeLostError(str(self._repo.ref))
            return await clock(conn)

    async def _keep(self) -> None:
        await self._clock(keep=True)

    # ------------------------------------------------------------------ issues

    async def take_page(self, fresh: list[Snapshot], page: IssuePage, asked_at: datetime) -> None:
        """Take in what is new on a page; also one of a search, cut down to this repository.

        What asks for work is kept back for `take_held`, which the caller owes after the last page.
        """
        async with self._pool.connection() as conn:
            for bad in page.malformed:
                if bad.number:
                    await looks.fail_look(conn, self._repo.id, bad.number, why="unreadable in a list", error=bad.error)
                _log.warning(
                    "issue not readable",
                    forge=self._repo.forge,
                    issue=f"{self._repo.ref}#{bad.number}",
                    error=bad.error,
                )
            skip: frozenset[int] = frozenset()
            if not self._anew:
                skip = await polls.unchanged(conn, self._repo.id, fresh, live_too=not self._full)
        seen = [self._seen(snapshot, page, asked_at) for snapshot in fresh if snapshot.number not in skip]
        stored = await self._store_plain(seen, asked_at)
        for one in seen:
            if self._asks(one.snapshot):
                self.held.keep(one)
            elif one.snapshot.number not in stored:
                await self._take(one)

    async def take_held(self, keep: Callable[[], Awaitable[None]]) -> None:
        """Take in what was kept back, who asked first first. `keep`: called now and then, to go on with the take."""
        asked, trouble = InOrder(), None
        try:
            for n, one in enumerate(self.held.drain()):
                if n % KEEP_EVERY == KEEP_EVERY - 1:
                    await keep()
                timeline = await self._guarded(one.snapshot.number, self._taking.timeline(one))
                if timeline is not None:
                    asked.add(one, timeline, asked=asked_last(timeline, self._scheme))
        except ForgeError as error:
            trouble = error
        for n, (one, timeline) in enumerate(asked.in_order()):
            if n % KEEP_EVERY == KEEP_EVERY - 1:
                await keep()
            await self._take(one, timeline)
        if trouble is not None:
            raise trouble

    def _asks(self, snapshot: Snapshot) -> bool:
        return snapshot.state is IssueState.OPEN and read(snapshot.labels, self._scheme).asks

    def _seen(self, snapshot: Snapshot, page: IssuePage, asked_at: datetime) -> Seen:
        sure = settled(snapshot.updated_at, server_date=page.server_date, asked_at=asked_at, overlap=self._overlap)
        return Seen(snapshot, asked_at, sure)

    async def _store_plain(self, seen: list[Seen], asked_at: datetime) -> frozenset[int]:
        """Store those that nobody knows and nobody asks anything on, in one go: a first scan shows little else."""
        plain = [Plain(one.snapshot, one.settled) for one in seen if is_plain(one.snapshot, self._scheme)]

        async def work(conn: Connection) -> frozenset[int]:
            return await store_plain(conn, self._repo.id, plain, asked_at=asked_at)

        try:
            return await in_transaction(self._pool, work, doing=f"storing issues of {self._repo.ref}")
        except StoreUnavailable:
            raise
        except StoreError as error:
            # One of them is bad: by itself each is stored, or remembered as a look with its error.
            _log.warning(
                "page not stored at once", forge=self._repo.forge, repository=str(self._repo.ref), error=str(error)
            )
            return frozenset()

    async def _take(self, seen: Seen, timeline: tuple[TimelineEntry, ...] | None = None) -> None:
        number = seen.snapshot.number
        taken = await self._guarded(number, self._taking.take(seen, timeline=timeline))
        if taken is not None:
            self.made += taken.made
            if taken.made:
                _log.info("job enqueued", forge=self._repo.forge, issue=f"{self._repo.ref}#{number}")

    async def _guarded(self, number: int, doing: Awaitable[T]) -> T | None:
        """What is wrong with one issue is remembered as a look and holds up nothing else: None."""
        try:
            done = await doing
        except (ReplacedError, Moved, StoreUnavailable):
            raise  # the repository's trouble, or the database's
        except ForgeUnavailable as error:
            self._failures += 1
            await self._fail(number, error)
            if self._failures >= OUTAGE:
                raise
        except ForgeError as error:
            if error.status == 401:
                raise
            await self._fail(number, error)
        except Exception as error:  # noqa: BLE001 - the top of the loop over issues: one bad issue stops no other
            _log.exception("issue not taken in", forge=self._repo.forge, issue=f"{self._repo.ref}#{number}")
            await self._fail(number, error)
        else:
            self._failures = 0
            return done
        return None

    async def _fail(self, number: int, error: Exception) -> None:
        said = str(error) if isinstance(error, ForgeError) else f"{type(error).__name__}: {error}"
        async with self._pool.connection() as conn:
            await looks.fail_look(conn, self._repo.id, number, why="could not be taken in", error=said)
