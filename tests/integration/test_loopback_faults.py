"""The client against everything a server can do to it, by the loopback forge's faults: errors, hangs, cuts, garbage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest
import pytest_asyncio

from tests.support.forges import *  # noqa: F403  fixtures
from tests.support.forges import FaultPlan, LoopbackForge, Stage
from tireless.domain.issue import IssueRef
from tireless.errors import ForgeDenied, ForgeError, ForgeGarbled, ForgeUnavailable, NotFound, RateLimited
from tireless.forge.base import NewPull
from tireless.forge.gitea import GiteaForge


@pytest_asyncio.fixture
async def number(stage: Stage) -> int:
    """An issue."""
    return await stage.alice.create_issue(stage.path, "Paint it", "blue")


@pytest_asyncio.fixture
async def hasty(stage: Stage) -> AsyncIterator[GiteaForge]:
    """A client that waits two seconds for an answer, which any other takes a hundredth of, and tries once."""
    made = GiteaForge(name="hasty", url=stage.url, token=stage.bot.token, timeout_s=2.0, attempts=1)
    yield made
    await made.aclose()


async def test_a_passing_error_is_tried_again(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int
) -> None:
    """Two 502 in a row and then an answer: the caller sees the answer, the forge saw three requests."""
    await loopback.fault(FaultPlan("GET", r"/issues/\d+$", "answer", status=502, times=2, body=b"<html>bad gateway"))
    before = loopback.last_request
    assert (await forge.issue(stage.repo, number)).number == number
    assert [each.status for each in loopback.requests(after=before)] == [502, 502, 200]


async def test_a_lasting_error_is_raised_with_its_cause(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int
) -> None:
    """After three tries ForgeUnavailable: the status, the path, what to do, and never the token."""
    await loopback.fault(FaultPlan("GET", r"/issues/\d+$", "answer", status=500, times=0))
    before = loopback.last_request
    with pytest.raises(ForgeUnavailable, match=r"GET /repos/.*answered 500") as failed:
        await forge.issue(stage.repo, number)
    assert len(loopback.requests(after=before)) == 3
    assert failed.value.status == 500
    assert stage.bot.token not in str(failed.value)


async def test_what_creates_is_never_sent_twice(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int
) -> None:
    """Issues, comments, labels and pull requests: one request each, though the answer was lost after the effect."""
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    await loopback.fault(FaultPlan("POST", r"/(issues|comments|pulls)$", "cut", when="after", times=0))
    before = loopback.last_request
    for call in (
        forge.create_issue(stage.repo, title="child", body="", label_ids=[]),
        forge.write_comment(stage.repo, number, "hello"),
        forge.create_pull(stage.repo, NewPull("x", "", "work", "main")),
    ):
        with pytest.raises(ForgeUnavailable, match="cannot be reached"):
            await call
    assert [each.method for each in loopback.requests(after=before)] == ["POST"] * 3
    assert [each["title"] for each in await stage.alice.issues(stage.path)] == ["child", "Paint it"]
    assert len(await stage.alice.comments(stage.path, number)) == 1
    assert len(await stage.alice.pulls(stage.path)) == 1


async def test_what_is_idempotent_survives_a_lost_answer(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int
) -> None:
    """Label on and off, closing, an edge and a deleted branch: done once, answered in the end."""
    label = await stage.label("tireless/go")
    other = await stage.alice.create_issue(stage.path, "blocker")
    await stage.bob.commit(stage.path, "a.txt", "a", new_branch="work")
    ref, on = IssueRef(stage.repo, number), IssueRef(stage.repo, other)
    calls: tuple[Callable[[], Awaitable[None]], ...] = (
        lambda: forge.set_label(stage.repo, number, label, on=True),
        lambda: forge.set_label(stage.repo, number, label, on=False),
        lambda: forge.add_dependency(ref, on),
        lambda: forge.close(on),
        lambda: forge.delete_branch(stage.repo, "work"),
    )
    for call in calls:
        fault = await loopback.fault(FaultPlan("*", r"/api/v1/", "cut", when="after", nth=1))
        if call is calls[2]:
            await fault.drop()  # the look before it is what the first request would be
            fault = await loopback.fault(FaultPlan("POST", r"/dependencies$", "cut", when="after"))
        await call()
        assert fault.fault.applied == 1
    happened = [each.kind.value for each in await forge.timeline(stage.repo, number)]
    assert happened == ["label_added", "label_removed", "dependency_added"]
    assert await forge.dependencies(ref) == ((on, True),)
    assert await forge.branch_head(stage.repo, "work") is None


async def test_retry_after_is_honoured(loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int) -> None:
    """A short one is waited for, though the client else does not wait; a long one is raised with its seconds."""
    plan = FaultPlan("GET", r"/issues/\d+$", "answer", status=429, headers={"Retry-After": "1"})
    await loopback.fault(plan)
    started = time.monotonic()
    assert (await forge.issue(stage.repo, number)).number == number
    assert time.monotonic() - started >= 1
    await loopback.fault(FaultPlan("GET", r"/issues/\d+$", "answer", status=503, headers={"Retry-After": "3600"}))
    before = loopback.last_request
    with pytest.raises(RateLimited) as limited:
        await forge.issue(stage.repo, number)
    assert limited.value.retry_after_s == 3600
    assert len(loopback.requests(after=before)) == 1


async def test_a_server_that_hangs_is_left(
    loopback: LoopbackForge, stage: Stage, hasty: GiteaForge, number: int
) -> None:
    """Within the timeout, as transient, saying that the effect is not known; the connection is free again."""
    fault = await loopback.fault(FaultPlan("GET", r"/issues/\d+$", "block"))
    with pytest.raises(ForgeUnavailable, match=r"did not answer within 2 s"):
        await hasty.issue(stage.repo, number)
    await fault.release()
    assert (await hasty.issue(stage.repo, number)).number == number


async def test_a_server_that_trickles_is_left(stage: Stage) -> None:
    """One byte now and then keeps every single read alive; the whole call still has its timeout."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        try:
            await reader.readuntil(b"\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        except (ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    slow = GiteaForge(name="slow", url=url, token="t", timeout_s=0.3, attempts=1)
    with pytest.raises(ForgeUnavailable, match="did not answer within"):
        await slow.issue(stage.repo, 1)  # it would go on for ever
    await slow.aclose()
    server.close()
    await server.wait_closed()


async def test_one_that_hangs_does_not_stop_the_others(loopback: LoopbackForge, stage: Stage, number: int) -> None:
    """While one repository's list hangs, another's is read by the same client."""
    await stage.alice.create_repository("other", org=stage.repo.owner)
    other = type(stage.repo)(stage.repo.forge, stage.repo.owner, "other")
    client = GiteaForge(name="main", url=stage.url, token=stage.bot.token, timeout_s=10, concurrency=2)
    fault = await loopback.fault(FaultPlan("GET", r"/widgets/issues", "block"))
    hanging = asyncio.create_task(client.issues(stage.repo, page=1))
    await fault.reached()
    assert (await client.issues(other, page=1)).rows == 0
    assert not hanging.done()
    await fault.release()
    assert (await hanging).rows == 1
    await client.aclose()


async def test_a_closed_port_is_unavailable(stage: Stage) -> None:
    """No server: transient, with the address and what to check."""
    nobody = GiteaForge(name="nobody", url="http://127.0.0.1:1", token="t", attempts=1)
    with pytest.raises(ForgeUnavailable, match=r"127\.0\.0\.1:1.*cannot be reached"):
        await nobody.about()
    await nobody.aclose()


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>Sign in</body></html>",
        b"",
        b"null",
        b'"text"',
        b"[]",
        b"{}",
        b'{"number": 1',
        b"\xff\x00\x01",
        b"5",
    ],
)
async def test_a_200_without_sense_is_garbled(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int, body: bytes
) -> None:
    """A login page, nothing, null, half an answer: ForgeGarbled for one thing, never "gone", never "none"."""
    await loopback.fault(FaultPlan("GET", r"/widgets", "answer", status=200, times=0, body=body))
    singles = (forge.issue(stage.repo, number), forge.repository(stage.repo), forge.branch_head(stage.repo, "main"))
    for call in singles:
        with pytest.raises(ForgeGarbled) as garbled:
            await call
        assert garbled.value.status == 200
    # An empty list of issues is said by a list alone; of the others a forge says null for none.
    lists = {
        forge.issues(stage.repo, page=1): (b"[]",),
        forge.timeline(stage.repo, number): (b"", b"null", b"[]"),
        forge.comments(stage.repo, number): (b"", b"null", b"[]"),
    }
    for each, empty in lists.items():
        if body in empty:
            assert not getattr(await each, "issues", ())
        else:
            with pytest.raises(ForgeGarbled):
                await each


