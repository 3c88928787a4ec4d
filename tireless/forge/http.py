"""One forge's HTTP door: authentication, limits, retries, status -> error. It knows no endpoint and no issue."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import httpx
import stamina

from tireless import __version__
from tireless.errors import ForgeGarbled, ForgeUnavailable, RateLimited
from tireless.forge.reply import Answer, AnswerTooLarge, error_of, excerpt

MAX_RETRY_AFTER_S = 10.0
"""A longer `Retry-After` is not slept on inside a call: it is raised, and the service that asked backs off."""

_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "PATCH", "DELETE"})

Params = Mapping[str, str | int]


class Budget:
    """At most `per_minute` requests a minute, with bursts of that size; a call waits its turn, but not for ever."""

    def __init__(self, per_minute: int, *, max_wait_s: float = 30.0) -> None:
        self._interval_s = 60.0 / per_minute
        self._burst_s = 60.0
        self._max_wait_s = max_wait_s
        self._next = float("-inf")  # the moment at which a bucket without any burst would be due

    def wait_s(self, now: float) -> float | None:
        """Take one request: seconds to wait before it may be sent, None when that is more than can be waited for."""
        due = max(self._next, now - self._burst_s)
        wait = due - now
        if wait > self._max_wait_s:
            return None
        self._next = due + self._interval_s
        return max(0.0, wait)


class Http:
    """The connection pool, limits and retries of one forge. `close()` it.

    Proxies and certificates named in the environment are not obeyed unless `trust_env` says so: the token would
    travel through a proxy nobody configured for it. A private authority is named with `ca_file`.
    """

    def __init__(
        self,
        *,
        name: str,
        url: str,
        token: str | None = None,
        basic: tuple[str, str] | None = None,
        timeout_s: float = 20.0,
        concurrency: int = 8,
        requests_per_minute: int = 3000,
        attempts: int = 3,
        retry_wait_s: float = 0.5,
        max_answer_bytes: int = 64 * 1024 * 1024,
        ca_file: Path | None = None,
        trust_env: bool = False,
    ) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self.requests = 0
        """Requests sent so far, retries included: what an idle round costs is measured with it."""
        self._token = token
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._retry_wait_s = retry_wait_s
        self._max_answer_bytes = max_answer_bytes
        self._budget = Budget(requests_per_minute)
        self._gate = asyncio.Semaphore(concurrency)
        headers = {"Accept": "application/json", "User-Agent": f"tireless/{__version__}"}
        if token:
            headers["Authorization"] = f"token {token}"  # lower case: servers up to 1.24 know no other spelling
        verify: bool | ssl.SSLContext = self.url.startswith("https:")
        if verify and ca_file is not None:
            verify = ssl.create_default_context(cafile=str(ca_file))
        self._client = httpx.AsyncClient(
            headers=headers,
            auth=basic,
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=trust_env,
            verify=verify,
            limits=httpx.Limits(max_connections=concurrency, keepalive_expiry=30.0),
        )

    async def close(self) -> None:
        """Close the pool; the object is of no use afterwards."""
        await self._client.aclose()

    async def get(self, path: str, params: Params | None = None) -> Answer:
        """GET, repeated on transient failures."""
        return await self.call("GET", path, params=params)

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: object = None,
        repeat: bool | None = None,
        absolute: bool = False,
    ) -> Answer:
        """Send one call below `/api/v1` (or below the forge's root, if `absolute`) and return its 2xx answer.

        `repeat`: whether it may be sent again after a transient failure; by default all but POST. Raises the
        ForgeError tree by status, never by text.
        """
        url = f"{self.url}{path}" if absolute else f"{self.url}/api/v1{path}"
        # httpx' own encoder refuses lone surrogates, and bodies here are what strangers wrote
        content = None if body is None else json.dumps(body).encode("ascii")
        label = f"{method} {path}"
        repeatable = method in _REPEATABLE if repeat is None else repeat
        attempts = self._attempts if repeatable else 1
        async for attempt in stamina.retry_context(
            on=self._retry_wait,
            attempts=attempts,
            timeout=None,
            wait_initial=self._retry_wait_s,
            wait_jitter=self._retry_wait_s,
        ):
            with attempt:
                return await self._once(method, url, params=params, content=content, label=label)
        raise AssertionError("stamina returns or raises")

    def _retry_wait(self, error: Exception) -> bool | float:
        """Seconds to wait before the next try, True for the usual backoff, False to give up."""
        if not isinstance(error, ForgeUnavailable):
            return False
        if isinstance(error, RateLimited) and error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= MAX_RETRY_AFTER_S else False
        return True

    async def _once(self, method: str, url: str, *, params: Params | None, content: bytes | None, label: str) -> Answer:
        wait_s = self._budget.wait_s(time.monotonic())
        if wait_s is None:
            raise RateLimited(
                f"{label}: the request budget for forge {self.name} is spent; "
                "raise it or poll fewer repositories if this stays",
                retry_after_s=60.0,
            )
        if wait_s:
            await asyncio.sleep(wait_s)
        async with self._gate:
            self.requests += 1
            try:
                # httpx' timeouts are per read: a server that trickles would never meet them
                async with asyncio.timeout(self._timeout_s):
                    return await self._exchange(method, url, params=params, content=content, label=label)
            except (TimeoutError, httpx.TimeoutException) as error:
                raise ForgeUnavailable(
                    f"{label}: forge {self.name} ({self.url}) did not answer within {self._timeout_s:g} s; "
                    "whether the call took effect is not known"
                ) from error
            except httpx.DecodingError as error:
                raise ForgeGarbled(f"{label}: forge {self.name} sent a body that does not decompress") from error
            except httpx.TransportError as error:
                raise ForgeUnavailable(
                    f"{label}: forge {self.name} ({self.url}) cannot be reached ({type(error).__name__}: "
                    f"{self._clean(str(error)) or 'no detail'}); check that it runs, and its URL"
                ) from error
            except (httpx.InvalidURL, httpx.RequestError) as error:
                raise ForgeUnavailable(
                    f"{label}: no request could be made to forge {self.name} ({self._clean(str(error))})"
                ) from error

    async def _exchange(
        self, method: str, url: str, *, params: Params | None, content: bytes | None, label: str
    ) -> Answer:
        headers = {"Content-Type": "application/json"} if content is not None else None
        async with self._client.stream(method, url, params=params, content=content, headers=headers) as response:
            chunks: list[bytes] = []
            size = 0
            async for chunk in response.aiter_bytes():
                size += len(chunk)
                if size > self._max_answer_bytes:
                    raise AnswerTooLarge(
                        f"{label}: forge {self.name} sent more than {self._max_answer_bytes} bytes; it was not read on",
                        status=response.status_code,
                    )
                chunks.append(chunk)
        answer = Answer(
            forge=self.name,
            call=label,
            status=response.status_code,
            headers=response.headers,
            content=b"".join(chunks),
        )
        if not 200 <= answer.status < 300:
            raise error_of(answer, self._clean)
        return answer

    def _clean(self, text: str) -> str:
        """An excerpt of foreign text for a message: one line, short, without our token."""
        if self._token:
            text = text.replace(self._token, "***")
        return excerpt(text)


def segment(text: str) -> str:
    """One path segment, quoted; slashes too."""
    return quote(text, safe="")
