"""Trimmed spans, choices and perplexities: what a metric measures is what the lemma's premise says, on adversarial instances."""

from __future__ import annotations

import math
import sys
from fractions import Fraction as F
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "prove"))

from written import contract, statuses, verdicts

from kcverify.bounds.graph import best_for, propagate
from kcverify.catalog.model import Mode
from kcverify.prove.obligations import facts, parameters, whole_piece

T = 0.6


def softmax(z: list[float]) -> list[float]:
    e = [math.exp((x - max(z)) / T) for x in z]
    return [x / math.fsum(e) for x in e]


def tv(p: list[float], q: list[float]) -> float:
    return math.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def trimmed(z: list[float], w: list[float], mass: float) -> float:
    """The definition of the metric: the smallest span over every set that holds the mass on both sides."""
    p, q, d = softmax(z), softmax(w), [b - a for a, b in zip(z, w, strict=True)]
    sets = (s for n in range(1, len(z) + 1) for s in combinations(range(len(z)), n))
    held = [s for s in sets if min(math.fsum(p[i] for i in s), math.fsum(q[i] for i in s)) >= mass]
    return min(max(d[i] for i in s) - min(d[i] for i in s) for s in held)


def rows(rng: Random) -> tuple[list[float], list[float]]:
    """Two likely tokens lifted against each other, and tokens of little mass that move by far."""
    x = rng.choice((0.01, 0.1, 0.5))
    z, w = [0.0, -x / 2], [0.0, x / 2]
    for _ in range(rng.randint(1, 3)):
        low = -rng.choice((1.0, 3.0, 6.0))
        far = rng.choice((-20.0, 0.0, 0.5, 20.0))
        z.append(low + min(far, 0.0))
        w.append(low - max(far, 0.0))
    return z, w


@pytest.mark.parametrize("mass", ["0.6", "0.9", "0.99"])
def test_total_variation_stays_below_the_bound_of_the_trimmed_span(mass: str) -> None:
    rng, closest = Random(mass), 0.0
    for _ in range(60):
        z, w = rows(rng)
        span = F(trimmed(z, w, float(mass))) + F(1, 10**9)
        c = contract(f"c: logit_span(mass = {mass}) <= {float(span):.17f} -> L1")
        piece = whole_piece(c, "")
        best = propagate(facts(c.clauses[0], piece), parameters(c.assumptions, piece))
        bound = best_for(best, "tv", Mode.POINT, F(0))
        assert bound is not None
        reached = tv(softmax(z), softmax(w))
        assert reached <= float(bound.value) + 1e-9
        closest = max(closest, reached / float(bound.value))
    assert closest > 0.2


def test_a_trimmed_span_proves_what_the_kept_mass_allows() -> None:
    text = "c: logit_span(mass = 0.999) <= 0.1 -> L1"
    assert statuses(text, "t: tv <= 0.042601\nf: tv <= 0.0425\nk: reward_drift <= 0.042601") == {
        "t": "PROVED", "f": "UNKNOWN", "k": "PROVED",
    }  # fmt: skip
    exceeding = text.replace("0.1 ->", "0.1 except 1% ->")
    assert statuses(exceeding, "t: tv <= 0.0427 except 1%\nf: tv <= 0.0427\nm: mean tv <= 0.053")["f"] == "REFUTED"
    assert statuses(exceeding, "t: tv <= 0.0427 except 1%\nm: mean tv <= 0.053") == {"t": "PROVED", "m": "PROVED"}


def test_the_set_of_one_clause_is_not_that_of_another() -> None:
    two = "c: logit_span(mass = 0.6) <= 0.001 -> L1\nd: logit_span(mass = 0.999) <= 1 -> L1"
    assert statuses(two, "f: tv <= 0.3\nt: tv <= 0.3955") == {"f": "UNKNOWN", "t": "PROVED"}
    banded = two.replace("<= 1 ->", "<= 1 when temperature in [0.6, 1.0] ->")
    assert statuses(banded, "f: tv <= 0.3")["f"] == "UNKNOWN"