async def test_half_an_answer_is_garbled(loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int) -> None:
    """A list cut in the middle by a proxy that fixed the length is not a shorter list."""
    await loopback.fault(FaultPlan("GET", r"/issues", "garble", when="after", times=0))
    with pytest.raises(ForgeGarbled):
        await forge.issues(stage.repo, page=1)


async def test_one_malformed_issue_does_not_hide_the_others(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge
) -> None:
    """Of fifty, one that cannot be read comes back as Malformed with its number; the rest are there."""
    for n in range(50):
        await stage.bob.create_issue(stage.path, f"issue {n}")

    await loopback.call(lambda: setattr(loopback.world.repos[1].issues[9], "id", 0))
    page = await forge.issues(stage.repo, page=1)
    assert (page.rows, len(page.issues)) == (50, 49)
    assert [(each.number, each.error) for each in page.malformed] == [(9, "id is 0")]


async def test_an_answer_beyond_the_limit_is_not_read_on(stage: Stage) -> None:
    """It is garbled after so many bytes, whatever length it announced."""
    number = await stage.alice.create_issue(stage.path, "long", "x" * 100_000)
    small = GiteaForge(name="small", url=stage.url, token=stage.bot.token, max_answer_bytes=50_000)
    with pytest.raises(ForgeGarbled, match="more than 50000 bytes"):
        await small.issue(stage.repo, number)
    assert (await small.about()).login is not None
    await small.aclose()


