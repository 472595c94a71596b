"""How the value of each metric is read: a row a metric, from the columns of a row of logits or from what is observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from kcverify.elaborate.contract import Clause
from kcverify.exact import decimal_exact, monitor_float_down, monitor_float_up

DEFAULT_BINS = 15
OBSERVED = ("outcome", "value", "paired", "throughput", "peak")
"""Sources of values that a monitor is given beside logits, a value a request."""


@dataclass(frozen=True)
class Reading:
    """How the value of a metric is read off a row.

    `statistics` are the row statistics it needs, `expression` the text that reads it (`v` maps statistics to columns),
    `token` the rule that finds the worst token, `bounded` whether it ranges over [0, 1]. `source` other than `rows`
    makes a value a request, or one of all requests; `inputs` is what must be given beyond logits. `evidence` is the kind
    of sources that are no rate, mean or maximum; `decides_at` the requests that a reading needs (None: what the
    contract's offline stage promises). `indicator` marks a rate: the column exceeds where it is beyond this text.
    `label` names the metric in reports where its arguments make it another quantity.
    """

    statistics: tuple[str, ...]
    expression: str
    token: str = ""
    bounded: bool = False
    source: str = "rows"
    inputs: tuple[str, ...] = ()
    evidence: str = ""
    decides_at: int | None = None
    indicator: str = ""
    label: str = ""

    @property
    def observed(self) -> bool:
        """Whether its values are given beside the logits."""
        return self.source in OBSERVED


_SAMPLED = ("sampled_ids",)
_LOG_RATIO = ("token_log_ratio",)
_SIGNED = 'v["token_log_ratio"]'
_CALIBRATION = ("confidence_reference", "correct_reference", "confidence_candidate", "correct_candidate")


def _token(expression: str) -> Reading:
    return Reading(_LOG_RATIO, expression, "sampled", inputs=_SAMPLED)


def _response(source: str, evidence: str = "") -> Reading:
    return Reading(_LOG_RATIO, _SIGNED, source=source, inputs=_SAMPLED, evidence=evidence)


def _given(source: str, name: str, evidence: str = "", decides_at: int | None = None) -> Reading:
    return Reading((), "", source=source, inputs=(name,), evidence=evidence, decides_at=decides_at)


READINGS: Mapping[str, Reading] = {
    "logit_drift": Reading(("logit_drift",), 'v["logit_drift"]', "drift"),
    "logit_span": Reading(("logit_span",), 'v["logit_span"]', "ratio"),
    "tv": Reading(("tv",), 'v["tv"]', "mass", bounded=True),
    "kl(candidate || reference)": Reading(("kl_candidate_reference",), 'v["kl_candidate_reference"]', "mass"),
    "kl(reference || candidate)": Reading(("kl_reference_candidate",), 'v["kl_reference_candidate"]', "mass"),
    "log_ratio": Reading(("log_ratio",), 'v["log_ratio"]', "ratio"),
    "importance_ratio": Reading(("ratio_min", "ratio_max"), 'v["ratio_min"], v["ratio_max"]', "ratio"),
    "chi2": Reading(("chi2",), 'v["chi2"]', "mass"),
    "affinity": Reading(("bc",), 'v["bc"]', "mass", bounded=True),
    "token_log_ratio": _token('v["token_log_ratio"].abs()'),
    "token_ratio": _token('v["token_log_ratio"].neg().exp()'),
    "token_inverse_ratio": _token('v["token_log_ratio"].exp()'),
    "token_k3": _token('k3(v["token_log_ratio"])'),
    "sequence_ratio": _response("sequence"),
    "geometric_ratio": _response("geometric"),
    "ess": _response("ess", "reading"),
    "perplexity_ratio": _response("perplexity", "reading"),
    "agreement": Reading((), 'v["{column}"]', indicator="1.0"),
    "rank": Reading(("rank",), 'v["rank"]'),
    "flip_rate": Reading(("flip_margin",), 'v["flip_margin"]', indicator="margin"),
    "ece_drift": Reading(
        _CALIBRATION,
        ", ".join(f'v["{name}"]' for name in _CALIBRATION),
        source="calibration",
        inputs=_SAMPLED,
        evidence="reading",
    ),
    "reward_delta": _given("paired", "rewards of both sides", "paired"),
    "accuracy_delta": _given("paired", "answers of both sides", "paired"),
    "parse_rate_delta": _given("paired", "responses of both sides", "paired"),
    "parse_rate": _given("outcome", "responses"),
    "failure_rate": _given("outcome", "outcomes"),
    "latency": _given("value", "latencies"),
    "time_to_first_token": _given("value", "times to first token"),
    "throughput": _given("throughput", "token counts and elapsed seconds", "reading", 1),
    "peak_memory": _given("peak", "memory in bytes", "reading", 1),
    "kv_cache": _given("peak", "cache size in bytes", "reading", 1),
}
"""By the metric's name in the catalogue. A new metric is measured when it has a row here."""


def reading_of(clause: Clause) -> Reading:
    """The row of a clause's metric, with its arguments filled in."""
    row = READINGS[clause.metric.name]
    mass = clause.argument("mass")
    if isinstance(mass, Fraction) and mass != 1:
        name = f"trimmed_span:{monitor_float_up(mass)!r}"
        label = f"logit_span(mass = {decimal_exact(mass)})"
        return replace(row, statistics=(name,), expression=f'v["{name}"]', token="", label=label)
    if clause.metric.name == "agreement":
        count, ordered = top_of(clause)
        column = f"agreement_{count}_ordered" if ordered else f"agreement_{count}"
        return replace(row, expression=row.expression.format(column=column))
    if row.indicator == "margin":
        margin = clause.argument("margin")
        return replace(row, indicator=repr(monitor_float_down(margin) if isinstance(margin, Fraction) else 0.0))
    return row


def top_of(clause: Clause) -> tuple[int, bool]:
    """`(k, ordered)` of an agreement clause; the order of one token is none."""
    top, ordered = clause.argument("top"), clause.argument("ordered")
    count = int(top) if isinstance(top, Fraction) else 1
    return count, ordered == "true" and count > 1
