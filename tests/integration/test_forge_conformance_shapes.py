"""Conformance: every answer fits Gitea's specification, and the loopback forge writes the fields a real one does."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tests.support.answers import definitions, recorded
from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.conformance import Server
from tests.support.forges import Stage

# What a real 1.26 answers and its own specification does not name.
_UNSPECIFIED = {
    "User": {"username", "pronouns"},  # the second on Forgejo only
    "Repository": {"globally_editable_wiki", "wiki_branch"},  # Forgejo only
    "Hook": {"content_type", "url"},  # Forgejo only
}


def _validator(name: str) -> jsonschema.Draft7Validator:
    """A schema that takes no field nobody knows. Nulls, which Go writes for what is not set, are dropped before."""
    found = definitions()
    for title, definition in found.items():
        if "properties" in definition:
            for key in _UNSPECIFIED.get(title, set()):
                definition["properties"].setdefault(key, {})
            definition["additionalProperties"] = False
    return jsonschema.Draft7Validator({"$ref": f"#/definitions/{name}", "definitions": found})


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_nulls(each) for key, each in data.items() if each is not None}
    return [_without_nulls(each) for each in data] if isinstance(data, list) else data


async def _answers(stage: Stage) -> dict[str, tuple[str, list[Any]]]:
    """One answer of every kind the client reads: what was asked -> (definition, the values)."""
    repo = f"/repos/{stage.path}"
    label = await stage.label("tireless/go")
    number = await stage.mallory.create_issue(stage.path, "Paint it", "blue")
    other = await stage.alice.create_issue(stage.path, "other", f"see #{number}")
    await stage.bob.add_labels(stage.path, number, label)
    await stage.bob.remove_label(stage.path, number, label)
    await stage.bob.add_labels(stage.path, number, label)
    comment = await stage.bob.comment(stage.path, number, "hello")
    await stage.bob.edit_issue(stage.path, number, title="Paint it blue")
    edge = {"owner": stage.repo.owner, "repo": stage.repo.name, "index": other}
    await stage.bob.api("POST", f"{repo}/issues/{number}/dependencies", edge)
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    pull = await stage.bob.create_pull(stage.path, "Paint", head="work", body=f"Closes #{number}")
    await stage.bob.close(stage.path, other)
    await stage.alice.merge(stage.path, pull)
    await stage.alice.create_label(stage.repo.owner, f"org {stage.repo.name}", org=True)
    hook = {"url": "http://127.0.0.1:9/x", "content_type": "json"}
    await stage.alice.api("POST", f"{repo}/hooks", {"type": "gitea", "events": ["issues"], "config": hook})

    async def get(path: str, **params: str | int) -> list[Any]:
        found = (await stage.alice.api("GET", path, None, **params)).json()
        return found if isinstance(found, list) else [found]

    return {
        "version": ("ServerVersion", await get("/version")),
        "settings": ("GeneralAPISettings", await get("/settings/api")),
        "user": ("User", await get("/user")),
        "repository": ("Repository", await get(repo)),
        "issue_list": ("Issue", await get(f"{repo}/issues", state="all")),
        "issue": ("Issue", await get(f"{repo}/issues/{number}")),
        "label_entries": ("TimelineComment", await get(f"{repo}/issues/{number}/timeline")),
        "comment": ("Comment", await get(f"{repo}/issues/comments/{comment}")),
        "label": ("Label", await get(f"{repo}/labels")),
        "org_label": ("Label", await get(f"/orgs/{stage.repo.owner}/labels")),
        "dependencies": ("Issue", await get(f"{repo}/issues/{number}/dependencies")),
        "pull": ("PullRequest", await get(f"{repo}/pulls", state="all")),
        "branch": ("Branch", await get(f"{repo}/branches")),
        "permission": (
            "RepoCollaboratorPermission",
            await get(f"{repo}/collaborators/{stage.bob.login}/permission"),
        ),
        "assignees": ("User", await get(f"{repo}/assignees")),
        "hook": ("Hook", await get(f"{repo}/hooks")),
        "team": ("Team", await get(f"/orgs/{stage.repo.owner}/teams")),
    }


async def test_answers_fit_the_specification(stage: Stage) -> None:
    """Every value of every answer validates, apart from the fields the specification forgot."""
    faults = []
    for asked, (name, values) in (await _answers(stage)).items():
        assert values, f"{asked} answered nothing to look at"
        validator = _validator(name)
        faults += [
            f"{asked}: {'/'.join(str(step) for step in error.absolute_path)}: {error.message[:200]}"
            for value in values
            for error in validator.iter_errors(_without_nulls(value))
        ]
    assert faults == [], "\n".join(sorted(set(faults)))


# Fields of a real answer nobody here reads, and which the loopback forge leaves out.
_LEFT_OUT = {
    "repository": {
        "has_code",
        "projects_mode",
        "ignore_whitespace_conflicts",
        "allow_rebase_explicit",
        "allow_fast_forward_only_merge",
        "allow_rebase_update",
        "allow_manual_merge",
        "autodetect_manual_merge",
        "default_delete_branch_after_merge",
        "default_allow_maintainer_edit",
        "mirror_interval",
        "mirror_updated",
    },
    "pull": {"additions", "deletions", "changed_files"},
}


@pytest.mark.parametrize("server", ["loopback"], indirect=True)
async def test_the_loopback_forge_writes_the_fields_of_a_real_one(server: Server, stage: Stage) -> None:
    """The same keys with the same types, noun by noun, against the recorded answers."""
    for asked, (_, values) in (await _answers(stage)).items():
        if asked == "assignees":
            continue
        real = recorded(asked)
        real = real if isinstance(real, list) else [real]
        keys = {key for each in real for key in each}
        ours = {key for each in values for key in each}
        assert ours - keys == set(), f"{asked}: fields no real answer has"
        assert keys - ours == _LEFT_OUT.get(asked, set()), f"{asked}: fields left out"
        for key in ours:
            kinds = {type(each[key]) for each in real if each.get(key) is not None}
            seen = {type(each[key]) for each in values if each.get(key) is not None}
            assert not kinds or seen <= kinds, f"{asked}.{key}: {seen} where a real one has {kinds}"
