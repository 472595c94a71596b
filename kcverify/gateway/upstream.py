"""One upstream: its connections, whether it can be relied on at the moment, and one attempt at a request."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from kcverify.gateway.pool import Pool
from kcverify.gateway.settings import Limits
from kcverify.gateway.streaming import Events

TRIPS = 3
"""Failures in a row after which an upstream counts as down."""
RETURNS = 3
"""Answers in a row after which it counts as up again."""
COOL_SECONDS = 2.0
_LIST_SECONDS = 5.0
_LIST_BYTES = 4 << 20
_MODELS = 1000
"""Models of a list that are kept."""
RETRIED = frozenset({404, 408, 409, 425, 429})
"""Answers below 500 that another upstream may give differently."""
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Fault(Exception):  # noqa: N818
    """An attempt that failed. `kind` is a word for counters; `status` and `body` where the upstream answered."""

    def __init__(self, kind: str, detail: str = "", status: int | None = None, body: bytes = b"") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail, self.status, self.body = kind, detail, status, body


@dataclass
class Health:
    """What an upstream has shown lately. Times are those of `time.monotonic`."""

    failures: int = 0
    answers: int = 0
    down: bool = False
    since: float = 0.0
    last: str = ""
    trips: int = 0

    def answered(self) -> bool:
        """An answer came; whether that brought it back up."""
        self.failures, self.answers = 0, self.answers + 1
        if self.down and self.answers >= RETURNS:
            self.down, self.since = False, time.monotonic()
            return True
        return False

    def failed(self, why: str) -> bool:
        """No answer came; whether that took it down."""
        self.failures, self.answers, self.last = self.failures + 1, 0, why
        if not self.down and self.failures >= TRIPS:
            self.down, self.since, self.trips = True, time.monotonic(), self.trips + 1
            return True
        if self.down:
            self.since = time.monotonic()
        return False

    def usable(self) -> bool:
        """Up, or down for long enough to be tried again."""
        return not self.down or time.monotonic() - self.since > COOL_SECONDS


@dataclass
class Upstream:
    """One server. `models` is what `/v1/models` lists, `plain`: it refused the fields that measuring asks for.

    `stepwise`: it gives no `prompt_logprobs`, `scores`: it has given some. `dialect` of its `/tokenize`, `none` where it
    has none, empty as long as it was not asked.
    """

    name: str
    url: str
    limits: Limits
    client: httpx.AsyncClient
    health: Health = field(default_factory=Health)
    models: tuple[Mapping[str, Any], ...] = ()
    plain: bool = False
    stepwise: bool = False
    scores: bool = False
    dialect: str = ""

    @classmethod
    def at(cls, name: str, url: str, limits: Limits) -> Upstream:
        """Open lazily; connections are kept."""
        timeout = httpx.Timeout(None, connect=limits.connect)
        client = httpx.AsyncClient(
            base_url=url, timeout=timeout, transport=Pool(_verification(url), limits.concurrency), trust_env=False,
            follow_redirects=False, headers={"accept-encoding": "identity", "user-agent": "kcverify"},
        )  # fmt: skip
        return cls(name, url, limits, client)

    def model_for(self, wanted: object) -> str | None:
        """The name to ask for instead of `wanted`; None where it is known here, or nothing better is."""
        ids = [str(m.get("id")) for m in self.models]
        return ids[0] if len(ids) == 1 and ids[0] != wanted else None

    async def learn(self) -> None:
        """Ask what it serves. Raises Fault."""
        _, found = await self.listed()
        try:
            self.models = tuple(m for m in parsed(found)["data"] if isinstance(m, dict))[:_MODELS]
        except (KeyError, TypeError):
            raise Fault("models", "`/v1/models` lists nothing") from None

    async def listed(self) -> tuple[int, bytes]:
        """Status and body of its list of models, within 5 s and 4 MiB, never unpacked. Raises Fault."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(_LIST_SECONDS), self.client.stream("GET", "/v1/models") as answer:
                async for part in answer.aiter_raw():
                    parts.append(part)
                    size += len(part)
                    if size > _LIST_BYTES:
                        raise Fault("too_large", "`/v1/models` is no list of models")
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise Fault("unreachable", type(error).__name__) from None
        return answer.status_code, b"".join(parts)

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str], seconds: float | None = None
    ) -> httpx.Response:
        """The head of the answer, within `seconds` (by default the time to the first byte). Raises Fault."""
        wait = self.limits.first if seconds is None else seconds
        request = self.client.build_request("POST", path, content=body, headers=_bytes(headers))
        try:
            async with asyncio.timeout(wait):
                return await self.client.send(request, stream=True)
        except TimeoutError:
            raise Fault("timeout", f"no answer within {wait:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise Fault("unreachable", type(error).__name__) from None

    async def body(self, answer: httpx.Response, seconds: float) -> bytes:
        """The whole body. Raises Fault."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(seconds):
                async for part in answer.aiter_raw():
                    parts.append(part)
                    size += len(part)
                    if size > self.limits.answer:
                        raise Fault("too_large", f"the answer is larger than {self.limits.answer:,} bytes")
        except TimeoutError:
            raise Fault("timeout", f"the answer was not complete after {seconds:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise Fault("truncated", type(error).__name__) from None
        finally:
            await shut(answer)
        return b"".join(parts)

    async def parts(self, answer: httpx.Response, seconds: float | None = None) -> AsyncGenerator[bytes, None]:
        """The parts of a stream as they come, the first within `seconds` (by default the time to the first byte).

        Raises Fault at a stall or a cut; closes the answer at the end.
        """
        reader = answer.aiter_raw().__aiter__()
        wait = self.limits.first if seconds is None else seconds
        try:
            while True:
                try:
                    async with asyncio.timeout(wait):
                        part = await reader.__anext__()
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise Fault("stalled", f"nothing came for {wait:g} s") from None
                except (httpx.HTTPError, OSError) as error:
                    raise Fault("truncated", type(error).__name__) from None
                wait = self.limits.stall
                yield part
        finally:
            await shut(answer)

    def data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "url": self.url, "up": not self.health.down, "failures": self.health.failures, "trips": self.health.trips,
            "last_fault": self.health.last, "models": [str(m.get("id")) for m in self.models],
        }  # fmt: skip


def _bytes(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Values as they came from a client: any byte above 127 may be among them."""
    return {name.encode(): value.encode("latin-1") for name, value in headers.items()}


def _verification(url: str) -> ssl.SSLContext:
    """Of an upstream's certificate, for all its connections: reading the authorities takes long; without TLS none are read."""
    return (
        httpx.create_ssl_context(trust_env=False)
        if url.startswith("https:")
        else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )


async def shut(answer: httpx.Response) -> None:
    """Give the connection back, whatever state it is in."""
    with suppress(httpx.HTTPError, OSError, RuntimeError):
        await answer.aclose()


def reject(status: int, body: bytes) -> None:
    """Raises Fault for an answer that another upstream may give better."""
    if status >= 500 or status in RETRIED:
        raise Fault(f"status_{status}", "", status, body)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def whole_events(events: Events, part: bytes) -> list[bytes]:
    """What is complete of a stream after one part more. Raises Fault for an event that never ends."""
    try:
        return events.feed(part)
    except ValueError as error:
        raise Fault("invalid", str(error)) from None


def parsed_event(data: bytes) -> dict[str, Any]:
    """The object of one event of a stream. Raises Fault where it says that the upstream failed, or has no list of choices."""
    found = parsed(data)
    if "error" in found:
        raise Fault("failed", str(found["error"])[:80])
    if not isinstance(found.get("choices") or [], list):
        raise Fault("invalid", "the choices of an event are no list", None, data)
    if not all(isinstance(choice, dict) for choice in found.get("choices") or ()):
        raise Fault("invalid", "a choice of an event is no object", None, data)
    return found


def parsed(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises Fault for anything else; `NaN` and `Infinity` are no JSON, though some engines write them."""
    try:
        found = json.loads(body, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        nonfinite = b"NaN" in body or b"Infinity" in body
        raise Fault("non_finite" if nonfinite else "invalid", str(error)[:80], None, body) from None
    if not isinstance(found, dict):
        raise Fault("invalid", "the answer is no object", None, body)
    return found
