"""Conformance: issues, lists, timelines, comments, closing, dependencies; alike on the loopback and a real forge."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta

import pytest

from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.conformance import Server
from tests.support.forges import Stage
from tireless.domain.issue import EntryKind, IssueRef, IssueState, RepoRef
from tireless.errors import ForgeDenied, ForgeRejected, NotFound
from tireless.forge.base import NewPull
from tireless.forge.gitea import GiteaForge


async def _pull(stage: Stage, forge: GiteaForge, branch: str = "work", body: str = "") -> int:
    await stage.bob.commit(stage.path, f"{branch}.txt", "x", new_branch=branch)
    return (await forge.create_pull(stage.repo, NewPull(title=branch, body=body, head=branch, base="main"))).number


async def test_lists_are_newest_first_without_pull_requests(stage: Stage, forge: GiteaForge) -> None:
    """Issues of any state, newest first, pull requests left out; past the end nothing, with the true total."""
    numbers = [await stage.alice.create_issue(stage.path, f"issue {n}") for n in range(3)]
    await _pull(stage, forge)
    await stage.alice.close(stage.path, numbers[1])
    page = await forge.issues(stage.repo, page=1)
    assert [each.number for each in page.issues] == numbers[::-1]
    assert [each.state for each in page.issues] == [IssueState.OPEN, IssueState.CLOSED, IssueState.OPEN]
    assert (page.rows, page.total, page.malformed) == (3, 3, ())
    assert page.server_date is not None
    end = await forge.issues(stage.repo, page=2)
    assert (end.rows, end.total) == (0, 3)


async def test_pages_are_cut_to_fifty(stage: Stage, forge: GiteaForge) -> None:
    """Fifty-three issues are a page of 50 and a page of 3, whatever limit was asked for."""
    for n in range(53):
        await stage.bob.create_issue(stage.path, f"issue {n}")
    assert [(await forge.issues(stage.repo, page=n)).rows for n in (1, 2, 3)] == [50, 3, 0]
    greedy = await stage.bot.api("GET", f"/repos/{stage.path}/issues", limit=500, page=1)
    assert (len(greedy.sequence()), greedy.total) == (50, 53)
    by_default = await stage.bot.api("GET", f"/repos/{stage.path}/issues")
    assert len(by_default.sequence()) == 30


async def test_since_is_inclusive_in_whole_seconds(server: Server, stage: Stage, forge: GiteaForge) -> None:
    """An issue is in the answer for its own stamp and not for a second later; two stamps in one second both are."""
    old = await stage.alice.create_issue(stage.path, "old")
    await server.next_second(stage)
    await server.next_second(stage)
    new = [await stage.alice.create_issue(stage.path, f"new {n}") for n in range(2)]
    stamp = (await forge.issue(stage.repo, new[0])).updated_at
    found = await forge.issues(stage.repo, page=1, since=stamp)
    assert set(new) <= {each.number for each in found.issues}
    assert old not in {each.number for each in found.issues}
    later = max(each.updated_at for each in found.issues) + timedelta(seconds=1)
    assert (await forge.issues(stage.repo, page=1, since=later)).rows == 0
    before_all = (await forge.issue(stage.repo, old)).updated_at
    assert (await forge.issues(stage.repo, page=1, since=before_all)).rows == 3


async def test_created_by_filters_and_refuses_the_unknown(stage: Stage, forge: GiteaForge) -> None:
    """`created_by` leaves the author's issues; a login nobody has is NotFound, not an empty list."""
    await stage.alice.create_issue(stage.path, "hers")
    mine = await stage.bob.create_issue(stage.path, "his")
    page = await forge.issues(stage.repo, page=1, created_by=stage.bob.login)
    assert [each.number for each in page.issues] == [mine]
    with pytest.raises(NotFound):
        await forge.issues(stage.repo, page=1, created_by="nobody-of-this-name")


async def test_an_issue_is_read_whole(stage: Stage, forge: GiteaForge) -> None:
    """Title trimmed, body verbatim with control characters, NUL and astral ones; author, times and address set."""
    body = "a\r\n<!-- hidden -->\tb\x00c\x1b[0m \U0001f600 end  \n"
    number = await stage.mallory.create_issue(stage.path, "  Paint \u202e it ", body)
    found = await forge.issue(stage.repo, number)
    assert (found.title, found.body) == ("Paint \u202e it", body)
    assert (found.author.login, found.state) == (stage.mallory.login, IssueState.OPEN)
    assert found.created_at == found.updated_at
    assert found.created_at.tzinfo is not None
    assert found.url.endswith(f"/{stage.path}/issues/{number}")


