"""Monitors count exactly, say who was worst, fail closed, and add up in any order."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from typing import Any

import pytest
import torch
from monitor_streams import Example, clause, fed, state, stream

from kcverify.runtime import Affine, Band, Monitor, MonitorInputError


def test_counts_are_exact() -> None:
    updates = stream()
    report = fed(updates).report()
    spans = [(u["candidate_logits"] - u["reference_logits"]).double() for u in updates]
    over = sum(int(((d.amax(-1) - d.amin(-1)) > 0.05).sum()) for d in spans)
    drift = clause(report, "drift")
    assert drift["evidence"]["exceeding_rows"] == over > 0
    assert drift["evidence"]["requests"] == 24 and drift["evidence"]["rows"] == 120
    assert report["rows"] == {"total": 120, "invalid": 0, "support_reference_only": 0, "support_candidate_only": 0}
    a, b = clause(report, "tail", "a"), clause(report, "tail", "b")
    assert a["evidence"]["rows"] == sum(int(u["slices"]["a"].sum()) for u in updates)
    assert b["evidence"]["rows"] == 40 and b["evidence"]["requests"] == 8
    json.dumps(report, allow_nan=False)


def test_witness_is_the_worst_row() -> None:
    updates = stream()
    updates[17]["candidate_logits"][3, 42] += 3.0
    report = fed(updates).report()
    hard = clause(report, "hard")
    assert hard["verdict"] == "fail"
    found = hard["max"]
    assert (found["request"], found["row"], found["token"]) == ("request-17", 3, 42)
    assert found["value"] == pytest.approx(3.0, abs=0.1)
    for name in ("drift", "ratio", "kl"):
        assert clause(report, name)["max"]["request"] == "request-17"


def test_quantiles_hold_the_limit() -> None:
    report = fed(stream()).report()
    quantiles = clause(report, "drift")["quantiles"]
    assert list(quantiles) == ["p50", "p90", "p99", "p99.9"]
    assert all(low < high for low, high in quantiles.values())
    histogram = report["histograms"]["logit_span"]
    assert sum(histogram["counts"]) == 120 and len(histogram["edges"]) == len(histogram["counts"]) + 1


def test_any_order_and_sharding_give_the_same_report() -> None:
    updates = stream()
    whole = state(fed(updates))
    for seed in range(4):
        draw = random.Random(seed)
        shuffled = updates[:]
        draw.shuffle(shuffled)
        cut = sorted(draw.sample(range(1, 24), 2))
        shards = [fed(shuffled[: cut[0]]), fed(shuffled[cut[0] : cut[1]]), fed(shuffled[cut[1] :])]
        shards[0].close([u["request_ids"][0] for u in shuffled[: cut[0]]][:4])
        draw.shuffle(shards)
        for other in shards[1:]:
            shards[0].merge(other)
        assert state(shards[0]) == whole


def test_a_request_may_arrive_in_pieces_and_batches_may_mix_requests() -> None:
    updates = stream()
    whole = state(fed(updates))
    pieces = Example()
    for u in updates:
        for part in (slice(0, 2), slice(2, 5)):
            pieces.update(
                u["reference_logits"][part], u["candidate_logits"][part], request_ids=u["request_ids"][part],
                sampled_ids=u["sampled_ids"][part], slices={k: m[part] for k, m in u["slices"].items()},
            )  # fmt: skip
    assert state(pieces) == whole
    merged = Example()
    merged.update(
        torch.cat([u["reference_logits"] for u in updates]),
        torch.cat([u["candidate_logits"] for u in updates]),
        request_ids=[i for u in updates for i in u["request_ids"]],
        sampled_ids=torch.cat([u["sampled_ids"] for u in updates]),
        slices={k: torch.cat([u["slices"][k] for u in updates]) for k in ("a", "b")},
    )
    assert state(merged) == whole


def test_closing_changes_nothing_but_memory() -> None:
    monitor = fed(stream())
    before = state(monitor)
    monitor.close(["request-3", "request-7", "never seen"])
    assert state(monitor) == before and len(monitor.ledger.slots) == 22
    monitor.close([f"request-{i}" for i in range(24)])
    assert state(monitor) == before and len(monitor.ledger.slots) == 0


def test_checkpoint_resumes() -> None:
    updates = stream()
    monitor = fed(updates[:10])
    monitor.close(["request-1", "request-2"])
    resumed = Example()
    resumed.load_state_dict(monitor.state_dict())
    for update in updates[10:]:
        resumed.update(**update)
    assert state(resumed) == state(fed(updates))
    other = Example(0.5)
    with pytest.raises(MonitorInputError, match="temperature"):
        other.load_state_dict(monitor.state_dict())


def test_reset_forgets() -> None:
    monitor = fed(stream())
    monitor.reset()
    assert state(monitor) == state(Example())


def test_integer_ids_and_tensors_name_the_same_requests() -> None:
    updates = stream(4)
    one, two = Example(), Example()
    for index, u in enumerate(updates):
        u["request_ids"] = [index] * 5
        one.update(**u)
        u["request_ids"] = torch.full((5,), index)
        two.update(**u)
    assert state(one) == state(two)
    assert clause(one.report(), "drift")["max"]["request"] in range(4)


def test_invalid_rows_fail_closed() -> None:
    updates = stream(size=1e-4)
    clean = fed(updates).report()
    assert clause(clean, "hard")["verdict"] == "pass"
    updates[4]["candidate_logits"][1, 0] = math.nan
    report = fed(updates).report()
    assert report["rows"]["invalid"] == 1 and report["rows"]["total"] == 120
    for entry in report["clauses"]:
        if entry["name"] in ("later", "cool"):
            continue
        hit = entry["slice"] is None or bool(updates[4]["slices"][entry["slice"]][1])
        assert (entry["verdict"] == "fail") == hit, entry["name"]
        assert not hit or "invalid" in entry["reason"]
    json.dumps(report, allow_nan=False)


def test_one_sided_support_is_counted_and_infinite() -> None:
    updates = stream()
    updates[0]["candidate_logits"][0, 0] = -math.inf
    updates[1]["reference_logits"][0:2, 5] = -math.inf
    report = fed(updates).report()
    assert report["rows"]["support_reference_only"] == 1 and report["rows"]["support_candidate_only"] == 2
    assert clause(report, "drift")["max"]["value"] == "inf"
    assert clause(report, "kl")["verdict"] == "fail" and "infinite" in clause(report, "kl")["reason"]
    json.dumps(report, allow_nan=False)


def test_missing_inputs_are_unobservable() -> None:
    updates = stream(size=1e-4)
    for u in updates:
        del u["sampled_ids"], u["slices"]["a"]
    report = fed(updates).report()
    assert clause(report, "seq")["verdict"] == clause(report, "geo")["verdict"] == "unobservable"
    assert clause(report, "tail", "a")["verdict"] == "unobservable"
    assert clause(report, "tail", "b")["verdict"] != "unobservable"
    assert "sampled_ids" in clause(report, "seq")["reason"]


def test_inputs_that_were_missing_once_never_pass() -> None:
    updates = stream(size=1e-4)
    assert clause(fed(updates).report(), "geo")["verdict"] == "pass"
    del updates[3]["sampled_ids"]
    assert clause(fed(updates).report(), "geo")["verdict"] == "unobservable"


def test_nothing_measured_is_inconclusive() -> None:
    report = Example().report()
    words = {c["name"]: c["verdict"] for c in report["clauses"]}
    assert words.pop("later") == "not_enforced"
    assert words.pop("cool") == "not_enforced"
    assert set(words.values()) == {"inconclusive"}


def test_bands_and_limits_follow_the_temperature() -> None:
    assert Example(1.0).upper["scaled"] == 0.5
    assert Example(0.5).upper["scaled"] == 0.25
    assert clause(Example(0.5).report(), "cool")["verdict"] == "inconclusive"
    assert clause(Example(0.8).report(), "cool")["verdict"] == "not_enforced"
    assert "temperature" in clause(Example(0.8).report(), "cool")["reason"]
    assert Band((3, 5), (4, 5)).holds(0.6) and not Band((3, 5), (4, 5)).holds(0.8)
    assert Affine((1, 3), (1, 10)).at(0.1) == Fraction(103, 300)


def test_sequence_ratio_is_the_product_over_the_request() -> None:
    z = torch.zeros(2, 4)
    w = torch.zeros(2, 4)
    w[:, 0] = 1.0
    monitor = Example()
    monitor.update(z, w, request_ids=[5, 5], sampled_ids=torch.tensor([0, 0]))
    expected = ((math.e + 3) / (4 * math.e)) ** 2
    found = clause(monitor.report(), "seq")["max"]
    assert found["value"] == pytest.approx(expected, rel=1e-6) and found["request"] == 5
    geometric = clause(monitor.report(), "geo")["max"]["value"]
    assert geometric == pytest.approx(math.sqrt(expected), rel=1e-6)


def test_tokens_counted_as_independent_are_named() -> None:
    report = fed(stream(200, 2, size=1e-4)).report()
    assert clause(report, "scaled")["verdict"] == "pass"
    assert "independent tokens" in clause(report, "scaled")["reason"]
    assert any("scaled" in note for note in report["notes"])


GOOD = torch.zeros(3, 4)


@pytest.mark.parametrize(
    ("slug", "fields"),
    [
        ("vocabulary_width", {"candidate_logits": torch.zeros(3, 5)}),
        ("length_mismatch", {"candidate_logits": torch.zeros(2, 4)}),
        ("shape_invalid", {"candidate_logits": torch.zeros(3, 4, 1)}),
        (
            "shape_invalid",
            {"reference_logits": torch.zeros(0, 4), "candidate_logits": torch.zeros(0, 4), "request_ids": []},
        ),
        ("shape_invalid", {"reference_logits": torch.zeros(3, 0), "candidate_logits": torch.zeros(3, 0)}),
        ("option_invalid", {"reference_logits": torch.zeros(3, 4, dtype=torch.int64)}),
        ("shape_invalid", {"request_ids": [1, 2]}),
        ("shape_invalid", {"request_ids": torch.zeros(4, dtype=torch.int64)}),
        ("option_invalid", {"request_ids": torch.zeros(3)}),
        ("option_invalid", {"request_ids": [1.5, 2, 3]}),
        ("option_invalid", {"request_ids": [2**63, 2, 3]}),
        ("shape_invalid", {"sampled_ids": torch.zeros(2, dtype=torch.int64)}),
        ("option_invalid", {"sampled_ids": torch.tensor([0, 1, 4])}),
        ("option_invalid", {"sampled_ids": torch.tensor([0, 1, -2])}),
        ("option_invalid", {"sampled_ids": torch.zeros(3)}),
        ("shape_invalid", {"times": torch.zeros(2)}),
        ("option_invalid", {"times": "noon"}),
        ("shape_invalid", {"slices": {"a": torch.zeros(2, dtype=torch.bool)}}),
        ("shape_invalid", {"slices": {"a": torch.zeros(3)}}),
    ],
)
def test_bad_input_is_refused_and_counts_nothing(slug: str, fields: dict[str, Any]) -> None:
    monitor = Example()
    before = state(monitor)
    inputs = {"reference_logits": GOOD, "candidate_logits": GOOD, "request_ids": [1, 2, 3]} | fields
    with pytest.raises(MonitorInputError) as caught:
        monitor.update(**inputs)
    assert caught.value.slug == slug and caught.value.holes
    assert state(monitor) == before


@pytest.mark.parametrize("temperature", [math.nan, math.inf, 0.0, -1.0, 0.4, 2.5])
def test_bad_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(MonitorInputError) as caught:
        Example(temperature)
    assert caught.value.slug == "option_invalid"


def test_different_monitors_do_not_merge() -> None:
    with pytest.raises(MonitorInputError, match="temperatures"):
        Example(0.5).merge(Example(0.6))

    class Other(Example):
        DIGEST = "e"

    with pytest.raises(MonitorInputError, match="contracts"):
        Example().merge(Other())


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("sequence of ids", {"request_ids": "ab"}),
        ("sequence of ids", {"request_ids": None}),
        ("uint64", {"request_ids": torch.tensor([1, 2], dtype=torch.uint64)}),
        ("torch tensor is needed", {"sampled_ids": [1, 2]}),
        ("holds no token ids", {"sampled_ids": torch.zeros(2, dtype=torch.complex64)}),
        ("torch tensor is needed", {"positions": [1, 2]}),
        ("torch tensor is needed", {"slices": {"a": [True, False]}}),
        ("meta device", {"z": torch.zeros(2, 5, device="meta"), "w": torch.zeros(2, 5, device="meta")}),
        ("dense", {"z": torch.zeros(2, 5).to_sparse()}),
        ("nested", {"z": torch.nested.nested_tensor([torch.zeros(5), torch.zeros(5)], layout=torch.jagged)}),
        ("meta device", {"sampled_ids": torch.zeros(2, dtype=torch.int64, device="meta")}),
        ("uint64", {"sampled_ids": torch.tensor([1, 2], dtype=torch.uint64)}),
        ("dense", {"sampled_ids": torch.tensor([1, 2]).to_sparse()}),
        ("meta device", {"positions": torch.zeros(2, dtype=torch.int64, device="meta")}),
        ("meta device", {"times": torch.zeros(2, device="meta")}),
        ("meta device", {"request_ids": torch.zeros(2, dtype=torch.int64, device="meta")}),
        ("meta device", {"slices": {"a": torch.ones(2, dtype=torch.bool, device="meta")}}),
        ("a mapping", {"slices": [torch.ones(2, dtype=torch.bool)]}),
    ],
)
def test_arguments_of_other_kinds_are_named(message: str, fields: dict[str, Any]) -> None:
    monitor, given = Example(), {"request_ids": ["a", "b"]} | fields
    z, w = given.pop("z", torch.zeros(2, 5)), given.pop("w", torch.zeros(2, 5))
    with pytest.raises(MonitorInputError, match=message):
        monitor.update(z, w, **given)
    with pytest.raises(MonitorInputError, match="no number"):
        Example(temperature="1.0")  # type: ignore[arg-type]
    assert monitor.report()["rows"]["total"] == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int16, torch.int32])
def test_token_ids_of_any_integers_that_fit(dtype: torch.dtype) -> None:
    (update,) = stream(1)
    assert state(fed([update | {"sampled_ids": update["sampled_ids"].to(dtype)}])) == state(fed([update]))


def test_tokens_of_rows_that_were_computed_elsewhere_are_checked() -> None:
    monitor, z = Example(), torch.zeros(2, 5)
    rows = monitor.rows(z, z, torch.tensor([1, 2]))
    for wrong in (torch.tensor([1]), torch.zeros(2), [1, 2]):
        with pytest.raises(MonitorInputError, match="sampled_ids"):
            monitor.count(rows, request_ids=["a", "b"], sampled_ids=wrong)  # type: ignore[arg-type]
    assert monitor.report()["rows"]["total"] == 0


def test_a_default_device_moves_nothing() -> None:
    """Counts stay where the logits are, and so does what the C++ kernel writes to."""
    expected = state(fed(stream(3)))
    updates = stream(3)
    with torch.device("meta"):
        monitor = fed(updates)
        monitor.close(["request-0"])
        other = Example()
        other.merge(monitor)
        assert state(other) == expected


def test_clauses_about_rows_need_someone_who_reads_them() -> None:
    """A subclass that only names them would fail at its first update; one without such clauses counts its rows."""

    class Named(Monitor):
        CLAUSES = Example.CLAUSES

    with pytest.raises(MonitorInputError, match="clause_values: Named does not say how"):
        Named()
    plain = Monitor()
    plain.update(torch.zeros(2, 3), torch.zeros(2, 3), request_ids=["a", "b"])
    assert plain.report()["rows"]["total"] == 2
