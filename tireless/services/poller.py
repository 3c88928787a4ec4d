"""Asks forges what has changed and takes it in: polling is the truth, looks and webhooks only shorten the wait.

`tick` answers due looks, and searches for one owner's changes or polls one due repository. Any number of pollers may
run; each takes what it works on by a token with an expiry. A bad issue becomes a look with its error, a bad repository
backs off; neither stops another.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from tireless import log
from tireless.domain.people import Policy
from tireless.domain.retry import doubling
from tireless.errors import ForgeDenied, ForgeError, ForgeUnavailable, Moved, NotFound, StoreError, StoreUnavailable
from tireless.forge.base import Forge
from tireless.services.owners import Owners, note_served
from tireless.services.patience import Patience, is_outage
from tireless.services.resolving import resolve
from tireless.services.ringing import rung_transaction
from tireless.services.scanning import Scan, Scanned, SetAsideError, TakeLostError
from tireless.services.taking import ReplacedError, Taking
from tireless.store import look as looks
from tireless.store import owners, polls, repos
from tireless.store.db import Pool, clock, transaction
from tireless.store.forges import forge_failed, forge_reached
from tireless.store.gone import Missing, missed
from tireless.store.intake import Rules
from tireless.store.look import Look, Ring
from tireless.store.repos import RepoRow

_log = log.get(__name__)

LOOKS_AT_ONCE = 20
BACKOFF_BASE_S = 30.0
BACKOFF_CAP_S = 900.0
LOOK_BASE_S = 30.0
LOOK_CAP_S = 3600.0
GONE_AGAIN_S = 610.0
"""A little more than the time after which a missing issue is gone."""


@dataclass(frozen=True, slots=True)
class Round:
    """What `poll_once` came to: repositories polled, looks answered, new jobs, and errors by repository."""

    polled: int = 0
    looked: int = 0
    made: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)


class Poller:
    """Polls the watched repositories of these forges. `rules.policy.bot` is filled in from what each token says."""

    name = "poller"

    def __init__(
        self,
        pool: Pool,
        forges: Mapping[str, Forge],
        *,
        rules: Rules,
        poll_s: float = 60.0,
        full_scan_s: float = 3600.0,
        overlap_s: float = 120.0,
        by: str = "poller",
        backoff_base_s: float = BACKOFF_BASE_S,
        jitter: Callable[[], float] = random.random,
        by_owner: bool = True,
        ring: Ring | None = None,
    ) -> None:
        """`by_owner`: one search for the issues of all repositories of an owner, where it can be trusted.

        `ring` is told whom to wake for what has committed; without it every transaction notifies.
        """
        self._pool = pool
        self._forges = forges
        self._rules = rules
        self._poll_s = poll_s
        self._full_scan_s = full_scan_s
        self._overlap = timedelta(seconds=overlap_s)
        self._by = by
        self._base_s = backoff_base_s
        self._jitter = jitter
        self._patience = Patience(forges, base_s=backoff_base_s, cap_s=BACKOFF_CAP_S, jitter=jitter)
        self._by_owner = by_owner
        self._ring = ring
        self._owners = Owners(
            pool,
            self._patience,
            by=by,
            poll_s=poll_s,
            overlap=self._overlap,
            jitter=jitter,
            backoff_base_s=backoff_base_s,
            ring=ring,
        )
        self._known: dict[str, Rules] = {}
        self._offsets: dict[str, timedelta] = {}
        self._errors: dict[str, str] = {}
        self._renamed: set[int] = set()

    async def tick(self) -> bool:
        """Answer due looks and poll one due repository; False when neither was due."""
        looked = await self._answer_looks()
        forges = self._patience.ready()
        if self._by_owner and await self._search(forges):
            return True
        async with self._pool.connection() as conn:
            repo = await polls.take_repository(conn, forges, by=self._by, full_scan_s=self._full_scan_s)
        if repo is None:
            return looked > 0
        await self._poll(repo, full=repo.full_scan_due)
        return True

    async def poll_once(self, *, full: bool = False) -> Round:
        """Poll every watched repository now, due or not, then answer the looks that are due."""
        async with self._pool.connection() as conn:
            waiting = [repo.id for repo in await repos.tracked_repos(conn) if repo.forge in self._forges]
        self._errors.clear()
        again: set[int] = set()
        polled = made = looked = 0
        while waiting:
            async with self._pool.connection() as conn:
                repo = await polls.take_repository(
                    conn, list(self._forges), by=self._by, full_scan_s=self._full_scan_s, at_once=waiting
                )
            if repo is None:
                break  # the others are being polled by somebody else
            waiting.remove(repo.id)
            scanned = await self._poll(repo, full=full or repo.full_scan_due)
            if repo.id in self._renamed and repo.id not in again:
                waiting.append(repo.id)
                again.add(repo.id)
            polled += scanned is not None
            made += scanned.made if scanned is not None else 0
        while answered := await self._answer_looks():
            looked += answered
        return Round(polled, looked, made, dict(self._errors))

    async def _search(self, forges: Sequence[str]) -> bool:
        """Search for what changed of one due owner; False when none is due."""
        async with self._pool.connection() as conn:
            row = await owners.take_owner(conn, forges, by=self._by)
        if row is None:
            return False
        forge = self._forges[row.forge]
        try:
            rules = await self._rules_of(forge)
        except ForgeError as error:
            await self._owners.failed(row, error, began=self._patience.now())
            return True
        offset = await self._owners.poll(forge, row, rules, judged_by=fingerprint(rules))
        if offset is not None:
            self._offsets[forge.name] = offset
        return True

    # ------------------------------------------------------------------ repositories

    async def _poll(self, repo: RepoRow, *, full: bool) -> Scanned | None:
        """One poll of a taken repository, to its end or to its error; None after an error."""
        forge = self._forges[repo.forge]
        self._renamed.discard(repo.id)
        about = {"forge": repo.forge, "repository": str(repo.ref)}
        began = self._patience.now()
        try:
            rules = await self._rules_of(forge)
            judged_by = fingerprint(rules)
            anew = repo.judged_by != judged_by
            scan = Scan(
                self._pool,
                forge,
                repo,
                rules,
                overlap=self._overlap,
                full=full or anew,
                anew=anew,
                ring=self._ring,
            )
            scanned = await scan.run()
        except TakeLostError:
            _log.info("poll take lost", **about)
            return None
        except SetAsideError as why:
            await self._set_aside(repo, forge, str(why))
            return None
        except StoreUnavailable:
            raise  # not the repository's fault: the loop backs off, the take runs out
        except (ForgeError, ReplacedError, StoreError) as error:
            await self._failed(repo, forge, error, began=began)
            return None
        self._patience.answered(forge.name)
        if scanned.offset is not None:
            self._offsets[forge.name] = scanned.offset
        all_seen = (full or anew) and scanned.whole
        served = await self._owners.serves(forge, repo, scanned, full=all_seen) if self._by_owner else None
        delay_s = self._poll_s * (0.9 + 0.2 * self._jitter())
        async with rung_transaction(self._pool, f"ending the poll of {repo.ref}", self._ring) as (conn, ring):
            if not repo.readable:
                await repos.mark_readable(conn, repo.id, ring=ring)
            if served is not None:
                await note_served(conn, repo, served, began=scanned.began, delay_s=delay_s)
            await polls.polled(
                conn,
                repo,
                scanned.cursor,
                full=all_seen,
                judged_by=judged_by,
                delay_s=delay_s,
                # where the search sees its changes, the next poll of its own is the next full scan
                searched_delay_s=self._full_scan_s * (1 + 0.1 * self._jitter()),
                began=scanned.began if scanned.whole else None,
                asked=scanned.asked,
            )
        _log.debug("repository polled", **about, issues=scanned.issues, made=scanned.made, full=full)
        return scanned

    async def _set_aside(self, repo: RepoRow, forge: Forge, reason: str) -> None:
        """It answers, but nothing can come of it: its jobs wait, and it is asked for as seldom as it is read whole."""
        self._patience.answered(forge.name)
        delay_s = self._full_scan_s * (0.9 + 0.2 * self._jitter())
        async with self._pool.connection() as conn, transaction(conn, f"setting {repo.ref} aside"):
            await repos.mark_unreadable(conn, repo.id, reason)
            await polls.set_aside(conn, repo, delay_s=delay_s)
        if repo.readable or repo.doubted:
            _log.warning("repository set aside", forge=repo.forge, repository=str(repo.ref), reason=reason)

    async def _failed(
        self, repo: RepoRow, forge: Forge, error: ForgeError | ReplacedError | StoreError, *, began: float
    ) -> None:
        """Find out what an error means for the repository, and put its next poll off."""
        again_s = self._wait_s(error, repo.poll_failures + 1)
        if isinstance(error, ForgeError) and is_outage(error):
            if self._patience.failed(forge.name, error, asked_at=began):
                async with self._pool.connection() as conn:
                    await forge_failed(conn, forge.name, str(error))
        elif isinstance(error, Moved | ForgeDenied | NotFound | ReplacedError) and await self._resolve(
            repo, forge, error
        ):
            again_s = 0.0
            self._renamed.add(repo.id)
        if repo.id not in self._renamed:
            self._errors[str(repo.ref)] = str(error)
        async with self._pool.connection() as conn:
            await polls.poll_failed(conn, repo, str(error), delay_s=again_s)
        _log.warning(
            "repository not polled",
            forge=repo.forge,
            repository=str(repo.ref),
            error=str(error),
            failures=repo.poll_failures + 1,
            again_s=round(again_s),
        )

    async def _resolve(self, repo: RepoRow, forge: Forge, error: Exception) -> bool:
        return await resolve(self._pool, forge, repo, error, require_opt_in=self._rules.scheme.require_opt_in)

    def _wait_s(self, error: Exception, failures: int) -> float:
        if isinstance(error, ForgeUnavailable):
            return self._patience.wait_s(error, failures)
        return doubling(failures, base_s=self._base_s, cap_s=BACKOFF_CAP_S) * (0.5 + self._jitter() / 2)

    async def _rules_of(self, forge: Forge) -> Rules:
        """The rules, with the bot as this forge knows it; asked once per process."""
        if forge.name not in self._known:
            about = await forge.about()
            policy: Policy = replace(self._rules.policy, bot=about.login or self._rules.policy.bot)
            async with self._pool.connection() as conn:
                await forge_reached(
                    conn,
                    forge.name,
                    flavour=about.capabilities.flavour,
                    version=about.capabilities.version,
                    bot=about.login,
                )
            self._known[forge.name] = replace(self._rules, policy=policy)
        return self._known[forge.name]

    # ------------------------------------------------------------------ looks

    async def _answer_looks(self) -> int:
        """Answer looks that are due, a few at a time; how many were taken."""
        async with self._pool.connection() as conn:
            taken = await looks.take_looks(conn, self._patience.ready(), limit=LOOKS_AT_ONCE)
        places = {look.repository_id for look in taken}
        # Repositories beside each other: one that hangs holds up no look but its own.
        done = await asyncio.gather(
            *(self._answer_all([look for look in taken if look.repository_id == place]) for place in places),
            return_exceptions=True,
        )
        for error in done:
            if error is not None:
                raise error
        return len(taken)

    async def _answer_all(self, taken: Sequence[Look]) -> None:
        for look in taken:
            await self._answer(look)

    async def _answer(self, look: Look) -> None:
        async with self._pool.connection() as conn:
            repo = await repos.watched(conn, look.repository_id)
        if repo is None:
            return
        began = self._patience.now()
        forge = self._forges[repo.forge]
        try:
            rules = await self._rules_of(forge)
            offset = await self._offset(forge, repo)
            taking = Taking(self._pool, forge, repo, rules, offset=offset, ring=self._ring)
            seen = await taking.read(look.number)
            await taking.take(seen, look=look)
            self._patience.answered(forge.name)
        except NotFound as error:
            await self._absent(look, repo, forge, error)
        except (Moved, ReplacedError) as error:
            await self._resolve(repo, forge, error)
            await self._put_off(look, repo, error, delay_s=self._poll_s)
        except ForgeError as error:
            if is_outage(error):
                self._patience.failed(forge.name, error, asked_at=began)
            await self._put_off(look, repo, error)
        except StoreUnavailable:
            raise  # not the issue's fault; the take runs out
        except Exception as error:  # noqa: BLE001 - the top of the loop over issues: one bad issue stops no other
            _log.exception("issue not judged", forge=repo.forge, issue=f"{repo.ref}#{look.number}")
            await self._put_off(look, repo, error)

    async def _absent(self, look: Look, repo: RepoRow, forge: Forge, error: NotFound) -> None:
        """The issue answers 404: gone only while its repository, asked by id, is there and has issues."""
        try:
            found = await forge.repository(repo.forge_repo_id)
        except ForgeError as refused:
            await self._put_off(look, repo, refused)
            return
        if (found.owner, found.name) != (repo.owner, repo.name):
            await self._resolve(repo, forge, error)
            await self._put_off(look, repo, error, delay_s=self._poll_s)
        elif not found.has_issues:
            await self._put_off(look, repo, error)
        else:
            await self._missing(look, repo, error)

    async def _missing(self, look: Look, repo: RepoRow, error: NotFound) -> None:
        doing = f"noting that {repo.ref}#{look.number} is not there"
        async with rung_transaction(self._pool, doing, self._ring) as (conn, ring):
            if await missed(conn, repo.id, look.number, ring=ring) is Missing.SUSPECTED:
                await looks.put_off(conn, look, error=str(error), delay_s=GONE_AGAIN_S)
            else:
                await looks.answer_look(conn, look)

    async def _put_off(self, look: Look, repo: RepoRow, error: Exception, *, delay_s: float | None = None) -> None:
        if delay_s is None:
            delay_s = doubling(look.failures + 1, base_s=LOOK_BASE_S, cap_s=LOOK_CAP_S) * (0.5 + self._jitter() / 2)
        async with self._pool.connection() as conn:
            await looks.put_off(conn, look, error=said(error), delay_s=delay_s)
        _log.warning(
            "look put off",
            forge=repo.forge,
            issue=f"{repo.ref}#{look.number}",
            error=said(error),
            again_s=round(delay_s),
        )

    async def _offset(self, forge: Forge, repo: RepoRow) -> timedelta:
        """The forge's clock minus ours; one cheap request tells where no poll of this process has yet."""
        if forge.name not in self._offsets:
            async with self._pool.connection() as conn:
                now = await clock(conn)
            page = await forge.issues(repo.ref, page=1, since=now + timedelta(days=1))
            self._offsets[forge.name] = page.server_date - now if page.server_date else timedelta()
        return self._offsets[forge.name]


def fingerprint(rules: Rules) -> str:
    """A hash of what judging goes by: when it changes, everything is judged again."""
    policy = rules.policy
    parts = (rules.scheme, policy.who_may_ask, sorted(policy.allow), policy.bot, rules.lanes)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def said(error: Exception) -> str:
    """An error as it is stored: with its kind where the message alone would say nothing."""
    return str(error) if isinstance(error, ForgeError) else f"{type(error).__name__}: {error}"
