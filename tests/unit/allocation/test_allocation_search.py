"""The search tightens when adding up is too optimistic, loosens when it is not, ends, and says what it did."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.allocation.budget import Budget
from kcverify.allocation.measured import Measured
from kcverify.allocation.search import MOST_ATTEMPTS, MOST_LOOKS, Problem, Search, worst_share
from kcverify.allocation.sensitivity import Figures
from kcverify.allocation.solve import total

UNITS, FORMATS = tuple(f"u{i}" for i in range(8)), ("wide", "half", "narrow")
BUDGET = Budget("c", "c", "kl", "kl_reference_candidate", True, 0.0, 1.0, "nats")
COST = {(u, f): float(c) for u in UNITS for f, c in zip(FORMATS, (4, 2, 1), strict=True)}


def problem(drift):
    return Problem(UNITS, FORMATS, COST, (drift,), (1.0,))


def searched(drift, factor, margin):
    """A world in which the whole is `factor` times the sum, and held-out prompts pass below `margin` of the limit."""
    p = problem(drift)

    def look(assignment, cost):
        value = factor * total(drift, assignment)
        verdict = "pass" if value <= margin else "inconclusive" if value <= 1 else "fail"
        return Measured("allocated", assignment, cost, Figures((value,), 8, 0), verdict, (), (), value <= 1, True)

    said: list[str] = []
    search = Search(p, lambda a: Figures((factor * total(drift, a),), 8, 0), look, worst_share([BUDGET]), said.append)
    stopped = search.run()
    return search, stopped, said


drifts = st.lists(st.floats(0.001, 0.4), min_size=len(UNITS), max_size=len(UNITS))


@settings(max_examples=8, deadline=None)
@given(drifts, st.sampled_from([0.25, 0.7, 1.0, 1.7, 6.0]), st.sampled_from([0.5, 0.9, 1.0]))
def test_what_passes_was_measured_to_pass_and_the_work_is_bounded(sizes, factor, margin):
    drift = {
        (u, f): s * w for u, s in zip(UNITS, sizes, strict=True) for f, w in zip(FORMATS, (0.0, 0.3, 1.0), strict=True)
    }
    search, stopped, said = searched(drift, factor, margin)
    assert stopped
    assert len(search.attempts) == len(said) <= MOST_ATTEMPTS
    assert search.looks <= MOST_LOOKS
    for attempt in search.attempts:
        value = factor * total(drift, attempt.assignment)
        assert (attempt.held_out is not None) == (value <= 1)
        if attempt.held_out is not None and attempt.held_out.rank == 0:
            assert value <= margin
    assert any(a.held_out is not None and a.held_out.rank == 0 for a in search.attempts)


def test_too_optimistic_a_sum_is_said_and_tightened():
    drift = {(u, f): w for u in UNITS for f, w in zip(FORMATS, (0.0, 0.05, 0.2), strict=True)}
    search, _, said = searched(drift, 3.0, 1.0)
    assert "adding up was too optimistic, tighter" in said[0]
    assert search.attempts[1].scale < search.attempts[0].scale
    assert any("passes on held-out prompts" in line for line in said)


def test_too_pessimistic_a_sum_is_loosened():
    drift = {(u, f): w for u in UNITS for f, w in zip(FORMATS, (0.0, 0.05, 0.2), strict=True)}
    search, _, _ = searched(drift, 0.4, 1.0)
    passed = [a.cost for a in search.attempts if a.held_out is not None and a.held_out.rank == 0]
    assert min(passed) < passed[0]
    assert min(passed) == len(UNITS)  # all narrow: 8 x 0.2 x 0.4 = 0.64 of the limit


def test_where_nothing_fits_nothing_is_measured():
    drift = dict.fromkeys(COST, 5.0)
    search, stopped, said = searched(drift, 1.0, 1.0)
    assert (search.attempts, said) == ([], [])
    assert "no assignment of these formats fits the budget" in stopped
