"""A door in front of the database that a test can shut: cut at a statement, before or after it took place; stalled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from psycopg import conninfo

When = Literal["before", "after"]


@dataclass(slots=True)
class Cut:
    """Connections end at a statement that contains `words`: before it reaches the server, or in place of its answer.

    `shut`: nobody gets in again until `mend`.
    """

    words: bytes
    when: When
    shut: bool
    times: int
    reached: asyncio.Event = field(default_factory=asyncio.Event)


class DatabaseProxy:
    """`async with DatabaseProxy(dsn) as proxy:` clients use `proxy.dsn`."""

    def __init__(self, dsn: str) -> None:
        self._parts = {key: value for key, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cuts: list[Cut] = []
        self._open = asyncio.Event()
        self._open.set()
        self._shut = False
        self.accepted = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.dsn = conninfo.make_conninfo("", **{**self._parts, "host": "127.0.0.1", "port": port})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.break_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut_at(self, words: bytes, when: When = "before", *, shut: bool = False, times: int = 1) -> Cut:
        """Cut the connection at the next statements with these words."""
        self._cuts.append(cut := Cut(words, when, shut, times))
        return cut

    def shut(self) -> None:
        """Break every connection and let nobody in."""
        self._shut = True
        self.break_all()

    def stall(self) -> None:
        """From now on nothing gets through, and nothing is closed: a network that swallows packets."""
        self._open.clear()

    def mend(self) -> None:
        """As if nothing had been."""
        self._shut = False
        self._open.set()

    def break_all(self) -> None:
        """Break every connection there is."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        to_server: asyncio.StreamWriter | None = None
        try:
            if self._shut:
                return
            server, to_server = await self._connect()
            answers: asyncio.Queue[Cut] = asyncio.Queue()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(client, to_server, answers))
                group.create_task(self._down(server, to_client, answers))
        except* (_Broken, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for writer in (to_client, to_server):
                if writer is not None:
                    with contextlib.suppress(ConnectionError):
                        writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(self._parts.get("host", "")), int(self._parts.get("port", 5432))
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _up(
        self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter, answers: asyncio.Queue[Cut]
    ) -> None:
        while data := await client.read(65_536):
            await self._open.wait()
            for cut in [each for each in self._cuts if each.times and each.words in data]:
                cut.times -= 1
                if cut.when == "before":
                    self._strike(cut)
                answers.put_nowait(cut)
            to_server.write(data)
            await to_server.drain()
        raise _Broken

    async def _down(
        self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter, answers: asyncio.Queue[Cut]
    ) -> None:
        async for data in self.answers(server):
            await self._open.wait()
            if not answers.empty():
                self._strike(answers.get_nowait())
            to_client.write(data)
            await to_client.drain()
        raise _Broken

    async def answers(self, server: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """What one session's server says, in the pieces in which it is passed on; for whoever looks into it."""
        while data := await server.read(65_536):
            yield data

    def _strike(self, cut: Cut) -> None:
        if cut.shut:
            self.shut()
        cut.reached.set()
        raise _Broken


class _Broken(Exception):
    """One side has gone, or was made to go."""
