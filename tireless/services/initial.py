"""What `tireless init` finds on a forge, what it would do there, and doing it. Asks nobody: that is the command's part.

Reading and doing are apart, and doing looks again: what was shown may be old when it is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tireless.domain.issue import RepoRef
from tireless.domain.labels import folded, label_specs
from tireless.errors import ForgeDenied, ForgeError, NotFound, StoreError
from tireless.forge.base import About, Forge, HookForge
from tireless.services.hooking import HookWish, look_for_hook, put_hook
from tireless.services.labelling import ensure_labels
from tireless.services.setup import (
    SCOPES,
    Expected,
    Finding,
    Level,
    check_repository,
    check_team,
    check_token,
    gathered,
)
from tireless.store.db import Pool

_AT_ONCE = 4

LABELS = "create_labels"


class AdministeredForge(Forge, HookForge, Protocol):
    """A forge whose webhooks can be made."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, or that was done. `what`: `create_labels`, or a HookStep; `error`: why it failed."""

    repo: RepoRef
    what: str
    text: str
    names: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """What was found of one forge, and the steps that are left, repository by repository."""

    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]


async def outline(
    pool: Pool | None,
    forge: AdministeredForge,
    repositories: Sequence[RepoRef],
    expected: Expected,
    wish: HookWish | None,
) -> Outline:
    """Look, change nothing. `pool` None: the database has no schema yet. Raises what `about` raises."""
    about = await forge.about()
    findings = [*check_token(forge, about, expected), *await check_team(forge, about, expected)]
    steps: list[Step] = []
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(repo: RepoRef) -> Outline:
        async with gate:
            return await _look(pool, forge, repo, about, expected, wish)

    for each in await asyncio.gather(*(one(repo) for repo in repositories)):
        findings += each.findings
        steps += each.steps
    return Outline((*gathered(findings), *_scopes(forge, about, repositories, findings)), tuple(steps))


def _scopes(
    forge: Forge, about: About, repositories: Sequence[RepoRef], findings: Sequence[Finding]
) -> tuple[Finding, ...]:
    """A token does not tell its scopes: what was read with it shows those to read; `doctor` tries those to write."""
    refused = any(each.code in ("repository_denied", "repository_not_found") for each in findings)
    if about.login is None or refused or not repositories:
        return ()
    text = f"the token reads users, repositories, issues and labels; that it may write shows when it does (of {SCOPES})"
    return (Finding(Level.FINE, "scopes_to_read", f"forge {forge.name}", text),)


async def _look(
    pool: Pool | None,
    forge: AdministeredForge,
    repo: RepoRef,
    about: About,
    expected: Expected,
    wish: HookWish | None,
) -> Outline:
    found = await check_repository(forge, repo, about, expected)
    findings = [each for each in found if each.code not in ("labels_missing", "repository_ready")]
    steps = []
    try:
        present = {folded(label.name) for label in await forge.labels(repo)}
        wanted = [spec.name for spec in label_specs(expected.scheme, expected.lanes)]
        if missing := tuple(name for name in wanted if folded(name) not in present):
            steps.append(Step(repo, LABELS, f"create {len(missing)} labels: {', '.join(missing)}", missing))
        if wish is not None:
            repo_id = (await forge.repository(repo)).id
            hook, more = await _look_for_hook(pool, forge, repo, repo_id, wish)
            steps += hook
            findings += more
    except ForgeError as error:
        if not any(each.level is Level.FAULT for each in findings):
            findings.append(Finding(Level.FAULT, "repository_unanswered", f"{forge.name}:{repo.path}", str(error)))
    return Outline(tuple(findings), tuple(steps))


async def _look_for_hook(
    pool: Pool | None, forge: AdministeredForge, repo: RepoRef, repo_id: int, wish: HookWish
) -> tuple[list[Step], list[Finding]]:
    try:
        work = await look_for_hook(pool, forge, repo, repo_id, wish)
    except (ForgeDenied, NotFound):
        text = (
            "the bot may not see webhooks here: make it an administrator of the repository for the time of `init`, or "
            f"add one by hand: target URL {wish.url}, content type application/json, the configured secret, the events "
            "issues, issue labels and issue comments. Without one every change is seen by polling, later"
        )
        return [], [Finding(Level.REMARK, "hook_by_hand", f"{forge.name}:{repo.path}", text)]
    if work is None:
        return [], []
    return [Step(repo, work.step, f"{_HOOK_WORDS[work.step]} the webhook to {wish.url}: {work.why}")], []


_HOOK_WORDS = {"create_hook": "create", "replace_hook": "make anew", "delete_hooks": "delete the copies of"}


async def carry_out(
    pool: Pool, forge: AdministeredForge, repo: RepoRef, expected: Expected, wish: HookWish | None
) -> list[Step]:
    """Do what is left in one repository, and say what was done; a failure is a step with its error, the last one."""
    done = []
    try:
        made = (await ensure_labels(pool, forge, repo, label_specs(expected.scheme, expected.lanes))).created
        if made:
            done.append(Step(repo, LABELS, f"created {len(made)} labels: {', '.join(made)}", made))
        if wish is not None:
            work = await put_hook(pool, forge, repo, (await forge.repository(repo)).id, wish)
            if work is not None:
                done.append(Step(repo, work.step, f"{_HOOK_DONE[work.step]} the webhook to {wish.url}"))
    except (ForgeError, StoreError) as error:
        done.append(Step(repo, "failed", str(error), error=str(error)))
    return done


_HOOK_DONE = {"create_hook": "created", "replace_hook": "made anew", "delete_hooks": "deleted the copies of"}
