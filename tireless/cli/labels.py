"""`tireless labels sync`: every label of ours in every repository that is watched, or configured to be."""

from __future__ import annotations

import click

from tireless.app.forges import open_forges
from tireless.cli.frame import Frame, database_pool, pass_frame, printing, run, table
from tireless.cli.watched import all_wanted
from tireless.cli.words import chosen_forge, repository
from tireless.config import Settings
from tireless.domain.issue import RepoRef
from tireless.domain.labels import label_specs
from tireless.errors import ForgeError
from tireless.services.labelling import ensure_labels

FAILED = 1


@click.group("labels")
def labels() -> None:
    """The labels people steer with."""


@labels.command("sync")
@click.argument("repositories", nargs=-1, metavar="[OWNER/REPO]...")
@printing
@pass_frame
def sync(frame: Frame, repositories: tuple[str, ...]) -> int:
    """Create what is missing of our labels, in the repositories named, or in all that are configured or watched.

    Changes no other label. Exit code 1 when a repository failed; the others were done all the same.
    """
    done = run(_sync(frame, repositories))
    rows = [(each["repository"], each["created"], each["error"]) for each in done]
    empty = "no repository is configured or watched: name some under [forges.NAME], or `tireless repos add`"
    text = table(("REPOSITORY", "CREATED", "ERROR"), rows, empty=empty)
    frame.show({"repositories": done}, text)
    return FAILED if any(each["error"] for each in done) else 0


async def _sync(frame: Frame, named: tuple[str, ...]) -> list[dict[str, object]]:
    settings = frame.settings
    specs = label_specs(settings.labels.scheme, settings.lane_values)
    done: list[dict[str, object]] = []
    async with database_pool(frame) as pool, open_forges(settings) as forges:
        refs = [_ref(settings, text) for text in named]
        for forge in () if named else forges.values():
            found = await all_wanted(settings, pool, forge)
            refs += found.refs.values()
            done += [_entry(ref, str(error)) for ref, error in found.missing.items()]
        for repo in refs:
            entry = _entry(repo)
            try:
                entry["created"] = list((await ensure_labels(pool, forges[repo.forge], repo, specs)).created)
            except ForgeError as error:
                entry["error"] = str(error)
            done.append(entry)
    return done


def _entry(repo: RepoRef, error: str | None = None) -> dict[str, object]:
    return {"forge": repo.forge, "repository": repo.path, "created": [], "error": error}


def _ref(settings: Settings, text: str) -> RepoRef:
    forge, owner, name = repository(text)
    return RepoRef(chosen_forge(settings, forge), owner, name)
