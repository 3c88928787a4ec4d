"""One-shot checks of a forge: is it there, whom does the token speak for, what may he do, are the labels there.

Reads only; a fault is a value that names the next step, so that one repository's fault never hides another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tireless.domain.issue import RepoRef, Repository
from tireless.domain.labels import LabelScheme, folded, label_specs
from tireless.domain.people import ADMINS, CODE_WRITERS, WRITERS, Policy
from tireless.domain.routing import Lane
from tireless.errors import ForgeDenied, ForgeError, ForgeUnavailable, Moved, NotFound
from tireless.forge.base import About, Forge

SCOPES = "write:issue, write:repository, read:organization, read:user"
"""What the bot's token needs."""

_READY, _READABLE = "readable, writable, labels in place", "readable, labels in place"

_AT_ONCE = 4
_OF_OWNERS = ("writers_not_shown", "askers_not_shown")
"""Said of an owner once, not of each of his repositories."""


class Level(StrEnum):
    """How bad it is. Only FAULT makes `doctor` fail."""

    FINE = "fine"
    REMARK = "remark"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `code` is stable, `subject` says of what, `text` names the next step."""

    level: Level
    code: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What is judged against: labels, lanes, and the logins that may ask in any case."""

    scheme: LabelScheme
    lanes: Sequence[Lane]
    allow: Sequence[str] = ()
    who_may_ask: str = "writers"


async def check_access(forge: Forge, expected: Expected) -> tuple[Finding, ...]:
    """The server and the token alone."""
    try:
        about = await forge.about()
    except ForgeError as error:
        return (unanswered(forge, error),)
    return (*check_token(forge, about, expected), *await check_team(forge, about, expected))


async def check_forge(forge: Forge, repositories: Sequence[RepoRef], expected: Expected) -> tuple[Finding, ...]:
    """Everything `doctor` says of one forge: the server, the token, each repository. What fails is a finding."""
    try:
        about = await forge.about()
    except ForgeError as error:
        return (unanswered(forge, error),)
    findings = [*check_token(forge, about, expected), *await check_team(forge, about, expected)]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(repo: RepoRef) -> tuple[Finding, ...]:
        async with gate:
            return await check_repository(forge, repo, about, expected)

    for found in await asyncio.gather(*(one(repo) for repo in repositories)):
        findings.extend(found)
    if lacking := await check_scopes(forge, repositories):
        # The user may write, this token may not.
        findings = [replace(each, text=_READABLE) if each.code == "repository_ready" else each for each in findings]
    return (*gathered(findings), *lacking)


async def check_scopes(forge: Forge, repositories: Sequence[RepoRef]) -> tuple[Finding, ...]:
    """Whether the token's scopes let it write, asked at the first repository that answers: a token is one for all."""
    for repo in repositories:
        try:
            lacks = await forge.lacks(repo)
        except ForgeError:
            continue  # what is wrong there is told by what looks at the repository
        if not lacks:
            return ()
        text = f"the token lacks {' and '.join(lacks)}: make one for the bot's user with the scopes {SCOPES}"
        return (Finding(Level.FAULT, "token_cannot_write", f"forge {forge.name}", text),)
    return ()


def gathered(findings: Sequence[Finding]) -> list[Finding]:
    """Repositories of one owner of which the bot is not told who may write are one finding."""
    found = [each for each in findings if each.code not in _OF_OWNERS]
    alike: dict[tuple[str, str], list[Finding]] = {}
    for each in findings:
        if each.code in _OF_OWNERS:
            alike.setdefault((each.subject.partition("/")[0], each.text), []).append(each)
    for (owner, text), same in alike.items():
        subject = f"{owner}/* ({len(same)} repositories)" if len(same) > 1 else same[0].subject
        found.append(Finding(same[0].level, same[0].code, subject, text))
    return found


