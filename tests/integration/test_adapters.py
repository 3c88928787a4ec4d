"""The adapters as real processes over scripted programs that print recorded streams: what each run comes to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support import standin
from tests.support import streams as s
from tireless.adapters.program import Lines
from tireless.agent.protocol import SCHEMAS
from tireless.domain.result import Malformed, parse_result
from tireless.services.waiting import all_gone

LIMIT_S = 90.0
ROOT = Path(__file__).parents[2]
DENIED_QUESTION = "was refused tools that it asked for:\n\n- Bash touch x"


@dataclass(frozen=True, slots=True)
class Came:
    """What an adapter's run came to."""

    code: int
    result: dict[str, Any] | None
    out: str
    err: str
    progress: list[dict[str, Any]]


class Desk:
    """A run directory and a program that follows a script."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run_dir = root / "exchange"
        self.run_dir.mkdir()
        self.script = root / "script.json"
        self.result = self.run_dir / "result.json"
        self.extra: dict[str, str] = {}
        (self.run_dir / "prompt.md").write_text("Make it shine.\n")
        self.program = root / "program"
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {standin.__file__} {self.script} "$@"\n')
        self.program.chmod(0o755)

    def begin(self, adapter: str, steps: list[Any], *words: str) -> subprocess.Popen[str]:
        """Start an adapter over a script."""
        self.script.write_text(json.dumps(steps))
        names = {"PROMPT": "prompt.md", "RESULT": "result.json", "PROGRESS": "progress.ndjson"}
        env = {f"TIRELESS_{name}_FILE": str(self.run_dir / file) for name, file in names.items()}
        return subprocess.Popen(
            [sys.executable, "-m", f"tireless.adapters.{adapter}", "--program", str(self.program), *words],
            cwd=ROOT,
            env={
                "PATH": os.environ["PATH"],
                "TIRELESS_RUN_DIR": str(self.run_dir),
                "PYTHONWARNINGS": "error",
                **env,
                **self.extra,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def came(self, process: subprocess.Popen[str]) -> Came:
        """Its end. A result is checked against the schema and by the runner's own reader."""
        out, err = process.communicate(timeout=LIMIT_S)
        result = json.loads(self.result.read_text()) if self.result.exists() else None
        if result is not None:
            jsonschema.validate(result, json.loads((SCHEMAS / "result.schema.json").read_text()))
            assert not isinstance(parse_result(result), Malformed)
        path = self.run_dir / "progress.ndjson"
        progress = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return Came(process.returncode, result, out, err, progress)

    def claude(self, *steps: Any, words: tuple[str, ...] = ()) -> Came:
        return self.came(self.begin("claude", list(steps), *words))

    def opencode(self, *steps: Any, words: tuple[str, ...] = ()) -> Came:
        return self.came(self.begin("opencode", list(steps), *words))

    @property
    def seen(self) -> dict[str, Any]:
        """What the program was given."""
        found: dict[str, Any] = json.loads(self.script.with_suffix(".seen").read_text())
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def outcome(came: Came) -> object:
    """The result's word."""
    assert came.result is not None, came
    return came.result["outcome"]


# ------------------------------------------------------------------------------------------------ what the program gets


def test_claude_is_given_the_prompt_on_standard_input(desk: Desk) -> None:
    """Print mode, stream-json, leave to write the run directory, our words; the prompt is in no argument."""
    desk.claude(s.INIT, s.ends(), words=("--model", "opus"))
    assert desk.seen["argv"] == [
        *("-p", "--output-format", "stream-json", "--verbose"),
        *("--add-dir", str(desk.run_dir), "--model", "opus"),
    ]
    assert desk.seen["stdin"].startswith("Make it shine.\n")
    assert "```json" in desk.seen["stdin"]


