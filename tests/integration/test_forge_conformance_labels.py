"""Conformance: label definitions, labels on issues, scopes, who may; alike on the loopback and a real forge."""

from __future__ import annotations

import pytest

from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.conformance import Server, other_repo
from tests.support.forges import Stage
from tireless.domain.issue import EntryKind, LabelSpec
from tireless.errors import ForgeDenied, ForgeRejected, NotFound
from tireless.forge.gitea import GiteaForge

ADDED, REMOVED = EntryKind.LABEL_ADDED, EntryKind.LABEL_REMOVED


async def _on(forge: GiteaForge, stage: Stage, number: int) -> set[str]:
    return {each.name for each in (await forge.issue(stage.repo, number)).labels}


async def _history(forge: GiteaForge, stage: Stage, number: int) -> list[tuple[EntryKind, str]]:
    return [(each.kind, each.label.name if each.label else "") for each in await forge.timeline(stage.repo, number)]


async def test_a_definition_is_created_as_asked(stage: Stage, forge: GiteaForge) -> None:
    """Name, colour without `#`, description, exclusiveness come back; the same name again makes a second one."""
    spec = LabelSpec(name="tireless/plan", color="00aabb", description="make a plan", exclusive=True)
    made = await forge.create_label(stage.repo, spec)
    assert (made.name, made.color, made.description, made.exclusive) == (spec.name, "00aabb", "make a plan", True)
    twin = await forge.create_label(stage.repo, spec)
    assert twin.id != made.id
    assert {each.id for each in await forge.labels(stage.repo)} >= {made.id, twin.id}


async def test_a_bad_colour_and_a_stranger_are_refused(stage: Stage, forge: GiteaForge) -> None:
    """What is no colour is 422; a stranger creates no label; three digits are doubled."""
    with pytest.raises(ForgeRejected) as refused:
        await forge.create_label(stage.repo, LabelSpec("x", "nocolor", "", exclusive=False))
    assert refused.value.status == 422
    short = await forge.create_label(stage.repo, LabelSpec("x", "0aF", "", exclusive=False))
    assert short.color == "00aaff"
    stranger = stage.as_person(stage.mallory)
    with pytest.raises(ForgeDenied):
        await stranger.create_label(stage.repo, LabelSpec("x", "00aabb", "", exclusive=False))


async def test_all_pages_of_repository_and_organisation_labels(stage: Stage, forge: GiteaForge) -> None:
    """Sixty of the repository and those of its organisation; a user's repository has its own alone."""
    wanted = {await stage.alice.create_label(stage.path, f"label {n:02}") for n in range(60)}
    of_org = await stage.alice.create_label(stage.repo.owner, f"org {stage.repo.name}", org=True)
    found = await forge.labels(stage.repo)
    ids = [each.id for each in found]
    assert wanted | {of_org} <= set(ids)
    assert len(set(ids)) == len(ids)
    assert ids.index(of_org) >= 60
    own = other_repo(stage.repo, stage.repo.name)
    await stage.bob.create_repository(own.name)
    mine = type(own)(own.forge, stage.bob.login, own.name)
    label = await stage.bob.create_label(mine.path, "mine")
    assert [each.id for each in await forge.labels(mine)] == [label]


async def test_label_lists_page_only_when_a_page_is_asked(stage: Stage, forge: GiteaForge) -> None:
    """`limit` without `page` gives all of them: why the client always sends both."""
    for n in range(4):
        await stage.label(f"label {n}")
    path = f"/repos/{stage.path}/labels"
    assert len((await stage.bot.api("GET", path, limit=3)).sequence()) == 4
    assert len((await stage.bot.api("GET", path, limit=3, page=1)).sequence()) == 3
    assert (await stage.bot.api("GET", path, limit=3, page=9)).sequence() == []


async def test_setting_a_label_is_idempotent(stage: Stage, forge: GiteaForge) -> None:
    """On twice leaves one entry, off twice one more, off for a definition that is gone none."""
    label, doomed = await stage.label("tireless/status/queued"), await stage.label("doomed")
    number = await stage.alice.create_issue(stage.path, "labelled")
    for on in (True, True, False, False):
        await forge.set_label(stage.repo, number, label, on=on)
    assert await _history(forge, stage, number) == [
        (ADDED, "tireless/status/queued"),
        (REMOVED, "tireless/status/queued"),
    ]
    await stage.alice.delete_label_definition(stage.path, doomed)
    await forge.set_label(stage.repo, number, doomed, on=False)


