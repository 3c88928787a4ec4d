"""The loopback forge's pull requests: an issue with two branches; merging it closes what its words say."""

from __future__ import annotations

from starlette.responses import Response

from tireless.loopback import issues, labels, pushes, references, render_issue, rights
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.state import Event, Issue, Level, Pull


async def list_pulls(call: Call) -> Response:
    """Pull requests by state and base branch; there is no filter by head."""
    if rights.unit_level(call.world, call.doer, call.repo, rights.PULLS) < Level.READ:
        raise not_found()
    state, base = call.query("state"), call.query("base_branch")
    rows = [
        each
        for each in call.repo.issues.values()
        if each.pull is not None
        and (state == "all" or each.is_closed == (state == "closed"))
        and (not base or each.pull.base == base)
    ]
    newest = call.query("sort") == "recentupdate"
    rows.sort(key=lambda each: (each.updated if newest else each.created, each.id), reverse=True)
    return call.json([render_issue.pull(call.world, call.repo, each, call.doer) for each in call.paged(rows)])


def _pull(call: Call) -> Issue:
    found = call.issue()
    if found.pull is None:
        raise not_found()
    return found


async def get_pull(call: Call) -> Response:
    """One pull request."""
    return call.json(render_issue.pull(call.world, call.repo, _pull(call), call.doer))


async def create_pull(call: Call) -> Response:
    """Open one; 409 when an open one of the same head and base exists."""
    call.need_unarchived()
    repo, doer, world = call.repo, call.me, call.world
    if repo.empty or rights.unit_level(world, doer, repo, rights.PULLS) < Level.READ:
        raise not_found()

    title = call.text("title", required=True)
    head, base = call.text("head").rpartition(":")[2], call.text("base")
    if head == base:
        raise Refusal(422, "Invalid PullRequest: There are no changes between the head and the base")
    if head not in repo.branches or base not in repo.branches:
        raise not_found()
    # As the real one: looked for, then inserted, with other requests in between. Eight at once make eight.
    _refuse_twin(repo.id, pushes.open_pulls(repo, head), base)
    if rights.level(world, doer, repo) < Level.WRITE and not world.rules.strangers_open_pulls:
        raise Refusal(403, "user must be a collaborator")
    git_dir, sha = world.git_dir(repo), repo.branches[head]
    merge_base = await call.git.merge_base(git_dir, repo.branches[base], sha)
    pull = Pull(id=world.next_id("pull"), head=head, base=base, head_sha=sha, merge_base=merge_base)
    issue = world.add_issue(
        repo, doer, title=issues.cut_title(title, world.rules.title_bytes), body=call.text("body"), pull=pull
    )
    await call.git.set_ref(git_dir, f"refs/pull/{issue.number}/head", sha)
    pull.conflicts = await pushes.conflicts(call.git, world, repo, issue)
    if rights.may_write_issues(world, doer, repo, pull=True):
        labels.attach_at_creation(world, repo, issue, doer, call.ids("labels"))
    world.add_entry(issue, doer, "pull_push")
    references.leave(world, repo, issue, doer, f"{issue.title}\n{issue.body}")
    world.emit(Event("pull_request", "opened", repo, doer, issue))
    return call.json(render_issue.pull(world, repo, issue, doer), 201)


def _refuse_twin(repo_id: int, rows: list[Issue], base: str) -> None:
    for each in rows:
        if each.pull is not None and each.pull.base == base:
            raise Refusal(
                409,
                f"pull request already exists for these targets [id: {each.pull.id}, issue_id: {each.id}, "
                f"head_repo_id: {repo_id}, base_repo_id: {repo_id}, "
                f"head_branch: {each.pull.head}, base_branch: {base}]",
            )


async def edit_pull(call: Call) -> Response:
    """As for an issue, answered as a pull request with 201."""
    issue = _pull(call)
    await issues.edit_issue(call)
    return call.json(render_issue.pull(call.world, call.repo, issue, call.doer), 201)


async def merge(call: Call) -> Response:
    """Merge by a merge commit (`merge`) or as one commit (`squash`, `rebase` alike)."""
    call.need_unarchived()
    issue, repo, doer, world = _pull(call), call.repo, call.me, call.world
    assert issue.pull is not None  # noqa: S101  _pull looked
    if rights.unit_level(world, doer, repo, rights.CODE) < Level.WRITE:
        raise Refusal(405, "User not allowed to merge PR")
    if render_issue.is_draft(issue.title):
        raise Refusal(405, "Work in progress PRs cannot be merged")
    if issue.is_closed:
        raise Refusal(405, "pull request is not mergeable")
    async with repo.lock:
        git_dir, pull = world.git_dir(repo), issue.pull
        base_sha = repo.branches[pull.base]
        tree = await call.git.merge_tree(git_dir, base_sha, pull.head_sha)
        if tree is None:
            raise Refusal(409, "Please merge manually")
        style = call.text("Do", required=True)
        parents = [base_sha, pull.head_sha] if style == "merge" else [base_sha]
        said = call.text("MergeTitleField") or f"Merge pull request '{issue.title}' (#{issue.number})"
        message = f"{said}\n\n{call.text('MergeMessageField')}".strip() + "\n"
        sha = await call.git.commit_tree(
            git_dir, tree=tree, parents=parents, message=message, who=doer.login, at=world.clock.stamp()
        )
        await call.git.set_ref(git_dir, f"refs/heads/{pull.base}", sha)
        pull.merged, pull.merged_by, pull.merge_sha = world.clock.stamp(), doer.id, sha
        issue.closed = pull.merged
        world.add_entry(issue, doer, "merge_pull")
        references.close_by_merge(world, repo, issue, doer)
        world.emit(Event("pull_request", "closed", repo, doer, issue))
        await pushes.received(world, call.git, repo, doer)
        if call.flag("delete_branch_after_merge"):
            await call.git.delete_ref(git_dir, f"refs/heads/{pull.head}")
            await pushes.received(world, call.git, repo, doer)
    return call.nothing(200)


async def find_pull(call: Call) -> Response:
    """The first pull request from head to base, in any state."""
    head = call.param("head").rpartition(":")[2]
    for each in call.repo.issues.values():
        if each.pull is not None and (each.pull.base, each.pull.head) == (call.param("base"), head):
            return call.json(render_issue.pull(call.world, call.repo, each, call.doer))
    raise not_found()


ROUTES: list[Route] = [
    ("GET", "/repos/{owner}/{repo}/pulls", list_pulls),
    ("POST", "/repos/{owner}/{repo}/pulls", create_pull),
    ("GET", "/repos/{owner}/{repo}/pulls/{index}", get_pull),
    ("PATCH", "/repos/{owner}/{repo}/pulls/{index}", edit_pull),
    ("POST", "/repos/{owner}/{repo}/pulls/{index}/merge", merge),
    ("GET", "/repos/{owner}/{repo}/pulls/{base}/{head:path}", find_pull),
]
