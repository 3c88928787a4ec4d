"""The page, health, metrics and webhooks over real HTTP on a loopback port, with a real database behind them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.support import rows
from tireless.redact import Redactor
from tireless.store.db import Connection, Pool
from tireless.store.db import pool as open_pool
from tireless.web.app import Site, build
from tireless.web.health import Pulse
from tireless.web.server import listen, serve, url_of

SECRET = "hook-secret-of-the-test"
TOKEN = "a-token-that-must-not-show"


@dataclass
class Web:
    """A running site and how its loops are said to stand."""

    client: httpx.AsyncClient
    pulses: list[Pulse] = field(default_factory=list)


def pulse(*, ok: bool = True, started: bool = True) -> Pulse:
    """One loop's pulse."""
    return Pulse(name="poller", ok=ok, started=started, age_s=1.5, failures=0, error=None)


async def site(pool: Pool) -> AsyncIterator[Web]:
    """The site on a free port, ended at the end."""
    pulses = [pulse()]
    about = Site("test place", {rows.FORGE: SECRET, "other": None}, Redactor([TOKEN]), hosts=["tireless.example"])
    app = build(pool, about, lambda: pulses)
    stop = asyncio.Event()
    sock = listen("127.0.0.1", 0)
    serving = asyncio.create_task(serve(app, sock, stop))
    async with httpx.AsyncClient(base_url=url_of(sock), timeout=30) as client:
        yield Web(client, pulses)
    stop.set()
    await asyncio.wait_for(serving, 90)


@pytest.fixture
async def web(pool: Pool) -> AsyncIterator[Web]:
    """The site over this test's database."""
    async for found in site(pool):
        yield found


# ------------------------------------------------------------------------------------------------ health


async def test_health_rests_on_the_pulses(web: Web) -> None:
    """200 while every loop's last success is recent, 503 as soon as one is not."""
    assert (await web.client.get("/healthz")).status_code == 200
    web.pulses[:] = [pulse(), pulse(ok=False)]
    answer = await web.client.get("/healthz")
    assert answer.status_code == 503
    assert [each["ok"] for each in answer.json()["loops"]] == [True, False]


async def test_ready_once_every_loop_has_succeeded(web: Web) -> None:
    """Before its first success a loop keeps the process from being ready, by name."""
    web.pulses[:] = [pulse(started=False)]
    answer = await web.client.get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["poller has not succeeded yet"])
    web.pulses[:] = [pulse()]
    assert (await web.client.get("/readyz")).status_code == 200


async def test_without_a_database_the_process_lives_but_is_not_ready() -> None:
    """An unreachable database: healthy, not ready, pages and metrics say so, nobody is answered with a traceback."""
    async with open_pool("postgresql://t@127.0.0.1:1/d", min_size=0, application_name="test") as dead:
        async for web in site(dead):
            assert (await web.client.get("/healthz")).status_code == 200
            answer = await web.client.get("/readyz")
            assert answer.status_code == 503
            assert re.fullmatch(r"the database does not answer: \w.+", answer.json()["missing"][0])


# ------------------------------------------------------------------------------------------------ the page


async def test_the_page_shows_lanes_and_jobs(web: Web, conn: Connection) -> None:
    """Lanes with their counts, live jobs and ended ones, each job with a page of its own."""
    made = await rows.job(conn, state="waiting", parked="needs_input")
    claimed = await rows.job(conn, state="claimed")
    done = await rows.job(conn, state="delivered")
    page = (await web.client.get("/")).text
    for job in (made, claimed, done):
        assert f'href="/jobs/{job.job_id}"' in page
    assert "1 running" in page
    assert "1 for a person" in page
    assert rows.LANE in page
    answer = await web.client.get(f"/jobs/{claimed.job_id}")
    assert answer.status_code == 200
    assert "<strong>claimed</strong>" in answer.text


async def test_what_strangers_wrote_is_shown_as_text(web: Web, conn: Connection) -> None:
    """A title with markup and a link that is none of the web: escaped, dead, and no script could run anyway."""
    made = await rows.job(conn)
    await rows.change(conn, "issue", made.issue_id, title="<script>alert(1)</script>", url="javascript:alert(2)")
    for path in ("/", f"/jobs/{made.job_id}"):
        answer = await web.client.get(path)
        assert "<script" not in answer.text
        assert "&lt;script&gt;alert(1)" in answer.text
        assert "javascript:" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_no_secret_shows_on_a_page(web: Web, conn: Connection) -> None:
    """A token that got into a stored text is masked before it leaves."""
    made = await rows.job(conn)
    await rows.change(conn, "issue", made.issue_id, title=f"my {TOKEN} is")
    page = (await web.client.get("/")).text
    assert TOKEN not in page
    assert "[redacted]" in page


