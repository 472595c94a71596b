"""Connections to one upstream, each lent to one request at a time.

The pool of httpcore may promise one idle connection to several requests of the same moment; all but one try again, and
under load one of them can lose for seconds. Here whoever asks gets a connection of its own. A kept connection may turn
out to be dead: then the request goes out once more on a new one, unless a byte of an answer had come.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpcore
import httpx

IDLE_SECONDS = 30.0
"""How long a connection is kept that nobody uses."""
_DEAD = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""What using a connection gives that the server has closed."""


class _Heard(httpcore.AsyncNetworkStream):
    """A stream that counts what it received, for its line."""

    def __init__(self, line: Line, stream: httpcore.AsyncNetworkStream) -> None:
        self._line, self._stream = line, stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        found = await self._stream.read(max_bytes, timeout)
        self._line.heard += len(found)
        return found

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Heard(self._line, await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Network(httpcore.AsyncNetworkBackend):
    """Connects for one line, and counts it."""

    def __init__(self, line: Line) -> None:
        self._line, self._backend = line, httpcore.AnyIOBackend()

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        stream = await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        self._line.made += 1
        return _Heard(self._line, stream)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class Line(httpx.AsyncHTTPTransport):
    """One connection, made anew where it was closed. `made`: how often; `heard`: bytes received."""

    def __init__(self, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify, trust_env=False)
        self.made = self.heard = 0
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=verify, max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_SECONDS,
            network_backend=_Network(self),
        )  # fmt: skip

    async def ask(self, request: httpx.Request) -> httpx.Response | None:
        """The head of the answer; None where the connection was an old one, and died without a word.

        Raises httpx.TransportError.
        """
        made, heard = self.made, self.heard
        try:
            return await self.handle_async_request(request)
        except BaseException as error:
            await self.aclose()
            if isinstance(error, _DEAD) and made and (made, heard) == (self.made, self.heard):
                return None
            raise


class _Lent(httpx.AsyncByteStream):
    """The body of an answer; its connection goes back when it is closed."""

    def __init__(self, pool: Pool, line: Line, stream: httpx.AsyncByteStream) -> None:
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

    def __init__(self, verify: ssl.SSLContext, keep: int) -> None:
        self._verify, self._keep = verify, keep
        self._free: deque[tuple[float, Line]] = deque()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Ask on a connection that is free, the warmest first, or on a new one. Raises httpx.TransportError."""
        line = self._free.pop()[1] if self._free else Line(self._verify)
        found = await line.ask(request)
        if found is None:
            line = Line(self._verify)
            found = await line.ask(request)
        assert found is not None and isinstance(found.stream, httpx.AsyncByteStream)
        return httpx.Response(
            found.status_code,
            headers=found.headers,
            stream=_Lent(self, line, found.stream),
            extensions=found.extensions,
        )

    async def give(self, line: Line) -> None:
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