def unanswered(forge: Forge, error: ForgeError) -> Finding:
    """The finding for a forge that would not say who the token is."""
    subject = f"forge {forge.name}"
    match error:
        case ForgeUnavailable():
            return Finding(Level.FAULT, "forge_unreachable", subject, str(error))
        case ForgeDenied():
            text = f"{error}; make a token of the bot's own user with the scopes {SCOPES}"
            return Finding(Level.FAULT, "token_refused", subject, text)
        case _:
            text = f"{error}; is {forge.url} the address of a Gitea or Forgejo?"
            return Finding(Level.FAULT, "forge_strange", subject, text)


def check_token(forge: Forge, about: About, expected: Expected) -> tuple[Finding, ...]:
    """Whom the token speaks for. The bot needs a user of its own: what he does never asks for work."""
    subject = f"forge {forge.name}"
    server = about.capabilities
    if about.login is None:
        text = f"the token lacks the scope read:user, so nobody can tell whose it is; make one with {SCOPES}"
        return (Finding(Level.FAULT, "token_nameless", subject, text),)
    login = about.login.login
    if fault := Policy(allow=frozenset(expected.allow), bot=about.login).bot_fault():
        return (Finding(Level.FAULT, "bot_may_ask", subject, fault),)
    findings = [Finding(Level.FINE, "forge_answers", subject, f"{server.flavour} {server.version}, token of {login}")]
    if about.is_admin:
        text = f"{login} is a site administrator, which the bot does not need: whoever has its token owns the forge"
        findings.append(Finding(Level.REMARK, "bot_is_admin", subject, text))
    return tuple(findings)


async def check_team(forge: Forge, about: About, expected: Expected) -> tuple[Finding, ...]:
    """Whether the bot is told who is in the team that may ask: else nobody may. Nothing where no team is configured."""
    team = Policy(who_may_ask=expected.who_may_ask).team
    if team is None or about.login is None:
        return ()
    subject = f"team {'/'.join(team)} on {forge.name}"
    try:
        await forge.in_team(*team, about.login.login)
    except (ForgeDenied, NotFound) as error:
        text = f"the forge does not tell the bot who is in it, so nobody may ask: make {about.login.login} a member"
        return (Finding(Level.FAULT, "team_not_shown", subject, f"{text} ({error})"),)
    except ForgeError as error:
        return (Finding(Level.FAULT, "team_unanswered", subject, str(error)),)
    return (Finding(Level.FINE, "team_shown", subject, "its members may ask, and the bot is told who they are"),)


async def check_repository(forge: Forge, repo: RepoRef, about: About, expected: Expected) -> tuple[Finding, ...]:
    """One repository: there, usable, writable by the bot, with every label once."""
    subject = f"{forge.name}:{repo.path}"
    try:
        found = await forge.repository(repo)
        findings = [*_usable(subject, found)]
        findings += await _rights(forge, repo, subject, about)
        findings += await _askers(forge, found, subject, expected)
        findings += await _labels(forge, repo, subject, expected)
    except NotFound:
        text = "there is no such repository, or the bot may not see it: check the name, add the bot's user as a writer"
        return (Finding(Level.FAULT, "repository_not_found", subject, text),)
    except Moved as error:
        return (Finding(Level.FAULT, "repository_moved", subject, f"{error}; write the new name"),)
    except ForgeDenied as error:
        text = f"{error}; give the bot's user write access, its token the scopes {SCOPES}"
        if error.scopes:
            lacks = " or ".join(error.scopes)
            text = f"the token lacks {lacks}: make one for the bot's user with the scopes {SCOPES} ({error})"
        return (Finding(Level.FAULT, "repository_denied", subject, text),)
    except ForgeError as error:
        return (Finding(Level.FAULT, "repository_unanswered", subject, str(error)),)
    ready = Finding(Level.FINE, "repository_ready", subject, _READY)
    return (*findings, *([] if any(each.code not in _OF_OWNERS for each in findings) else [ready]))


