"""The loopback forge's outermost layer: notes each request, strikes with the faults, writes the Date header."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from email.utils import formatdate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tireless.loopback.faults import Fault, Faults, call_back
from tireless.loopback.journal import BODY_KEPT, Journal, Recorded
from tireless.loopback.world import World

ADMIN = "/_loopback/"


class Gone(Exception):
    """The client closed the connection while a fault held its request."""


class Gate:
    """ASGI middleware. The whole request is read first and the whole answer collected, so that faults are exact."""

    def __init__(self, app: ASGIApp, *, world: World, journal: Journal, faults: Faults) -> None:
        self._app = app
        self._world = world
        self._journal = journal
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(ADMIN):
            await self._app(scope, receive, send)
            return
        record = self._journal.open(
            at=self._world.clock.now(),
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
        )
        body = await _read(receive)
        if body is None:
            return
        record.size = len(body)
        record.headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name != b"authorization"
        }
        if b"json" in dict(scope["headers"]).get(b"content-type", b"") and len(body) <= BODY_KEPT:
            record.body = body.decode("utf-8", "replace")
        scope["loopback.record"] = record
        try:
            await self._answer(scope, receive, send, body, record)
        except Gone:
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send, body: bytes, record: Recorded) -> None:
        record.login = self._world.login_of(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))
        faults = self._faults.striking(record)
        for fault in faults:
            if fault.plan.when == "before" and not await self._strike(fault, record, receive, send, None):
                return
        collected = await self._run(scope, receive, body)
        record.status = collected[0]["status"]
        for fault in faults:
            if fault.plan.when == "after" and not await self._strike(fault, record, receive, send, collected):
                return
        for message in self._dated(collected):
            await send(message)

    async def _run(self, scope: Scope, receive: Receive, body: bytes) -> list[Message]:
        """The real answer, whole."""
        given = False
        collected: list[Message] = []

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def collect(message: Message) -> None:
            collected.append(message)

        await self._app(scope, replay, collect)
        return collected

    async def _strike(
        self, fault: Fault, record: Recorded, receive: Receive, send: Send, collected: list[Message] | None
    ) -> bool:
        """Carry a fault out. True: go on as if nothing had been."""
        match fault.plan.do:
            case "call":
                await call_back(fault, record)
                return True
            case "block":
                fault.reached.set()
                await _released_or_gone(fault, receive)
                return True
            case "cut":
                record.status = -1
                headers = [(b"content-length", b"1000"), (b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": b'{"id":', "more_body": True})
                fault.reached.set()
                return False  # ending without the rest makes the server close the connection
            case "garble":
                status, whole = 200, b'{"garbled":'
                if collected is not None:
                    status, whole = collected[0]["status"], b"".join(each.get("body", b"") for each in collected[1:])
                half = whole[: len(whole) // 2] if len(whole) > 1 else b"{"
                await self._send_plain(send, record, status, {"Content-Type": "application/json"}, half)
            case "answer":
                await self._send_plain(send, record, fault.plan.status, fault.plan.headers, fault.plan.body)
        fault.reached.set()
        return False

    async def _send_plain(
        self, send: Send, record: Recorded, status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        record.status = status
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        raw.append((b"content-length", str(len(body)).encode()))
        start: Message = {"type": "http.response.start", "status": status, "headers": raw}
        for message in self._dated([start, {"type": "http.response.body", "body": body}]):
            await send(message)

    def _dated(self, messages: list[Message]) -> list[Message]:
        """With the Date header the rules ask for."""
        rule = self._world.rules.date
        if rule == "absent" or not messages:
            return messages
        if rule == "true":
            text = formatdate(self._world.clock.now(), usegmt=True)
        elif rule[:1] in "+-" and rule[1:].isdigit():
            text = formatdate(self._world.clock.now() + int(rule), usegmt=True)
        else:
            text = rule
        start = {**messages[0], "headers": [*messages[0].get("headers", []), (b"date", text.encode("latin-1"))]}
        return [start, *messages[1:]]


async def _read(receive: Receive) -> bytes | None:
    """The request's body; None when the client went away."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _released_or_gone(fault: Fault, receive: Receive) -> None:
    """Wait at a fault; Gone when the client closes the connection first."""
    released = asyncio.ensure_future(fault.released.wait())
    gone = asyncio.ensure_future(receive())  # the body is read: the only message left is the disconnect
    try:
        await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            # a killed client's end of the line may lie in the kernel still: let the loop see it
            await asyncio.wait({gone}, timeout=0.05)
        if gone.done():
            raise Gone
    finally:
        for each in (released, gone):
            each.cancel()
