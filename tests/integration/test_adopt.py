"""Which pushed branch the rows let an attempt adopt: what this job recorded under its lease, or what no row knows."""

from __future__ import annotations

from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.support import rows
from tireless.domain.job import State
from tireless.domain.outcome import Outcome
from tireless.store import deliver
from tireless.store.adopt import Adopted, Offer, adopt
from tireless.store.claim import RunnerId, claim_next
from tireless.store.db import Connection
from tireless.store.record import Answer
from tireless.store.settle import Ending, settle
from tireless.store.sweep import expire_stale_claims

ME = RunnerId("r1", "h1", uuid4())
COMMIT, OTHER = "a" * 40, "b" * 40
UNKNOWN = "tireless/1-paint.00000000"


class Case:
    """A job whose first attempt recorded COMMIT for a branch and came to nothing; the second one runs."""

    def __init__(self, conn: Connection, made: rows.Made, branch: str) -> None:
        self.conn = conn
        self.made = made
        self.branch = branch

    async def attempts(self) -> list[dict[str, object]]:
        query = "SELECT * FROM attempt WHERE job_id = %(id)s ORDER BY claim_no"
        return await rows.rows(self.conn, query, id=self.made.job_id)

    async def first(self, **columns: object) -> None:
        await rows.change(self.conn, "attempt", (await self.attempts())[0]["id"], **columns)

    async def adopt(self, *offers: tuple[str, str]) -> object:
        """Claim the job and offer these."""
        (claim,) = await claim_next(self.conn, ["claude"], runner=ME)
        assert claim.job_id == self.made.job_id
        return await adopt(self.conn, claim.job_id, claim.token, [Offer(*each) for each in offers])


@pytest.fixture
async def case(conn: Connection) -> Case:
    """The ground most cases stand on."""
    made = await rows.job(conn, claim_no=1, attempts=1)
    row = await rows.attempt(conn, made.job_id, ended_at=await now(conn), outcome="retry", burned=True)
    branch = f"tireless/1-paint.{str(row['uid'])[:8]}"
    await rows.change(
        conn, "attempt", row["id"],
        recorded_at=row["claimed_at"], commit_sha=COMMIT, branch=branch, summary="Painted.", base_sha=OTHER,
        result=Jsonb({"session": "s"}),
        pr_title="Paint", pr_body="Red.", pr_draft=True,
    )  # fmt: skip
    return Case(conn, made, branch)


async def now(conn: Connection) -> object:
    return await rows.value(conn, "SELECT clock_timestamp()")


async def test_recorded_work_is_adopted_whole(case: Case) -> None:
    """The second attempt has what the first one recorded: commit, branch, text; it says so, and stays claimed."""
    assert await case.adopt((UNKNOWN, COMMIT), (case.branch, COMMIT)) == Adopted(case.branch, COMMIT, 1, "Painted.")
    first, second = await case.attempts()
    same = ("commit_sha", "branch", "base_sha", "pr_title", "pr_body", "pr_draft", "result", "summary")
    assert [second[name] for name in same] == [first[name] for name in same]
    assert second["pushed_at"] is not None
    assert (await rows.row(case.conn, "job", case.made.job_id))["state"] == "claimed"
    assert (await rows.events(case.conn, case.made.job_id))[-1] == ("adopt", "claimed", "claimed", None)


async def test_adopting_may_be_said_twice(case: Case) -> None:
    """When the reply to the commit was lost, saying it again answers the same and tells nothing twice."""
    (claim,) = await claim_next(case.conn, ["claude"], runner=ME)
    offers = [Offer(case.branch, COMMIT)]
    answers = [await adopt(case.conn, claim.job_id, claim.token, offers) for _ in range(2)]
    assert answers[0] == answers[1] == Adopted(case.branch, COMMIT, 1, "Painted.")
    assert [event[0] for event in await rows.events(case.conn, claim.job_id)].count("adopt") == 1


async def test_who_lost_the_claim_adopts_nothing(case: Case) -> None:
    """A token that was taken back writes nothing."""
    (claim,) = await claim_next(case.conn, ["claude"], runner=ME)
    assert await adopt(case.conn, claim.job_id, uuid4(), [Offer(case.branch, COMMIT)]) is Answer.LOST
    assert (await case.attempts())[1]["recorded_at"] is None


async def test_recorded_branch_on_another_commit_is_not_ours(case: Case) -> None:
    """Somebody moved the branch: what is on it now was recorded by nobody."""
    assert await case.adopt((case.branch, OTHER)) is None


async def test_push_without_a_record_is_never_used(case: Case) -> None:
    """An attempt that is known and recorded nothing had lost its claim, whatever its late push brought."""
    await case.first(recorded_at=None, commit_sha=None, branch=None)
    assert await case.adopt((case.branch, COMMIT)) is None


async def test_attempt_of_another_job_gives_nothing(case: Case) -> None:
    """Recorded, but by another job: its request was another one, and it is not an unknown one either."""
    await case.first(job_id=(await rows.job(case.conn, state="delivered")).job_id, claim_no=7)
    assert await case.adopt((case.branch, COMMIT)) is None


