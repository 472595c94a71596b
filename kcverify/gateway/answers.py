"""Answers of the gateway itself: errors in the shape that OpenAI clients read, headers, the raw ASGI messages."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
Scope = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]

ERRORS: Mapping[str, tuple[int, str]] = {
    "body_too_large": (413, "invalid_request_error"),
    "body_invalid": (400, "invalid_request_error"),
    "body_incomplete": (400, "invalid_request_error"),
    "body_slow": (408, "invalid_request_error"),
    "request_id_invalid": (400, "invalid_request_error"),
    "overloaded": (429, "rate_limit_error"),
    "upstreams_failed": (502, "api_error"),
    "stopped": (503, "api_error"),
    "closing": (503, "api_error"),
    "unauthorized": (401, "authentication_error"),
    "not_found": (404, "invalid_request_error"),
    "method": (405, "invalid_request_error"),
    "refused": (409, "invalid_request_error"),
    "store": (503, "api_error"),
}
"""By code: status and type of the error."""


def error_body(code: str, message: str) -> bytes:
    """`{"error": {...}}` as OpenAI clients read it."""
    content = {"message": message, "type": ERRORS[code][1], "param": None, "code": code}
    return json.dumps({"error": content}).encode()


async def whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """One answer in one piece."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def refused(send: Send, code: str, message: str, headers: Headers) -> int:
    """An error answer; its status."""
    status = ERRORS[code][0]
    more: Headers = [(b"content-type", b"application/json")]
    if status in (429, 503):
        more.append((b"retry-after", b"1"))
    await whole(send, status, [*headers, *more], error_body(code, message))
    return status


def stream_error(message: str) -> bytes:
    """The event that ends a stream which cannot go on."""
    return b"data: " + error_body("upstreams_failed", message) + b"\n\n"
