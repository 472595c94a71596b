"""Swaps of one module at a time: the units, their shares, and what they add up to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kcverify.diagnostics import InputError
from kcverify.measure.data import Request
from kcverify.measure.kernels import BY_NAME
from kcverify.measure.layers import LEVELS, by_layer, check_by_layer, chosen, kind_of, units_of
from kcverify.measure.model import load_safetensors
from kcverify.measure.options import MeasureOptions
from kcverify.measure.sides import KernelSide, model_logits, open_pair, open_side, pack_all
from kcverify.resources import data_path

CPU = torch.device("cpu")
FLOAT32 = BY_NAME["float32"]
REQUESTS = [Request(f"r{i}", tuple((31 * i + 7 * j) % 256 for j in range(8))) for i in range(4)]
OPTIONS = MeasureOptions(by_layer=True, batch=2)


@pytest.fixture(scope="module")
def model():
    return load_safetensors(data_path("tinylm.safetensors"))


def only(model, matrix: str, factor: float = 1.05) -> KernelSide:
    """The float32 side with one matrix scaled: its candidate differs there alone."""
    basis = pack_all(model, FLOAT32)
    packed = {**basis.packed, matrix: FLOAT32.pack(model.tensors[matrix] * factor)}
    basis = replace(basis, packed=packed)
    return KernelSide("one", {"weights": "w"}, model_logits("one", model, CPU, lambda _: basis), CPU, 256, None, basis)


def plain(model) -> KernelSide:
    return only(model, model.head, 1.0)


def units(result: dict, level: str) -> dict[str, dict]:
    return {u["name"]: u for u in next(x for x in result["levels"] if x["name"] == level)["units"]}


def test_every_level_cuts_the_model_into_all_of_its_matrices(model) -> None:
    for level in LEVELS:
        found = [m for unit in units_of(level, model) for m in unit.matrices]
        assert sorted(found) == sorted(model.matrices)
    assert [u.name for u in units_of(LEVELS[0], model)] == ["attention", "MLP", "head"]
    assert [u.name for u in units_of(LEVELS[1], model)] == ["blk.0", "blk.1", "blk.2", "blk.3", "head"]
    assert kind_of(model, "blk.1.ffn_up.weight") == "MLP"


@pytest.mark.parametrize("matrix", ["blk.2.ffn_down.weight", "output.weight"])
def test_a_drift_of_one_matrix_is_all_of_that_matrix(model, matrix: str) -> None:
    with torch.no_grad():
        found = by_layer(plain(model), only(model, matrix), REQUESTS, 1.0, OPTIONS)
    by_matrix = units(found, "matrix")
    name = "head (output.weight)" if matrix == model.head else matrix.removesuffix(".weight")
    assert by_matrix[name]["share"] == 1.0
    assert all(u["kl_mean"] == 0 for n, u in by_matrix.items() if n != name)
    assert next(iter(by_matrix)) == name
    assert [level["additivity"] for level in found["levels"]] == [1.0, 1.0, 1.0]
    assert (found["complete"], found["rows"], found["requests"]) == (True, 32, 4)


def test_shares_are_sorted_and_near_additive_for_small_drifts() -> None:
    reference, candidate = open_pair("demo:float32", "demo:int8")
    seen = []
    with torch.no_grad():
        options = replace(OPTIONS, progress=lambda *p: seen.append(p))
        found = by_layer(reference, candidate, REQUESTS, 1.0, options)
    for level in found["levels"]:
        shares = [u["share"] for u in level["units"]]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(level["additivity"])
        assert 0.5 < level["additivity"] < 2
    count = 29 + 5 + 3
    assert (seen[0], seen[-1]) == ((2, 4 * count), (4 * count, 4 * count))


def test_one_and_the_same_kernel_has_nothing_to_attribute(model) -> None:
    found = by_layer(plain(model), plain(model), REQUESTS, 1.0, OPTIONS)
    assert found["bit_exact"]
    assert found["levels"][0]["additivity"] is None
    assert {u["share"] for u in units(found, "matrix").values()} == {None}


def test_an_interrupt_keeps_the_batches_that_every_swap_has_seen(model) -> None:
    calls = []
    reference, inner = plain(model), plain(model).logits

    def logits(ids: torch.Tensor) -> torch.Tensor:
        calls.append(ids)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return inner(ids)

    found = by_layer(replace(reference, logits=logits), only(model, model.head), REQUESTS, 1.0, OPTIONS)
    assert (found["complete"], found["rows"], found["requests"]) == (False, 16, 2)
    assert units(found, "kind")["head"]["share"] == 1.0
    empty = by_layer(reference, reference, [], 1.0, OPTIONS)
    assert (empty["complete"], empty["rows"], empty["whole"]["kl_mean"]) == (False, 0, "nan")


def test_rows_are_whole_requests_up_to_the_limit() -> None:
    assert len(chosen(REQUESTS, 8)) == 1
    assert len(chosen(REQUESTS, 23)) == 2
    assert len(chosen(REQUESTS, 1)) == 1
    assert len(chosen(REQUESTS, 1000)) == 4


def test_sides_without_modules_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", np.zeros((5, 256), dtype=np.float32))
    demo, recorded = open_side("demo:float32"), open_side(str(tmp_path / "r.npy"))
    with pytest.raises(InputError, match=r"r.npy is a file of logits: it has no modules to swap"):
        check_by_layer(demo, recorded, OPTIONS)
    with pytest.raises(InputError, match="mine is a function"):
        check_by_layer(KernelSide("mine", {}, lambda ids: ids, CPU), demo, OPTIONS)
    other = replace(demo, fingerprint={"weights": "other"})
    with pytest.raises(InputError, match="different models"):
        check_by_layer(demo, other, OPTIONS)
    with pytest.raises(InputError, match="nothing reads it"):
        check_by_layer(demo, recorded, MeasureOptions(rows=5))
    with pytest.raises(InputError, match="0 is not a positive number of rows"):
        check_by_layer(demo, demo, MeasureOptions(by_layer=True, rows=0))
    check_by_layer(demo, recorded, MeasureOptions())
