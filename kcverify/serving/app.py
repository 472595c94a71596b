"""The HTTP interface of the demo server: completions, chat, models, health, and the faults' switch."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kcverify import __version__
from kcverify.diagnostics import InputError
from kcverify.measure.tokenizer import BYTES
from kcverify.serving.answers import DONE, Identity, Pieces, dumps, event, spoilt, whole
from kcverify.serving.asked import BODY_LIMIT, Asked, RequestError, error_data, parse, read, tokenized
from kcverify.serving.engine import CONTEXT, Engine, Sequence
from kcverify.serving.faults import Behaviour, Faults, read_faults

MODEL = "demo"
CRASHED = 70
"""Exit code of the fault `crash`."""


@dataclass
class Server:
    """What the routes share. `kernel` and `weights` are what is reported, whatever computes."""

    engine: Engine
    faults: Faults
    kernel: str
    weights: str
    token: str | None
    processed: bool
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    switching: asyncio.Lock = field(default_factory=asyncio.Lock)

    def weight_version(self, b: Behaviour) -> str:
        """The version that answers report."""
        return f"{self.weights}+{b.noise:g}" if b.tells_weights else self.weights

    def identity(self, b: Behaviour, chat: bool) -> Identity:
        """The head of the next answer."""
        number, weights = next(self.numbers), self.weight_version(b)
        fingerprint = f"kcverify-{__version__}/{self.kernel}/{weights}"
        return Identity(
            f"{'chatcmpl' if chat else 'cmpl'}-{number}", int(time.time()) + b.clock, MODEL, fingerprint, weights
        )


def make_app(server: Server) -> Starlette:
    """The application over a server's parts; its lifespan starts and ends the engine's thread."""

    async def completions(request: Request) -> Response:
        return await _generate(server, request, chat=False)

    async def chat(request: Request) -> Response:
        return await _generate(server, request, chat=True)

    async def models(request: Request) -> Response:
        b = server.faults.whole()
        row = {
            "id": MODEL, "object": "model", "created": 0, "owned_by": "kcverify", "max_model_len": CONTEXT,
            "kernel": server.kernel, "weight_version": server.weight_version(b), "vocabulary": server.engine.vocabulary,
            "logprobs_mode": "processed_logprobs" if server.processed else "raw_logprobs",
        }  # fmt: skip
        return _json(200, {"object": "list", "data": [row]})

    async def tokenize(request: Request) -> Response:
        return _json(200, tokenized(parse(await _body(request)), BYTES))

    async def health(request: Request) -> Response:
        fault = server.engine.fault
        return _json(200, {"status": "ok"}) if fault is None else _json(503, {"status": fault})

    async def admin(request: Request) -> Response:
        return await _admin(server, request)

    class Lifespan:
        async def __aenter__(self) -> None:
            server.engine.start()

        async def __aexit__(self, *_: object) -> None:
            server.engine.stop()

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/admin/fault", admin, methods=["GET", "POST"]),
    ]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        RequestError: _refused, HTTPException: _http, InputError: _input, Exception: _fault,
    }  # fmt: skip
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=lambda app: Lifespan())


def _json(status: int, value: Any) -> Response:
    return Response(dumps(value), status, media_type="application/json")


async def _refused(request: Request, error: RequestError) -> Response:
    return _json(error.status, error.data())


async def _http(request: Request, error: HTTPException) -> Response:
    return _json(
        error.status_code, error_data(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    )


async def _input(request: Request, error: InputError) -> Response:
    d = error.diagnostics[0]
    return _json(400, error_data(400, f"{d.message}; {d.hint}", None, d.code.id))


async def _fault(request: Request, error: Exception) -> Response:
    return _json(500, error_data(500, f"a fault of the server: {type(error).__name__}"))


async def _body(request: Request) -> bytes:
    """The body, at most BODY_LIMIT bytes. Raises RequestError (413)."""
    out = bytearray()
    too_large = RequestError(413, f"the body is larger than {BODY_LIMIT} bytes")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > BODY_LIMIT:
        raise too_large
    async for part in request.stream():
        out += part
        if len(out) > BODY_LIMIT:
            raise too_large
    return bytes(out)


async def _admin(server: Server, request: Request) -> Response:
    if server.token is None:
        raise HTTPException(404, "Not Found")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), server.token.encode()):
        raise RequestError(401, "the admin token is missing or wrong")
    if request.method == "POST":
        try:
            value = json.loads(await _body(request))
        except (ValueError, RecursionError):
            raise RequestError(400, "the body is not JSON") from None
        async with server.switching:
            await _switch(server, Faults(read_faults(value)))
    return _json(200, {"faults": [f.data() for f in server.faults.current]})


async def _switch(server: Server, faults: Faults) -> None:
    """Put other faults in force; the engine packs its weights anew where they ask for it."""
    old, new = server.faults.whole(), faults.whole()
    if (old.kernel, old.noise) != (new.kernel, new.noise):
        await asyncio.to_thread(server.engine.use, new.kernel or server.kernel, new.noise)
    server.faults = faults


async def _generate(server: Server, request: Request, *, chat: bool) -> Response:
    b = server.faults.behaviour()
    body = parse(await _body(request))
    if b.hang:
        await _gone(request.receive)
        return Response(status_code=499)
    if b.error is not None:
        raise RequestError(b.error, "the server has a fault", None, "internal_error")
    asked = read(body, chat=chat, model=MODEL, tokenizer=BYTES, after=server.processed, b=b)
    if not server.engine.submit(list(asked.sequences)):
        raise RequestError(503, "too many requests wait", None, "overloaded")
    identity = server.identity(b, chat)
    if asked.stream:
        return Streamed(asked, identity, b)
    await _finished(asked, request.receive)
    if any(s.finish == "error" for s in asked.sequences):
        raise RequestError(500, "the model failed", None, "internal_error")
    if b.delay:
        await asyncio.sleep(b.delay * sum(len(s.tokens) for s in asked.sequences))
    data = dumps(whole(asked, identity))
    if b.garbage:
        data = spoilt(data)
    if b.cut == "done":
        data = data[: len(data) // 2]
    if b.crash_after is not None or b.cut == "chunk":
        return Broken(data, crash=b.crash_after is not None)
    return Response(data, media_type="application/json")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _finished(asked: Asked, receive: Receive) -> None:
    """Wait for all sequences; a client that leaves cancels them."""
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        for s in asked.sequences:
            while s.finish is None:
                grown = asyncio.ensure_future(s.changed.wait())
                await asyncio.wait((grown, leaving), return_when=asyncio.FIRST_COMPLETED)
                grown.cancel()
                s.changed.clear()
                if leaving.done():
                    raise RequestError(499, "the client left")
    finally:
        leaving.cancel()
        _cancel(asked.sequences)


def _cancel(sequences: tuple[Sequence, ...]) -> None:
    for s in sequences:
        s.cancelled = True


class Broken(Response):
    """Half of an answer, and then the connection or the whole server is gone."""

    media_type = "application/json"

    def __init__(self, data: bytes, crash: bool) -> None:
        super().__init__(data)
        self._crash = crash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Promise the whole length and send half."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        half = bytes(self.body)[: len(self.body) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})
        if self._crash:
            await asyncio.sleep(0.01)  # the half is on its way
            os._exit(CRASHED)


class Streamed(Response):
    """An answer in server-sent events, each as soon as its tokens are there."""

    def __init__(self, asked: Asked, identity: Identity, b: Behaviour) -> None:
        super().__init__(
            None, headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        )
        del self.headers["content-length"]
        self._asked, self._identity, self._b = asked, identity, b

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end, or until the client leaves."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            _cancel(self._asked.sequences)
        if sending.done() and not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        b, sent, most = self._b, 0, max(1, self._asked.sequences[0].max_tokens // 2)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for data, tokens in self._events():
            await send({"type": "http.response.body", "body": data, "more_body": True})
            sent += tokens
            if b.crash_after is not None and sent >= b.crash_after:
                await asyncio.sleep(0.01)
                os._exit(CRASHED)
            if b.cut is not None and sent >= most:
                break
        if b.cut != "chunk":
            end = b"" if b.cut == "done" else DONE
            await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _events(self) -> AsyncIterator[tuple[bytes, int]]:
        """Events and how many tokens are in each; sequences take turns."""
        asked, b = self._asked, self._b
        one = b.delay > 0 or b.crash_after is not None or b.cut is not None
        pieces = [(s, Pieces(asked, s, i, self._identity)) for i, s in enumerate(asked.sequences)]
        sent = [-1] * len(pieces)
        while not all(s.finish is not None and n == len(s.tokens) for (s, _), n in zip(pieces, sent, strict=True)):
            waited = True
            for i, (s, piece) in enumerate(pieces):
                if s.finish == "error":
                    yield event(dumps(error_data(500, "the model failed", None, "internal_error"))), 0
                    return
                there = len(s.tokens)
                if sent[i] < 0 and (there or s.finish):
                    sent[i], waited = 0, False
                    if (data := piece.opening()) is not None:
                        yield self._spoil(data), 0
                    if s.finish and not there:
                        yield self._spoil(piece.next(0) or b""), 0
                upto = min(there, sent[i] + 1) if one else there
                if 0 <= sent[i] < upto:
                    await asyncio.sleep(b.delay * (upto - sent[i]))
                    if (data := piece.next(upto)) is not None:
                        yield self._spoil(data), upto - sent[i]
                    sent[i], waited = upto, False
            if waited:
                await _any(pieces)
        if asked.usage:
            yield self._spoil(pieces[0][1].usage()), 0

    def _spoil(self, data: bytes) -> bytes:
        return event(spoilt(data[6:-2])) if self._b.garbage else data


async def _any(pieces: list[tuple[Sequence, Pieces]]) -> None:
    """Wait until one of the unfinished sequences grows."""
    open_ = [s for s, _ in pieces if s.finish is None]
    waits = [asyncio.ensure_future(s.changed.wait()) for s in open_]
    try:
        if waits:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for w in waits:
            w.cancel()
    for s in open_:
        s.changed.clear()