@pytest.mark.parametrize("number", ["999", str(2**63), "1" + "0" * 5000])
async def test_a_job_that_does_not_exist_is_a_sentence(web: Web, number: str) -> None:
    """404, with what to do instead; also for a number that no database holds."""
    answer = await web.client.get(f"/jobs/{number}")
    assert answer.status_code == 404
    assert f"there is no job {number[:20]}" in answer.text
    assert len(answer.text) < 5000


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8474", 200),
        ("localhost", 200),
        ("[::1]:8474", 200),
        ("tireless.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
async def test_foreign_names_are_refused(web: Web, host: str, status: int) -> None:
    """A name somebody points at this machine must not make his pages read ours."""
    assert (await web.client.get("/", headers={"Host": host})).status_code == status


# ------------------------------------------------------------------------------------------------ metrics


async def test_metrics_count_the_rows(web: Web, conn: Connection) -> None:
    """Gauges by lane and state, holds, ages and pulses; what is gone from the rows is gone from the next scrape."""
    made = await rows.job(conn)
    await rows.job(conn, state="claimed")
    await rows.insert(conn, "lane_hold", lane=rows.LANE, source="operator", reason="test", held_by="me")
    text = (await web.client.get("/metrics")).text
    assert f'tireless_lane_jobs{{lane="{rows.LANE}",state="pending"}} 1.0' in text
    assert f'tireless_lane_jobs{{lane="{rows.LANE}",state="claimed"}} 1.0' in text
    assert f'tireless_lane_held{{lane="{rows.LANE}"}} 1.0' in text
    assert 'tireless_loop_ok{loop="poller"} 1.0' in text
    assert "tireless_database_up 1.0" in text
    async with conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await conn.execute("SELECT 1")
        held = (await web.client.get("/metrics")).text
    assert 'tireless_oldest_snapshot_transactions{kind="session",name="tireless test"}' in held
    await conn.execute("DELETE FROM job WHERE id = %(id)s", {"id": made.job_id})
    await conn.execute("DELETE FROM lane_hold")
    text = (await web.client.get("/metrics")).text
    assert f'tireless_lane_jobs{{lane="{rows.LANE}",state="pending"}} 0.0' in text
    assert f'tireless_lane_held{{lane="{rows.LANE}"}} 0.0' in text


async def test_metrics_tell_how_long_a_job_has_waited_for_its_turn(web: Web, conn: Connection) -> None:
    """The age of the oldest pending job, for whoever alerts on it; nothing pending is nought."""
    made = await rows.job(conn)
    then = datetime.now(UTC) - timedelta(hours=2)
    await rows.change(conn, "job", made.job_id, created_at=then, pending_at=then)
    assert 7200 <= await oldest_pending(web) < 7300
    # What waited for a person has its turn from then on.
    await rows.change(conn, "job", made.job_id, hold=True)
    assert await oldest_pending(web) == 0
    await rows.change(conn, "job", made.job_id, hold=False)
    assert await oldest_pending(web) < 600
    await conn.execute("DELETE FROM job")
    assert await oldest_pending(web) == 0


async def test_what_is_worth_an_alert_is_there(web: Web, conn: Connection) -> None:
    """Every expression that docs/operating.md shows names a metric that a scrape has, with its label."""
    await rows.job(conn)
    text = (await web.client.get("/metrics")).text
    shown = re.findall(
        r"^\| `(.*(tireless_\w+)(\{.*\})?.*) [=>]+ \d+` \|", (rows.ROOT / "docs/operating.md").read_text(), re.M
    )
    assert len(shown) >= 8
    told = {line.rsplit(" ", 1)[0] for line in text.splitlines()}
    missing = [
        where
        for where, name, label in shown
        if not any(line == name + label or (not label and line.startswith(name + "{")) for line in told)
    ]
    assert missing == []


async def oldest_pending(web: Web) -> float:
    """What a scrape says of it, in seconds."""
    text = (await web.client.get("/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith('tireless_age_seconds{what="oldest_pending"}'))
    return float(line.split()[-1])


# ------------------------------------------------------------------------------------------------ webhooks


def delivery(repo_id: int, number: int = 7, *, sender: int = 5, **more: object) -> bytes:
    """What a forge sends about an issue."""
    body = {
        "action": "label_updated",
        "issue": {"number": number},
        "repository": {"id": repo_id, "full_name": rows.REPO},
        "sender": {"id": sender, "login": "alice"},
    }
    return json.dumps({**body, **more}).encode()


async def send(web: Web, body: bytes, *, secret: str = SECRET, forge: str = rows.FORGE) -> httpx.Response:
    """A delivery, signed."""
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Gitea-Signature": signature, "X-Gitea-Event": "issues", "Content-Type": "application/json"}
    return await web.client.post(f"/webhook/{forge}", content=body, headers=headers)


async def watched(conn: Connection) -> tuple[int, int]:
    """A watched repository: our id and the forge's."""
    repository_id = await rows.repository(conn)
    row = await rows.row(conn, "repository", repository_id)
    return repository_id, int(str(row["forge_repo_id"]))


async def test_a_webhook_notes_a_look_and_wakes(web: Web, conn: Connection, pool: Pool) -> None:
    """A signed delivery about an issue is one look, due at once, and a notification; twice is the same as once."""
    repository_id, repo_id = await watched(conn)
    await conn.execute("LISTEN tireless_look")
    for _ in range(2):
        assert (await send(web, delivery(repo_id))).status_code == 202
    looks = await rows.rows(conn, "SELECT repository_id, number, why, not_before FROM look")
    assert [(each["repository_id"], each["number"], each["why"]) for each in looks] == [
        (repository_id, 7, "webhook issues label_updated")
    ]
    async for heard in conn.notifies(timeout=90, stop_after=1):
        assert heard.channel == "tireless_look"
    async with pool.connection() as other:
        assert await rows.value(other, "SELECT count(*) FROM look WHERE not_before = '-infinity'") == 1


async def test_a_bad_signature_stores_nothing(web: Web, conn: Connection) -> None:
    """Unsigned, wrongly signed, signed for another forge, or for one without a secret: refused with a reason."""
    _, repo_id = await watched(conn)
    body = delivery(repo_id)
    refused = {
        "wrong": await send(web, body, secret="another-secret"),
        "none": await web.client.post(f"/webhook/{rows.FORGE}", content=body),
        "empty": await web.client.post(f"/webhook/{rows.FORGE}", content=body, headers={"X-Gitea-Signature": ""}),
        "no secret here": await send(web, body, forge="other"),
        "no such forge": await send(web, body, forge="nobody"),
    }
    statuses = {name: (answer.status_code, answer.json()["code"]) for name, answer in refused.items()}
    assert statuses == {
        "wrong": (401, "bad_signature"),
        "none": (401, "bad_signature"),
        "empty": (401, "bad_signature"),
        "no secret here": (403, "no_secret"),
        "no such forge": (404, "unknown_forge"),
    }
    assert await rows.value(conn, "SELECT count(*) FROM look") == 0


async def test_what_is_no_issue_is_answered_and_forgotten(web: Web, conn: Connection) -> None:
    """Pull requests, pushes, unwatched repositories, broken bodies: an answer each, and no look."""
    _, repo_id = await watched(conn)
    pull = delivery(repo_id, pull_request={"number": 7})
    push = delivery(repo_id, issue=None)
    answers = [
        await send(web, pull),
        await send(web, push),
        await send(web, delivery(repo_id + 1000)),
        await send(web, b"not json"),
        await send(web, b"[]"),
    ]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [
        (200, "nothing_to_look_at"),
        (422, "another_event"),
        (404, "unknown_repository"),
        (400, "unreadable"),
        (400, "unreadable"),
    ]
    assert await rows.value(conn, "SELECT count(*) FROM look") == 0


async def test_the_bots_own_acts_wake_nobody(web: Web, conn: Connection) -> None:
    """A delivery whose sender is the bot is acknowledged and ignored: it never wakes itself."""
    _, repo_id = await watched(conn)
    await rows.change(conn, "forge", rows.FORGE, bot_id=99, bot_login="bot")
    answer = await send(web, delivery(repo_id, sender=99))
    assert (answer.status_code, answer.json()["code"]) == (200, "own")
    assert await rows.value(conn, "SELECT count(*) FROM look") == 0


async def test_a_body_without_end_is_cut(web: Web, conn: Connection) -> None:
    """More than a delivery may have is refused before it is read whole."""
    await watched(conn)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 1024 * 1024

    answer = await web.client.post(f"/webhook/{rows.FORGE}", content=endless())
    assert answer.status_code == 413
