"""The loopback forge's issues: lists, search, create, edit, delete, timeline, with the real one's oddities."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response

from tireless.loopback import labels, references, render_issue, rights
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.state import Event, Issue, Level, Repo, User


def cut_title(text: str, limit: int) -> str:
    """A title as it is kept: trimmed, and cut to `limit` bytes (0: not) of which the last three are an ellipsis."""
    text = text.strip()
    raw = text.encode("utf-8", "replace")
    return text if not limit or len(raw) <= limit else raw[: limit - 3].decode("utf-8", "ignore") + "…"


async def list_issues(call: Call) -> Response:
    """Newest created first; `since` and `before` inclusive in whole seconds; labels by the rules of `_with_labels`."""
    kinds = _readable_kinds(call)
    since, before = call.stamp("since"), call.stamp("before")
    author = _user_filter(call, "created_by")
    assignee = _user_filter(call, "assigned_by")
    wanted = _label_filter(call)
    word = call.query("q").strip().lower()
    state = call.query("state")
    found = [
        each
        for each in reversed(call.repo.issues.values())
        if (each.pull is not None) in kinds
        and _state_matches(each, state)
        and each.updated >= since
        and (not before or each.updated <= before)
        and (author is None or each.author_id == author.id)
        and (assignee is None or assignee.id in each.assignee_ids)
        and all(label_id in each.label_ids for label_id in wanted)
        and (not word or _contains(each, word))
    ]
    found.sort(key=lambda each: (each.created, each.id), reverse=True)
    return call.json([render_issue.issue(call.world, call.repo, each) for each in call.paged(found)])


def _readable_kinds(call: Call) -> set[bool]:
    """Which of {issue: False, pull: True} the list shows; 404 when the caller may read none."""
    asked = {"issues": {False}, "pulls": {True}}.get(call.query("type"), {False, True})
    units = {False: rights.ISSUES, True: rights.PULLS}
    kinds = {each for each in asked if rights.unit_level(call.world, call.doer, call.repo, units[each]) >= Level.READ}
    if not kinds:
        raise not_found()
    return kinds


def _state_matches(issue: Issue, state: str) -> bool:
    """`open` unless asked otherwise; any other word behaves as `open`."""
    return state == "all" or issue.is_closed == (state == "closed")


def _contains(issue: Issue, word: str) -> bool:
    texts = [issue.title, issue.body, *(each.body for each in issue.entries if each.type == "comment")]
    return any(word in text.lower() for text in texts)


def _user_filter(call: Call, name: str) -> User | None:
    login = call.query(name)
    if not login:
        return None
    found = call.world.user(login)
    if found is None:
        raise Refusal(404, f"user does not exist [uid: 0, name: {login}]")
    return found


def _label_filter(call: Call) -> list[int]:
    """All of the names, among repository labels only; unknown ones vanish, and with the last the filter itself."""
    names = [each for each in call.query("labels").split(",") if each]
    return [each.id for each in call.repo.labels.values() if each.name in names]


async def search(call: Call) -> Response:
    """All issues the caller may see, over repositories; labels here are any-of, organisation labels included."""
    world, owner = call.world, call.query("owner")
    repos: Iterable[Repo] = world.repos.values()
    if owner:
        found_owner = world.user(owner)
        if found_owner is None:
            raise Refusal(400, f"user does not exist [uid: 0, name: {owner}]")
        repos = [each for each in repos if each.owner_id == found_owner.id]
    since, before, state = call.stamp("since"), call.stamp("before"), call.query("state")
    asked = {"issues": {False}, "pulls": {True}}.get(call.query("type"), {False, True})
    names = {each for each in call.query("labels").split(",") if each}
    author = _user_filter(call, "created_by")
    known = {
        each.id
        for repo in repos
        for each in (*repo.labels.values(), *world.owner(repo).labels.values())
        if each.name in names
    }
    rows = []
    for repo in repos:
        if not rights.may_read(world, call.doer, repo):  # units are not looked at: issues switched off are shown too
            continue
        rows += [
            (repo, each)
            for each in repo.issues.values()
            if (each.pull is not None) in asked
            and _state_matches(each, state)
            and each.updated >= since
            and (not before or each.updated <= before)
            and (author is None or each.author_id == author.id)
            and (not known or known.intersection(each.label_ids))
        ]
    rows.sort(key=lambda row: (row[1].created, row[1].id), reverse=True)
    return call.json([render_issue.issue(world, repo, each) for repo, each in call.paged(rows)])


async def get_issue(call: Call) -> Response:
    """One issue or pull request."""
    return call.json(render_issue.issue(call.world, call.repo, call.issue()))


async def create_issue(call: Call) -> Response:
    """Create; labels and assignees are dropped without a word for those who may not write issues."""
    call.need_unarchived()
    doer, world, repo = call.me, call.world, call.repo
    if rights.unit_level(world, doer, repo, rights.ISSUES) < Level.READ:
        raise Refusal(403, "user should have permission to read issues")
    title = call.text("title", required=True)
    label_ids = call.ids("labels")
    if not rights.may_write_issues(world, doer, repo):
        label_ids = []
    issue = open_issue(call, doer, title=title, body=call.text("body"), label_ids=label_ids)
    if call.flag("closed"):
        references.set_state(world, repo, issue, doer, closed=True)
    return call.json(render_issue.issue(world, repo, issue), 201)


def open_issue(call: Call, doer: User, *, title: str, body: str, label_ids: list[int]) -> Issue:
    """What the API and the web form share: labels are attached in the author's name, exclusivity is skipped."""
    world, repo = call.world, call.repo
    issue = world.add_issue(repo, doer, title=cut_title(title, world.rules.title_bytes), body=body)
    given = labels.attach_at_creation(world, repo, issue, doer, label_ids)
    references.leave(world, repo, issue, doer, f"{issue.title}\n{body}")
    world.emit(Event("issues", "opened", repo, doer, issue))
    if given:
        world.emit(Event("issue_label", "label_updated", repo, doer, issue))
    return issue


