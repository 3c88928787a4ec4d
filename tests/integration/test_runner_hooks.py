"""Hooks in a runner's attempts: what a row shows of one that failed, and that the others change nothing."""

from __future__ import annotations

from tests.support.agents import result, say, write
from tests.support.forges import *  # noqa: F403 - fixtures
from tests.support.runners import *  # noqa: F403 - fixtures
from tests.support.runners import Bench

OK = [say("the agent speaks"), write("a.txt", "x"), result("done", summary="ok")]


def shell(text: str) -> list[str]:
    """A hook that is a shell script."""
    return ["/bin/sh", "-c", text]


async def test_failing_hook_gives_the_attempt_back(bench: Bench) -> None:
    """The attempt ends as workspace_error with the hook's name and words, burns nothing, and no agent ran."""
    made = await bench.job(OK)
    await bench.conn.execute("UPDATE lane SET backoff_base_s = 600, backoff_cap_s = 600")
    await bench.work(hooks={"before_run": shell("echo no registry; exit 3")})
    (attempt,) = await bench.attempts(made)
    assert (attempt["outcome"], attempt["burned"]) == ("workspace_error", False)
    assert attempt["reason"] == "the hook before_run ended with exit code 3; the last it said:\nno registry"
    assert attempt["output_head"] == "[hook before_run]\nno registry\n"
    assert (await bench.row(made))["attempts"] == 0
    assert bench.script.recorded("begin") == []


async def test_hook_that_is_not_there_holds_the_lane_for_this_host(bench: Bench) -> None:
    """A missing program of a hook is a fault of the host's set-up: the lane is held here, with the reason."""
    made = await bench.job(OK)
    await bench.work(hooks={"after_create": ["/no/such/hook"]})
    assert await bench.state(made) == ("pending", None)
    row = await (await bench.conn.execute("SELECT source, host, reason FROM lane_hold")).fetchone()
    assert row is not None
    assert row[:2] == ("setup", "h1")
    assert "the hook after_create could not be started" in row[2]


async def test_words_of_all_hooks_stand_with_the_attempt(bench: Bench) -> None:
    """The job is delivered although after_run and before_remove fail; the attempt's output tells of three hooks."""
    made = await bench.job(OK)
    await bench.work(
        hooks={
            "after_create": shell("echo created"),
            "before_run": shell("echo ready"),
            "after_run": shell("echo over; exit 1"),
            "before_remove": shell("exit 1"),
        }
    )
    (attempt,) = await bench.attempts(made)
    assert attempt["outcome"] == "done"
    said = "[hook after_create]\ncreated\n[hook before_run]\nready\nthe agent speaks\n[hook after_run]\nover\n"
    assert str(attempt["output_head"]).startswith(said)
    assert "the hook after_run ended with exit code 1" in str(attempt["output_head"])