def test_opencode_is_given_the_prompt_on_standard_input(desk: Desk) -> None:
    """`run --format json` and our words; the model is taken from them, since no event names it."""
    came = desk.opencode(s.STEP, s.text("Done."), s.step_ends(), words=("-m", "anthropic/opus"))
    assert desk.seen["argv"] == ["run", "--format", "json", "-m", "anthropic/opus"]
    assert desk.seen["stdin"].startswith("Make it shine.\n")
    assert came.result is not None
    assert came.result["usage"]["model"] == "anthropic/opus"


def test_huge_prompt(desk: Desk) -> None:
    """A prompt of 20 MB that the program does not even read holds nothing up."""
    (desk.run_dir / "prompt.md").write_text("x" * 20_000_000)
    desk.program.write_text(f"#!/bin/sh\necho '{s.ends()}'\n")
    assert outcome(desk.came(desk.begin("claude", []))) == "done"


# ------------------------------------------------------------------------------------------------ Claude Code


def test_claude_success(desk: Desk) -> None:
    """A run that ended well is done, with its last words, what it cost, and its session; its words are progress."""
    came = desk.claude(s.INIT, s.limit("allowed"), s.uses("Bash", command="ls"), s.says("Working."), s.ends("Shines."))
    assert (came.code, came.err) == (0, "")
    assert came.result == {
        "protocol": 1,
        "outcome": "done",
        "summary": "Shines.",
        "usage": {"model": "claude-opus-4-8[1m]", "input_tokens": 116, "output_tokens": 7, "usd": 0.00023},
        "session": s.SESSION,
    }
    assert came.out == "[Bash] ls\nWorking.\n"
    assert [each["message"] for each in came.progress if "message" in each] == ["[Bash] ls", "Working."]
    schema = json.loads((SCHEMAS / "progress.schema.json").read_text())
    for each in came.progress:
        jsonschema.validate(each, schema)


@pytest.mark.parametrize("code", [0, 1])
def test_claude_rate_limit_without_reset_time(desk: Desk, code: int) -> None:
    """`subtype: success` and whatever exit code: a 429 is a quota, and without a time the lane's own hold applies."""
    came = desk.claude(*s.RATE_LIMITED, {"exit": code})
    assert outcome(came) == "quota"
    assert came.result is not None
    assert "retry_after" not in came.result
    assert "429" in came.result["reason"]


@pytest.mark.parametrize("last", [[s.RATE_LIMITED[2]], []])
def test_claude_rate_limit_with_reset_time(desk: Desk, last: list[str]) -> None:
    """A rejected limit names when it resets, with or without a last event after it."""
    came = desk.claude(s.INIT, s.limit("rejected"), *last, {"exit": 1})
    assert outcome(came) == "quota"
    assert came.result is not None
    assert came.result["retry_after"] == s.RESETS


def test_claude_limits_that_were_not_met(desk: Desk) -> None:
    """Warnings, an overage that is off, and a model that only speaks of limits are no quota."""
    words = "I hit your usage limit message: rate_limit_error 429, resets 7pm."
    came = desk.claude(
        s.INIT, s.limit("allowed_warning"), s.limit("allowed", overageStatus="rejected"), s.says(words), s.ends(words)
    )
    assert outcome(came) == "done"


def test_claude_limit_that_was_waited_for(desk: Desk) -> None:
    """A limit that was met on the way and passed does not spoil a run that ended well."""
    came = desk.claude(s.INIT, s.RETRYING, s.limit("rejected"), s.limit("allowed"), s.says("So."), s.ends("So."))
    assert outcome(came) == "done"
    assert "waits 1 s for its provider: 529 overloaded" in came.out


def test_claude_without_an_account_holds_the_lane(desk: Desk) -> None:
    """Who is not logged in meets the same with every job: the lane is held, with the sentence."""
    came = desk.claude(*s.NOT_LOGGED_IN, {"exit": 1})
    assert outcome(came) == "quota"
    assert came.result is not None
    assert "Not logged in" in came.result["reason"]


