"""Kept connections that a server closes in the moment in which they are used again; servers that start anew."""

from __future__ import annotations

import asyncio

import pytest

from kcverify.gateway.settings import Limits
from kcverify.gateway.upstream import Fault, Upstream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Server:
    """Answers `good` requests of each connection, as soon as `gate` is open; the next one gets `last` and the end."""

    def __init__(self, good: int, last: bytes = b"") -> None:
        self.good, self.last = good, last
        self.connections = self.requests = self.inside = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        answered = 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                self.requests += 1
                self.inside += 1
                await self.gate.wait()
                self.inside -= 1
                answered += 1
                writer.write(HEAD if answered <= self.good else self.last)
                if answered > self.good:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


async def post(upstream: Upstream) -> int:
    answer = await upstream.post("/v1/completions", b"{}", {})
    assert await upstream.body(answer, 5.0) == b"{}"
    return answer.status_code


async def at_once(upstream: Upstream, server: Server, count: int) -> None:
    """So many requests, none answered before all are there."""
    server.gate.clear()
    asked = [asyncio.create_task(post(upstream)) for _ in range(count)]
    async with asyncio.timeout(20):
        while server.inside < count:
            await asyncio.sleep(0.005)
    server.gate.set()
    assert await asyncio.gather(*asked) == [200] * count


async def open_at(server: Server) -> tuple[Upstream, asyncio.Server]:
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    return Upstream.at("safe", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", Limits()), listening


def test_a_dead_connection_is_asked_once_more_on_a_new_one() -> None:
    async def body() -> None:
        server = Server(1)
        upstream, listening = await open_at(server)
        assert [await post(upstream) for _ in range(3)] == [200] * 3
        assert server.connections == 3
        await upstream.client.aclose()
        listening.close()

    asyncio.run(body())


def test_a_server_that_never_answers_stays_a_fault_and_is_asked_once() -> None:
    async def body() -> None:
        server = Server(0)
        upstream, listening = await open_at(server)
        with pytest.raises(Fault, match="unreachable"):
            await post(upstream)
        assert server.requests == 1, "a new connection that dies has died of the request"
        await upstream.client.aclose()
        listening.close()

    asyncio.run(body())


def test_eight_kept_connections_of_a_server_that_restarts_are_no_fault() -> None:
    """All of them die as they are used again: whoever asks goes to a new one, not to the next dead one."""

    async def body() -> None:
        server = Server(1)
        upstream, listening = await open_at(server)
        await at_once(upstream, server, 8)
        assert server.connections == 8
        assert await post(upstream) == 200
        assert server.connections == 9
        server.good = 100
        assert await asyncio.gather(*(post(upstream) for _ in range(8))) == [200] * 8
        await upstream.client.aclose()
        listening.close()

    asyncio.run(body())


def test_a_server_that_was_stopped_and_started_is_no_fault() -> None:
    async def body() -> None:
        server = Server(100)
        upstream, listening = await open_at(server)
        port = listening.sockets[0].getsockname()[1]
        await at_once(upstream, server, 8)
        listening.close()
        for writer in server.writers:
            writer.transport.abort()
        again = await asyncio.start_server(server, "127.0.0.1", port)
        assert await asyncio.gather(*(post(upstream) for _ in range(8))) == [200] * 8
        await upstream.client.aclose()
        again.close()

    asyncio.run(body())


def test_nothing_is_asked_twice_once_a_byte_of_its_answer_came() -> None:
    async def body() -> None:
        server = Server(1, b"HTTP/1.1 2")
        upstream, listening = await open_at(server)
        assert await post(upstream) == 200
        with pytest.raises(Fault, match="unreachable"):
            await post(upstream)
        assert server.requests == 2
        await upstream.client.aclose()
        listening.close()

    asyncio.run(body())
