"""Conformance: who the server is, who may what, repositories renamed, archived, private, without issues; webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.conformance import Server, other_repo
from tests.support.forges import Stage
from tireless.domain.issue import IssueRef, LabelSpec, RepoRef
from tireless.errors import ForgeDenied, ForgeRejected, Moved, NotFound
from tireless.forge import webhook
from tireless.forge.base import NewPull
from tireless.forge.gitea import GiteaForge
from tireless.forge.person import make_token


async def test_the_server_says_what_it_is(stage: Stage, forge: GiteaForge) -> None:
    """Flavour, version and page limit; whom the token speaks for, and whether that is a site admin."""
    about = await forge.about()
    assert about.capabilities.flavour in ("gitea", "forgejo")
    assert about.capabilities.version
    assert about.capabilities.page_limit == 50
    assert about.login is not None
    assert (about.login.login, about.is_admin) == (stage.bot.login, False)
    admin = stage.as_person(stage.admin)
    assert (await admin.about()).is_admin


async def test_tokens_that_do_not_reach(stage: Stage) -> None:
    """A wrong token is 401 even where anyone may read; a narrow one is 403 on what its scopes leave out."""
    wrong = stage.with_token("0" * 40)
    for call in (wrong.repository(stage.repo), wrong.issues(stage.repo, page=1), wrong.about()):
        with pytest.raises(ForgeDenied) as refused:
            await call
        assert refused.value.status == 401
    token = await make_token(
        stage.url, login=stage.bot.login, password=stage.bot.password, name="narrow", scopes=["read:issue"]
    )
    narrow = stage.with_token(token)
    about = await narrow.about()
    assert about.login is None
    assert (await narrow.issues(stage.repo, page=1)).rows == 0
    number = await stage.alice.create_issue(stage.path, "x")
    for denied in (
        narrow.repository(stage.repo),
        narrow.labels(stage.repo),
        narrow.write_comment(stage.repo, number, "x"),
        narrow.create_label(stage.repo, LabelSpec("x", "000000", "", exclusive=False)),
        narrow.pulls(stage.repo),
        narrow.assignees(stage.repo),
    ):
        with pytest.raises(ForgeDenied) as refused:
            await denied
        assert refused.value.status == 403
        assert token not in str(refused.value)
    with pytest.raises(ForgeRejected):
        await make_token(stage.url, login=stage.bot.login, password=stage.bot.password, name="empty", scopes=[])


async def test_a_missing_scope_to_write_is_told_without_writing(stage: Stage, forge: GiteaForge) -> None:
    """Number 0 is written to: 403 for the scope, else 404, also for who has no rights and in an archived repository."""
    reads = ["read:issue", "read:repository", "read:user"]
    who = {"login": stage.bot.login, "password": stage.bot.password}
    lacking = {
        (): ["write:issue", "write:repository"],
        ("write:issue",): ["write:repository"],
        ("write:repository",): ["write:issue"],
        ("write:issue", "write:repository"): [],
    }
    tokens = {
        lacks: stage.with_token(await make_token(stage.url, **who, name=f"to write {n}", scopes=[*reads, *writes]))
        for n, (lacks, writes) in enumerate(lacking.items())
    }
    before = await forge.issues(stage.repo, page=1)
    for archived in (False, True):
        await stage.alice.edit_repository(stage.path, archived=archived)
        for lacks, narrow in tokens.items():
            assert await narrow.lacks(stage.repo) == lacks
        assert await stage.as_person(stage.mallory).lacks(stage.repo) == ()
    assert (await forge.issues(stage.repo, page=1)).issues == before.issues
    assert await forge.lacks(other_repo(stage.repo, "no-such-one")) == ()


async def test_a_repository_by_names_and_by_id(stage: Stage, forge: GiteaForge) -> None:
    """Both ways the same; a missing one is NotFound both ways."""
    by_name = await forge.repository(stage.repo)
    assert (by_name.owner, by_name.name, by_name.default_branch) == (stage.repo.owner, stage.repo.name, "main")
    assert (by_name.private, by_name.archived, by_name.empty) == (False, False, False)
    assert (by_name.has_issues, by_name.has_pulls) == (True, True)
    assert by_name.clone_url.endswith(f"/{stage.path}.git")
    assert await forge.repository(by_name.id) == by_name
    for missing in (999_999, other_repo(stage.repo, "no-such-one")):
        with pytest.raises(NotFound):
            await forge.repository(missing)


async def test_who_owns_a_repository_is_told_to_anybody_who_reads_it(stage: Stage, forge: GiteaForge) -> None:
    """An organisation's and a user's repository are told apart, also by who has no rights in either."""
    await stage.bob.create_repository("own")
    assert (await forge.repository(stage.repo)).owner_is_org is True
    assert (await forge.repository(RepoRef(stage.repo.forge, stage.bob.login, "own"))).owner_is_org is False


async def test_a_renamed_repository_redirects_every_call(stage: Stage, forge: GiteaForge) -> None:
    """Every call by the old name is Moved, whatever its method; by id the new name is found."""
    found = await forge.repository(stage.repo)
    number = await stage.alice.create_issue(stage.path, "x")
    label = await stage.label("tireless/go")
    await stage.alice.edit_repository(stage.path, name=f"{stage.repo.name}-new")
    old = stage.repo
    for call in (
        forge.repository(old),
        forge.issues(old, page=1),
        forge.issue(old, number),
        forge.timeline(old, number),
        forge.write_comment(old, number, "x"),
        forge.set_label(old, number, label, on=True),
        forge.set_label(old, number, label, on=False),
        forge.close(IssueRef(old, number)),
        forge.create_issue(old, title="x", body="", label_ids=[]),
        forge.create_pull(old, NewPull("x", "", "a", "main")),
        forge.branch_head(old, "main"),
    ):
        with pytest.raises(Moved):
            await call
    moved = await forge.repository(found.id)
    assert (moved.id, moved.name) == (found.id, f"{stage.repo.name}-new")
    assert (await forge.issue(other_repo(old, moved.name), number)).number == number


async def test_an_archived_repository_refuses_new_things(stage: Stage, forge: GiteaForge) -> None:
    """New issues, comments, pull requests and edges are 423; reading, labels and closing still work."""
    number = await stage.alice.create_issue(stage.path, "x")
    label = await stage.label("tireless/go")
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    other = await stage.alice.create_issue(stage.path, "y")
    await stage.alice.edit_repository(stage.path, archived=True)
    ref, on = IssueRef(stage.repo, number), IssueRef(stage.repo, other)
    for call in (
        forge.create_issue(stage.repo, title="x", body="", label_ids=[]),
        forge.write_comment(stage.repo, number, "x"),
        forge.create_pull(stage.repo, NewPull("x", "", "work", "main")),
        forge.add_dependency(ref, on),
        forge.delete_branch(stage.repo, "work"),
    ):
        with pytest.raises(ForgeRejected) as refused:
            await call
        assert refused.value.status == 423
    await forge.set_label(stage.repo, number, label, on=True)
    await forge.close(ref)
    assert (await forge.repository(stage.repo)).archived
    assert (await forge.issues(stage.repo, page=1)).rows == 2


async def test_a_repository_without_issues(stage: Stage, forge: GiteaForge) -> None:
    """It says so; lists and issues are NotFound, which is not "gone": the repository itself answers."""
    number = await stage.alice.create_issue(stage.path, "x")
    await stage.alice.edit_repository(stage.path, has_issues=False)
    for call in (forge.issues(stage.repo, page=1), forge.issue(stage.repo, number)):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(NotFound):
        await forge.write_comment(stage.repo, number, "x")
    with pytest.raises(ForgeDenied):
        await forge.create_issue(stage.repo, title="x", body="", label_ids=[])
    assert await forge.timeline(stage.repo, number) == ()
    assert not (await forge.repository(stage.repo)).has_issues


async def test_an_external_tracker_is_not_the_forges_own(stage: Stage, forge: GiteaForge) -> None:
    """`has_issues` of the forge's answer is true for it; ours is false."""
    external = {
        "external_tracker_url": "https://tracker.example",
        "external_tracker_format": "",
        "external_tracker_style": "",
    }
    shown = await stage.alice.edit_repository(stage.path, has_issues=True, external_tracker=external)
    assert shown["has_issues"] is True
    assert not (await forge.repository(stage.repo)).has_issues