def test_claude_refused_tool(desk: Desk) -> None:
    """Exit 0 and `success` with a denied tool is no success: a person is asked, with what was refused."""
    came = desk.claude(*s.REFUSED)
    assert outcome(came) == "needs_input"
    assert came.result is not None
    assert DENIED_QUESTION in came.result["question"]
    assert "I could not." in came.result["question"]


def test_claude_that_found_another_way(desk: Desk) -> None:
    """A model that was refused a tool and still says by its own result that it is done is taken at its word."""
    own = {"protocol": 1, "outcome": "done", "summary": "By hand.", "usage": {"usd": 99.0}}
    came = desk.claude({"write": "$TIRELESS_RESULT_FILE", "text": json.dumps(own)}, *s.REFUSED)
    assert came.result is not None
    assert (came.result["outcome"], came.result["summary"]) == ("done", "By hand.")
    assert came.result["usage"]["usd"] == 0.00023  # counted, not told


def test_own_result_does_not_hide_a_limit(desk: Desk) -> None:
    """What the model wrote before the provider refused it is not the last word."""
    own = {"protocol": 1, "outcome": "done"}
    came = desk.claude({"write": "$TIRELESS_RESULT_FILE", "text": json.dumps(own)}, *s.RATE_LIMITED)
    assert outcome(came) == "quota"


@pytest.mark.parametrize("subtype", ["error_max_turns", "error_max_budget_usd"])
def test_claude_own_bounds(desk: Desk, subtype: str) -> None:
    """A bound that the operator gave Claude Code fails the job: every other run would meet it as well."""
    came = desk.claude(s.INIT, s.says("So far."), s.ends("", subtype=subtype, is_error=True), {"exit": 1})
    assert outcome(came) == "failed"
    assert came.result is not None
    assert subtype in came.result["reason"]


@pytest.mark.parametrize(("status", "expected"), [(500, "retry"), (529, "retry"), (403, "quota")])
def test_claude_api_errors(desk: Desk, status: int, expected: str) -> None:
    """A trouble of the provider is tried again, an account that may not holds the lane."""
    came = desk.claude(s.INIT, s.ends("API Error: boom", is_error=True, api_error_status=status), {"exit": 1})
    assert outcome(came) == expected


@pytest.mark.parametrize("steps", [[], [s.INIT], [s.INIT, s.ends("", num_turns=0)], [{"exit": 1}], ["hello"]])
def test_silence_is_an_agent_error(desk: Desk, steps: list[Any]) -> None:
    """No answer, no tool, no error: no result, exit 1, and standard error says so."""
    came = desk.claude(*steps)
    assert (came.code, came.result) == (1, None)
    assert "said nothing" in came.err


def test_result_in_the_last_message(desk: Desk) -> None:
    """A model that may not write files hands back in its last message; an earlier block is not taken for it."""
    plan = {"protocol": 1, "outcome": "done", "children": [{"key": "a", "title": "Do a"}]}
    message = f'```json\n{{"protocol": 1, "outcome": "failed"}}\n```\nand so:\n\n```json\n{json.dumps(plan)}\n```\n'
    came = desk.claude(s.INIT, s.says(message), s.ends(message))
    assert came.result is not None
    assert came.result["children"] == plan["children"]


def test_broken_lines_are_passed_over(desk: Desk) -> None:
    """Lines that are no JSON, no object, not UTF-8 or nested without end spoil nothing, and are counted."""
    came = desk.claude(s.INIT, '{"type":"assist', "[1]", "null", "[" * 100_000, s.says("So."), s.ends("So."))
    assert outcome(came) == "done"
    assert "4 lines of claude were no JSON objects" in came.err


def test_line_of_fifty_megabytes_is_not_held(desk: Desk) -> None:
    """A line of 50 MB is passed over within bounds; what comes after it counts."""
    came = desk.claude(s.INIT, {"flood": 50_000_000}, s.says("So."), s.ends("So."))
    assert outcome(came) == "done"
    assert "1 lines" in came.err


