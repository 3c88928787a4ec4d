"""A full disk under the tables: what is written fails whole, is told as repeatable, and works once there is room.

The tables lie in a small file system of their own, made for the test; only root may mount one.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import rows
from tireless.domain.job import Kind
from tireless.domain.outcome import Outcome
from tireless.errors import StoreUnavailable
from tireless.store.claim import RunnerId, claim_next, renew_claim
from tireless.store.db import Connection, connect, with_database
from tireless.store.jobs import NewJob, enqueue
from tireless.store.migrate import migrate
from tireless.store.record import Answer, RecordedResult, append_output, record_result
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims

ME = RunnerId("r1", "h1", uuid4())
NAME = "tireless_test_full_disk"


@pytest.fixture
def volume() -> Iterator[Path]:
    """A file system of 40 MB, mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system to fill")
    with tempfile.TemporaryDirectory(prefix="tireless-disk-") as at:
        Path(at).chmod(0o711)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", at], capture_output=True, text=True
        )
        if mounted.returncode:
            pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(at)
        finally:
            subprocess.run(["umount", at], check=True)


@pytest.fixture
async def disk(volume: Path, server_url: str) -> AsyncIterator[tuple[Connection, Path]]:
    """A migrated database whose tables lie on it, a connection, and a file that can take all the room there is."""
    async with await connect(server_url, application_name="tireless test") as admin:
        owner = Path(str(await rows.value(admin, "SELECT current_setting('data_directory')"))).stat()
        tables = volume / "tables"
        tables.mkdir(mode=0o700)
        os.chown(tables, owner.st_uid, owner.st_gid)
        await admin.execute(f"CREATE TABLESPACE {NAME} LOCATION '{tables}'".encode())
        try:
            await admin.execute(f"CREATE DATABASE {NAME} TABLESPACE {NAME}".encode())
            url = with_database(server_url, NAME)
            await migrate(url)
            async with await connect(url, application_name="tireless test") as conn:
                yield conn, volume / "filler"
        finally:
            (volume / "filler").unlink(missing_ok=True)
            await admin.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)".encode())
            await admin.execute(f"DROP TABLESPACE {NAME}".encode())


def fill(filler: Path) -> None:
    """Take every byte that is left."""
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            return


async def rest(conn: Connection) -> list[dict[str, object]]:
    """Everything that an act could have changed by half."""
    query = """
    SELECT j.id, j.state, j.claim_token, j.attempts, j.claim_no, j.parked,
           (SELECT count(*) FROM job_event e WHERE e.job_id = j.id) AS events,
           (SELECT count(*) FROM attempt a WHERE a.job_id = j.id) AS begun,
           (SELECT count(*) FROM attempt a WHERE a.job_id = j.id AND a.ended_at IS NOT NULL) AS ended,
           (SELECT count(*) FROM attempt a WHERE a.job_id = j.id AND a.recorded_at IS NOT NULL) AS recorded,
           (SELECT count(*) FROM child c WHERE c.job_id = j.id) AS children,
           (SELECT count(*) FROM look) AS looks
      FROM job j ORDER BY j.id
    """
    return await rows.rows(conn, query)


async def refusal(act: Awaitable[object]) -> str | None:
    """Why the database could not do it; None: it did."""
    try:
        await act
    except StoreUnavailable as error:
        return str(error)
    return None


async def until_full(conn: Connection, act: Callable[[int], Awaitable[object]], tries: int = 3000) -> None:
    """Repeat the act until there is no room for it: it says so, that it may be repeated, and has changed nothing."""
    for number in range(tries):
        before = await rest(conn)
        if (refused := await refusal(act(number))) is not None:
            assert "could not extend" in refused
            assert "can be repeated" in refused
            assert await rest(conn) == before
            return
    raise AssertionError(f"after {tries} times there still was room")


async def test_no_act_is_done_by_half(disk: tuple[Connection, Path]) -> None:
    """Enqueue, claim, output, record and settle on a full disk; renewals and sweeps go on, and then all is well."""
    conn, filler = disk
    for number in range(1, 400):
        await rows.job(conn, number=number)
    spare = [await rows.issue(conn, number=number) for number in range(400, 700)]
    asked = [await rows.request(conn, issue_id) for issue_id in spare]
    place = await rows.value(conn, "SELECT id FROM repository")
    (held,) = await claim_next(conn, [rows.LANE], runner=ME)
    (done,) = await claim_next(conn, [rows.LANE], runner=ME)
    (dead,) = await claim_next(conn, [rows.LANE], runner=ME)
    await conn.execute("VACUUM FULL")  # no half-empty page is left for anybody
    fill(filler)
    noise = os.urandom(30_000).hex()

    async def enqueue_one(number: int) -> None:
        await enqueue(conn, [NewJob(spare[number], int(str(place)), asked[number], Kind.IMPLEMENT, rows.LANE)])

    async def say(number: int) -> None:
        assert await append_output(conn, held.attempt_id, held.token, f"{number} {noise}"[:16_000])

    async def record(number: int) -> None:
        result = {"outcome": "done", "text": os.urandom(60_000).hex()}
        assert await record_result(conn, done.job_id, done.token, RecordedResult(result=result)) is Answer.DONE

    async def claim(number: int) -> None:
        assert await claim_next(conn, [rows.LANE], runner=ME)

    ending = Ending(outcome=Outcome.FAILED, output_head=noise[:60_000], output_tail=noise[:60_000])

    async def end(number: int) -> None:
        assert await settle(conn, held.job_id, held.token, ending) is Answer.DONE

    for act in (say, record, enqueue_one):
        await until_full(conn, act)
    # In the page that holds the row: neither inserts nor VACUUM take the room that fillfactor keeps for updates.
    # Claims do take it, and it comes back once nobody, an autovacuum for one, looks at what was there before them:
    # nothing to build a test on.
    assert held.token in await renew_claim(conn, [(held.job_id, held.token)])
    await until_full(conn, claim)
    await until_full(conn, end, tries=1)
    filler.unlink()
    await end(0)
    assert await settle(conn, held.job_id, held.token, ending) is Answer.ALREADY
    await record(0)
    assert await settle(conn, done.job_id, done.token, Ending(outcome=Outcome.DONE)) is Answer.DONE
    await rows.expire(conn, dead.job_id)
    assert await expire_stale_claims(conn) == 1
    assert (await rows.row(conn, "job", held.job_id))["reason"] == "rejected"
    assert (await rows.row(conn, "job", done.job_id))["state"] == "publishing"
    assert (await rows.row(conn, "job", dead.job_id))["state"] == "pending"
