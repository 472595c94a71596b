"""Streams in memory, and the rows of stream_cases.json as streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kcverify.readers.stream import Declared, Request, Status, Stream
from kcverify.streams.compare import Options, compare

CASES = json.loads((Path(__file__).parents[2] / "data" / "stream_cases.json").read_text())


def array(values: Any) -> np.ndarray:
    """Float64 of a JSON list in which texts are `nan`, `inf` and `-inf`."""
    return np.array(
        [[float(v) for v in row] for row in values] if isinstance(values[0], list) else [float(v) for v in values]
    )


def request(name: str = "r0", logprobs: Any = None, **more: Any) -> Request:
    """A request from what a file would hold: statuses follow from the numbers, NaN is broken, -inf banned, None missing."""
    length = next(
        len(v) for v in (logprobs, more.get("logits"), more.get("top_logprobs"), more.get("token_ids")) if v is not None
    )
    status = np.full(length, Status.VALUE if logprobs is not None else Status.MISSING, dtype=np.uint8)
    values = None
    if logprobs is not None:
        raw = np.array([np.nan if v is None else float(v) for v in logprobs])
        status[~np.isfinite(raw)] = Status.BROKEN
        status[np.isneginf(raw)] = Status.BANNED
        status[[v is None for v in logprobs]] = Status.MISSING
        values = np.where(status == Status.VALUE, raw, np.nan)
    mask = np.ones(length, dtype=bool) if more.get("mask") is None else np.array(more["mask"], dtype=bool)
    fields = {k: np.asarray(v, dtype=np.int64) for k in ("token_ids", "top_ids") if (v := more.get(k)) is not None}
    fields |= {
        k: np.asarray(v, dtype=np.float64)
        for k in ("top_logprobs", "logits", "error")
        if (v := more.get(k)) is not None
    }
    return Request(
        name,
        status,
        mask,
        logprobs=values,
        tokens=more.get("tokens"),
        top_tokens=more.get("top_tokens"),
        fields=more.get("fields", {}),
        **fields,
    )


def stream(requests: Sequence[Request], name: str = "made", **declared: Any) -> Stream:
    """A stream of requests."""
    kept = list(requests)
    names = ("token_ids", "tokens", "logprobs", "top_logprobs", "logits")
    carries = frozenset(n for n in names if any(getattr(r, n) is not None for r in kept))
    told = {k: Declared(v, "flag") for k, v in declared.items()}
    return Stream(Path(name), "made", told, carries, lambda: iter(kept))


def compared(left: Any, right: Any, **options: Any) -> dict[str, Any]:
    """The answer for two streams, or two lists of requests."""
    a, b = (s if isinstance(s, Stream) else stream(s) for s in (left, right))
    answer = compare(a, b, Options(**options))
    json.dumps(answer, allow_nan=False)
    return answer


def slugs(answer: dict[str, Any]) -> list[str]:
    """The findings that are more than notes."""
    return [f["slug"] for f in answer["findings"] if f["severity"] != "note"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def drawn(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One token of each row `[n, V]`."""
    p = np.exp(log_softmax(logits))
    return np.minimum((p.cumsum(1) < rng.random(len(p))[:, None]).sum(1), p.shape[1] - 1)


def sampled(
    reference: np.ndarray, candidate: np.ndarray, rng: np.random.Generator, length: int = 50
) -> tuple[list[Request], list[Request]]:
    """Requests of tokens that the candidate sampled, with each side's log-probabilities alone."""
    p, q = log_softmax(reference), log_softmax(candidate)
    tokens = drawn(candidate, rng)
    at = np.arange(len(tokens))
    t, g = p[at, tokens], q[at, tokens]
    sides = []
    for values in (t, g):
        sides.append([
            request(f"r{i:04}", values[i : i + length], token_ids=tokens[i : i + length])
            for i in range(0, len(tokens), length)
        ])  # fmt: skip
    return sides[0], sides[1]


def of_case(case: dict[str, Any]) -> dict[str, Any]:
    """The answer for a row of stream_cases.json, by the keys that it has."""
    given = case["input"]
    if "simulate" in given:
        return simulated(given["simulate"])
    options: dict[str, Any] = {}
    left: dict[str, Any] = {"mask": given.get("mask")}
    right: dict[str, Any] = {"mask": given.get("mask")}
    declared: dict[str, dict[str, Any]] = {"left": {}, "right": {}}
    for key, value in given.items():
        side = left if key.startswith(("trainer", "reference")) else right
        if value is None or key == "mask":
            continue
        if key.endswith("logits"):
            side["logits"] = array(value)
        elif key.endswith("token_ids"):
            side["token_ids"] = value
        elif key == "candidate_logprobs" and isinstance(value[0], list):
            side["logits"] = array(value)
            declared["right"]["rows"] = "logprobs"
        elif key.endswith("logprobs") and key != "top_logprobs":
            side["logprobs"] = value
    if "top_logprobs" in given:
        ids, logprobs = [[e[0] for e in given["top_logprobs"]]], [[e[1] for e in given["top_logprobs"]]]
        left |= {"top_ids": ids, "top_logprobs": logprobs, "token_ids": [ids[0][0]]}
        right |= left
    if "p" in given:
        tokens = np.repeat(np.arange(3), [500, 300, 200])
        left["logprobs"], right["logprobs"] = np.log(given["p"])[tokens], np.log(given["q"])[tokens]
        left["token_ids"] = right["token_ids"] = tokens
    for side, other in ((left, right), (right, left)):
        if not {"logprobs", "logits", "token_ids", "top_logprobs"} & set(side):
            side["token_ids"] = np.zeros(len(other["logprobs"]), dtype=int)
            other["token_ids"] = side["token_ids"]
    return compared(
        stream([request(**left)], **declared["left"]), stream([request(**right)], **declared["right"]), **options
    )


def simulated(given: dict[str, Any]) -> dict[str, Any]:
    """The answer for the simulated rows: `d` is drawn, the engine's side is constant or given by the vocabulary."""
    rng = np.random.default_rng(0)
    if "vocabulary" in given:
        logits = rng.normal(size=(given["rows"], given["vocabulary"]))
        a, b = given["temperatures"]
        return compared(*sampled(logits / a, logits / b, rng))
    if "steps" in given:
        left, right = [], []
        for step in range(given["steps"]):
            g = -rng.exponential(1.0, 200) - 5
            d = given["drift_per_step"] * (step + 1) * rng.normal(size=200)
            fields = {"step": step, "lag": given["sync_every"]}
            left.append(request(f"s{step:03}", g + d, token_ids=range(200), fields=fields))
            right.append(request(f"s{step:03}", g, token_ids=range(200), fields=fields))
        return compared(left, right)
    if "outlier_log_ratio" in given:
        g = -rng.exponential(1.0, given["tokens"]) - 6
        d = np.zeros(given["tokens"])
        d[given["tokens"] // 2] = given["outlier_log_ratio"]
        return compared([request("r", g + d)], [request("r", g)])
    if "bad" in given:
        left, right = [], []
        for i in range(given["sequences"]):
            g = -rng.exponential(1.0, given["tokens"])
            left.append(request(f"q{i:02}", g + (given["bad_log_ratio"] if i < given["bad"] else 0.0)))
            right.append(request(f"q{i:02}", g))
        return compared(left, right)
    left, right = [], []
    for i in range(101):
        g = -rng.exponential(1.0, given["tokens"]) - 1
        left.append(request(f"q{i}", g + rng.normal(given["mean"], given["sd"], given["tokens"])))
        right.append(request(f"q{i}", g))
    return compared(left, right)
