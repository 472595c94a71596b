"""A kept connection that the server closes in the moment in which it is used again."""

from __future__ import annotations

import asyncio

import pytest

from kcverify.gateway.settings import Limits
from kcverify.gateway.upstream import Fault, Upstream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


async def asked(good: int, times: int) -> tuple[list[int], int]:
    """Statuses of so many requests to a server that answers the first `good` of each connection; connections made."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for n in range(good + 1):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if n < good:
                writer.write(HEAD)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream.at("safe", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Limits())
    try:
        found = []
        for _ in range(times):
            answer = await upstream.post("/v1/completions", b"{}", {})
            await upstream.body(answer, 5.0)
            found.append(answer.status_code)
        return found, connections
    finally:
        await upstream.client.aclose()
        server.close()


def test_it_is_asked_once_more_on_a_new_connection() -> None:
    assert asyncio.run(asked(1, 3)) == ([200] * 3, 3)


def test_a_server_that_never_answers_stays_a_fault() -> None:
    with pytest.raises(Fault, match="unreachable"):
        asyncio.run(asked(0, 1))