async def test_long_titles_and_bodies(server: Server, stage: Stage, forge: GiteaForge) -> None:
    """Gitea cuts a title to 255 bytes ending in an ellipsis, Forgejo does not; a body of 2 MB comes back whole."""
    body = "x" * (2 * 1024 * 1024)
    number = await stage.bob.create_issue(stage.path, "t" * 300, body)
    found = await forge.issue(stage.repo, number)
    assert found.title == ("t" * 300 if server.is_forgejo else "t" * 252 + "…")
    assert found.body == body


async def test_what_is_not_an_issue_is_not_found(stage: Stage, forge: GiteaForge) -> None:
    """A number never given, a deleted issue and a pull request's number are NotFound; numbers are not used again."""
    number = await stage.alice.create_issue(stage.path, "to go")
    pull = await _pull(stage, forge)
    await stage.alice.api("DELETE", f"/repos/{stage.path}/issues/{number}")
    for missing in (9999, number, pull):
        with pytest.raises(NotFound):
            await forge.issue(stage.repo, missing)
    assert await stage.alice.create_issue(stage.path, "next") == pull + 1


async def test_a_missing_issue_is_not_found_where_the_forge_says_500(stage: Stage, forge: GiteaForge) -> None:
    """Timeline, comments and commenting answer 500 for a missing issue; the client says NotFound all the same."""
    for path in ("timeline", "comments"):
        with pytest.raises(Exception, match="answered 500"):
            await stage.bot.api("GET", f"/repos/{stage.path}/issues/9999/{path}")
    for call in (
        forge.timeline(stage.repo, 9999),
        forge.comments(stage.repo, 9999),
        forge.write_comment(stage.repo, 9999, "x"),
    ):
        with pytest.raises(NotFound):
            await call


async def test_the_timeline_says_who_did_what(stage: Stage, forge: GiteaForge) -> None:
    """Oldest first: comment, label on and off, title, close, reopen; a body edit leaves nothing; none is `null`."""
    label = await stage.label("tireless/go")
    number = await stage.mallory.create_issue(stage.path, "first title")
    assert (await stage.bot.api("GET", f"/repos/{stage.path}/issues/{number}/timeline")).json() is None
    assert await forge.timeline(stage.repo, number) == ()
    await stage.mallory.comment(stage.path, number, "me too")
    await stage.bob.add_labels(stage.path, number, label)
    await stage.alice.remove_label(stage.path, number, label)
    await stage.mallory.edit_issue(stage.path, number, title="second title")
    await stage.mallory.edit_issue(stage.path, number, body="other text")
    await stage.mallory.close(stage.path, number)
    await stage.bob.reopen(stage.path, number)
    entries = await forge.timeline(stage.repo, number)
    assert [(each.kind, each.actor.login) for each in entries] == [
        (EntryKind.COMMENT, stage.mallory.login),
        (EntryKind.LABEL_ADDED, stage.bob.login),
        (EntryKind.LABEL_REMOVED, stage.alice.login),
        (EntryKind.TITLE_CHANGED, stage.mallory.login),
        (EntryKind.CLOSED, stage.mallory.login),
        (EntryKind.REOPENED, stage.bob.login),
    ]
    assert entries[0].body == "me too"
    assert [each.label and each.label.id for each in entries[1:3]] == [label, label]
    assert sorted(each.id for each in entries) == [each.id for each in entries]


async def test_a_long_timeline_comes_whole(stage: Stage, forge: GiteaForge) -> None:
    """Sixty comments come in one answer without `page`; with it the second page has ten and counts ten."""
    number = await stage.bob.create_issue(stage.path, "talked about")
    for n in range(60):
        await stage.bob.comment(stage.path, number, f"comment {n}")
    assert len(await forge.timeline(stage.repo, number)) == 60
    assert len(await forge.comments(stage.repo, number)) == 60
    path = f"/repos/{stage.path}/issues/{number}/timeline"
    second = await stage.bot.api("GET", path, page=2, limit=50)
    assert (len(second.sequence()), second.total) == (10, 10)
    assert (await stage.bot.api("GET", path, page=9)).json() is None


