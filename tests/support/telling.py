"""A forge and its rows side by side, for the publisher's and the mirror's tests: each helper makes both sides agree."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest_asyncio

from tests.support import rows
from tests.support.forges import FaultPlan, LoopbackForge, Stage
from tireless.domain.comments import Voice
from tireless.domain.issue import Comment, PullRequest, RepoRef, Snapshot
from tireless.domain.labels import label_specs
from tireless.domain.marker import own_comments
from tireless.forge.gitea import GiteaForge
from tireless.services.labelling import ensure_labels
from tireless.services.mirror import Mirror
from tireless.services.publisher import Publisher
from tireless.store.db import Connection, Pool

VOICE = Voice()


@dataclass(kw_only=True)
class Sides:
    """A repository on any forge and in the database, and the services between the two."""

    conn: Connection
    pool: Pool
    stage: Stage
    forge: GiteaForge
    repository_id: int
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def repo(self) -> RepoRef:
        """The repository."""
        return self.stage.repo

    # -------------------------------------------------------------- services, each new as after a restart

    def publisher(
        self,
        *,
        children_run: bool = False,
        children_per_hour: int = 100,
        timeout_s: float = 0.0,
        voice: Voice = VOICE,
    ) -> Publisher:
        """A publisher that backs off for no time; unanswered creates are due at once unless `timeout_s` says more."""
        return Publisher(
            self.pool,
            {self.forge.name: self.forge},
            voice=voice,
            children_run=children_run,
            children_per_hour=children_per_hour,
            request_timeout_s=timeout_s,
            take_s=60.0,
            backoff_base_s=0.0,
            backoff_cap_s=0.0,
        )

    def mirror(
        self,
        *,
        timeout_s: float = 0.0,
        voice: Voice = VOICE,
        recheck_s: float = 6 * 3600.0,
        edit_every_s: float = 0.0,
        first_comment_after_s: float = 0.0,
    ) -> Mirror:
        """A mirror that backs off for no time, and edits as often as it likes unless told otherwise."""
        return Mirror(
            self.pool,
            {self.forge.name: self.forge},
            voice=voice,
            request_timeout_s=timeout_s,
            take_s=60.0,
            recheck_s=recheck_s,
            edit_every_s=edit_every_s,
            first_comment_after_s=first_comment_after_s,
            backoff_base_s=0.0,
            backoff_cap_s=0.0,
        )

    # -------------------------------------------------------------- the two sides

    async def issue(self, title: str = "Paint it", *, labels: Sequence[str] = (), **columns: object) -> tuple[int, int]:
        """An issue of alice's on both sides: its row's id and its number."""
        number = await self.stage.alice.create_issue(self.repo.path, title, "What is wanted.")
        if labels:
            await self.stage.alice.add_labels(self.repo.path, number, *(self.labels[name] for name in labels))
        snapshot = await self.forge.issue(self.repo, number)
        given: dict[str, object] = {"title": title, "forge_issue_id": snapshot.issue_id, "url": snapshot.url}
        issue_id = await rows.issue(self.conn, self.repo.path, number, **{**given, **columns})
        return issue_id, number

    async def publishing(
        self,
        *,
        issue_id: int | None = None,
        commit: bool = True,
        kind: str = "implement",
        summary: str | None = None,
        attempt: dict[str, object] | None = None,
    ) -> rows.Made:
        """A job in publishing; with a commit, its branch is on the forge. `attempt`: columns of its attempt."""
        if issue_id is None:
            issue_id, _ = await self.issue()
        made = await rows.job(
            self.conn, self.repo.path, issue_id=issue_id, state="publishing", kind=kind, summary=summary
        )
        work: dict[str, object] = {"commit_sha": None, "branch": None, "pr_title": None, "pr_body": None}
        if commit:
            uid = (await rows.row(self.conn, "attempt", made.attempt_id))["uid"]
            branch = f"tireless/{made.number}-paint.{str(uid)[:8]}"
            sha = await self.stage.bot.commit(self.repo.path, f"{branch}.txt", "x", new_branch=branch)
            work = {"commit_sha": sha, "branch": branch}
        await rows.change(self.conn, "attempt", made.attempt_id, **{**work, **(attempt or {})})
        return made

    async def plan(self, *keys: str, kind: str = "plan", **child: object) -> rows.Made:
        """A plan in publishing whose children have these keys; `b<a` depends on a."""
        made = await self.publishing(commit=False, kind=kind)
        for position, key in enumerate(keys):
            name, _, after = key.partition("<")
            given: dict[str, object] = {
                "job_id": made.job_id,
                "attempt_id": made.attempt_id,
                "position": position,
                "depends_on": [after] if after else [],
                "proposal": kind == "discover",
            }
            await rows.child(self.conn, made.issue_id, name, **{**given, **child})
        return made

    async def job(self, made: rows.Made) -> dict[str, object]:
        """The job's row."""
        return await rows.row(self.conn, "job", made.job_id)

    async def children(self, made: rows.Made) -> dict[str, dict[str, object]]:
        """The child rows of a plan issue by key."""
        query = "SELECT * FROM child WHERE plan_issue_id = %(id)s AND ended_at IS NULL ORDER BY position"
        return {str(each["key"]): each for each in await rows.rows(self.conn, query, id=made.issue_id)}

    async def open_pulls(self) -> list[PullRequest]:
        """Open pull requests, oldest first."""
        return sorted(await self.forge.pulls(self.repo), key=lambda each: each.number)

    async def bot_issues(self) -> list[Snapshot]:
        """Every issue the bot made, oldest first."""
        found: list[Snapshot] = []
        for page in itertools.count(1):
            answer = await self.forge.issues(self.repo, page=page, created_by=self.stage.bot.login)
            if not answer.rows:
                break
            found += answer.issues
        return sorted(found, key=lambda each: each.number)

    async def status_comments(self, number: int) -> list[Comment]:
        """The bot's status comments on an issue."""
        about = await self.forge.about()
        assert about.login is not None
        comments = await self.forge.comments(self.repo, number)
        return [each for each, _ in own_comments(comments, about.login.id, number)]

    async def label_names(self, number: int) -> list[str]:
        """The names of an issue's labels, sorted."""
        return sorted(label.name for label in (await self.forge.issue(self.repo, number)).labels)

    async def mirror_row(self, issue_id: int) -> dict[str, object]:
        """The mirror row of an issue."""
        (found,) = await rows.rows(self.conn, "SELECT * FROM mirror WHERE issue_id = %(id)s", id=issue_id)
        return found

    async def touch(self, issue_id: int) -> None:
        """Make an issue due, as a change of its rows does."""
        await self.conn.execute("SELECT mirror_changed(%(id)s)", {"id": issue_id})

    # -------------------------------------------------------------- time and death

    async def later(self) -> None:
        """Let every take, backoff and unanswered create be long ago."""
        await self.conn.execute(
            "UPDATE job SET publish_until = publish_until - interval '1 day', publish_not_before = NULL"
            " WHERE state = 'publishing'"
        )
        await self.conn.execute("UPDATE attempt SET pr_sent_at = pr_sent_at - interval '1 day'")
        await self.conn.execute("UPDATE child SET sent_at = sent_at - interval '1 day'")
        await self.conn.execute(
            "UPDATE mirror SET take_until = take_until - interval '1 day', not_before = '-infinity',"
            " comment_sent_at = comment_sent_at - interval '1 day'"
        )


