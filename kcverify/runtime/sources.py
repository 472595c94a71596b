"""Where the values of a clause come from: names that plans, counting and verdicts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OBSERVED = frozenset({"outcome", "value", "paired", "throughput", "peak"})
"""Sources that `Monitor.observe` feeds, a value a request; all others are read off logits."""

SECOND = frozenset({"ess", "perplexity", "paired", "throughput"})
"""Sources that keep a second record a cell: squares, rows, the mirrored difference, elapsed seconds."""

READ = frozenset({"ess", "perplexity", "calibration", "paired", "throughput", "peak"})
"""Sources whose verdict `readings` gives: one number of all requests (`paired`: a two-sided test)."""

WINDOWS = 1 << 16
"""Windows in time are numbered modulo this, so that the squares of their numbers add up."""


@dataclass(frozen=True)
class Observable:
    """How `observe` takes a metric: the source it feeds, what one value is, and the input that carries it."""

    source: str
    what: str
    missing: str


OBSERVABLES: Mapping[str, Observable] = {
    "latency": Observable("value", "seconds", "the latency of each request"),
    "time_to_first_token": Observable("value", "seconds", "the time to the first token of each request"),
    "failure_rate": Observable("outcome", "whether the request failed", "the outcome of each request"),
    "parse_rate": Observable("outcome", "whether the response parsed", "whether each response of the candidate parsed"),
    "parse_rate_delta": Observable(
        "paired", "whether the response parsed", "whether each response of both sides parsed"
    ),
    "accuracy_delta": Observable(
        "paired", "whether the answer is correct", "whether each answer of both sides is correct"
    ),
    "reward_delta": Observable("paired", "reward", "the reward of both sides on each prompt"),
    "throughput": Observable("throughput", "tokens", "token counts and the seconds that they took"),
    "peak_memory": Observable("peak", "bytes", "the memory counter of the device"),
    "kv_cache": Observable("peak", "bytes", "the size of the key-value cache"),
}
"""Metrics that are observed, by name."""
