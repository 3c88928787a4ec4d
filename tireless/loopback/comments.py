"""The loopback forge's comments: entries of type `comment`; editing one does not move the issue's stamp."""

from __future__ import annotations

from starlette.responses import Response

from tireless.loopback import references, render_issue, rights
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.state import Entry, Event, Issue


async def list_comments(call: Call) -> Response:
    """Every comment, oldest first, never paged."""
    issue = call.issue(missing=call.world.rules.missing_issue_status)
    since, before = call.stamp("since"), call.stamp("before")
    found = [
        each
        for each in issue.entries
        if each.type == "comment" and each.updated >= since and (not before or each.updated <= before)
    ]
    call.headers["X-Total-Count"] = str(len(found))
    return call.json([render_issue.comment(call.world, call.repo, issue, each) for each in found])


async def list_repo_comments(call: Call) -> Response:
    """Comments of the whole repository; paged only if `page` is given."""
    since = call.stamp("since")
    rows = [
        (issue, each)
        for issue in call.repo.issues.values()
        for each in issue.entries
        if each.type == "comment" and each.updated >= since
    ]
    rows.sort(key=lambda row: row[1].id)
    if call.query("page"):
        rows = call.paged(rows)
    return call.json([render_issue.comment(call.world, call.repo, issue, each) for issue, each in rows])


async def create_comment(call: Call) -> Response:
    """Comment; bumps the issue and those mentioned."""
    body = call.text("body", required=True)
    call.need_unarchived()
    issue, doer = call.issue(missing=call.world.rules.missing_issue_status), call.me
    if issue.locked and not rights.may_write_issues(call.world, doer, call.repo, pull=issue.pull is not None):
        raise Refusal(403, "repository is locked")
    with call.backdated(issue):
        entry = call.world.add_entry(issue, doer, "comment", body=body)
    references.leave(call.world, call.repo, issue, doer, body, entry)
    name = "issue_comment" if issue.pull is None else "pull_request_comment"
    call.world.emit(Event(name, "created", call.repo, doer, issue, entry))
    return call.json(render_issue.comment(call.world, call.repo, issue, entry), 201)


def _find(call: Call) -> tuple[Issue, Entry]:
    """The comment of the path; another repository's is not found."""
    wanted = call.number("comment")
    for issue in call.repo.issues.values():
        for entry in issue.entries:
            if entry.id == wanted and entry.type == "comment":
                return issue, entry
    raise not_found()


async def get_comment(call: Call) -> Response:
    """One comment."""
    issue, entry = _find(call)
    return call.json(render_issue.comment(call.world, call.repo, issue, entry))


async def edit_comment(call: Call) -> Response:
    """Change the text; the author or a writer. The same text again changes nothing, and is answered without a user."""
    issue, entry = _find(call)
    doer, body = call.me, call.text("body", required=True)
    _need_author_or_writer(call, issue, entry)
    call.need_unarchived()
    shown = render_issue.comment(call.world, call.repo, issue, entry)
    if body == entry.body and call.world.rules.same_edit_hides_author:
        return call.json({**shown, "user": None})
    entry.body = body
    entry.updated = call.world.clock.stamp()
    references.leave(call.world, call.repo, issue, doer, body, entry)
    name = "issue_comment" if issue.pull is None else "pull_request_comment"
    call.world.emit(Event(name, "edited", call.repo, doer, issue, entry))
    return call.json(render_issue.comment(call.world, call.repo, issue, entry))


async def delete_comment(call: Call) -> Response:
    """Delete; the author or a writer."""
    issue, entry = _find(call)
    _need_author_or_writer(call, issue, entry)
    issue.entries.remove(entry)
    if call.world.rules.comment_deletion_moves:
        call.world.touch(issue)
    name = "issue_comment" if issue.pull is None else "pull_request_comment"
    call.world.emit(Event(name, "deleted", call.repo, call.me, issue, entry))
    return call.nothing()


def _need_author_or_writer(call: Call, issue: Issue, entry: Entry) -> None:
    doer = call.me
    if entry.user_id != doer.id and not rights.may_write_issues(
        call.world, doer, call.repo, pull=issue.pull is not None
    ):
        raise Refusal(403, bare=True)


ROUTES: list[Route] = [
    ("GET", "/repos/{owner}/{repo}/issues/comments", list_repo_comments),
    ("GET", "/repos/{owner}/{repo}/issues/comments/{comment}", get_comment),
    ("PATCH", "/repos/{owner}/{repo}/issues/comments/{comment}", edit_comment),
    ("DELETE", "/repos/{owner}/{repo}/issues/comments/{comment}", delete_comment),
    ("GET", "/repos/{owner}/{repo}/issues/{index}/comments", list_comments),
    ("POST", "/repos/{owner}/{repo}/issues/{index}/comments", create_comment),
]
