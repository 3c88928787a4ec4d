"""Sees every external effect of `serve` and `run`, and kills its maker right after it, before he hears of it.

An effect is a request that changed the forge, a git command of ours that changes something, or a COMMIT that changed
rows of a job's life. Requests are seen by the forge itself; commits by a door in front of the database, which does not
pass on the server's word that the transaction is over; git by a wrapper on PATH, whose git has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from tests.support.forges import FaultPlan
from tests.support.killing import Installation, Who
from tests.support.proxies import DatabaseProxy
from tireless.loopback.journal import Recorded
from tireless.store.db import connect

Kind = Literal["forge", "git", "commit"]


@dataclass(frozen=True, slots=True)
class Effect:
    """The `nth` effect of its sort since everything began."""

    who: Who
    kind: Kind
    what: str
    nth: int

    @property
    def sort(self) -> tuple[Who, Kind, str]:
        """What it has in common with others."""
        return self.who, self.kind, self.what

    def __str__(self) -> str:
        return f"{self.who}, {self.kind}: {self.what} ({self.nth})"


@dataclass
class Watch:
    """What was seen so far. `aim` says which effect its maker does not survive; one death at a time, until `mend`."""

    place: Installation
    aim: Callable[[Effect], bool] = lambda _: False
    seen: list[Effect] = field(default_factory=list)
    struck: Effect | None = None
    death: asyncio.Event = field(default_factory=asyncio.Event)
    counts: Counter[tuple[Who, Kind, str]] = field(default_factory=Counter)

    def saw(self, who: Who, kind: Kind, what: str) -> bool:
        """Note an effect; True: its maker is dead."""
        sort = (who, kind, what)
        self.counts[sort] += 1
        effect = Effect(who, kind, what, self.counts[sort])
        self.seen.append(effect)
        process = self.place.running.get(who)
        if self.struck is not None or process is None or not self.aim(effect):
            return False
        self.struck = effect
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.process.pid, signal.SIGKILL)
        self.death.set()
        return True

    def mend(self) -> None:
        """Whoever died was replaced: aim again."""
        self.struck = None
        self.death.clear()


@asynccontextmanager
async def watching(place: Installation) -> AsyncIterator[Watch]:
    """Watch an installation in which nothing of ours runs yet."""
    watch = Watch(place)
    async with AsyncExitStack() as stack:
        await _watch_forge(watch)
        await stack.enter_async_context(_watch_git(watch))
        await place.conn.execute(_NOTES.encode())
        for who in ("serve", "run"):
            door = await stack.enter_async_context(_Door(place.dsn, watch, who))
            stack.push_async_callback(door.notes.close)
            place.env.setdefault(who, {})["TIRELESS_DATABASE__URL"] = door.dsn
        stack.push_async_callback(place.end)
        yield watch


# ------------------------------------------------------------------------------------------------ the forge

_NUMBERS = re.compile(r"/\d+(?=/|$)")
_CHANGES = ("POST", "PUT", "PATCH", "DELETE")


async def _watch_forge(watch: Watch) -> None:
    here = asyncio.get_running_loop()
    bot = watch.place.town.bot.login

    async def note(record: Recorded) -> None:  # on the forge's own loop, which answers when this returns
        if record.method not in _CHANGES or record.login != bot or not 200 <= record.status < 300:
            return
        what = f"{record.method} {_NUMBERS.sub('/N', record.path)}"
        if what.endswith("git-upload-pack"):
            return
        who: Who = "run" if ".git/" in record.path else "serve"

        async def saw() -> None:
            watch.saw(who, "forge", what)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(saw(), here))

    await watch.place.loopback.fault(FaultPlan("*", "", "call", when="after", times=0, callback=note))


# ------------------------------------------------------------------------------------------------ git

# Whatever an agent calls, and git calls for git, is none of ours. The wrapper waits for an answer before it ends.
_WRAPPER = """\
#!/bin/sh
case ${{TIRELESS_RUN_MARK-}} in ?*) exec {git} "$@" ;; esac
skip= sub=
for word in "$@"; do
  case $skip,$word in
    yes,*) skip= ;;
    ,-c|,--git-dir) [ -n "$sub" ] || skip=yes ;;
    ,-*) ;;
    *) [ -n "$sub" ] || sub=$word ;;
  esac
done
case $sub in
  init|fetch|update-ref|config|checkout|push|bundle|read-tree|add|write-tree|hash-object|update-index|gc) ;;
  *) exec {git} "$@" ;;
esac
{git} "$@"
code=$?
if [ $code = 0 ] && mkfifo {place}/heard.$$; then
  echo "$$ $PPID $sub" > {place}/said
  read answer < {place}/heard.$$
  rm -f {place}/heard.$$
