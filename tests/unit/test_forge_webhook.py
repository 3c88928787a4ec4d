"""Webhook deliveries: only a true signature over the raw body is believed, and then only as a hint."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from tests.support.answers import recorded, recorded_headers
from tireless.errors import ForgeDenied, ForgeGarbled
from tireless.forge import webhook

SECRET = "s3cret"


def _sign(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def _delivery(data: Any) -> tuple[dict[str, str], bytes]:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return {"X-Gitea-Signature": _sign(body), "X-Gitea-Event-Type": "issue_label", "X-Gitea-Delivery": "d1"}, body


def test_a_recorded_label_delivery_is_a_hint() -> None:
    """Repository by id and path, number, sender, fine event name, delivery id."""
    body = json.dumps(recorded("hook_labelled")).encode()
    headers = {**recorded_headers("hook_labelled"), "X-Gitea-Signature": _sign(body)}
    headers = {name: value for name, value in headers.items() if not name.startswith("X-Hub")}
    hint = webhook.read(headers, body, SECRET)
    assert (hint.repo_path, hint.event, hint.action, hint.is_pull) == (
        "alice/app",
        "issue_label",
        "label_updated",
        False,
    )
    assert hint.number == recorded("hook_labelled")["issue"]["number"]
    assert hint.repo_id == recorded("hook_labelled")["repository"]["id"]
    assert hint.sender_login == recorded("hook_labelled")["sender"]["login"]
    assert hint.delivery == headers["X-Gitea-Delivery"]


def test_a_comment_delivery_has_its_number_in_the_issue() -> None:
    """There is no `number` beside it."""
    data = recorded("hook_commented")
    assert "number" not in data
    headers, body = _delivery(data)
    assert webhook.read(headers, body, SECRET).number == data["issue"]["number"]


def test_pull_requests_are_told() -> None:
    """By `pull_request` in the payload, or by a comment on one."""
    data = recorded("hook_labelled")
    pull = {**data, "pull_request": {"number": 7}}
    headers, body = _delivery(pull)
    hint = webhook.read(headers, body, SECRET)
    assert (hint.number, hint.is_pull) == (7, True)
    headers, body = _delivery({**recorded("hook_commented"), "is_pull": True})
    assert webhook.read(headers, body, SECRET).is_pull


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Gitea-Signature": "GOOD"},
        {"x-gitea-signature": "GOOD"},
        {"X-Forgejo-Signature": "GOOD"},
        {"X-Hub-Signature-256": "sha256=GOOD"},
        {"X-Gitea-Signature": "GOOD", "X-Forgejo-Signature": "GOOD", "X-Hub-Signature-256": "sha256=GOOD"},
        {"X-Gitea-Signature": "GOOD", "X-Hub-Signature-256": "sha256="},
    ],
)
def test_true_signatures_in_every_dress(headers: dict[str, str]) -> None:
    """Gitea's, Forgejo's and GitHub's header, in any case; what is empty beside a true one does not harm."""
    body = b'{"a": 1}'
    assert webhook.signed({k: v.replace("GOOD", _sign(body)) for k, v in headers.items()}, body, SECRET)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Gitea-Signature": ""},
        {"X-Gitea-Signature": "", "X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature-256": "GOOD-not-prefixed"},
        {"X-Hub-Signature": "sha1=GOOD"},
        {"X-Gogs-Signature": "GOOD"},
        {"X-Gitea-Signature": "GOOD1"},
        {"X-Gitea-Signature": "00GOOD"},
        {"X-Gitea-Signature": "ünïcode"},
        {"X-Gitea-Signature": "GOOD", "X-Forgejo-Signature": "0" * 64},
    ],
)
def test_what_is_no_true_signature(headers: dict[str, str]) -> None:
    """Missing, empty, another algorithm, too long, not ASCII, or one true beside one false: no."""
    body = b'{"a": 1}'
    assert not webhook.signed({k: v.replace("GOOD", _sign(body)) for k, v in headers.items()}, body, SECRET)


def test_other_bodies_and_secrets_are_refused() -> None:
    """One byte more, another forge's secret, or no secret configured: denied, whoever signed."""
    headers, body = _delivery(recorded("hook_labelled"))
    for given_body, secret in ((body + b" ", SECRET), (body, "other"), (body, "")):
        with pytest.raises(ForgeDenied):
            webhook.read(headers, given_body, secret)
    empty = {"X-Gitea-Signature": hmac.new(b"", body, hashlib.sha256).hexdigest()}
    with pytest.raises(ForgeDenied):
        webhook.read(empty, body, "")


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"",
        b"[]",
        b"null",
        b"payload=%7B%7D",
        b"[" * 50_000,
        {"action": "opened"},
        {"repository": {"id": "1"}, "sender": {"id": 1}},
        {"repository": {"id": 1}, "sender": None},
        {"repository": {"id": 1}, "sender": {"id": 1}, "issue": {"number": "7"}},
    ],
)
def test_signed_nonsense_is_garbled(data: Any) -> None:
    """Signed but unreadable: one error kind, with a sentence."""
    headers, body = _delivery(data)
    with pytest.raises(ForgeGarbled, match="webhook"):
        webhook.read(headers, body, SECRET)


def test_a_body_beyond_the_limit_is_not_even_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length alone refuses it."""
    monkeypatch.setattr(webhook, "MAX_BODY_BYTES", 10)
    headers, body = _delivery(recorded("hook_labelled"))
    with pytest.raises(ForgeGarbled, match="bytes"):
        webhook.read(headers, body, SECRET)


def test_events_of_a_repository_have_no_number() -> None:
    """A push names no issue."""
    headers, body = _delivery({"repository": {"id": 1, "full_name": "a/b"}, "sender": {"id": 2, "login": "x"}})
    assert webhook.read(headers, body, SECRET).number is None
