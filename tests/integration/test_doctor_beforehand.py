"""What `doctor` says of a token beforehand: scopes to write that it lacks, and people of whom it is told nothing."""

from __future__ import annotations

import pytest

from tests.support.forges import *  # noqa: F403 - the fixtures
from tests.support.forges import Stage
from tireless.domain.issue import RepoRef
from tireless.domain.labels import LabelScheme, label_specs
from tireless.forge.base import Forge
from tireless.forge.gitea import GiteaForge
from tireless.forge.person import make_token
from tireless.services.setup import Expected, Finding, check_forge

READS = ["read:issue", "read:repository", "read:organization", "read:user"]


async def found(
    forge: Forge, *repositories: RepoRef, who: str = "writers", allow: tuple[str, ...] = ()
) -> dict[str, Finding]:
    """The findings about scopes and people, by code."""
    expected = Expected(LabelScheme(), (), allow, who)
    codes = ("token_cannot_write", "writers_not_shown", "askers_not_shown", "repository_denied", "repository_ready")
    findings = [each for each in await check_forge(forge, repositories, expected) if each.code in codes]
    assert len({each.code for each in findings}) == len(findings)
    return {each.code: each for each in findings}


@pytest.mark.parametrize(
    ("writes", "lacks"),
    [
        ((), "write:issue and write:repository"),
        (("write:issue",), "write:repository"),
        (("write:repository",), "write:issue"),
    ],
)
async def test_a_scope_to_write_that_the_token_lacks_is_named(
    stage: Stage, writes: tuple[str, ...], lacks: str
) -> None:
    """Asked at the first repository that answers; one that is not there tells nothing of the token."""
    who = {"login": stage.bot.login, "password": stage.bot.password}
    narrow = stage.with_token(await make_token(stage.url, **who, name="narrow", scopes=[*READS, *writes]))
    finding = (await found(narrow, stage.repo))["token_cannot_write"]
    assert (finding.level, finding.subject) == ("fault", f"forge {narrow.name}")
    assert finding.text.startswith(f"the token lacks {lacks}: make one")


async def test_a_scope_to_read_that_the_token_lacks_is_named_first(stage: Stage) -> None:
    """Not the rights of the bot's user, which are not what is missing."""
    who = {"login": stage.bot.login, "password": stage.bot.password}
    scopes = ["write:issue", "write:repository", "read:user"]
    narrow = stage.with_token(await make_token(stage.url, **who, name="narrow", scopes=scopes))
    denied = (await found(narrow, stage.repo))["repository_denied"]
    assert denied.text.startswith("the token lacks read:organization: make one")
    assert "write access" not in denied.text


async def test_a_repository_is_called_writable_only_where_the_token_writes(stage: Stage, forge: GiteaForge) -> None:
    """The bot's user may write there; whether its token does is asked as well."""
    for spec in label_specs(LabelScheme(), ()):
        await forge.create_label(stage.repo, spec)
    assert (await found(forge, stage.repo))["repository_ready"].text == "readable, writable, labels in place"
    who = {"login": stage.bot.login, "password": stage.bot.password}
    reading = stage.with_token(await make_token(stage.url, **who, name="reading", scopes=READS))
    told = await found(reading, stage.repo)
    assert told["repository_ready"].text == "readable, labels in place"
    assert told["token_cannot_write"].level == "fault"


async def test_a_token_that_may_write_is_not_complained_of(stage: Stage, forge: GiteaForge) -> None:
    """Nor does asking change anything."""
    assert "token_cannot_write" not in await found(forge, stage.repo)
    assert (await forge.issues(stage.repo, page=1)).issues == ()


async def test_an_owner_whose_writers_are_not_shown_is_named_once(stage: Stage, forge: GiteaForge) -> None:
    """For all his repositories; not where the bot is an administrator, nor where the assignees say the same."""
    await stage.alice.create_repository("more", org=stage.repo.owner)
    more = RepoRef(stage.repo.forge, stage.repo.owner, "more")
    await stage.alice.add_collaborator(more.path, stage.bot.login)
    await stage.bob.create_repository("own")
    await stage.bob.add_collaborator(f"{stage.bob.login}/own", stage.bot.login)
    own = RepoRef(stage.repo.forge, stage.bob.login, "own")
    findings = await found(forge, stage.repo, more, own)
    remark = findings["writers_not_shown"]
    assert (remark.level, remark.subject) == ("remark", f"{forge.name}:{stage.repo.owner}/* (2 repositories)")
    assert "does not tell the bot who may write here" in remark.text
    for repo in (stage.repo, more):
        await stage.alice.add_collaborator(repo.path, stage.bot.login, "admin")
    assert await found(forge, stage.repo, more, own) == {}


@pytest.mark.parametrize(
    ("who", "allow", "level"),
    [
        ("code-writers", (), "fault"),
        ("admins", (), "fault"),
        ("admins", ("alice",), "remark"),
        ("allow-list", ("alice",), None),
        ("team:acme/painters", (), None),
    ],
)
async def test_where_nobody_could_ask_it_is_a_fault(
    stage: Stage, forge: GiteaForge, who: str, allow: tuple[str, ...], level: str | None
) -> None:
    """What goes by rights that the bot is not told of lets nobody ask but those who are listed."""
    finding = (await found(forge, stage.repo, who=who, allow=allow)).get("askers_not_shown")
    assert (finding.level if finding else None) == level


async def test_assignees_do_not_tell_administrators(stage: Stage, forge: GiteaForge) -> None:
    """In a user's repository they say who may write, which is not enough where administrators are asked for."""
    await stage.bob.create_repository("own")
    await stage.bob.add_collaborator(f"{stage.bob.login}/own", stage.bot.login)
    own = RepoRef(stage.repo.forge, stage.bob.login, "own")
    assert await found(forge, own, who="code-writers") == {}
    assert (await found(forge, own, who="admins"))["askers_not_shown"].level == "fault"
