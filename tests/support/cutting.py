"""A door in front of the database that cuts a connection at its n-th statement: before it, during it, or after it.

Counts what the client waits for an answer to: one query, or one extended query up to its Sync; BEGIN and COMMIT too.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Literal, Self

from psycopg import conninfo

When = Literal["before", "during", "after"]
"""Before it reaches the server; as it is sent, whatever becomes of it; after it took place, in place of its answer."""

_ASKS = b"QS"
_READY = b"Z"


class Cutter:
    """`async with Cutter(dsn) as door:` clients use `door.dsn`; one connection at a time."""

    def __init__(self, dsn: str) -> None:
        self._parts = {key: value for key, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answered = asyncio.Event()
        self.arm(None)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        plain = {"host": "127.0.0.1", "port": port, "sslmode": "disable", "gssencmode": "disable"}
        self.dsn = conninfo.make_conninfo("", **{**self._parts, **plain})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def arm(self, at: int | None, when: When = "before") -> None:
        """Count from here; cut at this statement (the first is 1), or never."""
        self.count, self.at, self.when, self._struck = 0, at, when, False

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server, to_server = await self._connect()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(client, to_server))
                group.create_task(self._down(server, to_client))
        except* (_Cut, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for writer in (to_client, to_server):
                with contextlib.suppress(ConnectionError):
                    writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(self._parts.get("host", "")), int(self._parts.get("port", 5432))
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _up(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        to_server.write(await _message(client, typed=False))  # the startup packet has no type
        asked = b""
        while True:
            message = await _message(client)
            asked += message
            if message[:1] in _ASKS:
                await self._ask(asked, to_server)
            elif message[:1] == b"p":  # a password
                to_server.write(asked)
            else:
                continue
            asked = b""

    async def _ask(self, asked: bytes, to_server: asyncio.StreamWriter) -> None:
        self.count += 1
        self._struck = self.count == self.at
        if self._struck and self.when == "before":
            raise _Cut
        self._answered.clear()
        to_server.write(asked)
        await to_server.drain()
        if self._struck and self.when == "after":
            await self._answered.wait()
        if self._struck:
            raise _Cut

    async def _down(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while True:
            message = await _message(server)
            if not self._struck:
                to_client.write(message)
                await to_client.drain()
            elif message[:1] == _READY:
                self._answered.set()


async def _message(stream: asyncio.StreamReader, *, typed: bool = True) -> bytes:
    """One message of PostgreSQL's protocol, whole."""
    head = await stream.readexactly(5 if typed else 4)
    return head + await stream.readexactly(int.from_bytes(head[-4:], "big") - 4)


class _Cut(Exception):
    """The connection ends here."""
