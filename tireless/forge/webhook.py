"""Reads one webhook delivery: the signature over the raw body, then which issue to look at, and nothing else."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tireless.errors import ForgeDenied, ForgeGarbled
from tireless.forge import reading

MAX_BODY_BYTES = 25 * 1024 * 1024
"""What a receiver should read at most: the body of a delivery carries the whole text of an issue."""

_SIGNATURES = (
    ("x-gitea-signature", ""),
    ("x-forgejo-signature", ""),
    ("x-hub-signature-256", "sha256="),
)
_DELIVERIES = ("x-gitea-delivery", "x-forgejo-delivery", "x-github-delivery", "x-gogs-delivery")
_EVENTS = ("x-gitea-event-type", "x-forgejo-event-type", "x-gitea-event", "x-forgejo-event", "x-github-event")


@dataclass(frozen=True, slots=True)
class Hint:
    """What a delivery tells us: look at this issue. All of it may be stale; none of it decides anything."""

    repo_id: int
    repo_path: str
    """`owner/name` at the time of the event."""
    number: int | None
    """None for events of a repository as a whole."""
    is_pull: bool
    sender_id: int
    sender_login: str
    event: str
    action: str
    delivery: str


def signed(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Whether the raw body carries a true HMAC-SHA256 by our secret, in any header a forge puts it in.

    Every signature header that is there and not empty must be true. None at all, or only empty ones (what a forge
    without a secret sends), is no signature. `headers`: names in any case.
    """
    if not secret:
        return False
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    given = {name.lower(): value.strip() for name, value in headers.items()}
    found = [given[name].removeprefix(prefix) for name, prefix in _SIGNATURES if given.get(name)]
    found = [each for each in found if each]
    # compared as bytes: compare_digest refuses text that is not ASCII, and headers are what strangers send
    verdicts = [hmac.compare_digest(each.lower().encode("utf-8", "replace"), expected.encode()) for each in found]
    return bool(verdicts) and all(verdicts)


def read(headers: Mapping[str, str], body: bytes, secret: str) -> Hint:
    """The hint of a delivery. ForgeDenied for a bad or missing signature, ForgeGarbled for a body we cannot read."""
    if len(body) > MAX_BODY_BYTES:
        raise ForgeGarbled(f"webhook: the body has {len(body)} bytes, more than {MAX_BODY_BYTES}; it was not read")
    if not signed(headers, body, secret):
        raise ForgeDenied("webhook: the signature is missing or wrong; set the same secret on the forge and here")
    given = {name.lower(): value for name, value in headers.items()}
    try:
        data = json.loads(body.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        raise ForgeGarbled("webhook: the body is not JSON; set the hook's content type to application/json") from None
    if not isinstance(data, dict):
        raise ForgeGarbled("webhook: the body is no JSON object")
    repository, sender = data.get("repository"), data.get("sender")
    if not isinstance(repository, dict) or not isinstance(sender, dict):
        raise ForgeGarbled("webhook: the delivery names no repository or no sender")
    try:
        number, is_pull = _which(data)
        repo_id = reading.identity(repository.get("id"), "repository.id")
        sender_id = reading.whole(sender.get("id"), "sender.id")
    except ValueError as error:
        raise ForgeGarbled(f"webhook: {error}") from None
    return Hint(
        repo_id=repo_id,
        repo_path=str(repository.get("full_name") or ""),
        number=number,
        is_pull=is_pull,
        sender_id=sender_id,
        sender_login=str(sender.get("login") or ""),
        event=_first(given, _EVENTS),
        action=str(data.get("action") or ""),
        delivery=_first(given, _DELIVERIES),
    )


def _which(data: dict[str, object]) -> tuple[int | None, bool]:
    """The number of the issue or pull request, and whether it is the latter; comment events carry it in `issue`."""
    pull, issue = data.get("pull_request"), data.get("issue")
    if isinstance(pull, dict):
        return reading.number(pull.get("number"), "pull_request.number"), True
    if isinstance(issue, dict):
        number = reading.number(issue.get("number"), "issue.number")
        return number, issue.get("pull_request") is not None or data.get("is_pull") is True
    return None, False


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")
