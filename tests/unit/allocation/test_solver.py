"""The programmes against trying every assignment, and the figures against their definition."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from kcverify import driver  # noqa: E402
from kcverify.allocation.budget import Budget, budgets, row_weights  # noqa: E402
from kcverify.allocation.solve import cheapest, closest, total  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402
from kcverify.source import Source  # noqa: E402

UNITS, FORMATS = ("a", "b", "c", "d"), ("wide", "half", "narrow")
PAIRS = [(u, f) for u in UNITS for f in FORMATS]
numbers = st.lists(st.integers(0, 50), min_size=len(PAIRS), max_size=len(PAIRS)).map(
    lambda v: dict(zip(PAIRS, v, strict=True))
)


def every():
    for forms in itertools.product(FORMATS, repeat=len(UNITS)):
        yield dict(zip(UNITS, forms, strict=True))


@settings(max_examples=20, deadline=None)
@given(numbers, numbers, numbers, st.integers(1, 150), st.integers(1, 150))
def test_the_cheapest_is_the_cheapest_of_all(cost, one, two, most, other):
    fit = [a for a in every() if total(one, a) <= most and total(two, a) <= other]
    found = cheapest(cost, (one, two), (float(most), float(other)), UNITS, FORMATS)
    assert (found is None) == (not fit)
    if found is not None:
        assert total(one, found.assignment) <= most
        assert total(two, found.assignment) <= other
        assert total(cost, found.assignment) == min(total(cost, a) for a in fit)


@settings(max_examples=20, deadline=None)
@given(numbers, numbers, st.integers(0, 150))
def test_the_closest_at_a_cost_is_the_closest_of_all(cost, drift, most):
    fit = [a for a in every() if total(cost, a) <= most]
    found = closest(cost, float(most), (drift,), (1.0,), UNITS, FORMATS)
    assert (found is None) == (not fit)
    if found is not None:
        assert total(cost, found.assignment) <= most
        assert total(drift, found.assignment) == min(total(drift, a) for a in fit)


def test_a_format_without_a_finite_figure_is_not_used():
    drift = dict.fromkeys(PAIRS, 1.0) | {("a", "narrow"): math.inf}
    cost = {(u, f): FORMATS[::-1].index(f) + 1.0 for u, f in PAIRS}
    found = cheapest(cost, (drift,), (100.0,), UNITS, FORMATS)
    assert found is not None
    assert found.assignment == {"a": "half", "b": "narrow", "c": "narrow", "d": "narrow"}
    broken = dict.fromkeys(PAIRS, 1.0) | {("a", f): math.inf for f in FORMATS}
    assert cheapest(cost, (broken,), (100.0,), UNITS, FORMATS) is None


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.1, 0.25, 0.5]),
)
def test_a_quantile_is_exceeded_by_the_allowed_share_and_no_smaller_value_is(requests, exception):
    values = torch.tensor([float(v) for r in requests for v in r])
    budget = Budget("c", "", "logit_span", "logit_span", False, exception, 1.0, "logits")
    found = budget.figure(values, row_weights([len(r) for r in requests]))

    def beyond(limit: float) -> Fraction:
        shares = [Fraction(sum(v > limit for v in r), len(r)) for r in requests]
        return sum(shares, Fraction(0)) / len(shares)

    assert beyond(found) <= Fraction(exception)
    smaller = {float(v) for v in values if v < found}
    assert all(beyond(v) > Fraction(exception) for v in smaller)


def test_rows_without_a_value_are_infinite_in_every_figure():
    values = torch.tensor([0.1, math.nan, 0.1, 0.1])
    weights = row_weights([2, 2])
    mean = Budget("c", "", "tv", "tv", True, 0.0, 1.0, "")
    assert mean.figure(values, weights) == math.inf
    assert Budget("c", "", "tv", "tv", False, 0.0, 1.0, "").figure(values, weights) == math.inf
    assert Budget("c", "", "tv", "tv", False, 0.25, 1.0, "").figure(values, weights) == pytest.approx(0.1)


TEXT = """contract x
assume {{ temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }}
slice late = position >= 4
numerical {{ {clauses} }}
"""


def of(clauses, only=None, temperature=Fraction(1)):
    (contract,) = driver.load_source(Source("x.kc", TEXT.format(clauses=clauses))).contracts
    return budgets(contract, temperature, only)


def test_the_clauses_that_are_budgets():
    found = of("a: logit_span <= 0.5 except 2% -> L1; b: mean kl(candidate || reference) <= 1e-3 nats -> L1; c: tv <= 0.1 on late -> L1; d: bc >= 0.9 -> L1" .replace("d: bc >= 0.9 -> L1", "d: affinity >= 0.9 -> L1"))  # fmt: skip
    assert [(b.clause, b.statistic, b.mean, b.exception, b.power) for b in found] == [
        ("a", "logit_span", False, 0.02, 2),
        ("b", "kl_candidate_reference", True, 0.0, 1),
    ]
    assert [b.clause for b in of("a: tv <= 0.5 -> L1; b: logit_span <= 1 -> L1", only="b")] == ["b"]


@pytest.mark.parametrize(
    ("clauses", "words"),
    [
        ("c: tv <= 0.1 on late -> L1", "it is about slices"),
        ("c: logit_span <= ? -> L1", "kcverify derive"),
        ("c: affinity >= 0.9 -> L1", "no figure that adds up"),
        ("c: tv <= 0.1 when temperature in [0.6, 0.7) -> L1", "does not bind at temperature 1"),
        ("c: logit_span <= 0.5 * temperature except 1% -> L1; d: tv <= 0.1 on late -> L1", None),
    ],
)
def test_a_contract_without_a_budget_is_asked_for_one(clauses, words):
    if words is None:
        assert of(clauses, temperature=Fraction(4, 5))[0].limit == pytest.approx(0.4)
        return
    with pytest.raises(InputError, match=words) as stop:
        of(clauses)
    assert stop.value.diagnostics[0].code.slug == "allocation_no_budget"


def test_numbers_that_the_solver_would_refuse():
    """A format a trillion times beyond the limit is never chosen, and does not hide the one that fits."""
    units = ("a", "b")
    cost = {(u, f): c for u in units for f, c in (("wide", 4.0), ("narrow", 1.0))}
    drift = {(u, f): d for u in units for f, d in (("wide", 0.0), ("narrow", 1e23))}
    found = cheapest(cost, [drift], [1.0], units, ("wide", "narrow"))
    assert found is not None
    assert found.assignment == {"a": "wide", "b": "wide"}
    nearest = closest(cost, 5.0, [drift], [1.0], units, ("wide", "narrow"))
    assert nearest is not None
    assert sorted(nearest.assignment.values()) == ["narrow", "wide"]
