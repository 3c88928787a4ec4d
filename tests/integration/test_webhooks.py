"""Webhooks over real HTTP: what is refused, with which word, and how short the wait gets; lost ones cost only time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from uuid import uuid4

import httpx
import pytest

from tests.support import rows
from tests.support.ingest import GO, IMPLEMENT, LANES, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.redact import Redactor
from tireless.services.ringing import Bell
from tireless.store.claim import Claim, RunnerId, claim_next
from tireless.store.db import Connection, Pool
from tireless.store.forges import forge_known
from tireless.store.look import Ring, listen
from tireless.web.app import Site, build
from tireless.web.server import listen as listen_on
from tireless.web.server import serve, url_of

SECRET, OTHERS = "secret-of-this-forge", "secret-of-the-other"
MIB = 1024 * 1024
RUNNER = RunnerId("r1", "h1", uuid4())
EVERYTHING = """
SELECT (SELECT count(*) FROM look) + (SELECT count(*) FROM issue) + (SELECT count(*) FROM job)
     + (SELECT count(*) FROM request)
"""


@dataclass
class Door:
    """The page of an installation with two forges, each with a secret of its own."""

    url: str
    client: httpx.AsyncClient
    repo_id: int

    async def send(
        self, body: bytes | AsyncIterator[bytes], *, signed: str | None = None, event: str = "issue_label"
    ) -> httpx.Response:
        """A delivery for the stage's forge."""
        headers = {"X-Gitea-Event-Type": event, "Content-Type": "application/json"}
        if signed is not None:
            headers["X-Gitea-Signature"] = signed
        return await self.client.post("/webhook/forge", content=body, headers=headers)

    def about(self, **changes: object) -> bytes:
        """What the forge sends about its first issue."""
        body = {
            "action": "label_updated",
            "issue": {"number": 1},
            "repository": {"id": self.repo_id, "full_name": "acme/widgets"},
            "sender": {"id": 5, "login": "alice"},
        }
        return json.dumps({**body, **changes}).encode()


def sign(body: bytes, secret: str = SECRET) -> str:
    """As a forge does."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@pytest.fixture
async def ring(pool: Pool) -> AsyncIterator[Ring]:
    """The bell of the process, as `serve` has it."""
    async with Bell(pool).running() as rung:
        yield rung


@pytest.fixture
async def door(ingest: Ingest, pool: Pool, ring: Ring) -> AsyncIterator[Door]:
    """The site on a free port, ended at the end."""
    await forge_known(ingest.conn, "other", "http://127.0.0.1:9")
    site = Site("test place", {"forge": SECRET, "other": OTHERS}, Redactor([]), ring=ring)
    stop, sock = asyncio.Event(), listen_on("127.0.0.1", 0)
    serving = asyncio.create_task(serve(build(pool, site, list), sock, stop))
    repo_id = int(str((await ingest.repository())["forge_repo_id"]))
    async with httpx.AsyncClient(base_url=url_of(sock), timeout=30) as client:
        yield Door(url_of(sock).rstrip("/"), client, repo_id)
    stop.set()
    await asyncio.wait_for(serving, 90)


# ------------------------------------------------------------------------------------------------ bad input

PUSH: dict[str, object] = {"issue": None, "ref": "refs/heads/main"}
ELSEWHERE: dict[str, object] = {"repository": {"id": 987, "full_name": "a/b"}}
REFUSED: dict[str, tuple[bytes | dict[str, object], str, int, str]] = {
    "unsigned": ({}, "none", 401, "bad_signature"),
    "empty signature": ({}, "empty", 401, "bad_signature"),
    "wrongly signed": ({}, "wrong", 401, "bad_signature"),
    "another body's": ({}, "another body's", 401, "bad_signature"),
    "another forge's secret": ({}, "another forge's", 401, "bad_signature"),
    "not JSON": (b"payload=%7B%7D", "right", 400, "unreadable"),
    "nothing": (b"", "right", 400, "unreadable"),
    "a list": (b"[]", "right", 400, "unreadable"),
    "a number beyond any": ({"issue": {"number": 2**31}}, "right", 400, "unreadable"),
    "a number of thirty digits": ({"issue": {"number": 10**30}}, "right", 400, "unreadable"),
    "a number of five thousand digits": (b'{"issue": {"number": 1%s}}' % (b"0" * 5000), "right", 400, "unreadable"),
    "number 0": ({"issue": {"number": 0}}, "right", 400, "unreadable"),
    "a number below 0": ({"issue": {"number": -4}}, "right", 400, "unreadable"),
    "a repository's id beyond any": ({"repository": {"id": 2**63, "full_name": "a/b"}}, "right", 400, "unreadable"),
    "a repository's id of 0": ({"repository": {"id": 0, "full_name": "a/b"}}, "right", 400, "unreadable"),
    "a sender's id beyond any": ({"sender": {"id": 2**63, "login": "alice"}}, "right", 400, "unreadable"),
    "no repository": (b'{"sender": {"id": 1}}', "right", 400, "unreadable"),
    "another event": (PUSH, "right", 422, "another_event"),
    "unknown repository": (ELSEWHERE, "right", 404, "unknown_repository"),
}
"""What is sent (or how it differs from a good delivery), how it is signed, and how it is answered."""


def signature(body: bytes, how: str) -> str | None:
    """What stands in the header; None: no header."""
    match how:
        case "none":
            return None
        case "empty":
            return ""
        case "wrong":
            return "0" * 64
        case "another body's":
            return sign(body + b" ")
        case "another forge's":
            return sign(body, OTHERS)
        case _:
            return sign(body)


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_hint_is_refused_with_a_reason_and_stores_nothing(
    ingest: Ingest, door: Door, name: str
) -> None:
    """4xx, a code and one line; no look, no issue, no job."""
    sent, how, status, code = REFUSED[name]
    body = door.about(**sent) if isinstance(sent, dict) else sent
    answer = await door.send(body, signed=signature(body, how))
    said = answer.json()
    assert (answer.status_code, said["code"]) == (status, code)
    assert said["message"]
    assert "\n" not in said["message"]
    assert await rows.value(ingest.conn, EVERYTHING) == 0


async def test_a_test_delivery_is_told_that_the_hook_works(ingest: Ingest, door: Door) -> None:
    """What "Test Delivery" of a forge sends, a push, is not used; who looks at the answer reads that all is well."""
    commit = "8e0ca7684454822f9e3966105d5a01cb294ec7f6"
    body = door.about(
        action=None,
        issue=None,
        ref="refs/heads/main",
        before=commit,
        after=commit,
        commits=[{"id": commit, "message": "Initial commit\n", "added": None}],
        total_commits=1,
        pusher={"id": 5, "login": "alice"},
    )
    answer = await door.send(body, signed=sign(body), event="push")
    said = answer.json()
    assert (answer.status_code, said["code"]) == (422, "another_event")
    for words in ("event push is not used", "its signature is right", "the hook works"):
        assert words in said["message"]
    assert "\n" not in said["message"]
    assert await rows.value(ingest.conn, EVERYTHING) == 0


async def test_a_hundred_megabytes_are_refused_when_they_are_announced(ingest: Ingest, door: Door) -> None:
    """Before a byte of them was sent."""
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /webhook/forge HTTP/1.1\r\nHost: {host}\r\nContent-Length: {100 * MIB}\r\n\r\n"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readline(), 90)
    assert b" 413 " in answer
    writer.close()
    await writer.wait_closed()
    assert await rows.value(ingest.conn, EVERYTHING) == 0


async def test_a_hundred_megabytes_that_just_come_are_cut(ingest: Ingest, door: Door) -> None:
    """Refused as soon as they are more than a delivery may have, with a reason."""

    async def much() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * MIB

    answer = await door.send(much(), signed="0" * 64)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert await rows.value(ingest.conn, EVERYTHING) == 0


# ------------------------------------------------------------------------------------------------ what they are for


async def hook(ingest: Ingest, door: Door) -> None:
    """The repository's hook, as `tireless init` makes it."""
    config = {"url": f"{door.url}/webhook/forge", "content_type": "json", "secret": SECRET}
    wanted = {"type": "gitea", "active": True, "events": ["issues", "issue_comment"], "config": config}
    await ingest.stage.alice.api("POST", f"/repos/{ingest.stage.path}/hooks", wanted)


