"""`tireless repos`: which repositories are watched, and an operator's own among them."""

from __future__ import annotations

import click

from tireless.app.forges import open_forges
from tireless.cli.frame import Frame, database, database_pool, pass_frame, printing, run, table
from tireless.cli.words import chosen_forge, repository
from tireless.domain.issue import RepoRef, Repository
from tireless.services.tracker import watch
from tireless.store import inspect
from tireless.store.db import transaction
from tireless.store.inspect import RepositoryRow
from tireless.store.repos import untrack


@click.group("repos")
def repos() -> None:
    """See, add, drop watched repositories."""


@repos.command("ls")
@click.option("--all", "every", is_flag=True, help="Those that were watched once as well.")
@printing
@pass_frame
def ls(frame: Frame, every: bool) -> None:
    """The watched repositories: when each is polled next, why one cannot be, its live jobs."""
    found = run(_rows(frame, every))
    head = ("REPOSITORY", "FORGE", "SOURCE", "NEXT POLL", "PENDING", "WAITING", "RUNNING", "PUBLISHING", "STATE")
    text = table(
        head,
        map(_line, found),
        empty="no repository is watched: name some under [forges.NAME], or `tireless repos add`",
    )
    frame.show({"repositories": found}, text)


async def _rows(frame: Frame, every: bool) -> list[RepositoryRow]:
    async with database(frame) as conn:
        return await inspect.repository_rows(conn, all_known=every)


def _line(row: RepositoryRow) -> tuple[object, ...]:
    counts = row.pending, row.waiting, row.claimed, row.publishing
    return row.repo, row.forge, row.source, row.next_poll_at, *counts, _state(row)


def _state(row: RepositoryRow) -> str:
    if not row.tracked:
        return "not watched"
    if not row.readable:
        return f"cannot be read: {row.unreadable_reason}"
    if row.poll_failures:
        return f"polls failed {row.poll_failures} times: {row.poll_error}"
    return "fine" if row.full_scan_at else "not polled yet"


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
        return ref, await watch(pool, forges[ref.forge], ref, require_opt_in=settings.labels.require_opt_in)


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


def _ref(frame: Frame, path: str) -> RepoRef:
    forge, owner, name = repository(path)
    return RepoRef(chosen_forge(frame.settings, forge), owner, name)
