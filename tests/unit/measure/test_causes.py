"""The split of drift into format, kernel and run where it is known exactly, and what it says where it cannot be seen."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kcverify import driver
from kcverify.measure.causes import CAUSES, Causes
from kcverify.measure.data import Request
from kcverify.measure.exactness import exactness, power_of_two
from kcverify.measure.figures import FIGURES, Tally, adding_up
from kcverify.measure.kernels import BY_NAME, Kernel, format_only
from kcverify.measure.model import Architecture, Model
from kcverify.measure.noise import VARIATIONS, highest
from kcverify.measure.run import run_pair
from kcverify.measure.session import feed, load_monitor
from kcverify.measure.sides import FileSide, KernelSide, Side, model_logits, open_side, pack_all
from kcverify.prove.check import check
from kcverify.source import Source

CPU = torch.device("cpu")
FLOAT32 = BY_NAME["float32"]
CONTRACT = """contract tiny
assume { temperature = 1
  sampler = full_softmax
  horizon <= 1 tokens
  reward in [0, 1] }
numerical {
  span:  logit_span <= 1e-4 except 10% -> L2
  loose: logit_span <= 50 except 1% -> L2
  mean:  mean tv <= 1e-5 -> L1
}
statistical { top: agreement(top = 1) >= 90% -> L1 }
"""


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_model() -> Model:
    a = Architecture(vocabulary=24, dim=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn=32, rope_theta=1e4, eps=1e-5)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / 4

    tensors = {"token_embd.weight": draw(24, 16), "output.weight": draw(24, 16), "output_norm.weight": torch.ones(16)}
    shapes = {"attn_q": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16), "attn_output": (16, 16),
              "ffn_gate": (32, 16), "ffn_up": (32, 16), "ffn_down": (16, 32)}  # fmt: skip
    for i in range(2):
        tensors |= {f"blk.{i}.{part}.weight": draw(*shape) for part, shape in shapes.items()}
        tensors |= {f"blk.{i}.{part}.weight": torch.ones(16) for part in ("attn_norm", "ffn_norm")}
    return Model(a, tensors)


MODEL = tiny_model()
REQUESTS = [Request(f"r{i}", tuple((7 * i + 3 * j) % 24 for j in range(9))) for i in range(6)]


def side(kernel: Kernel, name: str = "side", weights: str = "w") -> KernelSide:
    basis = pack_all(MODEL, kernel)
    logits = model_logits(name, MODEL, CPU, lambda matrix: basis)
    return KernelSide(name, {"weights": weights}, logits, CPU, 24, None, basis)


ROUNDED = replace(
    FLOAT32, name="rounded", weights=lambda w: w.bfloat16().float(), pack=lambda w: FLOAT32.pack(w.bfloat16().float())
)
"""Rounded weights, the reference's arithmetic: all of its drift is the format's."""
SLOPPY = replace(FLOAT32, name="sloppy", apply=lambda x, packed: FLOAT32.apply(x, packed) * 1.01)
"""Exact weights, inexact arithmetic: all of its drift is the kernel's."""


def split(reference: Side, candidate: Side, text: str = CONTRACT, batch: int = 3) -> dict:
    checked = check(driver.load_source(Source("tiny.kc", text)).contracts[0])
    source = driver.emit_monitor(checked.contract)
    causes = Causes(reference, candidate, 1.0, checked.contract, feed, lambda: load_monitor(source, None))
    with torch.no_grad():
        run_pair(reference, candidate, REQUESTS, on_rows=causes.take, batch=batch)
    return causes.report()


def part(report: dict, name: str) -> dict:
    return next(p for p in report["parts"] if p["name"] == name)


def test_rounded_weights_in_the_references_arithmetic_are_all_format_error() -> None:
    found = split(side(FLOAT32), side(ROUNDED))
    assert part(found, "kernel")["bit_exact"]
    assert part(found, "kernel")["figures"] == {f.name: {"mean": 0, "max": 0, "p99.9": 0} for f in FIGURES}
    assert part(found, "reference_kernel")["bit_exact"]
    assert part(found, "format")["figures"] == found["whole"]["figures"]
    assert part(found, "format")["figures"]["kl"]["mean"] > 0
    assert part(found, "format")["rows"] == found["rows"] == 54
    assert [found["adding_up"][f.name]["ratio"] for f in FIGURES] == [1.0, 1.0, 1.0]


