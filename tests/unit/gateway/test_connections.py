"""A client's connection: the head of a request is due in time and within a size, an answer must be taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("uvicorn")

from kcverify.gateway import connections
from kcverify.gateway.connections import HEAD_BYTES, Connection
from kcverify.gateway.settings import Limits


class Inner:
    """Stands for the protocol of the server: a request begins with the byte `!`, and is answered at `end`."""

    def __init__(self) -> None:
        self.cycle: Any = None
        self.told: list[str] = []
        self.pipeline: tuple[object, ...] = ()

    def data_received(self, data: bytes) -> None:
        if b"!" in data:
            self.cycle = SimpleNamespace(response_complete=False)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.told.append(name)


class Transport(asyncio.Transport):
    """A client that takes `takes` bytes whenever it is looked at."""

    def __init__(self, takes: int = 0) -> None:
        super().__init__()
        self.waiting, self.takes, self.ended = 1000, takes, ""

    def get_write_buffer_size(self) -> int:
        self.waiting -= self.takes
        return self.waiting

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Quick(Connection):
    limits: ClassVar[Limits] = Limits(first=0.05, stall=0.05, body=1 << 20)


@pytest.fixture
def inner(monkeypatch: pytest.MonkeyPatch) -> Inner:
    made = Inner()
    monkeypatch.setattr(connections, "AutoHTTPProtocol", lambda *_, **__: made)
    return made


def run(act: Callable[[Quick, Transport], None], seconds: float = 0.12, takes: int = 0) -> str:
    """How the connection ended, after an act and some time."""

    async def main() -> str:
        connection, transport = Quick(), Transport(takes)
        connection.connection_made(transport)
        act(connection, transport)
        await asyncio.sleep(seconds)
        connection.connection_lost(None)
        return transport.ended

    return asyncio.run(main())


@pytest.mark.parametrize("head", [b"", b"POST /v1/comp"])
def test_a_head_that_does_not_end_is_not_waited_for(inner: Inner, head: bytes) -> None:
    assert run(lambda c, _: c.data_received(head) if head else None) == "closed"


def test_a_request_under_way_has_its_own_limits(inner: Inner) -> None:
    assert run(lambda c, _: c.data_received(b"POST !")) == ""


def test_a_second_head_is_due_as_the_first_one(inner: Inner) -> None:
    def act(c: Quick, _: Transport) -> None:
        c.data_received(b"POST !")
        inner.cycle.response_complete = True
        c.data_received(b"POS")

    assert run(act) == "closed"


def test_a_head_has_a_size(inner: Inner) -> None:
    assert run(lambda c, _: [c.data_received(bytes(HEAD_BYTES)), None][1], 0.0) == ""
    assert run(lambda c, _: [c.data_received(bytes(HEAD_BYTES + 1)), None][1], 0.0) == "closed"


def test_what_is_left_of_a_refused_body_is_read(inner: Inner) -> None:
    def act(c: Quick, _: Transport) -> None:
        c.data_received(b"POST !")
        inner.cycle.response_complete = True
        c.data_received(bytes(HEAD_BYTES + 1))

    assert run(act, 0.0) == ""


def test_an_answer_that_nobody_takes_is_given_up(inner: Inner) -> None:
    def act(c: Quick, _: Transport) -> None:
        c.data_received(b"POST !")
        c.pause_writing()

    assert run(act) == "aborted"
    assert run(act, takes=1) == ""
    assert inner.told.count("pause_writing") == 2


def test_an_answer_that_was_taken_is_forgotten(inner: Inner) -> None:
    def act(c: Quick, _: Transport) -> None:
        c.data_received(b"POST !")
        c.pause_writing()
        c.resume_writing()

    assert run(act) == ""
    assert "resume_writing" in inner.told


@pytest.mark.parametrize("more_body", [False, True])
def test_who_sends_no_more_may_wait_for_an_answer_to_a_whole_request(more_body: bool, inner: Inner) -> None:
    inner.cycle = SimpleNamespace(response_complete=False, more_body=more_body, keep_alive=True)
    kept = Quick().eof_received()
    assert (kept is True, inner.cycle.keep_alive) == (not more_body, more_body)
    assert inner.told == (["eof_received"] if more_body else [])
