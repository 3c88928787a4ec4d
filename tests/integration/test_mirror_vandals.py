"""The bot's comment changed or deleted by a person: whatever next reads the issue's timeline has it mended."""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.support import rows
from tests.support.ingest import GO, IMPLEMENT, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tests.support.telling import drain
from tireless.domain.comments import Voice
from tireless.domain.issue import Comment
from tireless.domain.marker import comment_hash, own_comments
from tireless.services.mirror import Mirror
from tireless.store.comparing import forge_shows
from tireless.store.look import write_look


def mirror_of(ingest: Ingest) -> Mirror:
    """A mirror that writes at once, whatever it wrote before."""
    forges = {ingest.forge.name: ingest.forge}
    return Mirror(ingest.pool, forges, voice=Voice(), edit_every_s=0.0, first_comment_after_s=0.0)


async def told(ingest: Ingest, number: int) -> Comment:
    """The bot's only status comment."""
    about = await ingest.forge.about()
    assert about.login is not None
    ((comment, _),) = own_comments(await ingest.forge.comments(ingest.stage.repo, number), about.login.id, number)
    return comment


async def asked(ingest: Ingest, mirror: Mirror) -> tuple[int, Comment]:
    """An issue that waits for its turn, told of; its number and the comment."""
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await drain(mirror.tick)
    return number, await told(ingest, number)


async def vandalise(ingest: Ingest, comment: Comment) -> None:
    """An administrator of the repository writes something else into the bot's comment; no list shows that."""
    path = f"/repos/{ingest.stage.path}/issues/comments/{comment.id}"
    await ingest.stage.alice.api("PATCH", path, {"body": "Work is done, nothing to see."})


async def test_an_edited_comment_of_a_live_job_is_mended_after_a_full_scan(ingest: Ingest) -> None:
    """Its timeline is read there; a comment that says what was told is left alone, and no request is made for it."""
    mirror = mirror_of(ingest)
    number, comment = await asked(ingest, mirror)
    await ingest.poll(full=True)
    assert not await mirror.tick()
    await vandalise(ingest, comment)
    await ingest.poll(full=True)
    await drain(mirror.tick)
    assert (await told(ingest, number)).body == comment.body
    assert not await mirror.tick()


async def test_a_deleted_comment_is_made_anew_when_somebody_else_comments(ingest: Ingest) -> None:
    """A comment moves the issue's stamp, and so the next poll reads it."""
    mirror = mirror_of(ingest)
    number, comment = await asked(ingest, mirror)
    await ingest.stage.alice.api("DELETE", f"/repos/{ingest.stage.path}/issues/comments/{comment.id}")
    await ingest.stage.bob.comment(ingest.stage.path, number, "Where is it?")
    await ingest.poll()
    await drain(mirror.tick)
    again = await told(ingest, number)
    assert again.body == comment.body
    assert again.id > comment.id


async def test_a_comment_of_an_ended_job_is_mended_when_its_issue_is_looked_at(ingest: Ingest) -> None:
    """A webhook about the comment writes such a look; its labels still stand there."""
    mirror = mirror_of(ingest)
    number, _ = await asked(ingest, mirror)
    await ingest.deliver()
    await ingest.poller.tick()
    await drain(mirror.tick)
    comment = await told(ingest, number)
    await vandalise(ingest, comment)
    await write_look(ingest.conn, ingest.repository_id, number, why="webhook issue_comment edited")
    await drain(ingest.poller.tick)
    await drain(mirror.tick)
    assert (await told(ingest, number)).body == comment.body


async def test_what_was_read_before_the_mirror_wrote_makes_nothing_due(ingest: Ingest) -> None:
    """A timeline older than the last telling shows the text before it, which is nobody's doing."""
    _, comment = await asked(ingest, mirror_of(ingest))
    ((issue_id, told_at),) = [
        (int(str(row["issue_id"])), row["told_at"])
        for row in await rows.rows(ingest.conn, "SELECT issue_id, told_at FROM mirror")
    ]
    assert isinstance(told_at, datetime)
    before, after = told_at - timedelta(seconds=1), told_at + timedelta(seconds=1)
    shown = {comment.id: comment_hash(comment.body)}
    assert not await forge_shows(ingest.conn, issue_id, ["queued"], comments={}, asked_at=before)
    assert not await forge_shows(ingest.conn, issue_id, ["queued"], comments=shown, asked_at=after)
    assert not await forge_shows(ingest.conn, issue_id, ["queued"], asked_at=after), "nobody looked"
    assert await forge_shows(ingest.conn, issue_id, ["queued"], comments={}, asked_at=after)
    assert not await forge_shows(ingest.conn, issue_id, ["queued"], comments={}, asked_at=after), "due already"
