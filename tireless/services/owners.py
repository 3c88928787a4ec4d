"""One search for what changed in all repositories of an owner, in place of a poll of each; part of the poller.

It is trusted only for repositories of which it was seen to show what their own lists show, and that is tried again with
every full scan. Whatever is wrong with it or with a repository, that one is polled by itself again, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from tireless import log
from tireless.domain.cursor import Cursor, after_scan
from tireless.domain.issue import Repository, Snapshot
from tireless.domain.retry import doubling
from tireless.domain.walk import Step, Walk
from tireless.errors import ForgeError, ForgeGarbled, ForgeUnavailable, StoreError, StoreUnavailable
from tireless.forge.base import Forge, IssuePage, OwnerPage
from tireless.services.ordering import full
from tireless.services.patience import Patience, is_outage
from tireless.services.scanning import Scan, Scanned, TakeLostError
from tireless.services.taking import ReplacedError
from tireless.store import owners, polls
from tireless.store.db import Connection, Pool, clock, transaction
from tireless.store.forges import forge_failed
from tireless.store.intake import Rules
from tireless.store.look import Ring
from tireless.store.owners import OfOwner, OwnerRow
from tireless.store.repos import RepoRow

_log = log.get(__name__)

MAX_PAGES = 10_000
PROBE_PAGES = 5
"""Issues of an owner that carry one second's stamp: more than these tell nothing."""
AT_ONCE = 3
"""Repositories of a page that are read beside each other."""
LISTED_S = 300.0
"""Between two looks at what an owner's repositories are: the search does not show that one is gone or archived."""
PART_S = 60.0
"""How long a page's worth of one of them may take before it is polled by itself."""
PAGE = 50
"""Rows that a forge shows at once unless it was set up otherwise; only bounds of ours go by it."""
GIVEN_UP = 3
"""Failures of a search in a row after which each repository is polled by itself."""
BACKOFF_CAP_S = 900.0


@dataclass(frozen=True, slots=True)
class Served:
    """That the search shows a repository's issues, or why it does not serve it (empty: there is no need).

    `start`: where the owner's first search may begin.
    """

    fault: str | None = None
    start: Cursor | None = None


async def note_served(conn: Connection, repo: RepoRow, served: Served, *, began: datetime, delay_s: float) -> None:
    """Write down whether the search serves a repository; in the transaction that ends its own poll (of `began`)."""
    if served.fault is not None:
        await owners.refuse(conn, repo, served.fault)
    elif served.start is not None:
        await owners.join(conn, repo, served.start, began=began, delay_s=delay_s)


