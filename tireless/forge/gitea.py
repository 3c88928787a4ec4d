"""The Forge protocol for Gitea and Forgejo. It decides nothing: it asks, says what was answered, or raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from tireless.domain.issue import (
    Comment,
    IssueRef,
    IssueState,
    Label,
    LabelSpec,
    Person,
    PullRequest,
    RepoRef,
    Repository,
    Snapshot,
    TimelineEntry,
)
from tireless.errors import ForgeDenied, ForgeError, ForgeRejected, ForgeUnavailable, NotFound
from tireless.forge import blockers, hooks, owners, reading
from tireless.forge.base import About, Capabilities, Hook, IssuePage, NewPull, OwnerPage
from tireless.forge.http import Http, segment
from tireless.forge.reply import Answer, AnswerTooLarge
from tireless.forge.walk import PAGE, issue_page, moment, one_by_one, pages, read, repo_path


class GiteaForge:
    """One Gitea or Forgejo instance; `aclose()` it. See `Http` for the limits."""

    def __init__(
        self,
        *,
        name: str,
        url: str,
        token: str | None,
        timeout_s: float = 20.0,
        concurrency: int = 8,
        requests_per_minute: int = 3000,
        attempts: int = 3,
        retry_wait_s: float = 0.5,
        max_answer_bytes: int = 64 * 1024 * 1024,
        ca_file: Path | None = None,
        trust_env: bool = False,
    ) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self._http = Http(
            name=name,
            url=url,
            token=token,
            timeout_s=timeout_s,
            concurrency=concurrency,
            requests_per_minute=requests_per_minute,
            attempts=attempts,
            retry_wait_s=retry_wait_s,
            max_answer_bytes=max_answer_bytes,
            ca_file=ca_file,
            trust_env=trust_env,
        )

    @property
    def requests(self) -> int:
        """Requests sent so far, retries included."""
        return self._http.requests

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.close()

    # ------------------------------------------------------------------ the server

    async def about(self) -> About:
        """Version, flavour, page limit and the token's own user."""
        capabilities = await self._capabilities()
        try:
            answer = await self._http.get("/user")
        except ForgeDenied as error:
            if error.status == 401:
                raise  # a wrong token, not a narrow one
            return About(capabilities=capabilities, login=None)
        user = read(answer, reading.person, answer.mapping())
        return About(capabilities=capabilities, login=user, is_admin=answer.mapping().get("is_admin") is True)

    async def _capabilities(self) -> Capabilities:
        answer = await self._http.get("/version")
        version = read(answer, _version, answer.mapping())
        flavour = "forgejo" if "+gitea-" in version or await self._speaks_forgejo() else "gitea"
        limit = (await self._http.get("/settings/api")).mapping().get("max_response_items")
        page_limit = limit if isinstance(limit, int) and limit > 0 else PAGE
        return Capabilities(flavour=flavour, version=version, page_limit=page_limit)

    async def _speaks_forgejo(self) -> bool:
        try:
            await self._http.call("GET", "/api/forgejo/v1/version", absolute=True)
        except ForgeUnavailable:
            raise
        except ForgeError:
            return False
        return True

    async def lacks(self, repo: RepoRef) -> tuple[str, ...]:
        """The scopes to write that the token lacks: by writing to number 0, which no issue and no pull request has.

        The forge judges the token before it looks for the number, and rights in the repository only after it.
        """
        missing = []
        for scope, kind in (("write:issue", "issues"), ("write:repository", "pulls")):
            try:
                await self._http.call("PATCH", f"{repo_path(repo)}/{kind}/0", body={})
            except NotFound:
                continue
            except ForgeDenied as error:
                if error.status != 403:
                    raise
                missing.append(scope)
        return tuple(missing)

    async def repository(self, repo: RepoRef | int) -> Repository:
        """By names (Moved on a rename) or by the forge's id (safe against renames)."""
        answer = await self._http.get(f"/repositories/{repo}" if isinstance(repo, int) else repo_path(repo))
        found = read(answer, reading.repository, answer.mapping())
        return replace(found, owner_is_org=await self._is_org_owned(RepoRef(self.name, found.owner, found.name)))

    async def _is_org_owned(self, repo: RepoRef) -> bool | None:
        """No answer says it, and a hidden organisation looks like none; but only an organisation has teams."""
        try:
            await self._http.get(f"{repo_path(repo)}/teams")
        except ForgeRejected as error:
            if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
                return False
            raise
        except (ForgeDenied, NotFound):
            return None
        return True

    async def repositories(self, owner: str, *, topic: str | None = None) -> tuple[Repository, ...]:
        """What the bot sees of a user's or an organisation's repositories (with this topic)."""
        return await owners.repositories(self._http, owner, topic=topic)

    # ------------------------------------------------------------------ issues

    async def owner_issues(
        self, owner: str, *, page: int, since: datetime | None = None, before: datetime | None = None
    ) -> OwnerPage:
        """One page of the issues of all repositories of an owner."""
        return await owners.issues(self._http, owner, page=page, since=since, before=before)

    async def issues(
        self, repo: RepoRef, *, page: int, since: datetime | None = None, created_by: str | None = None
    ) -> IssuePage:
        """One page of issues in any state, newest created first. No label filter: the forge's own one lies."""
        params: dict[str, str | int] = {"state": "all", "type": "issues", "page": page, "limit": PAGE}
        if since is not None:
            params["since"] = moment(since)
        if created_by is not None:
            params["created_by"] = created_by
        try:
            answer = await self._http.get(f"{repo_path(repo)}/issues", params)
        except AnswerTooLarge:
            # fifty huge bodies are a stranger's way to hide all issues: ask for the same ones one by one
            limit = (await self._capabilities()).page_limit
            return await one_by_one(self._http, f"{repo_path(repo)}/issues", params, page=page, limit=min(PAGE, limit))
        return issue_page(answer)

    async def issue(self, repo: RepoRef, number: int) -> Snapshot:
        """One issue; NotFound also when the number is a pull request's."""
        answer = await self._http.get(f"{repo_path(repo)}/issues/{number}")
        data = answer.mapping()
        if reading.is_pull(data):
            raise NotFound(f"{answer.call}: {repo}#{number} is a pull request, not an issue", status=answer.status)
        return read(answer, reading.snapshot, data)

    async def timeline(self, repo: RepoRef, number: int) -> tuple[TimelineEntry, ...]:
        """The whole timeline, in the order things happened. Without `page`: pages are cut before they are filtered."""
        answer = await self._whole(repo, number, "timeline")
        # one unreadable entry could be the one that says who asked: the whole answer is refused then
        entries = [read(answer, reading.entry, each) for each in answer.sequence()]
        # the forge sorts by time, and a Forgejo admin may date his acts back: ids tell what happened last
        return tuple(sorted((each for each in entries if each is not None), key=lambda each: each.id))

    async def comments(self, repo: RepoRef, number: int) -> tuple[Comment, ...]:
        """All comments, oldest first; the endpoint does not page."""
        answer = await self._whole(repo, number, "comments")
        return tuple(read(answer, reading.comment, each) for each in answer.sequence() if each is not None)

    async def _whole(self, repo: RepoRef, number: int, what: str) -> Answer:
        """GET a list below an issue. Gitea answers 500 where the issue is missing: asked once, then told apart."""
        path = f"{repo_path(repo)}/issues/{number}/{what}"
        try:
            return await self._http.call("GET", path, repeat=False)
        except ForgeUnavailable as error:
            if error.status == 500:
                await self._http.get(f"{repo_path(repo)}/issues/{number}")  # raises NotFound if that is why
            return await self._http.get(path)

    async def create_issue(self, repo: RepoRef, *, title: str, body: str, label_ids: Sequence[int]) -> Snapshot:
        """Create an issue; sent once. Labels the forge did not take are missing from the answer: compare."""
        answer = await self._http.call(
            "POST", f"{repo_path(repo)}/issues", body={"title": title, "body": body, "labels": list(label_ids)}
        )
        return read(answer, reading.snapshot, answer.mapping())

    async def close(self, ref: IssueRef) -> None:
        """Close an issue or a pull request; ForgeRejected 412 while an open issue blocks it."""
        path = f"{repo_path(ref.repo)}/issues/{ref.number}"
        try:
            await self._http.call("PATCH", path, body={"state": "closed"})
        except ForgeRejected:
            # a merged pull request refuses too, and is closed
            answer = await self._http.get(path)
            if read(answer, reading.state, answer.mapping().get("state")) is not IssueState.CLOSED:
                raise

    async def write_comment(self, repo: RepoRef, number: int, body: str, *, comment_id: int | None = None) -> Comment:
        """Create a comment (sent once), or edit the one with `comment_id` (NotFound when it was deleted)."""
        base = f"{repo_path(repo)}/issues"
        if comment_id is not None:
            answer = await self._http.call("PATCH", f"{base}/comments/{comment_id}", body={"body": body})
            if answer.status == 204 or answer.mapping().get("user") is None:
                # an edit that changes nothing is answered without its author
                answer = await self._http.get(f"{base}/comments/{comment_id}")
            return read(answer, reading.comment, answer.mapping())
        try:
            answer = await self._http.call("POST", f"{base}/{number}/comments", body={"body": body})
        except ForgeUnavailable as error:
            if error.status == 500:
                await self._http.get(f"{base}/{number}")  # raises NotFound when the issue is missing
            raise
        return read(answer, reading.comment, answer.mapping())

    # ------------------------------------------------------------------ labels

    async def labels(self, repo: RepoRef) -> tuple[Label, ...]:
        """Repository labels, then those of the owning organisation, all pages. Duplicate names are kept."""
        found = [
            read(answer, reading.label, row) async for answer, row in pages(self._http, f"{repo_path(repo)}/labels")
        ]
        try:
            async for answer, row in pages(self._http, f"/orgs/{segment(repo.owner)}/labels"):
                found.append(read(answer, reading.label, row))
        except NotFound:
            pass  # the owner is a user
        unique = {each.id: each for each in found}
        return tuple(unique.values())

    async def create_label(self, repo: RepoRef, spec: LabelSpec) -> Label:
        """Create a repository label; sent once, since names are not unique on the forge."""
        answer = await self._http.call(
            "POST",
            f"{repo_path(repo)}/labels",
            body={
                "name": spec.name,
                "color": f"#{spec.color}",
                "description": spec.description,
                "exclusive": spec.exclusive,
            },
        )
        return read(answer, reading.label, answer.mapping())

    async def set_label(self, repo: RepoRef, number: int, label_id: int, *, on: bool) -> None:
        """Add or remove one label by id. An unknown id is ignored by the forge with a 200: told here as rejected."""
        path = f"{repo_path(repo)}/issues/{number}/labels"
        if not on:
            try:
                await self._http.call("DELETE", f"{path}/{label_id}")
            except ForgeRejected as error:
                if error.status != 422:  # 422: no such label any more, so it is on no issue
                    raise
            return
        answer = await self._http.call("POST", path, body={"labels": [label_id]}, repeat=True)
        if all(read(answer, reading.label, row).id != label_id for row in answer.sequence()):
            raise ForgeRejected(
                f"{answer.call}: forge {self.name} ignored label {label_id} without a word; "
                "it belongs to neither the repository nor its organisation: look its id up again",
                status=answer.status,
            )

    # ------------------------------------------------------------------ people

    async def assignees(self, repo: RepoRef) -> tuple[Person, ...]:
        """Users with write access; over-reports in organisation repositories."""
        answer = await self._http.get(f"{repo_path(repo)}/assignees")
        return tuple(read(answer, reading.person, row) for row in answer.sequence() if row is not None)

    async def permission(self, repo: RepoRef, login: str) -> str:
        """`none`, `read`, `write`, `admin` or `owner`; ForgeDenied when this token may not ask about others."""
        answer = await self._http.get(f"{repo_path(repo)}/collaborators/{segment(login)}/permission")
        found = answer.mapping().get("permission")
        if found not in ("none", "read", "write", "admin", "owner"):
            raise answer.garbled(f"permission is {found!r:.40}")
        return str(found)

    async def in_team(self, org: str, team: str, login: str) -> bool:
        """Is he in this team? ForgeDenied or NotFound when the bot may not ask: that is "cannot tell"."""
        return await owners.in_team(self._http, org, team, login)

    # ------------------------------------------------------------------ dependencies

    async def dependencies(self, ref: IssueRef) -> tuple[tuple[IssueRef, bool], ...]:
        """What blocks this issue, each with "is it closed". NotFound when dependencies are disabled."""
        return await blockers.dependencies(self._http, ref)

    async def add_dependency(self, ref: IssueRef, on: IssueRef) -> None:
        """`on` blocks `ref`; idempotent (looks first). NotFound when dependencies are disabled."""
        await blockers.add_dependency(self._http, ref, on)

    # ------------------------------------------------------------------ webhooks

    async def hooks(self, repo: RepoRef) -> tuple[Hook, ...]:
        """All webhooks of a repository. ForgeDenied when the bot is no administrator of it."""
        return await hooks.hooks(self._http, repo)

    async def create_hook(self, repo: RepoRef, *, url: str, events: Sequence[str], secret: str) -> Hook:
        """An active one that sends JSON; sent once."""
        return await hooks.create_hook(self._http, repo, url=url, events=events, secret=secret)

    async def delete_hook(self, repo: RepoRef, hook_id: int) -> None:
        """Delete one; one that is gone is no error."""
        await hooks.delete_hook(self._http, repo, hook_id)

    # ------------------------------------------------------------------ pull requests, branches

    async def pulls(
        self, repo: RepoRef, *, head: str | None = None, include_closed: bool = False
    ) -> tuple[PullRequest, ...]:
        """Pull requests from branches of this repository; the forge has no filter by head."""
        found: dict[int, PullRequest] = {}
        params: dict[str, str | int] = {"state": "all" if include_closed else "open", "sort": "recentupdate"}
        async for answer, row in pages(self._http, f"{repo_path(repo)}/pulls", params):
            pull = read(answer, reading.pull, row)
            if not reading.from_fork(row) and head in (None, pull.head):
                found[pull.number] = pull
        return tuple(found.values())

    async def create_pull(self, repo: RepoRef, new: NewPull) -> PullRequest:
        """Create a pull request; sent once. ForgeRejected 409 when an open one of the same head and base exists."""
        title = f"WIP: {new.title}" if new.draft and not new.title.lower().startswith("wip:") else new.title
        body: dict[str, object] = {"title": title, "body": new.body, "head": new.head, "base": new.base}
        if new.label_ids:
            body["labels"] = list(new.label_ids)
        answer = await self._http.call("POST", f"{repo_path(repo)}/pulls", body=body)
        return read(answer, reading.pull, answer.mapping())

    async def branch_head(self, repo: RepoRef, branch: str) -> str | None:
        """The commit a branch points at, None when there is no such branch in a repository that reading."""
        try:
            answer = await self._http.get(f"{repo_path(repo)}/branches/{quote(branch)}")
        except NotFound:
            await self._http.get(repo_path(repo))  # NotFound here: the repository, not the branch
            return None
        commit = answer.mapping().get("commit")
        return read(answer, lambda data: reading.text(reading.mapping(data, "commit").get("id"), "commit.id"), commit)

    async def delete_branch(self, repo: RepoRef, branch: str) -> None:
        """Delete a branch; one that is gone is no error."""
        path = f"{repo_path(repo)}/branches/{quote(branch)}"
        try:
            await self._http.call("DELETE", path, repeat=False)
        except NotFound:
            await self._http.get(repo_path(repo))
        except ForgeUnavailable:
            # Forgejo answers 500 for a branch that is not there, and an answer may be lost after the deed
            if await self.branch_head(repo, branch) is not None:
                await self._http.call("DELETE", path)


def _version(data: object) -> str:
    return reading.text_or_empty(reading.mapping(data, "version").get("version"), "version")