def test_lines_are_bounded_however_they_come() -> None:
    """Whatever the pieces, whole lines come out, too long ones do not, and no more than the bound is held."""
    text = b"short\n" + b"x" * 1000 + b"\nlast\n" + b"y" * 30 + b"\nrest"
    for size in (1, 7, 64, 5000):
        lines = Lines(limit=64)
        found: list[bytes] = []
        for start in range(0, len(text), size):
            found += lines.feed(text[start : start + size])
            assert lines.held <= 64
        assert (found + lines.close(), lines.skipped) == ([b"short", b"last", b"y" * 30, b"rest"], 1)


def test_result_line_beyond_all_bounds(desk: Desk) -> None:
    """A last event that is too long to be read leaves what the model said before, which is not taken for success."""
    came = desk.claude(s.INIT, s.says("So."), {"flood": 9_000_000}, {"exit": 1})
    assert outcome(came) == "retry"


# ------------------------------------------------------------------------------------------------ opencode


def test_opencode_success(desk: Desk) -> None:
    """Its steps' costs are added up; the last text is the summary."""
    came = desk.opencode(
        *(s.STEP, s.tool("bash", input={"command": "ls"}, output="a"), s.step_ends(0.5)),
        *(s.STEP, s.text("Shines."), s.step_ends(0.25)),
    )
    assert came.code == 0
    assert came.result == {
        "protocol": 1,
        "outcome": "done",
        "summary": "Shines.",
        "usage": {"input_tokens": 36, "output_tokens": 18, "usd": 0.75},
        "session": s.OPENCODE_SESSION,
    }
    assert [each["message"] for each in came.progress if "message" in each] == ["[bash] ls", "Shines."]


def test_opencode_refused_tool_ends_in_silence(desk: Desk) -> None:
    """It rejects what nobody allowed and exits with 0 and no word: a person is asked."""
    came = desk.opencode(s.STEP, s.tool("bash", "error", input={"command": "touch x"}, error=s.REFUSAL), s.step_ends())
    assert outcome(came) == "needs_input"
    assert came.result is not None
    assert "- bash touch x" in came.result["question"]


def test_opencode_names_what_it_rejected_at_its_end(desk: Desk) -> None:
    """Later versions list the refused permissions in their last event."""
    came = desk.opencode(s.STEP, s.text("Hm."), s.event("done", reason="idle", rejected=["external_directory"]))
    assert came.result is not None
    assert "- external_directory" in came.result["question"]


def test_opencode_tool_that_failed_is_no_refusal(desk: Desk) -> None:
    """A tool's own error is the model's to deal with."""
    failed = s.tool("bash", "error", input={"command": "false"}, error="exit code 1")
    said = s.text("It failed, so I did it otherwise.")
    assert (
        outcome(desk.opencode(s.STEP, failed, s.step_ends(reason="tool-calls"), s.STEP, said, s.step_ends())) == "done"
    )


def test_opencode_rate_limit(desk: Desk) -> None:
    """A 429 is a quota, with the time of its Retry-After header where there is one."""
    came = desk.opencode(s.fails(429, "Too many", **{"retry-after": "77"}), {"exit": 1})
    assert came.result is not None
    assert (came.result["outcome"], came.result["retry_after"]) == ("quota", 77.0)
    came = desk.opencode(s.fails(429, "Too many"), {"exit": 1})
    assert came.result is not None
    assert "retry_after" not in came.result


@pytest.mark.parametrize(("status", "expected"), [(401, "quota"), (400, "retry"), (500, "retry")])
def test_opencode_errors(desk: Desk, status: int, expected: str) -> None:
    """A key that is refused holds the lane; anything else is tried again."""
    assert outcome(desk.opencode(s.STEP, s.text("So."), s.fails(status, "boom"), {"exit": 1})) == expected


