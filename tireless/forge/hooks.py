"""Webhooks of a repository, on Gitea and Forgejo; part of the client. What they send is read in webhook.py."""

from __future__ import annotations

from collections.abc import Sequence

from tireless.domain.issue import RepoRef
from tireless.errors import NotFound
from tireless.forge import reading
from tireless.forge.base import Hook
from tireless.forge.http import Http
from tireless.forge.walk import pages, read, repo_path


def _hook(data: object) -> Hook:
    found = reading.mapping(data, "hook")
    config = reading.mapping(found.get("config"), "hook.config")
    events = found.get("events")
    return Hook(
        id=reading.whole(found.get("id"), "hook.id"),
        url=reading.text_or_empty(config.get("url"), "hook.config.url"),
        events=frozenset(str(each) for each in events) if isinstance(events, list) else frozenset(),
        active=found.get("active") is True,
        content_type=reading.text_or_empty(config.get("content_type"), "hook.config.content_type"),
    )


async def hooks(http: Http, repo: RepoRef) -> tuple[Hook, ...]:
    """All of them, the oldest first."""
    read_so_far = [read(answer, _hook, row) async for answer, row in pages(http, f"{repo_path(repo)}/hooks")]
    found = {hook.id: hook for hook in read_so_far}
    return tuple(found[each] for each in sorted(found))


async def create_hook(http: Http, repo: RepoRef, *, url: str, events: Sequence[str], secret: str) -> Hook:
    """Create an active one that sends JSON; sent once. Without `active` the forge makes it asleep."""
    body = {
        "type": "gitea",  # Forgejo takes this word too
        "active": True,
        "events": list(events),
        "config": {"url": url, "content_type": "json", "secret": secret},
    }
    answer = await http.call("POST", f"{repo_path(repo)}/hooks", body=body)
    return read(answer, _hook, answer.mapping())


async def delete_hook(http: Http, repo: RepoRef, hook_id: int) -> None:
    """Delete one; one that is gone is no error while the repository is there."""
    try:
        await http.call("DELETE", f"{repo_path(repo)}/hooks/{hook_id}")
    except NotFound:
        await http.get(repo_path(repo))  # NotFound here: the repository, not the hook
