"""The loopback forge's files and branches: what the API does to a repository's commits without a push."""

from __future__ import annotations

import base64
import binascii
import re

from starlette.responses import Response

from tireless.loopback import pushes, render, rights
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.state import Level

_BRANCH = re.compile(r"^(?!-)(?!.*(?:\.\.|@\{|//|/$|\.lock$|\.$))[^\x00-\x20\x7f~^:?*\[\\]+$")


async def put_file(call: Call) -> Response:
    """Create (POST) or change (PUT) a file by a commit on a branch, new or old."""
    call.need_unarchived()
    call.need_level(Level.WRITE, rights.CODE)
    repo, path = call.repo, call.param("path")
    try:
        content = base64.b64decode(call.text("content"), validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(422, "content is not base64") from None
    async with repo.lock:
        base = call.text("branch") or repo.default_branch
        if not repo.empty and base not in repo.branches:
            raise Refusal(404, f"branch does not exist [name: {base}]")
        branch = call.text("new_branch") or base
        if not _BRANCH.match(branch):
            raise Refusal(422, f"'{branch}' is not a valid branch name")
        if branch != base and branch in repo.branches:
            raise Refusal(409, f"branch already exists [name: {branch}]")
        git_dir = call.world.git_dir(repo)
        there = None if repo.empty else await call.git.read_file(git_dir, repo.branches[base], path)
        if call.request.method == "POST" and there is not None:
            raise Refusal(422, f"repository file already exists [path: {path}]")
        sha = await pushes.commit_file(
            call.world,
            call.git,
            repo,
            call.me,
            branch=branch,
            path=path,
            content=content,
            message=call.text("message") or f"Add {path}",
            start=base,
        )
    return call.json({"content": {"name": path.rpartition("/")[2], "path": path}, "commit": {"sha": sha}}, 201)


async def get_file(call: Call) -> Response:
    """A file at a ref."""
    ref = call.query("ref") or call.repo.default_branch
    path = call.param("path")
    content = await call.git.read_file(call.world.git_dir(call.repo), call.repo.branches.get(ref, ref), path)
    if content is None or ref.startswith("-"):
        raise not_found()
    return call.json(
        {
            "name": path.rpartition("/")[2],
            "path": path,
            "type": "file",
            "size": len(content),
            "encoding": "base64",
            "content": base64.b64encode(content).decode(),
        }
    )


async def list_branches(call: Call) -> Response:
    """The branches, by name."""
    names = call.paged(sorted(call.repo.branches))
    if call.repo.empty:
        return call.json(None)
    return call.json([await _branch(call, each) for each in names])


async def get_branch(call: Call) -> Response:
    """One branch."""
    name = call.param("branch")
    if name not in call.repo.branches:
        raise not_found()
    return call.json(await _branch(call, name))


async def _branch(call: Call, name: str) -> render.Json:
    sha = call.repo.branches[name]
    return {
        "name": name,
        "commit": {
            "id": sha,
            "message": await call.git.message(call.world.git_dir(call.repo), sha),
            "url": f"{call.world.root_url}/{call.world.path(call.repo)}/commit/{sha}",
        },
        "protected": False,
        "required_approvals": 0,
        "enable_status_check": False,
        "status_check_contexts": [],
        "user_can_push": rights.unit_level(call.world, call.doer, call.repo, rights.CODE) >= Level.WRITE,
        "user_can_merge": rights.unit_level(call.world, call.doer, call.repo, rights.CODE) >= Level.WRITE,
        "effective_branch_protection_name": "",
    }


async def create_branch(call: Call) -> Response:
    """A branch from another."""
    call.need_unarchived()
    call.need_level(Level.WRITE, rights.CODE)
    name = call.text("new_branch_name", required=True)
    start = call.text("old_ref_name") or call.text("old_branch_name") or call.repo.default_branch
    sha = call.repo.branches.get(start)
    if sha is None:
        raise Refusal(404, "The old branch does not exist")
    if not _BRANCH.match(name):
        raise Refusal(422, f"'{name}' is not a valid branch name")
    if name in call.repo.branches:
        raise Refusal(409, "The branch already exists.")
    async with call.repo.lock:
        await call.git.set_ref(call.world.git_dir(call.repo), f"refs/heads/{name}", sha)
        await pushes.received(call.world, call.git, call.repo, call.me)
    return call.json(await _branch(call, name), 201)


async def delete_branch(call: Call) -> Response:
    """Delete a branch; its open pull requests close."""
    call.need_unarchived()
    call.need_level(Level.WRITE, rights.CODE)
    name = call.param("branch")
    if name == call.repo.default_branch:
        raise Refusal(403, "can not delete default branch")
    if name not in call.repo.branches:
        if call.world.rules.missing_branch_status >= 400:
            raise Refusal(call.world.rules.missing_branch_status)
        return call.nothing()  # one that is not there is answered like one that was
    async with call.repo.lock:
        await call.git.delete_ref(call.world.git_dir(call.repo), f"refs/heads/{name}")
        await pushes.received(call.world, call.git, call.repo, call.me)
    return call.nothing()


ROUTES: list[Route] = [
    ("POST", "/repos/{owner}/{repo}/contents/{path:path}", put_file),
    ("PUT", "/repos/{owner}/{repo}/contents/{path:path}", put_file),
    ("GET", "/repos/{owner}/{repo}/contents/{path:path}", get_file),
    ("GET", "/repos/{owner}/{repo}/branches", list_branches),
    ("POST", "/repos/{owner}/{repo}/branches", create_branch),
    ("GET", "/repos/{owner}/{repo}/branches/{branch:path}", get_branch),
    ("DELETE", "/repos/{owner}/{repo}/branches/{branch:path}", delete_branch),
]
