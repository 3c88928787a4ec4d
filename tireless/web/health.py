"""`/healthz` (is this process alive and its loops ticking) and `/readyz` (can it do its work); both only look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tireless.errors import StoreError
from tireless.store.db import Pool, clock

_ASK_S = 3.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """How a loop stands. `age_s`: since its last successful tick, or since the start when there was none."""

    name: str
    ok: bool
    started: bool
    age_s: float
    failures: int
    error: str | None


Pulses = Callable[[], Sequence[Pulse]]


def healthz(pulses: Pulses) -> Callable[[Request], Awaitable[Response]]:
    """200 while every loop has had a successful tick not too long ago, else 503: start the process again."""

    async def answer(_request: Request) -> Response:
        found = pulses()
        ok = all(each.ok for each in found)
        return JSONResponse({"ok": ok, "loops": [asdict(each) for each in found]}, 200 if ok else 503)

    return answer


def readyz(pulses: Pulses, pool: Pool) -> Callable[[Request], Awaitable[Response]]:
    """200 once every loop has ticked and the database answers, else 503 with what is missing."""

    async def answer(_request: Request) -> Response:
        missing = [f"{each.name} has not succeeded yet" for each in pulses() if not each.started]
        try:
            async with asyncio.timeout(_ASK_S), pool.connection() as conn:
                await clock(conn)
        except (StoreError, TimeoutError) as error:
            missing.append(f"the database does not answer: {str(error) or f'no answer within {_ASK_S:g} s'}")
        return JSONResponse({"ok": not missing, "missing": missing}, 503 if missing else 200)

    return answer
