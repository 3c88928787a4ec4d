"""What an error means for a repository, asked for by its id: renamed, unreadable, made again; part of the poller."""

from __future__ import annotations

from tireless import log
from tireless.errors import ForgeDenied, ForgeError, NotFound
from tireless.forge.base import Forge
from tireless.store import repos
from tireless.store.db import Pool, transaction
from tireless.store.repos import RepoRow

_log = log.get(__name__)


async def resolve(pool: Pool, forge: Forge, repo: RepoRow, error: Exception, *, require_opt_in: bool) -> bool:
    """The repository by its id: renamed (True: poll it at once), unreadable, or made again under its name."""
    try:
        found = await forge.repository(repo.forge_repo_id)
    except (ForgeDenied, NotFound) as refused:
        await _lost(pool, forge, repo, refused, require_opt_in=require_opt_in)
        return False
    except ForgeError:
        return False  # "I could not ask" is never "it is gone"
    moved = (found.owner, found.name) != (repo.owner, repo.name)
    reason = found.set_aside or str(error)
    async with pool.connection() as conn, transaction(conn, f"resolving {repo.ref}"):
        if not moved and isinstance(error, ForgeDenied | NotFound):
            await repos.mark_unreadable(conn, repo.id, reason)
        await repos.refresh_repository(conn, repo.id, found, forge=repo.forge)
    if moved:
        _log.info("repository renamed", forge=repo.forge, before=str(repo.ref), after=f"{found.owner}/{found.name}")
    return moved


async def _lost(pool: Pool, forge: Forge, repo: RepoRow, refused: ForgeError, *, require_opt_in: bool) -> None:
    """Its id answers with a refusal: unreadable, unless another repository has its name now."""
    other = None
    if isinstance(refused, NotFound):
        try:
            other = await forge.repository(repo.ref)
        except ForgeError:
            other = None
    async with pool.connection() as conn, transaction(conn, f"marking {repo.ref} unreadable"):
        if other is not None and other.id != repo.forge_repo_id:
            # Made again: it starts clean, the old one keeps its history and is not watched any more.
            await repos.replace_repository(conn, repo, other, require_opt_in=require_opt_in)
            _log.info("repository made again", forge=repo.forge, repository=str(repo.ref), id=other.id)
        else:
            await repos.mark_unreadable(conn, repo.id, str(refused))