def test_opencode_silence_is_an_agent_error(desk: Desk) -> None:
    """Exit 0 and zero bytes is no success."""
    came = desk.opencode()
    assert (came.code, came.result) == (1, None)


# ------------------------------------------------------------------------------------------------ ends


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_killed_program(desk: Desk, number: signal.Signals) -> None:
    """A program that is killed in the middle is tried again; one that was killed before it said anything, too."""
    came = desk.claude(s.INIT, s.says("So far."), {"die": int(number)})
    assert outcome(came) == "retry"
    assert came.result is not None
    assert f"signal {int(number)}" in came.result["reason"]
    desk.result.unlink()
    came = desk.claude({"die": int(number)})
    assert (came.code, came.result) == (1, None)


CUT = {
    "claude in a text": ("claude", [s.INIT, s.says("I begin.")]),
    "claude in a tool": ("claude", [s.INIT, s.says("So."), s.uses("Bash", command="make")]),
    "claude with an error of its own": ("claude", [s.INIT, s.says("I begin."), "Error: socket hang up"]),
    "claude in another turn": (
        "claude",
        [s.INIT, s.says("So."), s.ends("So."), s.says("The tests came back: I mend.")],
    ),
    "claude at a line that is too long": ("claude", [s.INIT, s.says("So."), {"flood": 9_000_000}]),
    "opencode in a text": ("opencode", [s.STEP, s.text("I begin.")]),
    "opencode after a tool": ("opencode", [s.STEP, s.tool("bash"), s.step_ends(reason="tool-calls")]),
    "opencode in the next step": ("opencode", [s.STEP, s.text("So."), s.step_ends(), s.STEP, s.tool("bash")]),
    "opencode at its model's bound": ("opencode", [s.STEP, s.text("I beg"), s.step_ends(reason="length")]),
}


@pytest.mark.parametrize(("adapter", "steps"), CUT.values(), ids=CUT)
def test_stream_that_was_cut_is_no_success(desk: Desk, adapter: str, steps: list[Any]) -> None:
    """Exit 0 without the end of what the program says is not done: half the work is neither delivered nor believed."""
    came = desk.came(desk.begin(adapter, steps))
    assert outcome(came) == "retry"
    assert came.result is not None
    assert "exited with 0 before it had finished" in came.result["reason"]


def test_result_of_its_own_counts_though_the_stream_was_cut(desk: Desk) -> None:
    """What the model wrote as its result, as a file or as the last words it said, stands by itself."""
    own = {"protocol": 1, "outcome": "failed", "reason": "It can not be done."}
    came = desk.claude({"write": "$TIRELESS_RESULT_FILE", "text": json.dumps(own)}, s.INIT, s.says("So."))
    assert outcome(came) == "failed"
    desk.result.unlink()
    assert outcome(desk.claude(s.INIT, s.says(f"```json\n{json.dumps(own)}\n```"))) == "failed"


def test_last_of_two_results_counts(desk: Desk) -> None:
    """Claude Code may go on after a result line, for work in the background: what the last one says, it came to."""
    bound = s.ends("", subtype="error_max_turns", is_error=True)
    assert outcome(desk.claude(s.INIT, s.says("So."), bound, s.says("It is done."), s.ends("Done."))) == "done"
    failed = s.ends("API Error: boom", is_error=True, api_error_status=500)
    assert outcome(desk.claude(s.INIT, s.says("So."), s.ends("So."), failed)) == "retry"


@pytest.mark.skipif(sys.platform != "linux", reason="watches processes by pidfd")
async def test_grandchild_with_the_output_holds_nothing_up(desk: Desk) -> None:
    """A process that the program left behind with its output is ended, not waited for."""
    child = desk.root / "child"
    came = await asyncio.to_thread(desk.claude, s.INIT, s.says("So."), s.ends("So."), {"child": str(child)})
    assert outcome(came) == "done"
    await asyncio.wait_for(all_gone([int(child.read_text())]), LIMIT_S)