@dataclass(kw_only=True)
class Both(Sides):
    """The same with a loopback forge, where every request is seen and can be disturbed."""

    loopback: LoopbackForge

    async def killed_at(self, tick: Callable[[], Awaitable[bool]], plan: FaultPlan) -> bool:
        """Run a tick and kill it where `plan` (a block) strikes; False when it ended before.

        Blocked before its effect, the request has none, since its client is gone.
        """
        fault = await self.loopback.fault(plan)
        task = asyncio.ensure_future(tick())
        struck = asyncio.ensure_future(fault.reached())
        await asyncio.wait({task, struck}, return_when=asyncio.FIRST_COMPLETED)
        killed = not task.done()
        for each in (task, struck):
            each.cancel()
        await asyncio.gather(task, struck, return_exceptions=True)
        if not killed:
            await fault.drop()
            task.result()
        return killed


async def drain(tick: Callable[[], Awaitable[bool]], limit: int = 50) -> None:
    """Tick until there is nothing more to do."""
    for _ in range(limit):
        if not await tick():
            return
    raise AssertionError(f"still busy after {limit} ticks")


async def repository_of(conn: Connection, stage: Stage, forge: GiteaForge) -> int:
    """The row of the stage's repository."""
    known = await forge.repository(stage.repo)
    await rows.forge(conn, forge.name)
    return await rows.repository(
        conn,
        stage.repo.path,
        forge=forge.name,
        forge_repo_id=known.id,
        default_branch=known.default_branch,
        html_url=known.html_url,
    )


@pytest_asyncio.fixture
async def both(conn: Connection, pool: Pool, loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> Both:
    """The repository acme/widgets on both sides, its labels ensured."""
    repository_id = await repository_of(conn, stage, forge)
    ids = (await ensure_labels(pool, forge, stage.repo, label_specs(VOICE.scheme, ()))).ids
    return Both(
        conn=conn, pool=pool, stage=stage, forge=forge, repository_id=repository_id, labels=ids, loopback=loopback
    )
