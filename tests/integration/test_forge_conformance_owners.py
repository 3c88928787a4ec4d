"""Conformance: an owner's repositories and issues, teams, webhooks, hidden blockers; loopback and real."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.conformance import Server, other_repo
from tests.support.forges import Stage
from tireless.domain.issue import IssueRef, RepoRef
from tireless.errors import ForgeDenied, ForgeRejected, NotFound
from tireless.forge.base import hidden_issue
from tireless.forge.gitea import GiteaForge


async def _more(stage: Stage, name: str, *, private: bool = False, reads: bool = False) -> RepoRef:
    """Another repository of the organisation, beside the stage's."""
    repo = other_repo(stage.repo, f"{stage.repo.name}-{name}")
    await stage.alice.create_repository(repo.name, org=repo.owner, private=private)
    if reads:
        await stage.alice.add_collaborator(repo.path, stage.bot.login)
    return repo


async def test_the_repositories_of_an_owner(stage: Stage, forge: GiteaForge) -> None:
    """What the token sees of an organisation's and of a user's, private ones only where it may read; by topic too."""
    shown = await _more(stage, "shown", private=True, reads=True)
    secret = await _more(stage, "secret", private=True)
    found = {each.name: each for each in await forge.repositories(stage.repo.owner)}
    assert {stage.repo.name, shown.name} <= set(found)
    assert secret.name not in found
    assert found[stage.repo.name].owner_is_org is True
    assert found[shown.name].private
    assert found[stage.repo.name] == await forge.repository(stage.repo)
    own = f"{stage.repo.name}-own"
    await stage.bob.create_repository(own)
    assert own in {each.name for each in await forge.repositories(stage.bob.login)}
    topic = f"t{stage.repo.name}"
    assert await forge.repositories(stage.repo.owner, topic=topic) == ()
    for repo in (shown, secret):
        await stage.alice.api("PUT", f"/repos/{repo.path}/topics", {"topics": [topic]})
    await stage.bob.api("PUT", f"/repos/{stage.bob.login}/{own}/topics", {"topics": [topic]})
    assert [each.name for each in await forge.repositories(stage.repo.owner, topic=topic)] == [shown.name]
    with pytest.raises(NotFound):
        await forge.repositories("nobody-of-this-name")


async def test_a_repository_with_a_tracker_elsewhere(stage: Stage, forge: GiteaForge) -> None:
    """An external tracker is told from issues that are off, and both from an archived repository."""
    tracker = {"external_tracker_url": "http://tracker.invalid", "external_tracker_format": "http://t.invalid/{index}"}
    assert (await forge.repository(stage.repo)).set_aside is None
    await stage.alice.edit_repository(stage.path, has_issues=True, external_tracker=tracker)
    found = await forge.repository(stage.repo)
    assert (found.has_issues, found.external_tracker) == (False, True)
    assert "external" in str(found.set_aside)
    off = await _more(stage, "off")
    await stage.alice.edit_repository(off.path, has_issues=False)
    assert "switched off" in str((await forge.repository(off)).set_aside)
    await stage.alice.edit_repository(off.path, archived=True)
    assert "archived" in str((await forge.repository(off)).set_aside)


async def test_the_issues_of_an_owner_in_one_list(server: Server, stage: Stage, forge: GiteaForge) -> None:
    """All repositories the token sees, each issue with its repository's id; `since` and `before` are inclusive."""
    other = await _more(stage, "other", private=True, reads=True)
    secret = await _more(stage, "secret", private=True)
    first = await stage.alice.create_issue(stage.path, "x")
    await server.next_second(stage)
    for repo in (other, secret):
        await stage.alice.create_issue(repo.path, "y")
    here, there = (await forge.repository(stage.repo)).id, (await forge.repository(other)).id
    start = (await forge.issue(stage.repo, first)).updated_at
    page = await forge.owner_issues(stage.repo.owner.upper(), page=1, since=start)
    found = {(repository, issue.number) for repository, issue in page.issues}
    assert {(here, first), (there, 1)} <= found
    assert (await forge.repository(stage.repo)).id in {repository for repository, _ in found}
    assert page.rows == page.total == len(page.issues)
    assert page.server_date is not None
    end = (await forge.issue(other, 1)).updated_at
    assert end > start
    for since, before, wanted in (
        (start, start, {(here, first)}),
        (end, end, {(there, 1)}),
        (start, end, {(here, first), (there, 1)}),
        (end + timedelta(seconds=1), None, set()),
    ):
        page = await forge.owner_issues(stage.repo.owner, page=1, since=since, before=before)
        assert {(repository, issue.number) for repository, issue in page.issues} & {(here, first), (there, 1)} == wanted
    assert (await forge.owner_issues(stage.repo.owner, page=9, since=start)).rows == 0
    [snapshot] = [issue for repository, issue in page.issues if repository == there] or [await forge.issue(other, 1)]
    assert snapshot == await forge.issue(other, 1)
    with pytest.raises(ForgeRejected):
        await forge.owner_issues("nobody-of-this-name", page=1)


