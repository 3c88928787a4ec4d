"""The loopback forge's labels: definitions of repositories and organisations, and those on an issue."""

from __future__ import annotations

import re

from starlette.responses import Response

from tireless.loopback import render, render_issue, rights
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.state import Event, Issue, Label, Repo, User
from tireless.loopback.world import World

_COLOR = re.compile(r"^#?(?:[0-9a-fA-F]{6}|[0-9a-fA-F]{3})$")

# ---------------------------------------------------------------------- what happens to an issue


def attach(world: World, repo: Repo, issue: Issue, doer: User, label: Label) -> None:
    """Add one label: nothing if it is there; other exclusive ones of its scope go in the same act."""
    if label.id in issue.label_ids:
        return
    for other_id in list(issue.label_ids):
        other = world.label(repo, other_id)
        if label.scope and other is not None and other.scope == label.scope:
            detach(world, issue, doer, other)
    issue.label_ids.append(label.id)
    world.add_entry(issue, doer, "label", body="1", label_id=label.id)


def detach(world: World, issue: Issue, doer: User, label: Label) -> None:
    """Take one label off; nothing if it is not there."""
    if label.id in issue.label_ids:
        issue.label_ids.remove(label.id)
        world.add_entry(issue, doer, "label", body="", label_id=label.id)


def attach_at_creation(world: World, repo: Repo, issue: Issue, doer: User, label_ids: list[int]) -> bool:
    """Labels given with a new issue: unknown ids vanish, exclusivity is not looked at. Whether any was attached."""
    known = [each for each in (world.label(repo, i) for i in dict.fromkeys(label_ids)) if each is not None]
    for label in known:
        issue.label_ids.append(label.id)
        world.add_entry(issue, doer, "label", body="1", label_id=label.id)
    return bool(known)


# ---------------------------------------------------------------------- on an issue


async def list_on_issue(call: Call) -> Response:
    """The labels of an issue."""
    return call.json(render_issue.issue_labels(call.world, call.repo, call.issue()))


def _asked(call: Call) -> list[Label]:
    """The labels of the body, ids or names; what is unknown vanishes, other types and a mixture are 400."""
    found = call.body.get("labels")
    rows = found if isinstance(found, list) else []
    odd = call.world.rules.odd_label_status
    if odd and any(not isinstance(each, (int, str)) or isinstance(each, bool) for each in rows):
        raise Refusal(odd, "a label must be an integer or a string")
    ids = [each for each in rows if isinstance(each, int) and not isinstance(each, bool)]
    names = [each for each in rows if isinstance(each, str)]
    if ids and names:
        raise Refusal(400, "labels should be an array of strings or integers")
    usable = list(call.repo.labels.values())
    if not names or call.world.rules.org_label_names:
        usable += call.world.owner(call.repo).labels.values()
    found = [each for each in usable if each.name in names or each.id in ids]
    # in the order of names, whatever the order asked: of several exclusive ones the last by name stays
    return sorted(found, key=lambda each: (each.name, each.id))


async def add_to_issue(call: Call) -> Response:
    """Add labels; unknown ones are ignored with a 200. The webhook comes even when nothing changed."""
    issue = call.issue()
    call.need_writer(issue, page=call.world.rules.refusal_page)
    with call.backdated(issue):
        for label in _asked(call):
            attach(call.world, call.repo, issue, call.me, label)
    call.world.emit(Event(_event(issue), "label_updated", call.repo, call.me, issue))
    return call.json(render_issue.issue_labels(call.world, call.repo, issue))


async def replace_on_issue(call: Call) -> Response:
    """Replace the set: first the adds, then the removals, one entry each."""
    issue = call.issue()
    call.need_writer(issue)
    wanted = _asked(call)
    for label in wanted:
        attach(call.world, call.repo, issue, call.me, label)
    keep = {each.id for each in wanted}
    for label_id in list(issue.label_ids):
        gone = call.world.label(call.repo, label_id)
        if label_id not in keep and gone is not None:
            detach(call.world, issue, call.me, gone)
    call.world.emit(Event(_event(issue), "label_updated", call.repo, call.me, issue))
    return call.json(render_issue.issue_labels(call.world, call.repo, issue))


