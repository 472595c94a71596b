"""A request as the gateway reads it: what matters for routing and measuring, and its body for each upstream."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kcverify.routing.table import Routed

_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")
DEEPEST = 100
FORWARDED = (b"authorization", b"accept", b"traceparent", b"tracestate", b"openai-organization", b"openai-project")
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "seed", "n", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logit_bias", "stop", "response_format",
)  # fmt: skip
"""Parameters that a replay needs."""


class AskedError(Exception):
    """A request that cannot be read; `code` is one of `answers.ERRORS`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Asked:
    """One request. `kind` is `completions` or `chat`; `began` is that of `time.perf_counter`, `at` milliseconds since 1970.

    `tags` are those of the header `X-Kcverify-Tags` and of the body's `metadata`. `admitted`: what the candidate makes of
    it will be measured, which is decided before it is asked; `offered`: it was handed over. `copied`: the candidate got a
    copy; `refused`: what it said where it thought that the client is wrong. `status` of the client's answer, 0 where it
    got none, None before that.
    """

    request_id: str
    kind: str
    body: bytes
    fields: Mapping[str, Any]
    headers: Mapping[str, str]
    began: float
    at: int
    routed: Routed
    tags: frozenset[str] = frozenset()
    tried: list[str] = field(default_factory=list)
    admitted: bool = False
    offered: bool = False
    copied: bool = False
    refused: str = ""
    status: int | None = None

    @property
    def stream(self) -> bool:
        """Whether the client wants parts as they come."""
        return self.fields.get("stream") is True

    @property
    def temperature(self) -> float | None:
        """The sampling temperature, 1 where none is given; None for what is no number."""
        value = self.fields.get("temperature")
        if value is None:
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    @property
    def prompt(self) -> list[int] | None:
        """Token ids of the prompt where the client gave them."""
        value = self.fields.get("prompt")
        if isinstance(value, list) and value and all(type(x) is int for x in value):
            return value
        return None

    @property
    def several(self) -> bool:
        """Whether it gives more than one prompt."""
        value = self.fields.get("prompt")
        return (
            isinstance(value, list)
            and bool(value)
            and (isinstance(value[0], list) or len(value) > 1)
            and self.prompt is None
        )

    @property
    def text(self) -> str | list[Any] | None:
        """A prompt that an engine must turn into token ids: a text, or the messages of a chat; None where there is none."""
        value = self.fields.get("messages" if self.kind == "chat" else "prompt")
        if self.kind == "chat":
            return value if isinstance(value, list) else None
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        return value if isinstance(value, str) else None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the client asks for log-probabilities itself."""
        value = self.fields.get("logprobs")
        return value is not None and value is not False

    def width(self, top: int) -> int:
        """Entries a position that the candidate is asked for: `top`, or the client's own number where that is smaller."""
        if not self.wants_logprobs:
            return top
        value = self.fields.get("top_logprobs" if self.kind == "chat" else "logprobs")
        return min(top, value) if type(value) is int else 0

    def for_upstream(self, model: str | None, extra: Mapping[str, Any]) -> bytes:
        """The body, with another model's name and more fields where needed; else the client's own bytes."""
        if model is None and not extra:
            return self.body
        out = {**self.fields, **extra}
        if model is not None:
            out["model"] = model
        return json.dumps(out).encode()


def injected(asked: Asked, top: int) -> dict[str, Any]:
    """The fields that measuring needs and the client did not ask for."""
    if asked.wants_logprobs:
        return {"return_token_ids": True}
    if asked.kind == "chat":
        return {"logprobs": True, "top_logprobs": top, "return_token_ids": True, "return_tokens_as_token_ids": True}
    return {"logprobs": top, "return_token_ids": True, "return_tokens_as_token_ids": True}


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's `X-Request-Id`, or a new one. Raises AskedError."""
    given = headers.get(b"x-request-id")
    if given is None:
        return secrets.token_hex(16)
    text = given.decode("latin-1")
    if not _ID.match(text):
        raise AskedError(
            "request_id_invalid", "X-Request-Id must be 1 to 128 printable ASCII characters without spaces"
        )
    return text


def read_fields(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises AskedError."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise AskedError("body_invalid", "the body is no JSON") from None
    if not isinstance(found, dict):
        raise AskedError("body_invalid", "the body is no JSON object")
    if body.count(b"[") + body.count(b"{") > DEEPEST and _deep(found):
        raise AskedError("body_invalid", f"the body is nested deeper than {DEEPEST} levels")
    return found


def _deep(value: Any) -> bool:
    """Whether lists and objects lie more than `DEEPEST` deep in each other: what is read once must be written again."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]  # fmt: skip
        if not level:
            return False
    return True


def tags_of(fields: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> frozenset[str]:
    """Tags of a request."""
    text = headers.get(b"x-kcverify-tags", b"").decode("latin-1")
    metadata = fields.get("metadata")
    more = metadata.get("tags", "") if isinstance(metadata, dict) else ""
    words = [*text.split(","), *(more.split(",") if isinstance(more, str) else ())]
    return frozenset(w.strip() for w in words if w.strip())


def forwarded(headers: Mapping[bytes, bytes], request_id: str) -> dict[str, str]:
    """Headers that go to the upstream."""
    out = {"content-type": "application/json", "x-request-id": request_id}
    for name in FORWARDED:
        if name in headers:
            out[name.decode()] = headers[name].decode("latin-1")
    return out
