"""Measuring beside the traffic: a bounded queue, scoring on the reference, counting in a thread of its own.

Whatever does not fit is counted as lost. Nothing here is waited for by a request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from kcverify.elaborate.membership import Field
from kcverify.gateway.asked import Asked, injected
from kcverify.gateway.cells import Facts
from kcverify.gateway.core import Gateway
from kcverify.gateway.drawn import Drawn
from kcverify.gateway.guard import Found
from kcverify.gateway.identity import Check, Sides, checked
from kcverify.gateway.measures import Rows
from kcverify.gateway.observed import Answered, Claims, Listed, answered, claims_of, scored
from kcverify.gateway.origin import CARRIED
from kcverify.gateway.stepwise import by_steps
from kcverify.gateway.streaming import DONE, Events, Gathered, content
from kcverify.gateway.upstream import Fault, Upstream, parsed, reject
from kcverify.routing import split

_TRUNCATING: Mapping[str, float] = {"top_p": 1.0, "top_k": 0.0, "min_p": 0.0}
_PENALTIES: Mapping[str, float] = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


@dataclass
class Seen:
    """One request of the candidate as it ended: its answer (None: it failed, see `fault`), seconds in all and to the first part.

    `broken`: its numbers were not finite.
    """

    asked: Asked
    found: dict[str, Any] | None
    seconds: float
    first: float | None
    fault: str = ""
    broken: bool = False
    size: int = 0
    copied: bool = False


class Measuring:
    """The queue and those who work it off. `active` counts requests that are being answered."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.active = 0
        self.copies = 0
        self.waiting_bytes = 0
        self.outside: dict[str, int] = {}
        self._drawn: dict[int, Drawn] = {}
        self._queue: asyncio.Queue[Seen] = asyncio.Queue(gateway.settings.limits.queue)
        self._thread = ThreadPoolExecutor(1, "kcverify-measure")
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start working."""
        for number in range(self.gateway.settings.limits.scorers):
            self._start(self._work(), f"scorer-{number}")

    async def close(self, seconds: float = 5.0) -> None:
        """Measure what waits, for so long at most; the rest is counted as lost."""
        end = time.monotonic() + seconds
        while (self._queue.qsize() or self.copies or self.busy) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        left = self._queue.qsize() + self.copies + self.busy
        if left:
            self.gateway.lost("closing", left)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    busy = 0

    @property
    def waiting(self) -> int:
        """Requests that wait to be measured."""
        return self._queue.qsize()

    def _start(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def offer(self, seen: Seen) -> None:
        """Hand a request over; never waits."""
        limits = self.gateway.settings.limits
        if self.waiting_bytes + seen.size > limits.queue_bytes:
            self.gateway.lost("queue_bytes")
            return
        try:
            self._queue.put_nowait(seen)
            self.waiting_bytes += seen.size
        except asyncio.QueueFull:
            self.gateway.lost("queue")

    # -- copies ----------------------------------------------------------------------------------------------------

    def copy(self, asked: Asked, path: str) -> None:
        """Send a copy of a request to the candidate; its answer is measured and goes nowhere else."""
        if self.copies >= self.gateway.settings.limits.copies:
            self.gateway.lost("copies")
            return
        self.copies += 1
        self._start(self._copied(asked, path), "copy")

    async def _copied(self, asked: Asked, path: str) -> None:
        server, began, first = self.gateway.upstream("candidate"), time.perf_counter(), None
        extra = {} if server.plain else injected(asked, self.gateway.settings.top)
        found: dict[str, Any] | None = None
        fault, broken = "", False
        try:
            body = asked.for_upstream(server.model_for(asked.fields.get("model")), extra)
            answer = await server.post(path, body, asked.headers)
            if "event-stream" in answer.headers.get("content-type", ""):
                found, first = await self._gathered(asked, server, answer, began)
            else:
                content = await server.body(answer, self.gateway.settings.limits.whole)
                reject(answer.status_code, content)
                if answer.status_code >= 400:
                    self.gateway.lost("refused_copy")
                    return
                found = parsed(content)
            self.gateway.answered(server)
        except Fault as error:
            fault, broken = str(error), error.kind == "non_finite"
            self.gateway.failed(server, error)
        finally:
            self.copies -= 1
        self.offer(Seen(asked, found, time.perf_counter() - began, first, fault, broken, copied=True))

    async def _gathered(
        self, asked: Asked, server: Upstream, answer: Any, began: float
    ) -> tuple[dict[str, Any], float | None]:
        """A streamed copy as one answer, and the time to its first part. Raises Fault."""
        cut, gathered, first = Events(), Gathered(asked.kind), None
        async for part in server.parts(answer):
            gathered.size += len(part)
            if gathered.size > self.gateway.settings.limits.answer:
                raise Fault("too_large")
            for event in cut.feed(part):
                data = content(event)
                if data is None:
                    continue
                first = time.perf_counter() - began if first is None else first
                if data == DONE:
                    gathered.done = True
                else:
                    found = parsed(data)
                    if "error" in found:
                        raise Fault("failed", str(found["error"])[:80])
                    gathered.add(found)
        if not gathered.done:
            raise Fault("truncated", "the stream ended without its end mark")
        return gathered.answer(), first

    # -- numbers ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            seen = await self._queue.get()
            self.waiting_bytes -= seen.size
            self.busy += 1
            try:
                await self._measure(seen)
            except Exception as error:  # a fault of ours must not end the worker, and is never silent
                self.gateway.lost("fault")
                self.gateway.problem = f"measuring {seen.asked.request_id}: {type(error).__name__}: {error}"
            finally:
                self.busy -= 1

    async def _measure(self, seen: Seen) -> None:
        gateway = self.gateway
        run = seen.asked.routed.table.run
        outside = self._outside(seen.asked)
        if outside:
            self.outside[outside] = self.outside.get(outside, 0) + 1
            return
        facts, read = self._facts(seen), None
        loop = asyncio.get_running_loop()
        if seen.found is not None:
            models = gateway.upstream("candidate").models
            read = await loop.run_in_executor(
                self._thread, answered, seen.found, models, seen.asked.prompt, gateway.settings.top
            )
            facts = replace(facts, fields=_fields(seen.asked, read), missing=read.missing)
            if not read.missing:
                facts = await self._scored(seen, read, facts)
        found: Found = await loop.run_in_executor(self._thread, gateway.guard.add, facts, gateway.where)
        if found.shift is not None:
            await gateway.shift(found.shift)
        if run != gateway.state.run:
            gateway.counts["overtaken"] += 1

    def _facts(self, seen: Seen) -> Facts:
        """What the exchange itself shows. A request that was never answered took forever."""
        failed = seen.found is None  # an answer in one piece bounds the time of its first token from above
        parsed_as = _parses(seen.asked, seen.found)
        observed = {
            "latency": float("inf") if failed else seen.seconds,
            "first": float("inf") if failed else seen.first,
            "first_most": None if failed else seen.seconds,
            "failed": failed,
            "parsed": False if failed else parsed_as,
        }
        return Facts(
            seen.asked.request_id, seen.asked.routed.table.run, seen.asked.temperature or 0.0, None, "",
            failed and not seen.broken, "", observed, _fields(seen.asked, None), seen.asked.tags, seen.broken, at=seen.asked.at,
        )  # fmt: skip

    async def _scored(self, seen: Seen, read: Answered, facts: Facts) -> Facts:
        """The facts with the reference's numbers, after both sides were found to be comparable."""
        gateway, settings = self.gateway, self.gateway.settings
        share = settings.measure
        if not split.below(split.point(settings.salt + "/measure", seen.asked.request_id), share):
            return replace(facts, unscored=True)
        reference = gateway.upstream("reference")
        try:
            side, claims = await self._reference(reference, read, seen.asked)
            gateway.answered(reference)
        except Fault as fault:
            gateway.failed(reference, fault)
            gateway.lost("unscored")
            return replace(facts, unscored=True)
        if settings.processed and facts.temperature != 1.0:
            return replace(
                facts, missing="the candidate reports log-probabilities after temperature, the reference before it"
            )
        claims = replace(claims, width=None if side is None else side.width)
        assert read.side is not None
        own = replace(read.claims, width=read.side.width if read.side.width else None)
        drawn = await asyncio.get_running_loop().run_in_executor(self._thread, self._sampled, seen, read, claims)
        failed = await self._void(seen, own, claims, facts, drawn)
        if failed is not None:
            return replace(facts, void=failed[1], blamed=failed[0].blames)
        if side is None:
            return replace(facts, missing=self._unlisted(read))
        return replace(facts, rows=self._rows(read, side, seen.asked, claims))

    def _rows(self, read: Answered, side: Listed, asked: Asked, reference: Claims) -> Rows:
        assert read.side is not None
        temperature = asked.temperature or 0.0
        vocabulary = reference.vocabulary or self.gateway.contract.assumptions.vocabulary
        tempered = temperature == 1.0
        return Rows(read.tokens, side, read.side, self.gateway.settings.error, temperature, tempered, vocabulary)

    def _unlisted(self, read: Answered) -> str:
        """Why the reference has no numbers."""
        most = self.gateway.settings.limits.steps
        if len(read.tokens) > most:
            return f"the reference gives no `prompt_logprobs`, and answers of more than {most} tokens are not asked token by token: --limit steps=N"
        return "the reference gives neither `prompt_logprobs` nor lists of most probable tokens with their ids"

    async def _reference(self, server: Upstream, read: Answered, asked: Asked) -> tuple[Listed | None, Claims]:
        """Score the candidate's tokens on the reference: in one question, or token by token. Raises Fault."""
        model = server.model_for(asked.fields.get("model")) or asked.fields.get("model")
        settings = self.gateway.settings
        if not server.stepwise:
            try:
                found = await self._prompted(server, model, [*read.prompt, *read.tokens], asked)
            except Fault as fault:
                if fault.kind not in ("status_400", "status_422"):
                    raise
                found = {}
            side = scored(found, len(read.prompt), read.tokens, settings.top)
            if side is not None:
                return side, claims_of(found, server.models)
        if len(read.tokens) > settings.limits.steps:
            return None, claims_of({"model": model}, server.models)
        side, claims = await by_steps(server, model, read.prompt, read.tokens, settings.top, asked.headers)
        if side is not None and not server.stepwise:
            server.stepwise = True
            self.gateway.counts["stepwise_reference"] += 1
        return side, claims

    async def _prompted(self, server: Upstream, model: object, tokens: list[int], asked: Asked) -> dict[str, Any]:
        """An answer with `prompt_logprobs` of these tokens. Raises Fault."""
        body = {
            "prompt": tokens, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": self.gateway.settings.top,
            "add_special_tokens": False,
        } | ({} if model is None else {"model": model})  # fmt: skip
        answer = await server.post("/v1/completions", json.dumps(body).encode(), asked.headers)
        content = await server.body(answer, self.gateway.settings.limits.whole)
        if answer.status_code >= 400:
            raise Fault(f"status_{answer.status_code}", content[:80].decode("utf-8", "replace"))
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise Fault("invalid", "the reference's answer is no JSON") from None
        if not isinstance(found, dict):
            raise Fault("invalid", "the reference's answer is no object")
        return found

    def _sampled(self, seen: Seen, read: Answered, reference: Claims) -> str:
        """What is wrong with the candidate's sampler in the request's run, in the thread that measures; empty: nothing."""
        assert read.side is not None
        run, vocabulary = (
            seen.asked.routed.table.run,
            reference.vocabulary or self.gateway.contract.assumptions.vocabulary,
        )
        drawn = self._drawn.get(run)
        if drawn is None:
            drawn = Drawn()
            self._drawn = {run: drawn}
        return drawn.add(seen.asked.fields, read.side, read.tokens, self.gateway.settings.error, vocabulary)

    async def _void(
        self, seen: Seen, candidate: Claims, reference: Claims, facts: Facts, drawn: str
    ) -> tuple[Check, str] | None:
        """Why the two sides cannot be compared; None where they can."""
        gateway = self.gateway
        contract, run = gateway.contract, seen.asked.routed.table.run
        stated = ("weight_version",) if candidate.weight_version and reference.weight_version else ()
        traced = frozenset((*CARRIED, *facts.fields, *stated))
        first = await gateway.identity(run, candidate, reference, traced)
        trace = () if contract.observability is None else contract.observability.trace
        failed = checked(Sides(candidate, reference, *first, trace, traced, gateway.settings.top, drawn))
        if failed is not None:
            gateway.void[failed[0].name] += 1
            gateway.metrics.void.labels(failed[0].name).inc()
        return failed

    def _outside(self, asked: Asked) -> str:
        """Which assumption of the contract the request leaves; empty where it is within all."""
        assumed = self.gateway.contract.assumptions
        temperature = asked.temperature
        if temperature is None:
            return "temperature"
        interval = assumed.temperature
        if interval is not None and (
            (interval.low is not None and temperature < interval.low)
            or (interval.high is not None and temperature > interval.high)
        ):
            return "temperature"
        if assumed.sampler is not None and assumed.sampler.kind == "full_softmax":
            for name, neutral in (*_TRUNCATING.items(), *_PENALTIES.items()):
                value = asked.fields.get(name)
                if isinstance(value, int | float) and value != neutral and not (name == "top_k" and value < 0):
                    return name
            if asked.fields.get("logit_bias"):
                return "logit_bias"
        return ""


