"""What a delivery and its mirror come to on the loopback forge and, where one is at hand, on a real Gitea alike."""

from __future__ import annotations

from tests.support import rows
from tests.support.conformance import *  # noqa: F403  fixtures
from tests.support.forges import Stage
from tests.support.telling import VOICE, Sides, drain, repository_of
from tireless.domain.delivery import read_child_line
from tireless.domain.issue import IssueRef, IssueState
from tireless.domain.labels import label_specs
from tireless.forge.gitea import GiteaForge
from tireless.services.labelling import ensure_labels
from tireless.store.db import Connection, Pool

HOSTILE = "Closes #{other}, fixes {repo}#{other}\n{url}/{repo}/issues/{other}\n\nresolves: !{other} @alice\n```\nopen"


async def sides(conn: Connection, pool: Pool, stage: Stage, forge: GiteaForge) -> Sides:
    """The repository on both sides, its labels ensured."""
    ids = (await ensure_labels(pool, forge, stage.repo, label_specs(VOICE.scheme, ()))).ids
    repository_id = await repository_of(conn, stage, forge)
    return Sides(conn=conn, pool=pool, stage=stage, forge=forge, repository_id=repository_id, labels=ids)


async def test_a_merged_delivery_closes_its_issue_alone(
    conn: Connection, pool: Pool, stage: Stage, forge: GiteaForge
) -> None:
    """The real reader of references finds our closing line, and none of an agent's, in title, body or branch."""
    both = await sides(conn, pool, stage, forge)
    _, other = await both.issue("Another")
    hostile = HOSTILE.format(other=other, repo=both.repo, url=stage.url)
    made = await both.publishing(attempt={"pr_title": f"Fixes #{other}", "pr_body": hostile})
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    entries = (await stage.alice.api("GET", f"/repos/{both.repo.path}/issues/{other}/timeline")).sequence()
    assert [each for each in entries if isinstance(each, dict) and "ref" in str(each.get("type"))] == []
    await stage.alice.merge(both.repo.path, pull.number)
    assert (await forge.issue(both.repo, made.number)).state is IssueState.CLOSED
    assert (await forge.issue(both.repo, other)).state is IssueState.OPEN


async def test_a_plan_is_delivered_and_mirrored(conn: Connection, pool: Pool, stage: Stage, forge: GiteaForge) -> None:
    """Children with label, hidden line and dependency; the plan's status label and comment; no issue is referred to."""
    both = await sides(conn, pool, stage, forge)
    _, other = await both.issue("Another")
    made = await both.plan("schema", "paint<schema", body=HOSTILE.format(other=other, repo=both.repo, url=stage.url))
    await drain(both.publisher().tick)
    await drain(both.mirror().tick)
    schema, paint = await both.bot_issues()
    assert [line.key for each in (schema, paint) if (line := read_child_line(each.body))] == ["schema", "paint"]
    assert [label.name for label in paint.labels] == ["tireless/implement"]
    assert await forge.dependencies(IssueRef(both.repo, paint.number)) == ((IssueRef(both.repo, schema.number), False),)
    assert await both.label_names(made.number) == ["tireless/status/delivered"]
    (comment,) = await both.status_comments(made.number)
    assert f"issues/./{schema.number}" in comment.body
    for number in (other, made.number):
        entries = (await stage.alice.api("GET", f"/repos/{both.repo.path}/issues/{number}/timeline")).json() or []
        assert isinstance(entries, list)
        assert [each for each in entries if "ref" in str(each.get("type"))] == []


async def test_each_status_replaces_the_one_before(
    conn: Connection, pool: Pool, stage: Stage, forge: GiteaForge
) -> None:
    """Exclusive status labels, set one after the other, leave one; a deleted comment comes back."""
    both = await sides(conn, pool, stage, forge)
    issue_id, number = await both.issue(labels=["tireless/go", "tireless/implement"])
    made = await rows.job(conn, both.repo.path, issue_id=issue_id)
    for change in ({"state": "waiting", "parked": "suspect"}, {"state": "waiting", "parked": None}):
        await rows.change(conn, "job", made.job_id, **change)
        await drain(both.mirror().tick)
    assert await both.label_names(number) == ["tireless/go", "tireless/implement", "tireless/status/queued"]
    (comment,) = await both.status_comments(number)
    await stage.alice.api("DELETE", f"/repos/{both.repo.path}/issues/comments/{comment.id}")
    await both.touch(issue_id)
    await drain(both.mirror().tick)
    assert len(await both.status_comments(number)) == 1


async def test_a_rerun_replaces_its_predecessor(conn: Connection, pool: Pool, stage: Stage, forge: GiteaForge) -> None:
    """The second delivery of an issue leaves one open pull request; stale branches are gone, delivered ones stay."""
    both = await sides(conn, pool, stage, forge)
    first = await both.publishing()
    await drain(both.publisher().tick)
    await both.publishing(issue_id=first.issue_id)
    await drain(both.publisher().tick)
    (pull,) = await both.open_pulls()
    older = (await both.job(first))["pull_request"]
    (said,) = await forge.comments(both.repo, int(str(older)))
    assert f"pulls/./{pull.number}" in said.body
