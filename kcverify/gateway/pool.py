"""Connections to one upstream, each lent to one request at a time.

The pool of httpcore may promise one idle connection to several requests of the same moment; all but one try again, and
under load one of them can lose for seconds. Here whoever asks gets a connection of its own.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import AsyncIterator

import httpx

IDLE_SECONDS = 30.0
"""How long a connection is kept that nobody uses."""


class _Lent(httpx.AsyncByteStream):
    """The body of an answer; its connection goes back when it is closed."""

    def __init__(self, pool: Pool, line: httpx.AsyncHTTPTransport, stream: httpx.AsyncByteStream) -> None:
        self._pool, self._line, self._stream = pool, line, stream
        self._back = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
        if not self._back:
            self._back = True
            await self._pool.give(self._line)


class Pool(httpx.AsyncBaseTransport):
    """A transport for an `httpx.AsyncClient`; `keep` connections at most wait for the next request."""

    def __init__(self, verify: ssl.SSLContext | bool, keep: int) -> None:
        self._verify, self._keep = verify, keep
        self._free: deque[tuple[float, httpx.AsyncHTTPTransport]] = deque()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Ask on a connection that is free, the warmest first, or on a new one. Raises httpx.TransportError."""
        line = self._free.pop()[1] if self._free else self._new()
        try:
            found = await line.handle_async_request(request)
        except BaseException:
            await line.aclose()
            raise
        assert isinstance(found.stream, httpx.AsyncByteStream)
        return httpx.Response(
            found.status_code,
            headers=found.headers,
            stream=_Lent(self, line, found.stream),
            extensions=found.extensions,
        )

    def _new(self) -> httpx.AsyncHTTPTransport:
        one = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_SECONDS)
        return httpx.AsyncHTTPTransport(verify=self._verify, limits=one, trust_env=False)

    async def give(self, line: httpx.AsyncHTTPTransport) -> None:
        """Take a connection back."""
        now = time.monotonic()
        self._free.append((now, line))
        while self._free and (self._closed or len(self._free) > self._keep or now - self._free[0][0] > IDLE_SECONDS):
            await self._free.popleft()[1].aclose()

    async def aclose(self) -> None:
        """Close all of them."""
        self._closed = True
        while self._free:
            await self._free.popleft()[1].aclose()
