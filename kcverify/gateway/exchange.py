"""What an exchange shows without any numbers of its tokens: times, whether it failed or parsed, fields that slices read.

And whether the contract speaks about the request at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcverify.elaborate.contract import Assumptions
from kcverify.elaborate.membership import Field
from kcverify.gateway.asked import Asked
from kcverify.gateway.observed import Answered

_TRUNCATING: Mapping[str, float] = {"top_p": 1.0, "top_k": 0.0, "min_p": 0.0}
_PENALTIES: Mapping[str, float] = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


@dataclass
class Seen:
    """One request of the candidate as it ended: its answer (None: it failed, see `fault`), seconds in all and to the first part.

    `found` is JSON where the answer came in one piece, and takes `size` bytes. `broken`: its numbers were not finite.
    `left`: the client left before the end, and the answer is what it had got. `shed`: the answer could not be kept until
    it was measured. `since` is when it began to wait, on the clock of `time.perf_counter`.
    """

    asked: Asked
    found: bytes | dict[str, Any] | None
    seconds: float
    first: float | None
    fault: str = ""
    broken: bool = False
    size: int = 0
    left: bool = False
    shed: bool = False
    since: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether no answer came."""
        return self.found is None and not self.shed


def observed(seen: Seen, found: Mapping[str, Any] | None) -> dict[str, float | bool | None]:
    """Numbers of the exchange for `cells`. A request that was never answered took forever."""
    never = float("inf") if seen.failed else None
    parsed = None if seen.left or seen.shed else parses(seen.asked, found)
    return {
        "latency": never if seen.failed or seen.left else seen.seconds,
        "latency_least": seen.seconds if seen.left else None,
        "first": never if seen.failed else seen.first,
        "first_most": None if seen.failed else seen.seconds,  # one piece bounds the time of its first token from above
        "failed": seen.failed,
        "parsed": False if seen.failed else parsed,
        "left": seen.left,
    }


def parses(asked: Asked, found: Mapping[str, Any] | None) -> bool | None:
    """Whether every choice of a response that was asked for as JSON is JSON; None where none was asked for."""
    wanted = asked.fields.get("response_format")
    if not isinstance(wanted, dict) or not str(wanted.get("type", "")).startswith("json") or found is None:
        return None
    choices = found.get("choices")
    return all(_is_json(choice) for choice in choices) if isinstance(choices, list) and choices else False


def _is_json(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    try:
        json.loads(text if isinstance(text, str) else "")
    except (ValueError, RecursionError):
        return False
    return True


def fields_of(asked: Asked, read: Sequence[Answered]) -> dict[str, Field]:
    """Trace fields of a request, for slices; `read` are the choices of its answer."""
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
    if read:
        usage = read[0].usage
        if read[0].prompt and not asked.several:
            out["prompt_tokens"] = len(read[0].prompt)
        elif type(usage.get("prompt_tokens")) is int:
            out["prompt_tokens"] = usage["prompt_tokens"]
        told = usage.get("completion_tokens")
        out["output_tokens"] = max(sum(choice.count for choice in read), told if type(told) is int else 0)
    return out


def outside(assumed: Assumptions, asked: Asked) -> str:
    """Which assumption of the contract the request leaves; empty where it is within all."""
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
