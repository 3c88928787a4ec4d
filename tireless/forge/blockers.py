"""What blocks an issue, on Gitea and Forgejo; part of the client. Knows no job."""

from __future__ import annotations

from tireless.domain.issue import IssueRef, IssueState, RepoRef
from tireless.errors import ForgeRejected, ForgeUnavailable
from tireless.forge import reading
from tireless.forge.base import hidden_issue
from tireless.forge.http import Http
from tireless.forge.walk import pages, repo_path


async def dependencies(http: Http, ref: IssueRef) -> tuple[tuple[IssueRef, bool], ...]:
    """What blocks this issue, each with "is it closed". NotFound when dependencies are disabled."""
    found: dict[IssueRef, bool] = {}
    async for answer, row in pages(http, f"{repo_path(ref.repo)}/issues/{ref.number}/dependencies"):
        try:
            data = reading.mapping(row, "dependency")
            if reading.whole(data.get("number"), "dependency.number") == 0:
                # one the bot may not read is an object of zeros, whatever state it is in
                found[hidden_issue(http.name)] = False
                continue
            where = reading.mapping(data.get("repository"), "dependency.repository")
            owner = reading.text(where.get("owner"), "dependency.repository.owner")
            name = reading.text(where.get("name"), "dependency.repository.name")
            blocker = IssueRef(RepoRef(http.name, owner, name), reading.number(data["number"], "dependency.number"))
            found[blocker] = reading.state(data.get("state")) is IssueState.CLOSED
        except ValueError as error:
            raise answer.garbled(str(error)) from error
    return tuple(found.items())


async def add_dependency(http: Http, ref: IssueRef, on: IssueRef) -> None:
    """`on` blocks `ref`. The forge answers 500 for an edge that is there: looked for first, and after a 500."""
    if ref == on:
        # the forge would take it, and the issue could never be closed again
        raise ForgeRejected(f"{ref} can not be made to depend on itself; nothing was sent")
    if await _depends(http, ref, on):
        return
    body = {"owner": on.repo.owner, "repo": on.repo.name, "index": on.number}
    try:
        await http.call("POST", f"{repo_path(ref.repo)}/issues/{ref.number}/dependencies", body=body)
    except ForgeUnavailable:
        if not await _depends(http, ref, on):
            raise


async def _depends(http: Http, ref: IssueRef, on: IssueRef) -> bool:
    wanted = (on.repo.path.casefold(), on.number)
    return any((each.repo.path.casefold(), each.number) == wanted for each, _ in await dependencies(http, ref))
