"""Commands that speak to a forge: repos, labels, poll, doctor; against a real HTTP forge and a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import rows
from tests.support.cli import Said, closed, inside, tireless
from tests.support.place import REPOSITORY, Place, a_place, ask_for, config
from tireless.cli import doctor
from tireless.domain.labels import LabelScheme, label_specs
from tireless.domain.routing import Lane
from tireless.store.db import Connection


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A forge with alice's project and the bot as a writer there."""
    async with a_place() as found:
        yield found


class Desk:
    """An operator with a whole configuration."""

    def __init__(self, home: Path, path: Path) -> None:
        self.home = home
        self.path = path

    async def __call__(self, *words: str) -> Said:
        """Run one command."""
        return await inside(*words, "--config", self.path, home=self.home)


@pytest.fixture
def desk(tmp_path: Path, place: Place, dsn: str) -> Desk:
    """An operator whose bot is a writer of alice's project."""
    return Desk(tmp_path, config(tmp_path, place.url, token=place.bot.token, dsn=dsn))


async def test_from_nothing_to_a_clean_bill(desk: Desk, place: Place) -> None:
    """poll finds the configured repository, labels sync makes every label once, and then doctor finds no fault."""
    said = await desk("poll", "--json")
    assert (said.code, said.data["polled"], said.data["failed"]) == (0, 1, {})
    assert (await desk("doctor")).code == 6
    said = await desk("labels", "sync", "--json")
    assert said.code == 0
    wanted = {spec.name for spec in label_specs(LabelScheme(), [Lane("claude")])}
    assert set(said.data["repositories"][0]["created"]) == wanted
    again = await desk("labels", "sync", "--json")
    assert again.data["repositories"][0]["created"] == []
    said = await tireless("doctor", "--config", desk.path, home=desk.home)
    assert said.code == 0, said.out
    assert "0 faults" in said.out
    names = [str(row["name"]) for row in await labels_of(place)]
    assert sorted(names) == sorted(wanted)


async def test_labels_are_made_before_anything_was_watched(desk: Desk, place: Place) -> None:
    """On a fresh database labels sync goes through what is configured, owners too, each once; what is not there fails.

    Until serve or repos sync took them in, repos ls and explain say what does that.
    """
    await place.alice.create_repository("second")
    await place.alice.add_collaborator("alice/second", "bot")
    said = await desk("repos", "ls")
    assert "nothing is watched yet" in said.out
    assert "`tireless repos sync`" in said.out
    assert "`tireless repos sync`" in (await desk("explain", f"{REPOSITORY}#1")).out
    said = await desk("labels", "sync", "--json")
    assert (said.code, [each["repository"] for each in said.data["repositories"]]) == (0, [REPOSITORY])
    assert len(await labels_of(place)) == len(said.data["repositories"][0]["created"]) > 0
    both = 'repositories = ["alice/project", "alice/nope"]\nowners = ["Alice", "nobody"]'
    closed(desk.path, desk.path.read_text().replace('repositories = ["alice/project"]', both))
    said = await desk("labels", "sync", "--json")
    done = {
        each["repository"]: (len(each["created"]) > 0, each["error"] is not None) for each in said.data["repositories"]
    }
    assert (said.code, done) == (
        1,
        {
            REPOSITORY: (False, False),
            "alice/second": (True, False),
            "alice/nope": (False, True),
            "nobody/*": (False, True),
        },
    )


async def test_labels_sync_follows_a_renamed_repository(desk: Desk, place: Place) -> None:
    """Configured under its old name, watched under its new one, it is gone through once, and nothing fails."""
    await desk("poll")
    await place.alice.api("PATCH", f"/repos/{REPOSITORY}", {"name": "renamed"})
    assert (await desk("repos", "sync")).code == 0
    said = await desk("labels", "sync", "--json")
    assert [(each["repository"], each["error"]) for each in said.data["repositories"]] == [("alice/renamed", None)]
    assert said.code == 0


async def test_doctor_sees_what_only_the_rows_know(desk: Desk, place: Place, conn: Connection) -> None:
    """A repository added while it ran is looked at too; a lane that is gone from the configuration, with jobs."""
    await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
    await desk("poll")
    await place.alice.create_repository("second")
    await place.alice.add_collaborator("alice/second", place.bot.login)
    assert (await desk("repos", "add", "alice/second")).code == 0
    await conn.execute("UPDATE lane SET configured = false")
    said = await desk("doctor", "--json")
    found = {(each["code"], each["subject"]): each["text"] for each in said.data["findings"]}
    assert ("labels_missing", "main:alice/second") in found
    assert "1 job waits in it" in found["lane_closed", "lane claude"]
    assert said.code == 6