fi
exit $code
"""


@asynccontextmanager
async def _watch_git(watch: Watch) -> AsyncIterator[None]:
    place = watch.place.home / "git-calls"
    place.mkdir()
    (place / "bin").mkdir()
    wrapper = place / "bin" / "git"
    wrapper.write_text(_WRAPPER.format(git=shutil.which("git"), place=place))
    wrapper.chmod(0o755)
    os.mkfifo(place / "said")
    said = os.open(place / "said", os.O_RDWR | os.O_NONBLOCK)
    watch.place.env["run"] = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}
    here, text = asyncio.get_running_loop(), b""

    def hear() -> None:
        nonlocal text
        text += os.read(said, 65_536)
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            pid, parent, command = line.decode().split()
            runner = watch.place.running.get("run")
            if runner is not None and runner.process.pid == int(parent):
                watch.saw("run", "git", f"git {command}")
            answer(place / f"heard.{pid}")

    def answer(pipe: Path) -> None:
        try:
            reader = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # it has not opened it yet, or was killed
            if pipe.exists():
                here.call_later(0.002, answer, pipe)
            return
        os.write(reader, b"on\n")
        os.close(reader)

    here.add_reader(said, hear)
    try:
        yield
    finally:
        here.remove_reader(said)
        os.close(said)


# ------------------------------------------------------------------------------------------------ the database

# Columns that only say when something was looked at, or who is looking, are no step of a job's life.
_NOTES = """
CREATE TABLE test_note (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, backend int NOT NULL, what text NOT NULL);
CREATE FUNCTION test_note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  was   jsonb := CASE WHEN TG_OP = 'INSERT' THEN '{}' ELSE to_jsonb(OLD) END;
  now   jsonb := CASE WHEN TG_OP = 'DELETE' THEN '{}' ELSE to_jsonb(NEW) END;
  moved text;
BEGIN
  SELECT string_agg(n.key, ',' ORDER BY n.key) INTO moved FROM jsonb_each(now) n
   WHERE n.value IS DISTINCT FROM was -> n.key AND n.key <> ALL (coalesce(TG_ARGV, '{}'));
  IF TG_OP = 'UPDATE' AND moved IS NULL THEN
    RETURN NULL;
  END IF;
  INSERT INTO test_note (backend, what) VALUES (pg_backend_pid(), concat_ws(' ', TG_TABLE_NAME,
    CASE WHEN TG_TABLE_NAME IN ('job', 'child') THEN coalesce(now ->> 'kind', was ->> 'kind') END,
    CASE WHEN TG_OP = 'INSERT' THEN 'made' WHEN TG_OP = 'DELETE' THEN 'deleted'
         WHEN was ->> 'state' <> now ->> 'state' THEN (was ->> 'state') || ' to ' || (now ->> 'state') ELSE moved END));
  RETURN NULL;
END $$;
CREATE TRIGGER zzz_note AFTER INSERT OR UPDATE OR DELETE ON job FOR EACH ROW
  EXECUTE FUNCTION test_note('claim_expires_at');
CREATE TRIGGER zzz_note AFTER INSERT OR UPDATE OR DELETE ON attempt FOR EACH ROW EXECUTE FUNCTION test_note();
CREATE TRIGGER zzz_note AFTER INSERT OR UPDATE OR DELETE ON child FOR EACH ROW EXECUTE FUNCTION test_note();
CREATE TRIGGER zzz_note AFTER INSERT OR UPDATE OR DELETE ON request FOR EACH ROW EXECUTE FUNCTION test_note();
CREATE TRIGGER zzz_note AFTER INSERT ON verdict FOR EACH ROW EXECUTE FUNCTION test_note();
CREATE TRIGGER zzz_note AFTER INSERT ON output_chunk FOR EACH ROW EXECUTE FUNCTION test_note();
CREATE TRIGGER zzz_note AFTER INSERT OR DELETE ON look FOR EACH ROW EXECUTE FUNCTION test_note();
CREATE TRIGGER zzz_note AFTER INSERT OR UPDATE ON issue FOR EACH ROW
  EXECUTE FUNCTION test_note('asked_at', 'seen_at', 'updated_at', 'settled', 'labels', 'approved_at');
CREATE TRIGGER zzz_note AFTER INSERT OR UPDATE ON mirror FOR EACH ROW
  EXECUTE FUNCTION test_note('told_at', 'not_before', 'take_by', 'take_until');
"""
_NEW_NOTES = """
SELECT seq, what FROM test_note WHERE backend = %(backend)s AND seq > %(after)s ORDER BY seq
"""
_KEY, _READY = b"K", b"Z"


class _Door(DatabaseProxy):
    """Lets a client hear that a transaction is over when its changes are noted; never, if he is to die of it."""

    def __init__(self, dsn: str, watch: Watch, who: Who) -> None:
        super().__init__(dsn)
        self._watch = watch
        self._who: Who = who
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self.notes = await connect(self._watch.place.dsn, application_name="tireless test notes")
        return await super().__aenter__()

    async def answers(self, server: asyncio.StreamReader) -> AsyncIterator[bytes]:
        backend, last, began = 0, 0, False
        came = bytearray()
        while data := await server.read(65_536):
            came += data
            if not began and bytes(came[:1]) in (b"N", b"S", b"G"):  # to a client that asked for encryption; not framed
                yield bytes([came.pop(0)])
            ready = bytearray()
            while frame := _frame(came):
                began = True
                del came[: len(frame)]
                ready += frame
                if frame[:1] == _KEY:
                    backend = struct.unpack("!i", frame[5:9])[0]
                elif frame[:1] == _READY and frame[5:] == b"I":
                    last, dead = await self._committed(backend, last)
                    if dead:
                        return  # the connection ends, and nothing of the answer was passed on
            if ready:
                yield bytes(ready)

    async def _committed(self, backend: int, after: int) -> tuple[int, bool]:
        """Note what this session has committed since."""
        async with self._asking:
            asked = await self.notes.execute(_NEW_NOTES.encode(), {"backend": backend, "after": after})
            notes = await asked.fetchall()
        if not notes:
            return after, False
        return notes[-1][0], self._watch.saw(self._who, "commit", " + ".join(sorted({what for _, what in notes})))


def _frame(came: bytearray) -> bytes:
    """The first whole message of what came; empty when there is none yet."""
    if len(came) < 5:
        return b""
    size = 1 + struct.unpack("!i", came[1:5])[0]
    return bytes(came[:size]) if len(came) >= size else b""