class Owners:
    """The searches of a poller."""

    def __init__(
        self,
        pool: Pool,
        patience: Patience,
        *,
        by: str,
        poll_s: float,
        overlap: timedelta,
        jitter: Callable[[], float],
        backoff_base_s: float,
        ring: Ring | None = None,
    ) -> None:
        self._pool = pool
        self._patience = patience
        self._by = by
        self._poll_s = poll_s
        self._overlap = overlap
        self._jitter = jitter
        self._base_s = backoff_base_s
        self._ring = ring

    async def poll(self, forge: Forge, row: OwnerRow, rules: Rules, *, judged_by: str) -> timedelta | None:
        """One search of a taken owner, to its end or to its error; the forge's clock minus ours, if it said."""
        began = self._patience.now()
        search = _Search(self._pool, forge, row, rules, overlap=self._overlap, ring=self._ring)
        try:
            await search.run(judged_by=judged_by, delay_s=self._poll_s * (0.9 + 0.2 * self._jitter()))
        except TakeLostError:
            _log.info("search take lost", forge=row.forge, owner=row.owner)
            return None
        except StoreUnavailable:
            raise  # not the owner's fault: the loop backs off, the take runs out
        except (ForgeError, StoreError) as error:
            await self.failed(row, error, began=began)
            return None
        self._patience.answered(forge.name)
        await self._compare(forge, row)
        return search.offset

    async def _compare(self, forge: Forge, row: OwnerRow) -> None:
        """Now and then: which of an owner's repositories are not what they were? Their own polls find out.

        So seldom that it asks no more than the searches do. A list that cannot be read says nothing about anybody.
        """
        if row.listed_s < LISTED_S:
            return
        async with self._pool.connection() as conn:
            watched = await owners.of_owner(conn, row)
            if row.listed_s < self._poll_s * len(watched) / PAGE:
                return
            await owners.owner_listed(conn, row)
        try:
            shown = {each.id: each for each in await forge.repositories(row.owner)}
        except ForgeError as error:
            _log.warning("owner's repositories not listed", forge=row.forge, owner=row.owner, error=str(error))
            return
        doubtful = [each.id for each in watched if _differs(each, shown.get(each.forge_repo_id))]
        if doubtful:
            async with self._pool.connection() as conn:
                await polls.doubt(conn, doubtful)
            _log.info("repositories asked what they are", forge=row.forge, owner=row.owner, count=len(doubtful))

    async def failed(self, row: OwnerRow, error: ForgeError | StoreError, *, began: float) -> None:
        """A search that could not be ended is tried again; one that is refused, or fails on and on, is given up."""
        failures = row.poll_failures + 1
        away = isinstance(error, ForgeError) and is_outage(error)
        if isinstance(error, ForgeError) and away and self._patience.failed(row.forge, error, asked_at=began):
            async with self._pool.connection() as conn:
                await forge_failed(conn, row.forge, str(error))
        elif not isinstance(error, ForgeUnavailable) or failures >= GIVEN_UP:
            await self._give_up(row, str(error))
        again_s = doubling(failures, base_s=self._base_s, cap_s=BACKOFF_CAP_S) * (0.5 + self._jitter() / 2)
        if isinstance(error, ForgeUnavailable):
            again_s = self._patience.wait_s(error, failures)
        async with self._pool.connection() as conn:
            await owners.owner_failed(conn, row, str(error), delay_s=again_s)
        _log.warning(
            "owner not searched",
            forge=row.forge,
            owner=row.owner,
            error=str(error),
            failures=failures,
            again_s=round(again_s),
        )

    async def _give_up(self, row: OwnerRow, why: str) -> None:
        async with self._pool.connection() as conn:
            served = await owners.searched_repos(conn, row)
            await owners.leave(conn, [repo.id for repo in served.values()], f"the search for {row.owner} fails: {why}")

    async def serves(self, forge: Forge, repo: RepoRow, scanned: Scanned, *, full: bool) -> Served | None:
        """After a poll of its own: does the search show the issue of this repository that changed last?

        None: it was not asked, or cannot be told now. Asked once there is a cursor to go on from, and with every full
        scan, where the owner has several repositories.
        """
        if scanned.cursor.since is None or not scanned.whole or not (full or not repo.searched):
            return None
        async with self._pool.connection() as conn:
            if await owners.siblings(conn, repo) < 2:
                return Served("") if repo.searched else None
            if not full and not await owners.untried(conn, repo):
                return None
            newest = await owners.newest_issue(conn, repo)
            stood = await owners.witness(conn, repo, began=scanned.began)
        if newest is None:
            return None
        try:
            served = await self._shows(forge, repo, *newest)
        except ForgeUnavailable:
            return None
        except ForgeError as error:
            return Served(str(error))
        if served is None or served.fault is not None:
            return served
        # Not where this repository stood, which may have been quiet for a year: all lists tell the forge's one clock.
        start = after_scan(
            stood,
            found=scanned.cursor.newest,
            server_date=scanned.server_date,
            began=scanned.began,
            ended=scanned.ended,
            overlap=self._overlap,
        )
        return Served(start=start) if start.since is not None else None

    async def _shows(self, forge: Forge, repo: RepoRow, number: int, stamp: datetime) -> Served | None:
        """Both ends of the time are inclusive, so that the answer is small."""
        for page_number in range(1, PROBE_PAGES + 1):
            page = await forge.owner_issues(repo.owner, page=page_number, since=stamp, before=stamp)
            if any((where, one.number) == (repo.forge_repo_id, number) for where, one in page.issues):
                return Served()
            if page.rows == 0:
                break
        else:
            return None
        if (await forge.issue(repo.ref, number)).updated_at != stamp:
            return None  # it has changed since: the next full scan asks again
        return Served(f"the search for the issues of {repo.owner} does not show #{number}, the list does")


def _differs(before: OfOwner, now: Repository | None) -> bool:
    """Gone or hidden, renamed, set aside, or not set aside any more?"""
    if now is None:
        return before.readable
    moved = (before.owner, before.name) != (now.owner, now.name)
    return moved or before.readable != (now.set_aside is None)


