"""A small installation for tests that kill: forge, database, `serve` and `run` as processes; and moments to kill at.

A moment is reached when a process waits in it: at the forge, before or after the effect of a request; at the database,
in the middle of a write; in the agent. Nobody sleeps: what a wait would bring is moved in the rows of the dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, LiteralString, Protocol

from psycopg import sql

from tests.support import recorder
from tests.support.cli import Running, closed
from tests.support.forges import FaultPlan, LoopbackForge, admin
from tests.support.processes import empty_place, living
from tireless.demo import agent
from tireless.demo.forge_side import read_forge
from tireless.demo.people import Town, act, settle_in
from tireless.demo.row_side import read_rows
from tireless.demo.sides import Rows, Side, differences
from tireless.demo.story import STEADY, SWIFT, Scene
from tireless.domain.labels import LabelScheme, label_specs
from tireless.domain.routing import Lane
from tireless.store.db import Connection, Pool, connect

Who = Literal["serve", "run"]

LIMIT_S = 120.0
"""How long anything waited for may take before the test fails."""

SCENES = (
    Scene(
        "Sort widgets",
        "One request, one pull request.",
        labels=("tireless/go", "tireless/implement"),
        kind="implement",
        lane=SWIFT,
        state="delivered",
    ),
    Scene(
        "Import parts",
        "A plan with three children, one of which depends on another.",
        labels=("tireless/go", "tireless/plan"),
        kind="plan",
        lane=STEADY,
        state="delivered",
        children=3,
    ),
    Scene("Drop the format", "A mode, and no opt-in.", labels=("tireless/implement",), reason="no_opt_in"),
)

Reached = Callable[[], Awaitable[None]]
"""Returns when a process waits in the moment."""

_CONFIG = """\
[database]
url = {database}
[forges.demo]
url = {url}
token_file = "token"
repositories = [{repository}]
timeout = "{timeout_s}s"
[lanes.{steady}]
kinds = ["discover", "plan"]
default = true
command = {command}
lease = "{lease_s}s"
attempts = {attempts}
[lanes.{swift}]
kinds = ["implement"]
command = {command}
lease = "{lease_s}s"
attempts = {attempts}
[runner]
root = {root}
idle_poll = "1s"
stop_grace = "500ms"
lease_margin = "1s"
[web]
enabled = false
[poll]
interval = "1s"
[sweep]
interval = "1s"
"""


@dataclass(slots=True)
class Installation:
    """Everything of one test. `cast`: which issue plays which scene."""

    home: Path
    loopback: LoopbackForge
    town: Town
    cast: dict[int, Scene]
    conn: Connection
    pool: Pool
    dsn: str
    running: dict[Who, Running] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    env: dict[Who, dict[str, str]] = field(default_factory=dict)
    """What else stands in the environment of a process."""

    # ------------------------------------------------------------------ processes

    async def start(self, who: Who) -> None:
        """Start `serve`, or a `run` of both lanes that does one job at a time."""
        lanes = ["--lane", STEADY, "--lane", SWIFT] if who == "run" else []
        process = Running(who, "--config", self.home / "tireless.toml", *lanes, home=self.home, env=self.env.get(who))
        self.running[who] = await process.__aenter__()

    async def kill(self, who: Who) -> None:
        """SIGKILL, as the kernel or an operator in a hurry does it."""
        process = self.running.pop(who)
        with contextlib.suppress(ProcessLookupError):
            process.process.send_signal(signal.SIGKILL)
        await process.__aexit__(None, None, None)
        self.logs += [f"--- {who}, killed", *process.lines]

    async def reach(self, reached: Reached) -> None:
        """Wait for a moment; a process that ends before it is a failure."""
        moment = asyncio.ensure_future(reached())
        ends = {who: asyncio.ensure_future(process.process.wait()) for who, process in self.running.items()}
        await asyncio.wait([moment, *ends.values()], return_when=asyncio.FIRST_COMPLETED)
        ended = [line for who, end in ends.items() if end.done() for line in (who, *self.running[who].lines)]
        for end in ends.values():
            end.cancel()
        if ended:
            moment.cancel()
            raise AssertionError("it ended:\n" + "\n".join(ended))
        await moment

    async def end(self) -> None:
        """Kill what still runs."""
        for who in list(self.running):
            await self.kill(who)

    async def agents_gone(self) -> None:
        """Wait until no agent, and no guard of one, lives; git may still be bringing its call to an end."""
        async with asyncio.timeout(LIMIT_S):
            while self.agents():  # noqa: ASYNC110 - the processes are nobody's children here
                await asyncio.sleep(0.02)

    def agents(self) -> list[str]:
        """The command lines of agents, and guards of agents, that live."""
        return [words for words in living(self.home).values() if "recorder.py" in words or "guard" in words]

    # ------------------------------------------------------------------ time

    async def time_passes(self, dead: Who) -> None:
        """As if everybody had waited for ten minutes, for what a dead process left behind: its claims or its takes.

        First the database has to be done with what it was still sent.
        """
        await self.takes_end(dead)
        for statement in _SENT if dead == "serve" else ():
            await self.conn.execute(statement)

    async def waits_end(self) -> None:
        """As if ten minutes had passed since what was sent to the forge was sent, and who waits for it had noticed."""
        for statement in (*_SENT, *_WAITED):
            await self.conn.execute(statement)

    async def takes_end(self, dead: Who) -> None:
        """Only the claims or takes of a dead process are over; what it sent to the forge was sent a moment ago."""
        await self.asked(_NO_SESSION, f"tireless {dead}")
        for statement in _TAKEN[dead]:
            await self.conn.execute(statement)

    async def asked(self, question: LiteralString, *words: str) -> None:
        """Ask the rows until they give one."""
        await _until(self.conn, question, *words)

    # ------------------------------------------------------------------ the end

    async def rests(self, expected: Mapping[int, Scene]) -> tuple[Rows, Side]:
        """Wait until nothing is left to be told and both sides are as `expected`; a failure says what differs."""
        wrong = ["nothing was compared"]
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    wrong, rows, side = await self.compared(expected)
                    if not wrong:
                        return rows, side
                    for who, process in self.running.items():
                        assert process.process.returncode is None, f"{who} ended:\n" + "\n".join(process.lines)
                    for statement in _NOT_ASKED:
                        await self.conn.execute(statement)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(self.told(wrong)) from None

    async def compared(self, expected: Mapping[int, Scene]) -> tuple[list[str], Rows, Side]:
        """What is not as `expected`, or is still to be told, as of now; the forge is asked when all rests."""
        quiet = await (await self.conn.execute(_QUIET)).fetchone()
        rows = await read_rows(self.pool)
        wanted = {number: scene.state for number, scene in expected.items() if scene.asks}
        states = {job.number: job.state for job in rows.jobs}
        if not quiet or states != wanted:
            return [f"something is left to be told, or to be done: {states}, want {wanted}"], rows, Side()
        side = await read_forge(self.town.owner, self.town.repository, bot=self.town.bot.login)
        return differences(expected, rows, side), rows, side

    def told(self, wrong: Sequence[str]) -> str:
        """What is wrong, and what everybody logged."""
        alive = [line for who, process in self.running.items() for line in (f"--- {who}", *process.lines)]
        return "\n".join([*wrong, *self.logs, *alive])

    def recorded(self, what: str) -> list[dict[str, Any]]:
        """What the agents noted of themselves."""
        path = self.home / "agents" / "records"
        lines = path.read_text().splitlines() if path.exists() else []
        return [each for each in map(json.loads, lines) if each["what"] == what]

    def runs(self) -> Counter[int]:
        """How many agents began, by issue."""
        return Counter(each["issue"] for each in self.recorded("begin"))

    async def had(self) -> int:
        """The issue that a killed `run`, which does one at a time, was at; the gate is still closed."""
        jobs = [job for job in (await read_rows(self.pool)).jobs if job.holds_claim]
        if jobs:
            return jobs[0].number
        return self.number_of("implement")  # its claim is being written

    def branches(self) -> dict[str, str]:
        """Our branches on the forge and their commits."""
        world = self.loopback.world
        repo = world.repo(*self.town.repository.split("/"))
        assert repo is not None
        command = ["git", "-c", "safe.directory=*", "--git-dir", str(world.git_dir(repo)), "for-each-ref"]
        command += ["--format=%(refname:lstrip=2) %(objectname)", "refs/heads/tireless/"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return dict(line.split(" ") for line in listed.splitlines())

    async def pushed(self) -> None:
        """Wait until a branch of ours is on the forge."""
        async with asyncio.timeout(LIMIT_S):
            while not self.branches():  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.05)

    def number_of(self, kind: str) -> int:
        """The issue that asks for this kind of job."""
        (number,) = [number for number, scene in self.cast.items() if scene.kind == kind]
        return number

    def with_attempts(self, attempts: Mapping[int | None, int]) -> dict[int, Scene]:
        """The cast, where some issues take another number of attempts."""
        return {
            number: replace(scene, attempts=attempts.get(number, scene.attempts)) for number, scene in self.cast.items()
        }


_QUIET = "SELECT 1 WHERE NOT EXISTS (SELECT FROM mirror WHERE changed > told)"
_NO_SESSION = """
SELECT 1 WHERE NOT EXISTS (
  SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s)