async def test_a_private_repository_looks_absent(stage: Stage, forge: GiteaForge) -> None:
    """Without access it is NotFound by name and by id."""
    name = f"{stage.repo.name}-secret"
    made = await stage.mallory.create_repository(name, private=True)
    identity = made["id"]
    assert isinstance(identity, int)
    for asked in (RepoRef(stage.repo.forge, stage.mallory.login, name), identity):
        with pytest.raises(NotFound):
            await forge.repository(asked)
    own = stage.as_person(stage.mallory)
    assert (await own.repository(identity)).private


async def test_permissions_and_who_may_ask_for_them(server: Server, stage: Stage, forge: GiteaForge) -> None:
    """An admin sees everyone's; the bot its own (on Gitea), else denied: "cannot tell"; unknown people are NotFound."""
    owner = stage.as_person(stage.alice)
    for person, level in (
        (stage.alice, "owner"),
        (stage.bob, "write"),
        (stage.mallory, "read"),
        (stage.admin, "owner"),
    ):
        assert await owner.permission(stage.repo, person.login) == level
    with pytest.raises(NotFound):
        await owner.permission(stage.repo, "nobody-of-this-name")
    if not server.is_forgejo:
        assert await forge.permission(stage.repo, stage.bot.login) == "write"
    with pytest.raises(ForgeDenied):
        await forge.permission(stage.repo, stage.bob.login)