async def edit_issue(call: Call) -> Response:
    """Change title, body or state; answers 201. Fields are applied one after another, labels are ignored."""
    issue, doer, world, repo = call.issue(), call.me, call.world, call.repo
    may_write = rights.may_write_issues(world, doer, repo, pull=issue.pull is not None)
    if doer.id != issue.author_id and not may_write:
        raise Refusal(403, bare=True)
    with call.backdated(issue):
        _apply(call, issue, may_write=may_write)
    return call.json(render_issue.issue(world, repo, issue), 201)


def _apply(call: Call, issue: Issue, *, may_write: bool) -> None:
    """Field after field: what came before a refusal stays."""
    world, repo, doer = call.world, call.repo, call.me
    name = "issues" if issue.pull is None else "pull_request"
    title = cut_title(call.text("title"), world.rules.title_bytes)
    if title and title != issue.title:
        entry = world.add_entry(issue, doer, "change_title")
        entry.old_title, entry.new_title, issue.title = issue.title, title, title
        references.leave(world, repo, issue, doer, f"{issue.title}\n{issue.body}")
        world.emit(Event(name, "edited", repo, doer, issue, extra={"changes": {"title": {"from": entry.old_title}}}))
    if "body" in call.body and call.body["body"] is not None:
        _edit_body(call, issue, call.text("body"), name)
    if may_write and isinstance(call.body.get("assignees"), list):
        _assign(call, issue)
    if call.body.get("state") is not None:
        _edit_state(call, issue, call.text("state"))


def _edit_body(call: Call, issue: Issue, body: str, event: str) -> None:
    """A new body leaves no timeline entry, only a later `updated_at`; so does the same body again."""
    old, issue.body = issue.body, body
    call.world.touch(issue)
    references.leave(call.world, call.repo, issue, call.me, f"{issue.title}\n{body}")
    call.world.emit(Event(event, "edited", call.repo, call.me, issue, extra={"changes": {"body": {"from": old}}}))


def _assign(call: Call, issue: Issue) -> None:
    logins = call.body["assignees"]
    assert isinstance(logins, list)  # noqa: S101  the caller looked
    found = [call.world.user(str(each)) for each in logins]
    ids = [each.id for each in found if each is not None]
    if ids != issue.assignee_ids:
        issue.assignee_ids = ids
        call.world.add_entry(issue, call.me, "assignees")
        call.world.emit(Event("issue_assign", "assigned" if ids else "unassigned", call.repo, call.me, issue))


def _edit_state(call: Call, issue: Issue, state: str) -> None:
    if issue.pull is not None and issue.pull.merged:
        raise Refusal(412, "cannot change state of this pull request, it was already merged")
    unknown = call.world.rules.unknown_state_status
    if unknown and state not in ("open", "closed"):
        raise Refusal(unknown, f"unknown state: {state}")
    if not references.set_state(call.world, call.repo, issue, call.me, closed=state == "closed"):
        raise Refusal(412, "cannot close this issue or pull request because it still has open dependencies")


async def delete_issue(call: Call) -> Response:
    """Delete, for repository admins; numbers are never used again."""
    issue = call.issue()
    call.need_level(Level.ADMIN)
    del call.repo.issues[issue.number]
    call.world.emit(Event("issues", "deleted", call.repo, call.me, issue))
    return call.nothing()


async def timeline(call: Call) -> Response:
    """The whole timeline without `page`; with it, cut before filtering. The count is that of this answer."""
    issue = call.issue(missing=call.world.rules.missing_issue_status, anyone=True)
    since = call.stamp("since")
    entries = [each for each in issue.entries if each.updated >= since]
    entries.sort(key=lambda each: (each.created, each.id))  # by time first: a back-dated one comes before older ids
    if call.query("page"):
        page, limit = call.window()
        entries = entries[(page - 1) * limit : page * limit]
    call.headers["X-Total-Count"] = str(len(entries))
    shown = [render_issue.timeline_entry(call.world, call.repo, issue, each) for each in entries]
    return call.json(shown or None)


ROUTES: list[Route] = [
    ("GET", "/repos/issues/search", search),
    ("GET", "/repos/{owner}/{repo}/issues", list_issues),
    ("POST", "/repos/{owner}/{repo}/issues", create_issue),
    ("GET", "/repos/{owner}/{repo}/issues/{index}", get_issue),
    ("PATCH", "/repos/{owner}/{repo}/issues/{index}", edit_issue),
    ("DELETE", "/repos/{owner}/{repo}/issues/{index}", delete_issue),
    ("GET", "/repos/{owner}/{repo}/issues/{index}/timeline", timeline),
]
