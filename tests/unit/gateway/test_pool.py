"""Every request has a connection of its own, which is kept, given back and closed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import httpx
import pytest

from kcverify.gateway import pool
from kcverify.gateway.pool import Pool

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Counts the connections; answers when `gate` is open, and closes afterwards where `closing`."""

    def __init__(self, *, closing: bool = False) -> None:
        self.opened = self.open = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.closing = closing

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await self.gate.wait()
                writer.write(ANSWER)
                if self.closing:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.open -= 1
        writer.close()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.open != count:
                await asyncio.sleep(0.005)


def run(body: Callable[[httpx.AsyncClient, Server], Awaitable[None]], *, keep: int = 8, closing: bool = False) -> None:
    async def whole() -> None:
        server = Server(closing=closing)
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        lent = Pool(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), keep)
        async with httpx.AsyncClient(base_url=url, transport=lent, timeout=20.0) as client:
            await body(client, server)
        await server.until(0)
        listening.close()

    asyncio.run(whole())


async def at_once(client: httpx.AsyncClient, server: Server, count: int) -> None:
    server.gate.clear()
    asked = [asyncio.create_task(client.get("/")) for _ in range(count)]
    await server.until(count)
    server.gate.set()
    assert [a.text for a in await asyncio.gather(*asked)] == ["ok"] * count


def test_one_after_another_shares_one_connection() -> None:
    async def body(client: httpx.AsyncClient, server: Server) -> None:
        for _ in range(20):
            assert (await client.get("/")).text == "ok"
        assert server.opened == 1

    run(body)


def test_requests_at_once_have_one_each_and_none_waits_for_another() -> None:
    async def body(client: httpx.AsyncClient, server: Server) -> None:
        await at_once(client, server, 12)
        await server.until(8)  # as many are kept as may be
        await at_once(client, server, 12)
        assert server.opened == 16

    run(body)


def test_a_connection_goes_back_when_the_answer_is_closed_unread() -> None:
    async def body(client: httpx.AsyncClient, server: Server) -> None:
        for _ in range(3):
            answer = await client.send(client.build_request("GET", "/"), stream=True)
            await answer.aclose()
            await answer.aclose()
        assert (await client.get("/")).text == "ok"

    run(body)


def test_a_request_that_is_given_up_closes_its_connection() -> None:
    async def body(client: httpx.AsyncClient, server: Server) -> None:
        server.gate.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.get("/")
        server.gate.set()
        await server.until(0)
        assert (await client.get("/")).text == "ok"

    run(body)


def test_a_server_that_closes_is_asked_on_a_new_connection() -> None:
    async def body(client: httpx.AsyncClient, server: Server) -> None:
        for number in range(1, 4):
            assert (await client.get("/")).text == "ok"
            await server.until(0)
            await asyncio.sleep(0.02)
            assert server.opened == number

    run(body, closing=True)


def test_idle_connections_are_closed_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(client: httpx.AsyncClient, server: Server) -> None:
        await at_once(client, server, 4)
        monkeypatch.setattr(pool, "IDLE_SECONDS", 0.0)
        await asyncio.sleep(0.001)
        await client.get("/")
        await server.until(1)  # that which has just been used

    run(body)
