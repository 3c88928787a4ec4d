"""What one issue may have within an hour: who takes a label off and puts it on again buys no run with each of them."""

from __future__ import annotations

from dataclasses import replace

from tests.support import rows
from tests.support.ingest import GO, IMPLEMENT, RULES, Ingest
from tests.support.ingested import *  # noqa: F403 - the fixtures
from tireless.domain.labels import LabelScheme
from tireless.domain.outcome import Outcome
from tireless.store.explaining import explain
from tireless.store.steer import approve, rerun

QUESTION = (
    "2 requests of this issue were worked on within the last hour, and at most 2 may be "
    "(limits.max_requests_per_issue_per_hour). Shall this one be worked on as well?"
)


async def again(ingest: Ingest, number: int) -> dict[str, object]:
    """The opt-in off and on again, a minute later; the issue's newest job after that."""
    await ingest.let_pass(60)
    await ingest.unlabel(number, GO)
    await ingest.ask(GO, number=number)
    await ingest.poll()
    return (await ingest.jobs(number))[-1]


async def worked_on_twice(ingest: Ingest, *, per_hour: int | None = 2) -> int:
    """An issue of which two requests were worked on just now."""
    ingest.poller = ingest.another(replace(RULES, per_hour=per_hour))
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    await ingest.deliver()
    assert (await again(ingest, number))["state"] == "pending"
    await ingest.deliver()
    return number


async def an_hour_later(ingest: Ingest) -> None:
    """All claims are an hour older."""
    await ingest.conn.execute("UPDATE attempt SET claimed_at = claimed_at - interval '1 hour'")


async def test_the_next_request_waits_for_a_person(ingest: Ingest) -> None:
    """It makes a job, parked with a question that says why; `explain` names it, and approving it lets it go on."""
    number = await worked_on_twice(ingest)
    job = await again(ingest, number)
    assert (job["state"], job["reason"], job["question"]) == ("waiting", "asked_too_often", QUESTION)
    found = await explain(ingest.conn, ingest.stage.path, number, scheme=LabelScheme())
    assert found.first is not None
    assert found.first.gate.code == "asked_too_often"
    assert "max_requests_per_issue_per_hour" in found.first.sentence
    await ingest.poll(full=True)
    assert (await ingest.jobs(number))[-1]["reason"] == "asked_too_often"
    assert await approve(ingest.conn, int(str(job["id"])), "ada") == "pending"
    await ingest.deliver()


async def test_asking_on_and_on_lets_nothing_go_on_within_the_hour(ingest: Ingest) -> None:
    """The parked job takes newer requests over and stays parked; asked for when there is room again, it goes on."""
    number = await worked_on_twice(ingest)
    first = await again(ingest, number)
    second = await again(ingest, number)
    assert (second["id"], second["reason"]) == (first["id"], "asked_too_often")
    assert second["request_id"] != first["request_id"]
    await an_hour_later(ingest)
    assert (await again(ingest, number))["state"] == "pending"


async def test_a_job_that_fails_is_not_tried_for_ever_by_asking_anew(ingest: Ingest) -> None:
    """Asking again gives a waiting job all its attempts back, as often as one issue may have."""
    ingest.poller = ingest.another(replace(RULES, per_hour=2))
    number = await ingest.ask(GO, IMPLEMENT)
    await ingest.poll()
    for _ in range(2):
        await ingest.settle(await ingest.claim(), Outcome.AGENT_ERROR)
        job = await again(ingest, number)
    assert (job["state"], job["reason"], job["attempts"]) == ("waiting", "asked_too_often", 0)
    assert len(await ingest.jobs(number)) == 1


async def test_what_cost_nothing_does_not_count(ingest: Ingest) -> None:
    """Neither requests that no runner has taken, nor retries of one, nor what an operator runs again."""
    ingest.poller = ingest.another(replace(RULES, per_hour=2))
    number = await ingest.ask(GO, IMPLEMENT)
    for _ in range(3):
        assert (await again(ingest, number))["state"] == "pending"
    for _ in range(2):
        await ingest.settle(await ingest.claim(), Outcome.SHUTDOWN)
    claim = await ingest.deliver()
    await rerun(ingest.conn, claim.job_id, "ada")
    await ingest.deliver()
    assert (await again(ingest, number))["state"] == "pending"


async def test_it_may_be_switched_off(ingest: Ingest) -> None:
    """With 0 every request is worked on."""
    number = await worked_on_twice(ingest, per_hour=0)
    assert (await again(ingest, number))["state"] == "pending"
    assert await rows.value(ingest.conn, "SELECT count(*) FROM job WHERE parked IS NOT NULL") == 0