async def test_assignees_are_the_writers(stage: Stage, forge: GiteaForge) -> None:
    """Of a user's repository: owner and writers, not readers, not site admins."""
    name = f"{stage.repo.name}-own"
    await stage.alice.create_repository(name)
    repo = RepoRef(stage.repo.forge, stage.alice.login, name)
    for login, level in ((stage.bob.login, "write"), (stage.mallory.login, "read")):
        await stage.alice.add_collaborator(repo.path, login, level)
    assert {each.login for each in await forge.assignees(repo)} == {stage.alice.login, stage.bob.login}
    await stage.alice.remove_collaborator(repo.path, stage.bob.login)
    assert {each.login for each in await forge.assignees(repo)} == {stage.alice.login}


async def test_a_team_that_writes_issues_only(stage: Stage, forge: GiteaForge) -> None:
    """The permission endpoint calls its member a reader, yet he may label; he is among the assignees."""
    owner, team = stage.as_person(stage.alice), f"triage-{stage.repo.name}"
    units = {"repo.issues": "write", "repo.code": "read", "repo.pulls": "read"}
    await stage.alice.create_team(stage.repo.owner, team, units=units, members=[stage.mallory.login])
    assert await owner.permission(stage.repo, stage.mallory.login) == "read"
    number = await stage.alice.create_issue(stage.path, "x")
    await stage.mallory.add_labels(stage.path, number, await stage.label("tireless/go"))
    (entry,) = await forge.timeline(stage.repo, number)
    assert entry.actor.login == stage.mallory.login
    assert stage.mallory.login in {each.login for each in await forge.assignees(stage.repo)}
    teams = (await stage.alice.api("GET", f"/orgs/{stage.repo.owner}/teams")).sequence()
    (made,) = [each["id"] for each in teams if isinstance(each, dict) and each["name"] == team]
    await stage.alice.api("DELETE", f"/teams/{made}/members/{stage.mallory.login}")
    with pytest.raises(ForgeDenied):
        await stage.mallory.add_labels(stage.path, number, await stage.label("tireless/plan"))


