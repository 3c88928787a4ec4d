"""Labels of a repository by name, created where they are missing; used by publisher, mirror and `labels sync`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tireless.domain.issue import Label, LabelSpec, RepoRef
from tireless.domain.labels import folded
from tireless.forge.base import Forge
from tireless.store import tell
from tireless.store.db import Pool


@dataclass(frozen=True, slots=True)
class Ensured:
    """What ensuring came to: names created now, and the id of every wanted label (of duplicates the lowest)."""

    created: tuple[str, ...]
    ids: dict[str, int]


async def ensure_labels(pool: Pool, forge: Forge, repo: RepoRef, specs: Sequence[LabelSpec]) -> Ensured:
    """Create what is missing of these labels, by trimmed, case-folded name over repository and organisation.

    Under the repository's lock, since the forge takes one name twice. Existing ones are left as they are.
    """
    present = await forge.labels(repo)
    if all(_find(present, spec.name) is not None for spec in specs):
        return Ensured((), _ids(present, specs))
    async with pool.connection() as conn, tell.labels_locked(conn, repo):
        present = await forge.labels(repo)
        missing = [spec for spec in specs if _find(present, spec.name) is None]
        made = [await forge.create_label(repo, spec) for spec in missing]
    return Ensured(tuple(spec.name for spec in missing), _ids((*present, *made), specs))


class LabelBook:
    """Label ids by repository and name, as last read. Ids go stale when somebody deletes a label: `forget` then."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ids: dict[tuple[RepoRef, str], int] = {}

    async def ids(self, forge: Forge, repo: RepoRef, specs: Sequence[LabelSpec]) -> list[int]:
        """The ids of these labels in their order; read, and created if need be, when one is not known."""
        keys = [(repo, folded(spec.name)) for spec in specs]
        if any(key not in self._ids for key in keys):
            ensured = await ensure_labels(self._pool, forge, repo, specs)
            self._ids |= {(repo, folded(name)): label_id for name, label_id in ensured.ids.items()}
        return [self._ids[key] for key in keys]

    def forget(self, repo: RepoRef) -> None:
        """Read this repository's labels again next time."""
        self._ids = {key: label_id for key, label_id in self._ids.items() if key[0] != repo}


def _find(labels: Sequence[Label], name: str) -> int | None:
    return min((label.id for label in labels if folded(label.name) == folded(name)), default=None)


def _ids(labels: Sequence[Label], specs: Sequence[LabelSpec]) -> dict[str, int]:
    found = {spec.name: _find(labels, spec.name) for spec in specs}
    return {name: label_id for name, label_id in found.items() if label_id is not None}
