"""Measuring beside the traffic: a bounded queue, scoring on the reference, counting in a thread of its own.

Nothing here is waited for by a request. Whether a request is measured is decided before the candidate is asked, so that
what is lost for lack of room is a fair sample of the traffic of its time; it is counted as lost.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from kcverify.gateway.asked import Asked, injected
from kcverify.gateway.cells import Facts
from kcverify.gateway.core import Gateway
from kcverify.gateway.exchange import Seen, fields_of, observed, outside
from kcverify.gateway.guard import Found
from kcverify.gateway.observed import answers
from kcverify.gateway.scoring import Read, Scoring
from kcverify.gateway.streaming import DONE, Events, Gathered, content
from kcverify.gateway.upstream import Fault, Upstream, parsed, parsed_event, reject, whole_events

_SHED = "its answer did not fit into the memory of what waits: --limit queue_bytes=N"
_LOOK_SECONDS = 0.05


class Measuring:
    """The queue and those who work it off.

    `active` counts requests that are being answered, `admitted` those that are to be measured and are not yet: at the
    candidate, waiting or being scored. `behind`: how long the one that was last begun had waited, seconds.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.active = self.copies = self.admitted = self.busy = 0
        self.waiting_bytes = 0
        self.outside: dict[str, int] = {}
        self._behind = 0.0
        self._queue: asyncio.Queue[Seen] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "kcverify-measure")
        self._scoring = Scoring(gateway, self._thread)
        self._tasks: set[asyncio.Task[None]] = set()
        gateway.metrics.measuring(lambda: self.waiting, lambda: self.behind)

    async def open(self) -> None:
        """Start working."""
        for number in range(self.gateway.settings.limits.scorers):
            self._start(self._work(), f"scorer-{number}")

    async def close(self, seconds: float = 5.0) -> None:
        """Measure what waits, for so long at most; the rest is counted as lost."""
        end = time.monotonic() + seconds
        while self.admitted and time.monotonic() < end:
            await asyncio.sleep(0.02)
        left = self.admitted
        if left:
            self.gateway.lost("closing", left)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    @property
    def waiting(self) -> int:
        """Requests that wait to be measured."""
        return self._queue.qsize()

    @property
    def behind(self) -> float:
        """How long the request that was last begun had waited, seconds; 0 where none waits."""
        return self._behind if self.waiting else 0.0

    def _start(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def admit(self, asked: Asked) -> None:
        """Decide whether what the candidate makes of a request will be measured; before it is asked, never later."""
        limits = self.gateway.settings.limits
        if self.admitted >= limits.queue:
            self.gateway.lost("queue")
        elif self.waiting_bytes >= limits.queue_bytes // 2:
            self.gateway.lost("queue_bytes")
        else:
            asked.admitted = True
            self.admitted += 1

    def offer(self, seen: Seen) -> None:
        """Hand a request over, of which one was admitted; never waits.

        An answer for which there is no room any more counts as one that does not show its numbers, and is not dropped: it
        is the large ones that meet this.
        """
        asked = seen.asked
        if not asked.admitted or asked.offered:
            return
        asked.offered = True
        if seen.found is not None and self.waiting_bytes + seen.size > self.gateway.settings.limits.queue_bytes:
            seen = replace(seen, found=None, size=0, shed=True)
        seen.since = time.perf_counter()
        self.waiting_bytes += seen.size
        self._queue.put_nowait(seen)

    def forget(self, asked: Asked) -> None:
        """A request is answered: where nothing of it was handed over, its place is free again."""
        if asked.admitted and not asked.offered:
            asked.admitted = False
            self.admitted -= 1

    # -- copies ----------------------------------------------------------------------------------------------------

    def copy(self, asked: Asked, path: str) -> None:
        """Send a copy of a request to the candidate; its answer is measured and goes nowhere else."""
        if self.copies >= self.gateway.settings.limits.copies:
            self.gateway.lost("copies")
            return
        self.admit(asked)
        if asked.admitted:
            self.copies += 1
            self._start(self._copied(asked, path), "copy")

    async def _copied(self, asked: Asked, path: str) -> None:
        began, server = time.perf_counter(), self.gateway.upstream("candidate")
        try:
            try:
                seen = await self._copy_of(asked, path, began)
                self.gateway.answered(server)
            except Fault as error:
                seen = Seen(asked, None, 0.0, None, str(error), error.kind == "non_finite")
                if error.kind == "refused" and not await self._others_answered(asked):
                    self.gateway.lost("refused_copy")
                    return
                self.gateway.failed(server, error)
            seen.seconds = time.perf_counter() - began
            self.offer(seen)
        finally:
            self.copies -= 1
            self.forget(asked)

    async def _copy_of(self, asked: Asked, path: str, began: float) -> Seen:
        """What the candidate makes of a copy. Raises Fault, `refused` where it says that the client is wrong."""
        server = self.gateway.upstream("candidate")
        extra = {} if server.plain else injected(asked, self.gateway.settings.top)
        body = asked.for_upstream(server.model_for(asked.fields.get("model")), extra)
        answer = await server.post(path, body, asked.headers)
        if "event-stream" in answer.headers.get("content-type", ""):
            gathered, first = await self._gathered(asked, server, answer, began)
            return Seen(asked, gathered.answer(), 0.0, first, size=gathered.size)
        content = await server.body(answer, self.gateway.settings.limits.whole)
        reject(answer.status_code, content)
        if answer.status_code >= 400:
            raise Fault("refused", f"status {answer.status_code}", answer.status_code)
        parsed(content)
        return Seen(asked, content, 0.0, None, size=len(content))

    async def _others_answered(self, asked: Asked) -> bool:
        """Whether the client, whose copy the candidate refused, was answered by who served it."""
        end = time.monotonic() + self.gateway.settings.limits.whole
        while asked.status is None and time.monotonic() < end:
            await asyncio.sleep(_LOOK_SECONDS)
        return asked.status is not None and 200 <= asked.status < 400

    async def _gathered(
        self, asked: Asked, server: Upstream, answer: Any, began: float
    ) -> tuple[Gathered, float | None]:
        """A streamed copy as it was gathered, and the time to its first part. Raises Fault."""
        cut, gathered, first = Events(), Gathered(asked.kind), None
        async for part in server.parts(answer):
            gathered.size += len(part)
            if gathered.size > self.gateway.settings.limits.answer:
                raise Fault("too_large")
            for event in whole_events(cut, part):
                data = content(event)
                if data is None:
                    continue
                first = time.perf_counter() - began if first is None else first
                if data == DONE:
                    gathered.done = True
                else:
                    gathered.add(parsed_event(data))
        if not gathered.done:
            raise Fault("truncated", "the stream ended without its end mark")
        return gathered, first

    # -- numbers ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            seen = await self._queue.get()
            self._behind = time.perf_counter() - seen.since
            self.busy += 1
            try:
                await self._measure(seen)
            except Exception as error:  # a fault of ours must not end the worker, and is never silent
                self.gateway.lost("fault")
                self.gateway.problem = f"measuring {seen.asked.request_id}: {type(error).__name__}: {error}"
            finally:
                self.waiting_bytes -= seen.size
                self.admitted -= 1
                self.busy -= 1

    async def _measure(self, seen: Seen) -> None:
        gateway = self.gateway
        left = outside(gateway.contract.assumptions, seen.asked)
        if left:
            self.outside[left] = self.outside.get(left, 0) + 1
            return
        loop = asyncio.get_running_loop()
        read, facts = await loop.run_in_executor(self._thread, self._facts, seen)
        if read and not seen.broken:
            facts = await self._scoring.scored(seen, read, facts)
        found: Found = await loop.run_in_executor(self._thread, gateway.guard.add, facts, gateway.where)
        if found.shift is not None:
            await gateway.shift(found.shift)
        if facts.run != gateway.state.run:
            gateway.counts["overtaken"] += 1

    def _facts(self, seen: Seen) -> tuple[Read, Facts]:
        """The choices of the answer, and what the exchange itself shows; in the thread that measures."""
        asked, found = seen.asked, seen.found
        if isinstance(found, bytes):
            found = parsed(found)
        read: Read = ()
        if found is not None:
            given = () if asked.several else asked.prompt
            models = self.gateway.upstream("candidate").models
            read = answers(found, models, given, self.gateway.settings.top)
        facts = Facts(
            asked.request_id, asked.routed.table.run, asked.temperature or 0.0, None, _SHED if seen.shed else "",
            seen.failed and not seen.broken, "", observed(seen, found), fields_of(asked, read), asked.tags, seen.broken,
            at=asked.at,
        )  # fmt: skip
        return read, facts
