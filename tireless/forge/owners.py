"""What belongs to one owner: repositories, issues over all of them, teams; part of the client. Decides nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tireless.domain.issue import Repository
from tireless.errors import NotFound
from tireless.forge import reading
from tireless.forge.base import Malformed, OwnerPage
from tireless.forge.http import Http, segment
from tireless.forge.walk import PAGE, moment, pages, read


async def repositories(http: Http, owner: str, *, topic: str | None = None) -> tuple[Repository, ...]:
    """Those of a user or an organisation that the token sees; pages are cut before they are filtered, so to the end."""
    try:
        found = await _listed(http, f"/orgs/{segment(owner)}/repos")
        is_org: bool | None = True
    except NotFound:
        # a user, or an organisation this token may not see; for its own user the forge says nothing else
        found = await _listed(http, f"/users/{segment(owner)}/repos")
        is_org = None
    if topic is not None:
        # the topics in a repository's own answer are missing on older servers
        having = {
            read(answer, reading.repository, row).id
            async for answer, row in pages(http, "/repos/search", {"q": topic, "topic": "true"})
        }
        found = {each: repository for each, repository in found.items() if each in having}
    return tuple(replace(repository, owner_is_org=is_org) for repository in found.values())


async def _listed(http: Http, path: str) -> dict[int, Repository]:
    rows = [read(answer, reading.repository, row) async for answer, row in pages(http, path)]
    return {each.id: each for each in rows}


async def issues(http: Http, owner: str, *, page: int, since: datetime | None, before: datetime | None) -> OwnerPage:
    """One page of the search for an owner's issues in any state. Without words to find it asks the database alone."""
    params: dict[str, str | int] = {"owner": owner, "state": "all", "type": "issues", "page": page, "limit": PAGE}
    if since is not None:
        params["since"] = moment(since)
    if before is not None:
        params["before"] = moment(before)
    answer = await http.get("/repos/issues/search", params)
    rows = answer.sequence()
    found, malformed = [], []
    for row in rows:
        if reading.is_pull(row):
            continue
        data = row if isinstance(row, dict) else {}
        where = data.get("repository")
        repository_id = where.get("id") if isinstance(where, dict) else None
        if not isinstance(repository_id, int) or repository_id < 1:
            raise answer.garbled("an issue of the search does not say which repository it is in")
        try:
            found.append((repository_id, reading.snapshot(row)))
        except ValueError as error:
            malformed.append((repository_id, Malformed(number=reading.number_of(row), error=str(error))))
    return OwnerPage(
        issues=tuple(found),
        rows=len(rows),
        total=answer.total,
        server_date=answer.server_date,
        malformed=tuple(malformed),
    )


async def in_team(http: Http, org: str, team: str, login: str) -> bool:
    """By the team's members; only members of the team and owners of the organisation may ask for them."""
    number = None
    async for answer, row in pages(http, f"/orgs/{segment(org)}/teams"):
        found = read(answer, lambda data: reading.mapping(data, "team"), row)
        if reading.text_or_empty(found.get("name"), "team.name").casefold() == team.casefold():
            number = read(answer, lambda data: reading.whole(data, "team.id"), found.get("id"))
    if number is None:
        raise NotFound(f"GET /orgs/{org}/teams: forge {http.name} shows no team {team} in {org}")
    try:
        await http.get(f"/teams/{number}/members/{segment(login)}")
    except NotFound:
        return False  # the team is there, and shown to us: it is he who is not in it
    return True