async def test_work_whose_record_was_lost_is_adopted(case: Case) -> None:
    """No attempt is known that could have made the branch: the database is older than it. The publisher looks first
    whether its pull request was made as well."""
    await case.conn.execute("DELETE FROM attempt")
    assert await case.adopt((UNKNOWN, OTHER)) == Adopted(UNKNOWN, OTHER, None, "")
    (mine,) = await case.attempts()
    assert (mine["commit_sha"], mine["branch"], mine["pr_title"]) == (OTHER, UNKNOWN, None)
    assert mine["pr_sent_at"] is not None


async def test_newest_unrecorded_work_is_taken(case: Case) -> None:
    """Of several branches without a record the first that is offered is taken: the newest commit."""
    await case.conn.execute("DELETE FROM attempt")
    newest = "tireless/1-paint.ffffffff"
    assert await case.adopt((newest, OTHER), (UNKNOWN, COMMIT)) == Adopted(newest, OTHER, None, "")


async def test_what_people_said_since_is_for_an_agent(case: Case) -> None:
    """The text was edited after the attempt had begun: its work answers another text."""
    await rows.insert(case.conn, "job_event", job_id=case.made.job_id, who="intake", what="edited", to_state="pending")
    assert await case.adopt((case.branch, COMMIT)) is None


async def test_answered_question_is_for_an_agent(case: Case) -> None:
    """A later attempt asked a question: the earlier work knows nothing of the answer."""
    await rows.change(case.conn, "job", case.made.job_id, claim_no=2)
    at = await now(case.conn)
    await rows.attempt(case.conn, case.made.job_id, ended_at=at, outcome="needs_input", burned=True)
    assert await case.adopt((case.branch, COMMIT)) is None


async def test_adopted_work_that_was_not_found_is_not_adopted_again(case: Case) -> None:
    """The publisher did not find an adopted branch where git had: the next attempt runs its agent."""
    assert await case.adopt((case.branch, COMMIT)) is not None
    await case.conn.execute(
        "UPDATE job SET state = 'pending', claimed_by = NULL, claimed_host = NULL, claim_token = NULL,"
        " claimed_at = NULL, claim_expires_at = NULL"
    )
    assert await case.adopt((case.branch, COMMIT)) is None


@pytest.mark.parametrize("ends", [State.DELIVERED, State.FAILED, State.CANCELLED])
async def test_adopted_branch_is_kept_with_what_was_delivered(case: Case, ends: State) -> None:
    """Two attempts name the adopted branch: kept for both where it was, or could not be, delivered, else for none."""
    assert await case.adopt((case.branch, COMMIT)) is not None
    first, second = await case.attempts()
    assert await deliver.branches_left(case.conn, [rows.FORGE], limit=9) == ()
    await case.conn.execute(
        "UPDATE job SET state = %(state)s, finished_at = clock_timestamp(), claimed_by = NULL, claimed_host = NULL,"
        " claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL, result_attempt = %(result)s,"
        " reason = %(reason)s",
        {
            "state": ends.value,
            "reason": {"failed": "unpublishable", "cancelled": "closed"}.get(ends.value),
            "result": None if ends is State.CANCELLED else second["id"],
        },
    )
    left = await deliver.branches_left(case.conn, [rows.FORGE], limit=9)
    keep = ends is not State.CANCELLED
    assert [(each.attempt_id, each.keep) for each in left] == [(first["id"], keep), (second["id"], keep)]


async def test_adopted_work_says_nothing_about_the_lane(case: Case) -> None:
    """No agent ran: the breaker's count of failures stands, and a probe is still to come."""
    await rows.insert(case.conn, "lane_breaker", lane="claude", failures=3)
    await rows.change(case.conn, "lane", "claude", probing=True)
    (claim,) = await claim_next(case.conn, ["claude"], runner=ME)
    assert await adopt(case.conn, claim.job_id, claim.token, [Offer(case.branch, COMMIT)]) is not None
    said = Ending(outcome=Outcome.DONE, reason="adopted", agent_ran=False)
    assert await settle(case.conn, claim.job_id, claim.token, said) is Answer.DONE
    lane = await rows.row(case.conn, "lane", "claude")
    assert (lane["probing"], lane["probe_token"]) == (True, None)
    assert await rows.value(case.conn, "SELECT failures FROM lane_breaker") == 3


async def test_runner_that_dies_after_adopting_has_recorded(case: Case) -> None:
    """The lease ends between adopting and the last word: the work is for the publisher, like any recorded result."""
    assert await case.adopt((case.branch, COMMIT)) is not None
    await rows.expire(case.conn, case.made.job_id)
    assert await expire_stale_claims(case.conn) == 1
    job = await rows.row(case.conn, "job", case.made.job_id)
    assert (job["state"], job["result_attempt"]) == ("publishing", (await case.attempts())[1]["id"])