def test_inexact_arithmetic_on_the_references_weights_is_all_kernel_error() -> None:
    found = split(side(FLOAT32), side(SLOPPY))
    assert part(found, "format")["bit_exact"]
    assert part(found, "kernel")["figures"] == found["whole"]["figures"]
    assert not part(found, "kernel")["within_noise"]
    turned = split(side(SLOPPY), side(FLOAT32))
    assert part(turned, "reference_kernel")["figures"] == turned["whole"]["figures"]
    assert part(turned, "format")["bit_exact"]
    assert part(turned, "kernel")["bit_exact"]


def test_the_reference_itself_is_bit_exact() -> None:
    found = split(side(FLOAT32), side(FLOAT32))
    assert found["whole"]["bit_exact"]
    assert all(p["bit_exact"] for p in found["parts"])
    assert all(line["ratio"] is None for line in found["adding_up"].values())


@pytest.mark.parametrize("name", ["bfloat16", "int8", "w8a8", "fp8", "int4", "int8_bf16", "int4_bf16"])
def test_the_whole_is_at_most_the_sum_where_the_triangle_inequality_holds(name: str) -> None:
    found = split(side(FLOAT32), side(BY_NAME[name]))
    for figure in ("tv", "logit_span"):
        assert found["adding_up"][figure]["ratio"] >= 1 - 1e-6
    assert part(found, "format")["figures"]["kl"]["mean"] > 0
    assert part(found, "format")["observable"]
    assert part(found, "kernel")["observable"]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_format_alone_is_the_kernel_up_to_its_rounding(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(9, 37, generator=generator), torch.randn(20, 37, generator=generator)
    kernel = BY_NAME[name]
    alone = format_only(kernel)
    got, want = (k.apply(x, k.pack(weight)) for k in (kernel, alone))
    assert got.shape == want.shape
    unit = 2**-6 if "bf" in name or "fp8" in name or "e4m3" in name else 2**-18
    assert float((got - want).norm() / want.norm()) <= unit
    assert torch.equal(alone.weights(weight), kernel.weights(weight))


def test_powers_of_two_as_scales_leave_the_kernel_nothing_to_round() -> None:
    weight = torch.tensor([[127.0, -64.0, 3.0, 0.0], [1.0, 0.5, 127 / 64, -0.25]])
    scales = BY_NAME["int8"].pack(weight).scales
    assert power_of_two(scales[:2]).tolist() == [True, True]
    assert power_of_two(torch.tensor([0.75, 0.0, 3.0, 2.0**-100])).tolist() == [False, False, False, True]
    assert torch.equal(BY_NAME["int8"].weights(weight)[0], weight[0])


def test_exactness_is_read_off_the_kernel_table() -> None:
    notes = exactness(pack_all(MODEL, BY_NAME["w8a8"]))
    assert notes[0].startswith("sums of integer codes are exact, also as float32, for 15 of 15 matrices (up to 1,040")
    assert any("inputs are rounded" in note for note in notes)
    assert exactness(pack_all(MODEL, FLOAT32)) == []
    wide = replace(BY_NAME["w8a8"], largest_product=1 << 20)
    assert "for 0 of 15 matrices" in exactness(pack_all(MODEL, wide))[0]
    assert not any("inputs" in note for note in exactness(pack_all(MODEL, BY_NAME["int8"])))


def noisy(step: float, name: str = "noisy") -> KernelSide:
    """A function whose logits move with the number of requests in the call."""

    def logits(ids: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(ids, 24).float() * (3 + step * len(ids))

    return KernelSide(name, {}, logits, CPU)


def test_limits_below_the_noise_floor_are_named() -> None:
    found = split(noisy(1e-2), noisy(1e-2))
    named = {entry["clause"]: entry for entry in found["clauses_below_noise"]}
    assert set(named) == {"span", "mean"}
    assert named["span"]["text"].startswith("clause span: limit 0.0001 is below the noise floor 0.03 (")
    assert named["span"]["text"].endswith("54 of 54 rows, 10 % allowed): it fails without any fault")
    assert named["span"]["floor"] == pytest.approx(0.03, rel=1e-4)
    assert named["mean"]["floor"] == pytest.approx(found["noise"]["floor"]["tv"]["mean"], rel=1e-3)
    assert found["whole"]["bit_exact"]
    assert not found["noise"]["bit_exact"]


def test_a_reference_that_repeats_itself_names_no_clause() -> None:
    found = split(noisy(0), noisy(1e-2))
    assert found["noise"]["bit_exact"]
    assert found["clauses_below_noise"] == []


def test_a_drift_below_the_noise_floor_is_said_to_be_within_it() -> None:
    loud = replace(SLOPPY, apply=lambda x, packed: FLOAT32.apply(x, packed) * (1 + 1e-3 * len(x)))
    found = split(side(loud), side(replace(loud, pack=ROUNDED.pack, weights=ROUNDED.weights)))
    assert part(found, "format")["within_noise"]
    assert not part(found, "format")["bit_exact"]


def test_what_cannot_be_observed_says_why(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", np.zeros((54, 24), dtype=np.float32))
    recorded = open_side(str(tmp_path / "r.npy"))
    assert isinstance(recorded, FileSide)
    found = split(recorded, side(BY_NAME["int8"]))
    assert not part(found, "format")["observable"]
    assert "r.npy is a file of logits, and what its format stores is not known" in part(found, "format")["reason"]
    assert part(found, "kernel")["observable"]
    assert "record the reference twice" in found["noise"]["reason"]
    assert found["adding_up"] is None
    found = split(side(FLOAT32), noisy(0, "mine:f"))
    assert part(found, "kernel")["reason"] == "mine:f is a function, and what its format stores is not known"
    other = split(side(FLOAT32), side(BY_NAME["int8"], weights="other"))
    assert "different models" in part(other, "format")["reason"]
    assert part(other, "kernel")["observable"]


def test_variations_that_do_not_apply_say_why() -> None:
    found = split(noisy(0), noisy(0), batch=1)
    said = {v["name"]: v["reason"] for v in found["noise"]["variations"]}
    assert said["alone"] == "the run itself has one request a call"
    assert "later tokens" in said["shorter"]
    assert {name for name, reason in said.items() if not reason} == {"repeated", "twice", "threads"}
    assert torch.get_num_threads() == 1


def test_a_shorter_call_gives_the_rows_before_its_end() -> None:
    shorter = next(v for v in VARIATIONS if v.name == "shorter")
    ids = torch.tensor([r.token_ids for r in REQUESTS])
    assert shorter.run(side(FLOAT32), ids).shape == (6, 8, 24)


def test_an_invalid_row_counts_as_infinite() -> None:
    tally = Tally()
    tally.add(torch.zeros(3, 4), torch.tensor([[0.0] * 4, [math.nan] * 4, [0.0] * 4]), 1.0)
    assert tally.summary()["invalid"] == 1
    assert tally.summary()["figures"]["kl"] == {"mean": "inf", "max": "inf", "p99.9": "inf"}
    assert (tally.equal, tally.bit_exact) == (2, False)
    assert adding_up(tally, [tally])["kl"]["ratio"] is None


def test_a_reference_without_finite_logits_is_still_json() -> None:
    broken = KernelSide("broken", {}, lambda ids: torch.full((*ids.shape, 24), math.nan), CPU)
    found = split(broken, side(BY_NAME["int8"]))
    assert found["whole"]["invalid"] == found["rows"] == 54
    assert found["noise"]["floor"]["kl"]["max"] == "inf"
    assert {entry["clause"] for entry in found["clauses_below_noise"]} == {"span", "loose", "mean", "top"}
    json.dumps(found, allow_nan=False)


def test_the_quantile_is_an_order_statistic() -> None:
    tally = Tally()
    spans = torch.arange(2000.0)
    tally.add(torch.zeros(2000, 2), torch.stack((spans, torch.zeros(2000)), 1), 1.0)
    exact = -(-2000 * Fraction(999, 1000) // 1)
    assert tally.numbers(FIGURES[2]) == {"mean": 999.5, "max": 1999.0, "p99.9": float(exact - 1)}


def test_nothing_measured_has_no_figures() -> None:
    assert highest([]) is None
    empty = Tally()
    assert not empty.bit_exact
    assert empty.summary()["figures"]["tv"]["mean"] == "nan"
    assert [c.name for c in CAUSES] == ["format", "kernel", "reference_kernel"]
