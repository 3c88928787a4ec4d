"""One poll of one repository: pages to the end, each issue taken in by itself; part of the poller."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tireless import log
from tireless.domain.cursor import Cursor, after_scan
from tireless.domain.issue import Snapshot
from tireless.errors import ForgeError, ForgeGarbled, ForgeUnavailable, Moved, StoreUnavailable
from tireless.forge.base import Forge, IssuePage
from tireless.services.taking import SETTLED, ReplacedError, Seen, Taking
from tireless.store import look as looks
from tireless.store import polls, repos
from tireless.store.db import Pool, clock, transaction
from tireless.store.intake import Rules
from tireless.store.repos import RepoRow

_log = log.get(__name__)

SAME_AGAIN = 3
"""Pages in a row that show nothing new, from a forge that goes round in circles."""

OUTAGE = 3
"""Issues in a row that the forge did not answer for: it is the forge, not they."""


class TakeLostError(Exception):
    """Another poller has the repository, or nobody watches it any more."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a whole scan came to."""

    cursor: Cursor
    issues: int
    made: int
    offset: timedelta | None
    """The forge's clock minus ours, None when it did not say."""


class Scan:
    """`full`: from the beginning, asking what the repository is and missing what is gone; `anew`: also what is judged
    already, since the rules have changed. Without a cursor any scan begins at the beginning."""

    def __init__(
        self, pool: Pool, forge: Forge, repo: RepoRow, rules: Rules, *, overlap: timedelta, full: bool, anew: bool
    ) -> None:
        self._pool = pool
        self._forge = forge
        self._repo = repo
        self._overlap = overlap
        self._full = full
        self._anew = anew
        self._taking = Taking(pool, forge, repo, rules, offset=timedelta())
        self._seen: set[int] = set()
        self._nameless = 0
        self._newest: datetime | None = None
        self._made = 0
        self._failures = 0

    async def run(self) -> Scanned:
        """All pages. ForgeError when a page could not be read: then the cursor must stay where it is."""
        began = await self._clock()
        if self._full:
            await self._refresh()
        since = None if self._full else self._repo.since
        first: IssuePage | None = None
        stale = 0
        for number in range(1, 1_000_000):
            asked_at = await self._clock(keep=number > 1)
            page = await self._forge.issues(self._repo.ref, page=number, since=since)
            if first is None:
                first = page
                self._taking.offset = page.server_date - asked_at if page.server_date else timedelta()
            fresh = [one for one in page.issues if one.number not in self._seen]
            before = self._distinct
            self._note(page)
            await self._take_page(fresh, page, asked_at)
            if page.rows == 0 or (page.total is not None and self._distinct >= page.total):
                break
            stale = stale + 1 if self._distinct == before else 0
            if stale >= SAME_AGAIN:
                raise ForgeGarbled(f"listing the issues of {self._repo.ref}: page {number} shows what earlier ones did")
        if self._full:
            async with self._pool.connection() as conn:
                await polls.look_for_unseen(conn, self._repo, self._seen, began=began)
        server_date = first.server_date if first is not None else None
        cursor = after_scan(
            self._repo.cursor,
            found=self._newest,
            server_date=server_date,
            began=began,
            ended=await self._clock(),
            overlap=self._overlap,
        )
        return Scanned(cursor, len(self._seen), self._made, self._taking.offset if server_date else None)

    async def _refresh(self) -> None:
        """What the repository is now, by its id: a new name, a new default branch."""
        found = await self._forge.repository(self._repo.forge_repo_id)
        async with self._pool.connection() as conn, transaction(conn, f"refreshing {self._repo.ref}"):
            await repos.refresh_repository(conn, self._repo.id, found, forge=self._repo.forge)
        if (found.owner, found.name) != (self._repo.owner, self._repo.name):
            raise Moved(f"{self._repo.ref} is {found.owner}/{found.name} now")

    @property
    def _distinct(self) -> int:
        return len(self._seen) + self._nameless

    def _note(self, page: IssuePage) -> None:
        """Count what was seen: rows repeat when new ones push others down a page."""
        self._seen |= {one.number for one in page.issues}
        self._seen |= {one.number for one in page.malformed if one.number}
        self._nameless += sum(1 for one in page.malformed if not one.number)
        stamps = [one.updated_at for one in page.issues]
        self._newest = max([*stamps, *([self._newest] if self._newest else [])], default=None)

    async def _clock(self, *, keep: bool = False) -> datetime:
        """The database's clock; `keep`: go on with the take, which has an expiry."""
        async with self._pool.connection() as conn:
            if keep and not await polls.keep_take(conn, self._repo):
                raise TakeLostError(str(self._repo.ref))
            return await clock(conn)

    # ------------------------------------------------------------------ issues

    async def _take_page(self, fresh: list[Snapshot], page: IssuePage, asked_at: datetime) -> None:
        async with self._pool.connection() as conn:
            for bad in page.malformed:
                if bad.number:
                    await looks.fail_look(conn, self._repo.id, bad.number, why="unreadable in a list", error=bad.error)
                _log.warning("issue not readable", issue=f"{self._repo.ref}#{bad.number}", error=bad.error)
            skip: frozenset[int] = frozenset()
            if not self._anew:
                skip = await polls.unchanged(conn, self._repo.id, fresh, live_too=not self._full)
        for snapshot in fresh:
            if snapshot.number not in skip:
                await self._take(Seen(snapshot, asked_at, _settled(snapshot, page, asked_at)))

    async def _take(self, seen: Seen) -> None:
        """Take one issue in; what is wrong with it is remembered as a look and holds up nothing else."""
        number = seen.snapshot.number
        try:
            taken = await self._taking.take(seen)
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
            _log.exception("issue not taken in", issue=f"{self._repo.ref}#{number}")
            await self._fail(number, error)
        else:
            self._failures = 0
            self._made += taken.made
            if taken.made:
                _log.info("job enqueued", issue=f"{self._repo.ref}#{number}")

    async def _fail(self, number: int, error: Exception) -> None:
        said = str(error) if isinstance(error, ForgeError) else f"{type(error).__name__}: {error}"
        async with self._pool.connection() as conn:
            await looks.fail_look(conn, self._repo.id, number, why="could not be taken in", error=said)


def _settled(snapshot: Snapshot, page: IssuePage, asked_at: datetime) -> bool:
    """By both clocks, since either may be wrong."""
    return page.server_date is not None and snapshot.updated_at + SETTLED < min(page.server_date, asked_at)
