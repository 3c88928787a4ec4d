"""`tireless repos`: which repositories are watched, and an operator's own among them."""

from __future__ import annotations

import click

from tireless.app.forges import configured_owners, configured_repositories, open_forges
from tireless.app.serving import build_tracker, configured_limits
from tireless.cli.frame import Frame, database, database_pool, pass_frame, printing, run, table
from tireless.cli.words import chosen_forge, repository
from tireless.domain.issue import RepoRef, Repository
from tireless.domain.routing import MAX_RUNNING, MAX_RUNS_PER_DAY
from tireless.errors import ForgeUnavailable
from tireless.services.tracker import watch
from tireless.store import inspect
from tireless.store.db import Pool, transaction
from tireless.store.forges import Unfound, unfound_rows
from tireless.store.inspect import RepositoryRow
from tireless.store.limits import Limits, limit_repository
from tireless.store.polls import doubt
from tireless.store.repos import tracked_repos, untrack

FAILED = 1


@click.group("repos")
def repos() -> None:
    """See, add, drop, limit watched repositories."""


@repos.command("ls")
@click.option("--all", "every", is_flag=True, help="Those that were watched once as well.")
@printing
@pass_frame
def ls(frame: Frame, every: bool) -> None:
    """The watched repositories: when each is polled next, why one cannot be, its live jobs."""
    found, unfound = run(_rows(frame, every))
    head = ("REPOSITORY", "FORGE", "SOURCE", "NEXT POLL", "PENDING", "WAITING", "RUNNING", "PUBLISHING", "STATE")
    lines = [*map(_line, found), *((each.repo, each.forge, "config", *[None] * 5, each.reason) for each in unfound)]
    frame.show({"repositories": found, "unfound": unfound}, lambda: table(head, lines, empty=_none(frame)))


def _none(frame: Frame) -> str:
    settings = frame.settings
    named = [*configured_repositories(settings), *(owned.ref for owned in configured_owners(settings))]
    if not named:
        return "no repository is watched: name some under [forges.NAME], or `tireless repos add`"
    listed = ", ".join(ref.path for ref in named[:5]) + (", …" if len(named) > 5 else "")
    return (
        f"nothing is watched yet: what is configured ({listed}) is taken in by `tireless serve` or `up`, and now by "
        "`tireless repos sync`"
    )


async def _rows(frame: Frame, every: bool) -> tuple[list[RepositoryRow], list[Unfound]]:
    async with database(frame) as conn:
        return await inspect.repository_rows(conn, all_known=every), await unfound_rows(conn)


def _line(row: RepositoryRow) -> tuple[object, ...]:
    counts = row.pending, row.waiting, row.claimed, row.publishing
    return row.repo, row.forge, row.source, row.next_poll_at, *counts, state(row)


def state(row: RepositoryRow) -> str:
    """How it stands with a repository, in one line."""
    if not row.tracked:
        return "not watched"
    if not row.readable:
        return f"cannot be read: {row.unreadable_reason}"
    if row.poll_failures:
        return f"polls failed {row.poll_failures} times: {row.poll_error}"
    if not row.full_scan_at:
        return "not polled yet"
    if row.search_fault:
        return f"fine, by its own list: {row.search_fault}"
    return "fine, by the search for its owner's issues" if row.searched else "fine"


@repos.command("sync")
@printing
@pass_frame
def sync(frame: Frame) -> int:
    """Look now for what the configured owners have made or dropped; `serve` does so within the hour.

    What is watched is asked anew what it is (archived, renamed, gone) by the next poll of `serve`, which is due now.

    Exit code 1 when something that is configured is not there; the rest was done all the same.
    """
    before, after, unfound = run(_sync(frame))
    added, dropped = sorted(after - before), sorted(before - after)
    lines = [f"{len(after)} repositories are watched"]
    lines += [f"  new: {path}" for path in added] + [f"  dropped: {path}" for path in dropped]
    lines += [f"  not found: {each.repo}: {each.reason}" for each in unfound]
    data = {"watched": sorted(after), "added": added, "dropped": dropped, "unfound": unfound}
    frame.show(data, "\n".join(lines))
    return FAILED if unfound else 0