async def test_from_label_to_claimed_job_without_a_poll(
    ingest: Ingest,
    door: Door,
    ring: Ring,
    conn: Connection,
    dsn: str,
    record_property: Callable[[str, object], None],
) -> None:
    """The hook wakes the poller, the job wakes the runner: no list is asked for, no schedule waited for."""
    ingest.poller = ingest.another(ring=ring)
    await hook(ingest, door)
    await ingest.poll()
    number = await ingest.ask(IMPLEMENT)
    go = await ingest.label(GO)
    await conn.execute("UPDATE repository SET poll_not_before = 'infinity'")
    wakes = listen(dsn, ["tireless_look", "tireless_lane"])
    await anext(wakes)
    asked = ingest.loopback.last_request
    began = time.monotonic()
    await ingest.stage.bob.add_labels(ingest.stage.path, number, go)
    claims: list[Claim] = []
    async with asyncio.timeout(90):
        async for wake in wakes:
            if wake.channel == "tireless_look":
                await ingest.poller.tick()
            else:
                claims = await claim_next(conn, [lane.name for lane in LANES], runner=RUNNER)
            if claims:
                break
    took_s = time.monotonic() - began
    await wakes.aclose()
    record_property("label_to_claim_s", round(took_s, 3))
    print(f"from label to claimed job: {took_s:.3f} s")  # noqa: T201 - the measurement
    assert [claim.number for claim in claims] == [number]
    seen = [one.target for one in ingest.loopback.requests(after=asked) if one.login == ingest.stage.bot.login]
    assert seen != []
    assert [target for target in seen if "/issues?" in target and "since=" not in target] == []


@pytest.mark.parametrize("lost", [False, True])
async def test_the_same_comes_of_it_with_all_hooks_lost(ingest: Ingest, door: Door, lost: bool) -> None:
    """Labels, steering, closing: seen at once by hooks or all together by the next poll, the rows end the same."""
    await hook(ingest, door)
    await ingest.poll()
    ingest.loopback.forge.deliverer.lose = lost

    async def seen() -> None:
        await ingest.loopback.run(ingest.loopback.forge.deliverer.settle)
        await ingest.conn.execute("UPDATE repository SET poll_not_before = 'infinity'")
        while await ingest.poller.tick():
            pass

    first = await ingest.ask(GO, IMPLEMENT)
    await seen()
    second = await ingest.ask(GO, IMPLEMENT, "tireless/priority/high")
    await seen()
    await ingest.ask("tireless/agent:spare", number=first)
    await ingest.stage.alice.close(ingest.stage.path, second)
    plain = await ingest.ask(GO)
    await seen()
    assert (await rows.value(ingest.conn, "SELECT count(*) FROM issue") == 0) is lost
    await ingest.poll()
    jobs = [(job["number"], job["state"], job["kind"], job["lane"], job["hold"]) for job in await ingest.jobs()]
    live = [job for job in jobs if job[1] not in ("cancelled",)]
    assert live == [(first, "pending", "implement", "spare", False)]
    assert [await ingest.code(number) for number in (first, second, plain)] == [None, "closed", "no_mode"]
    assert await ingest.looks() == []