async def clear_issue(call: Call) -> Response:
    """Take all labels off."""
    issue = call.issue()
    call.need_writer(issue, bare=True)
    for label_id in list(issue.label_ids):
        label = call.world.label(call.repo, label_id)
        if label is not None:
            detach(call.world, issue, call.me, label)
    call.world.emit(Event(_event(issue), "label_cleared", call.repo, call.me, issue))
    return call.nothing()


async def remove_from_issue(call: Call) -> Response:
    """Take one label off, by id only; 422 where no such label exists anywhere."""
    issue = call.issue()
    call.need_writer(issue, bare=True)
    wanted = call.number("label")
    every = [label for repo in call.world.repos.values() for label in repo.labels.values()]
    every += [label for user in call.world.users.values() for label in user.labels.values()]
    label = next((each for each in every if each.id == wanted), None)
    if label is None:
        raise Refusal(422, f"label does not exist [label_id: {wanted}]")
    with call.backdated(issue):
        detach(call.world, issue, call.me, label)
    call.world.emit(Event(_event(issue), "label_updated", call.repo, call.me, issue))
    return call.nothing()


def _event(issue: Issue) -> str:
    return "issue_label" if issue.pull is None else "pull_request_label"


# ---------------------------------------------------------------------- definitions


def _color(text: str) -> str:
    if not _COLOR.match(text.strip()):
        raise Refusal(422, f"bad color code: {text}")
    digits = text.strip().removeprefix("#").lower()
    return digits if len(digits) == 6 else "".join(each * 2 for each in digits)


def _listed(call: Call, labels: dict[int, Label], url: str) -> Response:
    rows = sorted(labels.values(), key=lambda each: each.name)
    call.headers["X-Total-Count"] = str(len(rows))
    # `limit` without `page` gives everything
    shown = call.paged(rows) if call.query("page") else rows
    return call.json([render.label(call.world, each, url) for each in shown])


def _new(call: Call, labels: dict[int, Label]) -> Label:
    label = Label(
        id=call.world.next_id("label"),
        name=call.text("name", required=True).strip(),
        color=_color(call.text("color", required=True)),
        description=call.text("description"),
        exclusive=call.flag("exclusive"),
        archived=call.flag("is_archived"),
    )
    labels[label.id] = label
    return label


def _edit(call: Call, labels: dict[int, Label]) -> Label:
    """PATCH: without `is_archived` the label is taken out of the archive."""
    label = labels.get(call.number("label"))
    if label is None:
        raise not_found()
    if call.body.get("name") is not None:
        label.name = call.text("name")
    if call.body.get("color") is not None:
        label.color = _color(call.text("color"))
    if call.body.get("description") is not None:
        label.description = call.text("description")
    if call.body.get("exclusive") is not None:
        label.exclusive = call.flag("exclusive")
    label.archived = call.flag("is_archived")
    return label


def _delete(repos: list[Repo], labels: dict[int, Label], label_id: int) -> None:
    """A deleted definition takes its timeline entries with it and moves no stamp."""
    labels.pop(label_id, None)
    for repo in repos:
        for issue in repo.issues.values():
            if label_id in issue.label_ids:
                issue.label_ids.remove(label_id)
            issue.entries = [each for each in issue.entries if each.label_id != label_id]


def _need_label_rights(call: Call) -> None:
    """Write on issues or pulls, or admin."""
    doer = call.me
    if not any(rights.may_write_issues(call.world, doer, call.repo, pull=pull) for pull in (False, True)):
        raise Refusal(403, "user should have permission to write issues or pulls")


