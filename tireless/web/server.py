"""An HTTP server inside our own event loop, with our own signals and our own socket; it knows no route."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from tireless.errors import ConfigError

_LEAVE_S = 3
"""How long open requests may go on once the process was told to stop."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: who stops the process is decided in one place, and not here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Bind before anything starts, so that a port in use is a sentence and no half-started process. ConfigError."""
    where = address(host, port)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(target)
            sock.listen(128)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"the page cannot listen on {where}: {error.strerror or error}; "
            "set another host or port under [web], stop what listens there, or set web.enabled = false"
        ) from error
    return sock


def address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).version == 6:
            return f"[{host}]:{port}"
    return f"{host}:{port}"


def url_of(sock: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"http://{address(host, port)}/"


async def serve(app: ASGIApp, sock: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop`, then let open requests end, for a few seconds."""
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_LEAVE_S,
            timeout_keep_alive=15,
            # Webhooks and pages are small and few; what holds connections open is cut before it can starve health.
            limit_concurrency=200,
            proxy_headers=False,
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
        server.should_exit = server.force_exit = True
        if not serving.done():
            await asyncio.wait([serving])
        sock.close()
