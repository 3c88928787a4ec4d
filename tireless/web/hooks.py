"""`/webhook/FORGE`: checks the signature, notes which issue to look at, answers at once. It believes nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from tireless import log
from tireless.errors import ForgeDenied, ForgeGarbled, StoreError
from tireless.forge.webhook import MAX_BODY_BYTES, read
from tireless.store.db import Pool
from tireless.store.look import Hinted, Ring, hint

_log = log.get(__name__)


class _TooLargeError(Exception):
    """The body is longer than any delivery we read."""


def webhook(
    pool: Pool, secrets: Mapping[str, str | None], *, ring: Ring | None = None
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint. `secrets`: by forge, what its deliveries are signed with; None: none are taken.

    `ring` is told to wake the poller for what was noted; without it each note does so itself.
    """

    async def answer(request: Request) -> Response:
        forge = request.path_params["forge"]
        if forge not in secrets:
            return _say(404, "unknown_forge", "no forge of this name is configured here")
        secret = secrets[forge]
        if secret is None:
            return _say(403, "no_secret", f"set webhook_secret_file under [forges.{forge}], and the same secret there")
        try:
            body = await _body(request)
            found = read(request.headers, body, secret)
        except _TooLargeError:
            return _say(413, "too_large", f"more than {MAX_BODY_BYTES} bytes; nothing was read")
        except ForgeDenied as error:
            _log.warning("webhook refused", forge=forge, error=str(error))
            return _say(401, "bad_signature", str(error))
        except ForgeGarbled as error:
            return _say(400, "unreadable", str(error))
        except ClientDisconnect:
            return _say(400, "cut_off", "the delivery ended before its body")
        if found.number is None:
            return _say(422, "another_event", _another_event(found.event))
        if found.is_pull:  # comments on pull requests cannot be told apart when a hook is made
            return _say(200, "nothing_to_look_at", "the delivery is about a pull request")
        try:
            async with pool.connection() as conn:
                noted = await hint(
                    conn,
                    forge,
                    found.repo_id,
                    found.number,
                    sender_id=found.sender_id,
                    why=f"webhook {found.event} {found.action}".strip(),
                    ring=ring,
                )
        except StoreError as error:
            # The forge will not send it again: the next poll sees what it was about.
            _log.warning("webhook not noted", forge=forge, issue=found.number, error=str(error))
            return _say(503, "database_unreachable", "it was not noted; the next poll sees the change")
        match noted:
            case Hinted.UNKNOWN:
                return _say(404, "unknown_repository", f"{found.repo_path} is not watched")
            case Hinted.OWN:
                return _say(200, "own", "the bot did this itself")
            case Hinted.NOTED:
                return _say(202, "noted", f"issue {found.number} will be looked at")

    return answer


def _another_event(event: str) -> str:
    """Read by who tries a hook: a forge's test delivery is a push."""
    return (
        f"event {event or '(it names none)'} is not used, since it is about no issue; the delivery came through and "
        "its signature is right, so the hook works. Let it send issue events only"
    )


async def _body(request: Request) -> bytes:
    """The raw body, never more of it than a delivery may have."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise _TooLargeError
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _TooLargeError
        chunks.append(chunk)
    return b"".join(chunks)


def _say(status: int, code: str, text: str) -> Response:
    return JSONResponse({"code": code, "message": text}, status)
