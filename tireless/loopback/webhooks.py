"""The loopback forge's webhooks: registering them, and delivering signed payloads once, in the background."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
import uuid
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.responses import Response

from tireless.loopback import render, render_issue
from tireless.loopback.call import Call, Refusal, Route, not_found
from tireless.loopback.state import Event, Hook, Level
from tireless.loopback.world import World

DELIVER_TIMEOUT_S = 5.0
KEPT = 10_000

_EXPANDED = {
    "issues": ("issues", "issue_assign", "issue_label", "issue_milestone", "issue_comment"),
    "issues_only": ("issues",),
    "pull_request": ("pull_request", "pull_request_label", "pull_request_comment", "pull_request_sync"),
    "pull_request_only": ("pull_request",),
}
_COARSE = {
    "issue_label": "issues",
    "issue_assign": "issues",
    "issue_milestone": "issues",
    "pull_request_label": "pull_request",
    "pull_request_sync": "pull_request",
    "pull_request_comment": "issue_comment",
}


@dataclass(slots=True)
class Delivery:
    """One delivery: at most once, whatever became of it. `status` is 0 while pending, -1 when nothing answered."""

    hook_id: int
    uuid: str
    url: str
    headers: dict[str, str]
    body: bytes
    status: int = 0


class Deliverer:
    """Listens to events and posts them to the hooks that asked. `lose` and `double` are for tests."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.deliveries: deque[Delivery] = deque(maxlen=KEPT)
        self.lose = False
        self.double = False
        self._tasks: set[asyncio.Task[None]] = set()
        world.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        for hook in event.repo.hooks.values():
            if not hook.active or event.name not in hook.events or self.lose:
                continue
            payload = json.dumps(_payload(self._world, event), indent=2).encode()
            for _ in range(2 if self.double else 1):
                delivery = Delivery(hook.id, str(uuid.uuid4()), hook.url, {}, payload)
                delivery.headers = headers(hook, event.name, delivery.uuid, payload)
                self.deliveries.append(delivery)
                task = asyncio.get_running_loop().create_task(_deliver(delivery))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until nothing is on its way."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))


async def _deliver(delivery: Delivery) -> None:
    delivery.status = await asyncio.to_thread(_post, delivery)


def _post(delivery: Delivery) -> int:
    """POST, in a thread: httpx belongs to the client's side of the house."""
    parts = urlsplit(delivery.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=DELIVER_TIMEOUT_S)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    try:
        connection.request("POST", path, body=delivery.body, headers=delivery.headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return -1
    finally:
        connection.close()


def headers(hook: Hook, event: str, delivery: str, payload: bytes) -> dict[str, str]:
    """The headers of a delivery; without a secret the signatures are there and empty."""
    coarse = _COARSE.get(event, event)
    sha256 = sha1 = ""
    if hook.secret:
        sha256 = hmac.new(hook.secret.encode(), payload, hashlib.sha256).hexdigest()
        sha1 = hmac.new(hook.secret.encode(), payload, hashlib.sha1).hexdigest()
    found = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1"}
    for brand in ("Gitea", "Gogs"):
        found |= {
            f"X-{brand}-Delivery": delivery,
            f"X-{brand}-Event": coarse,
            f"X-{brand}-Event-Type": event,
            f"X-{brand}-Signature": sha256,
        }
    found |= {
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": coarse,
        "X-GitHub-Event-Type": event,
        "X-Hub-Signature": f"sha1={sha1}",
        "X-Hub-Signature-256": f"sha256={sha256}",
        "X-Gitea-Hook-Installation-Target-Type": "repository",
    }
    if hook.authorization:
        found["Authorization"] = hook.authorization
    return found


def _payload(world: World, event: Event) -> render.Json:
    """The payload; a label event does not say which label."""
    issue, repo = event.issue, event.repo
    found: render.Json = {"action": event.action}
    if issue is not None:
        if event.comment is None:
            found["number"] = issue.number
        if issue.pull is not None and event.comment is None:
            found["pull_request"] = render_issue.pull(world, repo, issue, event.sender)
        else:
            found["issue"] = render_issue.issue(world, repo, issue)
        found["commit_id"] = ""
    if issue is not None and event.comment is not None:
        found["comment"] = render_issue.comment(world, repo, issue, event.comment)
        found["is_pull"] = issue.pull is not None
    return {
        **found,
        **event.extra,
        "repository": render.repository(world, repo, None),
        "sender": render.user(world, event.sender),
    }


# ---------------------------------------------------------------------- registering


async def list_hooks(call: Call) -> Response:
    """The hooks of a repository."""
    call.need_level(Level.ADMIN)
    return call.json([render.hook(call.world, each) for each in call.paged(list(call.repo.hooks.values()))])


async def create_hook(call: Call) -> Response:
    """A new hook; inactive unless said otherwise, and for pushes only unless events are named."""
    call.need_level(Level.ADMIN)
    config = call.body.get("config")
    if not isinstance(config, dict) or call.text("type") not in ("gitea", "forgejo", "gogs"):
        raise Refusal(422, "Invalid hook type or config")
    url, content_type = str(config.get("url", "")), str(config.get("content_type", ""))
    if urlsplit(url).scheme not in ("http", "https") or content_type not in ("json", "form"):
        raise Refusal(422, "Invalid url or content type")
    hook = Hook(
        id=call.world.next_id("hook"),
        url=url,
        secret=str(config.get("secret") or ""),
        content_type=content_type,
        events=_events(call),
        active=call.flag("active"),
        created=call.world.clock.stamp(),
        authorization=call.text("authorization_header"),
    )
    call.repo.hooks[hook.id] = hook
    return call.json(render.hook(call.world, hook), 201)


def _events(call: Call) -> frozenset[str]:
    found = call.body.get("events")
    names = [str(each) for each in found] if isinstance(found, list) else []
    return frozenset(fine for name in names or ["push"] for fine in _EXPANDED.get(name, (name,)))


def _hook(call: Call) -> Hook:
    call.need_level(Level.ADMIN)
    hook = call.repo.hooks.get(call.number("hook"))
    if hook is None:
        raise not_found()
    return hook


async def edit_hook(call: Call) -> Response:
    """PATCH: the secret stays as it is; without `events` only pushes are left."""
    hook = _hook(call)
    config = call.body.get("config")
    if isinstance(config, dict):
        hook.url = str(config.get("url") or hook.url)
    hook.events = _events(call)
    hook.authorization = call.text("authorization_header")
    hook.active = call.flag("active", default=hook.active)
    return call.json(render.hook(call.world, hook))


async def delete_hook(call: Call) -> Response:
    """Delete a hook."""
    del call.repo.hooks[_hook(call).id]
    return call.nothing()


ROUTES: list[Route] = [
    ("GET", "/repos/{owner}/{repo}/hooks", list_hooks),
    ("POST", "/repos/{owner}/{repo}/hooks", create_hook),
    ("PATCH", "/repos/{owner}/{repo}/hooks/{hook}", edit_hook),
    ("DELETE", "/repos/{owner}/{repo}/hooks/{hook}", delete_hook),
]
