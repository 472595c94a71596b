"""Certificates against the true total variation of random and adversarial distributions, and their decisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.streams.decisions import (
    ACCEPT,
    REJECT,
    UNDECIDED,
    adaptive_common,
    decide,
    padded,
    sequence_budget,
    stopped,
)
from kcverify.streams.partial import (
    UNBOUNDED,
    Bounds,
    Error,
    both_top,
    common,
    full_against_top,
    kl_cells,
    sampled_token,
)

TIGHT = 1e-11


def log(x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(x)


def tv(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return 0.5 * np.abs(p - q).sum(-1)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Rows of two distributions: flat, peaked, disjoint, equal, with zeros, with ties."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, width = draw(st.integers(1, 5)), draw(st.integers(2, 24))
    scale = draw(st.sampled_from([0.0, 0.3, 2.0, 8.0, 40.0]))
    apart = draw(st.sampled_from([0.0, 1e-9, 1e-3, 0.5, 10.0]))
    z = scale * rng.standard_normal((rows, width))
    p, q = (np.exp(x - x.max(-1, keepdims=True)) for x in (z, z + apart * rng.standard_normal(z.shape)))
    kind = draw(st.sampled_from(["plain", "disjoint", "zeros", "ties"]))
    if kind == "disjoint":
        p[:, : width // 2], q[:, width // 2 :] = 0.0, 0.0
    elif kind == "zeros":
        q[rng.random(q.shape) < 0.4] = 0.0
    elif kind == "ties":
        p, q = np.ceil(4 * p), np.ceil(4 * q)
    p[:, -1] += 1e-3 * (p.sum(-1) == 0)
    q[:, 0] += 1e-3 * (q.sum(-1) == 0)
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True), rng


def top(p: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-p, axis=1, kind="stable")[:, :k]
    return ids, log(np.take_along_axis(p, ids, 1))


def holds(bounds: Bounds, truth: np.ndarray) -> None:
    assert bounds.valid.all()
    assert (bounds.low <= truth + 1e-15).all(), (bounds.low, truth)
    assert (truth <= bounds.high + 1e-15).all(), (truth, bounds.high)
    assert (bounds.low >= 0).all() and (bounds.high <= 1).all()


@settings(max_examples=150, deadline=None)
@given(pairs(), st.data())
def test_every_certificate_encloses_the_total_variation(pair, data):
    p, q, rng = pair
    width = p.shape[1]
    k, m = data.draw(st.integers(1, width)), data.draw(st.integers(1, width))
    truth = tv(p, q)
    a = rng.integers(0, width, len(p))
    at = [log(np.take_along_axis(x, a[:, None], 1)[:, 0]) for x in (p, q)]
    chosen = np.argsort(rng.random(p.shape), axis=1)[:, :k]
    on = [log(np.take_along_axis(x, chosen, 1)) for x in (p, q)]
    found = {
        "sampled": sampled_token(*at),
        "common": common(*on, chosen),
        "common and sampled": common(*on, chosen, sampled=(a, *at)),
        "both": both_top(*top(p, k), *top(q, m)),
        "both and sampled": both_top(*top(p, k), *top(q, m), sampled=(a, *at)),
        "full": full_against_top(log(q), *top(p, k)),
        "full and sampled": full_against_top(log(q), *top(p, k), sampled=(a, at[0])),
    }
    for bounds in found.values():
        holds(bounds, truth)
    assert (found["common and sampled"].low >= np.maximum(found["common"].low, found["sampled"].low) - TIGHT).all()
    assert (found["common and sampled"].high <= np.minimum(found["common"].high, found["sampled"].high) + TIGHT).all()
    if k == width:
        assert (found["common"].high - found["common"].low <= TIGHT).all()
        assert (found["full"].high - found["full"].low <= TIGHT).all()
    assert (found["full"].low >= found["both"].low - TIGHT).all(), "full rows never say less than a list of them"
    assert [found[n].prefix_only for n in ("sampled", "common", "common and sampled")] == [False, True, False]


@settings(max_examples=60, deadline=None)
@given(pairs(), st.data())
def test_the_gap_is_the_smaller_tail_and_nested_sets_are_monotone(pair, data):
    p, q, rng = pair
    order = np.argsort(rng.random(p.shape), axis=1)
    p, q = np.take_along_axis(p, order, 1), np.take_along_axis(q, order, 1)
    last: Bounds | None = None
    for k in range(p.shape[1] + 1):
        found = common(log(p[:, :k]), log(q[:, :k]))
        tails = np.minimum(1 - p[:, :k].sum(1), 1 - q[:, :k].sum(1))
        assert np.abs(found.upper - found.lower - np.maximum(0, tails)).max() <= TIGHT
        assert np.abs(found.unknown - np.maximum(0, tails)).max() <= TIGHT
        if last is not None:
            assert (found.low >= last.low - TIGHT).all() and (found.high <= last.high + TIGHT).all()
        last = found


@settings(max_examples=60, deadline=None)
@given(pairs(), st.data())
def test_both_ends_of_a_common_set_are_attained(pair, data):
    """Two tokens outside: tails on one token give the lower end, on two different ones the upper."""
    p, q, _ = pair
    p, q = 0.7 * p, 0.4 * q
    zero = np.zeros((len(p), 1))
    a, b = 1 - p.sum(1, keepdims=True), 1 - q.sum(1, keepdims=True)
    found = common(log(p), log(q))
    together = tv(np.hstack((p, a, zero)), np.hstack((q, b, zero)))
    apart = tv(np.hstack((p, a, zero)), np.hstack((q, zero, b)))
    assert np.abs(found.low - together).max() <= TIGHT
    assert np.abs(found.high - apart).max() <= TIGHT


@settings(max_examples=60, deadline=None)
@given(pairs(), st.data())
def test_both_ends_of_a_full_row_against_a_list_are_attained(pair, data):
    """Completions of the list below its cap reach either end."""
    p, q, _ = pair
    k = data.draw(st.integers(1, p.shape[1]))
    ids, listed = top(p, k)
    found = full_against_top(log(q), ids, listed)
    for row in range(len(p)):
        cap = np.exp(listed[row, -1])
        rest = max(0.0, 1 - np.exp(listed[row]).sum())
        tail = np.setdiff1d(np.arange(p.shape[1]), ids[row])
        caps = np.full(p.shape[1], cap)
        for end, order, first in (
            (found.high[row], tail[np.argsort(q[row, tail])], caps),
            (found.low[row], tail, np.minimum(caps, q[row])),
        ):
            other, left = np.where(np.isin(np.arange(p.shape[1]), ids[row]), p[row], 0.0), rest
            for limit in (first, caps):
                for i in order:
                    put = min(left, limit[i] - other[i])
                    other[i], left = other[i] + put, left - put
            assert left <= 1e-12
            assert abs(tv(other, q[row]) - end) <= TIGHT


@settings(max_examples=60, deadline=None)
@given(pairs(), st.data())
def test_the_lower_end_of_two_lists_is_attained(pair, data):
    """Room outside both lists: 200 tokens more, over which what is left of either side is spread alike."""
    p, q, _ = pair
    width = p.shape[1]
    k, m = (data.draw(st.integers(1, width)) for _ in range(2))
    (p_ids, p_log), (q_ids, q_log) = top(p, k), top(q, m)
    found = both_top(p_ids, p_log, q_ids, q_log)
    for row in range(len(p)):
        sides = []
        for own_ids, own, other_ids, other in (
            (p_ids[row], p_log[row], q_ids[row], q_log[row]),
            (q_ids[row], q_log[row], p_ids[row], p_log[row]),
        ):
            full, cap = np.zeros(width + 4000), np.exp(own[-1])
            full[own_ids] = np.exp(own)
            left = max(0.0, 1 - np.exp(own).sum())
            for i, value in zip(other_ids, np.exp(other), strict=True):
                if i not in own_ids:
                    full[i] = min(left, cap, value)
                    left -= full[i]
            full[width:] = left / 4000
            sides.append(full if left / 4000 <= cap else None)
        if None in [side if side is None else 0 for side in sides]:
            continue  # more mass than the room outside has below the cap
        short = min(sides[0][width:].sum(), sides[1][width:].sum())
        truth = tv(*sides)
        assert truth >= found.low[row] - TIGHT
        assert abs(1 - np.minimum(*sides)[:width].sum() - short - found.low[row]) <= 1e-9
        assert abs(truth - found.low[row]) <= 1e-9


def test_hand_computed_rows():
    p, q = np.array([[0.5, 0.2]]), np.array([[0.4, 0.4]])
    found = common(np.log(p), np.log(q))
    assert found.low[0] == pytest.approx((0.3 + 0.1) / 2) and found.high[0] == pytest.approx((0.3 + 0.3 + 0.2) / 2)
    one = sampled_token(np.log([0.5]), np.log([0.4]))
    assert one.low[0] == pytest.approx(0.1) and one.high[0] == pytest.approx(0.6)
    # lists {0: .5, 1: .3} and {0: .45, 2: .35}: c = .45, u = min(.2, min(.35, .3)) = .2, v = min(.2, .3) = .2
    lists = both_top([[0, 1]], np.log([[0.5, 0.3]]), [[0, 2]], np.log([[0.45, 0.35]]))
    assert lists.low[0] == pytest.approx(1 - 0.45 - 0.4) and lists.high[0] == pytest.approx(0.55)
    # the list {0: .6} leaves .4 below .6: on the smallest tokens of (.1, .2, .7) it overlaps .2 at least, .4 at most
    full = full_against_top(np.log([[0.7, 0.2, 0.1]]), [[0]], np.log([[0.6]]))
    assert full.low[0] == pytest.approx(1 - 0.6 - 0.3) and full.high[0] == pytest.approx(1 - 0.6 - 0.1)


def test_repeated_ids_count_once_and_contradictions_are_not_valid():
    twice = common(np.log([[0.5, 0.5, 0.2]]), np.log([[0.4, 0.4, 0.3]]), [[7, 7, 3]])
    once = common(np.log([[0.5, 0.2]]), np.log([[0.4, 0.3]]), [[7, 3]])
    assert twice.low == pytest.approx(once.low) and twice.high == pytest.approx(once.high) and twice.valid.all()
    at_odds = common(np.log([[0.5, 0.4]]), np.log([[0.4, 0.4]]), [[7, 7]])
    assert not at_odds.valid[0] and (at_odds.low[0], at_odds.high[0]) == (0.0, 1.0)


def test_a_sampled_token_changes_no_cap():
    p_ids, p = [[0, 1]], np.log([[0.5, 0.3]])
    q_ids, q = [[2, 3]], np.log([[0.5, 0.3]])
    plain = both_top(p_ids, p, q_ids, q)
    more = both_top(p_ids, p, q_ids, q, sampled=([9], np.log([0.01]), np.log([0.02])))
    assert more.low[0] <= plain.low[0] + 0.02 and plain.low[0] == pytest.approx(1 - 0.4)
    assert more.low[0] == pytest.approx(1 - 0.01 - 0.18 - 0.19)


def test_placeholders_and_impossible_rows_are_never_certified():
    p = np.log([[0.5, 0.2]])
    bad = np.array([[0.1, -1.0], [np.inf, -1.0], [0.0, -0.1]])  # positive, infinite, masses above 1
    for row in bad:
        found = common(row[None], p)
        assert not found.valid[0] and (found.low[0], found.high[0]) == (0.0, 1.0)
        assert decide(found, 0.5)[0] == UNDECIDED
    unknown = common([[np.nan, np.log(0.2)]], p)
    assert unknown.valid[0] and unknown.high[0] == pytest.approx(0.8)
    assert not full_against_top(np.log([[0.5, 0.2]]), [[0]], np.log([[0.5]])).valid[0], "a full row that is not full"
    assert not full_against_top([[np.nan, 0.0]], [[0]], np.log([[0.5]])).valid[0]
    empty = common(np.zeros((2, 0)), np.zeros((2, 0)))
    assert (empty.low == 0).all() and (empty.high == 1).all()


def test_renormalised_and_truncated_lists():
    """Lists that hold all mass: the tails are empty and the answer exact."""
    p, q = np.array([[0.6, 0.4, 0.0]]), np.array([[0.5, 0.0, 0.5]])
    found = both_top([[0, 1]], log(p[:, :2]), [[0, 2]], log(q[:, [0, 2]]))
    assert found.low[0] == pytest.approx(tv(p, q)[0]) and found.high[0] == pytest.approx(tv(p, q)[0])
    banned = common(log(p), log(q), [[0, 1, 2]])
    assert banned.low[0] == pytest.approx(0.5) == banned.high[0]


@settings(max_examples=100, deadline=None)
@given(pairs(), st.floats(0, 0.3), st.floats(0, 0.3), st.data())
def test_errors_of_the_reported_values_are_covered(pair, eta_p, eta_q, data):
    """True rows, reported values moved by up to eta each: the interval with its margin holds the true value."""
    p, q, rng = pair
    k = data.draw(st.integers(1, p.shape[1]))
    size = data.draw(st.sampled_from([1.0, -1.0, 0.0]))
    moved = []
    for side, eta in ((p, eta_p), (q, eta_q)):
        noise = eta * (size if size else rng.uniform(-1, 1, side.shape))
        moved.append(np.minimum(log(side) + noise, 0.0))
    error, truth = Error(eta_p, eta_q), tv(p, q)
    ids = [np.argsort(-side, axis=1, kind="stable")[:, :k] for side in moved]
    lists = [np.take_along_axis(side, own, 1) for side, own in zip(moved, ids, strict=True)]
    on_p = np.take_along_axis(moved[1], ids[0], 1)
    for bounds in (
        common(lists[0], on_p, ids[0], error=error),
        both_top(ids[0], lists[0], ids[1], lists[1], error=error),
        sampled_token(moved[0][:, 0], moved[1][:, 0], error=error),
        full_against_top(moved[1], ids[0], lists[0], error=Error(eta_q, eta_p)),
    ):
        holds(bounds, truth)
    rows = [np.exp(side) / np.exp(side).sum(-1, keepdims=True) for side in moved]
    with np.errstate(invalid="ignore"):
        off = [np.nanmax(np.abs(np.where(a > 0, log(a) - log(b), 0.0))) for a, b in zip(rows, (p, q), strict=True)]
    whole = common(log(rows[0]), log(rows[1]), error=Error(float(off[0]), float(off[1]), normalised=True))
    holds(whole, truth)
    assert (whole.margin <= np.tanh(off[0] / 2) + np.tanh(off[1] / 2) + 1e-12).all()


def test_decisions_respect_the_margin():
    p, q = np.log([[0.5, 0.5]] * 3), np.log([[0.45, 0.55]] * 3)
    assert decide(common(p, q), 0.06).tolist() == [ACCEPT] * 3
    assert decide(common(p, q), 0.04).tolist() == [REJECT] * 3
    wide = common(p, q, error=Error(0.02, 0.02))
    assert decide(wide, 0.06).tolist() == [UNDECIDED] * 3 == decide(wide, 0.04).tolist()
    assert decide(wide, 0.0897).tolist() == [ACCEPT] * 3 and decide(wide, 0.0103).tolist() == [REJECT] * 3


@settings(max_examples=60, deadline=None)
@given(pairs(), st.floats(0.001, 0.9))
def test_growing_lists_decide_right_and_fail_closed(pair, delta):
    p, q, _ = pair
    width = p.shape[1]
    ids = np.argsort(-q, axis=1, kind="stable")
    on = [log(np.take_along_axis(side, ids, 1)) for side in (p, q)]
    truth = tv(p, q)
    for cut in (width, max(1, width // 2)):
        found = adaptive_common(on[0][:, :cut], on[1][:, :cut], delta, ids[:, :cut], start=1)
        assert set(found.decision.tolist()) <= {ACCEPT, REJECT}
        assert (truth[found.decision == ACCEPT] <= delta).all()
        assert (truth[(found.decision == REJECT) & ~found.forced] > delta).all()
        assert (found.length[found.forced] == cut).all() and (found.length <= cut).all()
    edge = np.abs(truth - delta) > 1e-9
    whole = adaptive_common(on[0], on[1], delta, ids, start=1)
    assert ((whole.decision == ACCEPT) == (truth <= delta))[edge].all() and not whole.forced[edge].any()


def test_budgets_of_responses():
    upper = np.array([[0.1, 0.2, 0.3], [0.4, np.nan, 0.1]])
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    spent = sequence_budget(upper, mask)
    assert spent.sums == pytest.approx([0.3, 1.5]) and spent.mean == pytest.approx(0.9) and spent.largest >= 1.5
    cut = stopped(upper, mask, 0.5, prefix_only=True)
    assert cut.keep.tolist() == [[True, True, False], [True, False, False]]
    assert cut.stop.tolist() == [3, 1] and cut.spent == pytest.approx([0.3, 0.4]) and cut.certified
    loose = stopped(upper, mask, 0.5, prefix_only=False)
    assert not loose.certified and "sampled" in loose.reason
    with pytest.raises(ValueError, match="budget"):
        stopped(upper, mask, float("nan"), prefix_only=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.6))
def test_a_stopped_pair_keeps_its_budget(seed, budget):
    """Exact by enumeration: two policies over three tokens and four steps, the second reverting from the stop on."""
    rng = np.random.default_rng(seed)
    p_of, q_of = {}, {}
    total_p, total_q = {(): 1.0}, {(): 1.0}
    spent = {(): 0.0}
    for _ in range(4):
        next_p, next_q, next_spent = {}, {}, {}
        for prefix, mass in total_p.items():
            z = rng.standard_normal(3)
            p, q = (np.exp(x) / np.exp(x).sum() for x in (z, z + 0.4 * rng.standard_normal(3)))
            u = common(log(p[None, :2]), log(q[None, :2]))
            after = spent[prefix] + u.high[0]
            if after > budget:
                q, after = p, budget + 1
            p_of[prefix], q_of[prefix] = p, q
            for token in range(3):
                key = (*prefix, token)
                next_p[key], next_q[key] = mass * p[token], total_q[prefix] * q[token]
                next_spent[key] = after
        total_p, total_q, spent = next_p, next_q, next_spent
    distance = 0.5 * sum(abs(total_p[k] - total_q[k]) for k in total_p)
    assert distance <= budget + 1e-12


@settings(max_examples=100, deadline=None)
@given(pairs(), st.data())
def test_kl_from_cells_is_a_lower_bound_and_has_no_upper_one_without_a_floor(pair, data):
    p, q, _ = pair
    k = data.draw(st.integers(1, p.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        truth = np.where(p > 0, p * np.log(p / q), 0.0).sum(-1)
    found = kl_cells(log(p[:, :k]), log(q[:, :k]))
    assert found.valid.all() and (found.lower <= truth + 1e-12).all()
    assert np.isinf(found.upper).all() and found.note == UNBOUNDED
    floor = float(q[:, k:].min(initial=1.0))
    if floor > 0:
        floored = kl_cells(log(p[:, :k]), log(q[:, :k]), floor=floor)
        assert (floored.lower == found.lower).all() and (truth <= floored.upper + 1e-12).all()
        if k == p.shape[1]:
            finite = np.isfinite(truth)
            assert np.abs(floored.upper[finite] - floored.lower[finite]).max(initial=0.0) < 1e-9
    moved = kl_cells(log(p[:, :k]) - 0.01, log(q[:, :k]) - 0.02, floor=max(floor, 1e-300), error=Error(0.01, 0.02))
    assert (moved.lower <= truth + 1e-12).all()
    if floor > 0:
        assert (truth <= moved.upper + 1e-12).all()


def test_kl_is_infinite_where_the_other_side_is_zero_however_small_the_mass():
    found = kl_cells([[0.0, -800.0]], [[0.0, -np.inf]], floor=0.1)
    assert found.valid[0] and found.upper[0] == np.inf
    assert kl_cells([[0.0, -np.inf]], [[0.0, -800.0]], floor=0.1).upper[0] < 1e-9


def test_lists_of_different_length():
    ids, values = padded([[3, 1], [], [5]], [[-0.1, -3.0], [], [-0.2]])
    assert ids.tolist() == [[3, 1], [-1, -1], [5, -1]] and np.isnan(values).sum() == 3
    found = both_top(ids, values, ids, values)
    assert found.valid.all() and found.high[1] == 1.0
    with pytest.raises(ValueError, match="lengths"):
        padded([[1]], [[]])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: common(np.zeros((2, 3)), np.zeros((2, 2))), "shapes"),
        (lambda: common(np.zeros((1, 2)), np.zeros((1, 2)), [[0.5, 1.5]]), "integers"),
        (lambda: common(np.zeros((1, 2)), np.zeros((1, 2)), sampled=([0], [0.0], [0.0])), "ids"),
        (lambda: full_against_top(np.zeros((1, 2)), [[2]], [[-1.0]]), "ids up to 2"),
        (lambda: common(np.zeros((1, 2, 3)), np.zeros((1, 2, 3))), "expected"),
        (lambda: Error(float("nan")), "finite"),
        (lambda: kl_cells([[0.0]], [[0.0]], floor=2.0), "floor"),
    ],
)
def test_shapes_that_do_not_fit(call, match):
    with pytest.raises(ValueError, match=match):
        call()