async def test_huge_bodies_hide_no_issue(loopback: LoopbackForge, stage: Stage) -> None:
    """A page too large to read is read one by one; only an issue too large by itself is Malformed; pulls likewise."""
    for n in range(6):
        await stage.mallory.create_issue(stage.path, f"long {n}", "x" * 20_000)
    await stage.mallory.create_issue(stage.path, "longer", "x" * 60_000)
    await stage.alice.create_issue(stage.path, "plain")
    small = GiteaForge(name="small", url=stage.url, token=stage.bot.token, max_answer_bytes=50_000)
    page = await small.issues(stage.repo, page=1)
    assert [each.title for each in page.issues] == ["plain", *(f"long {n}" for n in range(5, -1, -1))]
    assert (page.rows, page.total, len(page.malformed)) == (8, 8, 1)
    assert page.server_date is not None
    await loopback.call(lambda: setattr(loopback.world.rules, "page_limit", 3))
    rows = [(await small.issues(stage.repo, page=number)).rows for number in (1, 2, 3, 4)]
    assert rows == [3, 3, 2, 0]
    for n in range(7):
        await stage.bob.commit(stage.path, f"{n}.txt", "x", new_branch=f"work{n}")
        await stage.bob.create_pull(stage.path, f"pull {n}", head=f"work{n}", body="x" * (20_000 if n in (2, 3) else 1))
    assert len(await small.pulls(stage.repo)) == 7
    await small.aclose()


async def test_missing_and_broken_are_told_apart_at_500(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int
) -> None:
    """A 500 of a timeline whose issue is there stays unavailable; it takes three tries of it to say so."""
    await loopback.fault(FaultPlan("GET", r"/timeline$", "answer", status=500, times=0))
    before = loopback.last_request
    with pytest.raises(ForgeUnavailable):
        await forge.timeline(stage.repo, number)
    paths = [each.path.rpartition("/")[2] for each in loopback.requests(after=before)]
    assert paths == ["timeline", str(number), "timeline", "timeline", "timeline"]


async def test_newer_servers_answer_404_for_a_missing_issue(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge
) -> None:
    """NotFound at once, with one request."""
    await loopback.call(lambda: setattr(loopback.world.rules, "missing_issue_status", 404))
    before = loopback.last_request
    with pytest.raises(NotFound):
        await forge.timeline(stage.repo, 9999)
    assert len(loopback.requests(after=before)) == 1


@pytest.mark.parametrize(
    ("rule", "skew_s"), [("true", 0), ("+600", 600), ("-600", -600), ("absent", None), ("not a date", None)]
)
async def test_the_servers_date_as_it_comes(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, rule: str, skew_s: int | None
) -> None:
    """True, ahead, behind, absent or garbage: read, or None."""
    await loopback.call(lambda: setattr(loopback.world.rules, "date", rule))
    before = loopback.world.clock.now()
    found = (await forge.issues(stage.repo, page=1)).server_date
    after = loopback.world.clock.now()
    if skew_s is None:
        assert found is None
    else:
        assert found is not None
        assert int(before) <= found.timestamp() - skew_s <= after


async def test_times_in_another_zone_are_the_same_moments(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int
) -> None:
    """A server that writes +09:00 and takes `since` in UTC: the same stamps, the same list."""
    plain = await forge.issue(stage.repo, number)
    await loopback.call(lambda: setattr(loopback.world.rules, "utc_offset_minutes", 540))
    assert await forge.issue(stage.repo, number) == plain
    assert (await forge.issues(stage.repo, page=1, since=plain.updated_at)).rows == 1
    assert (await forge.issues(stage.repo, page=1, since=plain.updated_at + timedelta(seconds=1))).rows == 0