async def test_doctor_names_who_keeps_an_old_snapshot(
    desk: Desk, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session idle in its transaction keeps dead rows: who, how long, and what ends it; gone, it is not told."""
    monkeypatch.setattr(doctor, "OLD_S", -1.0)
    async with conn.transaction():
        pid = conn.info.backend_pid
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await conn.execute("SELECT 1")
        found = {each["subject"]: each for each in (await desk("doctor", "--json")).data["findings"]}
    held = found[f"session {conn.info.get_parameters()['application_name']}"]
    assert (held["code"], held["level"]) == ("old_snapshot", "remark")
    assert f"pid {pid}" in held["text"]
    assert "idle in transaction" in held["text"]
    assert f"SELECT pg_terminate_backend({pid})" in held["text"]
    assert "old_snapshot" not in (await desk("doctor")).out


async def test_an_added_repository_is_limited_at_once(desk: Desk, place: Place, conn: Connection) -> None:
    """`repos add` writes the configured limits itself: claims do not wait for `serve` to notice."""
    closed(desk.path, desk.path.read_text() + "\n[limits]\nmax_runs_per_repository_per_day = 3\n")
    await place.alice.create_repository("second")
    await place.alice.add_collaborator("alice/second", place.bot.login)
    assert (await desk("repos", "add", "alice/second")).code == 0
    query = "SELECT name, max_running AS n, max_runs_per_day AS day FROM repository"
    assert await rows.rows(conn, query) == [{"name": "second", "n": None, "day": 3}]


async def test_a_repository_is_limited_by_the_configuration_or_by_hand(desk: Desk, conn: Connection) -> None:
    """`poll` and `serve` give each watched one what is configured; `repos limit` another, until it is given back."""
    closed(desk.path, desk.path.read_text() + "\n[limits]\nmax_running_per_repository = 2\n")
    assert (await desk("repos", "sync")).code == 0
    query = "SELECT max_running AS n, max_runs_per_day AS day FROM repository"
    assert await rows.rows(conn, query) == [{"n": 2, "day": None}]
    assert (await desk("repos", "limit", REPOSITORY, "--per-day", "5")).code == 0
    assert (await desk("repos", "sync")).code == 0
    assert await rows.rows(conn, query) == [{"n": None, "day": 5}]
    said = await desk("repos", "limit", REPOSITORY, "--none", "--json")
    assert said.data["limits"] == {"max_running": None, "max_runs_per_day": None}
    assert (await desk("repos", "limit", REPOSITORY, "--as-configured")).code == 0
    assert await rows.rows(conn, query) == [{"n": 2, "day": None}]
    assert (await desk("repos", "limit", REPOSITORY)).code == 2
    assert (await desk("repos", "limit", "alice/nope", "--none")).code == 4


async def test_repos_sync_finds_what_an_owner_made(desk: Desk, place: Place) -> None:
    """At once instead of within the hour; `repos ls` names what is configured and not there; init goes through all."""
    text = desk.path.read_text().replace(
        'repositories = ["alice/project"]', 'repositories = ["alice/nope"]\nowners = ["alice"]'
    )
    closed(desk.path, text)
    said = await desk("repos", "sync", "--json")
    assert (said.code, said.data["watched"]) == (1, ["main:alice/project"])
    await place.alice.create_repository("second")
    await place.alice.add_collaborator("alice/second", place.bot.login)
    said = await desk("repos", "sync")
    assert (said.code, "new: main:alice/second" in said.out) == (1, True)
    said = await desk("repos", "ls")
    assert "alice/nope is not on forge main" in said.out
    listed = (await desk("repos", "ls", "--json")).data
    assert [each["repo"] for each in listed["repositories"]] == ["alice/project", "alice/second"]
    assert [each["repo"] for each in listed["unfound"]] == ["alice/nope"]
    said = await desk("init", "--json")
    assert {each["repository"] for each in said.data["steps"]} == {"alice/project", "alice/second"}
    closed(desk.path, text.replace('repositories = ["alice/nope"]\n', ""))
    said = await desk("repos", "sync")
    assert (said.code, "2 repositories are watched" in said.out) == (0, True)


async def test_doctor_says_when_the_team_that_may_ask_is_not_shown(desk: Desk, place: Place) -> None:
    """Nobody could ask then: a fault, also for check-config, until the bot is a member of the team."""
    await place.alice.create_org("acme")
    team = await place.alice.create_team("acme", "core", units={"repo.issues": "write"}, members=["alice"])
    closed(desk.path, desk.path.read_text() + '[asking]\nwho_may_ask = "team:acme/core"\n')
    said = await desk("doctor", "--json")
    assert "team_not_shown" in {each["code"] for each in said.data["findings"] if each["level"] == "fault"}
    assert (await desk("check-config")).code == 3
    await place.alice.api("PUT", f"/teams/{team}/members/{place.bot.login}")
    said = await desk("doctor", "--json")
    assert {each["code"]: each["level"] for each in said.data["findings"]}["team_shown"] == "fine"
    assert (await desk("check-config")).code == 0


async def labels_of(place: Place) -> list[dict[str, object]]:
    """The labels of alice's project."""
    found = (await place.alice.api("GET", f"/repos/{REPOSITORY}/labels", page=1, limit=50)).sequence()
    return [row for row in found if isinstance(row, dict)]


async def test_labels_sync_leaves_peoples_labels_alone(desk: Desk, place: Place) -> None:
    """A label of the same name in other case counts as there, another's label stays as it is."""
    await place.alice.create_label(REPOSITORY, "Tireless/Go", color="123456")
    await place.alice.create_label(REPOSITORY, "bug", color="ff0000")
    await desk("poll")
    created = (await desk("labels", "sync", REPOSITORY, "--json")).data["repositories"][0]["created"]
    assert "tireless/go" not in created
    colors = {str(row["name"]): row["color"] for row in await labels_of(place)}
    assert (colors["Tireless/Go"], colors["bug"]) == ("123456", "ff0000")


async def test_a_poll_makes_jobs_and_repeats_nothing(desk: Desk, place: Place, conn: Connection) -> None:
    """A properly labelled issue is one job; polled again, whole or not, it stays one."""
    number = await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
    first = await desk("poll", "--json")
    assert first.data["made"] == 1
    for words in (["poll", "--json"], ["poll", "--full", "--json"]):
        assert (await desk(*words)).data["made"] == 0
    (job,) = (await desk("jobs", "ls", "--json")).data["jobs"]
    assert (job["number"], job["kind"], job["lane"], job["state"]) == (number, "implement", "claude", "pending")
    assert await rows.value(conn, "SELECT count(*) FROM job") == 1
    text = (await desk("explain", f"{REPOSITORY}#{number}")).out
    assert "nothing is in its way" in text


async def test_one_repository_that_is_not_there_stops_no_other(desk: Desk, place: Place) -> None:
    """The others are polled, the missing one is named with the next step, the exit code says that something failed."""
    closed(desk.path, desk.path.read_text().replace('["alice/project"]', '["alice/nowhere", "alice/project"]'))
    await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
    said = await desk("poll")
    assert said.code == 1
    assert "1 repositories polled" in said.out
    assert "1 new jobs" in said.out
    assert "alice/nowhere is not on forge main, or the bot may not see it: check the name" in said.out


async def test_other_lanes_than_those_of_serve_judge_nothing(desk: Desk, place: Place) -> None:
    """A poll under another configuration would send jobs elsewhere: exit 3, and nothing was closed or moved."""
    await ask_for(place, "Sort widgets", "tireless/go", "tireless/implement")
    assert (await desk("poll", "--json")).data["made"] == 1
    closed(desk.path, desk.path.read_text().replace("[lanes.claude]", "[lanes.other]"))
    said = await desk("poll")
    assert said.code == 3
    assert "the lanes here (other) are not those that `serve` configured (claude)" in said.err
    lanes = (await desk("lanes", "ls", "--json")).data["lanes"]
    assert [(each["name"], each["configured"], each["pending"]) for each in lanes] == [("claude", True, 1)]


async def test_an_unreachable_forge_fails_the_poll_in_words(desk: Desk, place: Place) -> None:
    """The forge's address and what to check, exit 5, and nothing that was watched is dropped."""
    await desk("poll")
    closed(desk.path, desk.path.read_text().replace(place.url, "http://127.0.0.1:1"))
    said = await desk("poll", "--json")
    assert said.code == 5
    assert "forge main (http://127.0.0.1:1) cannot be reached" in said.err
    listed = (await desk("repos", "ls", "--json")).data["repositories"]
    assert [(each["repo"], each["tracked"]) for each in listed] == [(REPOSITORY, True)]


async def test_operators_add_and_drop_repositories(desk: Desk, place: Place) -> None:
    """add watches one more, rm drops it again; the configured one is refused; unknown ones end with 4 or a sentence."""
    await desk("poll")
    await place.alice.create_repository("second")
    await place.alice.add_collaborator("alice/second", "bot")
    said = await desk("repos", "add", "alice/second")
    assert (said.code, said.err) == (0, "")
    assert "labels sync" in said.out
    listed = {each["repo"]: each["source"] for each in (await desk("repos", "ls", "--json")).data["repositories"]}
    assert listed == {"alice/project": "config", "alice/second": "operator"}
    assert (await desk("poll", "--json")).data["polled"] == 2
    assert (await desk("repos", "rm", "alice/second")).code == 0
    assert "alice/second" not in (await desk("repos", "ls")).out
    assert "not watched" in (await desk("repos", "ls", "--all")).out
    configured = await desk("repos", "rm", REPOSITORY)
    assert (configured.code, "refused (configured)" in configured.err) == (7, True)
    assert (await desk("repos", "rm", "alice/second")).code == 4
    missing = await desk("repos", "add", "alice/nowhere")
    assert missing.code == 4
    assert "check the name" in missing.err
    other = await desk("repos", "add", "other:alice/second")
    assert (other.code, "there is no forge other" in other.err) == (2, True)


async def test_a_sweep_takes_expired_claims_back(desk: Desk, conn: Connection) -> None:
    """One pass by hand: what had expired is pending again."""
    made = await rows.job(conn, state="claimed")
    await rows.expire(conn, made.job_id)
    assert (await desk("sweep", "--json")).data == {"swept": True}
    assert (await rows.row(conn, "job", made.job_id))["state"] == "pending"