async def test_an_id_the_forge_ignores_is_told(stage: Stage, forge: GiteaForge) -> None:
    """An unknown id, and one of another repository, get a 200 from the forge and ForgeRejected from the client."""
    number = await stage.alice.create_issue(stage.path, "labelled")
    other = f"{stage.repo.owner}/{stage.repo.name}-lib"
    await stage.alice.create_repository(f"{stage.repo.name}-lib", org=stage.repo.owner)
    foreign = await stage.alice.create_label(other, "foreign")
    for label in (999_999, foreign):
        with pytest.raises(ForgeRejected, match="ignored label"):
            await forge.set_label(stage.repo, number, label, on=True)
    await forge.set_label(stage.repo, number, foreign, on=False)
    assert await _on(forge, stage, number) == set()


async def test_labels_on_what_is_missing_or_not_ours(stage: Stage, forge: GiteaForge) -> None:
    """A missing issue is NotFound both ways; a stranger is denied both ways, once with an empty body."""
    label = await stage.label("tireless/go")
    number = await stage.mallory.create_issue(stage.path, "his own")
    stranger = stage.as_person(stage.mallory)
    for on in (True, False):
        with pytest.raises(NotFound):
            await forge.set_label(stage.repo, 9999, label, on=on)
        with pytest.raises(ForgeDenied):
            await stranger.set_label(stage.repo, number, label, on=on)


async def test_an_exclusive_label_evicts_those_of_its_scope(stage: Stage, forge: GiteaForge) -> None:
    """The scope is all before the last slash: plan evicts implement, not the status, not what is not exclusive."""
    for name in ("tireless/plan", "tireless/implement", "tireless/status/queued"):
        await stage.label(name, exclusive=True)
    await stage.label("tireless/agent:claude")
    number = await stage.alice.create_issue(stage.path, "labelled")
    for name in ("tireless/implement", "tireless/status/queued", "tireless/agent:claude"):
        await forge.set_label(stage.repo, number, stage.labels[name], on=True)
    await stage.bob.add_labels(stage.path, number, stage.labels["tireless/plan"])
    assert await _on(forge, stage, number) == {"tireless/plan", "tireless/status/queued", "tireless/agent:claude"}
    entries = await forge.timeline(stage.repo, number)
    assert [(each.kind, each.label and each.label.name, each.actor.login) for each in entries[-2:]] == [
        (REMOVED, "tireless/implement", stage.bob.login),
        (ADDED, "tireless/plan", stage.bob.login),
    ]


async def test_several_exclusives_in_one_call_go_by_name(stage: Stage, forge: GiteaForge) -> None:
    """Whatever the order asked, they are put on in the order of their names, and the last one stays."""
    plan, implement = [await stage.label(f"tireless/{name}", exclusive=True) for name in ("plan", "implement")]
    for ids in ((plan, implement), (implement, plan)):
        number = await stage.alice.create_issue(stage.path, "labelled")
        await stage.bob.add_labels(stage.path, number, *ids)
        assert await _on(forge, stage, number) == {"tireless/plan"}
        assert await _history(forge, stage, number) == [
            (ADDED, "tireless/implement"),
            (REMOVED, "tireless/implement"),
            (ADDED, "tireless/plan"),
        ]


async def test_creation_skips_exclusivity(stage: Stage, forge: GiteaForge) -> None:
    """Two of one scope given with a new issue stay both."""
    ids = [await stage.label(f"tireless/{name}", exclusive=True) for name in ("plan", "implement")]
    made = await forge.create_issue(stage.repo, title="both", body="", label_ids=ids)
    assert await _on(forge, stage, made.number) == {"tireless/plan", "tireless/implement"}
    assert await _history(forge, stage, made.number) == [(ADDED, "tireless/plan"), (ADDED, "tireless/implement")]


async def test_organisation_labels_go_on_issues(stage: Stage, forge: GiteaForge) -> None:
    """An organisation's label is put on by id, and its entry names it."""
    name = f"tireless/go {stage.repo.name}"
    label = await stage.alice.create_label(stage.repo.owner, name, org=True)
    number = await stage.alice.create_issue(stage.path, "labelled")
    await forge.set_label(stage.repo, number, label, on=True)
    assert await _on(forge, stage, number) == {name}
    assert await _history(forge, stage, number) == [(ADDED, name)]


async def test_a_definition_that_goes_takes_its_entries_along(stage: Stage, forge: GiteaForge) -> None:
    """After its deletion the label is on no issue and in no timeline; a renamed one shows its new name, same id."""
    gone, kept = await stage.label("gone"), await stage.label("kept")
    number = await stage.alice.create_issue(stage.path, "labelled")
    await stage.bob.add_labels(stage.path, number, gone, kept)
    await stage.alice.delete_label_definition(stage.path, gone)
    await stage.alice.rename_label(stage.path, kept, "renamed")
    await stage.alice.delete_label_definition(stage.path, gone)  # again: answered as if it were there
    assert await _on(forge, stage, number) == {"renamed"}
    (entry,) = await forge.timeline(stage.repo, number)
    assert entry.label is not None
    assert (entry.kind, entry.label.id, entry.label.name) == (ADDED, kept, "renamed")


