"""A client's connection, watched: a request's head must come in time and within a size, and answers must be taken.

The server below limits neither how long a head may take nor how long an answer may lie unread: a few hundred such
connections would use up what a process may open.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from kcverify.gateway.settings import Limits

HEAD_BYTES = 1 << 17
"""Of a head that does not end."""


class Connection(asyncio.Protocol):
    """Passes everything on to the protocol of uvicorn. `limits.first`: seconds for a head, `limits.stall`: for a client
    that takes nothing of its answer."""

    limits: ClassVar[Limits] = Limits()

    def __init__(self, *given: Any, **named: Any) -> None:
        self._inner: Any = AutoHTTPProtocol(*given, **named)
        self._head: asyncio.TimerHandle | None = None
        self._write: asyncio.TimerHandle | None = None
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there; its first head is due."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._inner.connection_made(transport)
        self._due()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head, or of the body of a request that is being read."""
        self._inner.data_received(data)
        if not self._waits():
            self._size = 0
            self._began()
            return
        self._size += len(data)
        if self._size > HEAD_BYTES + (0 if self._inner.cycle is None else self.limits.body):
            self._transport.close()
        elif self._head is None:
            self._due()

    def eof_received(self) -> bool | None:
        """The client sends no more; whoever sent a whole request first may still wait for its answer."""
        cycle = self._inner.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = cycle.keep_alive and bool(getattr(self._inner, "pipeline", None))
            return True
        found: bool | None = self._inner.eof_received()
        return found

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._began()
        self._taken()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Answers pile up here."""
        self._inner.pause_writing()
        self._piled(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """They were taken."""
        self._taken()
        self._inner.resume_writing()

    def _waits(self) -> bool:
        """Whether no request is under way."""
        cycle = self._inner.cycle
        return cycle is None or bool(cycle.response_complete)

    def _due(self) -> None:
        self._head = self._loop.call_later(self.limits.first, self._transport.close)

    def _began(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _taken(self) -> None:
        if self._write is not None:
            self._write.cancel()
            self._write = None

    def _piled(self, size: int) -> None:
        self._write = self._loop.call_later(self.limits.stall, self._look, size)

    def _look(self, before: int) -> None:
        """End the connection where nothing was taken since."""
        now = self._transport.get_write_buffer_size()
        if now >= before:
            self._transport.abort()
        else:
            self._piled(now)