async def test_what_moves_the_stamp_of_an_issue(server: Server, stage: Stage, forge: GiteaForge) -> None:
    """Comments, labels, texts, states and mentions move `updated_at`; editing a comment and void acts do not."""
    label = await stage.label("tireless/go")
    number = await stage.alice.create_issue(stage.path, "watched", "text")
    other = await stage.alice.create_issue(stage.path, "other")
    comment = await stage.alice.comment(stage.path, number, "one")
    path = stage.path

    async def moves(act: Awaitable[object]) -> bool:
        before = (await forge.issue(stage.repo, number)).updated_at
        await server.next_second(stage)
        await act
        return (await forge.issue(stage.repo, number)).updated_at != before

    assert await moves(stage.alice.comment(path, number, "two"))
    assert await moves(stage.alice.add_labels(path, number, label))
    assert not await moves(stage.alice.add_labels(path, number, label))
    assert await moves(stage.alice.remove_label(path, number, label))
    assert not await moves(stage.alice.remove_label(path, number, label))
    assert await moves(stage.alice.edit_issue(path, number, title="watched closely"))
    assert await moves(stage.alice.edit_issue(path, number, body="other text"))
    assert await moves(stage.alice.edit_issue(path, number, body="other text"))  # the same again: it does
    assert not await moves(stage.alice.edit_issue(path, number, title="watched closely"))
    assert await moves(stage.alice.close(path, number))
    assert not await moves(stage.alice.close(path, number))
    assert await moves(stage.alice.reopen(path, number))
    assert not await moves(forge.write_comment(stage.repo, number, "changed", comment_id=comment))
    deleting = stage.alice.api("DELETE", f"/repos/{path}/issues/comments/{comment}")
    assert await moves(deleting) == server.is_forgejo
    assert await moves(stage.alice.comment(path, other, f"see #{number}"))
    assert not await moves(stage.alice.comment(path, other, f"see `#{number}`"))
    assert not await moves(stage.alice.rename_label(path, label, "tireless/gone"))


async def test_comments_are_written_and_edited(stage: Stage, forge: GiteaForge) -> None:
    """Verbatim with a hidden marker; an edit keeps the author, also one that changes nothing; a deleted one is gone."""
    number = await stage.alice.create_issue(stage.path, "commented")
    assert await forge.comments(stage.repo, number) == ()
    body = "<!-- tireless:status -->\nqueued"
    made = await forge.write_comment(stage.repo, number, body)
    assert (made.body, made.author.login) == (body, stage.bot.login)
    again = await forge.write_comment(stage.repo, number, body, comment_id=made.id)
    assert (again.id, again.author.login) == (made.id, stage.bot.login)
    edited = await forge.write_comment(stage.repo, number, "done", comment_id=made.id)
    assert (edited.body, edited.author.login) == ("done", stage.bot.login)
    theirs = await stage.mallory.comment(stage.path, number, "hm")
    kept = await forge.write_comment(stage.repo, number, "moderated", comment_id=theirs)
    assert kept.author.login == stage.mallory.login
    assert [(each.id, each.body) for each in await forge.comments(stage.repo, number)] == [
        (made.id, "done"),
        (theirs, "moderated"),
    ]
    await stage.alice.api("DELETE", f"/repos/{stage.path}/issues/comments/{made.id}")
    with pytest.raises(NotFound):
        await forge.write_comment(stage.repo, number, "again", comment_id=made.id)
    with pytest.raises(ForgeRejected) as refused:
        await forge.write_comment(stage.repo, number, "")
    assert refused.value.status == 422


async def test_a_stranger_may_not_edit_what_is_not_his(stage: Stage) -> None:
    """Another's comment or issue: 403; his own issue he may edit, close and reopen."""
    number = await stage.alice.create_issue(stage.path, "hers")
    comment = await stage.alice.comment(stage.path, number, "hers")
    stranger = stage.as_person(stage.mallory)
    with pytest.raises(ForgeDenied):
        await stranger.write_comment(stage.repo, number, "mine", comment_id=comment)
    with pytest.raises(ForgeDenied):
        await stranger.close(IssueRef(stage.repo, number))
    own = await stage.mallory.create_issue(stage.path, "his")
    await stage.mallory.edit_issue(stage.path, own, title="still his")
    await stranger.close(IssueRef(stage.repo, own))
    await stage.mallory.reopen(stage.path, own)


async def test_closing_is_idempotent(server: Server, stage: Stage, forge: GiteaForge) -> None:
    """Closing a closed issue and a merged pull request is no error; a state nobody knows is refused, or open."""
    number = await stage.alice.create_issue(stage.path, "to close")
    pull = await _pull(stage, forge)
    for _ in range(2):
        await forge.close(IssueRef(stage.repo, number))
    assert (await forge.issue(stage.repo, number)).state is IssueState.CLOSED
    await stage.alice.merge(stage.path, pull)
    await forge.close(IssueRef(stage.repo, pull))
    if server.is_forgejo:
        await stage.alice.edit_issue(stage.path, number, state="weird")
        assert (await forge.issue(stage.repo, number)).state is IssueState.OPEN
        return
    with pytest.raises(ForgeRejected) as refused:
        await stage.alice.edit_issue(stage.path, number, state="weird")
    assert refused.value.status == 412


