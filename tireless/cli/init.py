"""`tireless init`: shows what an installation still lacks on its forges, and makes it once that is confirmed."""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import click

from tireless.app.database import existing_url
from tireless.app.forges import OpenForge, open_forges
from tireless.cli.frame import Frame, pass_frame, printing, run
from tireless.cli.watched import all_wanted
from tireless.cli.words import chosen_forge, repository
from tireless.config import Settings
from tireless.domain.issue import RepoRef
from tireless.services.hooking import HookWish
from tireless.services.initial import Step, carry_out, outline
from tireless.services.setup import Expected, Finding, Level
from tireless.store import migrate as migrations
from tireless.store.db import Pool, pool, shown

FAILED = 1

_MARKS = {Level.FINE: "ok    ", Level.REMARK: "remark", Level.FAULT: "FAULT "}


@dataclass
class _Found:
    """What was looked at, and what is left to do."""

    findings: list[Finding] = field(default_factory=list)
    migrations: tuple[str, ...] = ()
    steps: list[Step] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        """Whether something is left to do."""
        return bool(self.migrations or self.steps)

    def lines(self) -> list[str]:
        """For a person."""
        lines = [f"{_MARKS[each.level]}  {each.subject}: {each.text}" for each in self.findings]
        lines += ["", "to do:" if self.anything else "Nothing is left to do."]
        if self.migrations:
            lines.append(f"  database: apply {', '.join(self.migrations)}")
        return lines + [f"  {each.repo.forge}:{each.repo.path}: {each.text}" for each in self.steps]


@click.command("init")
@click.argument("repositories", nargs=-1, metavar="[OWNER/REPO]...")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@printing
@pass_frame
def init(frame: Frame, repositories: tuple[str, ...], yes: bool) -> int:
    """Show what is missing (schema, labels, webhooks), and create it after a confirmation. Any number of times.

    For the repositories named, or all that are configured or watched. Where nobody can be asked, and with --json, it
    only shows, unless --yes is given. Exit code 1 when a step failed; the others were done all the same.
    """
    return run(_init(frame, repositories, yes=yes))


async def _init(frame: Frame, named: Sequence[str], *, yes: bool) -> int:
    settings = frame.settings
    async with existing_url(settings) as url, open_forges(settings) as forges:
        found = await _look(settings, url, forges, named)
        if not frame.json:
            frame.show({}, "\n".join(found.lines()))
        go = found.anything and (yes or _confirmed(frame))
        done = await _carry_out(settings, url, forges, found) if go else []
    if frame.json:
        data = {
            "findings": found.findings,
            "migrations": found.migrations,
            "steps": [_step(each) for each in found.steps],
            "done": [_step(each) for each in done],
            "applied": go,
        }
        frame.show(data, "")
    elif go:
        frame.show({}, "\n".join(["done:", *(f"  {each.repo.forge}:{each.repo.path}: {each.text}" for each in done)]))
    elif found.anything:
        frame.say("nothing was changed; `tireless init --yes` does it")
    return FAILED if any(each.error for each in done) else 0


def _step(step: Step) -> dict[str, object]:
    data: dict[str, object] = {"forge": step.repo.forge, "repository": step.repo.path, "what": step.what}
    return data | {"text": step.text, "names": step.names, "error": step.error}


def _confirmed(frame: Frame) -> bool:
    if frame.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return click.confirm("Do this?", default=False)


async def _look(settings: Settings, url: str, forges: Mapping[str, OpenForge], named: Sequence[str]) -> _Found:
    found = _Found()
    status = await migrations.check(url)
    if status.faults:
        status.demand()
    found.migrations = tuple(status.missing)
    state = f"reachable, {'no schema yet' if not status.applied else f'schema {status.applied[-1]}'}"
    found.findings.append(Finding(Level.FINE, "database_ready", shown(url), state))
    async with _opened(url, current=not found.migrations) as opened:
        for name, forge in forges.items():
            wish, more = hook_wish(settings, name)
            found.findings += more
            wanted = await _repositories(settings, opened, forge, named)
            seen = await outline(opened, forge, wanted, _expected(settings), wish)
            found.findings += seen.findings
            found.steps += seen.steps
    return found


@contextlib.asynccontextmanager
async def _opened(url: str, *, current: bool) -> AsyncIterator[Pool | None]:
    """The database, None while its schema is not this code's."""
    if not current:
        yield None
        return
    async with pool(url, min_size=1, max_size=4, application_name="tireless init") as opened:
        yield opened


async def _repositories(
    settings: Settings, opened: Pool | None, forge: OpenForge, named: Sequence[str]
) -> list[RepoRef]:
    """Those of this forge: the named ones, else all that are configured or watched."""
    if named:
        parts = [repository(text) for text in named]
        refs = [RepoRef(chosen_forge(settings, where), owner, name) for where, owner, name in parts]
        return list({ref.path.casefold(): ref for ref in refs if ref.forge == forge.name}.values())
    found = await all_wanted(settings, opened, forge)
    for ref, error in found.missing.items():
        if ref.name == "*":
            raise error
        found.add(ref)  # what is wrong with it is among the findings
    return [found.refs[key] for key in sorted(found.refs)]


def _expected(settings: Settings) -> Expected:
    asking = settings.asking
    return Expected(settings.labels.scheme, settings.lane_values, asking.allow, asking.who_may_ask)


def hook_wish(settings: Settings, forge: str) -> tuple[HookWish | None, list[Finding]]:
    """Where a forge's webhooks go, or why there are none; and what may keep them from coming."""
    subject = f"webhooks of {forge}"
    secret, base = settings.forges[forge].webhook_secret, settings.web.url
    missing = [
        *([] if base else ["web.url (where the forge reaches the page)"]),
        *([] if secret else [f"forges.{forge}.webhook_secret_file"]),
    ]
    if base is None or secret is None:
        text = f"none are made, {' and '.join(missing)} being unset: every change is seen by polling, later"
        return None, [Finding(Level.REMARK, "no_hooks", subject, text)]
    found = []
    if _is_private(urlsplit(base).hostname or ""):
        text = f"{base} is a private address: the forge calls it only if its [webhook] ALLOWED_HOST_LIST names it"
        found.append(Finding(Level.REMARK, "hook_address_private", subject, text))
    return HookWish(f"{base}/webhook/{forge}", secret), found


def _is_private(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost" or "." not in host


async def _carry_out(settings: Settings, url: str, forges: Mapping[str, OpenForge], found: _Found) -> list[Step]:
    if found.migrations:
        await migrations.migrate(url)
    done: list[Step] = []
    async with pool(url, min_size=1, max_size=4, application_name="tireless init") as opened:
        for repo in dict.fromkeys(each.repo for each in found.steps):
            wish, _ = hook_wish(settings, repo.forge)
            wanted = wish if any(each.repo == repo and each.what != "create_labels" for each in found.steps) else None
            done += await carry_out(opened, forges[repo.forge], repo, _expected(settings), wanted)
    return done
