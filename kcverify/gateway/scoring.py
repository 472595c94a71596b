"""The reference's numbers on the candidate's tokens: who both sides are comes first, then one question a choice.

Whatever cannot be asked says why: what is a property of the request is missing, what went wrong on the way is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from kcverify.gateway.asked import Asked
from kcverify.gateway.cells import Facts
from kcverify.gateway.core import Gateway
from kcverify.gateway.exchange import Seen, fields_of
from kcverify.gateway.identity import Check, Sides, checked
from kcverify.gateway.measures import Rows
from kcverify.gateway.observed import UNPROMPTED, Answered, Claims, Listed, claims_of, joined, scored
from kcverify.gateway.origin import CARRIED
from kcverify.gateway.stepwise import by_steps
from kcverify.gateway.tokenizing import prompt_ids
from kcverify.gateway.upstream import Fault, Upstream
from kcverify.routing import split

Read = Sequence[Answered]
"""The choices of one answer."""
REFUSALS = (400, 413, 422)
"""Answers of a reference that say that a question cannot be answered, however often it is asked."""


class _Lost(Exception):  # noqa: N818
    """A question on the way to the numbers was not answered."""


class Scoring:
    """What the reference says of answers, for one gateway; counting is done in `thread`."""

    def __init__(self, gateway: Gateway, thread: ThreadPoolExecutor) -> None:
        self.gateway, self._thread = gateway, thread

    async def scored(self, seen: Seen, read: Read, facts: Facts) -> Facts:
        """The facts with the reference's numbers, after both sides were found to be comparable."""
        gateway, settings = self.gateway, self.gateway.settings
        if not split.below(split.point(settings.salt + "/measure", seen.asked.request_id), settings.measure):
            return replace(facts, unscored=True)
        missing = self._unreadable(read)
        if missing:
            return replace(facts, missing=missing)
        reference = gateway.upstream("reference")
        try:
            prompts, read = await self._prompted(seen.asked, read)
            if read[0].missing:
                return replace(facts, missing=read[0].missing)
            sides, claims = await self._sides(reference, read, seen.asked)
            gateway.answered(reference)
        except _Lost:
            gateway.lost("unscored")
            return replace(facts, unscored=True)
        except Fault as fault:
            if fault.status in REFUSALS:  # which follows from the tokens, so that it must not go unseen
                return replace(facts, missing=f"the reference refuses the tokens of the answer: {fault}"[:200])
            gateway.failed(reference, fault)
            gateway.lost("unscored")
            return replace(facts, unscored=True)
        if settings.processed and facts.temperature != 1.0:
            return replace(
                facts, missing="the candidate reports log-probabilities after temperature, the reference before it"
            )
        facts = replace(facts, fields=fields_of(seen.asked, read))
        return await self._compared(seen, read, sides, claims, facts, prompts)

    def _unreadable(self, read: Read) -> str:
        """Why an answer cannot be scored, whatever the reference says; empty where it can."""
        missing = next((r.missing for r in read if r.missing and r.missing != UNPROMPTED), "")
        most = self.gateway.settings.limits.choices
        if not missing and len(read) > most:
            return f"the answer has {len(read)} choices, and more than {most} are not scored: --limit choices=N"
        return missing

    async def _compared(
        self, seen: Seen, read: Read, sides: Sequence[Listed | None], claims: Claims, facts: Facts,
        prompts: tuple[Sequence[int], Sequence[int]],
    ) -> Facts:  # fmt: skip
        """Identity first, then the rows."""
        own = [r.side for r in read if r.side is not None]
        known = [s for s in sides if s is not None]
        widths = [s.width for s in known if len(s.logprobs)]
        claims = replace(claims, width=min(widths) if len(known) == len(sides) and widths else None)
        listed = [s.width for s in own if len(s.logprobs)]
        candidate = replace(read[0].claims, width=min(listed, default=0) or None)
        loop, vocabulary = asyncio.get_running_loop(), claims.vocabulary or self.gateway.contract.assumptions.vocabulary
        pairs = [(side, r.tokens) for side, r in zip(own, read, strict=True)]
        drawn = await loop.run_in_executor(
            self._thread, self.gateway.guard.sampled, facts.run, seen.asked.fields, pairs, self.gateway.settings.error,
            vocabulary,
        )  # fmt: skip
        failed = await self._void(seen.asked, candidate, claims, facts, drawn, prompts)
        if failed is not None:
            return replace(facts, void=failed[1], blamed=failed[0].blames)
        if len(known) != len(sides):
            return replace(facts, missing=self._unlisted(read))
        return replace(facts, rows=self._rows(read, own, known, seen.asked, vocabulary))

    def _rows(
        self, read: Read, own: Sequence[Listed], known: Sequence[Listed], asked: Asked, vocabulary: int | None
    ) -> Rows:
        temperature, spans, start = asked.temperature or 0.0, [], 0
        for r in read:
            if r.tokens:
                spans.append((start, start + len(r.tokens)))
            start += len(r.tokens)
        tokens = tuple(t for r in read for t in r.tokens)
        several = tuple(spans) if len(read) > 1 else ()
        return Rows(
            tokens, joined(known), joined(own), self.gateway.settings.error, temperature, temperature == 1.0, vocabulary,
            several,
        )  # fmt: skip

    def _unlisted(self, read: Read) -> str:
        """Why the reference has no numbers."""
        most = self.gateway.settings.limits.steps
        if sum(len(r.tokens) for r in read) > most:
            return f"the reference gives no `prompt_logprobs`, and answers of more than {most} tokens are not asked token by token: --limit steps=N"
        return "the reference gives neither `prompt_logprobs` nor lists of most probable tokens with their ids"

    # -- prompts ---------------------------------------------------------------------------------------------------

    async def _prompted(self, asked: Asked, read: Read) -> tuple[tuple[Sequence[int], Sequence[int]], Read]:
        """The prompt as both sides read it (empty where it was known anyway), and the answers with it. Raises Fault."""
        if not any(r.missing for r in read):
            return ((), ()), read
        candidate, reference = await asyncio.gather(*(self._ids(asked, side) for side in ("candidate", "reference")))
        if candidate is None:
            return ((), ()), read
        told = read[0].usage.get("prompt_tokens")
        if type(told) is int and told != len(candidate):
            missing = f"`/tokenize` reads the prompt as {len(candidate)} tokens, and the answer counts {told}"
            return ((), ()), [replace(r, missing=missing) for r in read]
        return (candidate, reference or ()), [replace(r, prompt=candidate, missing="") for r in read]

    async def _ids(self, asked: Asked, side: str) -> tuple[int, ...] | None:
        server = self.gateway.upstream(side)
        try:
            return await prompt_ids(server, asked)
        except Fault as fault:
            self.gateway.failed(server, fault)
            raise _Lost from None

    # -- the reference ---------------------------------------------------------------------------------------------

    async def _sides(self, server: Upstream, read: Read, asked: Asked) -> tuple[Sequence[Listed | None], Claims]:
        """Each choice on the reference, one after another, and what the reference says it is. Raises Fault."""
        model = server.model_for(asked.fields.get("model")) or asked.fields.get("model")
        sides: list[Listed | None] = []
        claims, left = claims_of({"model": model}, server.models), self.gateway.settings.limits.steps
        for r in read:
            side, claims, left = await self._side(server, model, r, asked, left)
            sides.append(side)
            if side is None:
                break
        return [*sides, *[None] * (len(read) - len(sides))], claims

    async def _side(
        self, server: Upstream, model: object, read: Answered, asked: Asked, left: int
    ) -> tuple[Listed | None, Claims, int]:
        """Score a choice in one question, or token by token as long as `left` allows it. Raises Fault."""
        settings = self.gateway.settings
        if not server.stepwise:
            try:
                found = await self._question(server, model, [*read.prompt, *read.tokens], asked)
            except Fault as fault:
                if fault.status not in REFUSALS:
                    raise
                found = {}
            side = scored(found, len(read.prompt), read.tokens, settings.top)
            if side is not None:
                server.scores = True
                return side, claims_of(found, server.models), left
        if len(read.tokens) > left:
            return None, claims_of({"model": model}, server.models), 0
        side, claims = await by_steps(server, model, read.prompt, read.tokens, settings.top, asked.headers)
        if side is not None and not server.stepwise and not server.scores:
            server.stepwise = True
            self.gateway.counts["stepwise_reference"] += 1
        return side, claims, left - len(read.tokens)

    async def _question(self, server: Upstream, model: object, tokens: list[int], asked: Asked) -> dict[str, Any]:
        """An answer with `prompt_logprobs` of these tokens. Raises Fault."""
        body = {
            "prompt": tokens, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": self.gateway.settings.top,
            "add_special_tokens": False,
        } | ({} if model is None else {"model": model})  # fmt: skip
        answer = await server.post("/v1/completions", json.dumps(body).encode(), asked.headers)
        content = await server.body(answer, self.gateway.settings.limits.whole)
        if answer.status_code >= 400:
            raise Fault(f"status_{answer.status_code}", content[:80].decode("utf-8", "replace"), answer.status_code)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise Fault("invalid", "the reference's answer is no JSON") from None
        if not isinstance(found, dict):
            raise Fault("invalid", "the reference's answer is no object")
        return found

    async def _void(
        self, asked: Asked, candidate: Claims, reference: Claims, facts: Facts, drawn: str,
        prompts: tuple[Sequence[int], Sequence[int]],
    ) -> tuple[Check, str] | None:  # fmt: skip
        """Why the two sides cannot be compared; None where they can."""
        gateway = self.gateway
        stated = ("weight_version",) if candidate.weight_version and reference.weight_version else ()
        traced = frozenset((*CARRIED, *facts.fields, *stated))
        first = await gateway.identity(facts.run, candidate, reference, traced)
        observability = gateway.contract.observability
        trace = () if observability is None else observability.trace
        top = gateway.settings.top
        sides = Sides(candidate, reference, *first, trace, traced, (asked.width(top), top), drawn, prompts)
        failed = checked(sides)
        if failed is not None:
            gateway.void[failed[0].name] += 1
            gateway.metrics.void.labels(failed[0].name).inc()
        return failed