async def test_dependencies_block_closing(stage: Stage, forge: GiteaForge) -> None:
    """An edge is added once, seen with its state, and refuses closing until the blocker is closed."""
    blocked, blocker = [await stage.alice.create_issue(stage.path, name) for name in ("blocked", "blocker")]
    ref, on = IssueRef(stage.repo, blocked), IssueRef(stage.repo, blocker)
    assert await forge.dependencies(ref) == ()
    for _ in range(2):
        await forge.add_dependency(ref, on)
    assert await forge.dependencies(ref) == ((on, False),)
    with pytest.raises(ForgeRejected) as refused:
        await forge.close(ref)
    assert refused.value.status == 412
    assert (await forge.issue(stage.repo, blocked)).state is IssueState.OPEN
    await forge.close(on)
    assert await forge.dependencies(ref) == ((on, True),)
    await forge.close(ref)


async def test_dependencies_the_forge_would_take_and_we_do_not(stage: Stage, forge: GiteaForge) -> None:
    """An issue on itself is refused before it is sent; the forge alone would take it, and refuses only circles."""
    one, two = [await stage.alice.create_issue(stage.path, name) for name in ("one", "two")]
    ref, other = IssueRef(stage.repo, one), IssueRef(stage.repo, two)
    with pytest.raises(ForgeRejected):
        await forge.add_dependency(ref, ref)
    await forge.add_dependency(ref, other)
    with pytest.raises(Exception, match="answered 500"):
        await forge.add_dependency(other, ref)
    with pytest.raises(NotFound):
        await forge.add_dependency(ref, IssueRef(stage.repo, 9999))


async def test_dependencies_across_repositories_and_switched_off(stage: Stage, forge: GiteaForge) -> None:
    """A blocker may live in another repository; where dependencies are switched off all of it is NotFound."""
    await stage.alice.create_repository(f"{stage.repo.name}-lib", org=stage.repo.owner)
    lib = RepoRef(stage.repo.forge, stage.repo.owner, f"{stage.repo.name}-lib")
    there = IssueRef(lib, await stage.alice.create_issue(lib.path, "there"))
    here = IssueRef(stage.repo, await stage.alice.create_issue(stage.path, "here"))
    await forge.add_dependency(here, there)
    assert await forge.dependencies(here) == ((there, False),)
    tracker = {"enable_time_tracker": False, "enable_issue_dependencies": False}
    await stage.alice.edit_repository(stage.path, has_issues=True, internal_tracker=tracker)
    with pytest.raises(NotFound):
        await forge.dependencies(here)
    with pytest.raises(NotFound):
        await forge.add_dependency(here, there)


async def test_issues_are_created_with_labels(stage: Stage, forge: GiteaForge) -> None:
    """A writer's labels are on it, unknown ids are dropped; a stranger's are dropped without a word."""
    label = await stage.label("tireless/implement")
    made = await forge.create_issue(stage.repo, title="child", body="do it", label_ids=[label, 999_999])
    assert [each.id for each in made.labels] == [label]
    (entry,) = await forge.timeline(stage.repo, made.number)
    assert (entry.kind, entry.actor.login) == (EntryKind.LABEL_ADDED, stage.bot.login)
    assert entry.at == made.created_at
    stranger = stage.as_person(stage.mallory)
    theirs = await stranger.create_issue(stage.repo, title="wish", body="", label_ids=[label])
    assert theirs.labels == ()
    assert await forge.timeline(stage.repo, theirs.number) == ()


async def test_the_web_form_takes_labels_from_anyone(stage: Stage, forge: GiteaForge) -> None:
    """A stranger's new issue carries the labels of the form, entries in his name at the moment of creation."""
    ids = [await stage.label(name) for name in ("tireless/go", "tireless/implement")]
    number = await stage.mallory.create_issue_by_form(stage.path, "Wish", "please", label_ids=ids[::-1])
    found = await forge.issue(stage.repo, number)
    assert sorted(each.id for each in found.labels) == ids
    entries = await forge.timeline(stage.repo, number)
    assert [(each.label and each.label.id, each.actor.login, each.at) for each in entries] == [
        (each, stage.mallory.login, found.created_at) for each in ids
    ]