async def test_webhooks_are_made_listed_and_deleted(stage: Stage, forge: GiteaForge) -> None:
    """A hook comes back with its address and events, never its secret; who is no administrator may not even look."""
    url, events = "http://127.0.0.1:9/webhook/main", ("issues_only", "issue_label", "issue_comment")
    for denied in (
        forge.hooks(stage.repo),
        forge.create_hook(stage.repo, url=url, events=events, secret="s"),
        forge.delete_hook(stage.repo, 1),
    ):
        with pytest.raises(ForgeDenied):
            await denied
    await stage.alice.add_collaborator(stage.path, stage.bot.login, "admin")
    assert await forge.hooks(stage.repo) == ()
    made = await forge.create_hook(stage.repo, url=url, events=events, secret="s")
    assert (made.url, made.active, made.content_type) == (url, True, "json")
    assert made.events == {"issues", "issue_label", "issue_comment"}
    twin = await forge.create_hook(stage.repo, url=url, events=events, secret="s")
    assert await forge.hooks(stage.repo) == (made, twin)
    for _ in range(2):
        await forge.delete_hook(stage.repo, made.id)
    assert await forge.hooks(stage.repo) == (twin,)
    with pytest.raises(NotFound):
        await forge.hooks(other_repo(stage.repo, "no-such-one"))


async def test_who_is_in_a_team(stage: Stage, forge: GiteaForge) -> None:
    """Told to the team's members; other members of the organisation are refused, strangers see no team: no answer."""
    org, name = stage.repo.owner, f"Crew-{stage.repo.name}"
    units = {"repo.issues": "write"}
    team = await stage.alice.create_team(org, name, units=units, members=[stage.bob.login])
    for cannot_tell in (forge.in_team(org, name, stage.bob.login), forge.in_team(stage.bob.login, name, "x")):
        with pytest.raises((ForgeDenied, NotFound)):
            await cannot_tell
    other = await stage.alice.create_team(org, f"{name}-bots", units=units, members=[stage.bot.login])
    with pytest.raises(ForgeDenied):
        await forge.in_team(org, name, stage.bob.login)
    await stage.alice.api("PUT", f"/teams/{team}/members/{stage.bot.login}")
    assert await forge.in_team(org, name.lower(), stage.bob.login)
    assert not await forge.in_team(org, name, stage.mallory.login)
    assert not await forge.in_team(org, name, "nobody-of-this-name")
    with pytest.raises(NotFound):
        await forge.in_team(org, "no-such-team", stage.bob.login)
    for each in (team, other):
        await stage.alice.api("DELETE", f"/teams/{each}/members/{stage.bot.login}")


async def test_a_blocker_the_bot_may_not_read(stage: Stage, forge: GiteaForge) -> None:
    """It is shown without a name, open or closed: an object of zeros, which counts as open."""
    secret = await _more(stage, "secret", private=True)
    number = await stage.alice.create_issue(stage.path, "x")
    for _ in range(2):
        await stage.alice.create_issue(secret.path, "hidden")
    for each in (1, 2):
        body = {"owner": secret.owner, "repo": secret.name, "index": each}
        await stage.alice.api("POST", f"/repos/{stage.path}/issues/{number}/dependencies", body)
    assert await forge.dependencies(IssueRef(stage.repo, number)) == ((hidden_issue(forge.name), False),)
    await stage.alice.close(secret.path, 1)
    assert await forge.dependencies(IssueRef(stage.repo, number)) == ((hidden_issue(forge.name), False),)
