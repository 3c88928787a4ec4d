"""The loopback forge's issue dependencies; 500 for an edge that is there or a direct circle, as the real one."""

from __future__ import annotations

from starlette.responses import Response

from tireless.loopback import render, render_issue, rights
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.state import Issue, Level, Repo


def _readable(call: Call, repo: Repo, issue: Issue) -> bool:
    unit = rights.ISSUES if issue.pull is None else rights.PULLS
    return rights.unit_level(call.world, call.doer, repo, unit) >= Level.READ


def _need_enabled(call: Call) -> None:
    if not call.repo.dependencies_enabled:
        raise not_found()


_ZEROS: render.Json = {
    "id": 0,
    "url": "",
    "html_url": "",
    "number": 0,
    "user": None,
    "original_author": "",
    "original_author_id": 0,
    "title": "",
    "body": "",
    "ref": "",
    "assets": None,
    "labels": None,
    "milestone": None,
    "assignee": None,
    "assignees": None,
    "state": "",
    "is_locked": False,
    "comments": 0,
    "created_at": render.ZERO_TIME,
    "updated_at": render.ZERO_TIME,
    "closed_at": None,
    "due_date": None,
    "time_estimate": 0,
    "pull_request": None,
    "repository": None,
    "pin_order": 0,
}


async def list_dependencies(call: Call) -> Response:
    """What blocks this issue; what the caller may not read is masked. No X-Total-Count."""
    _need_enabled(call)
    issue = call.issue()
    page, limit = call.window()
    rows = []
    for repo_id, number in issue.blocked_by[(page - 1) * limit : page * limit]:
        repo = call.world.repos.get(repo_id)
        blocker = None if repo is None else repo.issues.get(number)
        if repo is None or blocker is None:
            continue
        # what is masked does not convert, whoever asks: an object of zeros
        rows.append(render_issue.issue(call.world, repo, blocker) if _readable(call, repo, blocker) else _ZEROS)
    return call.json(rows)


def _other(call: Call) -> tuple[Repo, Issue]:
    """The issue the body names."""
    owner, name, number = call.text("owner"), call.text("repo"), call.body.get("index")
    repo: Repo | None = call.repo
    if (owner, name) != (call.world.owner(call.repo).login, call.repo.name):
        if not call.world.rules.cross_repo_dependencies:
            raise Refusal(400, raw="CrossRepositoryDependencies not enabled")
        repo = call.world.repo(owner, name)
    issue = None if repo is None or not isinstance(number, int) else repo.issues.get(number)
    if repo is None or issue is None:
        raise not_found()
    return repo, issue


def _link(call: Call, target: tuple[Repo, Issue], blocker: tuple[Repo, Issue]) -> None:
    repo, issue = target
    if not repo.dependencies_enabled or not rights.may_write_issues(
        call.world, call.me, repo, pull=issue.pull is not None
    ):
        raise not_found()
    if not _readable(call, *blocker):
        raise not_found()
    edge, back = (blocker[0].id, blocker[1].number), (repo.id, issue.number)
    if edge in issue.blocked_by or back in blocker[1].blocked_by:
        raise Refusal(500)
    issue.blocked_by.append(edge)
    for each, other in ((issue, edge), (blocker[1], back)):
        call.world.add_entry(each, call.me, "add_dependency").dependent = other


async def add_dependency(call: Call) -> Response:
    """The issue of the body blocks that of the path."""
    call.need_unarchived()
    issue = call.issue()
    _link(call, (call.repo, issue), _other(call))
    return call.json(render_issue.issue(call.world, call.repo, issue), 201)


async def add_block(call: Call) -> Response:
    """The issue of the path blocks that of the body."""
    issue = call.issue()
    other = _other(call)
    _link(call, other, (call.repo, issue))
    return call.json(render_issue.issue(call.world, other[0], other[1]), 201)


async def remove_dependency(call: Call) -> Response:
    """Take an edge away; answers 201, against the specification."""
    call.need_unarchived()
    _need_enabled(call)
    issue = call.issue()
    repo, blocker = _other(call)
    edge = (repo.id, blocker.number)
    if not rights.may_write_issues(call.world, call.me, call.repo, pull=issue.pull is not None):
        raise not_found()
    if edge not in issue.blocked_by:
        raise Refusal(500)
    issue.blocked_by.remove(edge)
    for each, other in ((issue, edge), (blocker, (call.repo.id, issue.number))):
        call.world.add_entry(each, call.me, "remove_dependency").dependent = other
    return call.json(render_issue.issue(call.world, call.repo, issue), 201)


ROUTES: list[Route] = [
    ("GET", "/repos/{owner}/{repo}/issues/{index}/dependencies", list_dependencies),
    ("POST", "/repos/{owner}/{repo}/issues/{index}/dependencies", add_dependency),
    ("DELETE", "/repos/{owner}/{repo}/issues/{index}/dependencies", remove_dependency),
    ("POST", "/repos/{owner}/{repo}/issues/{index}/blocks", add_block),
]