async def list_repo_labels(call: Call) -> Response:
    """The repository's own labels; the organisation's are elsewhere."""
    return _listed(call, call.repo.labels, f"/repos/{call.world.path(call.repo)}")


async def create_repo_label(call: Call) -> Response:
    """A new definition; a name may exist already."""
    _need_label_rights(call)
    label = _new(call, call.repo.labels)
    return call.json(render.repo_label(call.world, call.repo, label), 201)


async def get_repo_label(call: Call) -> Response:
    """One definition, by name or id."""
    wanted = call.param("label")
    found = next((each for each in call.repo.labels.values() if each.name == wanted), None)
    found = found or call.repo.labels.get(call.number("label"))
    if found is None:
        raise not_found()
    return call.json(render.repo_label(call.world, call.repo, found))


async def edit_repo_label(call: Call) -> Response:
    """Change a definition, by id only."""
    _need_label_rights(call)
    return call.json(render.repo_label(call.world, call.repo, _edit(call, call.repo.labels)))


async def delete_repo_label(call: Call) -> Response:
    """Delete a definition, by id only."""
    _need_label_rights(call)
    _delete([call.repo], call.repo.labels, call.number("label"))
    return call.nothing()


def _org(call: Call) -> User:
    org = call.world.user(call.param("org"))
    if org is None or not org.is_org:
        raise not_found()
    return org


def _need_org_owner(call: Call, org: User) -> None:
    if not rights.owns_org(org, call.me):
        raise Refusal(403, "Must be an organization owner")


async def list_org_labels(call: Call) -> Response:
    """An organisation's labels; 404 for a user."""
    org = _org(call)
    return _listed(call, org.labels, f"/orgs/{org.login}")


async def create_org_label(call: Call) -> Response:
    """A new organisation label."""
    org = _org(call)
    _need_org_owner(call, org)
    label = _new(call, org.labels)
    label.archived = False  # the real one does not read it here
    return call.json(render.label(call.world, label, f"/orgs/{org.login}"), 201)


async def edit_org_label(call: Call) -> Response:
    """Change an organisation label."""
    org = _org(call)
    _need_org_owner(call, org)
    return call.json(render.label(call.world, _edit(call, org.labels), f"/orgs/{org.login}"))


async def delete_org_label(call: Call) -> Response:
    """Delete an organisation label, from every issue of its repositories."""
    org = _org(call)
    _need_org_owner(call, org)
    repos = [each for each in call.world.repos.values() if each.owner_id == org.id]
    _delete(repos, org.labels, call.number("label"))
    return call.nothing()


ROUTES: list[Route] = [
    ("GET", "/repos/{owner}/{repo}/issues/{index}/labels", list_on_issue),
    ("POST", "/repos/{owner}/{repo}/issues/{index}/labels", add_to_issue),
    ("PUT", "/repos/{owner}/{repo}/issues/{index}/labels", replace_on_issue),
    ("DELETE", "/repos/{owner}/{repo}/issues/{index}/labels", clear_issue),
    ("DELETE", "/repos/{owner}/{repo}/issues/{index}/labels/{label:path}", remove_from_issue),
    ("GET", "/repos/{owner}/{repo}/labels", list_repo_labels),
    ("POST", "/repos/{owner}/{repo}/labels", create_repo_label),
    ("GET", "/repos/{owner}/{repo}/labels/{label:path}", get_repo_label),
    ("PATCH", "/repos/{owner}/{repo}/labels/{label}", edit_repo_label),
    ("DELETE", "/repos/{owner}/{repo}/labels/{label}", delete_repo_label),
    ("GET", "/orgs/{org}/labels", list_org_labels),
    ("POST", "/orgs/{org}/labels", create_org_label),
    ("PATCH", "/orgs/{org}/labels/{label}", edit_org_label),
    ("DELETE", "/orgs/{org}/labels/{label}", delete_org_label),
]