def _fields(asked: Asked, read: Answered | None) -> dict[str, Field]:
    """Trace fields of a request, for slices."""
    out: dict[str, Field] = {"request_id": asked.request_id, "stream": asked.stream, "kind": asked.kind}
    for name in ("temperature", "seed", "max_tokens", "user", "model"):
        value = asked.fields.get(name)
        if isinstance(value, str | int | float):
            out[name] = value
    metadata = asked.fields.get("metadata")
    if isinstance(metadata, dict):
        out |= {k: v for k, v in metadata.items() if isinstance(k, str) and isinstance(v, str | int | float)}
    prompt = asked.prompt
    if prompt is not None:
        out["prompt_tokens"] = len(prompt)
    if read is not None:
        if read.prompt:
            out["prompt_tokens"] = len(read.prompt)
        elif type(read.usage.get("prompt_tokens")) is int:
            out["prompt_tokens"] = read.usage["prompt_tokens"]
        out["output_tokens"] = read.count
    return out


def _parses(asked: Asked, found: Mapping[str, Any] | None) -> bool | None:
    """Whether a response that was asked for as JSON is JSON; None where none was asked for."""
    wanted = asked.fields.get("response_format")
    if not isinstance(wanted, dict) or not str(wanted.get("type", "")).startswith("json") or found is None:
        return None
    choices = found.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    try:
        json.loads(text if isinstance(text, str) else "")
    except (ValueError, RecursionError):
        return False
    return True