def test_a_larger_kept_mass_implies_a_smaller_one_and_not_the_converse() -> None:
    text = "c: logit_span(mass = 0.99) <= 0.1 -> L1"
    claims = "t: logit_span(mass = 0.9) <= 0.1\nf: logit_span(mass = 0.999) <= 0.1\nn: logit_span <= 0.1"
    assert statuses(text, claims) == {"t": "PROVED", "f": "UNKNOWN", "n": "UNKNOWN"}
    assert statuses("c: logit_span <= 0.1 -> L1", claims) == {"t": "PROVED", "f": "PROVED", "n": "PROVED"}


def test_agreement_bounds_flips_and_no_flip_rate_bounds_agreement() -> None:
    claims = "t: flip_rate(margin = 0.2) <= 1%\nk: agreement(top = 1) >= 98%"
    agree = "statistical { s: agreement(top = 1) >= 99% -> L1 }\n"
    assert statuses("", claims, more=agree) == {"t": "PROVED", "k": "PROVED"}
    flips = "statistical { s: flip_rate <= 1% -> L1 }\n"
    assert statuses("", claims, more=flips) == {"t": "PROVED", "k": "UNKNOWN"}


def ece(confidence: list[float], correct: list[bool], bins: list[int]) -> float:
    n = len(confidence)
    sums: dict[int, float] = {}
    for c, right, b in zip(confidence, correct, bins, strict=True):
        sums[b] = sums.get(b, 0.0) + c - right
    return sum(abs(x) for x in sums.values()) / n


def test_a_tie_changes_what_is_correct_although_the_sides_agree() -> None:
    z, w = [0.0, 0.0], [0.0, 1e-9]  # ties count as agreement, and the label is token 0, the first of the tied
    p, q = softmax(z), softmax(w)
    assert tv(p, q) < 1e-9
    drift = abs(ece([max(p)] * 4, [True] * 4, [7] * 4) - ece([max(q)] * 4, [False] * 4, [7] * 4))
    assert drift < 1e-8  # at a confidence of one half the two errors are equal; beside a sure token they are not
    sure = (
        ece([max(p)] * 4 + [1.0] * 4, [True] * 4 + [False] * 4, [7] * 8),
        ece([max(q)] * 4 + [1.0] * 4, [False] * 8, [7] * 8),
    )
    assert abs(sure[0] - sure[1]) > 0.4
    found = verdicts(
        "c: mean tv <= 0.000000001 -> L1", "g: ece_drift(bins = reference) <= 0.1",
        more="statistical { s: agreement(top = 1) >= 100% -> L1\nf: flip_rate <= 0 -> L1 }\n",
    )["g"]  # fmt: skip
    assert found.status.value == "UNKNOWN" and "count a tie as agreement" in found.reason


def test_own_bins_say_why_there_is_no_bound() -> None:
    found = verdicts("c: mean tv <= 0.001 -> L1", "g: ece_drift(bins = own) <= 0.1")["g"]
    assert found.status.value == "UNKNOWN" and "own bins" in found.reason


def test_the_perplexity_of_any_text_moves_by_at_most_the_largest_ratio() -> None:
    claims = "t: perplexity_ratio in [0.9801, 1.0203]\nf: perplexity_ratio in [0.99, 1.01]"
    assert statuses("c: log_ratio <= 0.02 -> L1", claims)["t"] == "PROVED"
    assert statuses("c: importance_ratio in [0.98, 1.01] -> L1", claims.replace("0.9801, 1.0203", "0.98, 1.01")) == {
        "t": "PROVED", "f": "UNKNOWN",
    }  # fmt: skip
    for weak in ("c: mean log_ratio <= 0.02 -> L1", "c: log_ratio <= 0.02 except 1% -> L1"):
        found = verdicts(weak, claims)["t"]
        assert found.status.value == "UNKNOWN" and "every token" in found.reason
    rng = Random(5)
    for _ in range(200):
        losses = [rng.uniform(-0.02, 0.02) if rng.random() < 0.5 else 0.02 for _ in range(rng.randint(1, 30))]
        ratio = math.exp(math.fsum(losses) / len(losses))
        assert 0.9801 < ratio < 1.0203