async def there(path: Path) -> None:
    """Wait until another process has made this file."""
    async with asyncio.timeout(LIMIT_S):
        while not path.exists():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.02)


async def test_what_was_said_before_a_signal_counts_though_it_was_not_read_yet(desk: Desk) -> None:
    """An adapter that had no time to read (here it is stopped) reads what its program said before it dies itself."""
    go, hang = desk.root / "go", desk.root / "hang"
    steps = [{"until": str(go)}, s.STEP, s.text("So."), s.step_ends(), {"hang": str(hang)}]
    process = desk.begin("opencode", steps)
    await there(desk.script.with_suffix(".seen"))
    process.send_signal(signal.SIGSTOP)
    go.touch()
    await there(hang)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    came = await asyncio.to_thread(desk.came, process)
    assert came.code == -signal.SIGTERM
    assert came.result is not None
    assert (came.result["outcome"], came.result["usage"]["usd"]) == ("retry", 0.000138)


@pytest.mark.skipif(sys.platform != "linux", reason="watches processes by pidfd")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_takes_the_program_along(desk: Desk, number: signal.Signals) -> None:
    """The adapter dies by the signal it got, the program with it; what the run has cost is handed back."""
    hang = desk.root / "hang"
    process = desk.begin("opencode", [s.STEP, s.text("So."), s.step_ends(), {"hang": str(hang)}])
    await there(hang)
    process.send_signal(number)
    came = await asyncio.to_thread(desk.came, process)
    assert came.code == -number
    await asyncio.wait_for(all_gone([int(hang.read_text())]), LIMIT_S)
    assert came.result is not None
    assert (came.result["outcome"], came.result["usage"]["usd"]) == ("retry", 0.000138)


def test_no_run_of_tireless() -> None:
    """Started by hand it says what is missing."""
    done = subprocess.run(
        [sys.executable, "-m", "tireless.adapters.claude"], cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "TIRELESS_PROMPT_FILE" in done.stderr
    assert "docs/agents.md" in done.stderr


def test_missing_program(desk: Desk) -> None:
    """A program that is not installed is named, with what to do."""
    desk.program.unlink()
    came = desk.claude()
    assert (came.code, came.result) == (127, None)
    assert "install it or name it by --program" in came.err


def test_claude_is_told_what_it_may_cost(desk: Desk) -> None:
    """With a cap the program is told what is left; stopped there it is tried again, which the cap then parks."""
    desk.extra = {"TIRELESS_USD_LEFT": "1.250000"}
    steps = [s.INIT, s.says("Hm."), s.ends(subtype="error_max_budget_usd", is_error=True, total_cost_usd=1.26)]
    came = desk.claude(*steps)
    assert desk.seen["argv"][desk.seen["argv"].index("--max-budget-usd") + 1] == "1.250000"
    assert outcome(came) == "retry"
    assert came.result is not None
    assert came.result["usage"]["usd"] == 1.26
    own = desk.claude(*steps, words=("--max-budget-usd=1",))
    assert [word for word in desk.seen["argv"] if word.startswith("--max-budget-usd")] == ["--max-budget-usd=1"]
    assert outcome(own) == "failed"


def test_sums_are_progress(desk: Desk) -> None:
    """Every step's cost is told as it is seen, as the total so far; the last sum is the result's."""
    came = desk.opencode(s.STEP, s.text("One."), s.step_ends(0.5), s.STEP, s.text("Two."), s.step_ends(0.25))
    sums = [line["usage"] for line in came.progress if "usage" in line]
    assert came.result is not None
    assert [each["usd"] for each in sums] == [0.5, 0.75]
    assert sums[-1] == came.result["usage"]
    for line in came.progress:
        jsonschema.validate(line, json.loads((SCHEMAS / "progress.schema.json").read_text()))