async def test_a_server_that_clamps_to_seven_is_read_to_the_end(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge
) -> None:
    """Labels, issues and pull requests: every page until the empty one, though none was full by our measure."""
    await loopback.call(lambda: setattr(loopback.world.rules, "page_limit", 7))
    names = {f"label {n:02}" for n in range(20)}
    for name in names:
        await stage.label(name)
    assert {each.name for each in await forge.labels(stage.repo)} == names
    for n in range(15):
        await stage.bob.create_issue(stage.path, f"issue {n}")
    rows = [(await forge.issues(stage.repo, page=page)).rows for page in (1, 2, 3, 4)]
    assert rows == [7, 7, 1, 0]
    for n in range(8):
        await stage.bob.commit(stage.path, f"{n}.txt", "x", new_branch=f"work{n}")
        await stage.bob.create_pull(stage.path, "x", head=f"work{n}")
    assert len(await forge.pulls(stage.repo)) == 8
    assert (await forge.about()).capabilities.page_limit == 7


async def test_an_endpoint_that_ignores_pages_ends(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """The same page again is the end, not a circle."""
    body = b'[{"id": 1, "name": "x", "color": "000000"}]'
    await loopback.fault(FaultPlan("GET", r"/widgets/labels", "answer", status=200, times=0, body=body))
    before = loopback.last_request
    assert [each.id for each in await forge.labels(stage.repo)] == [1]
    assert sum("/widgets/labels" in each.path for each in loopback.requests(after=before)) == 2


async def test_the_budget_ends_a_run_away(stage: Stage) -> None:
    """More than a minute's worth of requests at once: the surplus is refused here, the forge never sees it."""
    frugal = GiteaForge(name="frugal", url=stage.url, token=stage.bot.token, requests_per_minute=1, attempts=1)
    await frugal.issues(stage.repo, page=1)
    await frugal.issues(stage.repo, page=1)
    with pytest.raises(RateLimited, match="budget"):
        await frugal.issues(stage.repo, page=1)
    assert frugal.requests == 2
    await frugal.aclose()


async def test_forgejo_is_told_by_what_it_says(loopback: LoopbackForge, stage: Stage, forge: GiteaForge) -> None:
    """By `+gitea-` in its version; a Gitea has no Forgejo endpoint."""
    assert (await forge.about()).capabilities.flavour == "gitea"
    await loopback.call(lambda: setattr(loopback.world.rules, "version", "14.0.1+gitea-1.22.0"))
    about = await forge.about()
    assert (about.capabilities.flavour, about.capabilities.version) == ("forgejo", "14.0.1+gitea-1.22.0")


async def test_a_token_in_an_answer_is_not_quoted(
    loopback: LoopbackForge, stage: Stage, forge: GiteaForge, number: int
) -> None:
    """A server that repeats our token in its error message does not get it into our log."""
    body = f'{{"message": "bad token {stage.bot.token} given"}}'.encode()
    for status in (401, 422, 500):
        await loopback.fault(FaultPlan("GET", r"/issues/\d+$", "answer", status=status, times=3, body=body))
        with pytest.raises(ForgeError, match=r"bad token \*\*\* given") as failed:
            await forge.issue(stage.repo, number)
        assert stage.bot.token not in repr(failed.value)
        await loopback.call(loopback.forge.faults.clear)


async def test_no_proxy_of_the_environment_gets_the_token(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY is not obeyed unless it was asked for."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    direct = GiteaForge(name="direct", url=stage.url, token=stage.bot.token, attempts=1)
    assert (await direct.about()).login is not None
    await direct.aclose()
    asked = GiteaForge(name="asked", url=stage.url, token=stage.bot.token, attempts=1, trust_env=True)
    with pytest.raises(ForgeUnavailable):
        await asked.about()
    await asked.aclose()


async def test_a_cancelled_call_frees_its_place(loopback: LoopbackForge, stage: Stage, number: int) -> None:
    """With room for one request, a cancelled one makes room for the next."""
    narrow = GiteaForge(name="narrow", url=stage.url, token=stage.bot.token, concurrency=1, timeout_s=10)
    fault = await loopback.fault(FaultPlan("GET", r"/issues/\d+$", "block"))
    hanging = asyncio.create_task(narrow.issue(stage.repo, number))
    await fault.reached()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert (await narrow.issue(stage.repo, number)).number == number
    await narrow.aclose()


async def test_no_token_reads_what_is_public(stage: Stage, number: int) -> None:
    """Without a token a public repository is read, and nothing is written."""
    nobody = GiteaForge(name="nobody", url=stage.url, token=None, attempts=1)
    assert (await nobody.issue(stage.repo, number)).number == number
    with pytest.raises(ForgeDenied):
        await nobody.write_comment(stage.repo, number, "x")
    await nobody.aclose()
