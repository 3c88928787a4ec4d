"""Reads the forge's side of the demo, as a person with a token sees it; knows no row."""

from __future__ import annotations

from tireless.demo.sides import ForgeIssue, ForgePull, Side
from tireless.errors import NotFound
from tireless.forge.person import Json, Person


async def read_forge(person: Person, repository: str, *, bot: str) -> Side:
    """Issues with labels, dependencies and the bot's comments, and all pull requests. Raises the ForgeError tree."""
    issues = [await _issue(person, repository, row, bot) for row in await person.issues(repository)]
    pulls = [_pull(row) for row in await person.pulls(repository)]
    return Side({issue.number: issue for issue in issues}, pulls)


async def _issue(person: Person, repository: str, row: Json, bot: str) -> ForgeIssue:
    number = int(str(row["number"]))
    comments = await person.comments(repository, number)
    return ForgeIssue(
        number=number,
        labels=tuple(sorted(str(label["name"]) for label in _rows(row["labels"]))),
        body=str(row["body"]),
        by_bot=_login(row) == bot,
        blocked_by=await _blocked_by(person, repository, number),
        told=tuple(str(comment["body"]) for comment in comments if _login(comment) == bot),
    )


async def _blocked_by(person: Person, repository: str, number: int) -> tuple[int, ...]:
    try:
        rows = (await person.api("GET", f"/repos/{repository}/issues/{number}/dependencies")).sequence()
    except NotFound:  # dependencies are switched off there
        return ()
    return tuple(int(str(row["number"])) for row in _rows(rows))


def _pull(row: Json) -> ForgePull:
    head = row["head"]
    return ForgePull(
        number=int(str(row["number"])),
        branch=str(head["ref"]) if isinstance(head, dict) else "",
        body=str(row["body"]),
        open=row["state"] == "open",
    )


def _rows(value: object) -> list[Json]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _login(row: Json) -> str:
    user = row["user"]
    return str(user["login"]) if isinstance(user, dict) else ""
