"""Rows changed by hand into nonsense are refused by the schema, each by a constraint whose name says why."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support import rows
from tireless.errors import StoreError
from tireless.store.db import Connection, constraint_of, translate

CLAIM = (
    "claimed_by = 'r', claimed_host = 'h', claimed_at = now(), claim_expires_at = now(), "
    "claim_token = gen_random_uuid()"
)
NO_CLAIM = "claimed_by = NULL, claimed_host = NULL, claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL"
TAKE = "publish_token = gen_random_uuid(), publish_by = 'p', publish_until = now()"

# state of the job → what is done to it → who says no
JOBS: Mapping[str, Mapping[str, str]] = {
    "pending": {
        CLAIM: "only_claimed_has_a_claim",
        "claim_token = gen_random_uuid()": "only_claimed_has_a_claim",
        "state = 'claimed'": "claimed_has_a_claim_that_ends",
        "state = 'running'": "state_known",
        "state = 'publishing'": "publishing_has_a_result",
        "state = 'delivered'": "terminal_is_finished",
        "finished_at = now()": "terminal_is_finished",
        "state = 'failed', finished_at = now()": "cancelled_has_a_reason",
        "state = 'cancelled', finished_at = now()": "cancelled_has_a_reason",
        "kind = 'deploy'": "kind_known",
        "priority = 2": "priority_known",
        "attempts = 4": "attempts_within_max",
        "attempts = -1": "tally_counts_up",
        "attempts = 1": "attempts_within_max",
        "attempts = 3, max_attempts = 3": "attempts_within_max",
        "max_attempts = 0": "pending_has_attempts_left",
        "claim_no = 1": "claim_no_counts_claims",
        "claim_no = 9223372036854775807": "ordinal_has_a_next",
        "turn = 9223372036854775807": "ordinal_has_a_next",
        "given_back = 2147483647": "tally_counts_up",
        "publish_failures = -1": "tally_counts_up",
        "max_attempts = 2147483647": "tally_counts_up",
        "cancel_requested = 'operator'": "cancel_asked_only_while_claimed",
        TAKE: "publish_take_only_in_publishing",
        "parked = 'bored'": "parked_known",
        "not_before = now() + interval '1 h'": "not_before_has_a_reason_and_an_end",
        "not_before = now() + interval '1 h', not_before_reason = 'weekend'": "not_before_reason_known",
        "not_before = 'infinity', not_before_reason = 'backoff'": "not_before_has_a_reason_and_an_end",
        "publish_not_before = 'infinity'": "not_before_has_a_reason_and_an_end",
        "lane = 'nowhere'": "job_lane_fkey",
        "spent_usd = -0.01": "usd_is_an_amount",
        "spent_usd = 'NaN'": "usd_is_an_amount",
        "spent_usd = 'Infinity'": "usd_is_an_amount",
    },
    "claimed": {
        NO_CLAIM: "claimed_has_a_claim_that_ends",
        "claim_token = NULL": "claimed_has_a_claim_that_ends",
        "claim_expires_at = NULL": "claimed_has_a_claim_that_ends",
        "claimed_by = NULL": "claimed_has_a_claim_that_ends",
        "claim_expires_at = 'infinity'": "claimed_has_a_claim_that_ends",
        "claim_no = 2": "claim_no_counts_claims",
        "claim_no = 0, attempts = 0": "claim_no_counts_claims",
        "state = 'pending'": "only_claimed_has_a_claim",
        "state = 'cancelled', reason = 'closed', finished_at = now()": "only_claimed_has_a_claim",
        TAKE: "publish_take_only_in_publishing",
    },
    "publishing": {
        "publish_token = gen_random_uuid()": "publish_take_is_whole_and_ends",
        TAKE.replace("now()", "'infinity'"): "publish_take_is_whole_and_ends",
        "result_attempt = NULL": "publishing_has_a_result",
        "cancel_requested = 'operator'": "cancel_asked_only_while_claimed",
        "claim_token = gen_random_uuid()": "only_claimed_has_a_claim",
    },
    "delivered": {
        "state = 'pending', finished_at = NULL": "terminal_stays_terminal",
        "finished_at = NULL": "terminal_stays_terminal",
        "attempts = 0": "terminal_stays_terminal",
        "kind = 'plan'": "terminal_stays_terminal",
    },
}

OTHERS: Mapping[str, str] = {
    "INSERT INTO lane (name, position) VALUES ('Not Plain', 1)": "lane_name_plain",
    "INSERT INTO lane (name, position, lease_s) VALUES ('a', 1, 0)": "lane_times_positive",
    "INSERT INTO lane (name, position, backoff_base_s, backoff_cap_s) VALUES ('a', 1, 9, 8)": "lane_times_positive",
    "INSERT INTO lane (name, position, max_running) VALUES ('a', 1, 0)": "lane_counts_positive",
    "INSERT INTO lane (name, position, kinds) VALUES ('a', 1, '{deploy}')": "lane_kinds_known",
    "UPDATE lane SET lease_s = 'NaN'": "lane_times_bounded",
    "UPDATE lane SET lease_s = 'Infinity'": "lane_times_bounded",
    "UPDATE lane SET run_timeout_s = 'NaN'": "lane_times_bounded",
    "UPDATE lane SET stall_timeout_s = 'Infinity'": "lane_times_bounded",
    "UPDATE lane SET backoff_base_s = 'NaN', backoff_cap_s = 'NaN'": "lane_times_bounded",
    "UPDATE lane SET max_usd = 'NaN'": "usd_is_an_amount",
    "UPDATE lane SET reserve_usd = 'Infinity'": "usd_is_an_amount",
    "UPDATE lane SET probe_token = gen_random_uuid()": "probe_only_while_probing",
    "INSERT INTO lane_hold (lane, source, reason, held_by) VALUES ('claude', 'mood', 'r', 'x')": "hold_source_known",
    "INSERT INTO lane_hold (lane, source, reason, held_by) VALUES ('claude', 'setup', 'r', 'x')": (
        "hold_setup_names_a_host"
    ),
    "INSERT INTO lane_hold (lane, source, host, reason, held_by) VALUES ('claude', 'quota', 'h', 'r', 'x')": (
        "hold_setup_names_a_host"
    ),
    "INSERT INTO lane_breaker (lane, failures) VALUES ('claude', -1)": "tally_counts_up",
    "UPDATE repository SET max_running = 0": "repository_limits_positive",
    "UPDATE repository SET readable = false": "unreadable_has_a_reason",
    "UPDATE repository SET source = 'rumour'": "repository_source_known",
    "UPDATE repository SET take_token = gen_random_uuid()": "repository_take_is_whole_and_ends",
    "UPDATE repository SET take_token = gen_random_uuid(), take_by = 'p', take_until = 'infinity'": (
        "repository_take_is_whole_and_ends"
    ),
    "UPDATE issue SET number = 0": "issue_number_positive",
    "UPDATE issue SET labels = '{}'": "labels_are_a_list",
    "UPDATE issue SET approved_by = NULL": "approved_text_is_whole",
    """UPDATE issue SET labels = '[null]'""": "labels_have_ids_and_names",
    """UPDATE issue SET labels = '[{"id": 1}]'""": "labels_have_ids_and_names",
    """UPDATE issue SET labels = '[{"id": "1", "name": "bug"}]'""": "labels_have_ids_and_names",
    "UPDATE issue SET triage_details = '[]'": "details_have_names",
    "UPDATE issue SET counted = 'null'": "counted_are_roles_of_labels",
    """UPDATE issue SET counted = '{"a": "kind"}'""": "counted_are_roles_of_labels",
    """UPDATE issue SET counted = '{"7": "king"}'""": "counted_are_roles_of_labels",
    """UPDATE issue SET counted = '{"7": 7}'""": "counted_are_roles_of_labels",
    "UPDATE issue SET children_done = -1": "tally_counts_up",
    "UPDATE issue SET children_done = 1": "children_done_have_ended",
    "UPDATE mirror SET changed = 9223372036854775807": "ordinal_has_a_next",
    "UPDATE repository SET since = 'infinity'": "moment_has_a_year",
    "UPDATE issue SET seen_at = '9999-12-31 23:59:59Z'": "moment_has_a_year",
    "INSERT INTO look (repository_id, number, why, written_at) SELECT id, 1, 'w', 'infinity' FROM repository": (
        "moment_has_a_year"
    ),
    "UPDATE repository SET poll_failures = 2147483647": "tally_counts_up",
    "UPDATE lane SET max_attempts = 2147483647": "tally_counts_up",
    "INSERT INTO lane_breaker (lane, quotas) VALUES ('claude', 2147483647)": "tally_counts_up",
    "UPDATE attempt SET claim_no = claim_no + 1": "attempt_stays_its_claims",
    "UPDATE attempt SET token = gen_random_uuid()": "attempt_stays_its_claims",
    "UPDATE issue SET body = repeat('x', 1048577)": "body_bounded",
    "UPDATE request SET source = 'rumour', event_id = NULL": "request_source_known",
    "UPDATE request SET event_id = NULL": "label_request_names_its_event",
    "UPDATE attempt SET outcome = 'done'": "attempt_ends_with_an_outcome",
    "UPDATE attempt SET outcome = 'fine', ended_at = now(), burned = true": "attempt_outcome_known",
    "UPDATE attempt SET commit_sha = 'c'": "commit_has_a_branch",
    "UPDATE attempt SET commit_sha = 'c', branch = 'b'": "only_recorded_has_a_commit",
    "UPDATE attempt SET output_head = repeat('x', 65537)": "output_bounded",
    "INSERT INTO output_chunk SELECT id, 1, now(), repeat('x', 65537) FROM attempt": "chunk_bounded",
    """UPDATE attempt SET usage = '{"usd": "much"}'""": "usage_is_counted",
    """UPDATE attempt SET usage = '{"usd": "1"}'""": "usage_is_counted",
    """UPDATE attempt SET usage = '{"usd": [1]}'""": "usage_is_counted",
    """UPDATE attempt SET usage = '{"usd": -1}'""": "usage_is_counted",
    """UPDATE attempt SET usage = '{"usd": 1e400}'""": "usage_is_counted",
    """UPDATE attempt SET usage = '{"input_tokens": "many"}'""": "usage_is_counted",
    """UPDATE attempt SET usage = '{"output_tokens": -1}'""": "usage_is_counted",
    """INSERT INTO look (repository_id, number, why, take_token, take_until)
       SELECT id, 1, 'w', gen_random_uuid(), 'infinity' FROM repository""": "look_take_is_whole_and_ends",
    """INSERT INTO owner_poll (forge, owner, asked_at, take_token, take_by, take_until)
       SELECT name, 'o', now(), gen_random_uuid(), 'p', 'infinity' FROM forge""": "owner_take_is_whole_and_ends",
    "UPDATE mirror SET take_token = gen_random_uuid(), take_by = 'm', take_until = 'infinity'": (
        "mirror_take_is_whole_and_ends"
    ),
    "UPDATE mirror SET take_by = 'm'": "mirror_take_is_whole_and_ends",
    "UPDATE child SET key = 'No Good'": "child_key_plain",
    "UPDATE child SET issue_id = plan_issue_id": "child_is_not_its_plan",
    "UPDATE child SET kind = 'deploy'": "child_kind_known",
    "UPDATE child SET ended_at = now()": "child_ends_with_a_reason",
}

TWICE: Mapping[str, str] = {
    """INSERT INTO child (plan_issue_id, key, position, title, body, kind)
       SELECT plan_issue_id, key, 9, title, body, kind FROM child""": "one_live_child_per_key",
    """INSERT INTO attempt (job_id, repository_id, claim_no, token, number, lane, runner, host)
       SELECT job_id, repository_id, claim_no, token, number, lane, runner, host FROM attempt""": "attempt_once",
    """INSERT INTO job (issue_id, repository_id, request_id, kind, lane)
       SELECT issue_id, repository_id, request_id, 'discover', lane FROM job""": "one_live_job_per_issue",
    """INSERT INTO job (issue_id, repository_id, request_id, kind, lane, state, finished_at)
       SELECT issue_id, repository_id, request_id, kind, lane, 'delivered', now() FROM job""": (
        "one_job_per_request_and_kind"
    ),
    """INSERT INTO request (issue_id, source, event_id, asked_time, actor_login, content_hash)
       SELECT issue_id, source, event_id, asked_time, actor_login, content_hash FROM request""": "request_event_once",
    """INSERT INTO repository (forge, forge_repo_id, owner, name, tracked)
       SELECT forge, forge_repo_id, owner, name, false FROM repository""": "repository_once",
    """INSERT INTO repository (forge, forge_repo_id, owner, name)
       SELECT forge, forge_repo_id + 1, upper(owner), name FROM repository""": "repository_name_tracked",
    """INSERT INTO issue (repository_id, number, forge_issue_id, title, body, content_hash, author_id, author_login,
                          open, url, created_at, updated_at, asked_at)
       SELECT repository_id, number, 1, '', '', '', 1, '', true, '', now(), now(), now() FROM issue""": "issue_once",
    "INSERT INTO lane (name, position, is_default) VALUES ('a', 1, true), ('b', 2, true)": "one_default_lane",
}


async def refusal(conn: Connection, statement: str, **values: object) -> str | None:
    """The constraint that refuses a statement; the rows are as before."""
    with pytest.raises(StoreError) as caught, translate("writing nonsense"):
        await conn.execute(statement.encode(), values or None)
    return constraint_of(caught.value)


@pytest.mark.parametrize("state", JOBS)
async def test_a_job_changed_into_nonsense_is_refused(conn: Connection, state: str) -> None:
    """Half a claim, a claim where none may be, a take, an end without reason: each by its own name."""
    made = await rows.job(conn, state=state)
    for change, constraint in JOBS[state].items():
        refused_by = await refusal(conn, " ".join(("UPDATE job SET", change, "WHERE id = %(id)s")), id=made.job_id)
        assert (change, refused_by) == (change, constraint)
    assert await rows.states(conn, [made]) == [state]


async def test_other_rows_changed_into_nonsense_are_refused(conn: Connection) -> None:
    """Lanes, holds, repositories, issues, requests, attempts, output, children: each by its own name."""
    made = await rows.job(conn, state="claimed")
    await rows.child(conn, made.issue_id, "a")
    for statement, constraint in OTHERS.items():
        assert (statement, await refusal(conn, statement)) == (statement, constraint)


async def test_what_may_be_once_is_refused_twice(conn: Connection) -> None:
    """A second live job of an issue, a job or an attempt told twice, a name watched twice."""
    made = await rows.job(conn, state="claimed")
    await rows.child(conn, made.issue_id, "a")
    for statement, constraint in TWICE.items():
        assert (statement, await refusal(conn, statement)) == (statement, constraint)


async def test_waits_by_hand_are_computed(conn: Connection) -> None:
    """Whoever writes a wait, state and reason follow from the columns, never from the writer."""
    made = await rows.job(conn)
    wrong = [
        ("state = 'waiting'", "pending", None),
        ("reason = 'because'", "pending", None),
        ("hold = true", "waiting", "on_hold"),
        ("state = 'pending'", "waiting", "on_hold"),
        ("parked = 'suspect'", "waiting", "suspect"),
        ("parked = NULL, reason = NULL", "waiting", "on_hold"),
        ("hold = false", "pending", None),
    ]
    for change, state, reason in wrong:
        await conn.execute(" ".join(("UPDATE job SET", change)).encode())
        job = await rows.row(conn, "job", made.job_id)
        assert (change, job["state"], job["reason"]) == (change, state, reason)


async def test_what_agents_say_they_used_is_taken(conn: Connection) -> None:
    """Nothing, part of it, numbers as large as are read, words beside them; and costs of any size."""
    made = await rows.job(conn, state="claimed")
    for usage in (None, "{}", "[]", '{"usd": null, "model": "m"}', '{"usd": 0, "input_tokens": 9007199254740992}'):
        await conn.execute("UPDATE attempt SET usage = %(usage)s::jsonb", {"usage": usage})
    await rows.change(conn, "job", made.job_id, spent_usd=9007199254740992)
    await rows.lane(conn, max_usd=1_000_000, lease_s=3650 * 86400.0)