async def test_a_deleted_user_becomes_the_ghost(stage: Stage, forge: GiteaForge) -> None:
    """What he did stays, in the name of a system user whose id is below 1."""
    async with await stage.admin.create_user(f"leaver-{stage.repo.name}-{stage.repo.owner[-4:]}") as leaver:
        await stage.alice.add_collaborator(stage.path, leaver.login)
        number = await leaver.create_issue(stage.path, "mine")
        await leaver.add_labels(stage.path, number, await stage.label("tireless/go"))
        await stage.admin.delete_user(leaver.login)
    found = await forge.issue(stage.repo, number)
    assert found.author.is_system
    assert [each.name for each in found.labels] == ["tireless/go"]
    (entry,) = await forge.timeline(stage.repo, number)
    assert entry.actor.is_system


async def test_a_locked_out_bot_may_still_read_and_comment(stage: Stage, forge: GiteaForge) -> None:
    """With read access only: comments and issues yes (labels dropped), labels, closing and branches no."""
    number = await stage.alice.create_issue(stage.path, "x")
    label = await stage.label("tireless/go")
    await stage.alice.add_collaborator(stage.path, stage.bot.login, "read")
    await forge.write_comment(stage.repo, number, "still here")
    assert (await forge.create_issue(stage.repo, title="x", body="", label_ids=[label])).labels == ()
    for call in (
        forge.set_label(stage.repo, number, label, on=True),
        forge.close(IssueRef(stage.repo, number)),
        forge.delete_branch(stage.repo, "work"),
    ):
        with pytest.raises(ForgeDenied):
            await call
    with pytest.raises(NotFound):
        await forge.add_dependency(IssueRef(stage.repo, number), IssueRef(stage.repo, number + 1))


@asynccontextmanager
async def _receiver() -> AsyncIterator[tuple[str, asyncio.Queue[tuple[dict[str, str], bytes]]]]:
    """A tiny HTTP server on a loopback port: its URL, and what was posted to it."""
    got: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        length = int({name.lower(): value for name, value in headers.items()}["content-length"])
        got.put_nowait((headers, await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", got


async def _hook(stage: Stage, url: str, secret: str) -> None:
    config = {"url": url, "content_type": "json", "secret": secret}
    body = {"type": "gitea", "active": True, "events": ["issues"], "config": config}
    await stage.alice.api("POST", f"/repos/{stage.path}/hooks", body)


async def test_webhooks_are_signed_hints(stage: Stage) -> None:
    """Opening, labelling and commenting are told with a true signature; each names the issue and the sender."""
    async with _receiver() as (url, got):
        await _hook(stage, url, "s3cret")
        number = await stage.alice.create_issue(stage.path, "x", "body \x00 ü")
        await stage.bob.add_labels(stage.path, number, await stage.label("tireless/go"))
        await stage.mallory.comment(stage.path, number, "hello")
        hints = []
        for _ in range(3):
            headers, body = await asyncio.wait_for(got.get(), 90)
            hints.append(webhook.read(headers, body, "s3cret"))
            assert not webhook.signed(headers, body + b" ", "s3cret")
            assert not webhook.signed(headers, body, "other")
    assert {(each.event, each.action, each.sender_login) for each in hints} == {
        ("issues", "opened", stage.alice.login),
        ("issue_label", "label_updated", stage.bob.login),
        ("issue_comment", "created", stage.mallory.login),
    }
    assert {(each.number, each.is_pull, each.repo_path) for each in hints} == {(number, False, stage.path)}
    assert len({each.delivery for each in hints}) == 3


async def test_a_hook_without_secret_signs_nothing(stage: Stage) -> None:
    """The signature headers are there and empty: refused."""
    async with _receiver() as (url, got):
        await _hook(stage, url, "")
        await stage.alice.create_issue(stage.path, "x")
        headers, body = await asyncio.wait_for(got.get(), 90)
    with pytest.raises(ForgeDenied):
        webhook.read(headers, body, "s3cret")
    with pytest.raises(ForgeDenied):
        webhook.read(headers, body, "")