async def _sync(frame: Frame) -> tuple[set[str], set[str], list[Unfound]]:
    async with database_pool(frame) as pool, open_forges(frame.settings) as forges:
        before = await _watched(pool)
        tracker = build_tracker(frame.settings, pool, forges)
        await tracker.tick()
        if silent := [error for error in tracker.errors.values() if isinstance(error, ForgeUnavailable)]:
            raise silent[0]
        async with pool.connection() as conn:
            await doubt(conn, [row.id for row in await tracked_repos(conn) if row.forge in forges])
            unfound = await unfound_rows(conn)
        return before, await _watched(pool), unfound


async def _watched(pool: Pool) -> set[str]:
    async with pool.connection() as conn:
        return {f"{row.forge}:{row.ref.path}" for row in await tracked_repos(conn)}


@repos.command("add")
@click.argument("path", metavar="OWNER/REPO")
@printing
@pass_frame
def add(frame: Frame, path: str) -> None:
    """Watch one more repository, from the next poll on. The configuration stays as it is."""
    ref, found = run(_add(frame, path))
    data = {"forge": ref.forge, "repository": f"{found.owner}/{found.name}", "id": found.id}
    frame.show(data, f"{found.owner}/{found.name} on {ref.forge} is watched; `tireless labels sync` makes its labels")


async def _add(frame: Frame, path: str) -> tuple[RepoRef, Repository]:
    settings = frame.settings
    ref = _ref(frame, path)
    async with database_pool(frame) as pool, open_forges(settings) as forges:
        opt_in, limits = settings.labels.require_opt_in, configured_limits(settings)
        return ref, await watch(pool, forges[ref.forge], ref, require_opt_in=opt_in, limits=limits)


@repos.command("rm")
@click.argument("path", metavar="OWNER/REPO")
@printing
@pass_frame
def rm(frame: Frame, path: str) -> None:
    """Watch a repository no more; its jobs wait. One the configuration names is taken out there."""
    ref = _ref(frame, path)
    run(_rm(frame, ref))
    frame.show({"forge": ref.forge, "repository": ref.path}, f"{ref.path} on {ref.forge} is not watched any more")


async def _rm(frame: Frame, ref: RepoRef) -> None:
    async with database(frame) as conn, transaction(conn, f"dropping {ref}"):
        await untrack(conn, ref)


@repos.command("limit")
@click.argument("path", metavar="OWNER/REPO")
@click.option(
    "--running", type=click.IntRange(1, MAX_RUNNING), metavar="N", help="So many jobs at once, over all lanes."
)
@click.option(
    "--per-day", type=click.IntRange(1, MAX_RUNS_PER_DAY), metavar="N", help="So many runs of it in a day (UTC)."
)
@click.option("--none", "unlimited", is_flag=True, help="No limit, whatever the configuration says of all.")
@click.option("--as-configured", is_flag=True, help="What the configuration says of all.")
@printing
@pass_frame
def limit(
    frame: Frame, path: str, running: int | None, per_day: int | None, unlimited: bool, as_configured: bool
) -> None:
    """Limit one repository, from the next claim on; what is not named is not limited.

    While any repository has a limit the claims of a lane come one by one.
    """
    numbers = running is not None or per_day is not None
    if numbers + unlimited + as_configured != 1:
        raise click.UsageError("say what limits it: --running and --per-day, or --none, or --as-configured")
    ref, limits = _ref(frame, path), Limits(running, per_day)
    if as_configured:
        limits = configured_limits(frame.settings)
    run(_limit(frame, ref, limits, by_operator=not as_configured))
    said = [f"{limits.max_running} at once"] if limits.max_running else []
    said += [f"{limits.max_runs_per_day} runs a day"] if limits.max_runs_per_day else []
    data = {"forge": ref.forge, "repository": ref.path, "limits": limits, "as_configured": as_configured}
    frame.show(data, f"{ref.path} on {ref.forge}: {', '.join(said) or 'no limit'}")


async def _limit(frame: Frame, ref: RepoRef, limits: Limits, *, by_operator: bool) -> None:
    async with database(frame) as conn:
        await limit_repository(conn, ref, limits, by_operator=by_operator)


def _ref(frame: Frame, path: str) -> RepoRef:
    forge, owner, name = repository(path)
    return RepoRef(chosen_forge(frame.settings, forge), owner, name)