class _Search:
    """One search, page by page; each repository's part of a page is taken in as a page of its own list."""

    def __init__(
        self, pool: Pool, forge: Forge, row: OwnerRow, rules: Rules, *, overlap: timedelta, ring: Ring | None
    ) -> None:
        self._pool = pool
        self._forge = forge
        self._row = row
        self._rules = rules
        self._overlap = overlap
        self._ring = ring
        self._walk = Walk()
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._scans: dict[int, Scan] = {}
        self._served: dict[int, RepoRow] = {}
        self.offset: timedelta | None = None

    async def run(self, *, judged_by: str, delay_s: float) -> None:
        """All pages, then the cursor. ForgeError when a page could not be read: the cursor stays where it is."""
        row = self._row
        async with self._pool.connection() as conn:
            self._served = await owners.searched_repos(conn, row)
        began = await self._clock()
        try:
            server_date = await self._pages()
        except ForgeUnavailable:
            raise
        except ForgeError:
            await self._take_held()  # a page that cannot be read for good starves none before it
            raise
        await self._take_held()
        cursor = after_scan(
            row.cursor,
            found=self._walk.newest,
            server_date=server_date,
            began=began,
            ended=await self._clock(),
            overlap=self._overlap,
        )
        to = None if self._walk.torn else cursor
        doing = f"ending the search of {row.owner}"
        async with self._pool.connection() as conn, transaction(conn, doing):
            await owners.owner_polled(conn, row, to, began=began, judged_by=judged_by, delay_s=delay_s)
        made = sum(scan.made for scan in self._scans.values())
        _log.debug("owner searched", forge=row.forge, owner=row.owner, issues=len(self._walk.seen), made=made)

    async def _pages(self) -> datetime | None:
        """Read and take in all pages; the Date of the first."""
        server_date: datetime | None = None
        for number in range(1, MAX_PAGES):
            asked_at = await self._clock(keep=number > 1)
            page = await self._forge.owner_issues(self._row.owner, page=number, since=self._row.since)
            if number == 1:
                server_date = page.server_date
                self.offset = server_date - asked_at if server_date else None
            fresh = self._walk.fresh([one.issue_id for _, one in page.issues])
            step = self._walk.page(
                [one.issue_id for _, one in page.issues],
                nameless=len(page.malformed),
                newest=max((one.updated_at for _, one in page.issues), default=None),
                rows=page.rows,
                total=page.total,
            )
            await self._take_page(page, fresh, asked_at)
            if full(scan.held for scan in self._scans.values()):
                await self._take_held()
            if step is Step.END:
                return server_date
            if step is Step.CIRCLES:
                break
        raise ForgeGarbled(f"searching the issues of {self._row.owner}: there is no end to the pages")

    async def _take_page(self, page: OwnerPage, fresh: frozenset[int], asked_at: datetime) -> None:
        parts = []
        for where in dict.fromkeys([*(each for each, _ in page.issues), *(each for each, _ in page.malformed)]):
            repo = self._served.get(where)
            if repo is None:
                continue  # not watched, or polled by itself
            part = IssuePage(
                issues=tuple(one for each, one in page.issues if each == where),
                rows=page.rows,
                total=page.total,
                server_date=page.server_date,
                malformed=tuple(bad for each, bad in page.malformed if each == where),
            )
            new: list[Snapshot] = [one for one in part.issues if one.issue_id in fresh]
            parts.append(self._take_part(repo, len(new), partial(self._scan(repo).take_page, new, part, asked_at)))
        await _all(parts)

    async def _take_held(self) -> None:
        """What asked for work on the pages until now."""
        held = [(self._served[where], scan) for where, scan in self._scans.items() if len(scan.held)]
        await _all(self._take_part(repo, len(scan.held), partial(scan.take_held, self._keep)) for repo, scan in held)

    async def _take_part(self, repo: RepoRow, count: int, take: Callable[[], Awaitable[None]]) -> None:
        """Some issues of one repository. A few beside each other: one that hangs holds up no other."""
        async with self._gate:
            await self._keep()
            within_s = PART_S * max(1.0, count / PAGE)
            try:
                async with asyncio.timeout(within_s):
                    await take()
                return
            except TimeoutError:
                fault = f"its issues took longer than {within_s:.0f} s"
            except ReplacedError:
                fault = "another issue has the number of a known one"
            except ForgeError as error:
                fault = str(error)
        # Renamed, made again, hanging, refused: its own poll finds out what that means, the others go on.
        self._served.pop(repo.forge_repo_id, None)
        self._scan(repo).held.drain()
        async with self._pool.connection() as conn:
            await owners.leave(conn, [repo.id], fault)
        _log.info("repository polled by itself", forge=repo.forge, repository=str(repo.ref), error=fault)

    def _scan(self, repo: RepoRow) -> Scan:
        if repo.forge_repo_id not in self._scans:
            self._scans[repo.forge_repo_id] = Scan(
                self._pool,
                self._forge,
                repo,
                self._rules,
                overlap=self._overlap,
                full=False,
                anew=False,
                offset=self.offset or timedelta(),
                ring=self._ring,
            )
        return self._scans[repo.forge_repo_id]

    async def _keep(self) -> None:
        await self._clock(keep=True)

    async def _clock(self, *, keep: bool = False) -> datetime:
        async with self._pool.connection() as conn:
            if keep and not await owners.keep_owner(conn, self._row):
                raise TakeLostError(self._row.owner)
            return await clock(conn)


async def _all(parts: Iterable[Awaitable[None]]) -> None:
    """To the end of each; then the first error."""
    for error in await asyncio.gather(*parts, return_exceptions=True):
        if error is not None:
            raise error
