"""The one webhook a repository should have: what is missing or wrong of it, and making it right. Touches no other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tireless.domain.issue import RepoRef
from tireless.forge.base import Hook, HookForge
from tireless.store import tell
from tireless.store.db import Pool
from tireless.store.hooks import KnownHook, hook_made, known_hook

EVENTS = ("issues_only", "issue_label", "issue_comment")
"""What is asked for: `issues` would be short for more than is listened to."""

_SHOWN = frozenset({"issues", "issue_label", "issue_comment"})
"""The same as the forge shows it."""


@dataclass(frozen=True, slots=True)
class HookWish:
    """Where webhooks go, and what they are signed with."""

    url: str
    secret: str

    @property
    def secret_print(self) -> str:
        """Tells one secret from another, and is dear to guess from."""
        made = hashlib.scrypt(self.secret.encode(), salt=self.url.encode(), n=2**14, r=8, p=1, dklen=16)
        return made.hex()


class HookStep(StrEnum):
    """What is to be done about a repository's webhook."""

    CREATE = "create_hook"
    REPLACE = "replace_hook"
    DROP_TWINS = "delete_hooks"


@dataclass(frozen=True, slots=True)
class HookWork:
    """A step and why; `drop`: hooks of ours that go. None of the others is looked at."""

    step: HookStep
    why: str
    drop: tuple[int, ...] = ()


def hook_work(present: Sequence[Hook], known: KnownHook | None, wish: HookWish) -> HookWork | None:
    """What makes exactly one right hook of these; None when that is what there is.

    Ours are those that go to our address, and the one we made before. A forge changes no secret of a hook, so one that
    is wrong in any way is made anew; and so is one that another made, since its secret cannot be seen.
    """
    ours = [hook for hook in present if hook.url == wish.url or (known is not None and hook.id == known.hook_id)]
    right = [hook for hook in ours if _fault(hook, known, wish) is None]
    if not ours:
        return HookWork(HookStep.CREATE, "there is none")
    if right:
        twins = tuple(hook.id for hook in ours if hook is not right[0])
        return HookWork(HookStep.DROP_TWINS, "it is there more than once", twins) if twins else None
    return HookWork(HookStep.REPLACE, _fault(ours[0], known, wish) or "", tuple(hook.id for hook in ours))


def _fault(hook: Hook, known: KnownHook | None, wish: HookWish) -> str | None:
    if hook.url != wish.url:
        return "it goes to another address"
    if not hook.active:
        return "it is switched off"
    if hook.content_type != "json":
        return f"it sends {hook.content_type or 'something else'}, not JSON"
    if missing := sorted(_SHOWN - hook.events):
        return f"it leaves out {', '.join(missing)}"
    if known is None or known.hook_id != hook.id:
        return "somebody else made it, and nobody can see whether its secret is ours"
    return None if known.secret_print == wish.secret_print else "another secret is configured now"


async def look_for_hook(
    pool: Pool | None, forge: HookForge, repo: RepoRef, repo_id: int, wish: HookWish
) -> HookWork | None:
    """What is to be done; `pool` None: there is no database yet. ForgeDenied where the bot may not see webhooks."""
    return hook_work(await forge.hooks(repo), await _known(pool, forge, repo_id), wish)


async def put_hook(pool: Pool, forge: HookForge, repo: RepoRef, repo_id: int, wish: HookWish) -> HookWork | None:
    """Make it right, and say what was done. Under the repository's lock; the old goes first, so that there are no two.

    Whatever breaks off, the next time finishes it.
    """
    async with pool.connection() as conn, tell.labels_locked(conn, repo):
        work = hook_work(await forge.hooks(repo), await known_hook(conn, forge.name, repo_id), wish)
        if work is None:
            return None
        for hook_id in work.drop:
            await forge.delete_hook(repo, hook_id)
        if work.step is not HookStep.DROP_TWINS:
            made = await forge.create_hook(repo, url=wish.url, events=EVENTS, secret=wish.secret)
            await hook_made(conn, forge.name, repo_id, KnownHook(made.id, wish.secret_print))
    return work


async def _known(pool: Pool | None, forge: HookForge, repo_id: int) -> KnownHook | None:
    if pool is None:
        return None
    async with pool.connection() as conn:
        return await known_hook(conn, forge.name, repo_id)
