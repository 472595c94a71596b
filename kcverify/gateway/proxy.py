"""The path of a request: read, route, try the upstreams in their order, answer, hand over what was seen.

Raw ASGI: nothing here waits for a measurement, and an answer that is streamed leaves as it comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import httpx

from kcverify.gateway import answers
from kcverify.gateway.answers import Headers, Receive, Scope, Send
from kcverify.gateway.asked import Asked, AskedError, forwarded, injected, read_fields, request_id, tags_of
from kcverify.gateway.attempts import Attempt, read_event, told
from kcverify.gateway.continued import piece, rest_of, texts
from kcverify.gateway.core import Gateway
from kcverify.gateway.exchange import Seen
from kcverify.gateway.log import log_line, route_headers
from kcverify.gateway.measuring import Measuring
from kcverify.gateway.settings import FALLBACKS
from kcverify.gateway.streaming import DONE, Events, Gathered, content, dumped, strip, unnumbered
from kcverify.gateway.upstream import PATHS, Fault, Upstream, parsed, reject, shut, whole_events

_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class Proxy:
    """The endpoint of one kind of request."""

    def __init__(self, gateway: Gateway, measuring: Measuring, kind: str) -> None:
        self.gateway, self.measuring, self.kind = gateway, measuring, kind
        self.path = PATHS[kind]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began, gateway = time.perf_counter(), self.gateway
        headers = dict(scope["headers"])
        name = headers.get(b"x-request-id", b"")
        reply: Headers = [(b"x-request-id", name)] if name and name.isascii() and name.isalnum() else []
        measuring = self.measuring
        if scope["method"] != "POST":
            await answers.refused(send, "method", "only POST is answered here", [*reply, (b"allow", b"POST")])
            return
        if gateway.closing or measuring.active >= gateway.settings.limits.concurrency:
            code = "closing" if gateway.closing else "overloaded"
            gateway.counts[code] += 1
            await answers.refused(send, code, "the gateway takes no more requests at the moment", reply)
            return
        measuring.active += 1
        try:
            asked = await self._asked(headers, receive, began)
            await self._measured(asked, receive, send)
        except AskedError as error:
            gateway.counts[error.code] += 1
            await answers.refused(send, error.code, str(error), reply)
        finally:
            measuring.active -= 1

    async def _measured(self, asked: Asked, receive: Receive, send: Send) -> None:
        """Answer, and let nobody wait for an outcome that does not come."""
        try:
            await self._answer(asked, receive, send)
        finally:
            asked.status = asked.status or 0
            if not asked.copied:
                self.measuring.forget(asked)

    async def _asked(self, headers: Mapping[bytes, bytes], receive: Receive, began: float) -> Asked:
        """Read the request. Raises AskedError."""
        name = request_id(headers)
        body = await self._body(headers, receive)
        fields = read_fields(body)
        routed = self.gateway.router.table.routed(name)
        self.gateway.counts["requests"] += 1
        return Asked(
            name, self.kind, body, fields, forwarded(headers, name), began, self.gateway.clock.now(), routed,
            tags_of(fields, headers),
        )  # fmt: skip

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        limits = self.gateway.settings.limits
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limits.body:
            raise AskedError("body_too_large", f"the body is larger than {limits.body:,} bytes")
        parts, size = [], 0
        try:
            async with asyncio.timeout(limits.first):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise AskedError("body_incomplete", "the connection closed before the body was complete")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limits.body:
                        raise AskedError("body_too_large", f"the body is larger than {limits.body:,} bytes")
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise AskedError("body_slow", f"the body was not complete after {limits.first:g} s") from None

    # -- the upstreams ---------------------------------------------------------------------------------------------

    def _order(self, asked: Asked) -> list[tuple[str, Upstream]]:
        """Who is asked, in this order: each server once, those that are down last, a candidate that is down not at all."""
        side = asked.routed.side
        assert side is not None
        seen: dict[int, tuple[str, Upstream]] = {}
        for role in FALLBACKS[side]:
            server = self.gateway.upstream(role)
            if role == "candidate" and server.health.down:
                continue
            seen.setdefault(id(server), (role, server))
        return sorted(seen.values(), key=lambda pair: not pair[1].health.usable())

    async def _answer(self, asked: Asked, receive: Receive, send: Send) -> None:
        gateway = self.gateway
        if asked.routed.side is None:
            headers = route_headers(asked, "none")
            status = await answers.refused(
                send, "stopped", "the contract's answer to a failure is that nothing serves", headers
            )
            log_line(self.gateway.log, asked, "none", status, None)
            return
        last: Fault | None = None
        order = self._order(asked)
        if asked.routed.mirrored or (asked.routed.side == "candidate" and gateway.upstream("candidate").health.down):
            asked.copied = True
            self.measuring.copy(asked, self.path)
        elif order[0][0] == "candidate":
            self.measuring.admit(asked)
        for role, server in order:
            attempt = self._attempt(asked, role, server, last=server is order[-1][1])
            try:
                done = await self._tried(asked, attempt, receive, send)
            except Fault as fault:
                last = self._failed(asked, attempt, fault, last)
                continue
            if role != asked.routed.side and server is not gateway.upstream(asked.routed.side):
                gateway.metrics.fallbacks.labels(asked.routed.side, role).inc()
                gateway.counts["fallbacks"] += 1
            gateway.metrics.requests.labels(asked.routed.side, role, done).inc()
            asked.status = int(done)
            if asked.refused and asked.status < 400:
                self._refused(asked)
            return
        await self._all_failed(asked, last, send)

    def _attempt(self, asked: Asked, role: str, server: Upstream, *, last: bool) -> Attempt:
        measured, limits = role == "candidate", self.gateway.settings.limits
        extra = injected(asked, self.gateway.settings.top) if measured and not server.plain else {}
        numbered = bool(extra) and not asked.fields.get("echo")
        return Attempt(server, role, extra, measured, limits.whole if last else limits.first, numbered)

    def _failed(self, asked: Asked, attempt: Attempt, fault: Fault, last: Fault | None) -> Fault:
        """Count a failed attempt; the fault to report if no other upstream answers, an answer before none at all."""
        asked.tried.append(f"{attempt.role}:{fault.kind}")
        if fault.kind == "refused":
            asked.refused = str(fault)
            return fault
        self.gateway.failed(attempt.server, fault)
        if attempt.measured:
            now = time.perf_counter()
            self.measuring.offer(
                Seen(asked, None, now - asked.began, None, str(fault), broken=fault.kind == "non_finite")
            )
        return last if last is not None and last.status is not None and fault.status is None else fault

    def _refused(self, asked: Asked) -> None:
        """The candidate said that the client is wrong, and another upstream answered: the candidate has failed."""
        self.gateway.failed(self.gateway.upstream("candidate"), Fault("refused", asked.refused))
        self.measuring.offer(Seen(asked, None, time.perf_counter() - asked.began, None, asked.refused))

    async def _all_failed(self, asked: Asked, last: Fault | None, send: Send) -> None:
        headers = route_headers(asked, "none")
        if last is not None and last.status is not None and last.status < 500:
            await answers.whole(send, last.status, [*headers, _JSON], last.body)
            status = last.status
        else:
            message = f"no upstream answered: {', '.join(asked.tried) or 'none is up'}"
            status = await answers.refused(send, "upstreams_failed", message, headers)
        self.gateway.counts["upstreams_failed"] += 1
        self.gateway.metrics.requests.labels(asked.routed.side or "none", "none", str(status)).inc()
        log_line(self.gateway.log, asked, "none", status, None)

    async def _tried(self, asked: Asked, attempt: Attempt, receive: Receive, send: Send) -> str:
        """Ask one upstream and answer the client; the status. Raises Fault as long as nothing was sent."""
        server = attempt.server
        body = asked.for_upstream(server.model_for(asked.fields.get("model")), attempt.extra)
        answer = await server.post(self.path, body, asked.headers, attempt.seconds)
        if attempt.extra and answer.status_code in (400, 422):
            wrong = await server.body(answer, asked_seconds(self.gateway))
            plain = await self._plain(asked, attempt)
            if plain is None:
                return await self._client_error(asked, attempt, answer.status_code, wrong, send)
            answer = plain
        if answer.status_code >= 400:
            wrong = await server.body(answer, asked_seconds(self.gateway))
            return await self._client_error(asked, attempt, answer.status_code, wrong, send)
        streamed = b"event-stream" in answer.headers.get("content-type", "").encode()
        if attempt.measured and asked.fields.get("stream") in (None, True, False) and streamed != asked.stream:
            await shut(answer)
            raise Fault("invalid", "the answer is a stream" if streamed else "the answer is no stream")
        if streamed:
            await self._streamed(asked, attempt, answer, receive, send)
        else:
            await self._whole(asked, attempt, answer, send)
        return str(answer.status_code)

    async def _plain(self, asked: Asked, attempt: Attempt) -> httpx.Response | None:
        """Ask again without the fields that measuring added; None where the client's own request is what was wrong."""
        server = attempt.server
        again = await server.post(
            self.path, asked.for_upstream(server.model_for(asked.fields.get("model")), {}), asked.headers
        )
        if again.status_code >= 400:
            await shut(again)
            return None
        server.plain, attempt.extra = True, {}
        self.gateway.counts["plain_upstream"] += 1
        return again

    async def _client_error(self, asked: Asked, attempt: Attempt, status: int, body: bytes, send: Send) -> str:
        """An answer that says that the client is wrong, as it is. Raises Fault where another upstream may know better."""
        reject(status, body)
        if attempt.role == "candidate":  # whether it is right, the next upstream says
            raise Fault("refused", f"status {status}", status, body)
        self.gateway.answered(attempt.server)
        await answers.whole(send, status, [*route_headers(asked, attempt.role), _JSON], body)
        log_line(self.gateway.log, asked, attempt.role, status, None)
        return str(status)

    async def _whole(self, asked: Asked, attempt: Attempt, answer: httpx.Response, send: Send) -> None:
        body = await attempt.server.body(answer, asked_seconds(self.gateway))
        found = parsed(body)
        if not isinstance(found.get("choices"), list) or not found["choices"]:
            raise Fault("invalid", "the answer has no choices", None, body)
        if attempt.measured and not all(isinstance(choice, dict) for choice in found["choices"]):
            raise Fault("invalid", "a choice of the answer is no object", None, body)
        if attempt.numbered and unnumbered(found):
            raise Fault("non_finite", "a log-probability is null", None, body)
        seconds = time.perf_counter() - asked.began
        self.gateway.answered(attempt.server)
        seen, whole = found, body
        if attempt.extra:
            seen = {**found, "choices": [dict(c) if isinstance(c, dict) else c for c in found["choices"]]}
            body = told(strip(found, attempt.extra), dumped)
        await answers.whole(send, answer.status_code, [*route_headers(asked, attempt.role), _JSON], body)
        if attempt.measured:
            self.measuring.offer(Seen(asked, whole, seconds, None, size=len(whole)))
        log_line(self.gateway.log, asked, attempt.role, answer.status_code, seen)
        self.gateway.metrics.added.labels(attempt.role).observe(seconds)

    # -- streams ---------------------------------------------------------------------------------------------------

    async def _streamed(
        self, asked: Asked, attempt: Attempt, answer: httpx.Response, receive: Receive, send: Send
    ) -> None:
        """Pass a stream on, event by event; the first event must be there before the client is answered."""
        gathered = Gathered(asked.kind)
        watcher = asyncio.ensure_future(receive())
        begun, fault, first = False, "", None
        events = self._events(attempt, answer, gathered)
        try:
            async with aclosing(events):
                async for event in events:
                    if not begun and content(event) is None:
                        continue  # a keep-alive is no answer yet: another upstream can still be asked
                    if not begun:
                        first = time.perf_counter() - asked.began
                        headers = [*route_headers(asked, attempt.role), _EVENTS, (b"cache-control", b"no-cache")]
                        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
                        begun = True
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                    if watcher.done():
                        self.gateway.counts["client_left"] += 1
                        self._left(asked, attempt, gathered, first)
                        log_line(self.gateway.log, asked, attempt.role, 499, None)
                        return
            if not gathered.done:
                raise Fault("truncated", "the stream ended without its end mark")
        except Fault as found:
            if not begun:
                raise
            fault = str(found)
            self.gateway.failed(attempt.server, found)
            if not await self._continued(asked, attempt, gathered, send):
                self.gateway.counts["streams_cut"] += 1
                error = answers.stream_error(f"the stream broke off: {fault}")
                await send({"type": "http.response.body", "body": error, "more_body": True})
        finally:
            watcher.cancel()
        await send({"type": "http.response.body", "body": b""})
        self._stream_ended(asked, attempt, gathered, first, fault)

    def _left(self, asked: Asked, attempt: Attempt, gathered: Gathered, first: float | None) -> None:
        """What a client got that left is its answer; how long the rest would have taken is not known."""
        if attempt.measured and gathered.choices:
            seconds = time.perf_counter() - asked.began
            self.measuring.offer(Seen(asked, gathered.answer(), seconds, first, size=gathered.size, left=True))

    def _stream_ended(
        self, asked: Asked, attempt: Attempt, gathered: Gathered, first: float | None, fault: str
    ) -> None:
        seconds = time.perf_counter() - asked.began
        if not fault:
            self.gateway.answered(attempt.server)
        found = gathered.answer() if gathered.choices else None
        if attempt.measured:
            broken = fault.startswith("non_finite")
            seen = Seen(asked, None if fault else found, seconds, first, fault, broken, gathered.size)
            self.measuring.offer(seen)
        log_line(self.gateway.log, asked, attempt.role, 200, found)
        self.gateway.metrics.added.labels(attempt.role).observe(seconds)

    async def _continued(self, asked: Asked, attempt: Attempt, gathered: Gathered, send: Send) -> bool:
        """Let another upstream go on where the candidate broke off; whether the client got the rest."""
        others = [pair for pair in self._order(asked) if pair[1] is not attempt.server]
        for role, server in others if attempt.measured else ():
            fields = rest_of(asked, gathered, server)
            if fields is None:
                return False
            begun = False
            try:
                async with aclosing(texts(server, asked.headers, fields)) as parts:
                    async for text, finish in parts:
                        begun = True
                        event = piece(asked.kind, gathered.head, text, finish)
                        await send({"type": "http.response.body", "body": event, "more_body": True})
            except Fault as fault:
                asked.tried.append(f"{role}:{fault.kind}")
                self.gateway.failed(server, fault)
                if begun:
                    return False
                continue
            await send({"type": "http.response.body", "body": b"data: " + DONE + b"\n\n", "more_body": True})
            self.gateway.answered(server)
            self.gateway.counts["streams_continued"] += 1
            self.gateway.metrics.fallbacks.labels(asked.routed.side, role).inc()
            return True
        return False

    async def _events(
        self, attempt: Attempt, answer: httpx.Response, gathered: Gathered
    ) -> AsyncGenerator[bytes, None]:
        """Events for the client. Of a side that is not measured the parts as they came. Raises Fault."""
        cut, limit = Events(), self.gateway.settings.limits.answer
        parts = attempt.server.parts(answer, attempt.seconds)
        async with aclosing(parts):
            async for part in parts:
                gathered.size += len(part)
                if gathered.size > limit:
                    raise Fault("too_large", f"the answer is larger than {limit:,} bytes")
                for event in whole_events(cut, part):
                    passed = read_event(event, attempt, gathered)
                    if passed is not None:
                        yield passed


def asked_seconds(gateway: Gateway) -> float:
    """The time that a whole answer may take."""
    return gateway.settings.limits.whole
