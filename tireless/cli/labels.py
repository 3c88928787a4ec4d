"""`tireless labels sync`: every label of ours in every watched repository."""

from __future__ import annotations

import click

from tireless.app.forges import open_forges
from tireless.cli.frame import Frame, database_pool, pass_frame, printing, run, table
from tireless.cli.words import chosen_forge, repository
from tireless.config import Settings
from tireless.domain.issue import RepoRef
from tireless.domain.labels import label_specs
from tireless.errors import ForgeError
from tireless.services.labelling import ensure_labels
from tireless.store.repos import tracked_repos

FAILED = 1


@click.group("labels")
def labels() -> None:
    """The labels people steer with."""


@labels.command("sync")
@click.argument("repositories", nargs=-1, metavar="[OWNER/REPO]...")
@printing
@pass_frame
def sync(frame: Frame, repositories: tuple[str, ...]) -> int:
    """Create what is missing of our labels, in the repositories named or in all watched ones. Changes no other label.

    Exit code 1 when a repository failed; the others were done all the same.
    """
    done = run(_sync(frame, repositories))
    rows = [(each["repository"], each["created"], each["error"]) for each in done]
    text = table(("REPOSITORY", "CREATED", "ERROR"), rows, empty="no repository is watched")
    frame.show({"repositories": done}, text)
    return FAILED if any(each["error"] for each in done) else 0


async def _sync(frame: Frame, named: tuple[str, ...]) -> list[dict[str, object]]:
    settings = frame.settings
    specs = label_specs(settings.labels.scheme, settings.lane_values)
    done: list[dict[str, object]] = []
    async with database_pool(frame) as pool, open_forges(settings) as forges:
        if named:
            wanted = [_ref(settings, text) for text in named]
        else:
            async with pool.connection() as conn:
                wanted = [row.ref for row in await tracked_repos(conn) if row.forge in forges]
        for repo in wanted:
            entry: dict[str, object] = {"forge": repo.forge, "repository": repo.path, "created": [], "error": None}
            try:
                entry["created"] = list((await ensure_labels(pool, forges[repo.forge], repo, specs)).created)
            except ForgeError as error:
                entry["error"] = str(error)
            done.append(entry)
    return done


def _ref(settings: Settings, text: str) -> RepoRef:
    forge, owner, name = repository(text)
    return RepoRef(chosen_forge(settings, forge), owner, name)
