"""From a kernel contract to logits: the parts of the span bound it on every row, and what is not finite never vanishes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import extremal, head, transfer  # noqa: E402
from kcverify.conformance.model import Declared  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402
from kcverify.measure.data import Request  # noqa: E402
from kcverify.measure.kernels import BY_NAME, multiply  # noqa: E402
from kcverify.measure.model import Architecture, Model, forward  # noqa: E402
from kcverify.measure.sides import Basis, KernelSide, pack_all  # noqa: E402

SIZES = Architecture(24, 16, 1, 2, 1, 8, 32, 1e4, 1e-5)
REQUESTS = [Request(f"r{i}", tuple((5 * i + 3 * j) % 24 for j in range(6))) for i in range(4)]


def model(seed: int = 0) -> Model:
    g = torch.Generator().manual_seed(seed)
    shapes = {
        "token_embd": (24, 16), "blk.0.attn_q": (16, 16), "blk.0.attn_k": (8, 16), "blk.0.attn_v": (8, 16), "blk.0.attn_output": (16, 16),
        "blk.0.ffn_gate": (32, 16), "blk.0.ffn_up": (32, 16), "blk.0.ffn_down": (16, 32), "output": (24, 16),
    }  # fmt: skip
    tensors = {f"{name}.weight": torch.randn(shape, generator=g) / shape[1] ** 0.5 for name, shape in shapes.items()}
    return Model(
        SIZES, tensors | {f"{n}.weight": torch.ones(16) for n in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
    )


def planned(basis: Basis, declared: Declared) -> transfer.Plan:
    found = {
        n: transfer.t.rounded_to(
            transfer.t.gamma(basis.model.tensors[n].shape[1], declared.accumulator), declared.output
        )
        for n in basis.model.matrices
    }
    return transfer.Plan(basis, declared, found)


@pytest.mark.parametrize("kernel", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", range(3))
def test_the_parts_bound_the_span_of_the_whole_model_on_the_measured_rows(kernel, seed):
    m = model(seed)
    one, other = pack_all(m, BY_NAME["float32"]), pack_all(m, BY_NAME[kernel])
    plan = planned(other, Declared(kernel, "float32", kernel))
    found = transfer.rest(plan, one, REQUESTS)
    _, parts = transfer.total(plan, one, found)
    for request in REQUESTS:
        ids = torch.tensor([request.token_ids])
        both = [forward(m, transfer.shipped(b), ids, torch.float32).double() for b in (one, other)]
        d = both[1] - both[0]
        span = float((d.amax(-1) - d.amin(-1)).max())
        assert span <= float(parts["head"]) + found.actual * (1 + 1e-9)
    assert found.largest >= max(r.largest for r in found.layers) * 0.2
    assert {r.layer for r in found.layers} == {n.removesuffix(".weight") for n in m.matrices if n != m.head}
    assert (found.rows, found.requests, found.invalid) == (24, 4, 0)


def test_a_perturbation_is_the_tolerance_against_the_magnitude_and_no_more():
    m = model()
    plan = planned(pack_all(m, BY_NAME["float32"]), Declared("float32", "float32", "bfloat16"))
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    name = "blk.0.ffn_up.weight"
    w = m.tensors[name]
    error = transfer.perturbed(plan, 0)(name, x).double() - x.double() @ w.double().T
    room = float(plan.tolerances[name].value) * (x.double().abs() @ w.double().abs().T)
    assert bool(((error.abs() / room) - 1).abs().max() < 1e-3)
    assert 0 < int((error > 0).sum()) < error.numel()


def test_the_share_that_may_exceed_is_wilks():
    assert float(transfer.exceeding(59)) == pytest.approx(1 - 0.05 ** (1 / 59), abs=2e-6)
    assert transfer.exceeding(59) < Fraction(5, 100) + Fraction(1, 10**4)
    assert all((1 - transfer.exceeding(n)) ** n <= Fraction(5, 100) for n in (1, 2, 24, 64, 999))


def test_a_row_that_is_not_finite_leaves_no_bound():
    m = model()
    broken = Model(m.architecture, {**m.tensors, "blk.0.ffn_down.weight": torch.full((16, 32), torch.inf)})
    plan = planned(pack_all(broken, BY_NAME["float32"]), Declared())
    found = transfer.rest(plan, pack_all(m, BY_NAME["float32"]), REQUESTS[:1])
    assert found.invalid == 6 or found.largest == float("inf")
    assert transfer.total(plan, plan.basis, replace(found, largest=float("inf")))[0] is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_head_that_is_not_finite_is_refused_by_name(value):
    m = model()
    weight = m.tensors["output.weight"].clone()
    weight[3, 2] = value
    basis = pack_all(Model(m.architecture, {**m.tensors, "output.weight": weight}), BY_NAME["bfloat16"])
    with pytest.raises(InputError, match="1 of 24 rows of the head") as stop:
        head.attested(basis)
    assert stop.value.diagnostics[0].code.slug == "head_unbounded"


def test_logits_that_are_not_finite_are_counted_and_make_the_figure_infinite():
    basis = pack_all(model(), BY_NAME["float32"])
    side = KernelSide(
        "a",
        {},
        lambda ids: forward(basis.model, lambda n, x: multiply(basis.kernel, x, basis.packed[n]), ids, torch.float32),
        torch.device("cpu"),
        24,
        None,
        basis,
    )

    def logits(ids):
        out = side.logits(ids)
        out[0, 2, 5] = torch.nan
        return out

    found = head.measured(side, replace(side, logits=logits), [torch.tensor([REQUESTS[0].token_ids])])
    assert (found.invalid, found.whole, found.head) == (1, float("inf"), 0.0)


@pytest.mark.parametrize("seed", range(2))
def test_the_signs_of_the_dual_norm_reach_it_and_no_random_signs_do(seed):
    m = model(seed)
    one = pack_all(m, BY_NAME["float32"])
    plan = planned(one, Declared("float32", "float32", "bfloat16"))
    plan = replace(plan, tolerances={n: replace(d, value=d.value / 64) for n, d in plan.tolerances.items()})
    found = transfer.rest(plan, one, REQUESTS, seed)
    worst = found.extremal
    assert worst.layer == "blk.0.ffn_down"
    assert 0.98 < worst.least <= worst.most < 1.02
    assert worst.largest > worst.random > 0
    assert worst.largest == next(r.largest for r in found.layers if r.layer == worst.layer)
    assert found.largest >= worst.largest * 0.5


def test_signs_that_differ_from_the_worst_in_one_place_move_the_pair_less():
    m = model(3)
    plan = planned(pack_all(m, BY_NAME["float32"]), Declared("float32", "float32", "bfloat16"))
    plain, last = transfer.shipped(plan.basis), "blk.0.ffn_down.weight"
    ids = torch.tensor([REQUESTS[0].token_ids])
    zero = transfer.exact_logits(m, plain, ids)
    moved = torch.randn(zero.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    worst = extremal.worst(m, plain, ids, last, moved)
    tolerance = float(plan.tolerances[last].value)

    def apart(signs):
        product = transfer.perturbed(plan, 0, frozenset({last}), stored=False, chosen={last: signs})
        return worst.apart(zero, transfer.exact_logits(m, product, ids))

    best = apart(worst.signs)
    size = m.tensors[last].abs()
    assert torch.allclose(best, worst.norm(tolerance, size), rtol=0.05)
    for k in range(0, worst.signs.shape[1], 3):
        flipped = worst.signs.clone()
        flipped[:, k] *= -1
        assert bool((apart(flipped) < best + 1e-5 * best.abs()).all())


def test_a_model_without_layers_has_no_last_product():
    m = model()
    bare = Model(replace(m.architecture, layers=0), m.tensors)
    one = pack_all(bare, BY_NAME["float32"])
    found = transfer.rest(planned(one, Declared()), one, REQUESTS[:1])
    assert (found.extremal, found.layers, found.largest) == (None, (), 0.0)
