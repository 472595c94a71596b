"""What RL projects call their numbers: each name with the project's own formula, our registry entry, and where it misleads.

Formulas are those of the projects' sources, in their order of reduction: over all counted tokens, over sequences, or
over means of sequences. `t` is the trainer's log-probability, `g` the rollout's, `d = t - g`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcverify.readers.stream import Floats
from kcverify.streams.adding import Additive
from kcverify.streams.align import Pair
from kcverify.streams.rows import dot

Terms = Callable[[Floats, Floats], Floats]
Finish = Callable[[Mapping[str, float]], float]


@dataclass(frozen=True)
class Name:
    """One number of one project.

    `terms` gives a value for each token; `over` says how they are reduced: `tokens` (mean over all counted tokens),
    `sequences` (mean over sequences of each one's mean), `max`, `min`, or a function of moments (see `_Moments`).
    `after` is applied to each sequence's mean (`sequences`) or to the result (others). `entry` is our registry's row,
    empty where there is none; `misleads` what the name suggests and the number is not.
    """

    name: str
    formula: str
    terms: Terms
    over: str | Finish
    entry: str = ""
    misleads: str = ""
    after: Callable[[float], float] = float


def _d(t: Floats, g: Floats) -> Floats:
    return t - g


def _w(t: Floats, g: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(t - g))


def _k3(d: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(np.expm1(d) - d)


def _clamped(d: Floats, bound: float = 20.0) -> Floats:
    return np.asarray(np.exp(np.clip(d, -bound, bound)))


def _window(w: Floats, low: float, high: float) -> Floats:
    return np.asarray(np.clip(w, low, high))


TRL_CAP = 3.0
"""TRL's default upper end of its importance weights."""


def _capped(t: Floats, g: Floats) -> Floats:
    return np.asarray(np.minimum(_w(t, g), TRL_CAP))


def _js(t: Floats, g: Floats) -> Floats:
    mixture = np.logaddexp(t, g) - math.log(2)
    return np.asarray((_k3(t - mixture) + _k3(g - mixture)) / 2)


def _probabilities(t: Floats, g: Floats) -> Floats:
    return np.asarray(np.abs(np.exp(t) - np.exp(g)))


def _standard(m: Mapping[str, float]) -> float:
    n = m["n"]
    return math.sqrt(max(0.0, m["square"] - m["sum"] ** 2 / n) / (n - 1)) if n > 1 else math.nan


def _effective(m: Mapping[str, float]) -> float:
    n = m["n"]
    return (m["sum"] / n + 1e-8) ** 2 / (m["square"] / n)


def _mean_exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


_SUPPORT = "equals KL(rollout‖trainer) only where the supports match; else it is less by the mass cut off"
_REVERSE = (
    "called a KL of the other direction; over rollout samples it estimates chi2(rollout‖trainer) - KL(rollout‖trainer)"
)

PROJECTS: dict[str, tuple[Name, ...]] = {
    "verl": (
        Name("rollout_corr/kl", "mean(g - t)", lambda t, g: g - t, "tokens", "k1"),
        Name("rollout_corr/k3_kl", "mean(e^d - d - 1)", lambda t, g: _k3(t - g), "tokens", "k3", _SUPPORT),
        Name("rollout_corr/chi2_token", "mean(e^(2 clamp(d, 20))) - 1", lambda t, g: _clamped(t - g) ** 2, "tokens", "chi2", "the log-ratio is clamped at 20", lambda v: v - 1),
        Name("rollout_corr/chi2_seq", "mean over sequences of e^(2 clamp(sum d, 20)), - 1", _d, "sequence_clamped_square", "", "one long answer decides it", lambda v: v - 1),
        Name("rollout_corr/training_ppl", "mean over sequences of e^(-mean t)", lambda t, g: -t, "sequences", "", "", _mean_exp),
        Name("rollout_corr/rollout_ppl", "mean over sequences of e^(-mean g)", lambda t, g: -g, "sequences", "", "", _mean_exp),
        Name("rollout_corr/log_ppl_diff", "mean over sequences of mean(g - t)", lambda t, g: g - t, "sequences", "k1", "k1 with every sequence weighted alike, not every token"),
        Name("rollout_corr/log_ppl_abs_diff", "mean over sequences of |mean(g - t)|", lambda t, g: g - t, "sequences", "", "signs cancel inside a sequence first", abs),
        Name("rollout_corr/ppl_ratio", "mean over sequences of e^(mean(g - t))", lambda t, g: g - t, "sequences", "", "the inverse of the geometric mean ratio", _mean_exp),
        Name("rollout_corr/rollout_is_mean", "mean of e^clamp(d, 20), token level", lambda t, g: _clamped(t - g), "tokens", "mean ratio", "clearly below 1 it says truncated support; near 1 it says nothing about the spread"),
        Name("rollout_corr/rollout_is_eff_sample_size", "1 / mean((c / mean c)^2), c = e^d clamped to [1/2, 2]", lambda t, g: _window(_clamped(t - g), 0.5, 2.0), _effective, "ESS", "of clamped weights: it cannot fall below 0.64"),
        Name("training/rollout_probs_diff_mean", "mean |e^t - e^g|", _probabilities, "tokens", "binary TV", "a difference of probabilities, not of log-probabilities"),
        Name("training/rollout_probs_diff_max", "max |e^t - e^g|", _probabilities, "max", "binary TV"),
        Name("training/rollout_probs_diff_std", "standard deviation of |e^t - e^g|", _probabilities, _standard),
        Name("training/rollout_actor_probs_pearson_corr", "Pearson correlation of e^t and e^g", _d, "pearson", "", "blind to temperature and truncation: 0.99 is no agreement"),
    ),
    "trl": (
        Name("sampling/sampling_logp_difference/mean", "mean |t - g|", lambda t, g: np.abs(t - g), "tokens", "mean |d|"),
        Name("sampling/sampling_logp_difference/max", "max |t - g|", lambda t, g: np.abs(t - g), "max"),
        Name("sampling/importance_sampling_ratio/min, token_truncate", "min of min(e^d, 3)", _capped, "min"),
        Name("sampling/importance_sampling_ratio/mean, token_truncate", "mean of min(e^d, 3)", _capped, "tokens", "mean ratio", "of capped ratios: it is below 1 wherever the cap is met"),
        Name("sampling/importance_sampling_ratio/max, token_truncate", "max of min(e^d, 3)", _capped, "max", "", "never above the cap, whatever happened"),
        Name("sampling/importance_sampling_ratio/mean, sequence_mask", "mean over sequences of e^(sum d), 0 above 3", _d, "sequence_masked_weight", "", "the default; it falls exponentially with length at any constant drift, and masked sequences count as 0"),
    ),
    "nemo": (
        Name("token_mult_prob_error", "mean e^|d|", lambda t, g: _w(np.abs(t - g), np.zeros_like(g)), "tokens", "mult-prob error", "no divergence: spread and bias alike raise it"),
        Name("gen_kl_error", "mean(e^d - d - 1)", lambda t, g: _k3(t - g), "tokens", "k3", _SUPPORT),
        Name("policy_kl_error", "mean(e^-d + d - 1)", lambda t, g: _k3(g - t), "tokens", "k3 of -d", _REVERSE),
        Name("js_divergence_error", "mean of (k3(t - m) + k3(g - m))/2, m = log((e^t + e^g)/2)", _js, "tokens", "", "both halves are averaged over rollout samples: no Jensen-Shannon divergence"),
        Name("sampling_importance_ratio", "mean e^d, NaN and infinity set to 0", lambda t, g: np.nan_to_num(_w(t, g), nan=0.0, posinf=0.0), "tokens", "mean ratio", "an infinite ratio counts as 0"),
    ),
    "slime": (
        Name("train_rollout_logprob_abs_diff", "mean over samples of mean |t - g|", lambda t, g: np.abs(t - g), "sequences", "mean |d|", "every sample weighs alike, whatever its length"),
        Name("tis", "mean over samples of mean e^d", _w, "sequences", "mean ratio"),
        Name("tis_clipfrac", "mean over samples of the share with e^d outside [0, 2]", lambda t, g: (_w(t, g) != _window(_w(t, g), 0.0, 2.0)) * 1.0, "sequences"),
        Name("tis_abs", "mean over samples of mean |e^d - 1|", lambda t, g: np.abs(_w(t, g) - 1), "sequences", "TV by ratio", "twice the TV estimate"),
        Name("mismatch_kl", "mean over samples of mean(g - t)", lambda t, g: g - t, "sequences", "k1"),
        Name("mismatch_k3_kl", "mean over samples of mean(e^d - d - 1)", lambda t, g: _k3(t - g), "sequences", "k3", _SUPPORT),
    ),
    "prime-rl": (
        Name("mismatch_kl/mean", "mean over sequences of mean(e^d - d - 1)", lambda t, g: _k3(t - g), "sequences", "k3", _SUPPORT),
        Name("is_masked_low/mean", "share of tokens with e^d < 0.125", lambda t, g: np.asarray((_w(t, g) < 0.125) * 1.0), "tokens"),
        Name("is_masked_high/mean", "share of tokens with e^d > 8", lambda t, g: np.asarray((_w(t, g) > 8.0) * 1.0), "tokens"),
    ),
    "openrlhf": (
        Name("vllm_kl", "mean(g - t)", lambda t, g: g - t, "tokens", "k1", "can be negative; it is KL(rollout‖trainer), not of the trainer"),
    ),
    "areal": (
        Name("behave_approx_kl/avg", "mean(t - g)", _d, "tokens", "k1", "the sign is reversed: it estimates minus KL(rollout‖trainer)"),
        Name("behave_imp_weight/avg", "mean e^d, before the cap", _w, "tokens", "mean ratio"),
    ),
}  # fmt: skip
"""By the word of `--as`. verl: `rollout_corr_helper.py`, `utils/debug/metrics.py`; TRL: `grpo_trainer.py`; NeMo-RL:
`loss_functions.py`; slime: `megatron_utils/loss.py`; prime-rl: `trainer/rl/loss.py`; OpenRLHF: `models/loss.py`; AReaL:
`utils/functional`. `t` stands for the trainer's recomputed log-probabilities (old, prev, proximal)."""


class Reported(Additive):
    """The sums of one project's names over pairs."""

    def __init__(self, project: str, sampled_by: str = "right") -> None:
        self._rows, self._sampled_by = PROJECTS[project], sampled_by
        self.held: dict[int, dict[str, array[float]]] = {
            i: {k: array("d") for k in ("n", "sum", "square", "max", "min")} for i in range(len(self._rows))
        }
        self.pearson = array("d")

    def add(self, pair: Pair) -> None:
        """Take the sampled tokens of a pair."""
        s = pair.sampled
        if not len(s.at):
            return
        t, g = (s.left, s.right) if self._sampled_by == "right" else (s.right, s.left)
        for row, held in zip(self._rows, self.held.values(), strict=True):
            values = row.terms(t, g)
            held["n"].append(len(values))
            held["sum"].append(float(values.sum()))
            held["square"].append(float((values * values).sum()))
            held["max"].append(float(values.max()))
            held["min"].append(float(values.min()))
        p, q = np.exp(t), np.exp(g)
        self.pearson.extend((len(p), float(p.sum()), float(q.sum()), dot(p, p), dot(q, q), dot(p, q)))

    def results(self) -> list[dict[str, Any]]:
        """Each name with its value as the project computes it."""
        if not len(self.held[0]["n"]):
            return []
        return [
            {
                "name": row.name, "formula": row.formula, "value": self._value(row, held), "entry": row.entry or None,
                "misleads": row.misleads or None,
            }
            for row, held in zip(self._rows, self.held.values(), strict=True)
        ]  # fmt: skip

    def _value(self, row: Name, held: Mapping[str, array[float]]) -> float:
        n, sums = np.frombuffer(held["n"]), np.frombuffer(held["sum"])
        if callable(row.over):
            whole = {"n": math.fsum(n), "sum": _fsum(sums), "square": _fsum(np.frombuffer(held["square"]))}
            return row.after(row.over(whole))
        if row.over == "tokens":
            return row.after(_fsum(sums) / math.fsum(n))
        if row.over == "sequences":
            return _fsum(np.array([row.after(float(v)) for v in sums / n])) / len(n)
        if row.over == "sequence_masked_weight":
            weights = np.array([_mean_exp(float(v)) for v in sums])
            return row.after(_fsum(np.where(weights > TRL_CAP, 0.0, weights)) / len(n))
        if row.over == "sequence_clamped_square":
            return row.after(_fsum(np.exp(2 * np.clip(sums, -20, 20))) / len(n))
        if row.over == "pearson":
            return self._pearson()
        extreme = max(held["max"]) if row.over == "max" else min(held["min"])
        return row.after(extreme)

    def _pearson(self) -> float:
        n, p, q, pp, qq, pq = (_fsum(c) for c in np.frombuffer(self.pearson).reshape(-1, 6).T)
        a, b = pp - p * p / n, qq - q * q / n
        return (pq - p * q / n) / math.sqrt(a * b) if a > 0 and b > 0 else math.nan


def _fsum(values: Floats) -> float:
    return math.fsum(values) if np.isfinite(values).all() else float(np.sum(values))