"""
_TAKEN: Mapping[Who, Sequence[LiteralString]] = {
    "run": ("UPDATE job SET claim_expires_at = clock_timestamp() WHERE state = 'claimed'",),
    "serve": (
        "UPDATE job SET publish_until = clock_timestamp() WHERE publish_until IS NOT NULL",
        "UPDATE mirror SET take_until = clock_timestamp() WHERE take_until IS NOT NULL",
        "UPDATE look SET take_until = clock_timestamp() WHERE take_until IS NOT NULL",
        "UPDATE repository SET take_until = clock_timestamp() WHERE take_until IS NOT NULL",
    ),
}
# Who asked for nothing is told after ten seconds in which labels might still come.
_NOT_ASKED: Sequence[LiteralString] = (
    "UPDATE issue SET triaged_at = triaged_at - interval '10 s' WHERE triaged_at > clock_timestamp() - interval '10 s'",
    """
    UPDATE mirror m SET paced_until = clock_timestamp()
     WHERE m.paced_until > clock_timestamp() AND NOT EXISTS (SELECT FROM job j WHERE j.issue_id = m.issue_id)
    """,
)
_SENT: Sequence[LiteralString] = (
    "UPDATE attempt SET pr_sent_at = pr_sent_at - interval '10 min' WHERE pr_sent_at IS NOT NULL",
    "UPDATE child SET sent_at = sent_at - interval '10 min' WHERE sent_at IS NOT NULL",
    "UPDATE mirror SET comment_sent_at = comment_sent_at - interval '10 min' WHERE comment_sent_at IS NOT NULL",
)

_WAITED: Sequence[LiteralString] = (
    "UPDATE job SET publish_not_before = clock_timestamp() WHERE publish_not_before > clock_timestamp()",
    "UPDATE mirror SET not_before = clock_timestamp() WHERE not_before > clock_timestamp()",
)


async def _until(conn: Connection, question: LiteralString, *words: str) -> None:
    """Ask until it gives a row."""
    async with asyncio.timeout(LIMIT_S):
        while not await (await conn.execute(question, words)).fetchone():  # noqa: ASYNC110 - a row
            await asyncio.sleep(0.02)


@asynccontextmanager
async def installation(
    dsn: str,
    pool: Pool,
    *,
    scenes: Sequence[Scene] = SCENES,
    lease_s: int = 600,
    timeout_s: int = 10,
    attempts: int = 3,
    agent_file: str = agent.__file__,
) -> AsyncIterator[Installation]:
    """Forge, people, labelled issues, configuration; nothing of ours runs yet. Nothing is left at the end.

    `timeout_s`: of the forge; thrice that is waited for what was sent and not answered. `agent_file`: what works on
    the issues, a file with a `main`.
    """
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(empty_place())
        loopback = await stack.enter_async_context(LoopbackForge(home / "git"))
        async with admin(loopback) as site_admin:
            town = await settle_in(site_admin)
        stack.push_async_callback(town.close)
        for spec in label_specs(LabelScheme(), [Lane(STEADY), Lane(SWIFT)]):
            if spec.name in {label for scene in scenes for label in scene.labels}:
                await town.owner.create_label(town.repository, spec.name, exclusive=spec.exclusive)
        cast = await act(town, later=lambda: loopback.advance(2), scenes=scenes)
        (home / "agents").mkdir()
        command = [sys.executable, "-I", "-S", recorder.__file__, agent_file, str(home / "agents")]
        _configure(home, town, dsn, command=command, lease_s=lease_s, timeout_s=timeout_s, attempts=attempts)
        conn = await connect(dsn, application_name="tireless test")
        stack.push_async_callback(conn.close)
        made = Installation(home, loopback, town, cast, conn, pool, dsn)
        stack.push_async_callback(made.end)
        yield made


def _configure(
    home: Path, town: Town, dsn: str, *, command: Sequence[str], lease_s: int, timeout_s: int, attempts: int
) -> None:
    text = _CONFIG.format(
        database=json.dumps(dsn),
        url=json.dumps(town.owner.url),
        repository=json.dumps(town.repository),
        command=json.dumps(command),
        root=json.dumps(str(home / "work")),
        steady=STEADY,
        swift=SWIFT,
        lease_s=lease_s,
        timeout_s=timeout_s,
        attempts=attempts,
    )
    closed(home / "token", town.bot.token)
    closed(home / "tireless.toml", text)


# ------------------------------------------------------------------------------------------------ moments


class At(Protocol):
    """Where a process can be made to wait."""

    def armed(self, place: Installation) -> AbstractAsyncContextManager[Reached]:
        """Once entered the moment may come; leaving lets go on who waits, or is still to come."""


@dataclass(frozen=True, slots=True)
class AtForge:
    """Such a request of the bot, before or after its effect. git names itself only when it was asked to."""

    method: str
    path: str
    when: Literal["before", "after"] = "before"
    nth: int = 1

    @asynccontextmanager
    async def armed(self, place: Installation) -> AsyncIterator[Reached]:
        """See At."""
        login = "" if ".git/" in self.path else place.town.bot.login
        plan = FaultPlan(self.method, self.path, "block", when=self.when, nth=self.nth, login=login)
        fault = await place.loopback.fault(plan)
        try:
            yield fault.reached
        finally:
            await fault.drop()


@dataclass(frozen=True, slots=True)
class LateAtForge:
    """Such a request of the bot lies in the forge, which carries it out later, when nobody is there to be answered."""

    method: str
    path: str

    @asynccontextmanager
    async def armed(self, place: Installation) -> AsyncIterator[Reached]:
        """See At."""
        here, came = asyncio.get_running_loop(), asyncio.Event()
        go_on: Future[None] = Future()

        async def lie_there(_: object) -> None:  # on the forge's own loop
            here.call_soon_threadsafe(came.set)
            await asyncio.wrap_future(go_on)

        plan = FaultPlan(self.method, self.path, "call", login=place.town.bot.login, callback=lie_there)
        await place.loopback.fault(plan)

        async def reached() -> None:
            await asyncio.wait_for(came.wait(), LIMIT_S)

        try:
            yield reached
        finally:
            go_on.set_result(None)

    async def arrived(self, place: Installation) -> None:
        """Wait until the forge has carried it out."""
        async with asyncio.timeout(LIMIT_S):
            while not self._is_done(place):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.02)

    def _is_done(self, place: Installation) -> bool:
        sent = [each for each in place.loopback.requests() if each.login == place.town.bot.login]
        return any(each.status and each.method == self.method and re.search(self.path, each.path) for each in sent)


@dataclass(frozen=True, slots=True)
class AtRow:
    """The middle of such a write. Whoever sends it is dead when it goes on: what is one statement is committed then,
    what is part of a transaction is rolled back.
    """

    table: str
    condition: LiteralString
    event: Literal["INSERT", "UPDATE"] = "UPDATE"

    @asynccontextmanager
    async def armed(self, place: Installation) -> AsyncIterator[Reached]:
        """See At."""
        trigger = _TRIGGER.format(
            event=sql.SQL(self.event), table=sql.Identifier(self.table), condition=sql.SQL(self.condition)
        )
        await place.conn.execute(_GATE)
        await place.conn.execute(trigger)
        holder = await connect(place.dsn, application_name="tireless test gate")
        await holder.execute("SELECT pg_advisory_lock(777, 777)")

        try:
            yield lambda: _until(place.conn, _WAITING)
        finally:
            await holder.close()  # the lock goes with its session


_GATE = """
CREATE OR REPLACE FUNCTION test_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(777, 777);
  RETURN NEW;
END $$
"""
# The last of its kind by name, so that the condition sees what the other triggers made of the row.
_TRIGGER = sql.SQL(
    "CREATE TRIGGER zz_test_gate BEFORE {event} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION test_gate()"
)
_WAITING = """
SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
 WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.classid = 777 AND l.objid = 777
   AND NOT l.granted
"""


@dataclass(frozen=True, slots=True)
class AtAgent:
    """An agent has begun and is at work."""

    kind: str

    @asynccontextmanager
    async def armed(self, place: Installation) -> AsyncIterator[Reached]:
        """See At."""
        hold = place.home / "agents" / f"hold-{self.kind}"
        os.mkfifo(hold)

        async def reached() -> None:
            async with asyncio.timeout(LIMIT_S):
                while not place.runs()[place.number_of(self.kind)]:  # noqa: ASYNC110 - a file
                    await asyncio.sleep(0.02)

        try:
            yield reached
        finally:
            hold.unlink()
