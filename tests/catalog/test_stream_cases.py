"""Every row of stream_cases.json gives what its `expect` says, and nothing more severe than a note besides."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "streams"))

from made_streams import CASES, of_case, slugs

from kcverify.streams.bearing import NONE
from kcverify.streams.checks_run import kept_share, steps_of, window_of_spread
from kcverify.streams.identity import BEARINGS

ROWS = CASES if isinstance(CASES, list) else next(v for v in CASES.values() if isinstance(v, list))
NEEDS_NO_STREAM = {"geometric-window-empty", "mask-hides-failure", "weights-stale-step"}


@pytest.mark.parametrize("case", [c for c in ROWS if c["id"] not in NEEDS_NO_STREAM], ids=lambda c: c["id"])
def test_a_case_gives_what_it_expects(case) -> None:
    answer, expect = of_case(case), case["expect"]
    found = slugs(answer)
    if expect.get("verdict") == "unobservable":
        assert found == ["not_observable"] and answer["exit_code"] == 3 and answer["verdict"] == expect["verdict"]
    elif expect["finding"] is None:
        assert found == [] and answer["verdict"] == "comparable" and answer["exit_code"] == 0
    else:
        assert set(found) == {expect["finding"]}
        stands = BEARINGS[expect["finding"]] == NONE
        verdict = "partly_comparable" if stands else "not_comparable"
        assert answer["exit_code"] == 1 and answer["verdict"] == verdict and (answer["drift"] is not None) == stands
    _numbers(case["id"], answer, expect)


def _numbers(name, answer, expect) -> None:
    values = {row["name"]: row["value"] for row in answer["estimators"]}
    evidence = answer["findings"][0]["evidence"] if answer["findings"] else {}
    numbers = answer["drift"] or answer["explained"] or {"table": []}
    exact = {row["metric"]: row["mean"] for row in numbers["table"]}
    pairs = {
        "mean_ratio": values.get("mean ratio"), "k1": values.get("k1"), "k3": values.get("k3"), "lag": evidence.get("lag"),
        "missing_mass": evidence.get("missing_mass"), "fitted_ratio": evidence.get("fitted_ratio"),
        "log_ratio": evidence.get("log_ratio"), "tv": exact.get("TV"), "logit_span": exact.get("logit span"),
        "kl_q_p": None, "denominator": evidence.get("denominator"),
        "reference": evidence.get("reference"), "candidate": evidence.get("candidate"),
    }  # fmt: skip
    for key, got in pairs.items():
        if key in expect and got is not None:
            assert got == pytest.approx(expect[key], abs=1e-9), key
    if expect.get("kl_reference_candidate") == "inf":
        assert exact["KL(ref||cand)"] == "inf" and exact["KL(cand||ref)"] > 0
    if "token" in expect:
        assert evidence["first"]["position"] == expect["token"]
    if "row" in expect:
        assert evidence["first"]["position"] == expect["row"]
    if "median_sequence_weight" in expect:
        assert answer["sequences"]["median_weight"] == pytest.approx(
            expect["median_sequence_weight"], abs=expect["tolerance"]
        )
    if "metrics_finite" in expect:
        assert all(math.isfinite(v) for v in values.values())
    if name == "bimodal":
        assert answer["sequences"]["bad_share"] == pytest.approx(0.156, abs=1e-3)
        assert sorted(w["index"] for w in answer["sequences"]["worst"]) == list(range(10))
    if name == "one-tail-token":
        shares = {row["name"]: row["largest_token"]["share"] for row in answer["estimators"] if row["largest_token"]}
        assert shares["k3"] == pytest.approx(1) and shares["chi2"] > 0.6
    if name == "kl-direction-by-name":
        kl_qp, chi = (
            expect["kl_q_p"],
            sum((a - b) ** 2 / a for a, b in zip([0.7, 0.2, 0.1], [0.5, 0.3, 0.2], strict=True)),
        )
        assert values["k1"] == pytest.approx(kl_qp) == pytest.approx(values["k3"])
        assert values["k3 of -d"] == pytest.approx(chi - kl_qp) and values["k3 of -d"] != pytest.approx(
            expect["kl_p_q"]
        )
    if name == "correlation-is-blind":
        assert evidence["lower"] <= 0.8 <= evidence["upper"] or abs(evidence["fitted_ratio"] - 0.8) < 0.02
    if name == "duplicate-topk":  # each token counts once: no row holds more than the whole mass
        assert answer["drift"]["bounds"][0]["invalid_rows"] == 0 and answer["explained"] is None


def test_a_window_that_no_long_answer_meets() -> None:
    case = next(c for c in ROWS if c["id"] == "geometric-window-empty")
    (low, high), sd = case["input"]["window"], case["input"]["sd"]
    [found] = window_of_spread(low, high, sd)
    assert found.slug == case["expect"]["finding"]
    assert found.evidence["limit_sd"] == pytest.approx(case["expect"]["limit_sd"], abs=1e-4)
    assert found.evidence["keep_rate_at_1000"] == pytest.approx(case["expect"]["keep_rate_at_1000"], abs=5e-3)
    assert not list(window_of_spread(low, high, 0.04))


def test_a_mask_below_its_floor() -> None:
    case = next(c for c in ROWS if c["id"] == "mask-hides-failure")
    [found] = kept_share(case["input"]["kept_share"], case["input"]["min_kept_share"])
    assert found.slug == case["expect"]["finding"]
    assert not list(kept_share(0.7, 0.7))


def test_a_step_change() -> None:
    case = next(c for c in ROWS if c["id"] == "weights-stale-step")
    [found] = steps_of(case["input"]["mean_abs_log_ratio_by_step"])
    assert (found.slug, found.evidence["at"]) == (case["expect"]["finding"], case["expect"]["at"])