def _usable(subject: str, found: Repository) -> list[Finding]:
    reasons = (
        (found.archived, "repository_archived", "it is archived: nothing can be written there; unarchive or remove it"),
        (not found.has_issues, "issues_off", "its own issue tracker is off: switch issues on in its settings"),
        (not found.has_pulls, "pulls_off", "pull requests are off: switch them on in its settings"),
        (found.empty, "repository_empty", "it has no commit yet: push one, agents need something to start from"),
    )
    return [Finding(Level.FAULT, code, subject, text) for true, code, text in reasons if true]


async def _rights(forge: Forge, repo: RepoRef, subject: str, about: About) -> list[Finding]:
    if about.login is None:
        return []
    try:
        permission = await forge.permission(repo, about.login.login)
    except ForgeDenied:
        text = "the forge does not say what the bot may do here; `tireless labels sync` shows whether it can write"
        return [Finding(Level.REMARK, "rights_unknown", subject, text)]
    if permission in ("write", "admin", "owner"):
        return []
    text = f"{about.login.login} has {permission} access; add him as a collaborator, or to a team, with write access"
    return [Finding(Level.FAULT, "bot_cannot_write", subject, text)]


async def _askers(forge: Forge, found: Repository, subject: str, expected: Expected) -> list[Finding]:
    """Whether the bot is told who may write here, where `who_may_ask` goes by that.

    The forge tells other people's rights to administrators of the repository. In a user-owned one the assignees say the
    same of who may write, though not of who is an administrator.
    """
    who, repo = expected.who_may_ask, RepoRef(forge.name, found.owner, found.name)
    if who not in (WRITERS, CODE_WRITERS, ADMINS):
        return []
    try:
        if who == ADMINS or found.owner_is_org is not False:
            await forge.permission(repo, found.owner)
        else:
            await forge.assignees(repo)
    except NotFound:
        return []  # there is nobody of that name: it would have told
    except ForgeDenied:
        pass
    else:
        return []
    but = "only for those in asking.allow" if expected.allow else "for nobody"
    step = "make the bot's user an administrator of it, or list people in asking.allow"
    if who == WRITERS:
        text = (
            "the forge does not tell the bot who may write here: labels put on after an issue was opened count all the "
            f"same, those that its author sets while opening it count {but}; {step}"
        )
        return [Finding(Level.REMARK, "writers_not_shown", subject, text)]
    level = Level.REMARK if expected.allow else Level.FAULT
    text = f'the forge does not tell the bot who may write here: with who_may_ask = "{who}" labels count {but}; {step}'
    return [Finding(level, "askers_not_shown", subject, text)]


async def _labels(forge: Forge, repo: RepoRef, subject: str, expected: Expected) -> list[Finding]:
    present = await forge.labels(repo)
    names = [folded(label.name) for label in present]
    findings = []
    wanted = label_specs(expected.scheme, expected.lanes)
    exclusive = {folded(spec.name): spec.exclusive for spec in wanted}
    if wrong := [
        label.name for label in present if label.exclusive != exclusive.get(folded(label.name), label.exclusive)
    ]:
        text = (
            f"labels whose exclusiveness was changed: {', '.join(wrong)}; an exclusive label takes others off as it is "
            "put on: edit them back in its settings, or delete them and run `tireless labels sync`"
        )
        findings.append(Finding(Level.FAULT, "labels_exclusive", subject, text))
    if missing := [spec.name for spec in wanted if folded(spec.name) not in names]:
        text = f"labels are missing: {', '.join(missing)}; `tireless labels sync` creates them"
        findings.append(Finding(Level.FAULT, "labels_missing", subject, text))
    if twice := [spec.name for spec in wanted if names.count(folded(spec.name)) > 1]:
        text = f"labels exist more than once: {', '.join(twice)}; delete all but the oldest of each in its settings"
        findings.append(Finding(Level.REMARK, "labels_twice", subject, text))
    return findings