async def test_replacing_with_unknown_labels_clears(stage: Stage, forge: GiteaForge) -> None:
    """PUT with an unknown id empties the issue: why the client never sends the set."""
    label = await stage.label("tireless/go")
    number = await stage.alice.create_issue(stage.path, "labelled", label_ids=[label])
    answer = await stage.alice.api("PUT", f"/repos/{stage.path}/issues/{number}/labels", {"labels": [999_999]})
    assert (answer.status, answer.sequence()) == (200, [])
    assert await _history(forge, stage, number) == [(ADDED, "tireless/go"), (REMOVED, "tireless/go")]


async def test_the_label_filter_of_lists_lies(stage: Stage, forge: GiteaForge) -> None:
    """An unknown name filters nothing, two names are both wanted, organisation labels do not count."""
    go, mode = [await stage.label(name) for name in ("go", "mode")]
    org = f"org {stage.repo.name}"
    await stage.alice.create_label(stage.repo.owner, org, org=True)
    both, one, none = [
        await stage.alice.create_issue(stage.path, name, label_ids=ids)
        for name, ids in (("both", [go, mode]), ("one", [go]), ("none", []))
    ]

    async def listed(labels: str) -> set[object]:
        rows = (await stage.bot.api("GET", f"/repos/{stage.path}/issues", labels=labels)).sequence()
        return {row["number"] for row in rows if isinstance(row, dict)}

    assert await listed("go") == {both, one}
    assert await listed("go,mode") == {both}
    assert await listed("nobody knows this") == {both, one, none}
    assert await listed(org) == {both, one, none}


async def test_names_mixtures_and_odd_types(server: Server, stage: Stage) -> None:
    """Names work where ids do, not both in one call; a name that is a number's text is a name; others are 400."""
    label = await stage.label("tireless/go")
    number = await stage.alice.create_issue(stage.path, "labelled")
    path = f"/repos/{stage.path}/issues/{number}/labels"
    assert len((await stage.bob.api("POST", path, {"labels": ["tireless/go"]})).sequence()) == 1
    assert len((await stage.bob.api("POST", path, {"labels": [str(label)]})).sequence()) == 1
    odd: list[list[object]] = [] if server.is_forgejo else [[True], [{"id": label}]]  # Forgejo ignores what is odd
    for labels in (["tireless/go", label], *odd):
        with pytest.raises(ForgeRejected) as refused:
            await stage.bob.api("POST", path, {"labels": labels})
        assert refused.value.status == 400
    with pytest.raises(ForgeRejected) as refused:
        await stage.bob.api("DELETE", f"{path}/tireless%2Fgo")
    assert refused.value.status == 422


async def test_an_archived_label_can_be_put_on(stage: Stage, forge: GiteaForge) -> None:
    """Only the web page hides it; a change that does not say so takes it out of the archive."""
    label = await stage.label("old")
    path = f"/repos/{stage.path}/labels/{label}"
    await stage.alice.api("PATCH", path, {"is_archived": True})
    number = await stage.alice.create_issue(stage.path, "labelled")
    await forge.set_label(stage.repo, number, label, on=True)
    (found,) = (await forge.issue(stage.repo, number)).labels
    assert found.archived
    await stage.alice.api("PATCH", path, {"description": "used again"})
    (found,) = (await forge.issue(stage.repo, number)).labels
    assert not found.archived


async def test_acts_dated_back_do_not_change_what_came_last(server: Server, stage: Stage, forge: GiteaForge) -> None:
    """A Forgejo admin may date an act; the timeline is sorted by time then, ours by id. Gitea takes no notice."""
    label = await stage.label("tireless/go")
    number = await stage.alice.create_issue(stage.path, "labelled")
    created = (await forge.issue(stage.repo, number)).created_at
    await server.next_second(stage)
    await stage.bob.add_labels(stage.path, number, label)
    await stage.bob.remove_label(stage.path, number, label)
    moved = (await forge.issue(stage.repo, number)).updated_at
    path, body = f"/repos/{stage.path}/issues/{number}/labels", {"labels": [label], "updated_at": created.isoformat()}
    if server.is_forgejo:
        with pytest.raises(ForgeDenied):
            await stage.bob.api("POST", path, body)
    await stage.alice.api("POST", path, body)
    entries = await forge.timeline(stage.repo, number)
    assert [each.kind for each in entries] == [ADDED, REMOVED, ADDED]
    dated = entries[-1].at == created
    assert dated == server.is_forgejo
    raw = (await stage.bot.api("GET", f"/repos/{stage.path}/issues/{number}/timeline")).sequence()
    ids = [each["id"] for each in raw if isinstance(each, dict)]
    assert (ids != sorted(ids)) == dated
    assert ((await forge.issue(stage.repo, number)).updated_at < moved) == dated
